// Messages and collectives of derived datatypes over MPI: microseconds of each call, by layout and bytes of data.
//
//   mpicc -O2 -o types_bench types_bench.c
//   mpirun -n 2 ./types_bench --ops there_and_back,sendrecv --layouts vec8,sub3 --sizes 1024,1048576
//
// A line has the call, the layout, the bytes and the median. `there_and_back` is a whole round trip; `sent` has the layout at the
// sender only, `received` at the receiver only. A sample is a series of calls that takes 300 us or more, on the slowest rank.
//
// | layout | elements |
// | --- | --- |
// | flat | bytes without gaps |
// | vecN | blocks of N bytes, with gaps of the same length |
// | colN | N bytes of each row of a matrix with rows of 2 KiB |
// | idx, idxb | blocks of 1 to 8 doubles, blocks of 4 doubles, at irregular places |
// | sub2, sub3, face | the inside of a square and of a cube of doubles, a face of a cube whose elements are not adjacent |
// | struct, struct2 | structures with 13 of 16 and 32 of 40 bytes |
// | resized, resizedc | a double every 24 bytes, six doubles every 64 |
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static char *a, *b, *packed;
static size_t span;

struct layout { const char *name; MPI_Datatype of; int count; size_t bytes; };

static int wants(const char *list, const char *name) {
  if (!list) return 1;
  size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return 1;
  return 0;
}

static struct layout layout_of(const char *name, size_t bytes) {
  struct layout l = {name, MPI_BYTE, 1, 0};
  int block;
  if (!strcmp(name, "flat")) { l.of = MPI_BYTE; l.count = (int)bytes; l.bytes = bytes; return l; }
  if (sscanf(name, "vec%d", &block) == 1) {
    if ((size_t)block > bytes) block = bytes;
    MPI_Type_vector((int)(bytes / block), block / 8, 2 * block / 8, MPI_DOUBLE, &l.of);
  } else if (sscanf(name, "col%d", &block) == 1) { // columns of a matrix with rows of 2 KiB
    MPI_Type_vector((int)(bytes / block), block / 8, 256, MPI_DOUBLE, &l.of);
  } else if (!strcmp(name, "idx")) { // blocks of 1 to 8 doubles
    int n = (int)(bytes / 8), k = 0, *len = malloc(sizeof(int) * n), *at = malloc(sizeof(int) * n), place = 0;
    for (int left = n; left > 0; k++) {
      len[k] = 1 + (k * 7 + k / 5) % 8; if (len[k] > left) len[k] = left;
      left -= len[k]; at[k] = place; place += len[k] + 1 + (k * 3) % 5;
    }
    MPI_Type_indexed(k, len, at, MPI_DOUBLE, &l.of);
    free(len); free(at);
  } else if (!strcmp(name, "idxb")) { // blocks of 4 doubles
    int n = (int)(bytes / 32), *at = malloc(sizeof(int) * n);
    for (int i = 0, place = 0; i < n; i++) { at[i] = place; place += 4 + (i * 3) % 5; }
    MPI_Type_create_indexed_block(n, 4, at, MPI_DOUBLE, &l.of);
    free(at);
  } else if (!strcmp(name, "sub2")) { // inside of a square with a rim of 2
    int n = 1; while ((size_t)(n + 1) * (n + 1) * 8 <= bytes) n++;
    int sizes[2] = {n + 4, n + 4}, subs[2] = {n, n}, starts[2] = {2, 2};
    MPI_Type_create_subarray(2, sizes, subs, starts, MPI_ORDER_C, MPI_DOUBLE, &l.of);
  } else if (!strcmp(name, "sub3")) { // inside of a cube with a rim of 2
    int n = 1; while ((size_t)(n + 1) * (n + 1) * (n + 1) * 8 <= bytes) n++;
    int sizes[3] = {n + 4, n + 4, n + 4}, subs[3] = {n, n, n}, starts[3] = {2, 2, 2};
    MPI_Type_create_subarray(3, sizes, subs, starts, MPI_ORDER_C, MPI_DOUBLE, &l.of);
  } else if (!strcmp(name, "face")) { // face of a cube whose elements are 8 bytes apart by rows: x = const
    int n = 1; while ((size_t)(n + 1) * (n + 1) * 8 <= bytes && n < 160) n++;
    int sizes[3] = {n, n, n < 64 ? n : 64}, subs[3] = {n, n, 1}, starts[3] = {0, 0, 1};
    MPI_Type_create_subarray(3, sizes, subs, starts, MPI_ORDER_C, MPI_DOUBLE, &l.of);
  } else if (!strcmp(name, "struct")) { // {double, int, char}, 13 of 16 bytes
    int len[3] = {1, 1, 1}; MPI_Aint at[3] = {0, 8, 12};
    MPI_Datatype of[3] = {MPI_DOUBLE, MPI_INT, MPI_CHAR}, inner;
    MPI_Type_create_struct(3, len, at, of, &inner);
    MPI_Type_create_resized(inner, 0, 16, &l.of);
    MPI_Type_free(&inner);
    l.count = (int)(bytes / 13) ? (int)(bytes / 13) : 1;
  } else if (!strcmp(name, "struct2")) { // {int, gap, double[3], char[4], gap}
    int len[3] = {1, 3, 4}; MPI_Aint at[3] = {0, 8, 32};
    MPI_Datatype of[3] = {MPI_INT, MPI_DOUBLE, MPI_CHAR};
    MPI_Type_create_struct(3, len, at, of, &l.of);
    l.count = (int)(bytes / 32) ? (int)(bytes / 32) : 1;
  } else if (!strcmp(name, "resized")) { // a double every 24 bytes
    MPI_Type_create_resized(MPI_DOUBLE, 0, 24, &l.of);
    l.count = (int)(bytes / 8);
  } else if (!strcmp(name, "resizedc")) { // {contiguous 6 doubles} every 64 bytes
    MPI_Datatype inner; MPI_Type_contiguous(6, MPI_DOUBLE, &inner);
    MPI_Type_create_resized(inner, 0, 64, &l.of); MPI_Type_free(&inner);
    l.count = (int)(bytes / 48) ? (int)(bytes / 48) : 1;
  } else { fprintf(stderr, "no layout %s\n", name); MPI_Abort(MPI_COMM_WORLD, 1); }
  MPI_Type_commit(&l.of);
  int size; MPI_Type_size(l.of, &size);
  l.bytes = (size_t)size * l.count;
  return l;
}

enum { THERE_AND_BACK, SENT, RECEIVED, SENDRECV, ISEND, BCAST, GATHER, ALLGATHER, ALLTOALL, PACK, UNPACK, OPS };
static const char *const NAMES[OPS] = {"there_and_back", "sent", "received", "sendrecv", "isend", "bcast", "gather", "allgather", "alltoall", "pack", "unpack"};

// Tells the sender that a message has come.
static void acknowledge(void) {
  if (rank == 0) MPI_Recv(b, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == 1) MPI_Send(a, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
}

static void once(int op, struct layout *l, int i) {
  int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, at = 0;
  MPI_Request r[2];
  switch (op) {
  case THERE_AND_BACK:
    if (rank == 0) MPI_Send(a, l->count, l->of, 1, 0, MPI_COMM_WORLD);
    if (rank < 2) MPI_Recv(b, l->count, l->of, rank ^ 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(a, l->count, l->of, 0, 0, MPI_COMM_WORLD);
    break;
  case SENT: // typed sender, flat receiver
    if (rank == 0) MPI_Send(a, l->count, l->of, 1, 0, MPI_COMM_WORLD);
    if (rank == 1) MPI_Recv(b, (int)l->bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    acknowledge();
    break;
  case RECEIVED: // flat sender, typed receiver
    if (rank == 0) MPI_Send(a, (int)l->bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    if (rank == 1) MPI_Recv(b, l->count, l->of, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    acknowledge();
    break;
  case SENDRECV:
    MPI_Sendrecv(a, l->count, l->of, next, 0, b, l->count, l->of, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    break;
  case ISEND:
    MPI_Irecv(b, l->count, l->of, before, 0, MPI_COMM_WORLD, &r[0]);
    MPI_Isend(a, l->count, l->of, next, 0, MPI_COMM_WORLD, &r[1]);
    MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    break;
  case BCAST: MPI_Bcast(a, l->count, l->of, i % ranks, MPI_COMM_WORLD); break;
  case GATHER: MPI_Gather(a, l->count, l->of, b, l->count, l->of, i % ranks, MPI_COMM_WORLD); break;
  case ALLGATHER: MPI_Allgather(a, l->count, l->of, b, l->count, l->of, MPI_COMM_WORLD); break;
  case ALLTOALL: MPI_Alltoall(a, l->count, l->of, b, l->count, l->of, MPI_COMM_WORLD); break;
  case PACK: MPI_Pack(a, l->count, l->of, packed, (int)l->bytes + 64, &at, MPI_COMM_WORLD); break;
  case UNPACK: MPI_Unpack(packed, (int)l->bytes, &at, a, l->count, l->of, MPI_COMM_WORLD); break;
  }
}

static int ascending(const void *x, const void *y) {
  double l = *(const double *)x, r = *(const double *)y; return (l > r) - (l < r);
}

static void point(int op, const char *name, size_t bytes, double budget) {
  struct layout l = layout_of(name, bytes);
  MPI_Aint low, extent; MPI_Type_get_extent(l.of, &low, &extent);
  size_t need = (size_t)extent * l.count * (op == ALLGATHER || op == ALLTOALL || op == GATHER ? ranks : 1);
  if (need > span) { if (l.of != MPI_BYTE) MPI_Type_free(&l.of); return; }
  double best = 1e9, all[400];
  long batch = 1;
  for (int i = 0; i < 4; i++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double t = MPI_Wtime();
    for (long k = 0; k < batch; k++) once(op, &l, (int)k);
    double own = (MPI_Wtime() - t) / batch, most;
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (most < best) best = most;
    batch = (long)(300e-6 / best) + 1;
  }
  batch = (batch + ranks - 1) / ranks * ranks;
  int samples = (int)(budget / (best * batch)); if (samples < 7) samples = 7; if (samples > 400) samples = 400;
  double own[400];
  for (int i = 0; i < samples; i++) {
    if (op == BCAST || op == GATHER) MPI_Barrier(MPI_COMM_WORLD);
    double t = MPI_Wtime();
    for (long k = 0; k < batch; k++) once(op, &l, (int)k);
    own[i] = (MPI_Wtime() - t) / batch;
  }
  MPI_Allreduce(own, all, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(all, samples, sizeof *all, ascending);
  if (rank == 0) printf("%s %s %zu %.3f\n", NAMES[op], name, bytes, all[samples / 2] * 1e6), fflush(stdout);
  if (l.of != MPI_BYTE) MPI_Type_free(&l.of);
}

int main(int argc, char **argv) {
  const char *ops = NULL, *layouts = "vec8,vec64,vec512,vec4096,col8,idx,idxb,sub2,sub3,face,struct,struct2,resized,resizedc", *sizes = "1024,65536,1048576";
  double budget = 0.02;
  MPI_Init(&argc, &argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--ops")) ops = argv[i + 1];
    if (!strcmp(argv[i], "--layouts")) layouts = argv[i + 1];
    if (!strcmp(argv[i], "--sizes")) sizes = argv[i + 1];
    if (!strcmp(argv[i], "--budget-ms")) budget = atof(argv[i + 1]) * 1e-3;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  span = 64u << 20;
  a = malloc(span); b = malloc(span); packed = malloc(span);
  memset(a, 1, span); memset(b, 2, span); memset(packed, 3, span);
  for (int op = 0; op < OPS; op++) {
    if (!(ops ? wants(ops, NAMES[op]) : 1)) continue;
    char *names = strdup(layouts);
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ","))
      for (const char *at = sizes; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) point(op, name, strtoull(at, NULL, 10), budget);
    free(names);
  }
  MPI_Finalize();
  return 0;
}
