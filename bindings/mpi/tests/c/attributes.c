/* The functions for attributes that MPI-2 deprecated, which old programs still call. Any number of ranks. */
#include "test.h"

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  int key, flag = 0, value = 5, *found = NULL;
  MPI_Comm copy;
  CHECK(!MPI_Attr_get(MPI_COMM_WORLD, MPI_TAG_UB, &found, &flag) && flag && *found >= 32767);
  CHECK(!MPI_Keyval_create(MPI_DUP_FN, MPI_NULL_DELETE_FN, &key, NULL) && !MPI_Attr_put(MPI_COMM_WORLD, key, &value));
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &copy) && !PMPI_Attr_get(copy, key, &found, &flag) && flag && found == &value);
  CHECK(!MPI_Attr_delete(MPI_COMM_WORLD, key) && !MPI_Attr_get(MPI_COMM_WORLD, key, &found, &flag) && !flag);
  CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_HOST, &found, &flag) && flag && *found == MPI_PROC_NULL);
  CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_IO, &found, &flag) && flag && *found == MPI_ANY_SOURCE);
  CHECK(!MPI_Comm_free(&copy) && !MPI_Keyval_free(&key) && key == MPI_KEYVAL_INVALID && !MPI_Finalize());
  return 0;
}
