/* One-sided: fences, locks, accumulates, shared memory. Any number of ranks. */
#include "test.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

/* The synchronisation with a target reports operations that the target has refused, once. */
static void refused(void) {
  MPI_Win window;
  MPI_Aint place;
  MPI_Datatype gaps;
  MPI_Request request;
  int value = 5, got = -1, target = size - 1;
  static int never_attached[1];
  CHECK(!MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  CHECK(!MPI_Get_address(never_attached, &place) && !MPI_Bcast(&place, 1, MPI_AINT, target, MPI_COMM_WORLD));
  CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window) && !MPI_Put(&value, 1, MPI_INT, target, place, 1, MPI_INT, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Win_flush(target, window));
  CHECK(!MPI_Win_flush(target, window) && !MPI_Get(&got, 1, MPI_INT, target, place, 1, MPI_INT, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Win_flush(target, window));
  /* A request fails by itself, and its error goes to the window's handler. */
  CHECK(!MPI_Rput(&value, 1, MPI_INT, target, place, 1, MPI_INT, window, &request));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(got == -1 && !MPI_Put(&value, 1, MPI_INT, target, place, 1, MPI_INT, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Win_unlock(target, window));
  CHECK(!MPI_Win_fence(0, window) && !MPI_Get(&got, 1, MPI_INT, target, place, 1, MPI_INT, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Win_fence(0, window));
  CHECK(!MPI_Win_fence(0, window) && !MPI_Win_free(&window) && never_attached[0] == 0);
  /* The origin checks the operator, also for a type made of numbers. */
  float ones[4] = {1, 1, 1, 1}, memory[4] = {0};
  CHECK(!MPI_Type_vector(2, 1, 2, MPI_FLOAT, &gaps) && !MPI_Type_commit(&gaps));
  CHECK(!MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_OP, MPI_Accumulate(ones, 1, gaps, target, 0, 1, gaps, MPI_BAND, window));
  /* No elements need no operator for their type. */
  CHECK(!MPI_Accumulate(ones, 0, MPI_BYTE, target, 0, 0, MPI_BYTE, MPI_SUM, window) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Accumulate(ones, 1, gaps, target, 0, 1, gaps, MPI_SUM, window) && !MPI_Win_fence(0, window));
  CHECK(rank != target || (memory[0] == size && memory[1] == 0 && memory[2] == size));
  CHECK(!MPI_Win_free(&window) && !MPI_Type_free(&gaps));
}

/* Columns of a matrix, and a part of one that leaves gaps, are put, accumulated and fetched. */
static void columns(void) {
  enum { ROWS = 5000, WIDTH = 4 };
  static int matrix[ROWS][WIDTH], own[2 * ROWS], got[2 * ROWS], sums[2 * ROWS];
  MPI_Win window;
  MPI_Datatype column, both;
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  CHECK(!MPI_Type_vector(ROWS, 1, WIDTH, MPI_INT, &column) && !MPI_Type_commit(&column));
  /* The first column and the third. */
  CHECK(!MPI_Type_create_hvector(2, 1, 2 * sizeof(int), column, &both) && !MPI_Type_commit(&both));
  CHECK(!MPI_Win_create(matrix, sizeof matrix, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_fence(0, window));
  for (int i = 0; i < 2 * ROWS; i++) own[i] = i + rank;
  CHECK(!MPI_Put(own, 2 * ROWS, MPI_INT, next, 1, 1, both, window) && !MPI_Win_fence(0, window));
  for (int i = 0; i < ROWS; i++) CHECK(matrix[i][0] == 0 && matrix[i][1] == i + before && matrix[i][2] == 0 && matrix[i][3] == ROWS + i + before);
  CHECK(!MPI_Win_fence(0, window) && !MPI_Accumulate(own, 2 * ROWS, MPI_INT, next, 1, 1, both, MPI_SUM, window));
  CHECK(!MPI_Win_fence(0, window) && !MPI_Get(got, 2 * ROWS, MPI_INT, next, 1, 1, both, window) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Get_accumulate(own, 2 * ROWS, MPI_INT, sums, 2 * ROWS, MPI_INT, next, 1, 1, both, MPI_REPLACE, window));
  CHECK(!MPI_Win_fence(0, window) && matrix[7][1] == 7 + before && matrix[7][2] == 0);
  for (int i = 0; i < 2 * ROWS; i++) CHECK(got[i] == 2 * (i + rank) && sums[i] == got[i]);
  CHECK(!MPI_Win_free(&window) && !MPI_Type_free(&column) && !MPI_Type_free(&both));
}

/* The gaps of a type need not be attached, unlike its data. A refused operation writes nothing. */
static void attached_columns(void) {
  static int region[6];
  MPI_Win window;
  MPI_Datatype pair, three;
  MPI_Aint place, *places = malloc(size * sizeof *places);
  int next = (rank + 1) % size, before = (rank + size - 1) % size, own[3] = {rank + 1, rank + 2, rank + 3};
  CHECK(!MPI_Type_vector(2, 1, 4, MPI_INT, &pair) && !MPI_Type_commit(&pair));
  CHECK(!MPI_Type_vector(3, 1, 2, MPI_INT, &three) && !MPI_Type_commit(&three));
  CHECK(!MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Get_address(region, &place));
  CHECK(!MPI_Win_attach(window, region, 4) && !MPI_Win_attach(window, &region[4], 4) && !MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  CHECK(!MPI_Allgather(&place, 1, MPI_AINT, places, 1, MPI_AINT, MPI_COMM_WORLD) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Put(own, 2, MPI_INT, next, places[next], 1, pair, window) && !MPI_Win_fence(0, window));
  CHECK(region[0] == before + 1 && region[4] == before + 2);
  CHECK(!MPI_Put(own, 3, MPI_INT, next, places[next], 1, three, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Win_fence(0, window));
  CHECK(region[0] == before + 1 && region[2] == 0 && region[4] == before + 2);
  CHECK(!MPI_Win_detach(window, region) && !MPI_Win_detach(window, &region[4]) && !MPI_Win_free(&window));
  CHECK(!MPI_Type_free(&pair) && !MPI_Type_free(&three));
  free(places);
}

/* A unit may be longer than an int can say. The attribute, which is an int, is then not set. */
static void long_units(void) {
  int memory[2] = {0, 0}, value = 7, flag;
  void *found;
  MPI_Win window;
  MPI_Aint bytes, unit, wide = (MPI_Aint)1 << 32;
  CHECK(!MPI_Win_create_c(memory, sizeof memory, wide, MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Win_shared_query_c(window, rank, &bytes, &unit, &found) && unit == wide && found == memory);
  CHECK(!MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, &found, &flag) && !flag);
  CHECK(!MPI_Put(&value, 1, MPI_INT, size - 1, 0, 1, MPI_INT, window) && !MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Put(&value, 1, MPI_INT, size - 1, 1, 1, MPI_INT, window));
  CHECK(!MPI_Win_fence(0, window) && memory[0] == (rank == size - 1 ? 7 : 0) && !MPI_Win_free(&window));
}

/* The larger pairs win in the parts of an array, and the rest of it stays. */
static void pairs_in_arrays(void) {
  struct {
    double value;
    int index;
  } *pairs, own[2] = {{rank + 1, rank}, {-rank - 1, rank}};
  int four = 4, two = 2, one = 1, spread = MPI_DISTRIBUTE_CYCLIC, usual = MPI_DISTRIBUTE_DFLT_DARG;
  MPI_Win window;
  for (int is_spread = 0; is_spread < 2; is_spread++) {
    MPI_Datatype part;
    if (is_spread) CHECK(!MPI_Type_create_darray(2, 1, 1, &four, &spread, &usual, &two, MPI_ORDER_C, MPI_DOUBLE_INT, &part));
    if (!is_spread) CHECK(!MPI_Type_create_subarray(1, &four, &two, &one, MPI_ORDER_C, MPI_DOUBLE_INT, &part));
    CHECK(!MPI_Type_commit(&part) && !MPI_Win_allocate(4 * sizeof *pairs, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &pairs, &window));
    for (int i = 0; i < 4; i++) pairs[i].value = 0.5, pairs[i].index = 77;
    CHECK(!MPI_Win_fence(0, window) && !MPI_Accumulate(own, 2, MPI_DOUBLE_INT, 0, 0, 1, part, MPI_MAXLOC, window));
    CHECK(!MPI_Win_fence(0, window) && !MPI_Type_free(&part));
    for (int i = 0; i < 4 && !rank; i++) {
      int is_first = i == 1;
      CHECK(pairs[i].value == (is_first ? size : 0.5) && pairs[i].index == (is_first ? size - 1 : 77));
    }
    CHECK(!MPI_Win_free(&window));
  }
}

/* The bytes between the value and the index of a pair are not part of it. */
static void gaps_of_pairs(void) {
  struct {
    short value, gap;
    int index;
  } pair = {3, 77, 5}, *mine;
  MPI_Win window;
  CHECK(!MPI_Win_allocate(sizeof pair, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window));
  mine->value = 1, mine->gap = 99, mine->index = 2;
  CHECK(!MPI_Win_fence(0, window) && !MPI_Accumulate(&pair, 1, MPI_SHORT_INT, rank, 0, 1, MPI_SHORT_INT, MPI_MAXLOC, window));
  CHECK(!MPI_Win_fence(0, window) && mine->value == 3 && mine->gap == 99 && mine->index == 5);
  mine->value = 9;
  CHECK(!MPI_Reduce_local(&pair, mine, 1, MPI_SHORT_INT, MPI_MINLOC) && mine->value == 3 && mine->gap == 99);
  CHECK(!MPI_Win_free(&window));
}

/* If one rank cannot take part, no rank gets a window, and none waits for it. */
static void impossible_on_one_rank(void) {
  MPI_Win window;
  MPI_Comm comm;
  int *memory, last = rank == size - 1;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &comm) && !MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_NO_MEM, MPI_Win_allocate(last ? (MPI_Aint)1 << 62 : 4, 4, MPI_INFO_NULL, comm, &memory, &window));
  FAILS(MPI_ERR_SIZE, MPI_Win_allocate_shared(last ? -1 : 4, 4, MPI_INFO_NULL, comm, &memory, &window));
  FAILS(MPI_ERR_DISP, MPI_Win_create(&last, sizeof last, last ? 0 : 4, MPI_INFO_NULL, comm, &window));
  CHECK(!MPI_Barrier(comm) && !MPI_Comm_free(&comm));
}

/* Epochs that must not overlap, and the end of a window inside one. */
static void epochs(void) {
  MPI_Win window;
  MPI_Group group;
  int value = 0, copy = rank;
  CHECK(!MPI_Win_create(&value, sizeof value, 1, MPI_INFO_NULL, MPI_COMM_SELF, &window) && !MPI_Win_get_group(window, &group));
  CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  CHECK(!MPI_Win_post(group, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_free(&window));
  CHECK(!MPI_Win_start(group, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_free(&window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_start(group, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_lock_all(0, window));
  CHECK(!MPI_Put(&copy, 1, MPI_INT, 0, 0, 1, MPI_INT, window) && !MPI_Win_complete(window) && !MPI_Win_wait(window) && value == rank);
  CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_free(&window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_start(group, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_lock_all(0, window));
  CHECK(!MPI_Win_unlock(0, window) && !MPI_Win_lock_all(0, window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_free(&window));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Win_start(group, 0, window));
  CHECK(!MPI_Win_unlock_all(window) && !MPI_Win_fence(0, window) && !MPI_Win_free(&window) && !MPI_Group_free(&group));
}

/* A rank reaches its own memory of a window that is not shared. It reaches the others' if these were allocated for the window on its host. */
static void queries(void) {
  MPI_Win window;
  MPI_Aint bytes;
  int unit, *memory, *found;
  for (int allocated = 0; allocated < 2; allocated++) {
    int own[4], unit_here = rank + 1, reaches_first = 0;
    memory = own;
    if (allocated) CHECK(!MPI_Win_allocate(sizeof own, unit_here, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
    else CHECK(!MPI_Win_create(own, sizeof own, unit_here, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
    for (int r = 0; r < size; r++) {
      CHECK(!MPI_Win_shared_query(window, r, &bytes, &unit, &found) && unit == r + 1);
      int reaches = r == rank || (allocated && found);
      CHECK(reaches ? bytes == sizeof own && (found == memory) == (r == rank) : bytes == 0 && !found);
      reaches_first = r ? reaches_first : reaches;
    }
    CHECK(!MPI_Win_shared_query(window, MPI_PROC_NULL, &bytes, &unit, &found) && bytes == sizeof own);
    CHECK(reaches_first ? unit == 1 && (found == memory) == (rank == 0) : unit == unit_here && found == memory);
    FAILS(MPI_ERR_RANK, MPI_Win_shared_query(window, size, &bytes, &unit, &found));
    CHECK(!MPI_Win_free(&window));
  }
  CHECK(!MPI_Win_create(NULL, 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
  CHECK(!MPI_Win_shared_query(window, MPI_PROC_NULL, &bytes, &unit, &found) && bytes == 0 && !found && !MPI_Win_free(&window));
  CHECK(!MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  CHECK(MPI_Win_shared_query(window, rank, &bytes, &unit, &found) != MPI_SUCCESS && !MPI_Win_free(&window));
}

static int has(MPI_Info info, const char *key, const char *value) {
  char found[64] = "";
  int flag;
  CHECK(!MPI_Info_get(info, key, sizeof found - 1, found, &flag));
  return value ? flag && !strcmp(found, value) : !flag;
}

/* Objects have the defaults of the standard's hints, keep those that the program has set, and show no others. */
static void hints(void) {
  MPI_Win window;
  MPI_Comm comm, other;
  MPI_Info info, found;
  int *memory;
  CHECK(!MPI_Info_create(&info) && !MPI_Info_set(info, "no_locks", "true") && !MPI_Info_set(info, "ours", "1"));
  CHECK(!MPI_Info_set(info, "accumulate_ops", "never") && !MPI_Info_set(info, "mpi_assert_no_any_tag", "true"));
  CHECK(!MPI_Win_allocate(4, 4, info, MPI_COMM_WORLD, &memory, &window) && !MPI_Win_get_info(window, &found));
  CHECK(has(found, "no_locks", "true") && has(found, "accumulate_ordering", "rar,raw,war,waw") && has(found, "same_size", "false"));
  CHECK(has(found, "accumulate_ops", "same_op_no_op") && has(found, "same_disp_unit", "false") && has(found, "ours", NULL));
  CHECK(has(found, "alloc_shared_noncontig", NULL) && has(found, "mpi_assert_no_any_tag", NULL) && !MPI_Info_free(&found));
  CHECK(!MPI_Info_delete(info, "no_locks") && !MPI_Info_set(info, "accumulate_ordering", "none") && !MPI_Win_set_info(window, info));
  CHECK(!MPI_Win_get_info(window, &found) && has(found, "no_locks", "true") && has(found, "accumulate_ordering", "none"));
  CHECK(!MPI_Info_free(&found) && !MPI_Win_free(&window));
  CHECK(!MPI_Info_set(info, "alloc_shared_noncontig", "true"));
  CHECK(!MPI_Win_allocate_shared(4, 4, info, MPI_COMM_WORLD, &memory, &window) && !MPI_Win_get_info(window, &found));
  CHECK(has(found, "alloc_shared_noncontig", "true") && !MPI_Info_free(&found) && !MPI_Win_free(&window));
  CHECK(!MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm) && !MPI_Comm_get_info(comm, &found));
  CHECK(has(found, "mpi_assert_no_any_tag", "true") && has(found, "mpi_assert_no_any_source", "false") && has(found, "ours", NULL));
  CHECK(!MPI_Info_free(&found) && !MPI_Info_free(&info) && !MPI_Info_create(&info));
  CHECK(!MPI_Info_set(info, "mpi_assert_exact_length", "true") && !MPI_Comm_set_info(comm, info) && !MPI_Comm_dup(comm, &other));
  CHECK(!MPI_Comm_get_info(other, &found) && has(found, "mpi_assert_no_any_tag", "true") && has(found, "mpi_assert_exact_length", "true"));
  CHECK(!MPI_Info_free(&found) && !MPI_Info_free(&info) && !MPI_Comm_free(&comm) && !MPI_Comm_free(&other));
}

/* Returns the most memory that this rank has used so far, in MiB. */
static long memory_used(void) {
  char line[256];
  long kib = 0;
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &kib);
  if (status) fclose(status);
  return kib / 1024;
}

/* A rank that starts operations faster than they leave keeps few of them in memory. */
static void floods(void) {
  enum { LONG = 16 << 20, TIMES = 24 };
  char *memory, *own = malloc(LONG);
  MPI_Win window;
  CHECK(!MPI_Win_allocate(LONG, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window) && !MPI_Win_fence(0, window));
  memset(own, 3, LONG);
  long before = memory_used();
  for (int i = 0; i < TIMES && rank == 0; i++) CHECK(!MPI_Put(own, LONG, MPI_CHAR, size - 1, 0, LONG, MPI_CHAR, window));
  CHECK(memory_used() - before < 250 && !MPI_Win_fence(0, window) && (rank < size - 1 || memory[LONG - 1] == 3));
  CHECK(!MPI_Win_free(&window));
  free(own);
}

/* Operations on no elements succeed wherever their target is. */
static void nothing(void) {
  static int memory[4], own[4];
  MPI_Win windows[2];
  CHECK(!MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &windows[0]));
  CHECK(!MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &windows[1]));
  for (int i = 0; i < 2; i++) {
    int to = (rank + 1) % size, beyond = 1000;
    CHECK(!MPI_Win_lock_all(0, windows[i]));
    CHECK(!MPI_Put(own, 0, MPI_INT, to, beyond, 0, MPI_INT, windows[i]) && !MPI_Get(own, 0, MPI_INT, to, beyond, 0, MPI_INT, windows[i]));
    CHECK(!MPI_Accumulate(own, 0, MPI_INT, to, beyond, 0, MPI_INT, MPI_SUM, windows[i]));
    CHECK(!MPI_Get_accumulate(own, 0, MPI_INT, own, 0, MPI_INT, to, beyond, 0, MPI_INT, MPI_SUM, windows[i]));
    CHECK(!MPI_Win_unlock_all(windows[i]) && !MPI_Win_free(&windows[i]));
  }
}

/* A compare-and-swap is for integers, logical values and bytes. */
static void swaps(void) {
  long long memory[4] = {0}, new[4] = {7}, old[4] = {0}, got[4] = {-1};
  MPI_Win window;
  MPI_Datatype integer;
  CHECK(!MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_SELF, &window) && !MPI_Win_lock_all(0, window));
  CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_TYPE, MPI_Compare_and_swap(new, old, got, MPI_FLOAT, 0, 0, window));
  FAILS(MPI_ERR_TYPE, MPI_Compare_and_swap(new, old, got, MPI_DOUBLE, 0, 0, window));
  FAILS(MPI_ERR_TYPE, MPI_Compare_and_swap(new, old, got, MPI_LONG_DOUBLE, 0, 0, window));
  FAILS(MPI_ERR_TYPE, MPI_Compare_and_swap(new, old, got, MPI_C_DOUBLE_COMPLEX, 0, 0, window));
  FAILS(MPI_ERR_TYPE, MPI_Compare_and_swap(new, old, got, MPI_2INT, 0, 0, window));
  CHECK(!MPI_Compare_and_swap(new, old, got, MPI_LONG_LONG, 0, 0, window) && !MPI_Win_flush(0, window) && memory[0] == 7 && got[0] == 0);
  CHECK(!MPI_Compare_and_swap(old, new, got, MPI_BYTE, 0, 0, window) && !MPI_Win_flush(0, window) && memory[0] == 0);
  CHECK(!MPI_Type_create_f90_integer(15, &integer) && (new[0] = 0x123456789abcdef0, 1));
  CHECK(!MPI_Compare_and_swap(new, old, got, integer, 0, 0, window) && !MPI_Win_flush(0, window) && memory[0] == new[0]);
  CHECK(!MPI_Compare_and_swap(old, new, got, integer, 0, 0, window) && !MPI_Win_flush(0, window) && !memory[0] && got[0] == new[0]);
  CHECK(!MPI_Compare_and_swap(new, old, got, MPI_C_BOOL, 0, 0, window) && !MPI_Win_unlock_all(window) && memory[0] != 0);
  CHECK(!MPI_Win_free(&window));
}

enum { TURNS = 500, PART = 1 << 14 };

static MPI_Win common;
static int numbers[2 * PART];

/* A flush completes the operations of its thread, although another thread flushes the same target at the same time. */
static void *get_and_flush(void *half) {
  static int got[2 * PART];
  int first = half ? PART : 0, *own = &got[first];
  for (int i = 0; i < TURNS; i++) {
    own[0] = own[PART - 1] = -1;
    CHECK(!MPI_Get(own, PART, MPI_INT, size - 1, first, PART, MPI_INT, common) && !MPI_Win_flush(size - 1, common));
    CHECK(own[0] == first && own[PART - 1] == first + PART - 1);
  }
  return NULL;
}

static void flushes_of_threads(void) {
  pthread_t other;
  for (int i = 0; i < 2 * PART; i++) numbers[i] = i;
  CHECK(!MPI_Win_create(numbers, sizeof numbers, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &common) && !MPI_Win_lock_all(0, common));
  CHECK(!pthread_create(&other, NULL, get_and_flush, numbers));
  get_and_flush(NULL);
  CHECK(!pthread_join(other, NULL) && !MPI_Win_unlock_all(common) && !MPI_Win_free(&common));
}

/* A program may start any number of gets before it waits. Their answers do not fill the target's memory. Two ranks. */
static void gets_without_end(void) {
  enum { MANY = 16384, BYTES = 128 << 10, LIMIT_KIB = 256 << 10 };
  char *memory, *into = malloc(BYTES);
  struct rusage before, after;
  MPI_Win window;
  if (size != 2) return free(into);
  CHECK(!MPI_Win_allocate(BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
  memset(memory, rank + 1, BYTES);
  CHECK(!getrusage(RUSAGE_SELF, &before) && !MPI_Win_fence(0, window));
  for (int i = 0; rank == 1 && i < MANY; i++) CHECK(!MPI_Get(into, BYTES, MPI_BYTE, 0, 0, BYTES, MPI_BYTE, window));
  CHECK(!MPI_Win_fence(0, window) && !getrusage(RUSAGE_SELF, &after) && after.ru_maxrss - before.ru_maxrss < LIMIT_KIB);
  CHECK((rank == 0 || (into[0] == 1 && into[BYTES - 1] == 1)) && !MPI_Win_free(&window));
  free(into);
}

/* Without enough shared memory, each rank allocates its own, and the info says why. */
static void short_of_shared_memory(void) {
  enum { LONG = 4 << 20 };
  struct rlimit before, less;
  MPI_Win window;
  MPI_Info info;
  MPI_Aint bytes;
  char *memory, *found, value[MPI_MAX_INFO_VAL + 1], why[MPI_MAX_INFO_VAL + 1];
  int unit, flag, next = (rank + 1) % size;
  CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && !getrlimit(RLIMIT_FSIZE, &before));
  for (int is_short = 0; is_short < 2; is_short++) {
    less = before;
    if (is_short) less.rlim_cur = LONG / 2;
    CHECK(!setrlimit(RLIMIT_FSIZE, &less) && !MPI_Win_allocate(LONG, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
    CHECK(!setrlimit(RLIMIT_FSIZE, &before) && !MPI_Win_get_info(window, &info));
    CHECK(!MPI_Info_get(info, "kolo_memory", MPI_MAX_INFO_VAL, value, &flag) && flag && !MPI_Info_free(&info));
    CHECK(!MPI_Win_shared_query(window, next, &bytes, &unit, &found));
    snprintf(why, sizeof why, "%s", is_short && size > 1 ? "each rank's own: " : "");
    CHECK(!strncmp(value, why, strlen(why)) && (size == 1 || (bytes == LONG) == !strcmp(value, "shared")));
    CHECK(!MPI_Win_fence(0, window) && !MPI_Put("x", 1, MPI_CHAR, next, LONG - 1, 1, MPI_CHAR, window));
    CHECK(!MPI_Win_fence(0, window) && memory[LONG - 1] == 'x' && !MPI_Win_free(&window));
  }
}

/* Exclusive locks and accumulates lose no count, in windows that the library allocates and in others. */
static void counts(void) {
  enum { TIMES = 300, SUMS = 500 };
  double ones[SUMS], *memory;
  for (int i = 0; i < SUMS; i++) ones[i] = 1;
  for (int allocated = 0; allocated < 2; allocated++) {
    MPI_Win window;
    MPI_Aint bytes = (SUMS + 1) * sizeof *memory;
    double *own = calloc(SUMS + 1, sizeof *own);
    if (allocated) CHECK(!MPI_Win_allocate(bytes, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
    else CHECK(!MPI_Win_create(memory = own, bytes, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    if (allocated) memset(memory, 0, bytes);
    CHECK(!MPI_Barrier(MPI_COMM_WORLD));
    int last = size - 1, times = allocated ? TIMES : TIMES / 10;
    for (int i = 0; i < times; i++) {
      double count;
      CHECK(!MPI_Win_lock(MPI_LOCK_EXCLUSIVE, last, 0, window) && !MPI_Get(&count, 1, MPI_DOUBLE, last, 0, 1, MPI_DOUBLE, window));
      CHECK(!MPI_Win_flush(last, window) && ++count);
      CHECK(!MPI_Put(&count, 1, MPI_DOUBLE, last, 0, 1, MPI_DOUBLE, window) && !MPI_Win_unlock(last, window));
      CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, last, 0, window));
      CHECK(!MPI_Accumulate(ones, SUMS, MPI_DOUBLE, last, 1, SUMS, MPI_DOUBLE, MPI_SUM, window) && !MPI_Win_unlock(last, window));
    }
    CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window));
    for (int i = 0; i <= SUMS && rank == last; i++) CHECK(memory[i] == times * size);
    CHECK(!MPI_Win_unlock(rank, window) && !MPI_Win_free(&window));
    free(own);
  }
}

int main(int argc, char **argv) {
  int level;
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) && level == MPI_THREAD_MULTIPLE);
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  refused(), long_units(), columns(), attached_columns(), pairs_in_arrays(), gaps_of_pairs(), impossible_on_one_rank(), flushes_of_threads(), epochs(), queries(), nothing(), floods(), swaps(), hints(), gets_without_end(), counts(), short_of_shared_memory();
  MPI_Win window;
  int *memory, got = -1, next = (rank + 1) % size, before = (rank + size - 1) % size;
  CHECK(!MPI_Win_allocate(4 * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
  memory[0] = memory[1] = 0, memory[2] = rank;
  CHECK(!MPI_Win_fence(0, window) && !MPI_Put(&rank, 1, MPI_INT, next, 1, 1, MPI_INT, window));
  CHECK(!MPI_Get(&got, 1, MPI_INT, next, 2, 1, MPI_INT, window) && !MPI_Win_fence(0, window));
  CHECK(memory[1] == before && got == next);
  CHECK(!MPI_Win_fence(0, window));
  for (int i = 0; i < 100; i++) {
    int one = 1;
    CHECK(!MPI_Accumulate(&one, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_SUM, window));
  }
  CHECK(!MPI_Win_fence(16384, window) && (rank || memory[0] == 100 * size));
  /* Every rank draws a ticket from rank 0's memory, whatever rank 0 is doing. */
  CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_Win_lock_all(0, window));
  int one = 1, ticket = -1, seen[2] = {0, 0};
  CHECK(!MPI_Fetch_and_op(&one, &ticket, MPI_INT, 0, 0, MPI_SUM, window) && !MPI_Win_flush(0, window));
  CHECK(ticket >= 100 * size && ticket < 101 * size);
  CHECK(!MPI_Win_unlock_all(window) && !MPI_Barrier(MPI_COMM_WORLD));
  CHECK(!MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window) && !MPI_Get(seen, 2, MPI_INT, 0, 0, 2, MPI_INT, window));
  CHECK(!MPI_Win_unlock(0, window) && seen[0] == 101 * size);
  CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Put(&one, 1, MPI_INT, 0, 0, 1, MPI_INT, window));
  CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Put(&one, 1, MPI_INT, 0, 4, 1, MPI_INT, window));
  CHECK(!MPI_Win_unlock(0, window) && !MPI_Win_free(&window) && window == MPI_WIN_NULL);

  /* An element of two pairs of a value and an index: the larger values win. */
  struct {
    double value;
    int index;
  } *pairs, own[2] = {{rank, rank}, {-rank, rank}};
  MPI_Datatype two;
  CHECK(!MPI_Type_contiguous(2, MPI_DOUBLE_INT, &two) && !MPI_Type_commit(&two));
  CHECK(!MPI_Win_allocate(sizeof own, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &pairs, &window));
  memset(pairs, 0, sizeof own);
  pairs[1].index = 77, pairs[1].value = 0.5;
  CHECK(!MPI_Win_fence(0, window) && !MPI_Accumulate(own, 1, two, 0, 0, 1, two, MPI_MAXLOC, window));
  CHECK(!MPI_Win_fence(0, window) && !MPI_Type_free(&two));
  CHECK(rank || (pairs[0].value == size - 1 && pairs[0].index == size - 1 && pairs[1].value == 0.5 && pairs[1].index == 77));
  CHECK(!MPI_Win_free(&window));

  /* Memory attached in two pieces is one for accesses. */
  static int region[8];
  int values[4] = {1, 2, 3, 4};
  MPI_Aint place, *places = malloc(size * sizeof *places);
  CHECK(!MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Get_address(&region[2], &place));
  CHECK(!MPI_Win_attach(window, region, 4 * sizeof(int)) && !MPI_Win_attach(window, &region[4], 4 * sizeof(int)));
  CHECK(!MPI_Allgather(&place, 1, MPI_AINT, places, 1, MPI_AINT, MPI_COMM_WORLD) && !MPI_Win_fence(0, window));
  CHECK(!MPI_Put(values, 4, MPI_INT, next, places[next], 4, MPI_INT, window) && !MPI_Win_fence(0, window));
  for (int i = 0; i < 8; i++) CHECK(region[i] == (i < 2 || i > 5 ? 0 : i - 1));
  CHECK(!MPI_Win_detach(window, region) && !MPI_Win_detach(window, &region[4]) && !MPI_Win_free(&window));
  free(places);

  MPI_Aint bytes;
  int unit, *first;
  CHECK(!MPI_Win_allocate_shared(sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
  *memory = rank + 1;
  CHECK(!MPI_Win_fence(0, window) && !MPI_Win_shared_query(window, 0, &bytes, &unit, &first));
  for (int r = 0; r < size; r++) CHECK(first[r] == r + 1);
  CHECK(!MPI_Win_fence(0, window) && !MPI_Win_free(&window));
  CHECK(!MPI_Win_allocate_shared(rank ? 0 : 4, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
  CHECK(!MPI_Win_shared_query(window, size - 1, &bytes, &unit, &first) && (bytes == 0) == (first == NULL) && (bytes == 0) == (size > 1));
  char name[MPI_MAX_OBJECT_NAME];
  CHECK(!MPI_Win_free(&window) && !MPI_Win_get_name(window, name, &unit) && !strcmp(name, "MPI_WIN_NULL"));
  CHECK(!MPI_Type_get_name(MPI_DATATYPE_NULL, name, &unit) && !strcmp(name, "MPI_DATATYPE_NULL") && !MPI_Finalize());
  return 0;
}
