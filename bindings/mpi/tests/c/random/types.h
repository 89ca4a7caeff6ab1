/* Random derived types, each beside the list of its pieces, which the program computes itself from the standard's definitions. */
#include "../test.h"

typedef unsigned long long u64;
typedef unsigned char byte;

/* Checks the code of a call, as an expression. */
#define CHECK_CALL(call) check_code((call), #call)
static void check_code(int code, const char *call) {
  if (code) fprintf(stderr, "rank %d of %d: code %d of %s\n", rank, size, code, call), exit(1);
}

/* Random numbers: ranks that start with the same state draw the same. */
typedef struct {
  u64 state;
} rng;

static u64 draw(rng *r) {
  u64 z = r->state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

static long between(rng *r, long low, long high) { return low + (long)(draw(r) % (u64)(high - low + 1)); }
static int chance(rng *r, int percent) { return between(r, 0, 99) < percent; }

static rng derived(u64 seed, u64 who) {
  rng r = {seed ^ (who + 1) * 0xd6e8feb86659fd93ull};
  draw(&r);
  return r;
}

static void shuffle(rng *r, int *list, int n) {
  for (int i = n - 1; i > 0; i--) {
    int j = (int)between(r, 0, i), t = list[i];
    list[i] = list[j], list[j] = t;
  }
}

/* The elementary types: each has one or two pieces. */
typedef struct {
  MPI_Datatype type;
  int first, at, second, extent;
} basic;
enum { BASICS = 19 };
static basic basics[BASICS];
static void name_basics(void) {
  basic all[BASICS] = {
      {MPI_CHAR, 1, 0, 0, 1},         {MPI_INT, 4, 0, 0, 4},          {MPI_DOUBLE, 8, 0, 0, 8},       {MPI_SHORT, 2, 0, 0, 2},
      {MPI_BYTE, 1, 0, 0, 1},         {MPI_FLOAT, 4, 0, 0, 4},        {MPI_LONG, 8, 0, 0, 8},         {MPI_UNSIGNED_SHORT, 2, 0, 0, 2},
      {MPI_LONG_DOUBLE, 16, 0, 0, 16}, {MPI_2INT, 4, 4, 4, 8},        {MPI_SHORT_INT, 2, 4, 4, 8},    {MPI_DOUBLE_INT, 8, 8, 4, 16},
      {MPI_LONG_INT, 8, 8, 4, 16},    {MPI_FLOAT_INT, 4, 4, 4, 8},    {MPI_C_DOUBLE_COMPLEX, 16, 0, 0, 16}, {MPI_UINT64_T, 8, 0, 0, 8},
      {MPI_C_BOOL, 1, 0, 0, 1},       {MPI_WCHAR, 4, 0, 0, 4},        {MPI_LONG_DOUBLE_INT, 16, 16, 4, 32}};
  memcpy(basics, all, sizeof all);
}

typedef struct {
  long at;
  int size;
} piece;

/* A type. A bound is fixed if a resized type or an array has set it: fixed bounds take precedence over the others. */
typedef struct {
  MPI_Datatype type;
  int is_own, is_fixed_low, is_fixed_high;
  piece *pieces;
  long n, room, low, high, true_low, true_high, bytes;
} shape;

static shape empty(void) {
  shape s;
  memset(&s, 0, sizeof s);
  s.low = s.true_low = 1l << 40, s.high = s.true_high = -(1l << 40);
  return s;
}

static long extent_of(const shape *s) { return s->high - s->low; }
static long span_of(const shape *s) { return s->true_high - s->true_low; }

static void append(shape *s, long at, int size) {
  if (s->n == s->room) s->pieces = realloc(s->pieces, (s->room = 2 * s->room + 8) * sizeof(piece));
  s->pieces[s->n++] = (piece){at, size};
  if (at < s->true_low) s->true_low = at;
  if (at + size > s->true_high) s->true_high = at + size;
  s->bytes += size;
}

/* Adds a block of elements at a displacement in bytes. */
static void add(shape *s, const shape *of, long count, long at) {
  for (long i = 0; i < count; i++) {
    long here = at + i * extent_of(of);
    for (long p = 0; p < of->n; p++) append(s, here + of->pieces[p].at, of->pieces[p].size);
    if (!of->n && !of->is_fixed_low && !of->is_fixed_high) continue;
    if (of->is_fixed_low && !s->is_fixed_low) s->is_fixed_low = 1, s->low = here + of->low;
    if (of->is_fixed_low == s->is_fixed_low && here + of->low < s->low) s->low = here + of->low;
    if (of->is_fixed_high && !s->is_fixed_high) s->is_fixed_high = 1, s->high = here + of->high;
    if (of->is_fixed_high == s->is_fixed_high && here + of->high > s->high) s->high = here + of->high;
  }
}

/* Ends the making of a shape: compares its bounds with the library's, whose padding for alignment is taken over. */
static void finish(shape *s, const char *how) {
  MPI_Aint low, extent, true_low, true_extent;
  MPI_Count bytes;
  s->is_own = 1;
  if (s->low > (1l << 39)) s->low = 0;
  if (s->high < -(1l << 39)) s->high = 0;
  if (!s->n) s->true_low = s->true_high = 0;
  CHECK(!MPI_Type_get_extent(s->type, &low, &extent) && !MPI_Type_get_true_extent(s->type, &true_low, &true_extent));
  CHECK(!MPI_Type_size_x(s->type, &bytes));
  if (bytes != s->bytes || low != s->low || (s->n && (true_low != s->true_low || true_extent != span_of(s))) || low + extent < s->high ||
      low + extent > s->high + (s->is_fixed_high ? 0 : 31))
    fprintf(stderr, "%s: %lld bytes from %ld on, extent %ld, true %ld %ld; not %ld from %ld, %ld, %ld %ld, fixed %d %d\n", how, bytes, (long)low,
            (long)extent, (long)true_low, (long)true_extent, s->bytes, s->low, extent_of(s), s->true_low, span_of(s), s->is_fixed_low,
            s->is_fixed_high),
        exit(1);
  s->high = low + extent;
}

static void drop(shape *s) {
  if (s->is_own) CHECK(!MPI_Type_free(&s->type));
  free(s->pieces);
}

static shape of_basic(int which) {
  const basic *b = &basics[which];
  shape s = empty();
  append(&s, 0, b->first);
  if (b->second) append(&s, b->at, b->second);
  s.type = b->type, s.low = 0, s.high = b->extent;
  return s;
}

/* The rules for a type: from 0, without gaps, to 3, where elements may overlap; and the most bytes of an array. */
typedef struct {
  rng *r;
  int wild, room;
} rules;

static shape make(rules *u, const int *signature, int n, int depth);

static void resize(rules *u, shape *s) {
  shape t = *s;
  MPI_Aint low = s->true_low, extent = span_of(s);
  if (chance(u->r, 30)) low -= between(u->r, 0, 20);
  if (chance(u->r, 50)) extent += between(u->r, 0, 24);
  if (u->wild > 1 && chance(u->r, 40)) low += between(u->r, -64, 64), extent = between(u->r, 0, 2 * extent + 1);
  if (u->wild > 2 && chance(u->r, 20)) extent = -extent;
  if (chance(u->r, 50))
    CHECK(!MPI_Type_create_resized(s->type, low, extent, &t.type));
  else
    CHECK(!MPI_Type_create_resized_c(s->type, low, extent, &t.type));
  t.low = low, t.high = low + extent, t.is_fixed_low = t.is_fixed_high = 1;
  if (s->is_own) CHECK(!MPI_Type_free(&s->type));
  *s = t;
  finish(s, "resized");
}

/* The indices of a process in one dimension of a distributed array. Returns their number. */
static int distributed(int total, int processes, int me, int kind, int part, int *indices) {
  int n = 0;
  if (kind == MPI_DISTRIBUTE_NONE || processes == 1) me = 0, processes = 1, kind = MPI_DISTRIBUTE_NONE;
  if (kind == MPI_DISTRIBUTE_BLOCK && part == MPI_DISTRIBUTE_DFLT_DARG) part = (total + processes - 1) / processes;
  if (kind == MPI_DISTRIBUTE_CYCLIC && part == MPI_DISTRIBUTE_DFLT_DARG) part = 1;
  for (int i = 0; i < total; i++)
    if (kind == MPI_DISTRIBUTE_NONE || (kind == MPI_DISTRIBUTE_BLOCK ? i / part : i / part % processes) == me) {
      if (indices) indices[n] = i;
      n++;
    }
  return n;
}

/* A divisor of n, drawn at random. */
static int divisor(rng *r, int n) {
  int list[64], k = 0;
  for (int d = 1; d <= n && k < 64; d++)
    if (n % d == 0) list[k++] = d;
  return list[between(r, 0, k - 1)];
}

/* An array of m elements out of a larger one: a subarray, or the part of a process. */
static int make_array(rules *u, shape *s, const shape *child, int m) {
  int a = divisor(u->r, m), sub[3] = {a, divisor(u->r, m / a), 0}, full[3], start[3], nd = 3;
  int order = chance(u->r, 50) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, is_distributed = chance(u->r, 50);
  int kinds[3], parts[3], grid[3], me[3], *at[3];
  MPI_Count wide[3], wide_sub[3], wide_start[3];
  sub[2] = m / a / sub[1];
  if (chance(u->r, 40)) sub[0] = m, nd = 1;
  for (int d = 0; d < nd; d++) {
    at[d] = malloc(sizeof(int) * (sub[d] + 1));
    if (!is_distributed) {
      full[d] = sub[d] + (int)between(u->r, 0, 2), start[d] = (int)between(u->r, 0, full[d] - sub[d]);
      for (int i = 0; i < sub[d]; i++) at[d][i] = start[d] + i;
      continue;
    }
    int all[3] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE};
    kinds[d] = all[between(u->r, 0, 2)], grid[d] = kinds[d] == MPI_DISTRIBUTE_NONE ? 1 : (int)between(u->r, 1, 3);
    me[d] = (int)between(u->r, 0, grid[d] - 1), parts[d] = MPI_DISTRIBUTE_DFLT_DARG;
    if (kinds[d] == MPI_DISTRIBUTE_CYCLIC && chance(u->r, 70)) parts[d] = (int)between(u->r, 1, 4);
    for (full[d] = sub[d]; distributed(full[d], grid[d], me[d], kinds[d], parts[d], NULL) < sub[d]; full[d]++)
      if (full[d] > 4 * sub[d] + 20) return 0;
    if (distributed(full[d], grid[d], me[d], kinds[d], parts[d], NULL) != sub[d]) return 0;
    distributed(full[d], grid[d], me[d], kinds[d], parts[d], at[d]);
  }
  long total = 1;
  for (int d = 0; d < nd; d++) total *= full[d], wide[d] = full[d], wide_sub[d] = sub[d], wide_start[d] = start[d];
  if (total * extent_of(child) > u->room) return 0;
  int is_c = order == MPI_ORDER_C, inner = is_c ? nd - 1 : 0, step = is_c ? -1 : 1, is_wide = chance(u->r, 50);
  for (int i = 0; i < m; i++) {
    long place = 0, rest = i, unit = 1;
    for (int k = 0, d = inner; k < nd; k++, d += step) place += at[d][rest % sub[d]] * unit, unit *= full[d], rest /= sub[d];
    add(s, child, 1, place * extent_of(child));
  }
  for (int d = 0; d < nd; d++) free(at[d]);
  s->low = 0, s->high = total * extent_of(child), s->is_fixed_low = s->is_fixed_high = 1;
  int processes = 1, number = 0;
  for (int d = 0; is_distributed && d < nd; d++) number = number * grid[d] + me[d], processes *= grid[d];
  if (is_distributed && is_wide)
    CHECK(!MPI_Type_create_darray_c(processes, number, nd, wide, kinds, parts, grid, order, child->type, &s->type));
  else if (is_distributed)
    CHECK(!MPI_Type_create_darray(processes, number, nd, full, kinds, parts, grid, order, child->type, &s->type));
  else if (is_wide)
    CHECK(!MPI_Type_create_subarray_c(nd, wide, wide_sub, wide_start, order, child->type, &s->type));
  else
    CHECK(!MPI_Type_create_subarray(nd, full, sub, start, order, child->type, &s->type));
  finish(s, is_distributed ? "darray" : "subarray");
  return 1;
}

/* Strided blocks: m elements in blocks of one length. */
static void make_strided(rules *u, shape *s, const shape *child, int m, int in_bytes) {
  int length = divisor(u->r, m), count = m / length, is_wide = chance(u->r, 50);
  long unit = in_bytes ? 1 : extent_of(child), stride = length + (chance(u->r, 70) ? between(u->r, 0, 3) : 0);
  if (u->wild > 1 && chance(u->r, 20)) stride = between(u->r, -stride, stride);
  if (chance(u->r, 20)) stride = -stride;
  if (in_bytes) stride = stride * extent_of(child) + (chance(u->r, 50) ? between(u->r, 0, 9) * (stride < 0 ? -1 : 1) : 0);
  for (int i = 0; i < count; i++) add(s, child, length, i * stride * unit);
  if (in_bytes && is_wide)
    CHECK(!MPI_Type_create_hvector_c(count, length, stride, child->type, &s->type));
  else if (in_bytes)
    CHECK(!MPI_Type_create_hvector(count, length, stride, child->type, &s->type));
  else if (is_wide)
    CHECK(!MPI_Type_vector_c(count, length, stride, child->type, &s->type));
  else
    CHECK(!MPI_Type_vector(count, length, (int)stride, child->type, &s->type));
  finish(s, in_bytes ? "hvector" : "vector");
}

/* Blocks at listed places, of one length or of several, some of length zero. */
static void make_listed(rules *u, shape *s, const shape *child, int m, int in_bytes, int is_even) {
  int *lengths = malloc((2 * m + 8) * sizeof(int)), *places = malloc((2 * m + 8) * sizeof(int)), *order = malloc((2 * m + 8) * sizeof(int));
  MPI_Aint *at = malloc((2 * m + 8) * sizeof *at);
  MPI_Count *wide_lengths = malloc((2 * m + 8) * sizeof *wide_lengths), *wide = malloc((2 * m + 8) * sizeof *wide);
  int k = 0, length = divisor(u->r, m), is_wide = chance(u->r, 50), gaps = chance(u->r, 70) ? 3 : 0;
  for (int left = m; left; k++) {
    int most = left < 9 ? left : 9;
    lengths[k] = is_even ? length : (int)between(u->r, k >= m, most), left -= lengths[k];
    if (!is_even && left && chance(u->r, 3)) lengths[k] += left, left = 0;
  }
  for (int i = 0; i < k; i++) order[i] = i;
  if (chance(u->r, 30)) shuffle(u->r, order, k);
  long place = between(u->r, -3, 3);
  for (int i = 0; i < k; i++) {
    int b = order[i];
    places[b] = (int)place, at[b] = place * extent_of(child) + (in_bytes && gaps ? 2 * i : 0);
    place += lengths[b] + between(u->r, 0, gaps);
    if (u->wild > 1 && chance(u->r, 3)) place -= between(u->r, 0, 6);
  }
  for (int i = 0; i < k; i++) {
    add(s, child, lengths[i], in_bytes ? at[i] : places[i] * extent_of(child));
    wide_lengths[i] = lengths[i], wide[i] = in_bytes ? at[i] : places[i];
  }
#define EITHER(plain, large) CHECK(!(is_wide ? (large) : (plain)))
  if (is_even && in_bytes)
    EITHER(MPI_Type_create_hindexed_block(k, length, at, child->type, &s->type), MPI_Type_create_hindexed_block_c(k, length, wide, child->type, &s->type));
  else if (is_even)
    EITHER(MPI_Type_create_indexed_block(k, length, places, child->type, &s->type), MPI_Type_create_indexed_block_c(k, length, wide, child->type, &s->type));
  else if (in_bytes)
    EITHER(MPI_Type_create_hindexed(k, lengths, at, child->type, &s->type), MPI_Type_create_hindexed_c(k, wide_lengths, wide, child->type, &s->type));
  else
    EITHER(MPI_Type_indexed(k, lengths, places, child->type, &s->type), MPI_Type_indexed_c(k, wide_lengths, wide, child->type, &s->type));
  finish(s, in_bytes ? (is_even ? "hindexed block" : "hindexed") : is_even ? "indexed block" : "indexed");
  free(lengths), free(places), free(order), free(at), free(wide_lengths), free(wide);
}

/* The number of times that a signature repeats its first `period` elements, if it does. */
static int repeats(const int *signature, int n, int period) {
  if (n % period) return 0;
  for (int i = period; i < n; i++)
    if (signature[i] != signature[i - period]) return 0;
  return n / period;
}

/* A structure of up to six members. */
static void make_struct(rules *u, shape *s, const int *signature, int n, int depth) {
  int members = 0, lengths[8], order[8], cut = 0;
  MPI_Aint at[8];
  MPI_Count wide_lengths[8], wide[8];
  MPI_Datatype types[8];
  shape parts[8];
  while (cut < n || !members) {
    int len = members == 5 ? n - cut : (int)between(u->r, n - cut < 1 ? 0 : 1, n - cut), times = 1;
    if (members < 5 && chance(u->r, 10)) len = 0;
    if (len > 1 && chance(u->r, 40)) {
      int period = divisor(u->r, len);
      if (repeats(signature + cut, len, period)) times = len / period, len = period;
    }
    if (len == 0) {
      times = 0;
      int other = (int)between(u->r, 0, BASICS - 1);
      parts[members] = make(u, &other, 1, depth + 3);
    } else
      parts[members] = make(u, signature + cut, len, depth + 1);
    lengths[members] = times, cut += len * times, types[members] = parts[members].type, order[members] = members, members++;
  }
  if (chance(u->r, 30)) shuffle(u->r, order, members);
  long place = between(u->r, -8, 8) * (u->wild > 0);
  for (int i = 0; i < members; i++) {
    int b = order[i];
    shape block = empty();
    add(&block, &parts[b], lengths[b], 0);
    if (!block.n) block.true_low = block.true_high = 0;
    at[b] = place - block.true_low, place += span_of(&block) + (chance(u->r, 50) ? between(u->r, 0, 12) : 0);
    if (u->wild > 1 && chance(u->r, 5)) place -= between(u->r, 0, 40);
    free(block.pieces);
  }
  for (int i = 0; i < members; i++) add(s, &parts[i], lengths[i], at[i]), wide_lengths[i] = lengths[i], wide[i] = at[i];
  int is_wide = chance(u->r, 50);
  EITHER(MPI_Type_create_struct(members, lengths, at, types, &s->type), MPI_Type_create_struct_c(members, wide_lengths, wide, types, &s->type));
  for (int i = 0; i < members; i++) drop(&parts[i]);
  finish(s, "struct");
}

/* Makes a type with a signature, by constructors drawn at random. */
static shape make(rules *u, const int *signature, int n, int depth) {
  shape s = empty(), child;
  int period = 0, tries = n > 1 && depth < 6 ? 4 : 0, uniform = n > 1 ? repeats(signature, n, 1) : 0;
  if (n == 0) {
    int one = (int)between(u->r, 0, BASICS - 1);
    child = of_basic(one);
    CHECK(!MPI_Type_contiguous(0, child.type, &s.type));
    free(child.pieces);
    finish(&s, "nothing");
    return s;
  }
  while (tries-- > 0 && !period) {
    int p = divisor(u->r, n);
    if (p < n && repeats(signature, n, p)) period = p;
  }
  if (!period && (depth >= 6 || n > 40)) /* ends the recursion */
    for (int p = uniform ? 1 : 2; p < n && !period; p++)
      if (repeats(signature, n, p)) period = p;
  if (n == 1)
    s = of_basic(signature[0]);
  else if (period && (depth >= 6 || n > 40 || chance(u->r, 80))) {
    int m = n / period;
    child = make(u, signature, period, depth + 1);
    int kind = (int)between(u->r, 0, extent_of(&child) > 0 ? 8 : 6);
    if (u->wild == 0 || (kind > 6 && !make_array(u, &s, &child, m))) {
      free(s.pieces), s = empty(), kind = 0;
    }
    if (kind == 0) {
      add(&s, &child, m, 0);
      int is_wide = chance(u->r, 50);
      EITHER(MPI_Type_contiguous(m, child.type, &s.type), MPI_Type_contiguous_c(m, child.type, &s.type));
      finish(&s, "contiguous");
    } else if (kind <= 2)
      make_strided(u, &s, &child, m, kind == 2);
    else if (kind <= 6)
      make_listed(u, &s, &child, m, kind & 1, kind > 4);
    drop(&child);
  } else
    make_struct(u, &s, signature, n, depth);
  if (chance(u->r, depth ? 8 : 12) && u->wild > 0) {
    shape t = s;
    CHECK(!MPI_Type_dup(s.type, &t.type));
    if (s.is_own) CHECK(!MPI_Type_free(&s.type));
    s = t, s.is_own = 1;
  }
  if (chance(u->r, depth ? 10 : 20) && u->wild > 0) resize(u, &s);
  return s;
}
