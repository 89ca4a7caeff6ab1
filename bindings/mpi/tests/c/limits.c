/* A call that waits for a message which never comes ends at the limit that the user has set (KOLO_TIMEOUT), with a text that says so.
   Nothing else fails because of it. Two ranks. */
#include "test.h"

enum { NEVER = 1, GO_ON, STRAY };

/* Checks that a call has failed at the limit, with a text that names the message. */
static void at_limit(int code, const char *message) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  CHECK(code != MPI_SUCCESS && !MPI_Error_string(code, text, &length));
  if (!strstr(text, "KOLO_TIMEOUT") || !strstr(text, message)) fprintf(stderr, "%s\n", text);
  CHECK(strstr(text, "KOLO_TIMEOUT") && strstr(text, "rank 0 of the world still waits for") && strstr(text, message));
}

int main(int argc, char **argv) {
  int data = 7, there = 0, sum = 0, stray[2] = {0};
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (rank == 0) {
    at_limit(MPI_Recv(&data, 1, MPI_INT, 1, NEVER, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
             "a message from rank 1 with tag 1; no receive matches a message from rank 1 with tag 3 (8 bytes)");
    CHECK(!MPI_Recv(stray, 2, MPI_INT, 1, STRAY, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(!MPI_Issend(&data, 1, MPI_INT, 1, NEVER, MPI_COMM_WORLD, &request));
    at_limit(MPI_Wait(&request, MPI_STATUS_IGNORE), "rank 1 to receive a message with tag 1.");
    CHECK(!MPI_Irecv(&data, 1, MPI_INT, MPI_ANY_SOURCE, NEVER, MPI_COMM_WORLD, &request));
    at_limit(MPI_Wait(&request, MPI_STATUS_IGNORE), "a message from any rank with tag 1.");
    CHECK(request == MPI_REQUEST_NULL && data == 7);
    at_limit(MPI_Probe(1, NEVER, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "a message from rank 1 with tag 1.");
    CHECK(!MPI_Send(&data, 1, MPI_INT, 1, GO_ON, MPI_COMM_WORLD));
  } else {
    CHECK(!MPI_Send(stray, 2, MPI_INT, 0, STRAY, MPI_COMM_WORLD));
    /* A program that only polls has no limit. */
    while (!there) CHECK(!MPI_Iprobe(0, GO_ON, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE));
    CHECK(!MPI_Recv(&data, 1, MPI_INT, 0, GO_ON, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && data == 7);
  }
  CHECK(!MPI_Allreduce(&data, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) && sum == 14);
  return MPI_Finalize();
}
