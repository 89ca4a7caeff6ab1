/* Wrong calls give the standard's error classes, and never a crash. One or two ranks. */
#include "test.h"

static int handled, replacement = -1;
static MPI_Comm_errhandler_fn handler;
static void handler(MPI_Comm *comm, int *code, ...) {
  (void)comm;
  handled++;
  if (replacement >= 0) *code = replacement;
}

/* Lists of counts for one type: without the type, with a negative count, and with another length for the own block. */
static void lists(void) {
  int n = 1, more = 2, place = 0, out[2] = {1, 2}, in[2] = {0};
  MPI_Comm self = MPI_COMM_SELF;
  MPI_Request request;
  FAILS(MPI_ERR_TYPE, MPI_Alltoallv(out, &n, &place, MPI_DATATYPE_NULL, in, &n, &place, MPI_INT, self));
  FAILS(MPI_ERR_TYPE, MPI_Ialltoallv(out, &n, &place, MPI_INT, in, &n, &place, MPI_DATATYPE_NULL, self, &request));
  FAILS(MPI_ERR_TYPE, MPI_Allgatherv(out, n, MPI_INT, in, &n, &place, MPI_DATATYPE_NULL, self));
  FAILS(MPI_ERR_COUNT, MPI_Alltoallv(out, &n, &place, MPI_INT, in, &more, &place, MPI_INT, self));
  FAILS(MPI_ERR_COUNT, MPI_Ialltoallv(out, &more, &place, MPI_INT, in, &n, &place, MPI_INT, self, &request));
  FAILS(MPI_ERR_COUNT, MPI_Gatherv(out, more, MPI_INT, in, &n, &place, MPI_INT, 0, self));
  FAILS(MPI_ERR_COUNT, MPI_Scatterv(out, &n, &place, MPI_INT, in, more, MPI_INT, 0, self));
  FAILS(MPI_ERR_COUNT, MPI_Iallgatherv(out, more, MPI_INT, in, &n, &place, MPI_INT, self, &request));
  n = 0;
  CHECK(!MPI_Alltoallv(out, &n, &place, MPI_DATATYPE_NULL, in, &n, &place, MPI_DATATYPE_NULL, self) && !in[0] && !in[1]);
}

/* A message that ends within a value of the receive's type is of another type. */
static void broken_values(void) {
  const int lengths[2] = {1, 1}, places[2] = {1, 3};
  int value = 7, into[4] = {0}, more[2] = {1, 2};
  MPI_Datatype gaps;
  MPI_Status status;
  CHECK(!MPI_Type_indexed(2, lengths, places, MPI_INT, &gaps) && !MPI_Type_commit(&gaps));
  CHECK(!MPI_Send(&value, 3, MPI_BYTE, 0, 1, MPI_COMM_SELF) && !MPI_Send(&value, 1, MPI_INT, 0, 1, MPI_COMM_SELF));
  FAILS(MPI_ERR_TYPE, MPI_Recv(into, 1, gaps, 0, 1, MPI_COMM_SELF, &status));
  CHECK(!MPI_Recv(into, 1, gaps, 0, 1, MPI_COMM_SELF, &status) && into[1] == 7 && !into[3]);
  for (int way = 0; way < 4 && size > 1; way++) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) CHECK(!MPI_Send(more, way ? 3 : 5, MPI_BYTE, 0, 1, MPI_COMM_WORLD));
    if (rank == 0) FAILS(MPI_ERR_TYPE, MPI_Recv(into, 1, gaps, way % 2 ? 1 : MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &status));
  }
  CHECK(!MPI_Type_free(&gaps));
}

/* A call whose result would overwrite its input fails before anything is sent, and so does MPI_IN_PLACE in the wrong place. */
static void aliases(MPI_Comm comm) {
  int own, n, counts[2] = {1, 1}, places[2] = {0, 1}, bytes[2] = {0, 4}, a[4] = {1, 2, 3, 4}, b[4] = {0};
  MPI_Request request;
  MPI_Datatype types[2] = {MPI_INT, MPI_INT};
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(a, a, 2, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(a, a, 2, MPI_SHORT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Iallreduce(a, a, 2, MPI_INT, MPI_SUM, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(a, MPI_IN_PLACE, 2, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(MPI_IN_PLACE, MPI_IN_PLACE, 2, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Scan(a, a, 2, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_scatter_block(a, a, 1, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_scatter(a, a, counts, MPI_INT, MPI_SUM, comm));
  if (own) FAILS(MPI_ERR_BUFFER, MPI_Exscan(a, a, 2, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(a, 1, MPI_INT, a, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(&a[own], 1, MPI_INT, a, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Iallgather(&a[own], 1, MPI_INT, a, 1, MPI_INT, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(a, 1, MPI_INT, MPI_IN_PLACE, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgatherv(&a[own], 1, MPI_INT, a, counts, places, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgatherv(a, 1, MPI_INT, MPI_IN_PLACE, counts, places, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoall(a, 1, MPI_INT, a, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Ialltoall(a, 1, MPI_INT, a, 1, MPI_INT, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoallv(a, counts, places, MPI_INT, a, counts, places, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoallw(a, counts, bytes, types, a, counts, bytes, types, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Bcast(MPI_IN_PLACE, 1, MPI_INT, 0, comm));
  if (own == n - 1) {
    FAILS(MPI_ERR_BUFFER, MPI_Reduce(a, a, 2, MPI_INT, MPI_SUM, own, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Gather(&a[own], 1, MPI_INT, a, 1, MPI_INT, own, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Gatherv(&a[own], 1, MPI_INT, a, counts, places, MPI_INT, own, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Scatter(a, 1, MPI_INT, &a[own], 1, MPI_INT, own, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Scatterv(a, counts, places, MPI_INT, &a[own], 1, MPI_INT, own, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Scatter(MPI_IN_PLACE, 1, MPI_INT, a, 1, MPI_INT, own, comm));
  } else {
    FAILS(MPI_ERR_BUFFER, MPI_Reduce(MPI_IN_PLACE, a, 2, MPI_INT, MPI_SUM, n - 1, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Reduce(MPI_IN_PLACE, a, 2, MPI_SHORT, MPI_SUM, n - 1, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Gather(MPI_IN_PLACE, 1, MPI_INT, b, 1, MPI_INT, n - 1, comm));
    FAILS(MPI_ERR_BUFFER, MPI_Scatter(a, 1, MPI_INT, MPI_IN_PLACE, 1, MPI_INT, n - 1, comm));
  }
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_local(MPI_IN_PLACE, a, 1, MPI_INT, MPI_SUM));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_local(a, MPI_IN_PLACE, 1, MPI_INT, MPI_SUM));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_local(a, a, 1, MPI_INT, MPI_SUM));
}

/* No data, data at one address of which the types select different parts, and buffers that a rank does not use are no aliases. */
static void no_aliases(MPI_Comm comm) {
  int own, n, memory[4] = {7, 8, 0, 0}, one = 1, sum = 0, lengths[2] = {1, 1};
  MPI_Aint places[2], behind = 8;
  MPI_Datatype first, second, out, in;
  MPI_Comm_rank(comm, &own), MPI_Comm_size(comm, &n);
  CHECK(!MPI_Allreduce(memory, memory, 0, MPI_INT, MPI_SUM, comm) && !MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, comm));
  CHECK(!MPI_Allgather(NULL, 0, MPI_INT, NULL, 0, MPI_INT, comm) && !MPI_Alltoall(memory, 0, MPI_INT, memory, 0, MPI_INT, comm));
  CHECK(!MPI_Reduce_local(NULL, NULL, 0, MPI_INT, MPI_SUM));
  CHECK(!MPI_Reduce(&one, own ? &one : &sum, 1, MPI_INT, MPI_SUM, 0, comm) && (own || sum == n));
  CHECK(!MPI_Reduce(&one, own ? MPI_IN_PLACE : &sum, 1, MPI_INT, MPI_SUM, 0, comm) && (own || sum == n) && one == 1);
  sum = 1;
  CHECK(!MPI_Reduce(own ? &sum : MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, 0, comm) && sum == (own ? 1 : n));
  CHECK(!MPI_Exscan(&one, own ? &sum : &one, 1, MPI_INT, MPI_SUM, comm) && (!own || sum == own) && one == 1);
  CHECK(!MPI_Exscan(&one, own ? &sum : MPI_IN_PLACE, 1, MPI_INT, MPI_SUM, comm) && (!own || sum == own) && one == 1);
  CHECK(!MPI_Type_contiguous(2, MPI_INT, &first) && !MPI_Type_commit(&first));
  CHECK(!MPI_Type_create_hindexed(1, lengths, &behind, first, &second) && !MPI_Type_commit(&second));
  CHECK(!MPI_Gather(memory, 1, first, memory, 1, second, 0, MPI_COMM_SELF) && memory[2] == 7 && memory[3] == 8);
  /* Absolute addresses, with MPI_BOTTOM as both buffers. */
  CHECK(!MPI_Get_address(&memory[0], &places[0]) && !MPI_Get_address(&memory[2], &places[1]));
  CHECK(!MPI_Type_create_hindexed(1, lengths, &places[0], first, &out) && !MPI_Type_commit(&out));
  CHECK(!MPI_Type_create_hindexed(1, lengths, &places[1], first, &in) && !MPI_Type_commit(&in));
  memory[0] = 5, memory[1] = 6;
  CHECK(!MPI_Allgather(MPI_BOTTOM, 1, out, MPI_BOTTOM, 1, in, MPI_COMM_SELF) && memory[2] == 5 && memory[3] == 6);
  memory[0] = 3;
  CHECK(!MPI_Alltoall(MPI_BOTTOM, 1, out, MPI_BOTTOM, 1, in, MPI_COMM_SELF) && memory[2] == 3);
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(MPI_BOTTOM, 1, out, MPI_BOTTOM, 1, out, MPI_COMM_SELF));
  CHECK(!MPI_Type_free(&first) && !MPI_Type_free(&second) && !MPI_Type_free(&out) && !MPI_Type_free(&in));
}

/* At the edges of a grid, blocks of MPI_PROC_NULL are neither read nor written, so their places may serve for other data. */
static void aliases_of_no_neighbor(MPI_Comm comm) {
  int own, n, whole = 0, a[2] = {-7, -7}, counts[2] = {1, 1}, places[2] = {0, 1};
  MPI_Comm line;
  MPI_Comm_size(comm, &n);
  CHECK(!MPI_Cart_create(comm, 1, &n, &whole, 0, &line) && !MPI_Comm_rank(line, &own));
  CHECK(!MPI_Comm_set_errhandler(line, MPI_ERRORS_RETURN));
  int is_edge = own == 0 || own == n - 1, free_block = own == 0 ? 0 : 1, out[2] = {own, own};
  int *send = is_edge ? &a[free_block] : out;
  a[free_block] = own;
  CHECK(!MPI_Neighbor_allgather(send, 1, MPI_INT, a, 1, MPI_INT, line));
  CHECK((own == 0 || a[0] == own - 1) && (own == n - 1 || a[1] == own + 1) && (!is_edge || a[free_block] == own));
  /* The block for the only neighbour, which is the other one, begins in the free place. */
  int turned[2] = {1, 0}, *from = is_edge ? turned : places;
  CHECK(!MPI_Neighbor_alltoallv(is_edge ? a : out, counts, from, MPI_INT, a, counts, places, MPI_INT, line));
  CHECK((own == 0 || a[0] == own - 1) && (own == n - 1 || a[1] == own + 1) && (!is_edge || a[free_block] == own));
  if (n > 1) FAILS(MPI_ERR_BUFFER, MPI_Neighbor_alltoall(a, 1, MPI_INT, a, 1, MPI_INT, line));
  CHECK(!MPI_Comm_free(&line));
}

/* A call that fails to make an object leaves the null handle. An input of the same call is still read. */
static void null_handles(void) {
  MPI_Comm comm = MPI_COMM_WORLD;
  MPI_Datatype types[2] = {MPI_INT, MPI_DOUBLE}, wrong = MPI_INT;
  MPI_Group group = MPI_GROUP_EMPTY;
  MPI_Op op = MPI_SUM;
  MPI_Info info = MPI_INFO_ENV;
  MPI_Errhandler handler = MPI_ERRORS_RETURN;
  MPI_Win window, no_window = MPI_WIN_NULL;
  MPI_File file;
  MPI_Message message;
  MPI_Session session;
  MPI_Request request;
  int value, lengths[2] = {1, 1}, bytes;
  MPI_Aint places[2] = {0, 8};
  memset(&window, 0x55, sizeof window), memset(&file, 0x55, sizeof file), memset(&message, 0x55, sizeof message);
  memset(&session, 0x55, sizeof session), memset(&request, 0x55, sizeof request);
  CHECK(MPI_Comm_dup(MPI_COMM_NULL, &comm) && comm == MPI_COMM_NULL);
  CHECK(MPI_Type_contiguous(-1, MPI_INT, &wrong) && wrong == MPI_DATATYPE_NULL);
  CHECK(MPI_Group_union(MPI_GROUP_NULL, MPI_GROUP_EMPTY, &group) && group == MPI_GROUP_NULL);
  CHECK(MPI_Op_create(NULL, 1, &op) && op == MPI_OP_NULL && MPI_Info_dup(MPI_INFO_NULL, &info) && info == MPI_INFO_NULL);
  CHECK(MPI_Comm_get_errhandler(MPI_COMM_NULL, &handler) && handler == MPI_ERRHANDLER_NULL);
  CHECK(MPI_Win_create(&value, -1, 1, MPI_INFO_NULL, MPI_COMM_SELF, &window) && window == no_window);
  CHECK(MPI_File_open(MPI_COMM_SELF, "", 0, MPI_INFO_NULL, &file) && file == MPI_FILE_NULL);
  CHECK(MPI_Mprobe(0, -7, MPI_COMM_SELF, &message, MPI_STATUS_IGNORE) && message == MPI_MESSAGE_NULL);
  CHECK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRHANDLER_NULL, &session) && session == MPI_SESSION_NULL);
  CHECK(MPI_Isend(&value, 1, MPI_INT, -7, 0, MPI_COMM_SELF, &request) && request == MPI_REQUEST_NULL);
  memset(&request, 0x55, sizeof request);
  CHECK(MPI_Ibarrier(MPI_COMM_NULL, &request) && request == MPI_REQUEST_NULL);
  CHECK(!MPI_Type_create_struct(2, lengths, places, types, &types[0]) && !MPI_Type_size(types[0], &bytes) && bytes == 12);
  CHECK(!MPI_Type_free(&types[0]));
}

/* Elements at NULL are an error, whatever the call, and are neither read nor written. */
static void no_buffers(MPI_Comm comm) {
  int own, value = 5, room = 0, position = 0, count[2] = {1, 1}, place[2] = {0, 0};
  MPI_Aint at = 0;
  char packed[64];
  MPI_Datatype every_other;
  MPI_Request request;
  MPI_Comm_rank(comm, &own);
  CHECK(!MPI_Type_vector(2, 1, 2, MPI_INT, &every_other) && !MPI_Type_commit(&every_other));
  FAILS(MPI_ERR_BUFFER, MPI_Send(NULL, 1, every_other, own, 0, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Recv(NULL, 1, every_other, own, 0, comm, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_BUFFER, MPI_Gatherv(&value, 1, MPI_INT, NULL, count, place, MPI_INT, own, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Gatherv(NULL, 1, MPI_INT, &room, count, place, MPI_INT, own, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Scatterv(NULL, count, place, MPI_INT, &room, 1, MPI_INT, own, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgatherv(&value, 1, MPI_INT, NULL, count, place, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoallv(NULL, count, place, MPI_INT, &room, count, place, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Bcast(NULL, 1, MPI_INT, 0, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(&value, 1, MPI_INT, NULL, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(NULL, 1, MPI_INT, &room, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoall(NULL, 1, MPI_INT, &room, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(NULL, &room, 1, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(&value, NULL, 1, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce(&value, NULL, 1, MPI_INT, MPI_SUM, own, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Reduce_scatter_block(&value, NULL, 1, MPI_INT, MPI_SUM, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Ialltoall(&value, 1, MPI_INT, NULL, 1, MPI_INT, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Bcast(NULL, 1, every_other, own, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Ibcast(NULL, 1, MPI_INT, own, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Iallreduce(NULL, &room, 1, MPI_INT, MPI_SUM, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Iallreduce(&value, NULL, 1, MPI_INT, MPI_SUM, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Iscan(&value, NULL, 1, MPI_INT, MPI_SUM, comm, &request));
  FAILS(MPI_ERR_BUFFER, MPI_Pack(NULL, 1, MPI_INT, packed, 64, &position, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Pack(&value, 1, MPI_INT, NULL, 64, &position, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Unpack(NULL, 64, &position, &room, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Unpack(packed, 64, &position, NULL, 1, MPI_INT, comm));
  FAILS(MPI_ERR_BUFFER, MPI_Pack_external("external32", NULL, 1, MPI_INT, packed, 64, &at));
  FAILS(MPI_ERR_BUFFER, MPI_Unpack_external("external32", NULL, 64, &at, &room, 1, MPI_INT));
  CHECK(position == 0 && at == 0 && room == 0 && !MPI_Type_free(&every_other));
}

static void no_buffers_for_windows(MPI_Comm comm) {
  int own, value = 5, room = 0, memory = 7;
  MPI_Win win;
  MPI_Comm_rank(comm, &own);
  CHECK(!MPI_Win_create(&memory, sizeof memory, 1, MPI_INFO_NULL, comm, &win) && !MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
  CHECK(!MPI_Win_fence(0, win));
  FAILS(MPI_ERR_BUFFER, MPI_Put(NULL, 1, MPI_INT, own, 0, 1, MPI_INT, win));
  FAILS(MPI_ERR_BUFFER, MPI_Get(NULL, 1, MPI_INT, own, 0, 1, MPI_INT, win));
  FAILS(MPI_ERR_BUFFER, MPI_Accumulate(NULL, 1, MPI_INT, own, 0, 1, MPI_INT, MPI_SUM, win));
  FAILS(MPI_ERR_BUFFER, MPI_Fetch_and_op(&value, NULL, MPI_INT, own, 0, MPI_SUM, win));
  FAILS(MPI_ERR_BUFFER, MPI_Compare_and_swap(&value, NULL, &room, MPI_INT, own, 0, win));
  CHECK(!MPI_Fetch_and_op(NULL, &room, MPI_INT, own, 0, MPI_NO_OP, win) && !MPI_Put(NULL, 0, MPI_INT, own, 0, 0, MPI_INT, win));
  CHECK(!MPI_Win_fence(0, win) && room == 7 && memory == 7 && !MPI_Win_free(&win));
}

/* Only messages can be cancelled, and a partitioned message not even freed while it is under way. */
static void requests_in_progress(void) {
  int sent = 4, received = 0;
  MPI_Request request, two[2];
  CHECK(!MPI_Ibarrier(MPI_COMM_SELF, &request));
  FAILS(MPI_ERR_REQUEST, MPI_Cancel(&request));
  CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(!MPI_Psend_init(&sent, 1, 1, MPI_INT, 0, 3, MPI_COMM_SELF, MPI_INFO_NULL, &two[0]));
  CHECK(!MPI_Precv_init(&received, 1, 1, MPI_INT, 0, 3, MPI_COMM_SELF, MPI_INFO_NULL, &two[1]) && !MPI_Startall(2, two));
  for (int at = 0; at < 2; at++) {
    FAILS(MPI_ERR_REQUEST, MPI_Cancel(&two[at]));
    FAILS(MPI_ERR_REQUEST, MPI_Request_free(&two[at]));
    CHECK(two[at] != MPI_REQUEST_NULL);
  }
  CHECK(!MPI_Pready(0, two[0]) && !MPI_Waitall(2, two, MPI_STATUSES_IGNORE) && received == 4);
  CHECK(!MPI_Request_free(&two[0]) && !MPI_Request_free(&two[1]));
}

/* A program that writes to the value of a predefined attribute changes nothing. */
static void written_attributes(void) {
  int keys[] = {MPI_TAG_UB, MPI_IO, MPI_HOST, MPI_WTIME_IS_GLOBAL, MPI_APPNUM}, flag;
  for (int key = 0; key < 5; key++) {
    int *value = NULL;
    CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, keys[key], &value, &flag) && flag);
    int was = *value;
    *value = 12345;
    CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, keys[key], &value, &flag) && flag && *value == was);
  }
}

/* A hint under another key does not guide a split. */
static void split_by_other_key(void) {
  MPI_Comm comm;
  MPI_Info info;
  CHECK(!MPI_Info_create(&info) && !MPI_Info_set(info, "bogus_key", "mpi_shared_memory"));
  CHECK(!MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_GUIDED, 0, info, &comm) && comm == MPI_COMM_NULL);
  CHECK(!MPI_Info_set(info, "mpi_hw_resource_type", "mpi_shared_memory"));
  CHECK(!MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_HW_GUIDED, 0, info, &comm) && comm != MPI_COMM_NULL);
  CHECK(!MPI_Comm_free(&comm) && !MPI_Info_free(&info));
}

/* The end of a part of an array may be beyond the largest number. */
static void arrays_without_end(void) {
  MPI_Datatype part;
  MPI_Count all = 10, some = 5, most = 0x7fffffffffffffffLL;
  FAILS(MPI_ERR_ARG, MPI_Type_create_subarray_c(1, &all, &some, &most, MPI_ORDER_C, MPI_INT, &part));
  FAILS(MPI_ERR_ARG, MPI_Type_create_subarray_c(1, &all, &most, &some, MPI_ORDER_C, MPI_INT, &part));
}

/* A type of Fortran's is the same at every call, also among the contents of another type. Programs do not free it. */
static void types_of_fortran(void) {
  MPI_Datatype real, other, pair;
  int two;
  MPI_Aint none;
  CHECK(!MPI_Type_create_f90_real(6, 30, &real) && !MPI_Type_create_f90_real(6, 30, &other) && other == real);
  FAILS(MPI_ERR_TYPE, MPI_Type_free(&other));
  CHECK(!MPI_Type_create_f90_complex(6, 30, &other) && other != real && !MPI_Type_create_f90_real(7, 30, &other) && other != real);
  CHECK(!MPI_Type_contiguous(2, real, &pair) && !MPI_Type_get_contents(pair, 1, 0, 1, &two, &none, &other) && other == real);
  CHECK(!MPI_Type_free(&pair));
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
  lists(), broken_values();
  aliases(MPI_COMM_WORLD), aliases(MPI_COMM_SELF), no_aliases(MPI_COMM_WORLD), no_aliases(MPI_COMM_SELF);
  aliases_of_no_neighbor(MPI_COMM_WORLD), aliases_of_no_neighbor(MPI_COMM_SELF), null_handles();
  no_buffers(MPI_COMM_WORLD), no_buffers(MPI_COMM_SELF), no_buffers_for_windows(MPI_COMM_WORLD);
  requests_in_progress(), written_attributes(), split_by_other_key(), types_of_fortran(), arrays_without_end();
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
  /* The call returns the code that the handler leaves. */
  replacement = MPI_ERR_OTHER;
  CHECK(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD) == MPI_ERR_OTHER && handled == 2);
  replacement = MPI_SUCCESS;
  CHECK(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD) == MPI_SUCCESS && handled == 3);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  CHECK(!MPI_Add_error_class(&class) && class > MPI_ERR_LASTCODE && !MPI_Add_error_string(class, "ours"));
  CHECK(!MPI_Error_string(class, text, &length) && !strcmp(text, "ours"));
  /* Every number up to the last code has a text. */
  const int numbers[] = {54, 102, 200, 255, 300, 16382, MPI_ERR_LASTCODE};
  for (int i = 0; i < (int)(sizeof numbers / sizeof *numbers); i++) {
    CHECK(!MPI_Error_string(numbers[i], text, &length) && length > 0 && !MPI_Error_class(numbers[i], &class));
  }
  CHECK(!MPI_Error_class(MPI_ERR_LASTCODE, &class) && class == MPI_ERR_UNKNOWN);
  FAILS(MPI_ERR_ARG, MPI_Error_string(-1, text, &length));
  FAILS(MPI_ERR_ARG, MPI_Add_error_code(MPI_ERR_LASTCODE, &class));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, rank, 0, &comm));
  CHECK(!MPI_Error_string(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD), text, &length) && strstr(text, "communicator of"));
  CHECK(!MPI_Finalize() && !MPI_Finalized(&flag) && flag);
  FAILS(MPI_ERR_OTHER, MPI_Barrier(MPI_COMM_WORLD));
  FAILS(MPI_ERR_OTHER, MPI_Finalize());
  return 0;
}
