/* Random legal programs. Each makes communicators, and runs scenes on them: batches of operations of all kinds in flight, mail that is
   matched by wildcards, windows and others. Every rank computes from the seed what all the others do, and compares its memory with that.
   Arguments: the first seed, and the number of programs. Up to eight ranks. */
#include "random/packs.h"
#include <pthread.h>

enum { GROUPS = 7 };
static group common; /* of all threads */
static u64 current;  /* the seed of the program that runs, or 0 */

/* Completes what a group says of itself: all ranks know it, members or not. */
static void name_group(group *c, const char *name) {
  snprintf(c->name, sizeof c->name, "%s", name);
  c->me = -1;
  for (int i = 0; i < c->n; i++)
    if (c->members[i] == rank) c->me = i;
  if (!c->is_inter) c->n_peers = c->n, memcpy(c->peers, c->members, sizeof c->members);
  c->n_all = 0;
  for (int i = 0; i < size; i++) {
    int is_in = 0;
    for (int k = 0; k < c->n; k++) is_in |= c->members[k] == i;
    for (int k = 0; k < c->n_peers; k++) is_in |= c->peers[k] == i;
    if (is_in) c->all[c->n_all++] = i;
  }
}

/* Asks for the neighbours of every member, and tells them to all ranks of the world. */
static void learn_neighbors(group *c) {
  int mine[26] = {0}, all[MOST_RANKS * 26], kind, weighted;
  if (c->me >= 0) {
    CHECK(!MPI_Topo_test(c->comm, &kind));
    if (kind == MPI_CART) {
      int n;
      CHECK(!MPI_Cartdim_get(c->comm, &n));
      mine[0] = mine[1] = 2 * n;
      for (int i = 0; i < n; i++) CHECK(!MPI_Cart_shift(c->comm, i, 1, &mine[2 + 2 * i], &mine[3 + 2 * i]));
      memcpy(mine + 14, mine + 2, 12 * sizeof(int));
    } else if (kind == MPI_GRAPH) {
      CHECK(!MPI_Graph_neighbors_count(c->comm, c->me, &mine[0]) && !MPI_Graph_neighbors(c->comm, c->me, 12, mine + 2));
      mine[1] = mine[0], memcpy(mine + 14, mine + 2, 12 * sizeof(int));
    } else {
      CHECK(!MPI_Dist_graph_neighbors_count(c->comm, &mine[0], &mine[1], &weighted));
      CHECK(!MPI_Dist_graph_neighbors(c->comm, mine[0], mine + 2, MPI_UNWEIGHTED, mine[1], mine + 14, MPI_UNWEIGHTED));
    }
  }
  CHECK(!MPI_Allgather(mine, 26, MPI_INT, all, 26, MPI_INT, MPI_COMM_WORLD));
  c->has_neighbors = 1;
  for (int i = 0; i < c->n; i++) {
    int *of = all + 26 * c->members[i];
    c->n_in[i] = of[0], c->n_out[i] = of[1];
    for (int k = 0; k < 12; k++) {
      c->in[i][k] = of[2 + k] < 0 || k >= of[0] ? -1 : c->members[of[2 + k]];
      c->out[i][k] = of[14 + k] < 0 || k >= of[1] ? -1 : c->members[of[14 + k]];
    }
  }
}

static void make_topology(rng *r, group *c) {
  int kind = (int)between(r, 0, 2), index[MOST_RANKS], edges[64], n = 0;
  c->n = size;
  for (int i = 0; i < size; i++) c->members[i] = i;
  if (kind == 0) {
    int n_dims = (int)between(r, 1, 3), dims[3] = {0, 0, 0}, periods[3];
    for (int i = 0; i < 3; i++) periods[i] = chance(r, 50);
    CHECK(!MPI_Dims_create(size, n_dims, dims) && !MPI_Cart_create(MPI_COMM_WORLD, n_dims, dims, periods, 0, &c->comm));
    c->is_cart = 1, name_group(c, "cart");
  } else if (kind == 1) { /* symmetric, as the standard demands of graphs in neighbour collectives */
    int is_edge[MOST_RANKS][MOST_RANKS];
    for (int i = 0; i < size; i++)
      for (int k = 0; k <= i; k++) is_edge[i][k] = is_edge[k][i] = chance(r, 50);
    for (int i = 0; i < size; i++) {
      for (int k = 0; k < size; k++)
        if (is_edge[i][k]) edges[n++] = k;
      index[i] = n;
    }
    CHECK(!MPI_Graph_create(MPI_COMM_WORLD, size, index, edges, 0, &c->comm));
    name_group(c, "graph");
  } else {
    int count[MOST_RANKS][MOST_RANKS], in[16], out[16], n_in = 0, n_out = 0;
    for (int i = 0; i < size; i++)
      for (int k = 0; k < size; k++) count[i][k] = chance(r, 50) ? 0 : chance(r, 80) ? 1 : 2;
    for (int k = 0; k < size; k++)
      for (int times = 0; times < 2; times++) {
        if (times < count[k][rank] && n_in < 12) in[n_in++] = k;
        if (times < count[rank][k] && n_out < 12) out[n_out++] = k;
      }
    CHECK(!MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, n_in, in, MPI_UNWEIGHTED, n_out, out, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &c->comm));
    name_group(c, "dist graph");
  }
  learn_neighbors(c);
}

/* Divides the ranks of a list in two, for an intercommunicator, or for what two groups make when they merge. */
static void make_sides(rng *r, group *c, const int *list) {
  int first = (int)between(r, 1, size - 1), side = 0, at = 0, has_merged = chance(r, 30);
  MPI_Comm local, merged;
  for (int i = 0; i < size; i++)
    if (list[i] == rank) side = i >= first, at = i;
  CHECK(!MPI_Comm_split(MPI_COMM_WORLD, side, at, &local));
  CHECK(!MPI_Intercomm_create(local, 0, MPI_COMM_WORLD, list[side ? 0 : first], 4, &c->comm) && !MPI_Comm_free(&local));
  if (has_merged) { /* the group of the first in the list comes first */
    CHECK(!MPI_Intercomm_merge(c->comm, side, &merged) && !MPI_Comm_free(&c->comm));
    c->comm = merged, memcpy(c->members, list, size * sizeof(int)), name_group(c, "merged");
    return;
  }
  c->is_inter = 1, c->n = side ? size - first : first, c->n_peers = size - c->n;
  memcpy(c->members, list + (side ? first : 0), c->n * sizeof(int));
  memcpy(c->peers, list + (side ? 0 : first), c->n_peers * sizeof(int));
  name_group(c, "intercommunicator");
}

/* Makes a communicator in a way drawn at random. */
static void make_group(rng *r, group *c) {
  int list[MOST_RANKS], n = (int)between(r, 1, size), kind = (int)between(r, 0, size > 1 ? 7 : 6);
  memset(c, 0, sizeof *c);
  c->comm = MPI_COMM_NULL;
  for (int i = 0; i < size; i++) list[i] = i;
  shuffle(r, list, size);
  MPI_Group world, part;
  CHECK(!MPI_Comm_group(MPI_COMM_WORLD, &world));
  c->n = size;
  for (int i = 0; i < size; i++) c->members[i] = i;
  switch (kind) {
  case 0:
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &c->comm));
    name_group(c, "dup");
    break;
  case 1: { /* in another order, and only some */
    int at = size;
    for (int i = 0; i < n; i++)
      if (list[i] == rank) at = i;
    CHECK(!MPI_Comm_split(MPI_COMM_WORLD, at < n ? 3 : MPI_UNDEFINED, at, &c->comm));
    c->n = n, memcpy(c->members, list, sizeof list), name_group(c, "split");
    break;
  }
  case 2:
  case 3: {
    c->n = n, memcpy(c->members, list, sizeof list), name_group(c, kind == 2 ? "create_group" : "create");
    CHECK(!MPI_Group_incl(world, n, list, &part));
    if (kind == 3)
      CHECK(!MPI_Comm_create(MPI_COMM_WORLD, part, &c->comm));
    else if (c->me >= 0)
      CHECK(!MPI_Comm_create_group(MPI_COMM_WORLD, part, 9, &c->comm));
    CHECK(!MPI_Group_free(&part));
    break;
  }
  case 4: {
    MPI_Request q;
    CHECK(!MPI_Comm_idup(MPI_COMM_WORLD, &c->comm, &q) && !MPI_Wait(&q, MPI_STATUS_IGNORE));
    name_group(c, "idup");
    break;
  }
  case 5:
    CHECK(!MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c->comm));
    name_group(c, "split_type");
    break;
  case 6: make_topology(r, c); break;
  default: make_sides(r, c, list);
  }
  CHECK(!MPI_Group_free(&world));
}

/* Starts several operations on several communicators, and completes them in any order. */
static void batch(rng *r, group *groups, int n_groups, u64 seed, int may_nest) {
  int n = (int)between(r, 1, 10), k = 0;
  operation *list[10];
  for (int i = 0; i < n; i++) {
    group *c = &groups[between(r, 0, n_groups - 1)];
    int form = (int)between(r, 0, may_nest < 0 ? 1 : 2), kind = (int)between(r, 0, 9), rounds = form == PERSISTENT ? (int)between(r, 1, 3) : 1;
    operation *o = calloc(1, sizeof *o);
    o->n_requests = form != BLOCKING, o->rounds = rounds, o->started = form == STARTED;
    for (int q = 0; q < REQUESTS; q++) o->requests[q] = MPI_REQUEST_NULL;
    u64 key = seed * 64 + i;
    if (kind < 4)
      start_transfer(r, c, key, o, form);
    else if (kind < 7)
      start_reduction(r, c, key, o, form);
    else
      start_exchange(r, c, key, o, form);
    if (c->me < 0) {
      free(o);
      continue;
    }
    if (form == BLOCKING) check_areas(o);
    if (form == PERSISTENT) o->rounds++;
    list[k++] = o;
  }
  group *c = &groups[between(r, 0, n_groups - 1)];
  rng inner = {draw(r)};
  int nested = may_nest > 0 && !c->is_inter ? (int)between(r, 0, 9) : 0;
  if (nested == 1) windows(&inner, c, seed + 1000000);
  if (nested == 2) partitioned(&inner, c, seed + 1000000);
  if (nested == 3) truncated(&inner, c, seed + 1000000);
  if (nested == 4) batch(&inner, groups, n_groups, seed + 1000000, 0);
  if (nested == 5 && c->me >= 0) { /* a communicator that is freed while it is in use */
    group short_lived = *c;
    CHECK(!MPI_Comm_dup(c->comm, &short_lived.comm));
    batch(&inner, &short_lived, 1, seed + 1000000, -1);
  }
  if (may_nest < 0) CHECK(!MPI_Comm_free(&groups[0].comm));
  finish_batch(list, k);
}

/* One program: communicators, and then a series of scenes on them. */
static void scenes(rng *r, group *groups, int n_groups, u64 seed, int steps, int is_alone) {
  for (int step = 0; step < steps; step++) {
    int kind = (int)between(r, 0, 11);
    u64 key = seed * 1000 + step;
    group *c = &groups[between(r, 0, n_groups - 1)];
    rng inner = {draw(r)};
    if (kind < 5) batch(&inner, groups, n_groups, key, 1);
    if (kind == 5) mail(&inner, c, key, 0);
    if (is_alone && chance(&inner, 10)) { /* another communicator in place of one */
      if (c->comm != MPI_COMM_NULL) CHECK(!MPI_Comm_free(&c->comm));
      make_group(&inner, c);
    }
    int is_whole = !c->is_inter;
    if (kind == 10) packs(&inner, key);
    if (kind == 11) mail(&inner, &common, key, 1);
    if (kind == 6 && is_whole) partitioned(&inner, c, key);
    if (kind == 7 && is_whole) cancelled(&inner, c, key);
    if (kind == 8 && is_whole) truncated(&inner, c, key);
    if (kind == 9 && is_whole) windows(&inner, c, key);
  }
}

typedef struct {
  group *groups;
  int n_groups, steps, is_alone;
  u64 seed;
} share;

static void *in_thread(void *argument) {
  share *s = argument;
  rng shared = derived(s->seed, 1), mine = derived(s->seed, 1000 + rank);
  own = &mine;
  scenes(&shared, s->groups, s->n_groups, s->seed, s->steps, s->is_alone);
  return NULL;
}

static void program(u64 seed, int level) {
  rng r = derived(seed, 0);
  static group groups[GROUPS];
  int n = (int)between(&r, 2, GROUPS), is_shared = n >= 4 && chance(&r, 50), has_threads = level == MPI_THREAD_MULTIPLE;
  int steps = (int)between(&r, 1, 6);
  for (int i = 0; i < n; i++) make_group(&r, &groups[i]);
  if (is_shared) {
    share shares[2] = {{groups, n / 2, steps, 0, 2 * seed}, {groups + n / 2, n - n / 2, steps, 0, 2 * seed + 1}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) has_threads ? CHECK_CALL(pthread_create(&threads[i], NULL, in_thread, &shares[i])) : (void)in_thread(&shares[i]);
    for (int i = 0; i < 2 && has_threads; i++) CHECK(!pthread_join(threads[i], NULL));
  } else {
    share all = {groups, n, steps, 1, 2 * seed};
    in_thread(&all);
  }
  for (int i = 0; i < n; i++)
    if (groups[i].comm != MPI_COMM_NULL) CHECK(!MPI_Comm_free(&groups[i].comm));
}

static void name_program(void) {
  if (current) fprintf(stderr, "rank %d of %d: the program of seed %llu has failed\n", rank, size, current);
}

int main(int argc, char **argv) {
  int level;
  u64 first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, n = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  CHECK(!MPI_Init_thread(&argc, &argv, first % 3 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level));
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  name_basics(), atexit(name_program);
  void *buffer = malloc(ATTACHED);
  int bytes;
  CHECK(!MPI_Buffer_attach(buffer, ATTACHED));
  common.comm = MPI_COMM_WORLD, common.n = size;
  for (int i = 0; i < size; i++) common.members[i] = i;
  name_group(&common, "world");
  for (current = first; current < first + n; current++) program(current, level);
  current = 0;
  CHECK(!MPI_Buffer_detach(&buffer, &bytes));
  free(buffer);
  CHECK(!MPI_Finalize());
  return 0;
}
