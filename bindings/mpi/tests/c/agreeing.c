/* The last rank exits without finalizing. The first thing that the others do is to agree, so only the agreement tells them of the loss: once they
   have acknowledged it, the next one succeeds. Three ranks or more. */
#include "test.h"
#include <unistd.h>

int main(int argc, char **argv) {
  int flag, count = -1;
  MPI_Group lost;
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(size > 2 && !MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (rank == size - 1) _exit(0);
  flag = rank ? 3 : 2;
  FAILS(MPIX_ERR_PROC_FAILED, MPIX_Comm_agree(MPI_COMM_WORLD, &flag));
  CHECK(flag == 2 && !MPIX_Comm_get_failed(MPI_COMM_WORLD, &lost) && !MPI_Group_size(lost, &count) && count == 1);
  CHECK(!MPIX_Comm_failure_ack(MPI_COMM_WORLD));
  flag = rank ? 3 : 1;
  CHECK(!MPIX_Comm_agree(MPI_COMM_WORLD, &flag) && flag == 1);
  CHECK(!MPI_Finalize());
  return 0;
}
