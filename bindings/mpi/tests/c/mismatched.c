/* Collectives for which the ranks give different lengths, carried out by messages: every rank's call ends, and those that get another number of
   bytes than they expect fail. The communicator stays usable. Two ranks or more. */
#include "test.h"

enum { ROOM = 30000, KINDS = 7 };
static int data[16 * ROOM], got[16 * ROOM];

static int start(int kind, int n, MPI_Comm comm, MPI_Request *request) {
  switch (kind) {
    case 0: return MPI_Ibcast(data, n, MPI_INT, 0, comm, request);
    case 1: return MPI_Igather(data, n, MPI_INT, got, n, MPI_INT, 0, comm, request);
    case 2: return MPI_Iscatter(data, n, MPI_INT, got, n, MPI_INT, 0, comm, request);
    case 3: return MPI_Iallgather(data, n, MPI_INT, got, n, MPI_INT, comm, request);
    case 4: return MPI_Ialltoall(data, n, MPI_INT, got, n, MPI_INT, comm, request);
    case 5: return MPI_Iallreduce(data, got, n, MPI_INT, MPI_SUM, comm, request);
    default: return MPI_Ireduce(data, got, n, MPI_INT, MPI_SUM, 0, comm, request);
  }
}

/* Returns how many ranks fail. */
static int failures(int kind, int n) {
  int code, class, failed, all = 0, length = 0;
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  MPI_Request request;
  CHECK(!start(kind, n, MPI_COMM_WORLD, &request));
  code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  failed = code != MPI_SUCCESS;
  if (failed) {
    CHECK(!MPI_Error_class(code, &class) && (class == MPI_ERR_NOT_SAME || class == MPI_ERR_TRUNCATE));
    CHECK(!MPI_Error_string(code, text, &length) && strstr(text, "of the world"));
  }
  CHECK(!MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  return all;
}

/* Rank 0 would not receive what it sends to itself. Its call fails, and the others, which wait for it, fail too. */
static void own_block(int kind, int n) {
  int code, failed;
  MPI_Request request = MPI_REQUEST_NULL;
  if (kind == 0) code = MPI_Iallgather(data, n, MPI_INT, got, rank ? n : n + 1, MPI_INT, MPI_COMM_WORLD, &request);
  else if (kind == 1) code = MPI_Ialltoall(data, n, MPI_INT, got, rank ? n : n + 1, MPI_INT, MPI_COMM_WORLD, &request);
  else code = MPI_Iscatter(data, n, MPI_INT, got, rank ? n : n + 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
  if (rank) {
    CHECK(!code);
    FAILS(MPI_ERR_NOT_SAME, MPI_Wait(&request, MPI_STATUS_IGNORE));
  } else {
    FAILS(MPI_ERR_COUNT, code);
  }
  for (int again = 0; again < 3; again++) {
    failed = failures(3, n);
    CHECK(!failed);
  }
}

int main(int argc, char **argv) {
  const int lengths[][2] = {{1, 10}, {10, 1}, {ROOM, 1}, {1, ROOM}, {ROOM, ROOM - 1}};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(size > 1 && size <= 16 && !MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  /* Of four ranks or more, one may send a long message to another that has given up, and wait until it is received. */
  int count = size > 3 ? 2 : (int)(sizeof lengths / sizeof *lengths);
  for (int kind = 0; kind < KINDS; kind++) {
    for (int which = 0; which < count; which++) {
      int failed = failures(kind, lengths[which][rank > 0]);
      /* All ranks but the root get data from a broadcast, also those that get it from another. */
      CHECK(kind ? failed > 0 : failed == size - 1);
      CHECK(!failures(kind, lengths[which][0]));
    }
  }
  for (int kind = 0; kind < 3; kind++) own_block(kind, 1), own_block(kind, size > 3 ? 10 : ROOM);
  return MPI_Finalize();
}
