/* Prints something that stays in C's buffer, and ends the job. */
#include "test.h"

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv));
  printf("the last words");
  MPI_Abort(MPI_COMM_WORLD, 3);
  return 0;
}
