/* Operations in flight: their requests, their memory, and the random ways to complete them. */
#include "layouts.h"
#include <stdarg.h>

enum { MOST_RANKS = 8, AREAS = 2, REQUESTS = 2 };

/* A communicator, as all ranks know it: the ranks in the world of its members; for an intercommunicator, also of the others. */
typedef struct {
  MPI_Comm comm;
  int n, me, members[MOST_RANKS], is_inter, is_cart, n_peers, peers[MOST_RANKS];
  int n_all, all[MOST_RANKS]; /* both, sorted */
  /* The neighbours of each member, if there is a topology. */
  int has_neighbors, n_in[MOST_RANKS], n_out[MOST_RANKS], in[MOST_RANKS][12], out[MOST_RANKS][12];
  char name[32];
} group;

typedef struct {
  MPI_Request requests[REQUESTS];
  int n_requests, rounds, started, n_areas, n_layouts;
  area areas[AREAS];
  layout layouts[2 * (MOST_RANKS + 8)];
  void *kept[12];
  int n_kept;
  MPI_Op op;
  int is_open;  /* the second area is undefined: all of it, or what lies behind `checked` bytes */
  long checked; /* from the address on */
  long long_doubles, step; /* elements of the second area that end with six bytes of padding, which may have any value */
  int owns_op;
  int is_message;
  int zeros; /* the size of floating-point numbers in the second area whose zeros may have any sign */
  char what[400];
} operation;

static __thread rng *own; /* decisions of this rank and thread alone */

static void describe(operation *o, const char *format, ...) {
  va_list list;
  va_start(list, format);
  size_t n = strlen(o->what);
  vsnprintf(o->what + n, sizeof o->what - n, format, list);
  va_end(list);
}

/* Memory that lasts as long as the operation. */
static void *keep(operation *o, size_t bytes) {
  CHECK(o->n_kept < 12);
  return o->kept[o->n_kept++] = calloc(1, bytes + 8);
}

static void end(operation *o) {
  for (int i = 0; i < o->n_requests; i++)
    if (o->requests[i] != MPI_REQUEST_NULL) CHECK(!MPI_Request_free(&o->requests[i]));
  for (int i = 0; i < o->n_areas; i++) release(&o->areas[i]);
  for (int i = 0; i < o->n_layouts; i++) drop_layout(&o->layouts[i]);
  for (int i = 0; i < o->n_kept; i++) free(o->kept[i]);
  if (o->owns_op) CHECK(!MPI_Op_free(&o->op));
}

/* Drops the sign of a number that is zero. */
static void drop_sign(byte *number, int bytes) {
  static const byte zero[8];
  if (!memcmp(number, zero, bytes - 1) && number[bytes - 1] == 0x80) number[bytes - 1] = 0;
}

static void check_areas(operation *o) {
  area *a = &o->areas[1];
  for (long i = 0; i < o->long_doubles; i++) memcpy(a->want - a->low + i * o->step + 10, a->mem - a->low + i * o->step + 10, 6);
  for (long i = 0; o->zeros && i + o->zeros <= a->high; i += o->zeros) drop_sign(a->mem - a->low + i, o->zeros), drop_sign(a->want - a->low + i, o->zeros);
  if (o->is_open) {
    long low = (o->is_open == 2 ? o->checked : 0) - a->low - 16, n = a->high - a->low - low;
    memcpy(a->want + low, a->mem + low, n);
  }
  for (int i = 0; i < o->n_areas; i++) compare(&o->areas[i], o->what);
}

/* Completes requests in a way drawn at random. Persistent ones remain, inactive. */
static void complete(int n, MPI_Request *all) {
  int left = n, index, flag = 0, *order = malloc((n + 1) * sizeof(int)), *done = malloc((n + 1) * sizeof(int)), some;
  MPI_Status *statuses = malloc((n + 1) * sizeof *statuses);
  for (int i = 0; i < n; i++) order[i] = i;
  shuffle(own, order, n);
  switch (between(own, 0, 9)) {
  case 0:
  case 1: CHECK(!MPI_Waitall(n, all, chance(own, 50) ? statuses : MPI_STATUSES_IGNORE)); break;
  case 2:
    for (int i = 0; i < n; i++) CHECK(!MPI_Wait(&all[order[i]], MPI_STATUS_IGNORE));
    break;
  case 3:
    while (CHECK_CALL(MPI_Waitany(n, all, &index, statuses)), index != MPI_UNDEFINED) CHECK(index >= 0 && index < n && left-- > 0);
    break;
  case 4:
    while (CHECK_CALL(MPI_Waitsome(n, all, &some, done, statuses)), some != MPI_UNDEFINED) CHECK(some > 0 && some <= n);
    break;
  case 5:
    while (!flag) CHECK(!MPI_Testall(n, all, &flag, MPI_STATUSES_IGNORE));
    break;
  case 6:
    for (index = 0; !flag || index != MPI_UNDEFINED;) CHECK(!MPI_Testany(n, all, &index, &flag, statuses));
    break;
  case 7:
    for (some = 0; some != MPI_UNDEFINED;) CHECK(!MPI_Testsome(n, all, &some, done, statuses));
    break;
  case 8:
    for (int i = 0; i < n; i++)
      for (flag = 0; !flag;) CHECK(!MPI_Test(&all[order[i]], &flag, statuses));
    break;
  default:
    for (int i = 0; i < n; i++) {
      for (flag = 0; !flag;) CHECK(!MPI_Request_get_status(all[order[i]], &flag, statuses));
      CHECK(!MPI_Test(&all[order[i]], &flag, statuses) && flag);
    }
  }
  free(order), free(done), free(statuses);
}

/* Completes a batch of started operations, starts persistent ones again as long as they have rounds, and checks what they left. */
static void finish_batch(operation **list, int n) {
  MPI_Request *all = malloc((n * REQUESTS + 1) * sizeof *all);
  for (;;) {
    int active = 0, is_more = 0;
    for (int i = 0; i < n; i++)
      if (list[i]->started)
        for (int k = 0; k < list[i]->n_requests; k++) all[active++] = list[i]->requests[k];
    if (active) complete(active, all);
    active = 0;
    for (int i = 0; i < n; i++) {
      operation *o = list[i];
      if (o->started)
        for (int k = 0; k < o->n_requests; k++) o->requests[k] = all[active++];
      if (o->started || !o->n_requests) check_areas(o);
      o->started = 0;
    }
    /* Persistent collectives may start in any order; messages with equal tags keep theirs. */
    int order[16];
    for (int i = 0; i < n; i++) order[i] = i;
    if (chance(own, 50)) shuffle(own, order, n);
    for (int pass = 0; pass < 2 * n; pass++) {
      operation *o = list[pass < n ? order[pass] : pass - n];
      if (o->is_message != (pass >= n)) continue;
      if (!o->n_requests || --o->rounds <= 0) continue;
      for (int k = 0; k < o->n_areas; k++) memcpy(o->areas[k].mem, o->areas[k].first, o->areas[k].high - o->areas[k].low);
      if (chance(own, 50))
        CHECK(!MPI_Startall(o->n_requests, o->requests));
      else
        for (int k = 0; k < o->n_requests; k++) CHECK(!MPI_Start(&o->requests[k]));
      o->started = is_more = 1;
    }
    if (!is_more) break;
  }
  for (int i = 0; i < n; i++) end(list[i]), free(list[i]);
  free(all);
}
