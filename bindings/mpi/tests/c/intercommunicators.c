/* Intercommunicators: how they are made, their properties, and messages and collectives between their groups. Two to five ranks. */
#include "test.h"

/* The world in two groups, the even and the odd ranks. `local` and `remote` are the groups' sizes, `own` is the rank in the local group. */
static MPI_Comm half, inter;
static int side, own, local, remote;

/* The rank in the world of rank `at` of the remote group. */
static int over_there(int at) { return 2 * at + !side; }

static void make(void) {
  int flag = 0, result;
  MPI_Group group, world, there;
  side = rank % 2;
  CHECK(!MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half) && !MPI_Comm_test_inter(half, &flag) && !flag);
  /* The leaders are the last ranks of both groups. */
  CHECK(!MPI_Comm_size(half, &local));
  remote = size - local;
  CHECK(!MPI_Intercomm_create(half, local - 1, MPI_COMM_WORLD, over_there(remote - 1), 12, &inter));
  CHECK(!MPI_Comm_test_inter(inter, &flag) && flag);
  CHECK(!MPI_Comm_rank(inter, &own) && own == rank / 2);
  CHECK(!MPI_Comm_size(inter, &flag) && flag == local && !MPI_Comm_remote_size(inter, &flag) && flag == remote);
  CHECK(!MPI_Comm_group(MPI_COMM_WORLD, &world) && !MPI_Comm_group(inter, &group) && !MPI_Comm_remote_group(inter, &there));
  for (int at = 0; at < remote; at++) CHECK(!MPI_Group_translate_ranks(there, 1, &at, world, &result) && result == over_there(at));
  for (int at = 0; at < local; at++) CHECK(!MPI_Group_translate_ranks(group, 1, &at, world, &result) && result == 2 * at + side);
  CHECK(!MPI_Group_free(&world) && !MPI_Group_free(&group) && !MPI_Group_free(&there));
}

static void messages(MPI_Comm comm) {
  int got = -1, number, flag;
  MPI_Status status;
  MPI_Request request;
  MPI_Message message;
  /* Rank r of one group exchanges messages with rank r of the other, where both exist. */
  if (own < remote && own < local) {
    int mine = 100 * rank;
    CHECK(!MPI_Isend(&mine, 1, MPI_INT, own, 7, comm, &request));
    CHECK(!MPI_Probe(MPI_ANY_SOURCE, 7, comm, &status) && status.MPI_SOURCE == own);
    CHECK(!MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status));
    CHECK(got == 100 * over_there(own) && status.MPI_SOURCE == own && status.MPI_TAG == 7);
    CHECK(!MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(!MPI_Sendrecv(&rank, 1, MPI_INT, own, 8, &number, 1, MPI_INT, own, 8, comm, &status) && number == over_there(own));
    CHECK(status.MPI_SOURCE == own);
  }
  CHECK(!MPI_Barrier(comm));
  /* All ranks of one group send to the first rank of the other, and each gets an answer. */
  if (side == 1) {
    static int many[30000];
    for (int i = 0; i < 30000; i++) many[i] = rank + i;
    CHECK(!MPI_Ssend(many, 30000, MPI_INT, 0, own, comm) && !MPI_Recv(&got, 1, MPI_INT, 0, 3, comm, &status) && got == own);
  } else if (own == 0) {
    static int many[30000];
    for (int i = 0; i < remote; i++) {
      CHECK(!MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &message, &status) && status.MPI_SOURCE == status.MPI_TAG);
      CHECK(!MPI_Mrecv(many, 30000, MPI_INT, &message, &status) && many[29999] == over_there(status.MPI_SOURCE) + 29999);
      CHECK(!MPI_Send(&status.MPI_SOURCE, 1, MPI_INT, status.MPI_SOURCE, 3, comm));
    }
  }
  /* Messages between the groups do not arrive on the world's communicator. */
  CHECK(!MPI_Barrier(comm) && !MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status) && !flag);
}

/* The `root` argument that this rank must pass if the root is rank `at` of group `of`. */
static int as_root(int of, int at) { return of != side ? at : at == own ? MPI_ROOT : MPI_PROC_NULL; }

static void rooted(MPI_Comm comm, int of, int at) {
  int root = as_root(of, at), value[16], all[16], counts[8], places[8];
  /* Every second element of a vector, so that the data must be packed. */
  MPI_Datatype sparse;
  CHECK(!MPI_Type_vector(3, 1, 2, MPI_INT, &sparse) && !MPI_Type_commit(&sparse));
  for (int i = 0; i < 16; i++) value[i] = root == MPI_ROOT ? 10 * at + i : -1;
  CHECK(!MPI_Bcast(value, 1, sparse, root, comm));
  for (int i = 0; i < 5; i++) CHECK(value[i] == (root == MPI_ROOT ? 10 * at + i : root == MPI_PROC_NULL || i % 2 ? -1 : 10 * at + i));
  CHECK(!MPI_Type_free(&sparse));

  for (int i = 0; i < 16; i++) all[i] = -1;
  for (int i = 0; i < remote; i++) counts[i] = i + 1, places[i] = i * (i + 1) / 2;
  value[0] = value[1] = value[2] = rank;
  CHECK(!MPI_Gather(value, 1, MPI_INT, all, 1, MPI_INT, root, comm));
  for (int i = 0; i < remote; i++) CHECK(all[i] == (root == MPI_ROOT ? over_there(i) : -1));
  CHECK(!MPI_Gatherv(value, own + 1, MPI_INT, all, counts, places, MPI_INT, root, comm));
  for (int i = 0; root == MPI_ROOT && i < remote; i++)
    for (int j = 0; j <= i; j++) CHECK(all[places[i] + j] == over_there(i));

  int parts[16], part[4] = {-1, -1, -1, -1};
  for (int i = 0; i < 16; i++) parts[i] = i + at;
  CHECK(!MPI_Scatter(parts, 1, MPI_INT, part, 1, MPI_INT, root, comm) && part[0] == (root >= 0 ? own + at : -1));
  CHECK(!MPI_Scatterv(parts, counts, places, MPI_INT, part, own + 1, MPI_INT, root, comm));
  for (int j = 0; root >= 0 && j <= own; j++) CHECK(part[j] == own * (own + 1) / 2 + j + at);

  int sum = -1, expected = 0;
  for (int i = 0; i < remote; i++) expected += over_there(i);
  CHECK(!MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, root, comm) && sum == (root == MPI_ROOT ? expected : -1));
}

/* Products of 2 x 2 matrices: the order of ranks matters. */
static void multiply(void *left, void *right, int *count, MPI_Datatype *type) {
  (void)type;
  for (long *a = left, *b = right; *count; --*count, a += 4, b += 4) {
    long c[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
    memcpy(b, c, sizeof c);
  }
}

static void to_all(MPI_Comm comm) {
  int all[16], counts[8], places[8], mine[16], sum, expected = 0;
  for (int i = 0; i < remote; i++) counts[i] = i + 1, places[i] = i * (i + 1) / 2, expected += over_there(i);
  for (int i = 0; i < 16; i++) mine[i] = rank;
  CHECK(!MPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, comm));
  for (int i = 0; i < 2 * remote; i++) CHECK(all[i] == over_there(i / 2));
  CHECK(!MPI_Allgatherv(mine, own + 1, MPI_INT, all, counts, places, MPI_INT, comm));
  for (int i = 0; i < remote; i++)
    for (int j = 0; j <= i; j++) CHECK(all[places[i] + j] == over_there(i));
  /* One of the groups sends nothing. */
  all[0] = -1;
  CHECK(!MPI_Allgather(mine, side, MPI_INT, all, !side, MPI_INT, comm) && all[0] == (side ? -1 : over_there(0)));
  for (int i = 0; i < remote; i++) mine[i] = 10 * rank + i;
  CHECK(!MPI_Alltoall(mine, 1, MPI_INT, all, 1, MPI_INT, comm));
  for (int i = 0; i < remote; i++) CHECK(all[i] == 10 * over_there(i) + own);
  int ones[8] = {1, 1, 1, 1, 1, 1, 1, 1}, at[8] = {0, 1, 2, 3, 4, 5, 6, 7}, bytes[8];
  MPI_Datatype types[8];
  for (int i = 0; i < 8; i++) bytes[i] = 4 * i, types[i] = MPI_INT;
  CHECK(!MPI_Alltoallv(mine, ones, at, MPI_INT, all, ones, at, MPI_INT, comm) && all[remote - 1] == 10 * over_there(remote - 1) + own);
  memset(all, -1, sizeof all);
  CHECK(!MPI_Alltoallw(mine, ones, bytes, types, all, ones, bytes, types, comm));
  for (int i = 0; i < remote; i++) CHECK(all[i] == 10 * over_there(i) + own);

  CHECK(!MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm) && sum == expected);
  MPI_Op product;
  MPI_Datatype matrix;
  long m[4] = {1, rank + 1, 0, 1}, p[4], r[4] = {1, 0, 0, 1};
  m[2] = rank % 3;
  CHECK(!MPI_Op_create(multiply, 0, &product) && !MPI_Type_contiguous(4, MPI_LONG, &matrix) && !MPI_Type_commit(&matrix));
  for (int i = 0; i < remote; i++) {
    long next[4] = {1, over_there(i) + 1, over_there(i) % 3, 1}, left[4];
    int n = 1;
    memcpy(left, r, sizeof r), multiply(left, next, &n, NULL), memcpy(r, next, sizeof r);
  }
  CHECK(!MPI_Allreduce(m, p, 1, matrix, product, comm) && !memcmp(p, r, sizeof r));
  CHECK(!MPI_Op_free(&product) && !MPI_Type_free(&matrix));
  /* Vectors must have the same length in both groups: the product of the groups' sizes. */
  int length = local * remote, block[16], vector[64], blocks[8];
  for (int i = 0; i < length; i++) vector[i] = i + rank;
  for (int i = 0; i < local; i++) blocks[i] = remote;
  CHECK(!MPI_Reduce_scatter(vector, block, blocks, MPI_INT, MPI_SUM, comm));
  for (int i = 0; i < remote; i++) CHECK(block[i] == remote * (own * remote + i) + expected);
  memset(block, -1, sizeof block);
  CHECK(!MPI_Reduce_scatter_block(vector, block, remote, MPI_INT, MPI_SUM, comm));
  for (int i = 0; i < remote; i++) CHECK(block[i] == remote * (own * remote + i) + expected);
}

/* Nonblocking collectives, and persistent ones that are started several times. */
static void started(MPI_Comm comm) {
  int value = side ? -1 : 77, sum = -1, expected = 0, all[8];
  MPI_Request requests[3], again;
  for (int i = 0; i < remote; i++) expected += over_there(i);
  CHECK(!MPI_Ibcast(&value, 1, MPI_INT, as_root(0, 0), comm, &requests[0]));
  CHECK(!MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm, &requests[1]));
  CHECK(!MPI_Iallgather(&rank, 1, MPI_INT, all, 1, MPI_INT, comm, &requests[2]));
  CHECK(!MPI_Waitall(3, requests, MPI_STATUSES_IGNORE) && value == 77 && sum == expected);
  for (int i = 0; i < remote; i++) CHECK(all[i] == over_there(i));
  CHECK(!MPI_Allreduce_init(&value, &sum, 1, MPI_INT, MPI_MAX, comm, MPI_INFO_NULL, &again));
  for (int round = 0; round < 3; round++) {
    value = 10 * round + side;
    CHECK(!MPI_Start(&again) && !MPI_Wait(&again, MPI_STATUS_IGNORE) && sum == 10 * round + !side);
  }
  CHECK(!MPI_Request_free(&again));
}

static int copied;
static int copy(MPI_Comm comm, int keyval, void *extra, void *in, void *out, int *flag) {
  (void)comm, (void)keyval, (void)extra;
  copied++;
  *(void **)out = in;
  *flag = 1;
  return MPI_SUCCESS;
}

static void children(void) {
  int result, flag, key;
  void *value;
  MPI_Comm twin, other, merged;
  MPI_Request request;
  CHECK(!MPI_Comm_create_keyval(copy, MPI_COMM_NULL_DELETE_FN, &key, NULL) && !MPI_Comm_set_attr(inter, key, &copied));
  CHECK(!MPI_Comm_dup(inter, &twin) && copied == 1 && !MPI_Comm_get_attr(twin, key, &value, &flag) && flag && value == &copied);
  CHECK(!MPI_Comm_delete_attr(inter, key) && !MPI_Comm_free_keyval(&key));
  CHECK(!MPI_Comm_compare(inter, twin, &result) && result == MPI_CONGRUENT);
  CHECK(!MPI_Comm_compare(inter, inter, &result) && result == MPI_IDENT);
  CHECK(!MPI_Comm_compare(inter, half, &result) && result == MPI_UNEQUAL);
  messages(twin);
  CHECK(!MPI_Comm_idup(twin, &other, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE) && !MPI_Comm_free(&twin));
  messages(other), to_all(other);
  CHECK(!MPI_Comm_free(&other));
  /* Merge with either group first, and, when both pass 0, in any order. */
  for (int high = 0; high < 3; high++) {
    CHECK(!MPI_Intercomm_merge(inter, high == 2 ? 0 : side == high, &merged) && !MPI_Comm_size(merged, &result) && result == size);
    CHECK(!MPI_Comm_test_inter(merged, &flag) && !flag && !MPI_Comm_rank(merged, &result));
    if (high < 2) CHECK(result == (side == high ? remote + own : own));
    int sum = 0, expected = size * (size - 1) / 2;
    CHECK(!MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, merged) && sum == expected && !MPI_Comm_free(&merged));
  }
  /* Split into pairs; into one with ranks in reverse order; and with no ranks of one side. */
  CHECK(!MPI_Comm_split(inter, own, 0, &other));
  CHECK((other != MPI_COMM_NULL) == (own < remote));
  if (other != MPI_COMM_NULL) {
    int there = -1;
    CHECK(!MPI_Comm_remote_size(other, &result) && result == 1);
    CHECK(!MPI_Allreduce(&rank, &there, 1, MPI_INT, MPI_SUM, other) && there == over_there(own) && !MPI_Comm_free(&other));
  }
  CHECK(!MPI_Comm_split(inter, 5, -own, &other) && !MPI_Comm_rank(other, &result) && result == local - 1 - own);
  CHECK(!MPI_Comm_free(&other));
  CHECK(!MPI_Comm_split(inter, side ? MPI_UNDEFINED : 1, 0, &other) && other == MPI_COMM_NULL);
  CHECK(!MPI_Comm_split_type(inter, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &other) && other != MPI_COMM_NULL && !MPI_Comm_free(&other));
  /* A communicator of the first ranks of both groups; if one group passes an empty one, there is no communicator. */
  MPI_Group all, first;
  int zero = 0;
  CHECK(!MPI_Comm_group(inter, &all) && !MPI_Group_incl(all, 1, &zero, &first) && !MPI_Comm_create(inter, first, &other));
  CHECK((other != MPI_COMM_NULL) == (own == 0));
  if (own == 0) CHECK(!MPI_Comm_remote_size(other, &result) && result == 1 && !MPI_Barrier(other) && !MPI_Comm_free(&other));
  CHECK(!MPI_Comm_create(inter, side ? MPI_GROUP_EMPTY : first, &other) && other == MPI_COMM_NULL);
  /* If one rank passes a wrong group, the call fails on all ranks. */
  MPI_Group wrong;
  CHECK(!MPI_Comm_remote_group(inter, &wrong));
  FAILS(MPI_ERR_GROUP, MPI_Comm_create(inter, rank == size - 1 ? wrong : first, &other));
  CHECK(!MPI_Group_free(&wrong) && !MPI_Group_free(&all) && !MPI_Group_free(&first));
}

static void from_groups(void) {
  int result;
  MPI_Group here, there;
  MPI_Comm other;
  CHECK(!MPI_Comm_group(inter, &here) && !MPI_Comm_remote_group(inter, &there));
  CHECK(!MPI_Intercomm_create_from_groups(here, 0, there, 0, "pair", MPI_INFO_NULL, MPI_ERRORS_RETURN, &other));
  CHECK(!MPI_Comm_compare(inter, other, &result) && result == MPI_CONGRUENT);
  messages(other);
  FAILS(MPI_ERR_RANK, MPI_Send(&result, 1, MPI_INT, remote, 0, other));
  CHECK(!MPI_Comm_free(&other));
  FAILS(MPI_ERR_GROUP, MPI_Intercomm_create_from_groups(there, 0, here, 0, "x", MPI_INFO_NULL, MPI_ERRORS_RETURN, &other));
  CHECK(!MPI_Group_free(&here) && !MPI_Group_free(&there));
}

static void misuse(void) {
  int value = 0, coords[1] = {0};
  MPI_Comm other;
  MPI_Win window;
  FAILS(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, remote, 0, inter));
  FAILS(MPI_ERR_ROOT, MPI_Bcast(&value, 1, MPI_INT, remote, inter));
  FAILS(MPI_ERR_ROOT, MPI_Bcast(&value, 1, MPI_INT, MPI_ROOT, half));
  FAILS(MPI_ERR_BUFFER, MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, inter));
  FAILS(MPI_ERR_BUFFER, MPI_Allgather(MPI_IN_PLACE, 0, MPI_INT, coords, 1, MPI_INT, inter));
  FAILS(MPI_ERR_BUFFER, MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_INT, &value, coords, coords, MPI_INT, inter));
  FAILS(MPI_ERR_COMM, MPI_Scan(&value, &value, 1, MPI_INT, MPI_SUM, inter));
  FAILS(MPI_ERR_COMM, MPI_Exscan(&value, coords, 1, MPI_INT, MPI_SUM, inter));
  FAILS(MPI_ERR_COMM, MPI_Cart_create(inter, 1, &local, coords, 0, &other));
  FAILS(MPI_ERR_COMM, MPI_Win_create(&value, 4, 1, MPI_INFO_NULL, inter, &window));
  FAILS(MPI_ERR_COMM, MPI_Comm_create_group(inter, MPI_GROUP_EMPTY, 0, &other));
  FAILS(MPI_ERR_COMM, MPI_Comm_remote_size(half, &value));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_merge(half, 0, &other));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(inter, 0, MPI_COMM_WORLD, 0, 0, &other));
  /* Wrong arguments that only the leader looks at; the rest of the local group gets the error too. */
  FAILS(MPI_ERR_RANK, MPI_Intercomm_create(half, local, MPI_COMM_WORLD, 0, 0, &other));
  FAILS(MPI_ERR_RANK, MPI_Intercomm_create(half, 0, own ? MPI_COMM_NULL : MPI_COMM_WORLD, size, 0, &other));
  FAILS(MPI_ERR_TAG, MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, over_there(0), -1, &other));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(half, 0, MPI_COMM_NULL, over_there(0), 0, &other));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side, 0, &other));
  /* Groups that overlap: both are the whole world. */
  MPI_Comm all;
  CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &all));
  FAILS(MPI_ERR_COMM, MPI_Intercomm_create(all, 0, MPI_COMM_WORLD, 0, 0, &other));
  CHECK(!MPI_Comm_free(&all));
  if (own > 0) FAILS(MPI_ERR_ARG, MPI_Intercomm_merge(inter, own == 1, &other));
  else if (local > 1 || remote > 1) FAILS(MPI_ERR_ARG, MPI_Intercomm_merge(inter, 0, &other));
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) && !MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  make();
  messages(inter);
  for (int of = 0; of < 2; of++)
    for (int at = 0; at < (of == side ? local : remote); at++) rooted(inter, of, at);
  to_all(inter);
  started(inter);
  children();
  from_groups();
  misuse();
  CHECK(!MPI_Barrier(inter) && !MPI_Comm_disconnect(&inter) && inter == MPI_COMM_NULL && !MPI_Comm_free(&half));
  CHECK(!MPI_Finalize());
  return 0;
}
