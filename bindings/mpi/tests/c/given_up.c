/* The last rank exits without finalizing; its status is 0, which counts as success. A rank that gives up a call because of the loss does
   not receive into that call's memory any more. Three ranks. */
#include "test.h"
#include <unistd.h>

enum { STACK = 1 << 16, CALLED = 1, SENT, DONE, DATA, NEVER };

/* Waits for a word of another rank. Probes fail once the loss is known, but still advance messages. */
static void word_from(int peer, int tag) {
  int there = 0;
  while (!there) MPI_Iprobe(peer, tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
}

static void send_data(int peer) {
  static const int data = 7;
  MPI_Request request;
  CHECK(!MPI_Isend(&data, 1, MPI_INT, peer, DATA, MPI_COMM_WORLD, &request) && !MPI_Request_free(&request));
}

static MPI_Request receive_from(int peer, int *into) {
  MPI_Request request;
  CHECK(!MPI_Irecv(into, 1, MPI_INT, peer, DATA, MPI_COMM_WORLD, &request));
  return request;
}

static int class_of(int code) {
  int class = MPI_SUCCESS;
  CHECK(!MPI_Error_class(code, &class));
  return class;
}

/* Calls that wait or poll for a rank that lives end with an error too, and their requests with them. */
static void requests(int *into) {
  int flag = 0, code = 0, index = -1, count = -1, indices[2];
  MPI_Status statuses[2];
  MPI_Request request = receive_from(0, &into[0]), two[2];
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) && request == MPI_REQUEST_NULL);
  for (request = receive_from(0, &into[0]); !flag && !code;) code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  CHECK(code && flag && request == MPI_REQUEST_NULL);
  two[0] = receive_from(0, &into[0]), two[1] = receive_from(MPI_PROC_NULL, &into[1]);
  CHECK(class_of(MPI_Waitall(2, two, statuses)) == MPI_ERR_IN_STATUS && two[0] == MPI_REQUEST_NULL && two[1] == MPI_REQUEST_NULL);
  CHECK(statuses[0].MPI_ERROR && statuses[1].MPI_ERROR == MPI_SUCCESS && statuses[1].MPI_SOURCE == MPI_PROC_NULL);
  two[0] = MPI_REQUEST_NULL, two[1] = receive_from(0, &into[0]);
  CHECK(MPI_Waitany(2, two, &index, MPI_STATUS_IGNORE) && index == 1 && two[1] == MPI_REQUEST_NULL);
  two[0] = receive_from(0, &into[0]), two[1] = receive_from(0, &into[1]);
  CHECK(class_of(MPI_Waitsome(2, two, &count, indices, statuses)) == MPI_ERR_IN_STATUS && count == 2);
  CHECK(two[0] == MPI_REQUEST_NULL && two[1] == MPI_REQUEST_NULL);
  /* A persistent request is inactive afterwards. */
  CHECK(!MPI_Recv_init(&into[0], 1, MPI_INT, 0, DATA, MPI_COMM_WORLD, &request) && !MPI_Start(&request));
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) && request != MPI_REQUEST_NULL);
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE) && !MPI_Request_free(&request));
  CHECK(!MPI_Ibcast(&into[2], 1, MPI_INT, 0, MPI_COMM_WORLD, &request));
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) && request == MPI_REQUEST_NULL);
  for (flag = code = 0; !flag && !code;) code = MPI_Iprobe(MPI_ANY_SOURCE, NEVER, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  CHECK(code && !flag);
}

static void tell(int peer, int tag) {
  MPI_Request request;
  CHECK(!MPI_Isend(NULL, 0, MPI_INT, peer, tag, MPI_COMM_WORLD, &request) && !MPI_Request_free(&request));
}

__attribute__((noinline)) static int duplicate(void) {
  MPI_Comm copy;
  return MPI_Comm_dup(MPI_COMM_WORLD, &copy);
}

/* Its array lies where the frames of the call were that has been given up. */
__attribute__((noinline)) static int overwritten(void) {
  volatile unsigned char bytes[STACK];
  int count = 0;
  for (int i = 0; i < STACK; i++) bytes[i] = 0xaa;
  tell(0, CALLED), word_from(0, SENT);
  for (int i = 0; i < STACK; i++) count += bytes[i] != 0xaa;
  return count;
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(size == 3 && !MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) && !MPI_Barrier(MPI_COMM_WORLD));
  int own = 7, all[3] = {-1, -1, -1}, counts[3] = {1, 1, 1}, places[3] = {0, 1, 2};
  MPI_Request request;
  if (rank == 2) _exit(0);
  if (rank == 1) {
    CHECK(MPI_Gatherv(&own, 1, MPI_INT, all, counts, places, MPI_INT, 1, MPI_COMM_WORLD) && duplicate());
    /* It goes on with the sender of a receive that it gives up. */
    CHECK(MPI_Recv(&all[0], 1, MPI_INT, 0, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    all[0] = all[1] = all[2] = -1;
    requests(all);
    CHECK(overwritten() == 0 && all[0] == -1 && all[1] == -1 && all[2] == -1);
    tell(0, DONE);
  } else {
    word_from(1, CALLED);
    /* Whether they succeed does not matter. */
    MPI_Gatherv(&own, 1, MPI_INT, NULL, NULL, NULL, MPI_INT, 1, MPI_COMM_WORLD);
    duplicate();
    for (int i = 0; i < 7; i++) send_data(1);
    if (!MPI_Ibcast(&own, 1, MPI_INT, 0, MPI_COMM_WORLD, &request)) MPI_Request_free(&request);
    tell(1, SENT), word_from(1, DONE);
  }
  _exit(0);
}
