/* Wrong calls give the standard's error classes, and never a crash. One or two ranks. */
#include "test.h"

static int handled;
static void handler(MPI_Comm *comm, int *code, ...) {
  (void)comm, (void)code;
  handled++;
}

int main(int argc, char **argv) {
  int flag, value = 0, class, length;
  char text[MPI_MAX_ERROR_STRING + 1];
  MPI_Comm comm, freed;
  MPI_Request request;
  MPI_Status status;
  CHECK(!MPI_Initialized(&flag) && !flag && !MPI_Finalized(&flag) && !flag);
  FAILS(MPI_ERR_OTHER, MPI_Comm_rank(MPI_COMM_WORLD, &value));
  FAILS(MPI_ERR_OTHER, MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD));
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_OTHER, MPI_Init(&argc, &argv));
  FAILS(MPI_ERR_COMM, MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL));
  FAILS(MPI_ERR_COMM, MPI_Barrier((MPI_Comm)12345));
  FAILS(MPI_ERR_TYPE, MPI_Send(&value, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TYPE, MPI_Allreduce(&value, &value, 1, (MPI_Datatype)0x77, MPI_SUM, MPI_COMM_WORLD));
  FAILS(MPI_ERR_COUNT, MPI_Send(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TAG, MPI_Send(&value, 1, MPI_INT, 0, -5, MPI_COMM_WORLD));
  FAILS(MPI_ERR_BUFFER, MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_ROOT, MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD));
  FAILS(MPI_ERR_OP, MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_BXOR, MPI_COMM_WORLD));
  FAILS(MPI_ERR_OP, MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD));
  FAILS(MPI_ERR_ARG, MPI_Comm_size(MPI_COMM_WORLD, NULL));
  FAILS(MPI_ERR_REQUEST, MPI_Wait(&(MPI_Request){(MPI_Request)4711}, &status));
  FAILS(MPI_ERR_WIN, MPI_Win_fence(0, MPI_WIN_NULL));
  MPI_Status several[2];
  FAILS(MPI_ERR_ARG, MPI_Waitall(-1, &request, several));
  MPI_Info info;
  CHECK(!MPI_Info_create(&info) && !MPI_Info_set(info, "key", "") && !MPI_Info_get_valuelen(info, "key", &length, &flag));
  CHECK(flag && length == 0 && !MPI_Info_free(&info));
  FAILS(MPI_ERR_COMM, MPI_Comm_free(&(MPI_Comm){MPI_COMM_WORLD}));
  CHECK(!MPI_Comm_dup(MPI_COMM_SELF, &comm));
  freed = comm;
  CHECK(!MPI_Comm_free(&comm));
  FAILS(MPI_ERR_COMM, MPI_Barrier(freed));
  FAILS(MPI_ERR_COMM, MPI_Comm_free(&freed));
  MPI_Datatype type;
  CHECK(!MPI_Type_contiguous(3, MPI_INT, &type));
  FAILS(MPI_ERR_TYPE, MPI_Send(&value, 1, type, 0, 0, MPI_COMM_SELF));
  CHECK(!MPI_Type_free(&type));
  /* A message that is too long: the receive fails with the right class and has stored what fits; the next message arrives well. */
  int longer[3] = {1, 2, 3}, shorter[3] = {0, 0, 0};
  CHECK(!MPI_Isend(longer, 3, MPI_INT, 0, 1, MPI_COMM_SELF, &request));
  FAILS(MPI_ERR_TRUNCATE, MPI_Recv(shorter, 2, MPI_INT, 0, 1, MPI_COMM_SELF, &status));
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE) && shorter[0] == 1 && shorter[2] == 0 && status.MPI_TAG == 1);
  if (size == 2) {
    static double many[50000];
    if (rank == 0) {
      CHECK(!MPI_Send(longer, 3, MPI_INT, 1, 1, MPI_COMM_WORLD) && !MPI_Send(many, 50000, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD));
      CHECK(!MPI_Send(longer, 1, MPI_INT, 1, 3, MPI_COMM_WORLD));
    } else {
      FAILS(MPI_ERR_TRUNCATE, MPI_Recv(shorter, 2, MPI_INT, 0, 1, MPI_COMM_WORLD, &status));
      FAILS(MPI_ERR_TRUNCATE, MPI_Recv(many, 10, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD, &status));
      CHECK(!MPI_Recv(shorter, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, &status) && shorter[0] == 1);
    }
  }
  /* The program's own error handler is called, and its own error classes have texts. */
  MPI_Errhandler mine;
  CHECK(!MPI_Comm_create_errhandler(handler, &mine) && !MPI_Comm_set_errhandler(MPI_COMM_WORLD, mine) && !MPI_Errhandler_free(&mine));
  CHECK(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD) != MPI_SUCCESS && handled == 1);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  CHECK(!MPI_Add_error_class(&class) && class > MPI_ERR_LASTCODE && !MPI_Add_error_string(class, "ours"));
  CHECK(!MPI_Error_string(class, text, &length) && !strcmp(text, "ours"));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, rank, 0, &comm));
  CHECK(!MPI_Error_string(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD), text, &length) && strstr(text, "communicator of"));
  CHECK(!MPI_Finalize() && !MPI_Finalized(&flag) && flag);
  FAILS(MPI_ERR_OTHER, MPI_Barrier(MPI_COMM_WORLD));
  FAILS(MPI_ERR_OTHER, MPI_Finalize());
  return 0;
}
