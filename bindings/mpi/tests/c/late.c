/* The last rank calls the first collective of a communicator the given number of seconds after the others. */
#include "test.h"
#include <unistd.h>

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  MPI_Comm copy;
  int one = 1, sum = 0;
  CHECK(argc == 2 && !MPI_Comm_dup(MPI_COMM_WORLD, &copy));
  if (rank == size - 1) sleep(atoi(argv[1]));
  CHECK(!MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, copy) && sum == size);
  CHECK(!MPI_Comm_free(&copy) && !MPI_Finalize());
  return 0;
}
