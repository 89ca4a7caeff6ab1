/* Without MPI_THREAD_MULTIPLE, the library's own thread serves windows, but does not call operators while the program runs code of its
   own. Two or more ranks. */
#include "test.h"
#include <pthread.h>

static pthread_t own;
static volatile int outside, foreign;

static void sum(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  foreign += outside && !pthread_equal(own, pthread_self());
  for (int i = 0; i < *count; i++) ((int *)inout)[i] += ((int *)in)[i];
}

int main(int argc, char **argv) {
  int level, one = 1, total;
  static volatile int memory;
  MPI_Op op;
  MPI_Win window;
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level));
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size) && size > 1);
  own = pthread_self();
  CHECK(!MPI_Op_create(sum, 1, &op) && !MPI_Win_create((void *)&memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
  CHECK(!MPI_Win_lock_all(0, window));
  for (int round = 1; round <= 20; round++) {
    MPI_Request request;
    total = 0;
    CHECK(!MPI_Iallreduce(&one, &total, 1, MPI_INT, op, MPI_COMM_WORLD, &request));
    /* If rank 0 comes first, the second value comes when rank 0's thread has polled once more after it has taken rank 1's part of the sum. */
    for (int i = 2 * round; rank == 1 && i <= 2 * round + 1; i++)
      CHECK(!MPI_Put(&i, 1, MPI_INT, 0, 0, 1, MPI_INT, window) && !MPI_Win_flush(0, window));
    outside = 1;
    while (rank == 0 && memory < 2 * round + 1) continue;
    outside = 0;
    CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE) && total == size);
  }
  CHECK(foreign == 0 && !MPI_Win_unlock_all(window) && !MPI_Win_free(&window) && !MPI_Op_free(&op) && !MPI_Finalize());
  return 0;
}
