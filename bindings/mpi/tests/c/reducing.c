/* Reductions and broadcasts that are schedules of messages: up to 16 ranks, lengths on both sides of every limit, operators that do
   not commute, and results whose bits do not depend on the length. */
#include "test.h"

enum { SHORT = 3, MIDDLE = 700, LONG = 5001, MOST = 16 };

/* An affine map, x -> slope * x + shift, modulo 2^64. Maps do not commute. */
struct map { unsigned long slope, shift; };

static MPI_Datatype maps, spaced;
static MPI_Op compose;

static void compose_maps(void *in, void *inout, int *count, MPI_Datatype *type) {
  MPI_Aint lower, extent;
  if (MPI_Type_get_extent(*type, &lower, &extent)) abort();
  for (int i = 0; i < *count; i++) {
    struct map *first = (void *)((char *)in + i * extent), *then = (void *)((char *)inout + i * extent);
    then->shift += then->slope * first->shift, then->slope *= first->slope;
  }
}

static struct map map_of(int of, int at) { return (struct map){2 * (of + at) + 3, 7 * at + of}; }

static struct map composed(int at) {
  struct map all = map_of(0, at);
  for (int of = 1; of < size; of++) {
    struct map next = map_of(of, at);
    all.shift = next.shift + next.slope * all.shift, all.slope *= next.slope;
  }
  return all;
}

/* Checks `count` maps, `step` apart, of which the first is number `at` of the vector. */
static void check_maps(const struct map *found, int step, int at, int count) {
  for (int i = 0; i < count; i++) {
    struct map wanted = composed(at + i);
    CHECK(found[i * step].slope == wanted.slope && found[i * step].shift == wanted.shift);
  }
}

static int wait_for(MPI_Request *request) { return MPI_Wait(request, MPI_STATUS_IGNORE); }

static void vectors(int count, MPI_Datatype type, int step) {
  size_t bytes = (size_t)count * step * sizeof(struct map);
  struct map *in = calloc(1, bytes + 1), *out = calloc(1, bytes + 1);
  MPI_Request request;
  for (int i = 0; i < count; i++) in[i * step] = map_of(rank, i);
  CHECK(!MPI_Allreduce(in, out, count, type, compose, MPI_COMM_WORLD));
  check_maps(out, step, 0, count);
  memset(out, 0, bytes);
  CHECK(!MPI_Iallreduce(in, out, count, type, compose, MPI_COMM_WORLD, &request) && !wait_for(&request));
  check_maps(out, step, 0, count);
  memcpy(out, in, bytes);
  CHECK(!MPI_Allreduce_init(MPI_IN_PLACE, out, count, type, compose, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
  for (int round = 0; round < 3; round++) {
    memcpy(out, in, bytes);
    CHECK(!MPI_Start(&request) && !wait_for(&request));
    check_maps(out, step, 0, count);
  }
  CHECK(!MPI_Request_free(&request));
  for (int root = 0; root < size; root++) {
    memset(out, 0, bytes);
    CHECK(!MPI_Reduce(in, out, count, type, compose, root, MPI_COMM_WORLD));
    if (rank == root) check_maps(out, step, 0, count);
    CHECK(!MPI_Ireduce(in, out, count, type, compose, root, MPI_COMM_WORLD, &request) && !wait_for(&request));
    if (rank == root) check_maps(out, step, 0, count);
    CHECK(!MPI_Ibcast(rank == root ? out : memset(out, 0, bytes), count, type, root, MPI_COMM_WORLD, &request) && !wait_for(&request));
    check_maps(out, step, 0, count);
  }
  /* The first rank gets nothing. */
  int counts[MOST] = {0}, at = 0, left = count;
  for (int r = size - 1; r > 0; r--) counts[r] = r == 1 ? left : count / size, left -= counts[r];
  if (size == 1) counts[0] = count;
  for (int r = 0; r < rank; r++) at += counts[r];
  memset(out, 0, bytes);
  CHECK(!MPI_Reduce_scatter(in, out, counts, type, compose, MPI_COMM_WORLD));
  check_maps(out, step, at, counts[rank]);
  CHECK(!MPI_Ireduce_scatter(in, out, counts, type, compose, MPI_COMM_WORLD, &request) && !wait_for(&request));
  check_maps(out, step, at, counts[rank]);
  free(in), free(out);
}

/* Sums of numbers of very different size depend on the order in which they are added. */
static void bits(void) {
  static float in[40 * LONG], out[40 * LONG], some[SHORT];
  MPI_Request request;
  for (int i = 0; i < 40 * LONG; i++) in[i] = (float)(1 + (rank * 37 + i) % 11) / (float)(1 + (rank * 5 + i * i) % 1000003);
  CHECK(!MPI_Iallreduce(in, out, 40 * LONG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request) && !wait_for(&request));
  for (int i = 0; i + SHORT <= 40 * LONG; i += 4001) {
    CHECK(!MPI_Iallreduce(in + i, some, SHORT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request) && !wait_for(&request));
    CHECK(!memcmp(some, out + i, sizeof some));
    CHECK(!MPI_Ireduce(in + i, some, SHORT, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD, &request) && !wait_for(&request));
    CHECK(rank > 0 || !memcmp(some, out + i, sizeof some));
  }
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size) && size <= MOST);
  CHECK(!MPI_Type_contiguous(2, MPI_UNSIGNED_LONG, &maps) && !MPI_Type_commit(&maps));
  CHECK(!MPI_Type_create_resized(maps, 0, 2 * sizeof(struct map), &spaced) && !MPI_Type_commit(&spaced));
  CHECK(!MPI_Op_create(compose_maps, 0, &compose));
  for (int count = 0; count < SHORT; count++) vectors(count, maps, 1);
  vectors(MIDDLE, maps, 1), vectors(LONG, maps, 1), vectors(LONG, spaced, 2);
  bits();
  CHECK(!MPI_Op_free(&compose) && !MPI_Type_free(&maps) && !MPI_Type_free(&spaced) && !MPI_Finalize());
  return 0;
}
