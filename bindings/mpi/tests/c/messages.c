/* Point to point: modes, wildcards, probes, requests, datatypes. Any number of ranks. */
#define _DEFAULT_SOURCE
#include "test.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void ring(void) {
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  for (int count = 1; count < 3000000; count = count * 11 + 1) {
    int *out = malloc(count * sizeof(int)), *in = malloc(count * sizeof(int)), found;
    MPI_Status status;
    for (int i = 0; i < count; i++) out[i] = rank * 7 + i, in[i] = -1;
    CHECK(!MPI_Sendrecv(out, count, MPI_INT, next, 5, in, count, MPI_INT, before, 5, MPI_COMM_WORLD, &status));
    CHECK(!MPI_Get_count(&status, MPI_INT, &found) && found == count && status.MPI_SOURCE == before && status.MPI_TAG == 5);
    for (int i = 0; i < count; i++) CHECK(in[i] == before * 7 + i);
    CHECK(!MPI_Sendrecv_replace(out, count, MPI_INT, next, 6, before, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (int i = 0; i < count; i++) CHECK(out[i] == before * 7 + i);
    free(out), free(in);
  }
}

/* All ranks send to rank 0. It receives those of one rank in the order sent, and of different ranks in any order; some are long. */
static void wildcards(void) {
  enum { MESSAGES = 20 };
  static int data[40000];
  if (rank > 0) {
    for (int i = 0; i < MESSAGES; i++) {
      data[0] = i, data[1] = rank;
      int count = i % 3 == 2 ? 40000 : 2;
      CHECK(!(i % 2 ? MPI_Send : MPI_Ssend)(data, count, MPI_INT, 0, i, MPI_COMM_WORLD));
    }
    return;
  }
  int *next = calloc(size, sizeof(int));
  for (int n = 0; n < MESSAGES * (size - 1); n++) {
    MPI_Status status, probed;
    if (n % 3 == 1) {
      CHECK(!MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &probed));
      CHECK(!MPI_Recv(data, 40000, MPI_INT, probed.MPI_SOURCE, probed.MPI_TAG, MPI_COMM_WORLD, &status));
    } else if (n % 3 == 2) {
      MPI_Message message;
      int count;
      CHECK(!MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &probed));
      CHECK(!MPI_Get_count(&probed, MPI_INT, &count) && (count == 2 || count == 40000));
      CHECK(!MPI_Mrecv(data, 40000, MPI_INT, &message, &status) && message == MPI_MESSAGE_NULL);
    } else {
      CHECK(!MPI_Recv(data, 40000, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
    }
    CHECK(data[1] == status.MPI_SOURCE && data[0] == status.MPI_TAG && data[0] == next[data[1]]++);
  }
  free(next);
}

/* Messages received in another order of tags than sent, and requests of all kinds at once. */
static void requests(void) {
  int peer = size == 1 ? 0 : rank ^ 1, in[6], out[6] = {10, 11, 12, 13, 14, 15}, index, flag, outcount, indices[6];
  if (peer >= size) return;
  MPI_Request all[6];
  MPI_Status statuses[6];
  for (int i = 0; i < 3; i++) CHECK(!MPI_Irecv(&in[i], 1, MPI_INT, peer, 2 - i, MPI_COMM_WORLD, &all[i]));
  for (int i = 0; i < 3; i++) CHECK(!MPI_Isend(&out[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &all[3 + i]));
  CHECK(!MPI_Waitall(6, all, statuses));
  for (int i = 0; i < 3; i++) CHECK(in[i] == 12 - i && statuses[i].MPI_TAG == 2 - i && all[i] == MPI_REQUEST_NULL);
  MPI_Request persistent[2];
  CHECK(!MPI_Recv_init(in, 6, MPI_INT, peer, 9, MPI_COMM_WORLD, &persistent[0]));
  CHECK(!MPI_Send_init(out, 6, MPI_INT, peer, 9, MPI_COMM_WORLD, &persistent[1]));
  for (int round = 0; round < 3; round++) {
    out[5] = round, in[5] = -1;
    CHECK(!MPI_Startall(2, persistent));
    for (int left = 2; left > 0; left -= outcount) CHECK(!MPI_Waitsome(2, persistent, &outcount, indices, statuses));
    CHECK(in[5] == round);
  }
  CHECK(!MPI_Waitany(2, persistent, &index, statuses) && index == MPI_UNDEFINED);
  CHECK(!MPI_Request_free(&persistent[0]) && !MPI_Request_free(&persistent[1]) && persistent[0] == MPI_REQUEST_NULL);
  CHECK(!MPI_Irecv(in, 1, MPI_INT, peer, 77, MPI_COMM_WORLD, &all[0]) && !MPI_Cancel(&all[0]));
  CHECK(!MPI_Wait(&all[0], statuses) && !MPI_Test_cancelled(statuses, &flag) && flag);
  CHECK(!MPI_Recv(in, 1, MPI_INT, MPI_PROC_NULL, 3, MPI_COMM_WORLD, statuses) && statuses[0].MPI_SOURCE == MPI_PROC_NULL);
  CHECK(!MPI_Iprobe(peer, 12345, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE) && !flag);
}

/* A column of a matrix arrives as a row, and the other way round. */
static void datatypes(void) {
  enum { N = 40 };
  static double a[N][N], row[N];
  MPI_Datatype column, wide;
  MPI_Status status;
  int peer = size == 1 ? 0 : rank ^ 1, count;
  CHECK(!MPI_Type_vector(N, 1, N, MPI_DOUBLE, &column) && !MPI_Type_create_resized(column, 0, sizeof(double), &wide));
  CHECK(!MPI_Type_commit(&wide) && !MPI_Type_free(&column) && column == MPI_DATATYPE_NULL);
  if (peer < size) {
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++) a[i][j] = rank * 10000 + i * 100 + j;
    MPI_Request request;
    CHECK(!MPI_Irecv(row, N, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, &request));
    CHECK(!MPI_Send(&a[0][3], 1, wide, peer, 1, MPI_COMM_WORLD) && !MPI_Wait(&request, &status));
    CHECK(!MPI_Get_count(&status, wide, &count) && count == 1);
    CHECK(!MPI_Get_elements(&status, wide, &count) && count == N);
    for (int i = 0; i < N; i++) CHECK(row[i] == peer * 10000 + i * 100 + 3);
    CHECK(!MPI_Irecv(a, N, wide, peer, 2, MPI_COMM_WORLD, &request));
    double b[N][N];
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++) b[i][j] = i * 100 + j;
    CHECK(!MPI_Ssend(b, N * N, MPI_DOUBLE, peer, 2, MPI_COMM_WORLD) && !MPI_Wait(&request, &status));
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++) CHECK(a[i][j] == j * 100 + i);
  }
  CHECK(!MPI_Type_free(&wide));
  struct { short s; double d; char c; } v[2] = {{1, 2.5, 'x'}, {3, 4.5, 'y'}}, w[2];
  MPI_Datatype parts[3] = {MPI_SHORT, MPI_DOUBLE, MPI_CHAR}, structure;
  int lengths[3] = {1, 1, 1}, bytes, position = 0;
  MPI_Aint places[3] = {0, (char *)&v[0].d - (char *)&v[0], &v[0].c - (char *)&v[0]}, low, extent;
  CHECK(!MPI_Type_create_struct(3, lengths, places, parts, &structure) && !MPI_Type_commit(&structure));
  CHECK(!MPI_Type_get_extent(structure, &low, &extent) && low == 0 && extent == sizeof v[0]);
  CHECK(!MPI_Type_size(structure, &bytes) && bytes == 11);
  char packed[64];
  CHECK(!MPI_Pack(v, 2, structure, packed, sizeof packed, &position, MPI_COMM_WORLD) && position == 22);
  position = 0;
  CHECK(!MPI_Unpack(packed, 22, &position, w, 2, structure, MPI_COMM_WORLD));
  CHECK(w[1].s == 3 && w[1].d == 4.5 && w[1].c == 'y' && w[0].d == 2.5);
  CHECK(!MPI_Type_free(&structure));
  /* Elements that follow each other downwards: a type of one such element has the same extent. */
  MPI_Datatype down, one;
  int numbers[5] = {1, 2, 3, 4, 5}, taken[3];
  CHECK(!MPI_Type_create_resized(MPI_INT, 0, -8, &down) && !MPI_Type_contiguous(1, down, &one) && !MPI_Type_commit(&one));
  CHECK(!MPI_Type_get_extent(one, &low, &extent) && low == 0 && extent == -8);
  position = 0;
  CHECK(!MPI_Pack(&numbers[4], 3, one, taken, sizeof taken, &position, MPI_COMM_WORLD));
  CHECK(taken[0] == 5 && taken[1] == 3 && taken[2] == 1 && !MPI_Type_free(&down) && !MPI_Type_free(&one));
}

/* While a receive waits, messages arrive that are not for it: of another tag or communicator, shorter, longer, or for a receive that
   was posted before it. */
static void waiting_receives(void) {
  enum { ROUNDS = 60, LONG = 30000 };
  static int in[LONG], out[LONG], early[2];
  int peer = rank ^ 1, count;
  MPI_Comm other;
  MPI_Request requests[2];
  MPI_Status status;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &other));
  for (int round = 0; round < ROUNDS && peer < size; round++) {
    if (rank < peer) {
      out[0] = round, out[1] = -round;
      CHECK(!MPI_Send(out, 2, MPI_INT, peer, 1, MPI_COMM_WORLD));
      CHECK(!MPI_Recv(in, 1, MPI_INT, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &status) && in[0] == round && status.MPI_TAG == 1);
      /* The peer receives these in another order. */
      CHECK(!MPI_Send(out, 1, MPI_INT, peer, 1, other) && !MPI_Send(out, 2, MPI_INT, peer, 3, MPI_COMM_WORLD));
      CHECK(!MPI_Send(out, 1, MPI_INT, peer, 2, MPI_COMM_WORLD) && !MPI_Ssend(out, 2, MPI_INT, peer, 2, MPI_COMM_WORLD));
      CHECK(!MPI_Send(out, LONG, MPI_INT, peer, 4, MPI_COMM_WORLD) && !MPI_Send(out, 0, MPI_INT, peer, 5, MPI_COMM_WORLD));
      /* Three messages of one tag, for three receives, two of which were posted before. */
      for (int i = 0; i < 3; i++) {
        out[0] = 100 * round + i;
        CHECK(!MPI_Send(out, 1, MPI_INT, peer, 6, MPI_COMM_WORLD));
      }
    } else {
      CHECK(!MPI_Irecv(&early[0], 1, MPI_INT, peer, 6, MPI_COMM_WORLD, &requests[0]));
      CHECK(!MPI_Recv(in, 2, MPI_INT, peer, 1, MPI_COMM_WORLD, &status) && in[0] == round && in[1] == -round);
      CHECK(status.MPI_SOURCE == peer && status.MPI_TAG == 1);
      CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == 2);
      CHECK(!MPI_Send(in, 1, MPI_INT, peer, 1, MPI_COMM_WORLD));
      CHECK(!MPI_Irecv(&early[1], 1, MPI_INT, MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, &requests[1]));
      in[0] = in[1] = 7777;
      CHECK(!MPI_Recv(in, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, &status) && in[0] == round && in[1] == 7777);
      CHECK(!MPI_Recv(in, 2, MPI_INT, peer, 2, MPI_COMM_WORLD, &status) && in[1] == -round);
      in[2] = in[3] = in[4] = 7777;
      CHECK(!MPI_Recv(in, 5, MPI_INT, peer, 3, MPI_COMM_WORLD, &status) && in[1] == -round);
      CHECK(in[2] == 7777 && in[3] == 7777 && in[4] == 7777);
      CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == 2);
      CHECK(!MPI_Recv(in, 1, MPI_INT, peer, 1, other, &status) && in[0] == round);
      CHECK(!MPI_Recv(in, LONG, MPI_INT, peer, 4, MPI_COMM_WORLD, &status) && in[0] == round);
      CHECK(!MPI_Recv(in, 0, MPI_INT, peer, 5, MPI_COMM_WORLD, &status));
      CHECK(!MPI_Recv(in, 1, MPI_INT, peer, 6, MPI_COMM_WORLD, &status) && in[0] == 100 * round + 2);
      CHECK(!MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) && early[0] == 100 * round && early[1] == 100 * round + 1);
    }
  }
  if (peer < size) {
    CHECK(!MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN));
    if (rank < peer) CHECK(!MPI_Send(out, 2, MPI_INT, peer, 8, other));
    else FAILS(MPI_ERR_TRUNCATE, MPI_Recv(in, 1, MPI_INT, peer, 8, other, &status));
  }
  CHECK(!MPI_Comm_free(&other));
}

/* Long messages, received in another order than sent, probed, cut off, from any source and into a type with gaps. The sender overwrites
   each one as soon as its send is complete. There are enough rounds for every way of long messages to be tried. */
/* Messages in memory that the kernel reads for no other process, as it is with memory of devices, arrive all the same. */
static void secret_memory(void) {
  enum { ROUNDS = 40, LEN = 512 << 10 };
  static unsigned char in[LEN];
  int next = (rank + 1) % size, before = (rank + size - 1) % size;
  int fd = (int)syscall(447 /* memfd_secret */, 0);
  unsigned char *out = MAP_FAILED;
  if (fd >= 0 && !ftruncate(fd, LEN)) out = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (out == MAP_FAILED) {
    if (!rank) printf("skipped: no secret memory\n");
    out = malloc(LEN);
  }
  for (int round = 0; round < ROUNDS; round++) {
    int len = round % 2 ? LEN : 100000;
    memset(out, round + rank, LEN);
    CHECK(!MPI_Sendrecv(out, len, MPI_BYTE, next, 8, in, len, MPI_BYTE, before, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (int i = 0; i < len; i++) CHECK(in[i] == (unsigned char)(round + before));
  }
}

static void long_messages(void) {
  enum { ROUNDS = 120, SHORTER = 30000, LONGER = 150000, KEPT = 1000 };
  static int first[SHORTER], second[LONGER], gapped[2 * SHORTER];
  int peer = rank ^ 1, count, done, index;
  MPI_Request requests[3];
  MPI_Status status;
  MPI_Message message;
  MPI_Datatype every_other;
  MPI_Comm other;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &other) && !MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN));
  CHECK(!MPI_Type_vector(SHORTER, 1, 2, MPI_INT, &every_other) && !MPI_Type_commit(&every_other));
  for (int round = 0; round < ROUNDS && peer < size; round++) {
    if (rank < peer) {
      for (int i = 0; i < SHORTER; i++) first[i] = round + i;
      for (int i = 0; i < LONGER; i++) second[i] = round - i;
      CHECK(!MPI_Isend(first, SHORTER, MPI_INT, peer, 1, other, &requests[0]));
      CHECK(!MPI_Isend(second, LONGER, MPI_INT, peer, 2, other, &requests[1]));
      CHECK(!MPI_Isend(&round, 1, MPI_INT, peer, 3, other, &requests[2]));
      for (int left = 3; left > 0; left--) {
        CHECK(!MPI_Waitany(3, requests, &index, MPI_STATUS_IGNORE));
        if (index < 2) memset(index ? second : first, 0xee, index ? sizeof second : sizeof first);
      }
      continue;
    }
    memset(first, 0, sizeof first), memset(second, 0, sizeof second), memset(gapped, 0, sizeof gapped);
    CHECK(!MPI_Irecv(second, LONGER, MPI_INT, peer, 4, other, &requests[0]) && !MPI_Cancel(&requests[0]));
    CHECK(!MPI_Wait(&requests[0], &status) && !MPI_Test_cancelled(&status, &done) && done);
    CHECK(!MPI_Recv(&done, 1, MPI_INT, peer, 3, other, &status) && done == round);
    CHECK(!MPI_Mprobe(MPI_ANY_SOURCE, 2, other, &message, &status));
    CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == LONGER && status.MPI_SOURCE == peer);
    if (round % 3) CHECK(!MPI_Mrecv(second, LONGER, MPI_INT, &message, &status));
    else FAILS(MPI_ERR_TRUNCATE, MPI_Mrecv(second, KEPT, MPI_INT, &message, &status));
    for (int i = 0; i < LONGER; i++) CHECK(second[i] == (round % 3 || i < KEPT ? round - i : 0));
    if (round % 2) CHECK(!MPI_Recv(gapped, 1, every_other, MPI_ANY_SOURCE, MPI_ANY_TAG, other, &status));
    else CHECK(!MPI_Recv(first, SHORTER, MPI_INT, peer, 1, other, &status));
    for (int i = 0; i < SHORTER; i++) CHECK((round % 2 ? gapped[2 * i] : first[i]) == round + i && !gapped[2 * i + 1]);
    CHECK(status.MPI_TAG == 1 && status.MPI_SOURCE == peer);
  }
  CHECK(!MPI_Type_free(&every_other) && !MPI_Comm_free(&other));
}

/* Run by two threads, which wait for messages of the same rank, each with its own tag. */
static void *exchange(void *tag_) {
  int tag = *(int *)tag_, peer = rank ^ 1, got;
  for (int i = 0; i < 300; i++) {
    int out = 1000 * tag + i;
    if (rank < peer) CHECK(!MPI_Send(&out, 1, MPI_INT, peer, tag, MPI_COMM_WORLD));
    CHECK(!MPI_Recv(&got, 1, MPI_INT, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && got == out);
    if (rank > peer) CHECK(!MPI_Send(&out, 1, MPI_INT, peer, tag, MPI_COMM_WORLD));
  }
  return NULL;
}

static void threads(void) {
  pthread_t other;
  int tags[2] = {11, 12};
  if ((rank ^ 1) >= size) return;
  CHECK(!pthread_create(&other, NULL, exchange, &tags[1]));
  exchange(&tags[0]);
  CHECK(!pthread_join(other, NULL));
}

/* A rank inside a collective still continues the long message that it has begun to send. */
static void progress_inside_collectives(void) {
  static double data[100000];
  if (size < 2) return;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) {
    data[99999] = 7;
    CHECK(!MPI_Isend(data, 100000, MPI_DOUBLE, 1, 1, MPI_COMM_WORLD, &request));
  }
  if (rank == 1) {
    CHECK(!MPI_Recv(data, 100000, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && data[99999] == 7);
    /* More than a ring holds; rank 0 receives nothing of it before the barrier. */
    for (int i = 0; i < 50; i++) CHECK(!MPI_Send(data, 2000, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD));
  }
  CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
  for (int i = 0; i < 50 && rank == 0; i++) CHECK(!MPI_Recv(data, 2000, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

/* The receiver posts its receive only after the sender has started to flush: if that call waited, it would wait for ever. */
static void flushes(void) {
  static double data[200000];
  const int bytes = sizeof data + MPI_BSEND_OVERHEAD;
  if (size < 2 || rank > 1) return;
  if (rank == 1) {
    CHECK(!MPI_Recv(NULL, 0, MPI_BYTE, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(!MPI_Recv(data, 200000, MPI_DOUBLE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && data[199999] == 3);
    return;
  }
  void *buffer = malloc(bytes);
  MPI_Request flush[2];
  int done = 1;
  CHECK(!MPI_Buffer_attach(buffer, bytes));
  CHECK(!MPI_Buffer_iflush(&flush[0]) && !MPI_Wait(&flush[0], MPI_STATUS_IGNORE) && flush[0] == MPI_REQUEST_NULL);
  data[199999] = 3;
  CHECK(!MPI_Bsend(data, 200000, MPI_DOUBLE, 1, 5, MPI_COMM_WORLD));
  CHECK(!MPI_Buffer_iflush(&flush[0]) && !MPI_Buffer_iflush(&flush[1]));
  CHECK(!MPI_Test(&flush[0], &done, MPI_STATUS_IGNORE) && !done && "nobody receives yet");
  CHECK(!MPI_Send(NULL, 0, MPI_BYTE, 1, 6, MPI_COMM_WORLD));
  CHECK(!MPI_Waitall(2, flush, MPI_STATUSES_IGNORE));
  CHECK(!MPI_Buffer_detach(&buffer, &done) && done == bytes);
  free(buffer);
}

int main(int argc, char **argv) {
  int level;
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) && level == MPI_THREAD_MULTIPLE);
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  ring(), wildcards();
  /* The receives with wildcards must not take the messages of the tests that follow. */
  CHECK(!MPI_Barrier(MPI_COMM_WORLD));
  requests(), datatypes(), waiting_receives(), long_messages(), secret_memory(), threads(), progress_inside_collectives();
  flushes();
  CHECK(!MPI_Finalize());
  return 0;
}
