/* Started and persistent collectives that several threads advance: the library's own, which serves windows, and the program's. */
#include "test.h"
#include <pthread.h>

enum { ROUNDS = 20000, THREADS = 3 };

static MPI_Comm copies[THREADS];

static void check_sum(long i, long sum) { CHECK(sum == size * i * 10 + (long)size * (size - 1) / 2); }

static void persistent(MPI_Comm comm, int rounds) {
  long in = 0, sum = 0;
  MPI_Request request;
  CHECK(!MPI_Allreduce_init(&in, &sum, 1, MPI_LONG, MPI_SUM, comm, MPI_INFO_NULL, &request));
  for (int i = 0; i < rounds; i++) {
    in = i * 10L + rank, sum = -1;
    CHECK(!MPI_Start(&request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
    check_sum(i, sum);
  }
  CHECK(!MPI_Request_free(&request));
}

static void once(MPI_Comm comm, int rounds) {
  for (int i = 0; i < rounds; i++) {
    long in = i * 10L + rank, sum = -1;
    MPI_Request request;
    CHECK(!MPI_Iallreduce(&in, &sum, 1, MPI_LONG, MPI_SUM, comm, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
    check_sum(i, sum);
  }
}

static void *on_own(void *comm) {
  persistent(*(MPI_Comm *)comm, ROUNDS / 4);
  once(*(MPI_Comm *)comm, ROUNDS / 4);
  return NULL;
}

int main(int argc, char **argv) {
  int level, memory[4];
  MPI_Win window;
  pthread_t threads[THREADS];
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) && level == MPI_THREAD_MULTIPLE);
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(!MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
  once(MPI_COMM_WORLD, ROUNDS);
  persistent(MPI_COMM_WORLD, ROUNDS);
  CHECK(!MPI_Win_free(&window));
  for (int i = 0; i < THREADS; i++) CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &copies[i]));
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, on_own, &copies[i]));
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL) && !MPI_Comm_free(&copies[i]));
  CHECK(!MPI_Finalize());
  return 0;
}
