/* Data in memory: layouts, their bytes, and memory that is compared with what it should be. */
#include "types.h"

/* A byte of the data that a key names. */
static byte byte_of(u64 key, long at) {
  u64 z = (key ^ (u64)at * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
  return (byte)(z >> 56);
}

/* The elements of a message: how often its unit, a signature, is repeated, and in what units all ranks count. */
typedef struct {
  int unit[6], length;
  int group; /* every count is a multiple of this; a rank's type has a divisor of it */
} signature;

/* A type, and the range of bytes around its address that all elements occupy. */
typedef struct {
  shape s;
  int units; /* of the signature, per element */
} layout;

static signature draw_signature(rng *r, int most_group) {
  static const int groups[] = {1, 1, 2, 4, 6, 12, 24, 60, 120, 360, 1024};
  signature g;
  g.length = chance(r, 60) ? 1 : (int)between(r, 1, 6);
  for (int i = 0; i < g.length; i++) g.unit[i] = (int)between(r, 0, BASICS - 1);
  do g.group = groups[between(r, 0, 10)];
  while (g.group > most_group);
  return g;
}

/* Whether elements overlap each other or themselves. */
static int overlaps(const shape *s, long count) {
  long e = extent_of(s), span = span_of(s);
  if (!s->n || !count) return 0;
  if (e == 0 && count > 1) return 1;
  long step = e < 0 ? -e : e;
  if (e && count > span / step + 1) count = span / step + 1;
  byte *marks = calloc(1, span + step * count + 1);
  long low = e < 0 ? s->true_low + (count - 1) * e : s->true_low;
  int found = 0;
  for (long i = 0; i < count && !found; i++)
    for (long p = 0; p < s->n && !found; p++)
      for (int b = 0; b < s->pieces[p].size; b++) {
        byte *mark = &marks[i * e + s->pieces[p].at + b - low];
        if (*mark) found = 1;
        *mark = 1;
      }
  free(marks);
  return found;
}

enum { SENT, RECEIVED, BLOCKS };

/* Makes a layout for up to `count` groups. Received data must not overlap; blocks also need an extent above zero. */
static layout layout_of(rng *r, const signature *g, long groups, int use) {
  layout l;
  l.units = divisor(r, g->group);
  int n = g->length * l.units, *list = malloc(n * sizeof(int));
  for (int i = 0; i < n; i++) list[i] = g->unit[i % g->length];
  if (!groups && chance(r, 20)) l.units = n = 0;
  for (int tries = 0;; tries++) {
    rules u = {r, tries < 6 ? 3 - tries / 2 : 0, tries > 3 ? 2000000 : 200000};
    l.s = make(&u, list, n, 0);
    long e = extent_of(&l.s), count = l.units ? groups * g->group / l.units : 0, length = span_of(&l.s) + (e < 0 ? -e : e) * count;
    if (tries > 7 || (length < 24000000 && length < 40 * l.s.bytes * (count + 1) + 100000 && (use == SENT || !overlaps(&l.s, count)) &&
        (use != BLOCKS || e > 0 || (!l.s.n && e == 0))))
      break;
    drop(&l.s);
  }
  free(list);
  if (l.s.is_own) CHECK(!MPI_Type_commit(&l.s.type));
  return l;
}

static void drop_layout(layout *l) { drop(&l->s); }

/* The number of elements that a number of groups makes. */
static long count_of(const layout *l, const signature *g, long groups) { return l->units ? groups * g->group / l->units : 0; }

/* Memory around an address: what it held at first, and what it should hold in the end. */
typedef struct {
  byte *mem, *first, *want;
  long low, high;
} area;

static void widen(area *a, const shape *s, long count, long at) {
  if (!count || !s->n) return;
  long last = at + (count - 1) * extent_of(s), low = at < last ? at : last, high = at < last ? last : at;
  if (low + s->true_low < a->low) a->low = low + s->true_low;
  if (high + s->true_high > a->high) a->high = high + s->true_high;
}

/* Reserves the memory, with some bytes around, and fills it with the data of a key. The address has an alignment of 16 at displacement 0. */
static void fill(area *a, u64 key) {
  a->low -= 48 + ((a->low % 16) + 16) % 16, a->high += 32;
  a->low -= ((a->low % 16) + 16) % 16;
  long n = a->high - a->low;
  a->mem = malloc(n), a->first = malloc(n), a->want = malloc(n);
  for (long i = 0; i < n; i++) a->first[i] = byte_of(key, i + a->low);
  memcpy(a->mem, a->first, n), memcpy(a->want, a->first, n);
}

static void *address(const area *a) { return a->mem - a->low; }

static void release(area *a) { free(a->mem), free(a->first), free(a->want); }

static void compare(const area *a, const char *what) {
  long n = a->high - a->low;
  if (!memcmp(a->mem, a->want, n)) return;
  long i = 0, wrong = 0;
  while (a->mem[i] == a->want[i]) i++;
  for (long k = i; k < n; k++) wrong += a->mem[k] != a->want[k];
  fprintf(stderr, "rank %d of %d: WRONG %s: at %ld of %ld to %ld: %02x not %02x (at first %02x), %ld bytes wrong\n", rank, size, what, i + a->low,
          a->low, a->high, a->mem[i], a->want[i], a->first[i], wrong);
  exit(1);
}

/* Appends the bytes of elements that hold the data of a key. */
static byte *stream(byte *to, const shape *s, long count, long at, u64 key) {
  for (long i = 0; i < count; i++)
    for (long p = 0; p < s->n; p++)
      for (int b = 0; b < s->pieces[p].size; b++) *to++ = byte_of(key, at + i * extent_of(s) + s->pieces[p].at + b);
  return to;
}

/* Puts bytes where the elements have them, in the memory as it should be; up to `n` bytes. */
static void put(area *a, const shape *s, long count, long at, const byte *from, long n) {
  for (long i = 0; i < count; i++)
    for (long p = 0; p < s->n; p++)
      for (int b = 0; b < s->pieces[p].size; b++, n--) {
        if (n <= 0) return;
        a->want[at + i * extent_of(s) + s->pieces[p].at + b - a->low] = *from++;
      }
}

/* A number of groups: often none or one, rarely some MiB. */
static long draw_groups(rng *r, const signature *g, long most_bytes) {
  long bytes = 0;
  for (int i = 0; i < g->length; i++) bytes += basics[g->unit[i]].first + basics[g->unit[i]].second;
  bytes *= g->group;
  static const long sizes[] = {0, 1, 8, 64, 300, 1000, 4096, 5000, 16384, 33000, 65536, 66000, 131072, 262144, 300000, 600000, 1100000, 2500000};
  long target = sizes[between(r, 0, chance(r, 15) ? 17 : chance(r, 40) ? 13 : 8)];
  if (target > most_bytes) target = most_bytes;
  long groups = target / bytes + (target > 0 && chance(r, 50));
  return groups * bytes > most_bytes + bytes ? 1 : groups;
}
