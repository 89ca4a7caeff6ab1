/* A call that waits for a message which never comes ends at the limit that the user has set (KOLO_TIMEOUT), with a text that says so.
   Nothing else fails because of it. Two ranks. */
#include "test.h"

enum { NEVER = 1, GO_ON };

/* Checks that a call has failed at the limit. */
static void at_limit(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  CHECK(code != MPI_SUCCESS && !MPI_Error_string(code, text, &length));
  if (!strstr(text, "KOLO_TIMEOUT")) fprintf(stderr, "%s\n", text);
  CHECK(strstr(text, "KOLO_TIMEOUT") != NULL);
}

int main(int argc, char **argv) {
  int data = 7, there = 0, sum = 0;
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rank == 0) {
    at_limit(MPI_Recv(&data, 1, MPI_INT, 1, NEVER, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(!MPI_Irecv(&data, 1, MPI_INT, MPI_ANY_SOURCE, NEVER, MPI_COMM_WORLD, &request));
    at_limit(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(request == MPI_REQUEST_NULL && data == 7);
    CHECK(!MPI_Send(&data, 1, MPI_INT, 1, GO_ON, MPI_COMM_WORLD));
  } else {
    /* A program that only polls has no limit. */
    while (!there) CHECK(!MPI_Iprobe(0, GO_ON, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE));
    CHECK(!MPI_Recv(&data, 1, MPI_INT, 0, GO_ON, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && data == 7);
  }
  CHECK(!MPI_Allreduce(&data, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) && sum == 14);
  return MPI_Finalize();
}
