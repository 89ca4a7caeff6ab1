/* Objects freed while operations on them are pending, cancelled operations, and partitioned messages. Any number of ranks. */
#include "test.h"

enum { LONG = 1 << 20 };

static int next, before;

static void freed_objects(void) {
  MPI_Comm comm;
  MPI_Request in, out;
  MPI_Status status;
  MPI_Message message;
  char *from = calloc(LONG, 1), *to = calloc(LONG, 1);
  from[5] = (char)rank;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  CHECK(!MPI_Irecv(to, LONG, MPI_BYTE, before, 3, comm, &in) && !MPI_Isend(from, LONG, MPI_BYTE, next, 3, comm, &out));
  CHECK(!MPI_Comm_free(&comm) && !MPI_Wait(&in, &status) && to[5] == before && status.MPI_SOURCE == before);
  CHECK(!MPI_Wait(&out, MPI_STATUS_IGNORE));
  /* The message that a probe has taken outlives the communicator. */
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &comm) && !MPI_Isend(from, LONG, MPI_BYTE, next, 4, comm, &out));
  CHECK(!MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &message, &status) && !MPI_Comm_free(&comm));
  to[5] = -1;
  CHECK(!MPI_Mrecv(to, LONG, MPI_BYTE, &message, &status) && to[5] == before && status.MPI_SOURCE == before);
  CHECK(!MPI_Wait(&out, MPI_STATUS_IGNORE));
  /* Nothing is received from MPI_PROC_NULL, not even a type. */
  CHECK(!MPI_Recv(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &status) && status.MPI_SOURCE == MPI_PROC_NULL);
  free(from), free(to);
}

/* Requests and messages keep the error handler of their communicator, which may be freed before they complete. */
static void handlers_of_freed_communicators(void) {
  int one, four[4] = {1, 2, 3, 4};
  MPI_Comm comm;
  MPI_Request request;
  MPI_Message message;
  MPI_Status status;
  for (int which = 0; which < 4; which++) {
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &comm) && !MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    if (which == 0) CHECK(!MPI_Irecv(&one, 1, MPI_INT, before, 0, comm, &request));
    if (which == 1) CHECK(!MPI_Recv_init(&one, 1, MPI_INT, before, 0, comm, &request) && !MPI_Start(&request));
    if (which == 2) CHECK(!MPI_Ibcast(four, rank ? 2 : 4, MPI_INT, 0, comm, &request));
    if (which != 2) CHECK(!MPI_Send(four, 2, MPI_INT, next, 0, comm));
    if (which == 3) CHECK(!MPI_Mprobe(before, 0, comm, &message, MPI_STATUS_IGNORE));
    CHECK(!MPI_Comm_free(&comm));
    if (which == 0) FAILS(MPI_ERR_TRUNCATE, MPI_Wait(&request, MPI_STATUS_IGNORE));
    if (which == 1) FAILS(MPI_ERR_IN_STATUS, MPI_Waitall(1, &request, &status));
    if (which == 1) CHECK(!MPI_Request_free(&request));
    if (which == 2) CHECK((MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS) == (rank != 0));
    if (which == 3) FAILS(MPI_ERR_TRUNCATE, MPI_Mrecv(&one, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
  }
}

/* Errors of calls that name only a request or a message go to the handler of its communicator. */
static void handlers_of_requests(void) {
  int value = 5, got, flag;
  MPI_Comm comm;
  MPI_Request request, in;
  MPI_Message message;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &comm) && !MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  /* There is no buffer for the message. */
  CHECK(!MPI_Bsend_init(&value, 1, MPI_INT, rank, 0, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Start(&request));
  FAILS(MPI_ERR_BUFFER, MPI_Startall(1, &request));
  CHECK(!MPI_Request_free(&request));
  CHECK(!MPI_Send(&value, 1, MPI_INT, rank, 0, comm) && !MPI_Mprobe(rank, 0, comm, &message, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_COUNT, MPI_Mrecv(&got, -1, MPI_INT, &message, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_COUNT, MPI_Imrecv(&got, -1, MPI_INT, &message, &request));
  CHECK(!MPI_Mrecv(&got, 1, MPI_INT, &message, MPI_STATUS_IGNORE) && got == 5);
  CHECK(!MPI_Psend_init(&value, 1, 1, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &request));
  CHECK(!MPI_Precv_init(&got, 1, 1, MPI_INT, rank, 0, comm, MPI_INFO_NULL, &in));
  FAILS(MPI_ERR_REQUEST, MPI_Pready(0, request));
  CHECK(!MPI_Start(&request) && !MPI_Start(&in));
  FAILS(MPI_ERR_ARG, MPI_Pready(5, request));
  FAILS(MPI_ERR_ARG, MPI_Pready_range(4, 5, request));
  FAILS(MPI_ERR_ARG, MPI_Pready_list(1, (int[]){5}, request));
  FAILS(MPI_ERR_ARG, MPI_Parrived(in, 7, &flag));
  FAILS(MPI_ERR_REQUEST, MPI_Request_free(&request));
  FAILS(MPI_ERR_REQUEST, MPI_Cancel(&request));
  CHECK(!MPI_Pready(0, request) && !MPI_Wait(&in, MPI_STATUS_IGNORE) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(!MPI_Request_free(&in) && !MPI_Request_free(&request));
  CHECK(!MPI_Ibarrier(comm, &request));
  FAILS(MPI_ERR_REQUEST, MPI_Cancel(&request));
  FAILS(MPI_ERR_REQUEST, MPI_Start(&request));
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(!MPI_Recv_init(&got, 1, MPI_INT, rank, 0, comm, &request) && !MPI_Start(&request));
  FAILS(MPI_ERR_REQUEST, MPI_Start(&request));
  FAILS(MPI_ERR_REQUEST, MPI_Startall(1, &request));
  CHECK(!MPI_Cancel(&request) && !MPI_Wait(&request, MPI_STATUS_IGNORE) && !MPI_Request_free(&request) && !MPI_Comm_free(&comm));
}

/* A cancelled send completes, whether or not a receive has matched it. */
static void cancelled_sends(void) {
  static char data[LONG], in[LONG];
  MPI_Request out[2];
  MPI_Status status;
  int flag;
  for (int peer = 0; peer < 2; peer++) {
    int to = peer ? next : rank;
    memset(data, 1, LONG);
    CHECK(!MPI_Issend(data, 1, MPI_BYTE, to, 1, MPI_COMM_WORLD, &out[0]) && !MPI_Cancel(&out[0]));
    CHECK(!MPI_Wait(&out[0], &status) && !MPI_Test_cancelled(&status, &flag) && flag);
    CHECK(!MPI_Isend(data, LONG, MPI_BYTE, to, 2, MPI_COMM_WORLD, &out[0]) && !MPI_Cancel(&out[0]));
    CHECK(!MPI_Wait(&out[0], &status) && !MPI_Test_cancelled(&status, &flag) && flag);
    /* Only the second message arrives. */
    CHECK(!MPI_Issend(data, LONG, MPI_BYTE, to, 3, MPI_COMM_WORLD, &out[0]) && !MPI_Cancel(&out[0]));
    CHECK(!MPI_Wait(&out[0], &status) && !MPI_Test_cancelled(&status, &flag) && flag && !MPI_Barrier(MPI_COMM_WORLD));
    data[7] = 7;
    CHECK(!MPI_Isend(data, LONG, MPI_BYTE, to, 3, MPI_COMM_WORLD, &out[0]));
    CHECK(!MPI_Recv(in, LONG, MPI_BYTE, peer ? before : rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && in[7] == 7);
    CHECK(!MPI_Barrier(MPI_COMM_WORLD));
    CHECK(!MPI_Cancel(&out[0]) && !MPI_Wait(&out[0], &status) && !MPI_Test_cancelled(&status, &flag) && !flag);
  }
}

/* Operations match in the order in which they are initialized, and ranks may cut a message differently. */
static void partitions(void) {
  int one[4] = {1, 2, 3, 4}, other[4] = {5, 6, 7, 8}, ones[8], others[8];
  MPI_Request out[2], in[2];
  MPI_Datatype gaps;
  MPI_Status statuses[2];
  int count;
  CHECK(!MPI_Type_vector(2, 1, 2, MPI_INT, &gaps) && !MPI_Type_commit(&gaps));
  CHECK(!MPI_Psend_init(one, 2, 2, MPI_INT, next, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &out[0]));
  CHECK(!MPI_Psend_init(other, 4, 1, MPI_INT, next, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &out[1]));
  CHECK(!MPI_Precv_init(ones, 4, 1, MPI_INT, before, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &in[0]));
  /* Every partition of the sender fills half an element. */
  CHECK(!MPI_Precv_init(others, 1, 2, gaps, before, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &in[1]));
  for (int round = 0; round < 3; round++) {
    memset(ones, 0, sizeof ones), memset(others, 0, sizeof others);
    one[0] = 100 + round;
    CHECK(!MPI_Start(&out[1]) && !MPI_Start(&out[0]) && !MPI_Startall(2, in));
    CHECK(!MPI_Pready_range(0, 3, out[1]) && !MPI_Pready(1, out[0]) && !MPI_Pready(0, out[0]));
    CHECK(!MPI_Waitall(2, in, statuses) && !MPI_Waitall(2, out, MPI_STATUSES_IGNORE));
    CHECK(ones[0] == 100 + round && ones[3] == 4);
    CHECK(others[0] == 5 && others[2] == 6 && others[3] == 7 && others[5] == 8 && others[1] == 0 && others[4] == 0);
    CHECK(statuses[1].MPI_SOURCE == before && statuses[1].MPI_TAG == 7);
    CHECK(!MPI_Get_count(&statuses[0], MPI_INT, &count) && count == 4);
  }
  for (int i = 0; i < 2; i++) CHECK(!MPI_Request_free(&out[i]) && !MPI_Request_free(&in[i]));
  CHECK(!MPI_Type_free(&gaps));
}

/* The standard's ABI has two forms of each call. In MPICH's, the only form has the wider count. */
static void counts_of_partitions(void) {
#ifdef MPI_ABI_VERSION
  /* The upper half of a count is undefined where the count is an int. */
  typedef int (*init)(void *, int, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
  union {
    int (*precv)(void *, int, int, MPI_Datatype, int, int, MPI_Comm, MPI_Info, MPI_Request *);
    init wide;
  } narrow = {MPI_Precv_init};
  int data = rank, got = -1;
  MPI_Request out, in;
  CHECK(!MPI_Psend_init_c(&data, 1, 1, MPI_INT, next, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &out));
  CHECK(!narrow.wide(&got, 1, (1LL << 40) + 1, MPI_INT, before, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &in));
  CHECK(!MPI_Start(&in) && !MPI_Start(&out) && !MPI_Pready(0, out));
  CHECK(!MPI_Wait(&in, MPI_STATUS_IGNORE) && !MPI_Wait(&out, MPI_STATUS_IGNORE) && got == before);
  CHECK(!MPI_Request_free(&in) && !MPI_Request_free(&out));
  CHECK(!MPI_Precv_init_c(&got, 1, 1, MPI_INT, before, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &in) && !MPI_Request_free(&in));
#endif
}

/* A message of no partitions is complete once it is started; so is its receive, however that is cut. */
static void no_partitions(void) {
  for (int kind = 0; kind < 3; kind++) {
    int data = -1, flag, sent = kind == 2 ? 2 : 0, got = kind == 1 ? 2 : 0;
    MPI_Request out, in;
    MPI_Status status;
    CHECK(!MPI_Psend_init(NULL, sent, 0, MPI_INT, next, 10, MPI_COMM_WORLD, MPI_INFO_NULL, &out));
    CHECK(!MPI_Precv_init(&data, got, 1, MPI_INT, before, 10, MPI_COMM_WORLD, MPI_INFO_NULL, &in));
    for (int round = 0; round < 2; round++) {
      CHECK(!MPI_Start(&out) && !MPI_Start(&in) && !MPI_Pready_range(0, sent - 1, out) && !MPI_Pready_list(0, NULL, out));
      for (flag = 0; got && !flag;) CHECK(!MPI_Parrived(in, 1, &flag));
      CHECK(!MPI_Wait(&in, &status) && !MPI_Get_count(&status, MPI_INT, &flag) && flag == 0 && status.MPI_SOURCE == before);
      CHECK(!MPI_Wait(&out, MPI_STATUS_IGNORE) && data == -1);
    }
    CHECK(!MPI_Request_free(&in) && !MPI_Request_free(&out));
  }
}

/* A partition arrives although the next is not ready yet, even if both are empty. Each rank marks the second ready once the next rank has the
   first. */
static void single_partitions(int each) {
  int data[2] = {rank, rank + 50}, got[2] = {-1, -1}, flag = 0;
  MPI_Request out, in, word;
  CHECK(!MPI_Psend_init(data, 2, each, MPI_INT, next, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &out) && !MPI_Start(&out));
  CHECK(!MPI_Precv_init(got, 2, each, MPI_INT, before, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &in) && !MPI_Start(&in));
  CHECK(!MPI_Pready(0, out));
  while (!flag) CHECK(!MPI_Parrived(in, 0, &flag));
  CHECK(got[0] == (each ? before : -1) && !MPI_Parrived(in, 1, &flag) && !flag);
  CHECK(!MPI_Isend(NULL, 0, MPI_INT, before, 9, MPI_COMM_WORLD, &word));
  CHECK(!MPI_Recv(NULL, 0, MPI_INT, next, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && !MPI_Pready(1, out));
  CHECK(!MPI_Wait(&in, MPI_STATUS_IGNORE) && !MPI_Wait(&out, MPI_STATUS_IGNORE) && !MPI_Wait(&word, MPI_STATUS_IGNORE));
  CHECK(got[1] == (each ? before + 50 : -1) && !MPI_Request_free(&in) && !MPI_Request_free(&out));
}

/* There is no limit to the number of pending requests. The last receive completes by its own message, not by that of the first. */
static void many_requests(void) {
  enum { MANY = 262200 };
  int flag, first = 7, last = 9, *got = calloc(MANY, sizeof *got);
  MPI_Request *in = malloc(MANY * sizeof *in);
  for (int i = 0; i < MANY; i++) CHECK(!MPI_Irecv(&got[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &in[i]));
  for (int i = 0; i < 100; i++) CHECK(in[i] != in[MANY - 1] && in[i] != in[262144 + i % 50]);
  CHECK(!MPI_Send(&first, 1, MPI_INT, 0, 0, MPI_COMM_SELF));
  CHECK(!MPI_Test(&in[262144], &flag, MPI_STATUS_IGNORE) && !flag);
  CHECK(!MPI_Send(&last, 1, MPI_INT, 0, 262144, MPI_COMM_SELF) && !MPI_Wait(&in[262144], MPI_STATUS_IGNORE) && got[262144] == 9);
  CHECK(!MPI_Wait(&in[0], MPI_STATUS_IGNORE) && got[0] == 7);
  for (int i = 1; i < MANY; i++)
    if (i != 262144) CHECK(!MPI_Cancel(&in[i]));
  CHECK(!MPI_Waitall(MANY, in, MPI_STATUSES_IGNORE));
  free(got), free(in);
}

static int freed;

static int on_query(void *extra, MPI_Status *status) {
  (void)extra;
  return MPI_Status_set_elements(status, MPI_INT, 0) || MPI_Status_set_cancelled(status, 0);
}

static int on_free(void *extra) {
  (void)extra;
  freed++;
  return MPI_SUCCESS;
}

static int on_cancel(void *extra, int complete) {
  (void)extra, (void)complete;
  return MPI_SUCCESS;
}

/* The program's state is released once the request has been freed and the operation has been completed, in any order. */
static void generalized(void) {
  MPI_Request request, copy;
  freed = 0;
  CHECK(!MPI_Grequest_start(on_query, on_free, on_cancel, NULL, &request));
  copy = request;
  CHECK(!MPI_Request_free(&request) && request == MPI_REQUEST_NULL && freed == 0);
  CHECK(!MPI_Grequest_complete(copy) && freed == 1);
  CHECK(!MPI_Grequest_start(on_query, on_free, on_cancel, NULL, &request) && !MPI_Grequest_complete(request));
  CHECK(freed == 1 && !MPI_Request_free(&request) && freed == 2);
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  next = (rank + 1) % size, before = (rank + size - 1) % size;
  freed_objects(), handlers_of_freed_communicators(), handlers_of_requests(), cancelled_sends();
  partitions(), no_partitions(), single_partitions(1), single_partitions(0), counts_of_partitions();
  many_requests(), generalized();
  CHECK(!MPI_Finalize());
  return 0;
}
