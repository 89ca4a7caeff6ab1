/* Collectives: blocking, started and persistent, with counts of both widths, and layouts that differ from rank to rank. */
#include "ops.h"

/* How a collective is called. */
enum { BLOCKING, STARTED, PERSISTENT };
#define FORMS(NAME, LOWER, INITIAL)                                                                     \
  switch (form + 3 * is_wide) {                                                                         \
  case 0: CHECK_CALL(MPI_##NAME(ARGS(narrow), c->comm)); break;                                         \
  case 1: CHECK_CALL(MPI_I##LOWER(ARGS(narrow), c->comm, o->requests)); break;                          \
  case 2: CHECK_CALL(MPI_##NAME##_init(ARGS(narrow), c->comm, MPI_INFO_NULL, o->requests)); break;      \
  case 3: CHECK_CALL(MPI_##NAME##_c(ARGS(wide), c->comm)); break;                                       \
  case 4: CHECK_CALL(MPI_I##LOWER##_c(ARGS(wide), c->comm, o->requests)); break;                        \
  default: CHECK_CALL(MPI_##NAME##_init_c(ARGS(wide), c->comm, MPI_INFO_NULL, o->requests));            \
  }

/* The counts and places of blocks, in both widths. */
typedef struct {
  int narrow_counts[MOST_RANKS + 8], narrow_places[MOST_RANKS + 8];
  MPI_Count wide_counts[MOST_RANKS + 8];
  MPI_Aint wide_places[MOST_RANKS + 8];
  MPI_Datatype types[MOST_RANKS + 8];
} blocks;

static void set_block(blocks *b, int i, long count, long place) {
  b->narrow_counts[i] = (int)count, b->wide_counts[i] = count, b->narrow_places[i] = (int)place, b->wide_places[i] = place;
}

/* The numbers of groups from each rank to each, by ranks in the world. */
typedef long table[MOST_RANKS][MOST_RANKS];

/* Draws places for blocks of elements of a layout, with gaps and in any order. */
static void draw_places(rng *r, blocks *b, int n) {
  int order[MOST_RANKS + 8];
  long place = 0;
  for (int i = 0; i < n; i++) order[i] = i;
  if (chance(r, 50)) shuffle(r, order, n);
  for (int i = 0; i < n; i++) {
    long count = b->wide_counts[order[i]];
    set_block(b, order[i], count, place), place += count + (chance(r, 50) ? between(r, 0, 2) : 0);
  }
}

/* The keys by which all ranks know the layouts and data of each. */
#define KEY(o_seed, who, what) ((o_seed) * 31 + (u64)(who) * 7 + (what))

/* The blocks that a rank sends or receives: one layout for all, or one for each. */
typedef struct {
  int n, is_each;
  layout l[MOST_RANKS + 8];
  blocks b;
  long groups[MOST_RANKS + 8];
} ends;

enum { REGULAR, PLACED, EACH };

/* Draws the layouts of one side of a rank: everyone computes the same for it. Places of EACH are in bytes. */
static void draw_ends(rng *r, ends *e, const signature *g, int n, const long *groups, int kind, int use) {
  long total = 0, at = 0;
  e->n = n, e->is_each = kind == EACH;
  for (int i = 0; i < n; i++) total += e->groups[i] = groups[i];
  if (kind == EACH) {
    for (int i = 0; i < n; i++) {
      e->l[i] = layout_of(r, g, groups[i], use == SENT ? SENT : BLOCKS);
      long count = count_of(&e->l[i], g, groups[i]);
      at -= e->l[i].s.true_low, set_block(&e->b, i, count, at), e->b.types[i] = e->l[i].s.type;
      at += e->l[i].s.true_high + (count ? (count - 1) * labs(extent_of(&e->l[i].s)) : 0) + between(r, 0, 9);
    }
    return;
  }
  e->l[0] = layout_of(r, g, total, use);
  set_block(&e->b, 0, 0, 0), e->b.types[0] = e->l[0].s.type;
  for (int i = 0; i < n; i++) set_block(&e->b, i, count_of(&e->l[0], g, groups[i]), 0), e->b.types[i] = e->l[0].s.type;
  if (kind == PLACED)
    draw_places(r, &e->b, n);
  else
    for (int i = 0; i < n; i++) set_block(&e->b, i, e->b.wide_counts[i], i * e->b.wide_counts[0]);
}

static const layout *layout_at(const ends *e, int i) { return &e->l[e->is_each ? i : 0]; }
static long byte_place(const ends *e, int i) { return e->is_each ? e->b.wide_places[i] : e->b.wide_places[i] * extent_of(&e->l[0].s); }

static void widen_ends(area *a, const ends *e) {
  for (int i = 0; i < e->n; i++) widen(a, &layout_at(e, i)->s, e->b.wide_counts[i], byte_place(e, i));
}

static void drop_ends(ends *e) {
  for (int i = 0; i < (e->is_each ? e->n : 1); i++) drop_layout(&e->l[i]);
}

/* Hands the layouts to the operation, which frees them at its end. */
static void hand_over(operation *o, ends *e) {
  for (int i = 0; i < (e->is_each ? e->n : 1); i++) o->layouts[o->n_layouts++] = e->l[i];
}

static long bytes_of(const signature *g, long groups) {
  long bytes = 0;
  for (int i = 0; i < g->length; i++) bytes += basics[g->unit[i]].first + basics[g->unit[i]].second;
  return bytes * g->group * groups;
}

/* Which blocks a rank sends, and to whom: the ranks of the communicator, of the other group, or the neighbours. */
enum { GATHER, SCATTER, ALLGATHER, ALLTOALL, BCAST, NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL, SHAPES };

typedef struct {
  group *c;
  signature g;
  u64 seed;
  int shape, kind, root; /* the root's rank in the world */
  int is_swap;           /* an all-to-all in place: blocks lie where those of the other ranks go */
  table groups;
  long uniform;
} transfer;

/* The ranks to which, or from which, a rank has blocks. Returns their number. */
static int partners(const transfer *t, int who, int is_out, const int **list) {
  group *c = t->c;
  if (t->shape == NEIGHBOR_ALLGATHER || t->shape == NEIGHBOR_ALLTOALL) {
    int at = 0;
    while (c->members[at] != who) at++;
    *list = is_out ? c->out[at] : c->in[at];
    return is_out ? c->n_out[at] : c->n_in[at];
  }
  int is_member = 0;
  for (int i = 0; i < c->n; i++) is_member |= c->members[i] == who;
  int has_all = t->shape == ALLGATHER || t->shape == ALLTOALL || (t->shape == GATHER && !is_out) || (t->shape == SCATTER && is_out);
  if (has_all) return *list = c->is_inter && !is_member ? c->members : c->peers, c->is_inter && !is_member ? c->n : c->n_peers;
  *list = &t->root;
  return 1;
}

/* Whether a rank sends the same block to all. */
static int has_one_block(const transfer *t) {
  return t->shape == GATHER || t->shape == ALLGATHER || t->shape == NEIGHBOR_ALLGATHER || t->shape == BCAST;
}

static void draw_out(const transfer *t, int who, ends *e) {
  rng r = derived(t->seed, 100 + who);
  const int *list;
  int n = partners(t, who, 1, &list);
  long groups[MOST_RANKS + 8];
  if (has_one_block(t)) n = 1;
  for (int i = 0; i < n; i++) groups[i] = has_one_block(t) ? t->groups[who][who] : list[i] < 0 ? t->uniform : t->groups[who][list[i]];
  draw_ends(&r, e, &t->g, n, groups, has_one_block(t) ? REGULAR : t->kind, SENT);
}

static void draw_in(const transfer *t, int who, ends *e) {
  rng r = derived(t->seed, 200 + who);
  const int *list;
  int n = partners(t, who, 0, &list), is_one = t->shape == SCATTER || t->shape == BCAST;
  long groups[MOST_RANKS + 8];
  for (int i = 0; i < n; i++) groups[i] = list[i] < 0 ? t->uniform : t->groups[list[i]][has_one_block(t) ? list[i] : who];
  draw_ends(&r, e, &t->g, n, groups, is_one ? REGULAR : t->kind, is_one ? RECEIVED : BLOCKS);
}

/* The bytes that a rank gets from another, as that rank has them in its memory. `nth` counts the edges between two neighbours, and `slot`
   the neighbours in a grid, where the directions of a dimension are crossed. */
static byte *incoming(const transfer *t, int from, int to, int nth, int slot, long *n) {
  ends e;
  const int *list;
  int partners_n = partners(t, from, 1, &list), at = 0;
  t->is_swap ? draw_in(t, from, &e) : draw_out(t, from, &e);
  if (t->c->is_cart && t->shape == NEIGHBOR_ALLTOALL)
    at = slot ^ 1;
  else if (!has_one_block(t))
    for (int k = nth; list[at] != to || k-- > 0; at++) CHECK(at < partners_n);
  const layout *l = layout_at(&e, at);
  byte *data = malloc(l->s.bytes * e.b.wide_counts[at] + 1);
  *n = stream(data, &l->s, e.b.wide_counts[at], byte_place(&e, at), KEY(t->seed, from, 1 + t->is_swap)) - data;
  drop_ends(&e);
  return data;
}

static const char *shape_names[] = {"gather", "scatter", "allgather", "alltoall", "bcast", "neighbor allgather", "neighbor alltoall"};
static const char *form_names[] = {"blocking", "started", "persistent"};

/* Calls the collective with these arguments. */
static void call_transfer(const transfer *t, operation *o, int form, int is_wide, const void *from, ends *s, void *to, ends *d, int root) {
  group *c = t->c;
  long sc = s ? s->b.wide_counts[0] : 0, rc = d ? d->b.wide_counts[0] : 0;
  MPI_Datatype st = s ? s->b.types[0] : MPI_INT, rt = d ? d->b.types[0] : MPI_INT;
  blocks *sb = keep(o, sizeof *sb), *rb = keep(o, sizeof *rb);
  if (s) *sb = s->b;
  if (d) *rb = d->b;
  switch (t->shape) {
  case BCAST:
#define ARGS(w) (void *)(s ? from : to), s ? sc : rc, s ? st : rt, root
    FORMS(Bcast, bcast, Bcast) break;
#undef ARGS
  case GATHER:
    if (t->kind == REGULAR) {
#define ARGS(w) from, sc, st, to, rc, rt, root
      FORMS(Gather, gather, Gather)
#undef ARGS
    } else {
#define ARGS(w) from, sc, st, to, rb->w##_counts, rb->w##_places, rt, root
      FORMS(Gatherv, gatherv, Gatherv)
#undef ARGS
    }
    break;
  case SCATTER:
    if (t->kind == REGULAR) {
#define ARGS(w) from, sc, st, to, rc, rt, root
      FORMS(Scatter, scatter, Scatter)
#undef ARGS
    } else {
#define ARGS(w) from, sb->w##_counts, sb->w##_places, st, to, rc, rt, root
      FORMS(Scatterv, scatterv, Scatterv)
#undef ARGS
    }
    break;
#define ARGS(w) from, sc, st, to, rc, rt
  case ALLGATHER:
    if (t->kind == REGULAR) {
      FORMS(Allgather, allgather, Allgather)
      break;
    }
#undef ARGS
#define ARGS(w) from, sc, st, to, rb->w##_counts, rb->w##_places, rt
    FORMS(Allgatherv, allgatherv, Allgatherv) break;
#undef ARGS
#define ARGS(w) from, sc, st, to, rc, rt
  case NEIGHBOR_ALLGATHER:
    if (t->kind == REGULAR) {
      FORMS(Neighbor_allgather, neighbor_allgather, Neighbor_allgather)
      break;
    }
#undef ARGS
#define ARGS(w) from, sc, st, to, rb->w##_counts, rb->w##_places, rt
    FORMS(Neighbor_allgatherv, neighbor_allgatherv, Neighbor_allgatherv) break;
#undef ARGS
  case ALLTOALL:
    if (t->kind == REGULAR) {
#define ARGS(w) from, sc, st, to, rc, rt
      FORMS(Alltoall, alltoall, Alltoall)
#undef ARGS
    } else if (t->kind == PLACED) {
#define ARGS(w) from, sb->w##_counts, sb->w##_places, st, to, rb->w##_counts, rb->w##_places, rt
      FORMS(Alltoallv, alltoallv, Alltoallv)
#undef ARGS
    } else {
#define ARGS(w) from, sb->w##_counts, sb->w##_places, sb->types, to, rb->w##_counts, rb->w##_places, rb->types
      FORMS(Alltoallw, alltoallw, Alltoallw)
#undef ARGS
    }
    break;
  default:
    if (t->kind == REGULAR) {
#define ARGS(w) from, sc, st, to, rc, rt
      FORMS(Neighbor_alltoall, neighbor_alltoall, Neighbor_alltoall)
#undef ARGS
    } else if (t->kind == PLACED) {
#define ARGS(w) from, sb->w##_counts, sb->w##_places, st, to, rb->w##_counts, rb->w##_places, rt
      FORMS(Neighbor_alltoallv, neighbor_alltoallv, Neighbor_alltoallv)
#undef ARGS
    } else {
#define ARGS(w) from, sb->w##_counts, sb->wide_places, sb->types, to, rb->w##_counts, rb->wide_places, rb->types
      FORMS(Neighbor_alltoallw, neighbor_alltoallw, Neighbor_alltoallw)
#undef ARGS
    }
  }
}

/* Draws what is transferred. */
static transfer draw_transfer(rng *r, group *c, u64 seed) {
  transfer t = {.c = c, .seed = seed};
  t.g = draw_signature(r, 2000);
  do t.shape = (int)between(r, 0, SHAPES - 1);
  while (!c->has_neighbors && t.shape >= NEIGHBOR_ALLGATHER);
  if (c->has_neighbors && chance(r, 60)) t.shape = chance(r, 40) ? NEIGHBOR_ALLGATHER : NEIGHBOR_ALLTOALL;
  int can_each = t.shape == ALLTOALL || t.shape == NEIGHBOR_ALLTOALL;
  t.kind = t.shape == BCAST ? REGULAR : (int)between(r, REGULAR, can_each ? EACH : PLACED);
  t.root = c->all[between(r, 0, c->n_all - 1)];
  t.uniform = draw_groups(r, &t.g, 1500000);
  for (int i = 0; i < MOST_RANKS; i++)
    for (int k = 0; k < MOST_RANKS; k++) {
      t.groups[i][k] = t.uniform;
      if (t.kind != REGULAR && chance(r, 70)) t.groups[i][k] = chance(r, 40) ? 0 : draw_groups(r, &t.g, chance(r, 10) ? 1500000 : 20000);
    }
  return t;
}

/* Starts a transfer, drawn by all members alike. */
static void start_transfer(rng *r, group *c, u64 seed, operation *o, int form) {
  transfer t = draw_transfer(r, c, seed);
  int can_in_place = !c->is_inter && t.shape != BCAST && t.shape < NEIGHBOR_ALLGATHER, in_place = can_in_place && chance(r, 15);
  t.is_swap = in_place && t.shape == ALLTOALL;
  for (int i = 0; t.is_swap && i < MOST_RANKS; i++)
    for (int k = 0; k < i; k++) t.groups[i][k] = t.groups[k][i];
  if (c->me < 0) return;
  int me = c->members[c->me], is_wide = chance(own, 40), root = -1, is_idle = 0, sends, receives;
  for (int i = 0; i < c->n_peers; i++)
    if (c->peers[i] == t.root) root = i;
  int is_rooted = t.shape == GATHER || t.shape == SCATTER || t.shape == BCAST, is_root = me == t.root;
  if (c->is_inter && is_rooted && root < 0) root = is_root ? MPI_ROOT : MPI_PROC_NULL, is_idle = !is_root;
  sends = !is_rooted || (t.shape == GATHER ? (!c->is_inter || !is_root) : is_root);
  receives = !is_rooted || (t.shape == GATHER ? is_root : (!c->is_inter || !is_root));
  if (t.shape == BCAST) receives = !is_root;
  if (is_idle) sends = receives = 0;
  ends s, d;
  memset(&s, 0, sizeof s), memset(&d, 0, sizeof d);
  describe(o, "%s %s%s on %s, kind %d, uniform %ld bytes, wide %d, seed %llu", form_names[form], shape_names[t.shape], in_place ? " in place" : "", c->name,
           t.kind, bytes_of(&t.g, t.uniform), is_wide, seed);
  if (sends) draw_out(&t, me, &s);
  if (receives) draw_in(&t, me, &d);
  area *from = &o->areas[0], *to = &o->areas[1];
  o->n_areas = 2;
  if (sends) widen_ends(from, &s);
  if (receives) widen_ends(to, &d);
  fill(from, KEY(seed, me, 1)), fill(to, KEY(seed, me, 2));
  const int *list;
  int n = receives ? partners(&t, me, 0, &list) : 0;
  for (int i = 0; i < n; i++) {
    if (list[i] < 0) continue;
    int nth = 0;
    for (int k = 0; k < i; k++) nth += list[k] == list[i];
    long bytes;
    byte *data = incoming(&t, list[i], me, nth, i, &bytes);
    put(to, &layout_at(&d, i)->s, d.b.wide_counts[i], byte_place(&d, i), data, bytes);
    free(data);
  }
  void *source = address(from), *target = address(to);
  if (in_place && ((t.shape == SCATTER && !is_root) || (t.shape == GATHER && !is_root))) in_place = 0;
  if (in_place && t.shape == SCATTER)
    target = MPI_IN_PLACE, memcpy(to->want, to->first, to->high - to->low);
  else if (t.is_swap)
    source = MPI_IN_PLACE;
  else if (in_place) { /* the own block is there from the start */
    int at = 0;
    while (list[at] != me) at++;
    long bytes;
    byte *data = incoming(&t, me, me, 0, 0, &bytes);
    byte *want = to->want;
    to->want = to->first, put(to, &layout_at(&d, at)->s, d.b.wide_counts[at], byte_place(&d, at), data, bytes), to->want = want;
    memcpy(to->mem, to->first, to->high - to->low);
    free(data);
    source = MPI_IN_PLACE;
  }
  call_transfer(&t, o, form, is_wide, source, sends ? &s : NULL, target, receives ? &d : NULL, root);
  int early = chance(own, 30); /* the request keeps the types */
  if (sends) early ? drop_ends(&s) : hand_over(o, &s);
  if (receives) early ? drop_ends(&d) : hand_over(o, &d);
}
