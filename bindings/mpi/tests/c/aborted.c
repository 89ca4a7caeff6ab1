/* The last rank ends the job; its code 0 counts as success. The others learn of it, and their errors still name the messages for which they
   wait. Each waits for itself, so that the end of another rank cannot end its wait first. Three ranks. */
#include "test.h"

int main(int argc, char **argv) {
  int data = 0, length = 0, class = -1, code;
  char text[MPI_MAX_ERROR_STRING + 1] = "", own[100];
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size) && size == 3);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (rank == 2) {
    /* A barrier would not do: another rank may still be inside it when this one has left. */
    for (int from = 0; from < 2; from++) CHECK(!MPI_Recv(&data, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    return MPI_Abort(MPI_COMM_WORLD, 0);
  }
  CHECK(!MPI_Send(&data, 1, MPI_INT, 2, 0, MPI_COMM_WORLD));
  code = MPI_Recv(&data, 1, MPI_INT, rank, 40 + rank, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  CHECK(code && !MPI_Error_class(code, &class) && !MPI_Error_string(code, text, &length));
  sprintf(own, "rank %d of the world still waits for a message from rank %d with tag %d", rank, rank, 40 + rank);
  if (!strstr(text, own) || !strstr(text, "rank 2")) fprintf(stderr, "class %d: %s\n", class, text);
  CHECK(strstr(text, own) && strstr(text, "rank 2"));
  return 0;
}
