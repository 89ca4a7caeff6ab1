/* Collectives in all forms, on communicators of several kinds. Any number of ranks. */
#define _GNU_SOURCE
#include "test.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static void product_of_matrices(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  /* 2 x 2 matrices, which do not commute. */
  long *a = in, *b = inout;
  for (int i = 0; i < *count; i++, a += 4, b += 4) {
    long c[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
    memcpy(b, c, sizeof c);
  }
}

static MPI_Datatype expected;
static int calls_with_it, calls_with_another;

/* Adds pairs of ints; counts the calls by the handle of the type. */
static void add_pairs(void *in, void *inout, int *count, MPI_Datatype *type) {
  int bytes;
  if (*type == expected) calls_with_it++;
  else calls_with_another++;
  if (MPI_Type_size(*type, &bytes) || bytes != 2 * sizeof(int)) abort();
  for (int i = 0; i < 2 * *count; i++) ((int *)inout)[i] += ((int *)in)[i];
}

/* An operator of the program gets the handle that the call got, unless the program has freed it by then. */
static void handles_of_types(void) {
  int integers[1], values[2] = {1, rank}, sums[2];
  MPI_Aint places[1];
  MPI_Datatype pair, outer, inner;
  MPI_Op op;
  MPI_Request request;
  CHECK(!MPI_Type_contiguous(2, MPI_INT, &pair) && !MPI_Type_commit(&pair) && !MPI_Op_create(add_pairs, 1, &op));
  CHECK(!MPI_Type_contiguous(3, pair, &outer) && !MPI_Type_get_contents(outer, 1, 0, 1, integers, places, &inner));
  for (int which = 0; which < 2; which++) {
    expected = which ? inner : pair, calls_with_it = calls_with_another = 0, sums[0] = sums[1] = 0;
    CHECK(!MPI_Reduce_local(values, sums, 1, expected, op) && calls_with_it == 1 && sums[0] == 1 && sums[1] == rank);
    CHECK(!MPI_Allreduce(values, sums, 1, expected, op, MPI_COMM_WORLD) && sums[0] == size && sums[1] == size * (size - 1) / 2);
    CHECK(!MPI_Iallreduce(values, sums, 1, expected, op, MPI_COMM_WORLD, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(calls_with_another == 0 && sums[0] == size && (rank > 0 || size == 1 || calls_with_it > 2));
  }
  CHECK(!MPI_Iallreduce(values, sums, 1, pair, op, MPI_COMM_WORLD, &request));
  CHECK(!MPI_Type_free(&pair) && !MPI_Type_free(&outer) && !MPI_Type_free(&inner) && !MPI_Op_free(&op));
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE) && sums[0] == size && sums[1] == size * (size - 1) / 2);
}

static void reductions(MPI_Comm comm) {
  int own, n;
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  enum { N = 1000 };
  double in[N], out[N];
  for (int i = 0; i < N; i++) in[i] = own + i, out[i] = -1;
  CHECK(!MPI_Allreduce(in, out, N, MPI_DOUBLE, MPI_SUM, comm));
  for (int i = 0; i < N; i++) CHECK(out[i] == n * (n - 1) / 2 + n * i);
  CHECK(!MPI_Allreduce(MPI_IN_PLACE, in, N, MPI_DOUBLE, MPI_MAX, comm) && in[3] == n - 1 + 3);
  short small = (short)(own + 1), total = 0;
  CHECK(!MPI_Allreduce(&small, &total, 1, MPI_SHORT, MPI_SUM, comm) && total == n * (n + 1) / 2);
  double complexes[6], parts[6], *block = malloc(2 * n * sizeof(double));
  for (int i = 0; i < 6; i++) complexes[i] = own + i;
  CHECK(!MPI_Allreduce(complexes, parts, 3, MPI_C_DOUBLE_COMPLEX, MPI_SUM, comm));
  for (int i = 0; i < 6; i++) CHECK(parts[i] == n * (n - 1) / 2 + n * i);
  CHECK(!MPI_Scan(complexes, parts, 3, MPI_C_DOUBLE_COMPLEX, MPI_SUM, comm));
  for (int i = 0; i < 6; i++) CHECK(parts[i] == own * (own + 1) / 2 + (own + 1) * i);
  for (int i = 0; i < 2 * n; i++) block[i] = own + i;
  CHECK(!MPI_Reduce_scatter_block(block, parts, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, comm));
  CHECK(parts[0] == n * (n - 1) / 2 + n * 2 * own && parts[1] == parts[0] + n);
  free(block);
  long double wide = own + 0.5L, sum = 0;
  CHECK(!MPI_Reduce(&wide, &sum, 1, MPI_LONG_DOUBLE, MPI_SUM, n - 1, comm));
  CHECK(own != n - 1 || sum == n * (n - 1) / 2 + 0.5L * n);
  struct { double value; int place; } best = {(own * 5) % 3, own}, found;
  CHECK(!MPI_Allreduce(&best, &found, 1, MPI_DOUBLE_INT, MPI_MINLOC, comm) && found.value == 0 && found.place == 0);
  CHECK(!MPI_Allreduce(&best, &found, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm));
  int place = n > 1 ? 1 : 0;
  CHECK(found.place == place && found.value == (place * 5) % 3);
  /* Pairs of Fortran's numbers, whose indices are numbers of the same type. */
  int integers[2] = {own, -own};
  float reals[2] = {(float)own, (float)-own};
  double doubles[2] = {own, -own};
  CHECK(!MPI_Allreduce(MPI_IN_PLACE, integers, 1, MPI_2INTEGER, MPI_MAXLOC, comm) && integers[0] == n - 1 && integers[1] == 1 - n);
  CHECK(!MPI_Allreduce(MPI_IN_PLACE, reals, 1, MPI_2REAL, MPI_MAXLOC, comm) && reals[0] == n - 1 && reals[1] == 1 - n);
  CHECK(!MPI_Allreduce(MPI_IN_PLACE, doubles, 1, MPI_2DOUBLE_PRECISION, MPI_MAXLOC, comm) && doubles[0] == n - 1 && doubles[1] == 1 - n);
  MPI_Datatype matrix;
  MPI_Op product;
  CHECK(!MPI_Type_contiguous(4, MPI_LONG, &matrix) && !MPI_Type_commit(&matrix) && !MPI_Op_create(product_of_matrices, 0, &product));
  long m[4] = {1, own + 1, 0, 2}, scanned[4], all[4], wanted[4] = {1, 0, 0, 1};
  CHECK(!MPI_Scan(m, scanned, 1, matrix, product, comm) && !MPI_Allreduce(m, all, 1, matrix, product, comm));
  for (int r = 0; r < n; r++) {
    long more[4] = {1, r + 1, 0, 2};
    int one = 1;
    product_of_matrices(wanted, more, &one, NULL), memcpy(wanted, more, sizeof more);
    if (r == own) CHECK(!memcmp(wanted, scanned, sizeof wanted));
  }
  CHECK(!memcmp(wanted, all, sizeof wanted));
  CHECK(!MPI_Op_free(&product) && product == MPI_OP_NULL && !MPI_Type_free(&matrix));
  int each = own + 1, before = -5;
  CHECK(!MPI_Exscan(&each, &before, 1, MPI_INT, MPI_SUM, comm) && before == (own ? own * (own + 1) / 2 : -5));
  int *blocks = malloc(2 * n * sizeof(int)), mine[2];
  for (int i = 0; i < 2 * n; i++) blocks[i] = i + own;
  CHECK(!MPI_Reduce_scatter_block(blocks, mine, 2, MPI_INT, MPI_SUM, comm));
  for (int i = 0; i < 2; i++) CHECK(mine[i] == n * (2 * own + i) + n * (n - 1) / 2);
  free(blocks);
}

static void movements(MPI_Comm comm) {
  int own, n;
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  int *all = malloc(3 * n * sizeof(int)), *out = malloc(3 * n * sizeof(int)), pair[3] = {own, 10 * own, 100 * own};
  int *counts = malloc(n * sizeof(int)), *places = malloc(n * sizeof(int));
  for (int root = 0; root < n; root++) {
    int value[3] = {-1, -1, -1};
    if (own == root) memcpy(value, pair, sizeof pair);
    CHECK(!MPI_Bcast(value, 3, MPI_INT, root, comm) && value[2] == 100 * root);
    memset(all, -1, 3 * n * sizeof(int));
    CHECK(!MPI_Gather(pair, 3, MPI_INT, all, 3, MPI_INT, root, comm));
    for (int r = 0; r < n && own == root; r++) CHECK(all[3 * r + 1] == 10 * r);
    CHECK(!MPI_Scatter(all, 3, MPI_INT, value, 3, MPI_INT, root, comm) && value[1] == 10 * own);
    CHECK(!MPI_Scatter(all, 3, MPI_INT, own == root ? MPI_IN_PLACE : (void *)value, 3, MPI_INT, root, comm));
    for (int r = 0; r < n; r++) counts[r] = r % 3, places[r] = 3 * (n - 1 - r);
    CHECK(!MPI_Gatherv(pair, own % 3, MPI_INT, all, counts, places, MPI_INT, root, comm));
    for (int r = 0; r < n && own == root; r++)
      for (int i = 0; i < r % 3; i++) CHECK(all[places[r] + i] == pair[0] * 0 + (i ? 10 * r : r));
  }
  CHECK(!MPI_Allgather(pair, 3, MPI_INT, all, 3, MPI_INT, comm));
  for (int r = 0; r < n; r++) CHECK(all[3 * r + 2] == 100 * r);
  for (int i = 0; i < 3 * n; i++) out[i] = 1000 * own + i;
  CHECK(!MPI_Alltoall(out, 3, MPI_INT, all, 3, MPI_INT, comm));
  for (int r = 0; r < n; r++) CHECK(all[3 * r + 1] == 1000 * r + 3 * own + 1);
  CHECK(!MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, 3, MPI_INT, comm) && !memcmp(out, all, 3 * n * sizeof(int)));
  for (int r = 0; r < n; r++) counts[r] = (r + own) % 3, places[r] = 3 * r;
  for (int i = 0; i < 3 * n; i++) out[i] = 1000 * own + i, all[i] = -1;
  CHECK(!MPI_Alltoallv(out, counts, places, MPI_INT, all, counts, places, MPI_INT, comm));
  for (int r = 0; r < n; r++)
    for (int i = 0; i < 3; i++) CHECK(all[3 * r + i] == (i < counts[r] ? 1000 * r + 3 * own + i : -1));
  free(all), free(out), free(counts), free(places);
}

/* Parts of unequal length, one behind the other or with gaps, in place or not. */
static void uneven_gathers(MPI_Comm comm) {
  int own, n;
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  int *all = malloc(8 * n * sizeof(int)), *counts = malloc(n * sizeof(int)), *places = malloc(n * sizeof(int)), mine[4];
  for (int kind = 0; kind < 4; kind++) {
    int gap = kind / 2, next = 0;
    for (int r = 0; r < n; next += counts[r++] + gap) counts[r] = (r + 1) % 4, places[r] = next;
    for (int i = 0; i < 8 * n; i++) all[i] = -1;
    for (int i = 0; i < 4; i++) mine[i] = 10 * own + i;
    if (kind % 2) memcpy(all + places[own], mine, counts[own] * sizeof(int));
    CHECK(!MPI_Allgatherv(kind % 2 ? MPI_IN_PLACE : (void *)mine, counts[own], MPI_INT, all, counts, places, MPI_INT, comm));
    for (int r = 0; r < n; r++)
      for (int i = 0; i < counts[r] + gap; i++) CHECK(all[places[r] + i] == (i < counts[r] ? 10 * r + i : -1));
    CHECK(all[next] == -1);
  }
  free(all), free(counts), free(places);
}

/* One rank describes the edges of all. */
static void a_graph_from_one_rank(void) {
  int *ranks = malloc(3 * size * sizeof(int)), *ones = ranks + size, *next = ones + size, in = -1, out = -1, weighted, weights[2];
  for (int r = 0; r < size; r++) ranks[r] = r, ones[r] = 1, next[r] = (r + 1) % size;
  MPI_Comm graph;
  CHECK(!MPI_Dist_graph_create(MPI_COMM_WORLD, rank ? 0 : size, ranks, ones, next, next, MPI_INFO_NULL, 0, &graph));
  CHECK(!MPI_Dist_graph_neighbors_count(graph, &in, &out, &weighted) && in == 1 && out == 1 && weighted);
  CHECK(!MPI_Dist_graph_neighbors(graph, 1, &in, &weights[0], 1, &out, &weights[1]) && !MPI_Comm_free(&graph));
  CHECK(in == (rank + size - 1) % size && out == (rank + 1) % size && weights[0] == rank && weights[1] == out);
  /* Compilers do not warn of the constant for edges without weights. */
  CHECK(!MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &in, MPI_UNWEIGHTED, 1, &out, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph));
  CHECK(!MPI_Dist_graph_neighbors(graph, 1, &weights[0], MPI_UNWEIGHTED, 1, &weights[1], MPI_UNWEIGHTED));
  CHECK(weights[0] == in && weights[1] == out && !MPI_Comm_free(&graph));
  free(ranks);
}

/* Nonblocking collectives, started in one order and completed in another; then a persistent one, started several times. */
static void started(MPI_Comm comm) {
  int own, n, flag = 0;
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  double in[3] = {own, 1, 2}, sum[3], all[64];
  MPI_Request requests[4];
  CHECK(!MPI_Iallreduce(in, sum, 3, MPI_DOUBLE, MPI_SUM, comm, &requests[0]) && !MPI_Ibarrier(comm, &requests[1]));
  CHECK(!MPI_Iallgather(in, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, comm, &requests[2]));
  double shared = own == n - 1 ? 42 : 0;
  CHECK(!MPI_Ibcast(&shared, 1, MPI_DOUBLE, n - 1, comm, &requests[3]));
  CHECK(!MPI_Wait(&requests[3], MPI_STATUS_IGNORE) && shared == 42);
  while (!flag) CHECK(!MPI_Testall(3, requests, &flag, MPI_STATUSES_IGNORE));
  CHECK(sum[0] == n * (n - 1) / 2 && sum[2] == 2 * n && all[n - 1] == n - 1);
  MPI_Request again;
  CHECK(!MPI_Allreduce_init(in, sum, 3, MPI_DOUBLE, MPI_SUM, comm, MPI_INFO_NULL, &again));
  for (int round = 0; round < 4; round++) {
    in[1] = round;
    CHECK(!MPI_Start(&again) && !MPI_Wait(&again, MPI_STATUS_IGNORE) && sum[1] == round * n);
  }
  CHECK(!MPI_Request_free(&again));
}

static void topologies(void) {
  int dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], from, to, own, value, around[4], kind;
  MPI_Comm grid, line;
  CHECK(!MPI_Dims_create(size, 2, dims) && dims[0] * dims[1] == size && dims[0] >= dims[1]);
  CHECK(!MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid) && !MPI_Comm_rank(grid, &own));
  CHECK(!MPI_Cart_coords(grid, own, 2, coords) && !MPI_Topo_test(grid, &kind) && kind == MPI_CART);
  CHECK(!MPI_Cart_shift(grid, 1, 1, &from, &to) && (to == MPI_PROC_NULL) == (coords[1] == dims[1] - 1));
  /* Far displacements go around a period, and leave a line. */
  int far[2] = {INT_MAX, INT_MIN};
  for (int i = 0; i < 2; i++) {
    long long steps = far[i], behind = ((coords[0] - steps) % dims[0] + dims[0]) % dims[0];
    int near[2] = {(int)(((coords[0] + steps) % dims[0] + dims[0]) % dims[0]), coords[1]}, ahead;
    CHECK(!MPI_Cart_rank(grid, near, &ahead) && !MPI_Cart_shift(grid, 0, far[i], &value, &kind) && kind == ahead);
    CHECK(!MPI_Cart_rank(grid, (int[]){(int)behind, coords[1]}, &ahead) && value == ahead);
    CHECK(!MPI_Cart_shift(grid, 1, far[i], &value, &kind) && value == MPI_PROC_NULL && kind == MPI_PROC_NULL);
  }
  for (int i = 0; i < 4; i++) around[i] = -7;
  value = own;
  CHECK(!MPI_Neighbor_allgather(&value, 1, MPI_INT, around, 1, MPI_INT, grid));
  CHECK(around[3] == (to == MPI_PROC_NULL ? -7 : to) && around[2] == (from == MPI_PROC_NULL ? -7 : from));
  int remain[2] = {1, 0}, length;
  CHECK(!MPI_Cart_sub(grid, remain, &line) && !MPI_Comm_size(line, &length) && length == dims[0]);
  CHECK(!MPI_Comm_free(&line) && !MPI_Comm_free(&grid) && grid == MPI_COMM_NULL);
}

static int copies, deletions;
static int on_copy(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag) {
  (void)comm, (void)key, (void)extra;
  copies++, *(void **)copy = (char *)value + 1, *flag = 1;
  return MPI_SUCCESS;
}
static int on_delete(MPI_Comm comm, int key, void *value, void *extra) {
  (void)comm, (void)key, (void)value, (void)extra;
  deletions++;
  return MPI_SUCCESS;
}

static void communicators(void) {
  MPI_Comm copy, half, none;
  int key, flag, result, *limit;
  char *value, place;
  CHECK(!MPI_Comm_create_keyval(on_copy, on_delete, &key, NULL) && !MPI_Comm_dup(MPI_COMM_WORLD, &half));
  CHECK(!MPI_Comm_set_attr(half, key, &place) && !MPI_Comm_dup(half, &copy) && copies == 1);
  CHECK(!MPI_Comm_get_attr(copy, key, &value, &flag) && flag && value == &place + 1);
  CHECK(!MPI_Comm_compare(half, copy, &result) && result == MPI_CONGRUENT);
  CHECK(!MPI_Comm_free(&copy) && !MPI_Comm_free(&half) && deletions == 2 && !MPI_Comm_free_keyval(&key));
  CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &flag) && flag && *limit >= 32767);
  CHECK(!MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half));
  reductions(half), movements(half), started(half);
  CHECK(!MPI_Comm_free(&half));
  CHECK(!MPI_Comm_split(MPI_COMM_WORLD, rank ? MPI_UNDEFINED : 0, 0, &none) && (none == MPI_COMM_NULL) == (rank > 0));
  if (rank) return;
  reductions(none), movements(none);
  CHECK(!MPI_Comm_free(&none));
}

/* The output of an exclusive scan is not significant on the first rank. A structure's empty blocks do not align it. */
static void corners(void) {
  int value = rank + 1, sum = -1, lengths[3] = {1, 0, 1};
  CHECK(!MPI_Exscan(&value, rank ? &sum : NULL, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(rank == 0 || sum == rank * (rank + 1) / 2);
  MPI_Aint places[3] = {0, 8, 4}, lower, extent;
  MPI_Datatype types[3] = {MPI_INT, MPI_DOUBLE, MPI_SHORT}, made;
  CHECK(!MPI_Type_create_struct(3, lengths, places, types, &made) && !MPI_Type_get_extent(made, &lower, &extent));
  CHECK(lower == 0 && extent == 8 && !MPI_Type_free(&made));
  places[2] = 8;
  CHECK(!MPI_Type_create_struct(3, lengths, places, types, &made) && !MPI_Type_get_extent(made, &lower, &extent));
  CHECK(extent == 12 && !MPI_Type_free(&made));
  /* Characters are reduced as numbers, and Fortran's types as the predefined ones. */
  char letter = 1, letters = 0;
  double real = 0.5, reals = 0;
  CHECK(!MPI_Allreduce(&letter, &letters, 1, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD) && letters == size);
  CHECK(!MPI_Type_create_f90_real(15, 307, &made));
  CHECK(!MPI_Allreduce(&real, &reals, 1, made, MPI_SUM, MPI_COMM_WORLD) && reals == size / 2.0);
  MPI_Request request;
  CHECK(!MPI_Iallreduce(&real, &reals, 1, made, MPI_MAX, MPI_COMM_WORLD, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(reals == 0.5);
  int integers, addresses, children, combiner;
  CHECK(!MPI_Type_get_envelope(made, &integers, &addresses, &children, &combiner));
  CHECK(integers == 2 && addresses == 0 && children == 0 && combiner == MPI_COMBINER_F90_REAL);
}

static MPI_Count seen;
static int calls;

static void count_elements(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)in, (void)inout, (void)type;
  seen += *count, calls++;
}

static void sum_downwards(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  for (int i = 0; i < *count; i++) ((int *)inout)[-2 * i] += ((int *)in)[-2 * i];
}

/* Arguments at the edge of what the standard permits. */
static void edges(void) {
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  /* The root's buffer is in memory that may only be read. */
  MPI_Datatype gaps;
  CHECK(!MPI_Type_vector(8, 1, 2, MPI_INT, &gaps) && !MPI_Type_commit(&gaps));
  int zeros = open("/dev/zero", O_RDONLY), *data = malloc(16 * sizeof *data);
  memset(data, 1, 16 * sizeof *data);
  void *fixed = mmap(NULL, 16 * sizeof *data, PROT_READ, MAP_PRIVATE, zeros, 0);
  CHECK(zeros >= 0 && fixed != MAP_FAILED && !MPI_Bcast(rank ? data : fixed, 1, gaps, 0, MPI_COMM_WORLD));
  CHECK(rank == 0 || (data[0] == 0 && data[14] == 0 && data[1] != 0));
  CHECK(!MPI_Type_free(&gaps) && !munmap(fixed, 16 * sizeof *data) && !close(zeros));
  free(data);
  /* A count of 0 needs no type. */
  int *counts[2], *places = calloc(size, sizeof *places), from = rank, to = -1;
  MPI_Datatype *types[2];
  for (int i = 0; i < 2; i++) {
    counts[i] = calloc(size, sizeof(int)), types[i] = malloc(size * sizeof(MPI_Datatype));
    for (int r = 0; r < size; r++) types[i][r] = MPI_DATATYPE_NULL;
    counts[i][i ? before : next] = 1, types[i][i ? before : next] = MPI_INT;
  }
  CHECK(!MPI_Alltoallw(&from, counts[0], places, types[0], &to, counts[1], places, types[1], MPI_COMM_WORLD) && to == before);
  for (int i = 0; i < 2; i++) free(counts[i]), free(types[i]);
  free(places);
  /* An operator whose length is an int gets more elements in several calls. All elements are at one place. */
  MPI_Op op;
  MPI_Datatype still, down;
  const MPI_Count many = (MPI_Count)INT_MAX + 5;
  char one = 1, other = 1;
  CHECK(!MPI_Op_create(count_elements, 1, &op) && !MPI_Type_create_resized(MPI_CHAR, 0, 0, &still) && !MPI_Type_commit(&still));
  seen = calls = 0;
  CHECK(!MPI_Reduce_local_c(&one, &other, many, still, op) && seen == many && calls == 2);
  CHECK(!MPI_Op_free(&op) && !MPI_Type_free(&still));
  /* Elements that follow each other downwards: every rank gets its own block. */
  int values[16], sum = -1;
  CHECK(size <= 8 && !MPI_Op_create(sum_downwards, 1, &op));
  CHECK(!MPI_Type_create_resized(MPI_INT, 0, -8, &down) && !MPI_Type_commit(&down));
  for (int r = 0; r < size; r++) values[15 - 2 * r] = 10 * r + rank;
  CHECK(!MPI_Reduce_scatter_block(&values[15], &sum, 1, down, op, MPI_COMM_WORLD));
  CHECK(sum == size * 10 * rank + size * (size - 1) / 2 && !MPI_Op_free(&op) && !MPI_Type_free(&down));
}

static int types_freed;

static int on_type_delete(MPI_Datatype type, int key, void *value, void *extra) {
  (void)type, (void)key, (void)value, (void)extra;
  types_freed++;
  return MPI_SUCCESS;
}

/* A freed keyval lives on with its attributes. A type's attributes are deleted with it, even if another type is made of it. */
static void keyvals(void) {
  int key, same, flag, place;
  void *value;
  MPI_Comm comm;
  MPI_Datatype type, of_type;
  CHECK(!MPI_Comm_dup(MPI_COMM_SELF, &comm) && !MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_delete, &key, NULL));
  same = key, deletions = 0;
  CHECK(!MPI_Comm_set_attr(comm, key, &place) && !MPI_Comm_free_keyval(&key) && key == MPI_KEYVAL_INVALID);
  CHECK(!MPI_Comm_get_attr(comm, same, &value, &flag) && flag && value == &place);
  CHECK(!MPI_Comm_delete_attr(comm, same) && deletions == 1);
  CHECK(!MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  FAILS(MPI_ERR_KEYVAL, MPI_Comm_set_attr(comm, same, &place));
  CHECK(!MPI_Comm_free(&comm));
  CHECK(!MPI_Type_contiguous(2, MPI_INT, &type) && !MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, on_type_delete, &key, NULL));
  CHECK(!MPI_Type_set_attr(type, key, NULL) && !MPI_Type_dup(type, &of_type) && !MPI_Type_free(&type) && types_freed == 1);
  CHECK(!MPI_Type_free(&of_type) && !MPI_Type_free_keyval(&key) && types_freed == 1);
}

enum { THREADS = 4, ROUNDS = 10 };

static MPI_Comm shared[THREADS][ROUNDS];

static void *first_calls_of_thread(void *number) {
  int at = *(int *)number, sum, product[2];
  for (int round = 0; round < ROUNDS; round++) {
    int value = rank + at;
    if (at % 2) {
      CHECK(!MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, shared[at][round]) && sum == size * (size - 1) / 2 + size * at);
    } else {
      product[0] = rank ? -1 : at, product[1] = rank ? -1 : round;
      CHECK(!MPI_Bcast(product, 2, MPI_INT, 0, shared[at][round]) && product[0] == at && product[1] == round);
    }
  }
  return NULL;
}

/* Threads make the first calls on communicators of the same ranks, in an order that differs among the ranks. */
static void first_calls(void) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  for (int i = 0; i < THREADS; i++)
    for (int round = 0; round < ROUNDS; round++) CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &shared[i][round]));
  for (int i = 0; i < THREADS; i++) {
    int at = rank % 2 ? THREADS - 1 - i : i;
    numbers[at] = at;
    CHECK(!pthread_create(&threads[at], NULL, first_calls_of_thread, &numbers[at]));
  }
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
  for (int i = 0; i < THREADS; i++)
    for (int round = 0; round < ROUNDS; round++) CHECK(!MPI_Comm_free(&shared[i][round]));
}

int main(int argc, char **argv) {
  int provided;
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) && provided == MPI_THREAD_MULTIPLE);
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  reductions(MPI_COMM_WORLD), movements(MPI_COMM_WORLD), uneven_gathers(MPI_COMM_WORLD), started(MPI_COMM_WORLD);
  reductions(MPI_COMM_SELF), movements(MPI_COMM_SELF), started(MPI_COMM_SELF);
  topologies(), a_graph_from_one_rank(), communicators(), corners(), edges(), handles_of_types(), keyvals(), first_calls();
  CHECK(!MPI_Finalize());
  return 0;
}
