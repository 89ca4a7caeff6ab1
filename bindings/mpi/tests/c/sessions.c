/* Sessions, without MPI_Init and beside it. Any number of ranks. */
#include "test.h"

static MPI_Comm from_set(MPI_Session session, const char *set, const char *tag) {
  MPI_Group group;
  MPI_Comm comm;
  CHECK(!MPI_Group_from_session_pset(session, set, &group));
  CHECK(!MPI_Comm_create_from_group(group, tag, MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
  CHECK(!MPI_Group_free(&group));
  return comm;
}

static void sum(MPI_Comm comm) {
  int ranks, own, all = 0;
  CHECK(!MPI_Comm_size(comm, &ranks) && !MPI_Comm_rank(comm, &own));
  CHECK(!MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_SUM, comm) && all == ranks * (ranks - 1) / 2);
  int next = (own + 1) % ranks, before = (own + ranks - 1) % ranks, got = -1;
  CHECK(!MPI_Sendrecv(&own, 1, MPI_INT, next, 3, &got, 1, MPI_INT, before, 3, comm, MPI_STATUS_IGNORE) && got == before);
}

static void sets(MPI_Session session) {
  int count, length = 0, flag;
  char name[MPI_MAX_PSET_NAME_LEN], value[16];
  CHECK(!MPI_Session_get_num_psets(session, MPI_INFO_NULL, &count) && count == 2);
  CHECK(!MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &length, NULL) && length == (int)sizeof "mpi://WORLD");
  CHECK(!MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &length, name) && !strcmp(name, "mpi://WORLD"));
  length = 4;
  CHECK(!MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 1, &length, name) && !strcmp(name, "mpi") && length == (int)sizeof "mpi://SELF");
  MPI_Info info;
  CHECK(!MPI_Session_get_pset_info(session, "mpi://SELF", &info));
  CHECK(!MPI_Info_get(info, "mpi_size", 15, value, &flag) && flag && !strcmp(value, "1") && !MPI_Info_free(&info));
  CHECK(!MPI_Session_get_info(session, &info));
  CHECK(!MPI_Info_get(info, "thread_level", 15, value, &flag) && flag && !MPI_Info_free(&info));
  MPI_Group group;
  FAILS(MPI_ERR_ARG, MPI_Group_from_session_pset(session, "mpi://NOBODY", &group));
  FAILS(MPI_ERR_ARG, MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 2, &length, name));
}

/* The session's buffer serves its communicators that have no buffer of their own. */
static void buffered(MPI_Session session, MPI_Comm own) {
  char *room = malloc(4096 + MPI_BSEND_OVERHEAD), *given = NULL;
  int length = 0, value = 7, got = 0;
  FAILS(MPI_ERR_BUFFER, MPI_Bsend(&value, 1, MPI_INT, 0, 5, own));
  CHECK(!MPI_Session_attach_buffer(session, room, 4096 + MPI_BSEND_OVERHEAD) && !MPI_Bsend(&value, 1, MPI_INT, 0, 5, own));
  CHECK(!MPI_Recv(&got, 1, MPI_INT, 0, 5, own, MPI_STATUS_IGNORE) && got == 7 && !MPI_Session_flush_buffer(session));
  CHECK(!MPI_Session_detach_buffer(session, &given, &length) && given == room && length == 4096 + MPI_BSEND_OVERHEAD);
  FAILS(MPI_ERR_BUFFER, MPI_Session_detach_buffer(session, &given, &length));
  free(room);
  /* If the library provides the buffer, detaching returns MPI_BUFFER_AUTOMATIC, which was attached. */
  MPI_Request flushed;
  CHECK(!MPI_Comm_attach_buffer(own, MPI_BUFFER_AUTOMATIC, 0) && !MPI_Bsend(&value, 1, MPI_INT, 0, 6, own));
  CHECK(!MPI_Recv(&got, 1, MPI_INT, 0, 6, own, MPI_STATUS_IGNORE) && !MPI_Comm_iflush_buffer(own, &flushed));
  CHECK(!MPI_Wait(&flushed, MPI_STATUS_IGNORE) && !MPI_Comm_detach_buffer(own, &given, &length));
  CHECK(given == MPI_BUFFER_AUTOMATIC && length == 0);
  CHECK(!MPI_Session_attach_buffer(session, MPI_BUFFER_AUTOMATIC, 0) && !MPI_Session_iflush_buffer(session, &flushed));
  CHECK(!MPI_Wait(&flushed, MPI_STATUS_IGNORE) && !MPI_Session_detach_buffer(session, &given, &length));
  CHECK(given == MPI_BUFFER_AUTOMATIC && length == 0);
}

static int errors;
static void note(MPI_Session *session, int *code, ...) {
  errors += *session != MPI_SESSION_NULL && *code != MPI_SUCCESS;
}

static int given_errors;
static void note_session(MPI_Session *session, int *code, ...) {
  given_errors += *session == MPI_SESSION_NULL && *code != MPI_SUCCESS;
}
static void note_comm(MPI_Comm *comm, int *code, ...) {
  given_errors += *comm == MPI_COMM_NULL && *code != MPI_SUCCESS;
}

/* The error handler that a call gives a new object is called if the call fails, also for a NULL argument, and before anything runs. */
static void given_handlers(void) {
  MPI_Session session;
  MPI_Comm comm;
  MPI_Errhandler of_sessions, of_comms;
  MPI_Info info;
  CHECK(!MPI_Session_create_errhandler(note_session, &of_sessions) && !MPI_Comm_create_errhandler(note_comm, &of_comms));
  CHECK(!MPI_Info_create(&info) && !MPI_Info_set(info, "thread_level", "MPI_THREAD_SOME"));
  given_errors = 0;
  FAILS(MPI_ERR_INFO_VALUE, MPI_Session_init(info, of_sessions, &session));
  FAILS(MPI_ERR_ARG, MPI_Session_init(MPI_INFO_NULL, of_sessions, NULL));
  CHECK(given_errors == 2);
  CHECK(!MPI_Info_set(info, "thread_level", "MPI_THREAD_SERIALIZED") && !MPI_Session_init(info, MPI_ERRORS_RETURN, &session));
  FAILS(MPI_ERR_GROUP, MPI_Comm_create_from_group(MPI_GROUP_NULL, "tag", MPI_INFO_NULL, of_comms, &comm));
  FAILS(MPI_ERR_ARG, MPI_Comm_create_from_group(MPI_GROUP_EMPTY, "tag", MPI_INFO_NULL, of_comms, NULL));
  FAILS(MPI_ERR_GROUP, MPI_Intercomm_create_from_groups(MPI_GROUP_NULL, 0, MPI_GROUP_NULL, 0, "tag", MPI_INFO_NULL, of_comms, &comm));
  CHECK(given_errors == 5 && !MPI_Errhandler_free(&of_sessions) && !MPI_Errhandler_free(&of_comms));
  CHECK(!MPI_Session_finalize(&session) && !MPI_Info_free(&info));
}

int main(int argc, char **argv) {
  MPI_Session first, second;
  int flag;
  given_handlers();
  CHECK(!MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &first) && first != MPI_SESSION_NULL);
  CHECK(!MPI_Initialized(&flag) && !flag);
  sets(first);
  MPI_Comm all = from_set(first, "mpi://WORLD", "org.kolo.test.all"), own = from_set(first, "mpi://SELF", "org.kolo.test.own");
  CHECK(!MPI_Comm_rank(all, &rank) && !MPI_Comm_size(all, &size));
  sum(all), sum(own);
  buffered(first, own);
  /* The predefined communicators do not exist yet. Opening a session again gives another one. */
  CHECK(!MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &second) && second != first);
  MPI_Errhandler handler;
  CHECK(!MPI_Session_create_errhandler(note, &handler) && !MPI_Session_set_errhandler(second, handler));
  MPI_Group group;
  FAILS(MPI_ERR_ARG, MPI_Group_from_session_pset(second, "nothing", &group));
  CHECK(errors == 1 && !MPI_Errhandler_free(&handler));
  MPI_Session copy = first;
  CHECK(!MPI_Session_finalize(&first) && first == MPI_SESSION_NULL);
  sum(all);
  if (argc == 1) {
    /* MPI_Init and MPI_Finalize, while a session is open. */
    CHECK(!MPI_Init(&argc, &argv) && !MPI_Initialized(&flag) && flag);
    sum(MPI_COMM_WORLD);
    CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    FAILS(MPI_ERR_SESSION, MPI_Session_get_num_psets(copy, MPI_INFO_NULL, &flag));
    CHECK(!MPI_Finalize() && !MPI_Finalized(&flag) && flag);
    sum(all);
    FAILS(MPI_ERR_COMM, MPI_Comm_size(MPI_COMM_WORLD, &flag));
  }
  MPI_Comm more = from_set(second, "mpi://WORLD", "org.kolo.test.more");
  sum(more);
  CHECK(!MPI_Comm_free(&more) && !MPI_Comm_free(&all) && !MPI_Comm_free(&own));
  CHECK(!MPI_Session_finalize(&second) && second == MPI_SESSION_NULL);
  return 0;
}
