/* One-sided calls on windows of all kinds. Each rank has a part of every window to itself, and computes what all the windows hold. */
#include "messages.h"

enum { PUT, GET, ACCUMULATE, GET_ACCUMULATE, COMPARE_AND_SWAP, FETCH_AND_OP, CALLS = 160, SLOTS = 5 };
enum { FENCE, POST, LOCK, LOCK_ALL, EPOCHS };
static const char *epoch_names[] = {"fence", "post", "lock", "lock_all"};
static const char *call_names[] = {"put", "get", "accumulate", "get_accumulate", "compare_and_swap", "fetch_and_op"};
static const char *window_names[] = {"created", "allocated", "shared", "dynamic"};

typedef struct {
  int origin, target, what, op, kind, is_repeated;
  layout origin_l, target_l, result_l;
  long origin_count, target_count, result_count, at; /* in bytes from the window's beginning */
  operation *o;
} one_sided;

/* Types of accumulates: which row of `basics` is which of `numbers`. */
static const int accumulated[14][2] = {{1, 4},   {2, 9},   {3, 2},   {4, 14}, {5, 8},   {6, 6},   {7, 3},
                                       {9, 18},  {10, 19}, {11, 16}, {12, 17}, {14, 13}, {15, 7}, {16, 11}};

typedef struct {
  group *c;
  MPI_Win win;
  int kind, unit, n_calls;
  long region, length; /* of a rank's part, and of the whole window */
  byte *memory, *models[MOST_RANKS];
  MPI_Aint bases[MOST_RANKS];
  one_sided calls[CALLS];
  u64 seed, sums; /* the key of the sums of an epoch, or 0 */
} window;

static void open_window(rng *r, window *w, group *c, u64 seed) {
  memset(w, 0, sizeof *w);
  w->c = c, w->seed = seed, w->kind = (int)between(r, 0, 3);
  static const int units[] = {1, 1, 4, 8};
  w->unit = w->kind == 3 ? 1 : units[between(r, 0, 3)];
  w->region = SLOTS * 16 * between(r, 4, chance(r, 20) ? 4000 : 200), w->length = w->region * c->n + 1024;
  if (c->me < 0) return;
  MPI_Info info = MPI_INFO_NULL;
  MPI_Aint base = 0;
  if (w->kind == 0) {
    w->memory = malloc(w->length);
    CHECK_CALL(chance(own, 50) ? MPI_Win_create(w->memory, w->length, w->unit, info, c->comm, &w->win)
                               : MPI_Win_create_c(w->memory, w->length, w->unit, info, c->comm, &w->win));
  } else if (w->kind == 1)
    CHECK_CALL(MPI_Win_allocate(w->length, w->unit, info, c->comm, &w->memory, &w->win));
  else if (w->kind == 2)
    CHECK_CALL(MPI_Win_allocate_shared(w->length, w->unit, info, c->comm, &w->memory, &w->win));
  else {
    w->memory = malloc(w->length);
    CHECK_CALL(MPI_Win_create_dynamic(info, c->comm, &w->win));
    CHECK_CALL(MPI_Win_attach(w->win, w->memory, w->length));
    CHECK(!MPI_Get_address(w->memory, &base));
  }
  CHECK(!MPI_Allgather(&base, 1, MPI_AINT, w->bases, 1, MPI_AINT, c->comm));
  for (int t = 0; t < c->n; t++) {
    w->models[t] = malloc(w->length);
    for (long i = 0; i < w->length; i++) w->models[t][i] = byte_of(KEY(seed, t, 11), i);
  }
  CHECK(!MPI_Win_lock(MPI_LOCK_EXCLUSIVE, c->me, 0, w->win));
  memcpy(w->memory, w->models[c->me], w->length);
  CHECK(!MPI_Win_unlock(c->me, w->win) && !MPI_Barrier(c->comm));
}

/* The bytes of elements in a model, or the reverse. */
static void move(byte *model, const shape *s, long count, long at, byte *data, int is_write) {
  for (long i = 0; i < count; i++)
    for (long p = 0; p < s->n; p++) {
      byte *place = model + at + i * extent_of(s) + s->pieces[p].at;
      if (is_write)
        memcpy(place, data, s->pieces[p].size);
      else
        memcpy(data, place, s->pieces[p].size);
      data += s->pieces[p].size;
    }
}

/* Draws a layout for the target that fits a slot, and its place. */
static int fit(rng *r, window *w, one_sided *k, const signature *g, long groups, long slot, long room) {
  for (int tries = 0; tries < 6; tries++, groups = groups * 2 / 3) {
    k->target_l = layout_of(r, g, groups, RECEIVED), k->target_count = count_of(&k->target_l, g, groups);
    area a = {0};
    widen(&a, &k->target_l.s, k->target_count, 0);
    k->at = slot - a.low, k->at += (w->unit - k->at % w->unit) % w->unit;
    if (k->at + a.high <= slot + room) {
      return (int)groups;
    }
    drop_layout(&k->target_l);
  }
  return -1;
}

/* Packed elements of the standard's types: the parts of each, one after the other. */
static void gather_parts(int kind, const byte *from, byte *to, long n, int is_back) {
  const number *k = &numbers[kind];
  for (long i = 0; i < n; i++)
    for (int part = 0; part < 3; part++)
      if (k->size[part]) {
        byte *element = (byte *)from + i * k->extent + k->at[part];
        memcpy(is_back ? element : to, is_back ? to : element, k->size[part]), to += k->size[part];
      }
}

/* Draws a call, and does in the model what it does. */
static void draw_call(window *w, one_sided *k, const signature *g, long groups, u64 key) {
  byte *model = w->models[k->target];
  long bytes = k->target_l.s.bytes * k->target_count, n = groups * g->group * g->length;
  rng o = derived(key, 1);
  k->origin_l = layout_of(&o, g, groups, RECEIVED), k->origin_count = count_of(&k->origin_l, g, groups);
  k->result_l = layout_of(&o, g, groups, RECEIVED), k->result_count = count_of(&k->result_l, g, groups);
  k->o = calloc(1, sizeof *k->o), k->o->n_areas = 2;
  area *from = &k->o->areas[0], *to = &k->o->areas[1];
  widen(from, &k->origin_l.s, k->origin_count, 0), widen(to, &k->result_l.s, k->result_count, 0);
  fill(from, key), fill(to, key + 1);
  byte *data = malloc(bytes + 64), *old = malloc(bytes + 64);
  move(model, &k->target_l.s, k->target_count, k->at, old, 0);
  if (k->what == PUT || k->what == GET)
    stream(data, &k->origin_l.s, k->origin_count, 0, key);
  else {
    int e = numbers[k->kind].extent;
    byte *a = calloc(1, n * e + 64), *b = calloc(1, n * e + 64);
    for (long i = 0; i < n; i++) contribute(k->kind, k->op < MAP ? k->op : SUM, key, i, a + i * e);
    gather_parts(k->kind, a, data, n, 0);
    byte *want = from->want;
    from->want = from->first, put(from, &k->origin_l.s, k->origin_count, 0, data, bytes), from->want = want;
    memcpy(from->mem, from->first, from->high - from->low), memcpy(from->want, from->first, from->high - from->low);
    if (k->op < MAP) {
      gather_parts(k->kind, b, old, n, 1);
      for (long i = 0; i < n; i++) apply(k->kind, k->op, a + i * e, b + i * e);
      gather_parts(k->kind, b, data, n, 0);
    }
    free(a), free(b);
  }
  if (k->what == GET || k->what == GET_ACCUMULATE) put(to, &k->result_l.s, k->result_count, 0, old, bytes);
  if (k->what != GET && k->op != NO_OPERATION) move(model, &k->target_l.s, k->target_count, k->at, data, 1);
  describe(k->o, "%s from %d to %d at %ld, %ld bytes, kind %d, operator %d, seed %llu", call_names[k->what], k->origin, k->target, k->at, bytes, k->kind,
           k->op, w->seed);
  free(data), free(old);
}

/* Draws the calls of an epoch: each pair of ranks has slots of its own. */
static void draw_calls(rng *r, window *w, u64 key) {
  w->n_calls = 0;
  for (int origin = 0; origin < w->c->n; origin++) {
    int slots = (int)between(r, 0, SLOTS);
    for (int slot = 0; slot < slots && w->n_calls < CALLS - 8; slot++) {
      int target = (int)between(r, 0, w->c->n - 1), what = (int)between(r, PUT, ACCUMULATE), n = 1;
      int choice = (int)between(r, 0, 13), kind = accumulated[choice][1], op = 0;
      signature g = draw_signature(r, 60);
      if (what == ACCUMULATE) {
        g.length = 1, g.unit[0] = accumulated[choice][0], n = (int)between(r, 1, 4);
        do op = (int)between(r, 0, MAXLOC);
        while (!is_defined(op, numbers[kind].class));
      }
      long room = w->region / SLOTS, groups = draw_groups(r, &g, room / 3);
      one_sided *first = &w->calls[w->n_calls];
      groups = fit(r, w, first, &g, groups, origin * w->region + slot * room, room);
      if (groups < 0) continue;
      for (int i = 0; i < n; i++) {
        one_sided *k = &w->calls[w->n_calls];
        if (i) *k = *first; /* shares its target's layout */
        k->origin = origin, k->target = target, k->kind = kind, k->what = what, k->op = -1;
        k->is_repeated = i > 0;
        if (what == ACCUMULATE) {
          k->op = i == 0 || chance(r, 15) ? REPLACE : chance(r, 15) ? NO_OPERATION : op;
          k->what = k->op == NO_OPERATION || chance(r, 40) ? GET_ACCUMULATE : ACCUMULATE;
        }
        draw_call(w, k, &g, groups, key + (u64)w->n_calls * 101);
        w->n_calls++;
      }
    }
  }
}

static MPI_Op operator_of_call(const one_sided *k) {
  if (k->what == PUT || k->what == GET) return MPI_OP_NULL;
  return k->op == REPLACE ? MPI_REPLACE : k->op == NO_OPERATION ? MPI_NO_OP : operator_of(k->kind, k->op, 0);
}

/* Makes the call, with or without a request. */
static void issue(window *w, one_sided *k, int is_passive) {
  MPI_Aint disp = w->kind == 3 ? w->bases[k->target] + k->at : k->at / w->unit;
  const void *from = address(&k->o->areas[0]);
  void *to = address(&k->o->areas[1]);
  long oc = k->origin_count, rc = k->result_count, tc = k->target_count;
  MPI_Datatype ot = k->origin_l.s.type, rt = k->result_l.s.type, tt = k->target_l.s.type;
  MPI_Op op = operator_of_call(k);
  int is_wide = chance(own, 30), has_request = is_passive && chance(own, 40);
  MPI_Request q = MPI_REQUEST_NULL;
#define ONE_SIDED(NAME, LOWER, ...)                                                                 \
  CHECK_CALL(has_request ? (is_wide ? MPI_R##LOWER##_c(__VA_ARGS__, w->win, &q) : MPI_R##LOWER(__VA_ARGS__, w->win, &q)) \
                         : (is_wide ? MPI_##NAME##_c(__VA_ARGS__, w->win) : MPI_##NAME(__VA_ARGS__, w->win)))
  switch (k->what) {
  case PUT: ONE_SIDED(Put, put, from, oc, ot, k->target, disp, tc, tt); break;
  case GET: ONE_SIDED(Get, get, to, rc, rt, k->target, disp, tc, tt); break;
  case ACCUMULATE: ONE_SIDED(Accumulate, accumulate, from, oc, ot, k->target, disp, tc, tt, op); break;
  default:
    if (k->op == NO_OPERATION && chance(own, 50))
      ONE_SIDED(Get_accumulate, get_accumulate, NULL, 0, MPI_INT, to, rc, rt, k->target, disp, tc, tt, op);
    else
      ONE_SIDED(Get_accumulate, get_accumulate, from, oc, ot, to, rc, rt, k->target, disp, tc, tt, op);
  }
  if (has_request) {
    if (chance(own, 50)) CHECK(!MPI_Win_flush(k->target, w->win));
    CHECK(!MPI_Wait(&q, MPI_STATUS_IGNORE));
    if (k->what != PUT && k->what != ACCUMULATE && chance(own, 50)) compare(&k->o->areas[1], k->o->what);
  } else if (is_passive && chance(own, 15))
    CHECK(!(chance(own, 50) ? MPI_Win_flush(k->target, w->win) : MPI_Win_flush_all(w->win)));
  else if (is_passive && chance(own, 15))
    CHECK(!(chance(own, 50) ? MPI_Win_flush_local(k->target, w->win) : MPI_Win_flush_local_all(w->win)));
}

/* All ranks add to the same words of rank 0, beside the calls above. */
static void add_up(window *w, long turns) {
  group *c = w->c;
  u64 one = 1 + (u64)c->me, old, more = 3;
  MPI_Aint disp = w->kind == 3 ? w->bases[0] + w->length - 1024 : (w->length - 1024) / w->unit, step = w->kind == 3 ? 8 : 8 / w->unit;
  for (long i = 0; i < turns; i++)
    switch (i % 3) {
    case 0: CHECK_CALL(MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 0, disp, MPI_SUM, w->win)); break;
    case 1: CHECK_CALL(MPI_Accumulate(&more, 1, MPI_UINT64_T, 0, disp + step, 1, MPI_UINT64_T, MPI_SUM, w->win)); break;
    default: CHECK_CALL(MPI_Get_accumulate(&one, 1, MPI_UINT64_T, &old, 1, MPI_UINT64_T, 0, disp, 1, MPI_UINT64_T, MPI_SUM, w->win));
    }
}

/* All ranks add numbers to the same words at once: in the model, or in the windows. */
static void draw_sums(window *w, u64 key, int is_real) {
  for (int origin = 0; origin < w->c->n; origin++)
    for (int i = 0; i < 6; i++) {
      rng r = derived(key, origin * 10 + i);
      int target = (int)between(&r, 0, w->c->n - 1), step = (int)between(&r, 1, 9), n = (int)between(&r, 1, 63 / step + 1), values[64];
      long at = w->length - 960;
      for (int k = 0; k < n; k++) values[k] = (int)draw(&r) & 0xffffff;
      if (!is_real) {
        for (int k = 0; k < n; k++) {
          unsigned word;
          byte *place = w->models[target] + at + 4 * k * step;
          memcpy(&word, place, 4), word += (unsigned)values[k], memcpy(place, &word, 4);
        }
        continue;
      }
      if (origin != w->c->me) continue;
      MPI_Datatype of;
      MPI_Aint disp = w->kind == 3 ? w->bases[target] + at : at / w->unit;
      CHECK(!MPI_Type_vector(n, 1, step, MPI_UNSIGNED, &of) && !MPI_Type_commit(&of));
      CHECK_CALL(MPI_Accumulate(values, n, MPI_UNSIGNED, target, disp, 1, of, MPI_SUM, w->win));
      CHECK(!MPI_Type_free(&of) && !MPI_Win_flush_local(target, w->win));
    }
}

static void model_sums(window *w, long turns) {
  u64 a, b;
  byte *at = w->models[0] + w->length - 1024;
  memcpy(&a, at, 8), memcpy(&b, at + 8, 8);
  for (int i = 0; i < w->c->n; i++) a += (u64)(1 + i) * (u64)((turns + 2) / 3 + turns / 3), b += 3 * (u64)((turns + 1) / 3);
  memcpy(at, &a, 8), memcpy(at + 8, &b, 8);
}

/* Opens and closes an epoch of each kind around the calls of this rank. */
static void epoch(window *w, int kind, long turns) {
  group *c = w->c;
  int me = c->me, targets[MOST_RANKS] = {0}, origins[MOST_RANKS] = {0}, list[MOST_RANKS], n = 0;
  MPI_Group all, to, from;
  CHECK(!MPI_Win_get_group(w->win, &all));
  for (int i = 0; i < w->n_calls; i++) {
    if (w->calls[i].origin == me) targets[w->calls[i].target] = 1;
    if (w->calls[i].target == me) origins[w->calls[i].origin] = 1;
  }
  if (turns) {
    targets[0] = 1;
    for (int i = 0; i < c->n && me == 0; i++) origins[i] = 1;
  }
  switch (kind) {
  case FENCE: CHECK(!MPI_Win_fence(0, w->win)); break;
  case POST:
    for (int i = 0; i < c->n; i++)
      if (origins[i]) list[n++] = i;
    CHECK(!MPI_Group_incl(all, n, list, &from));
    n = 0;
    for (int i = 0; i < c->n; i++)
      if (targets[i]) list[n++] = i;
    CHECK(!MPI_Group_incl(all, n, list, &to));
    CHECK(!MPI_Win_post(from, 0, w->win) && !MPI_Win_start(to, 0, w->win));
    CHECK((from == MPI_GROUP_EMPTY || !MPI_Group_free(&from)) && (to == MPI_GROUP_EMPTY || !MPI_Group_free(&to)));
    break;
  case LOCK_ALL: CHECK(!MPI_Win_lock_all(chance(own, 20) ? MPI_MODE_NOCHECK : 0, w->win)); break;
  }
  if (kind == LOCK)
    for (int t = 0; t < c->n; t++) {
      if (!targets[t]) continue;
      CHECK(!MPI_Win_lock(chance(own, 50) ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, t, 0, w->win));
      for (int i = 0; i < w->n_calls; i++)
        if (w->calls[i].origin == me && w->calls[i].target == t) issue(w, &w->calls[i], 2);
      if (t == 0) add_up(w, turns);
      CHECK(!MPI_Win_unlock(t, w->win));
    }
  else {
    for (int i = 0; i < w->n_calls; i++)
      if (w->calls[i].origin == me) issue(w, &w->calls[i], kind == LOCK_ALL);
    if (w->sums) draw_sums(w, w->sums, 1);
    add_up(w, turns);
  }
  int flag = 0;
  switch (kind) {
  case FENCE: CHECK(!MPI_Win_fence(0, w->win)); break;
  case POST:
    CHECK(!MPI_Win_complete(w->win));
    if (chance(own, 50))
      CHECK(!MPI_Win_wait(w->win));
    else
      while (!flag) CHECK(!MPI_Win_test(w->win, &flag));
    break;
  case LOCK_ALL: CHECK(!MPI_Win_unlock_all(w->win)); break;
  }
  CHECK(!MPI_Group_free(&all));
}

static void compare_window(window *w, const char *what) {
  byte *model = w->models[w->c->me];
  CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, w->c->me, 0, w->win));
  long i = 0;
  while (i < w->length && w->memory[i] == model[i]) i++;
  if (i < w->length) {
    fprintf(stderr, "rank %d: WRONG %s, at %ld of %ld: %02x not %02x\n", rank, what, i, w->length, w->memory[i], model[i]);
    for (int k = 0; k < w->n_calls; k++)
      if (w->calls[k].target == w->c->me) fprintf(stderr, "  %s\n", w->calls[k].o->what);
    exit(1);
  }
  CHECK(!MPI_Win_unlock(w->c->me, w->win));
}

/* Counts to a number by compare and swap, at a word of some rank. */
static void swapped(window *w, int target) {
  group *c = w->c;
  MPI_Aint at = w->length - 512, disp = w->kind == 3 ? w->bases[target] + at : at / w->unit;
  u64 first, seen, next, got;
  memcpy(&first, w->models[target] + at, 8);
  CHECK(!MPI_Win_lock_all(0, w->win));
  for (int i = 0; i < 4; i++)
    for (seen = first;; seen = got) {
      next = seen + 1;
      CHECK_CALL(MPI_Compare_and_swap(&next, &seen, &got, MPI_UINT64_T, target, disp, w->win));
      CHECK(!MPI_Win_flush(target, w->win));
      if (got == seen) break;
    }
  CHECK(!MPI_Win_unlock_all(w->win));
  first += 4 * (u64)c->n, memcpy(w->models[target] + at, &first, 8);
}

/* Ranks store into each other's shared memory. */
static void stores(window *w, rng *r) {
  group *c = w->c;
  int shift = (int)between(r, 0, c->n - 1), unit, to = (c->me + shift) % c->n;
  long n = between(r, 1, 100), at = w->length - 400;
  MPI_Aint bytes;
  byte *there;
  /* No rank waits for an exclusive lock any more. */
  CHECK(!MPI_Barrier(c->comm) && !MPI_Win_lock_all(0, w->win) && !MPI_Win_shared_query(w->win, to, &bytes, &unit, &there));
  CHECK(bytes == w->length && unit == w->unit && (to != c->me || there == w->memory));
  for (int t = 0; t < c->n; t++)
    for (long i = 0; i < n; i++) w->models[(t + shift) % c->n][at + i] = (byte)(t + i);
  for (long i = 0; i < n; i++) there[at + i] = (byte)(c->me + i);
  CHECK(!MPI_Win_sync(w->win) && !MPI_Barrier(c->comm) && !MPI_Win_sync(w->win) && !MPI_Win_unlock_all(w->win));
}

static void windows(rng *r, group *c, u64 seed) {
  static __thread window w;
  open_window(r, &w, c, seed);
  int epochs = (int)between(r, 1, 3);
  u64 state = draw(r);
  rng inner = {state}; /* drawn from by members only */
  if (c->me < 0) return;
  for (int e = 0; e < epochs; e++) {
    int kind = (int)between(&inner, 0, EPOCHS - 1), turns = chance(&inner, 40) ? (int)between(&inner, 1, 20) : 0;
    draw_calls(&inner, &w, KEY(seed, e, 13));
    model_sums(&w, turns);
    w.sums = kind == LOCK_ALL && chance(&inner, 70) ? KEY(seed, e, 14) : 0;
    if (w.sums) draw_sums(&w, w.sums, 0);
    CHECK(!MPI_Barrier(c->comm));
    epoch(&w, kind, turns);
    char what[200];
    snprintf(what, sizeof what, "%s window on %s, %s, unit %d, seed %llu", window_names[w.kind], c->name, epoch_names[kind], w.unit, seed);
    if (w.kind == 2 && chance(&inner, 50)) stores(&w, &inner);
    if (chance(&inner, 20)) swapped(&w, (int)between(&inner, 0, c->n - 1));
    CHECK(!MPI_Barrier(c->comm));
    compare_window(&w, what);
    for (int i = 0; i < w.n_calls; i++) {
      one_sided *k = &w.calls[i];
      if (k->origin == c->me) check_areas(k->o);
      end(k->o), free(k->o), drop_layout(&k->origin_l), drop_layout(&k->result_l);
      if (!k->is_repeated) drop_layout(&k->target_l);
    }
  }
  if (w.kind == 3) CHECK(!MPI_Win_detach(w.win, w.memory));
  CHECK(!MPI_Win_free(&w.win));
  if (w.kind == 0 || w.kind == 3) free(w.memory);
  for (int i = 0; i < c->n; i++) free(w.models[i]);
}
