/* The last rank exits without finalizing; its status is 0, which counts as success. The others finalize without a shrink after the loss. */
#include "test.h"
#include <setjmp.h>
#include <unistd.h>

static jmp_buf *places;
static int place, handled, agreeing;

/* Leaves the failed call, as a library of transactions does. Agreements and MPI_Finalize must not be left. */
static void on_error(MPI_Comm *comm, int *code, ...) {
  int class = -1;
  CHECK(!MPI_Error_class(*code, &class) && (class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED) && places);
  handled++;
  MPIX_Comm_revoke(*comm);
  if (!agreeing) longjmp(places[place], 1);
}

/* Runs collectives until one fails, inside two blocks that errors leave; then all live ranks agree on the outcome of each block. */
static void transactions(int depth, MPI_Comm comm) {
  int flag = 1, one = 1, sum;
  if (setjmp(places[++place]) == 0) {
    if (depth < 2) {
      MPI_Comm inner;
      MPI_Comm_dup(comm, &inner);
      transactions(depth + 1, inner);
      MPI_Comm_free(&inner);
    } else {
      for (;;) MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    }
  } else {
    flag = 0;
  }
  place--;
  agreeing = 1;
  MPIX_Comm_agree(comm, &flag);
  agreeing = 0;
  CHECK(depth < 2 || flag == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2 && !MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  const char *kind = argv[1];
  MPI_Comm alive;
  int one = 1, sum, code = MPI_SUCCESS, left;
  CHECK(!MPI_Barrier(MPI_COMM_WORLD));
  if (rank == size - 1) _exit(0);
  if (strcmp(kind, "fatal")) CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (!strcmp(kind, "noticed") || !strcmp(kind, "again")) {
    while (!code) code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  }
  if (!strcmp(kind, "again")) {
    /* The first rank is lost after a shrink, and the rest finalize at once. */
    CHECK(!MPIX_Comm_shrink(MPI_COMM_WORLD, &alive) && !MPI_Comm_size(alive, &left) && left == size - 1);
    if (rank == 0) _exit(0);
  }
  if (!strcmp(kind, "handler")) {
    MPI_Errhandler handler;
    CHECK(!MPI_Comm_create_errhandler(on_error, &handler) && !MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
    places = malloc(4 * sizeof *places);
    for (int round = 0; round < 3; round++) transactions(0, MPI_COMM_WORLD);
    CHECK(handled >= 3);
    free(places);
    places = NULL;
  }
  CHECK(!MPI_Finalize() && !MPI_Finalized(&left) && left);
  return 0;
}
