/* Reductions: the standard's operators on all their types, and operators of the program, of which some do not commute. */
#include "collectives.h"
#include <complex.h>
#include <float.h>
#include <stdbool.h>
#include <stdint.h>

/* The bytes of a long double that have a meaning. */
enum { LONG_DOUBLE = LDBL_MANT_DIG == 64 ? 10 : 16 };

/* The types: class i integer, f floating, c complex, l logical, b bits, p pairs, u a map of the program's. */
typedef struct {
  char class;
  int bytes, at[3], size[3]; /* the places of the parts of an element */
  int extent;
} number;
enum { K_PAIRS = 15, K_MAPS = 21, KINDS = 26 };
static const number numbers[KINDS] = {
    {'i', 1, {0}, {1}, 1},           {'i', 1, {0}, {1}, 1},           {'i', 2, {0}, {2}, 2},           {'i', 2, {0}, {2}, 2},
    {'i', 4, {0}, {4}, 4},           {'i', 4, {0}, {4}, 4},           {'i', 8, {0}, {8}, 8},           {'i', 8, {0}, {8}, 8},
    {'f', 4, {0}, {4}, 4},           {'f', 8, {0}, {8}, 8},           {'f', 16, {0}, {LONG_DOUBLE}, 16},        {'l', 1, {0}, {1}, 1},
    {'c', 8, {0}, {8}, 8},           {'c', 16, {0}, {16}, 16},        {'b', 1, {0}, {1}, 1},           {'p', 4, {0, 4}, {4, 4}, 8},
    {'p', 8, {0, 8}, {8, 4}, 16},    {'p', 8, {0, 8}, {8, 4}, 16},    {'p', 4, {0, 4}, {4, 4}, 8},     {'p', 2, {0, 4}, {2, 4}, 8},
    {'p', 16, {0, 16}, {LONG_DOUBLE, 4}, 32}, {'u', 8, {0, 4}, {4, 4}, 8},     {'u', 8, {4, 12}, {4, 4}, 20},   {'u', 8, {-8, 4}, {4, 4}, 24},
    {'u', 4, {0}, {4}, 4},           {'u', 8, {0}, {8}, 8}};

static MPI_Datatype type_of_kind(int kind) {
  MPI_Datatype all[] = {MPI_INT8_T, MPI_UINT8_T, MPI_INT16_T, MPI_UINT16_T, MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T, MPI_FLOAT, MPI_DOUBLE,
                        MPI_LONG_DOUBLE, MPI_C_BOOL, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_BYTE, MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_INT, MPI_2INT,
                        MPI_SHORT_INT, MPI_LONG_DOUBLE_INT};
  if (kind < K_MAPS) return all[kind];
  if (kind == K_MAPS + 3) return MPI_INT;
  if (kind == K_MAPS + 4) return MPI_UINT64_T;
  MPI_Datatype inner, of;
  int ones[2] = {1, 1};
  MPI_Aint at[2] = {numbers[kind].at[0], numbers[kind].at[1]};
  if (kind == K_MAPS)
    MPI_Type_contiguous(2, MPI_UINT32_T, &of);
  else {
    MPI_Type_create_hindexed(2, ones, at, MPI_UINT32_T, &inner);
    MPI_Type_create_resized(inner, kind == K_MAPS + 2 ? -8 : 0, numbers[kind].extent, &of), MPI_Type_free(&inner);
  }
  CHECK(!MPI_Type_commit(&of));
  return of;
}

enum { MAX, MIN, SUM, PROD, LAND, BAND, LOR, BOR, LXOR, BXOR, MINLOC, MAXLOC, MAP, FIRST, TIMES, LAST_OF, REPLACE, NO_OPERATION };

static int is_defined(int op, char class) {
  switch (op) {
  case MAX:
  case MIN: return class == 'i' || class == 'f';
  case SUM:
  case PROD: return class == 'i' || class == 'f' || class == 'c';
  case LAND:
  case LOR:
  case LXOR: return class == 'i' || class == 'l';
  case BAND:
  case BOR:
  case BXOR: return class == 'i' || class == 'b';
  case MINLOC:
  case MAXLOC: return class == 'p';
  default: return 0;
  }
}

#define INTEGERS(T)                                                                                            \
  {                                                                                                            \
    T a, b;                                                                                                    \
    memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b);                                                          \
    b = (T)(op == MAX ? (a > b ? a : b) : op == MIN ? (a < b ? a : b) : op == SUM ? (T)((u64)a + (u64)b) : op == PROD ? (T)((u64)a * (u64)b) : \
        op == LAND ? (a && b) : op == LOR ? (a || b) : op == LXOR ? (!a != !b) : op == BAND ? (a & b) : op == BOR ? (a | b) : (a ^ b));     \
    memcpy(y, &b, sizeof b);                                                                                   \
    break;                                                                                                     \
  }
#define FLOATS(T)                                                                                              \
  {                                                                                                            \
    T a, b;                                                                                                    \
    memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b);                                                          \
    b = op == MAX ? (a > b ? a : b) : op == MIN ? (a < b ? a : b) : op == SUM ? a + b : a * b;                 \
    memcpy(y, &b, bytes);                                                                                      \
    break;                                                                                                     \
  }
#define COMPLEX(T)                                    \
  {                                                   \
    T a, b;                                           \
    memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b); \
    b = op == SUM ? a + b : a * b;                    \
    memcpy(y, &b, sizeof b);                          \
    break;                                            \
  }
#define PAIRS(T)                                                                                       \
  {                                                                                                    \
    T a, b;                                                                                            \
    int i, k;                                                                                          \
    memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b), memcpy(&i, x + numbers[kind].at[1], 4), memcpy(&k, y + numbers[kind].at[1], 4); \
    if (a == b) k = i < k ? i : k;                                                                     \
    if (op == MINLOC ? a < b : a > b) b = a, k = i;                                                    \
    memcpy(y, &b, bytes), memcpy(y + numbers[kind].at[1], &k, 4);                                      \
    break;                                                                                             \
  }

/* Sets y to x op y. */
static void apply(int kind, int op, const byte *x, byte *y) {
  int bytes = numbers[kind].size[0];
  switch (kind) {
  case 0: INTEGERS(int8_t)
  case 1:
  case 14: INTEGERS(uint8_t)
  case 2: INTEGERS(int16_t)
  case 3: INTEGERS(uint16_t)
  case 4: INTEGERS(int32_t)
  case 5: INTEGERS(uint32_t)
  case 6: INTEGERS(int64_t)
  case 7: INTEGERS(uint64_t)
  case 8: FLOATS(float)
  case 9: FLOATS(double)
  case 10: FLOATS(long double)
  case 11: INTEGERS(uint8_t)
  case 12: COMPLEX(float complex)
  case 13: COMPLEX(double complex)
  case 15: PAIRS(float)
  case 16: PAIRS(double)
  case 17: PAIRS(long)
  case 18: PAIRS(int)
  case 19: PAIRS(short)
  case 20: PAIRS(long double)
  case K_MAPS + 3:
    if (op == FIRST) memcpy(y, x, 4);
    break;
  case K_MAPS + 4: {
    u64 a, b;
    memcpy(&a, x, 8), memcpy(&b, y, 8), b *= a, memcpy(y, &b, 8);
    break;
  }
  default: { /* maps v -> a v + b, one after the other */
    uint32_t a[2], b[2];
    const int *at = numbers[kind].at;
    for (int i = 0; i < 2; i++) memcpy(&a[i], x + at[i], 4), memcpy(&b[i], y + at[i], 4);
    b[1] = a[1] * b[0] + b[1], b[0] *= a[0];
    for (int i = 0; i < 2; i++) memcpy(y + at[i], &b[i], 4);
  }
  }
}

/* The functions of the program, for each kind. */
static void apply_all(int kind, int op, byte *x, byte *y, long n) {
  for (long i = 0; i < n; i++) apply(kind, op, x + i * numbers[kind].extent, y + i * numbers[kind].extent);
}
#define FUNCTION(name, kind, op)                                                                                                     \
  static void name(void *x, void *y, int *n, MPI_Datatype *of) { (void)of, apply_all(kind, op, x, y, *n); }                           \
  static void name##_wide(void *x, void *y, MPI_Count *n, MPI_Datatype *of) { (void)of, apply_all(kind, op, x, y, *n); }
FUNCTION(map_0, K_MAPS, MAP)
FUNCTION(map_1, K_MAPS + 1, MAP)
FUNCTION(map_2, K_MAPS + 2, MAP)
FUNCTION(first, K_MAPS + 3, FIRST)
FUNCTION(last, K_MAPS + 3, LAST_OF)
FUNCTION(times, K_MAPS + 4, TIMES)

static MPI_Op operator_of(int kind, int op, int is_wide) {
  MPI_Op all[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_BAND, MPI_LOR, MPI_BOR, MPI_LXOR, MPI_BXOR, MPI_MINLOC, MPI_MAXLOC}, made;
  if (op < MAP) return all[op];
  MPI_User_function *f[] = {map_0, map_1, map_2, op == FIRST ? first : last, times};
  MPI_User_function_c *g[] = {map_0_wide, map_1_wide, map_2_wide, op == FIRST ? first_wide : last_wide, times_wide};
  CHECK(!(is_wide ? MPI_Op_create_c(g[kind - K_MAPS], op == TIMES, &made) : MPI_Op_create(f[kind - K_MAPS], op == TIMES, &made)));
  return made;
}

/* Writes the element that a rank contributes. */
static void contribute(int kind, int op, u64 key, long i, byte *to) {
  rng r = {key ^ (u64)i * 0x9e3779b97f4a7c15ull};
  u64 bits = draw(&r);
  if (op == LAND || op == LOR || op == LXOR || numbers[kind].class == 'l') bits = bits % 3 ? (numbers[kind].class == 'l' ? 1 : bits | 1) : 0;
  double small = op == PROD ? ((double[]){1, -1, 2, 0.5})[bits % 4] : (double)(bits % 17) - 8;
  float f = (float)small;
  long double l = small;
  int index = (int)(bits >> 40) % 50;
  long integer = (long)(bits % 5) - 2;
  short s = (short)integer;
  int four = (int)integer;
  float complex fc = (float)small + (op == PROD ? 0 : (float)(bits >> 32 & 7)) * I;
  double complex dc = small + (op == PROD ? 0 : (double)(bits >> 32 & 7)) * I;
  switch (kind) {
  case 8:
  case 15: memcpy(to, &f, 4); break;
  case 9:
  case 16: memcpy(to, &small, 8); break;
  case 10:
  case 20: memcpy(to, &l, LONG_DOUBLE); break;
  case 12: memcpy(to, &fc, 8); break;
  case 13: memcpy(to, &dc, 16); break;
  case 17: memcpy(to, &integer, 8); break;
  case 18: memcpy(to, &four, 4); break;
  case 19: memcpy(to, &s, 2); break;
  case K_MAPS:
  case K_MAPS + 1:
  case K_MAPS + 2:
    memcpy(to + numbers[kind].at[0], &bits, 4), bits >>= 32, memcpy(to + numbers[kind].at[1], &bits, 4);
    break;
  default: memcpy(to, &bits, numbers[kind].bytes);
  }
  if (numbers[kind].class == 'p') memcpy(to + numbers[kind].at[1], &index, 4);
}

enum { REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, REDUCTIONS };
static const char *reduction_names[] = {"reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"};

/* The parts of elements, in a buffer that starts at an element. */
static void copy_parts(int kind, byte *to, const byte *from, long n) {
  const number *k = &numbers[kind];
  for (long i = 0; i < n; i++)
    for (int part = 0; part < 3; part++)
      if (k->size[part]) memcpy(to + i * k->extent + k->at[part], from + i * k->extent + k->at[part], k->size[part]);
}

static void start_reduction(rng *r, group *c, u64 seed, operation *o, int form) {
  int kind = (int)between(r, 0, KINDS - 1), op, shape, is_inter = c->is_inter;
  if (kind >= K_MAPS)
    op = kind == K_MAPS + 3 ? (chance(r, 50) ? FIRST : LAST_OF) : kind == K_MAPS + 4 ? TIMES : MAP;
  else
    do op = (int)between(r, 0, MAXLOC);
    while (!is_defined(op, numbers[kind].class));
  do shape = (int)between(r, 0, REDUCTIONS - 1);
  while (is_inter && shape >= SCAN);
  const number *k = &numbers[kind];
  static const long sizes[] = {0, 1, 1, 2, 5, 17, 100, 515, 3000, 9000, 40000, 130000};
  long n = sizes[between(r, 0, chance(r, 10) ? 11 : 8)], total;
  int in_place = !is_inter && chance(r, 20), root_at = (int)between(r, 0, c->n_all - 1), both = is_inter ? c->n_all : 1;
  if (is_inter) n = n / both * c->n * c->n_peers;
  u64 cuts = draw(r);
  if (c->me < 0) return;
  int me = c->members[c->me], is_wide = chance(own, 40), counts[MOST_RANKS], first = 0;
  MPI_Count wide_counts[MOST_RANKS];
  if (shape == REDUCE_SCATTER_BLOCK) n = is_inter ? n : n / 4 * c->n;
  total = n;
  rng cut = {cuts};
  for (int i = 0; i < c->n; i++) {
    counts[i] = shape == REDUCE_SCATTER_BLOCK ? (int)(n / c->n) : i == c->n - 1 ? (int)total : (int)(chance(&cut, 20) ? 0 : between(&cut, 0, total));
    total -= counts[i], wide_counts[i] = counts[i];
    if (i < c->me) first += counts[i];
  }
  MPI_Datatype of = type_of_kind(kind);
  MPI_Op operator = operator_of(kind, op, is_wide);
  int root_world = c->all[root_at], is_root = root_world == me, root = -1;
  for (int i = 0; i < c->n_peers; i++)
    if (c->peers[i] == root_world) root = i;
  int is_idle = 0;
  if (is_inter && root < 0) root = is_root ? MPI_ROOT : MPI_PROC_NULL, is_idle = shape == REDUCE && !is_root;
  describe(o, "%s %s%s on %s of kind %d, operator %d, %ld elements, wide %d, seed %llu", form_names[form], reduction_names[shape], in_place ? " in place" : "",
           c->name, kind, op, n, is_wide, seed);
  area *from = &o->areas[0], *to = &o->areas[1];
  long e = k->extent;
  o->n_areas = 2, from->low = to->low = -32, from->high = to->high = n * e + 32;
  fill(from, KEY(seed, me, 5)), fill(to, KEY(seed, me, 6));
  /* The sums of all contributions up to a rank, and the whole. */
  byte *sum = calloc(1, n * e + 64), *one = calloc(1, n * e + 64);
  byte *result = sum + 32, *next = one + 32;
  int n_from = c->n_peers, last_at = shape == SCAN ? c->me : shape == EXSCAN ? c->me - 1 : n_from - 1;
  for (long i = 0; i < n; i++) {
    for (int w = last_at; w >= 0; w--) { /* from the right */
      contribute(kind, op, KEY(seed, c->peers[w], 7), i, (w == last_at ? result : next) + i * e);
      if (w < last_at) apply(kind, op, next + i * e, result + i * e);
    }
    contribute(kind, op, KEY(seed, me, 7), i, next + i * e);
  }
  byte *source = (byte *)address(from), *target = (byte *)address(to);
  int is_source = !is_idle && !(is_inter && shape == REDUCE && is_root), is_target = shape != REDUCE || is_root;
  if (shape == REDUCE && !is_root) in_place = 0;
  if (is_source && !in_place) copy_parts(kind, from->first - from->low, next, n), memcpy(source + from->low, from->first, from->high - from->low);
  memcpy(from->want, from->first, from->high - from->low);
  if (in_place) {
    copy_parts(kind, to->first - to->low, next, n);
    memcpy(target + to->low, to->first, to->high - to->low), memcpy(to->want, to->first, to->high - to->low);
  }
  int is_scattered = shape == REDUCE_SCATTER || shape == REDUCE_SCATTER_BLOCK;
  if (is_target && is_scattered)
    copy_parts(kind, to->want - to->low, result + first * e, counts[c->me]);
  else if (is_target && last_at >= 0)
    copy_parts(kind, to->want - to->low, result, n);
  if (is_target && shape == EXSCAN && c->me == 0) o->is_open = 1; /* undefined */
  if (in_place && is_scattered) o->is_open = 2, o->checked = (long)counts[c->me] * e; /* the rest is undefined */
  if (k->class == 'c') o->zeros = kind == 12 ? 4 : 8;
  if (kind == 10 || kind == 20) o->long_doubles = n, o->step = e;
  free(sum), free(one);
  const void *in = in_place ? MPI_IN_PLACE : source;
  int *narrow_list = keep(o, sizeof counts);
  MPI_Count *wide_list = keep(o, sizeof wide_counts);
  memcpy(narrow_list, counts, sizeof counts), memcpy(wide_list, wide_counts, sizeof wide_counts);
  switch (shape) {
#define ARGS(w) in, target, n, of, operator, root
  case REDUCE: FORMS(Reduce, reduce, Reduce) break;
#undef ARGS
#define ARGS(w) in, target, n, of, operator
  case ALLREDUCE: FORMS(Allreduce, allreduce, Allreduce) break;
  case SCAN: FORMS(Scan, scan, Scan) break;
  case EXSCAN: FORMS(Exscan, exscan, Exscan) break;
#undef ARGS
#define ARGS(w) in, target, w##_list, of, operator
  case REDUCE_SCATTER: FORMS(Reduce_scatter, reduce_scatter, Reduce_scatter) break;
#undef ARGS
#define ARGS(w) in, target, counts[0], of, operator
  case REDUCE_SCATTER_BLOCK: FORMS(Reduce_scatter_block, reduce_scatter_block, Reduce_scatter_block) break;
#undef ARGS
  }
  if (kind >= K_MAPS && kind < K_MAPS + 3) CHECK(!MPI_Type_free(&of));
  if (op >= MAP) {
    if (chance(own, 30))
      CHECK(!MPI_Op_free(&operator)); /* the request keeps it */
    else
      o->op = operator, o->owns_op = 1;
  }
}
