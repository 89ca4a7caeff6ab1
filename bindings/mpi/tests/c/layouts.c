/* Messages and collectives of derived datatypes, of all lengths and in all kinds of calls. Any number of ranks. */
#include "test.h"

enum { KINDS = 7, LENGTHS = 6 };
static const int lengths[LENGTHS] = {1, 13, 700, 6000, 40000, 300000};

/* Makes a type with gaps whose elements are bytes of a block of `*span` bytes. */
static MPI_Datatype make(int kind, int n, long *span) {
  MPI_Datatype of = MPI_BYTE, inner;
  int sizes[3] = {5, n / 12 + 2, 9}, parts[3] = {3, n / 12 + 1, 4}, starts[3] = {1, 1, 2};
  int counts[3] = {1, 3, 4}, *places = malloc((n + 1) * sizeof(int)), *blocks = malloc((n + 1) * sizeof(int)), k = 0;
  MPI_Aint at[3] = {0, 8, 33}, low, extent;
  MPI_Datatype members[3] = {MPI_INT, MPI_DOUBLE, MPI_CHAR};
  switch (kind) {
  case 0: MPI_Type_vector(n / 8 + 1, 8, 16, MPI_BYTE, &of); break;
  case 1: MPI_Type_vector(n / 500 + 1, 500, 777, MPI_BYTE, &of); break;
  case 2: MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_BYTE, &of); break;
  case 3:
    MPI_Type_create_struct(3, counts, at, members, &inner);
    MPI_Type_create_resized(inner, 0, 48, &of), MPI_Type_free(&inner), inner = of;
    MPI_Type_contiguous(n / 32 + 1, inner, &of), MPI_Type_free(&inner);
    break;
  case 4:
    for (int place = 0; place < n; k++) places[k] = place, blocks[k] = 1 + k * 7 % 11, place += blocks[k] + 1 + k % 3;
    MPI_Type_indexed(k, blocks, places, MPI_BYTE, &of);
    break;
  case 5: /* backwards */
    for (int place = 0; place < n; k++) blocks[k] = 1 + k % 5, place += 7;
    for (int i = 0; i < k; i++) places[i] = 7 * (k - 1 - i);
    MPI_Type_indexed(k, blocks, places, MPI_BYTE, &of);
    break;
  default: MPI_Type_create_resized(MPI_DOUBLE, 0, 24, &inner), MPI_Type_contiguous(n / 8 + 1, inner, &of), MPI_Type_free(&inner);
  }
  CHECK(!MPI_Type_commit(&of) && !MPI_Type_get_extent(of, &low, &extent));
  *span = low + extent + 64;
  free(places), free(blocks);
  return of;
}

/* Fills memory with bytes that tell the seed. */
static void fill(unsigned char *at, long span, int seed) {
  for (long i = 0; i < span; i++) at[i] = (unsigned char)(i * 31 + i / 251 + seed * 17);
}

static int data_of(MPI_Datatype of) {
  int bytes;
  MPI_Type_size(of, &bytes);
  return bytes;
}

/* Checks that `got` has the data of `seed` where the type has bytes, and is untouched elsewhere. */
static void check(const unsigned char *got, long span, MPI_Datatype of, int seed) {
  unsigned char *all = malloc(span), *marks = malloc(span), *ones = malloc(data_of(of));
  int at = 0;
  fill(all, span, seed);
  memset(marks, 0, span), memset(ones, 1, data_of(of));
  CHECK(!MPI_Unpack(ones, data_of(of), &at, marks, 1, of, MPI_COMM_WORLD) && at == data_of(of));
  for (long i = 0; i < span; i++) CHECK(got[i] == (marks[i] ? all[i] : 0xee));
  free(all), free(marks), free(ones);
}

/* Typed messages around a ring: blocking, started, synchronous, in one run of bytes at one end, to any receive, and too long ones. */
static void typed_messages(void) {
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  for (int kind = 0; kind < KINDS; kind++)
    for (int length = 0; length < LENGTHS; length++)
      for (int way = 0; way < 7; way++) {
        long span;
        MPI_Datatype of = make(kind, lengths[length], &span);
        int bytes = data_of(of), position = 0, count, is_flat = way == 3;
        unsigned char *out = malloc(span), *in = malloc(span), *packed = malloc(bytes + 1);
        MPI_Request requests[2];
        MPI_Status status;
        fill(out, span, rank), memset(in, 0xee, span);
        if (way == 0) {
          CHECK(!MPI_Sendrecv(out, 1, of, next, 1, in, 1, of, before, 1, MPI_COMM_WORLD, &status));
          CHECK(!MPI_Get_count(&status, of, &count) && count == 1);
        } else if (way == 5) { /* a message that is longer than its receive */
          MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
          MPI_Datatype two;
          CHECK(!MPI_Type_contiguous(2, of, &two) && !MPI_Type_commit(&two));
          unsigned char *twice = malloc(2 * span);
          fill(twice, 2 * span, rank);
          CHECK(!MPI_Isend(twice, 1, two, next, 1, MPI_COMM_WORLD, &requests[0]));
          int error = MPI_Recv(in, 1, of, before, 1, MPI_COMM_WORLD, &status), class;
          CHECK(error && !MPI_Error_class(error, &class) && class == MPI_ERR_TRUNCATE);
          CHECK(!MPI_Wait(&requests[0], MPI_STATUS_IGNORE) && !MPI_Type_free(&two));
          MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
          free(twice);
        } else if (way == 6) { /* a receive with room for more */
          CHECK(!MPI_Isend(out, 1, of, next, 1, MPI_COMM_WORLD, &requests[0]));
          unsigned char *room = malloc(3 * span);
          memset(room, 0xee, 3 * span);
          CHECK(!MPI_Recv(room, 2, of, before, 1, MPI_COMM_WORLD, &status));
          CHECK(!MPI_Get_count(&status, of, &count) && count == 1);
          memcpy(in, room, span - 64), free(room);
          CHECK(!MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
        } else {
          int from = way == 4 ? MPI_ANY_SOURCE : before, tag = way == 4 ? MPI_ANY_TAG : 1;
          if (way == 2) CHECK(!MPI_Issend(out, 1, of, next, 1, MPI_COMM_WORLD, &requests[1]));
          if (is_flat && rank % 2) {
            CHECK(!MPI_Irecv(packed, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests[0]));
          } else {
            CHECK(!MPI_Irecv(in, 1, of, from, tag, MPI_COMM_WORLD, &requests[0]));
          }
          if (way != 2) CHECK(!MPI_Isend(out, 1, of, next, 1, MPI_COMM_WORLD, &requests[1]));
          /* The request keeps the type. */
          MPI_Datatype freed = of;
          CHECK(!MPI_Type_dup(of, &of) && !MPI_Type_free(&freed));
          CHECK(!MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
          if (is_flat && rank % 2) CHECK(!MPI_Unpack(packed, bytes, &position, in, 1, of, MPI_COMM_WORLD));
        }
        check(in, span, of, before);
        MPI_Type_free(&of);
        free(out), free(in), free(packed);
        MPI_Barrier(MPI_COMM_WORLD);
      }
}

/* Messages of a rank to itself, to a receive that was posted before or comes later. */
static void messages_home(void) {
  for (int kind = 0; kind < KINDS; kind++)
    for (int length = 0; length < LENGTHS; length++)
      for (int early = 0; early < 2; early++) {
        long span;
        MPI_Datatype of = make(kind, lengths[length], &span);
        unsigned char *out = malloc(span), *in = malloc(span);
        MPI_Request requests[2];
        fill(out, span, 3), memset(in, 0xee, span);
        for (int step = 0; step < 2; step++) {
          if (step == early) CHECK(!MPI_Isend(out, 1, of, 0, 1, MPI_COMM_SELF, &requests[0]));
          if (step != early) CHECK(!MPI_Irecv(in, 1, of, 0, 1, MPI_COMM_SELF, &requests[1]));
        }
        CHECK(!MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        check(in, span, of, 3);
        MPI_Type_free(&of);
        free(out), free(in);
      }
}

/* Collectives between layouts that differ from rank to rank: bytes at even ranks. */
static void collectives(void) {
  for (int kind = 0; kind < KINDS; kind++)
    for (int length = 0; length < LENGTHS; length++) {
      long span;
      MPI_Datatype of = make(kind, lengths[length], &span), wide;
      int bytes = data_of(of), at = 0;
      unsigned char *out = malloc(span), *in = malloc(span * size), *own = malloc(bytes);
      MPI_Request request;
      CHECK(!MPI_Type_create_resized(of, 0, span, &wide) && !MPI_Type_commit(&wide));
      for (int started = 0; started < 2; started++) {
        fill(out, span, rank), at = 0;
        CHECK(!MPI_Pack(out, 1, of, own, bytes, &at, MPI_COMM_WORLD) && at == bytes);
        memset(in, 0xee, span * size);
        const void *from = rank % 2 ? (void *)out : (void *)own;
        int count = rank % 2 ? 1 : bytes;
        MPI_Datatype type = rank % 2 ? of : MPI_BYTE;
        if (started) {
          CHECK(!MPI_Iallgather(from, count, type, in, 1, wide, MPI_COMM_WORLD, &request));
          CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else {
          CHECK(!MPI_Allgather(from, count, type, in, 1, wide, MPI_COMM_WORLD));
        }
        for (int i = 0; i < size; i++) check(in + i * span, span, of, i);
        memset(in, 0xee, span);
        if (rank == size - 1) memcpy(in, out, span);
        if (started) {
          CHECK(!MPI_Ibcast(in, 1, of, size - 1, MPI_COMM_WORLD, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else {
          CHECK(!MPI_Bcast(in, 1, of, size - 1, MPI_COMM_WORLD));
        }
        if (rank < size - 1) check(in, span, of, size - 1);
      }
      MPI_Type_free(&of), MPI_Type_free(&wide);
      free(out), free(in), free(own);
    }
}

/* Neighbours exchange data with gaps: every rank sends before it waits for others. */
static void neighbors(void) {
  MPI_Comm ring;
  MPI_Datatype every_other;
  MPI_Request request;
  int periodic = 1, before = (rank + size - 1) % size, next = (rank + 1) % size;
  CHECK(!MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &ring));
  CHECK(!MPI_Type_vector(3, 1, 2, MPI_INT, &every_other) && !MPI_Type_commit(&every_other));
  for (int started = 0; started < 2; started++) {
    int out[5] = {rank, -1, rank + 10, -1, rank + 20}, in[10];
    memset(in, 0xee, sizeof in);
    if (started) {
      CHECK(!MPI_Ineighbor_allgather(out, 1, every_other, in, 1, every_other, ring, &request));
      CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
      CHECK(!MPI_Neighbor_allgather(out, 1, every_other, in, 1, every_other, ring));
    }
    for (int i = 0; i < 3; i++) CHECK(in[2 * i] == before + 10 * i && in[5 + 2 * i] == next + 10 * i);
    CHECK(in[1] == (int)0xeeeeeeee && in[8] == (int)0xeeeeeeee);
  }
  CHECK(!MPI_Type_free(&every_other) && !MPI_Comm_free(&ring));
}

/* Bounds that the program sets take precedence over those of other members of a structure; types without data have no bounds. */
static void bounds(void) {
  int ones[3] = {1, 1, 1};
  MPI_Aint at[3] = {8, -4, 100}, low, extent;
  MPI_Datatype wide, nothing, all, copies;
  CHECK(!MPI_Type_create_resized(MPI_INT, 0, 8, &wide) && !MPI_Type_contiguous(0, MPI_DOUBLE, &nothing));
  MPI_Datatype members[3] = {wide, MPI_CHAR, nothing};
  CHECK(!MPI_Type_create_struct(3, ones, at, members, &all) && !MPI_Type_get_extent(all, &low, &extent));
  CHECK(low == 8 && extent == 8 && !MPI_Type_get_true_extent(all, &low, &extent) && low == -4 && extent == 16);
  CHECK(!MPI_Type_contiguous(2, all, &copies) && !MPI_Type_get_extent(copies, &low, &extent) && low == 8 && extent == 16);
  CHECK(!MPI_Type_free(&copies) && !MPI_Type_free(&all) && !MPI_Type_create_struct(2, ones, at + 1, members + 1, &all));
  CHECK(!MPI_Type_get_extent(all, &low, &extent) && low == -4 && extent == 1);
  CHECK(!MPI_Type_free(&all) && !MPI_Type_free(&nothing) && !MPI_Type_free(&wide));
}

/* A long has four bytes in external32, and a long long eight, by themselves and in derived types. */
static void external_longs(void) {
  struct both {
    long a[2];
    long long b;
  } out = {{-5, 7}, -9}, in = {{0, 0}, 0};
  int counts[2] = {2, 1};
  MPI_Aint at[2] = {0, sizeof out.a}, bytes, place = 0;
  MPI_Datatype members[2] = {MPI_LONG, MPI_LONG_LONG}, of;
  unsigned char packed[16];
  CHECK(!MPI_Pack_external_size("external32", 1, MPI_LONG, &bytes) && bytes == 4);
  CHECK(!MPI_Type_create_struct(2, counts, at, members, &of) && !MPI_Type_commit(&of));
  CHECK(!MPI_Pack_external_size("external32", 1, of, &bytes) && bytes == 16);
  CHECK(!MPI_Pack_external("external32", &out, 1, of, packed, sizeof packed, &place) && place == 16);
  CHECK(packed[3] == 251 && packed[7] == 7 && packed[8] == 255 && packed[15] == 247);
  place = 0;
  CHECK(!MPI_Unpack_external("external32", packed, sizeof packed, &place, &in, 1, of) && !memcmp(&in, &out, sizeof in));
  CHECK(!MPI_Type_free(&of));
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  typed_messages();
  messages_home();
  collectives();
  neighbors();
  bounds();
  external_longs();
  CHECK(!MPI_Finalize());
  return 0;
}
