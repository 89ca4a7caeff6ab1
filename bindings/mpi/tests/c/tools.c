/* The tools interface: settings, and counters of messages. Any number of ranks. */
#include "test.h"

static unsigned long long read_one(MPI_T_pvar_session session, const char *name, int class, MPI_T_pvar_handle *handle) {
  int index, count;
  unsigned long long value = 0;
  CHECK(!MPI_T_pvar_get_index(name, class, &index));
  if (*handle == MPI_T_PVAR_HANDLE_NULL) CHECK(!MPI_T_pvar_handle_alloc(session, index, NULL, handle, &count) && count == 1);
  CHECK(!MPI_T_pvar_read(session, *handle, &value));
  return value;
}

static void settings(const char *transport) {
  int number, index, count, verbosity, bind, scope, length = 64, found = 0;
  char name[64], value[1024];
  MPI_Datatype type;
  MPI_T_cvar_handle handle;
  CHECK(!MPI_T_cvar_get_num(&number) && number > 10);
  CHECK(!MPI_T_cvar_get_index("KOLO_TRANSPORT", &index) && index >= 0 && index < number);
  CHECK(!MPI_T_cvar_get_info(index, name, &length, &verbosity, &type, NULL, NULL, NULL, &bind, &scope));
  CHECK(!strcmp(name, "KOLO_TRANSPORT") && length == (int)sizeof "KOLO_TRANSPORT" && type == MPI_CHAR);
  CHECK(verbosity == MPI_T_VERBOSITY_USER_BASIC && bind == MPI_T_BIND_NO_OBJECT && scope == MPI_T_SCOPE_READONLY);
  length = 5;
  CHECK(!MPI_T_cvar_get_info(index, name, &length, NULL, NULL, NULL, NULL, NULL, NULL, NULL) && !strcmp(name, "KOLO"));
  CHECK(!MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) && count <= (int)sizeof value);
  CHECK(!MPI_T_cvar_read(handle, value) && !strcmp(value, transport));
  CHECK(MPI_T_cvar_write(handle, "tcp") == MPI_T_ERR_CVAR_SET_NEVER);
  MPI_T_cvar_handle gone = handle;
  CHECK(!MPI_T_cvar_handle_free(&handle) && handle == MPI_T_CVAR_HANDLE_NULL && MPI_T_cvar_read(gone, value) == MPI_T_ERR_INVALID_HANDLE);
  CHECK(MPI_T_cvar_get_index("KOLO_NOTHING", &index) == MPI_T_ERR_INVALID_NAME);
  CHECK(MPI_T_cvar_handle_alloc(number, NULL, &handle, &count) == MPI_T_ERR_INVALID_INDEX);
  int controls, indices[4];
  CHECK(!MPI_T_category_get_index("settings", &index));
  CHECK(!MPI_T_category_get_info(index, NULL, NULL, NULL, NULL, &controls, &count, &found) && controls == number && !count && !found);
  CHECK(!MPI_T_category_get_cvars(index, 4, indices) && indices[3] == 3);
}

static void counters(void) {
  MPI_T_pvar_session session;
  MPI_T_pvar_handle sent = 0, bytes = 0, received = 0, unexpected = 0, queue = 0;
  int index, class, readonly, continuous, peer = size == 1 ? 0 : rank ^ 1, number;
  CHECK(!MPI_T_pvar_session_create(&session) && !MPI_T_pvar_get_num(&number) && number >= 8);
  CHECK(!MPI_T_pvar_get_index("bytes_sent", MPI_T_PVAR_CLASS_AGGREGATE, &index));
  MPI_Datatype type;
  CHECK(!MPI_T_pvar_get_info(index, NULL, NULL, NULL, &class, &type, NULL, NULL, NULL, NULL, &readonly, &continuous, NULL));
  CHECK(class == MPI_T_PVAR_CLASS_AGGREGATE && type == MPI_UNSIGNED_LONG_LONG && continuous && !readonly);
  read_one(session, "messages_sent", MPI_T_PVAR_CLASS_COUNTER, &sent);
  read_one(session, "bytes_sent", MPI_T_PVAR_CLASS_AGGREGATE, &bytes);
  read_one(session, "messages_received", MPI_T_PVAR_CLASS_COUNTER, &received);
  read_one(session, "unexpected_messages", MPI_T_PVAR_CLASS_COUNTER, &unexpected);
  CHECK(!MPI_T_pvar_reset(session, MPI_T_PVAR_ALL_HANDLES));
  /* No rank sends before all have reset their counters. */
  CHECK(!MPI_Barrier(MPI_COMM_WORLD));
  if (peer < size) {
    double data[10] = {0};
    MPI_Request request;
    CHECK(!MPI_Isend(data, 10, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, &request));
    CHECK(!MPI_Send(data, 3, MPI_DOUBLE, peer == rank ? MPI_PROC_NULL : peer, 2, MPI_COMM_WORLD) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
    /* When the second message has arrived, so has the first, for which no receive has been posted yet. */
    if (peer != rank) CHECK(!MPI_Recv(data, 3, MPI_DOUBLE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(read_one(session, "unexpected_queue", MPI_T_PVAR_CLASS_LEVEL, &queue) == 1);
    CHECK(!MPI_Recv(data, 10, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    unsigned long long many = peer == rank ? 1 : 2;
    CHECK(read_one(session, "messages_sent", MPI_T_PVAR_CLASS_COUNTER, &sent) == many);
    CHECK(read_one(session, "messages_received", MPI_T_PVAR_CLASS_COUNTER, &received) == many);
    CHECK(read_one(session, "bytes_sent", MPI_T_PVAR_CLASS_AGGREGATE, &bytes) == (peer == rank ? 80 : 104));
    CHECK(read_one(session, "unexpected_messages", MPI_T_PVAR_CLASS_COUNTER, &unexpected) >= 1);
    CHECK(read_one(session, "unexpected_queue", MPI_T_PVAR_CLASS_LEVEL, &queue) == 0);
    CHECK(MPI_T_pvar_reset(session, queue) == MPI_T_ERR_PVAR_NO_WRITE);
    unsigned long long value = 1000;
    CHECK(!MPI_T_pvar_write(session, sent, &value) && read_one(session, "messages_sent", MPI_T_PVAR_CLASS_COUNTER, &sent) == 1000);
    CHECK(!MPI_T_pvar_readreset(session, sent, &value) && value == 1000 && !read_one(session, "messages_sent", MPI_T_PVAR_CLASS_COUNTER, &sent));
  }
  CHECK(!MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES) && MPI_T_pvar_stop(session, sent) == MPI_T_ERR_PVAR_NO_STARTSTOP);
  MPI_T_pvar_session other;
  unsigned long long value;
  CHECK(!MPI_T_pvar_session_create(&other) && MPI_T_pvar_read(other, sent, &value) == MPI_T_ERR_INVALID_HANDLE);
  CHECK(!MPI_T_pvar_session_free(&other) && other == MPI_T_PVAR_SESSION_NULL);
  CHECK(MPI_T_pvar_get_index("bytes_sent", MPI_T_PVAR_CLASS_TIMER, &index) == MPI_T_ERR_INVALID_NAME);
  CHECK(!MPI_T_pvar_handle_free(session, &sent) && sent == MPI_T_PVAR_HANDLE_NULL && !MPI_T_pvar_session_free(&session));
}

int main(int argc, char **argv) {
  int level, number;
  CHECK(MPI_T_cvar_get_num(&number) == MPI_T_ERR_NOT_INITIALIZED);
  CHECK(!MPI_T_init_thread(MPI_THREAD_SINGLE, &level) && level == MPI_THREAD_SINGLE);
  const char *transport = getenv("KOLO_TRANSPORT");
  /* Settings can be read before MPI_Init and after. */
  settings(transport ? transport : "auto");
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  settings(transport ? transport : "auto");
  CHECK(!MPI_Barrier(MPI_COMM_WORLD));
  counters();
  /* No rank finalizes before all have read their counters, because that sends messages too. */
  CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_Finalize());
  CHECK(!MPI_T_cvar_get_num(&number) && !MPI_T_finalize() && MPI_T_finalize() == MPI_T_ERR_NOT_INITIALIZED);
  return 0;
}
