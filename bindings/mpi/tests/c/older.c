/* What programs for MPI-1 call, and what bindings for Fortran need of the library. Only with the MPICH ABI. Any number of ranks. */
#include "test.h"

/* Declared as in the bindings for Fortran. */
int MPII_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag, int kind);
int MPII_Comm_set_attr(MPI_Comm comm, int keyval, void *value, int kind);
typedef int Copy_proxy(void *, int, int, void *, int, void *, void **, int *);
typedef int Delete_proxy(void *, int, int, int, void *, void *);
void MPII_Keyval_set_proxy(int keyval, Copy_proxy *copy, Delete_proxy *del);
enum { POINTER = 0, ADDRESS_WIDE = 1, INT = 3 };

static int deleted;
static int copy(MPI_Comm comm, int keyval, void *extra, void *value, void *place, int *flag) {
  (void)comm, (void)keyval, (void)extra;
  *(void **)place = (char *)value + 1;
  *flag = 1;
  return MPI_SUCCESS;
}
static int delete(MPI_Comm comm, int keyval, void *value, void *extra) {
  (void)comm, (void)keyval, (void)value, (void)extra;
  deleted++;
  return MPI_SUCCESS;
}
static int copy_by_proxy(void *function, int comm, int keyval, void *extra, int kind, void *value, void **place, int *flag) {
  CHECK(function == (void *)copy && kind == ADDRESS_WIDE && extra == &deleted && comm == MPI_COMM_WORLD && keyval);
  *place = (char *)value + 10;
  *flag = 1;
  return MPI_SUCCESS;
}
static int delete_by_proxy(void *function, int comm, int keyval, int kind, void *value, void *extra) {
  CHECK(function == (void *)delete && kind == ADDRESS_WIDE && extra == &deleted && comm && keyval && value);
  deleted += 100;
  return MPI_SUCCESS;
}

/* A state counts the calls of its function, and those of its destructor in tens of thousands. */
enum { DESTROYED = 10000 };
static void destroy(void *state) {
  *(int *)state += DESTROYED;
}
static MPI_Win watched;
/* Destructors may ask for the handler of the object that had this one. */
static void destroy_and_ask(void *state) {
  MPI_Errhandler now;
  CHECK(!MPI_Comm_get_errhandler(MPI_COMM_SELF, &now) && now == MPI_ERRORS_RETURN);
  CHECK(!MPI_File_get_errhandler(MPI_FILE_NULL, &now) && now == MPI_ERRORS_RETURN);
  CHECK(!MPI_Win_get_errhandler(watched, &now) && now == MPI_ERRORS_RETURN);
  destroy(state);
}
static void add(void *in, void *inout, MPI_Count length, MPI_Datatype type, void *state) {
  CHECK(type == MPI_INT);
  for (MPI_Count i = 0; i < length; i++) ((int *)inout)[i] += ((int *)in)[i];
  ++*(int *)state;
}
static void on_error(MPI_Comm comm, int code, void *state) {
  CHECK(comm == MPI_COMM_SELF && code != MPI_SUCCESS);
  ++*(int *)state;
}
static void on_window_error(MPI_Win window, int code, void *state) {
  CHECK(window != MPI_WIN_NULL && code != MPI_SUCCESS);
  ++*(int *)state;
}
static void on_file_error(MPI_File file, int code, void *state) {
  CHECK(file == MPI_FILE_NULL && code != MPI_SUCCESS);
  ++*(int *)state;
}

/* Operators and error handlers with a state, whose destructor is called once nothing uses it. */
static void states(void) {
  int state = 0, value = 1, sum = 0;
  MPI_Op op;
  MPI_Errhandler handler;
  MPI_Request request;
  MPI_Win window;
  MPI_File file;
  CHECK(!MPIX_Op_create_x(add, destroy, 1, &state, &op) && !MPI_Reduce_local(&value, &sum, 1, MPI_INT, op) && sum == 1 && state == 1);
  CHECK(!MPI_Iallreduce(&value, &sum, 1, MPI_INT, op, MPI_COMM_WORLD, &request) && !MPI_Op_free(&op));
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE) && sum == size && state >= DESTROYED + 1 && state < 2 * DESTROYED);
  CHECK(!MPIX_Op_create_x(add, NULL, 1, NULL, &op) && !MPI_Op_free(&op));
  op = MPI_SUM, handler = MPI_ERRORS_RETURN;
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  CHECK(MPIX_Op_create_x(NULL, NULL, 1, NULL, &op) && op == MPI_OP_NULL);
  CHECK(MPIX_Comm_create_errhandler_x(NULL, NULL, NULL, &handler) && handler == MPI_ERRHANDLER_NULL);

  state = 0;
  CHECK(!MPIX_Comm_create_errhandler_x(on_error, destroy, &state, &handler) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, handler));
  CHECK(!MPI_Errhandler_free(&handler) && state == 0 && MPI_Send(&value, 1, MPI_INT, 7, 0, MPI_COMM_SELF) && state == 1);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN) && state == DESTROYED + 1);

  state = 0;
  CHECK(!MPI_Win_create(&value, sizeof value, 1, MPI_INFO_NULL, MPI_COMM_SELF, &window));
  CHECK(!MPIX_Win_create_errhandler_x(on_window_error, destroy, &state, &handler) && !MPI_Win_set_errhandler(window, handler));
  CHECK(MPI_Win_unlock(0, window) && state == 1 && !MPI_Win_free(&window) && state == 1 && !MPI_Errhandler_free(&handler));
  CHECK(state == DESTROYED + 1);

  state = 0;
  CHECK(!MPIX_File_create_errhandler_x(on_file_error, destroy, &state, &handler) && !MPI_File_set_errhandler(MPI_FILE_NULL, handler));
  CHECK(MPI_File_open(MPI_COMM_SELF, "", 0, MPI_INFO_NULL, &file) && state == 1 && !MPI_Errhandler_free(&handler));
  CHECK(!MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN) && state == DESTROYED + 1);
}

/* An object no longer has its old error handler, and is not locked, when the handler's destructor is called. */
static void destructors(void) {
  int state = 0, value = 1;
  MPI_Errhandler handler;
  CHECK(!MPI_Win_create(&value, sizeof value, 1, MPI_INFO_NULL, MPI_COMM_SELF, &watched));
  CHECK(!MPI_Win_set_errhandler(watched, MPI_ERRORS_RETURN) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  CHECK(!MPIX_Comm_create_errhandler_x(on_error, destroy_and_ask, &state, &handler) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, handler));
  CHECK(!MPI_Errhandler_free(&handler) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN) && state == DESTROYED);
  CHECK(!MPIX_Win_create_errhandler_x(on_window_error, destroy_and_ask, &state, &handler) && !MPI_Win_set_errhandler(watched, handler));
  CHECK(!MPI_Errhandler_free(&handler) && !MPI_Win_set_errhandler(watched, MPI_ERRORS_RETURN) && state == 2 * DESTROYED);
  CHECK(!MPIX_File_create_errhandler_x(on_file_error, destroy_and_ask, &state, &handler) && !MPI_File_set_errhandler(MPI_FILE_NULL, handler));
  CHECK(!MPI_Errhandler_free(&handler) && !MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN) && state == 3 * DESTROYED);
  CHECK(!MPI_Win_free(&watched));
}

struct pair {
  double real;
  int whole;
};

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));

  /* Types. */
  struct pair pairs[3] = {{1.5, 1}, {2.5, 2}, {3.5, 3}}, got[3] = {{0, 0}, {0, 0}, {0, 0}};
  MPI_Aint start, places[2], extent, lower, upper;
  MPI_Datatype both, every_other, type;
  CHECK(!MPI_Address(pairs, &start) && !MPI_Address(&pairs[0].real, &places[0]) && !MPI_Address(&pairs[0].whole, &places[1]));
  places[0] = MPI_Aint_diff(places[0], start), places[1] = MPI_Aint_diff(places[1], start);
  CHECK(MPI_Aint_add(start, places[1]) == (MPI_Aint)&pairs[0].whole);
  CHECK(!MPI_Type_struct(2, (int[]){1, 1}, places, (MPI_Datatype[]){MPI_DOUBLE, MPI_INT}, &both));
  CHECK(!MPI_Type_extent(both, &extent) && extent == sizeof(struct pair));
  CHECK(!MPI_Type_lb(both, &lower) && !MPI_Type_ub(both, &upper) && lower == 0 && upper == extent);
  CHECK(!MPI_Type_hvector(2, 1, 2 * sizeof(struct pair), both, &every_other) && !MPI_Type_commit(&every_other));
  CHECK(!MPI_Sendrecv(pairs, 1, every_other, rank, 0, got, 1, every_other, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  CHECK(got[0].real == 1.5 && got[0].whole == 1 && got[1].real == 0 && got[2].real == 3.5 && got[2].whole == 3);
  CHECK(!MPI_Type_hindexed(1, (int[]){2}, (MPI_Aint[]){sizeof(int)}, MPI_INT, &type));
  CHECK(!MPI_Type_lb(type, &lower) && !MPI_Type_ub(type, &upper) && lower == sizeof(int) && upper == 3 * sizeof(int));
  /* Marks set the bounds of a structure, whatever its other members occupy. */
  MPI_Datatype marked;
  CHECK(!MPI_Type_struct(3, (int[]){1, 1, 1}, (MPI_Aint[]){0, -8, 32}, (MPI_Datatype[]){MPI_DOUBLE, MPI_LB, MPI_UB}, &marked));
  CHECK(!MPI_Type_lb(marked, &lower) && !MPI_Type_ub(marked, &upper) && lower == -8 && upper == 32 && !MPI_Type_free(&marked));
  CHECK(!MPI_Type_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 4}, (MPI_Datatype[]){MPI_DOUBLE, MPI_UB}, &marked));
  CHECK(!MPI_Type_lb(marked, &lower) && !MPI_Type_extent(marked, &extent) && lower == 0 && extent == 4 && !MPI_Type_free(&marked));
  CHECK(!MPI_Type_free(&both) && !MPI_Type_free(&every_other) && !MPI_Type_free(&type));

  /* Attributes and error handlers. */
  int keyval, flag, *tag_max, number;
  MPI_Aint wide;
  void *value;
  MPI_Comm comm;
  MPI_Errhandler handler;
  CHECK(!MPI_Attr_get(MPI_COMM_WORLD, MPI_TAG_UB, &tag_max, &flag) && flag && *tag_max >= 32767);
  CHECK(!MPI_Keyval_create(copy, delete, &keyval, NULL));
  CHECK(!MPI_Attr_put(MPI_COMM_WORLD, keyval, &deleted) && !MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  CHECK(!MPI_Attr_get(comm, keyval, &value, &flag) && flag && value == (char *)&deleted + 1);
  CHECK(!MPI_Attr_delete(MPI_COMM_WORLD, keyval) && deleted == 1 && !MPI_Comm_free(&comm) && deleted == 2);
  CHECK(!MPI_Keyval_free(&keyval) && keyval == MPI_KEYVAL_INVALID);
  CHECK(!MPI_Errhandler_set(MPI_COMM_WORLD, MPI_ERRORS_RETURN) && !MPI_Errhandler_get(MPI_COMM_WORLD, &handler));
  CHECK(handler == MPI_ERRORS_RETURN);

  /* The same values as integers of Fortran, for which the standard's keyvals are passed plus one. */
  CHECK(!MPII_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB + 1, &wide, &flag, ADDRESS_WIDE) && flag && wide == *tag_max);
  CHECK(!MPII_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB + 1, &number, &flag, INT) && flag && number == *tag_max);
  CHECK(!MPII_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &flag, POINTER) && flag && *(int *)value == *tag_max);
  CHECK(!MPI_Comm_create_keyval(copy, delete, &keyval, &deleted));
  MPII_Keyval_set_proxy(keyval, copy_by_proxy, delete_by_proxy);
  CHECK(!MPII_Comm_set_attr(MPI_COMM_WORLD, keyval, (void *)7, ADDRESS_WIDE) && !MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  CHECK(!MPII_Comm_get_attr(comm, keyval, &wide, &flag, ADDRESS_WIDE) && flag && wide == 17);
  CHECK(!MPI_Comm_free(&comm) && deleted == 102 && !MPI_Comm_delete_attr(MPI_COMM_WORLD, keyval) && deleted == 202);
  CHECK(!MPI_Comm_free_keyval(&keyval));
  states(), destructors();
  CHECK(!MPI_F_STATUS_IGNORE && !MPI_F_STATUSES_IGNORE && MPI_Comm_f2c(MPI_Comm_c2f(MPI_COMM_SELF)) == MPI_COMM_SELF);

  CHECK(!MPI_Finalize());
  return 0;
}
