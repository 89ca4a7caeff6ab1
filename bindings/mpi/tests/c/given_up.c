/* The last rank exits without finalizing; its status is 0, which counts as success. A rank that gives up a call because of the loss does
   not receive into that call's memory any more. Three ranks. */
#include "test.h"
#include <unistd.h>

enum { STACK = 1 << 16, CALLED = 1, SENT, DONE };

/* Waits for a word of another rank. Only probes advance messages: all calls that wait fail once the loss is known. */
static void word_from(int peer, int tag) {
  int there = 0;
  while (!there) CHECK(!MPI_Iprobe(peer, tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE));
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
  if (rank == 2) _exit(0);
  if (rank == 1) {
    CHECK(MPI_Gatherv(&own, 1, MPI_INT, all, counts, places, MPI_INT, 1, MPI_COMM_WORLD) && duplicate());
    /* It goes on with the sender of a receive that it gives up. */
    CHECK(MPI_Recv(&all[0], 1, MPI_INT, 0, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    all[0] = -1;
    CHECK(overwritten() == 0 && all[0] == -1);
    tell(0, DONE);
  } else {
    word_from(1, CALLED);
    /* Whether they succeed does not matter. */
    MPI_Gatherv(&own, 1, MPI_INT, NULL, NULL, NULL, MPI_INT, 1, MPI_COMM_WORLD);
    duplicate();
    tell(1, SENT), word_from(1, DONE);
  }
  _exit(0);
}
