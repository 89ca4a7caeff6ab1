/* Prints something that stays in C's buffer, and ends the job with the given code. */
#include "test.h"

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && argc == 2);
  printf("the last words");
  MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
  return 0;
}
