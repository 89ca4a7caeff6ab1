/* The last rank calls the first collective of a communicator the given number of seconds after the others. */
#include "test.h"
#include <unistd.h>

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  MPI_Comm copy;
  int one = 1, sum = 0;
  CHECK(argc == 2 && !MPI_Comm_dup(MPI_COMM_WORLD, &copy));
  /* The others are about to wait when the last rank hears from rank 0. How long it lets them wait is what is tested. */
  if (rank == 0) CHECK(!MPI_Send(NULL, 0, MPI_INT, size - 1, 0, MPI_COMM_WORLD));
  if (rank == size - 1) {
    CHECK(!MPI_Recv(NULL, 0, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    sleep(atoi(argv[1]));
  }
  CHECK(!MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, copy) && sum == size);
  CHECK(!MPI_Comm_free(&copy) && !MPI_Finalize());
  return 0;
}
