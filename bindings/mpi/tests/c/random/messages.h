/* Messages: in all modes, matched by rank and tag or by wildcards, probed, cancelled, cut short, in parts. */
#include "reductions.h"

#define SEND(NAME) (is_wide ? MPI_##NAME##_c(from, count, of, to, tag, c->comm) : MPI_##NAME(from, (int)count, of, to, tag, c->comm))
#define ISEND(NAME) (is_wide ? MPI_##NAME##_c(from, count, of, to, tag, c->comm, req) : MPI_##NAME(from, (int)count, of, to, tag, c->comm, req))

/* Buffered sends have a buffer for the whole run. */
enum { ATTACHED = 1 << 25 };

/* Sends without waiting, in a mode drawn at random. Ready sends need a receive that is known to be posted. */
static void start_send(group *c, const void *from, long count, MPI_Datatype of, int to, int tag, int is_ready, long bytes, MPI_Request *req) {
  int is_wide = chance(own, 30);
  switch (between(own, 0, 5)) {
  case 0: CHECK_CALL(ISEND(Issend)); break;
  case 1:
    if (bytes < 20000) {
      CHECK_CALL(ISEND(Ibsend));
      break;
    } /* fall through */
  case 2:
    if (is_ready) {
      CHECK_CALL(ISEND(Irsend));
      break;
    } /* fall through */
  default: CHECK_CALL(ISEND(Isend));
  }
}

static void init_send(group *c, const void *from, long count, MPI_Datatype of, int to, int tag, long bytes, MPI_Request *req) {
  int is_wide = chance(own, 30);
  if (chance(own, 30))
    CHECK_CALL(ISEND(Ssend_init));
  else if (chance(own, 30) && bytes < 20000)
    CHECK_CALL(ISEND(Bsend_init));
  else
    CHECK_CALL(ISEND(Send_init));
}

/* Wraps elements in a type with absolute addresses, for MPI_BOTTOM. */
static MPI_Datatype absolute(void *at, long count, MPI_Datatype of) {
  MPI_Datatype all;
  MPI_Aint place;
  int length = (int)count;
  CHECK(!MPI_Get_address(at, &place) && !MPI_Type_create_hindexed(1, &length, &place, of, &all) && !MPI_Type_commit(&all));
  return all;
}

enum { TAG_EXCHANGE = 5, TAG_MAIL = 100 };

/* Sends the data of a buffer, and receives other data into it, with one layout for both. */
static void start_replace(group *c, operation *o, int form, int to, int from, int tag, const layout *in, long count) {
  int is_wide = chance(own, 40);
  MPI_Status status;
  void *at = address(&o->areas[1]);
  MPI_Datatype of = in->s.type;
  if (form == STARTED)
    CHECK_CALL(is_wide ? MPI_Isendrecv_replace_c(at, count, of, to, tag, from, tag, c->comm, o->requests)
                       : MPI_Isendrecv_replace(at, (int)count, of, to, tag, from, tag, c->comm, o->requests));
  else
    CHECK_CALL(is_wide ? MPI_Sendrecv_replace_c(at, count, of, to, tag, from, tag, c->comm, &status)
                       : MPI_Sendrecv_replace(at, (int)count, of, to, tag, from, tag, c->comm, &status));
}

/* Every member sends a message to another one, along a permutation. */
static void start_exchange(rng *r, group *c, u64 seed, operation *o, int form) {
  signature g = draw_signature(r, 2000);
  long groups[MOST_RANKS];
  int to[MOST_RANKS], n = c->is_inter ? (c->n < c->n_peers ? c->n : c->n_peers) : c->n;
  for (int i = 0; i < MOST_RANKS; i++) groups[i] = draw_groups(r, &g, 3000000), to[i] = i;
  shuffle(r, to, n);
  int tag = TAG_EXCHANGE + (int)between(r, 0, 3), is_replace = chance(r, 15);
  if (is_replace)
    for (int i = 0; i < MOST_RANKS; i++) groups[i] = groups[0];
  if (c->is_inter)
    for (int i = 0; i < n; i++) to[i] = i;
  o->is_message = 1;
  if (c->me < 0) return;
  int me = c->me, from = -1, target = me < n ? to[me] : MPI_PROC_NULL;
  for (int i = 0; i < n && me < n; i++)
    if (to[i] == me) from = i;
  if (from < 0) from = MPI_PROC_NULL;
  long out_groups = me < n ? groups[me] : 1, in_groups = from < 0 ? 0 : groups[from];
  u64 from_key = from < 0 ? 0 : KEY(seed, c->peers[from], 8), my_key = KEY(seed, c->members[me], 8);
  area *s = &o->areas[0], *d = &o->areas[1];
  int is_swap = is_replace && form != PERSISTENT && n == c->n && n == c->n_peers; /* its data lies where that of the other rank goes */
  rng mine = derived(my_key, 1), theirs = derived(from_key, 1 + is_swap), receiver = derived(my_key, 2);
  layout out = layout_of(&mine, &g, out_groups, SENT), in = layout_of(&receiver, &g, in_groups, RECEIVED);
  layout remote = layout_of(&theirs, &g, in_groups, is_swap ? RECEIVED : SENT);
  long out_count = count_of(&out, &g, out_groups), in_count = count_of(&in, &g, in_groups), remote_count = count_of(&remote, &g, in_groups);
  if (from < 0) in_count = 3;
  describe(o, "%s exchange on %s, to %d %ld bytes, from %d %ld bytes, seed %llu", form_names[form], c->name, target, out.s.bytes * out_count, from,
           remote.s.bytes * remote_count, seed);
  o->n_areas = 2, widen(s, &out.s, out_count, 0), widen(d, &in.s, in_count, 0);
  fill(s, my_key), fill(d, my_key + 1);
  byte *data = malloc(remote.s.bytes * remote_count + 1);
  if (from >= 0) put(d, &in.s, in_count, 0, data, stream(data, &remote.s, remote_count, 0, from_key + is_swap) - data);
  free(data), drop_layout(&remote);
  MPI_Datatype st = out.s.type, rt = in.s.type, whole[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
  void *sb = address(s), *rb = address(d);
  if (!is_swap && chance(own, 10)) whole[0] = st = absolute(sb, out_count, st), sb = MPI_BOTTOM, out_count = 1;
  if (!is_swap && chance(own, 10)) whole[1] = rt = absolute(rb, in_count, rt), rb = MPI_BOTTOM, in_count = 1;
  MPI_Status status;
  if (is_swap) {
    start_replace(c, o, form, target, from, tag, &in, in_count);
  } else if (form == BLOCKING) {
    int is_wide = chance(own, 40);
    if (is_wide)
      CHECK_CALL(MPI_Sendrecv_c(sb, out_count, st, target, tag, rb, in_count, rt, from, tag, c->comm, &status));
    else
      CHECK_CALL(MPI_Sendrecv(sb, (int)out_count, st, target, tag, rb, (int)in_count, rt, from, tag, c->comm, &status));
    CHECK(status.MPI_SOURCE == from && status.MPI_TAG == (from < 0 ? MPI_ANY_TAG : tag));
  } else if (form == STARTED && chance(own, 30)) {
    CHECK_CALL(MPI_Isendrecv(sb, (int)out_count, st, target, tag, rb, (int)in_count, rt, from, tag, c->comm, o->requests));
  } else if (form == STARTED) {
    int first = chance(own, 50);
    for (int step = 0; step < 2; step++)
      if (step == first)
        start_send(c, sb, out_count, st, target, tag, 0, out.s.bytes * out_count, &o->requests[0]);
      else
        CHECK_CALL(chance(own, 50) ? MPI_Irecv(rb, (int)in_count, rt, from, tag, c->comm, &o->requests[1])
                                   : MPI_Irecv_c(rb, in_count, rt, from, tag, c->comm, &o->requests[1]));
    o->n_requests = 2;
  } else {
    init_send(c, sb, out_count, st, target, tag, out.s.bytes * out_count, &o->requests[0]);
    CHECK_CALL(MPI_Recv_init(rb, (int)in_count, rt, from, tag, c->comm, &o->requests[1]));
    o->n_requests = 2;
  }
  for (int i = 0; i < 2; i++)
    if (whole[i] != MPI_DATATYPE_NULL) CHECK(!MPI_Type_free(&whole[i]));
  o->layouts[o->n_layouts++] = out, o->layouts[o->n_layouts++] = in;
}

/* A letter of the mail below: all ranks can compute every one. */
typedef struct {
  int from, to, tag, is_ours, is_theirs; /* whether it comes from this group, and whether it goes to it */
  long groups;
  u64 key;
} letter;

enum { LETTERS = 60 };

/* Draws the ranks of a letter. Between two groups, all ranks draw the same sender in the world, and a receiver in the other group. */
static void draw_pair(rng *r, group *c, letter *l) {
  int from = c->all[between(r, 0, c->n_all - 1)], to = (int)between(r, 0, 1 << 20);
  l->from = l->to = -1;
  int is_ours = 0;
  for (int i = 0; i < c->n; i++)
    if (c->members[i] == from) is_ours = 1, l->from = i;
  for (int i = 0; i < c->n_peers; i++)
    if (c->is_inter && c->peers[i] == from) l->from = i;
  l->to = to % (is_ours ? c->n_peers : c->n), l->is_ours = is_ours, l->is_theirs = !is_ours || !c->is_inter;
}

static byte *content(const letter *l, const signature *g, long *n) {
  rng r = derived(l->key, 3);
  layout s = layout_of(&r, g, l->groups, SENT);
  long count = count_of(&s, g, l->groups);
  byte *data = malloc(s.s.bytes * count + 1);
  *n = stream(data, &s.s, count, 0, l->key) - data;
  drop_layout(&s);
  return data;
}

/* Finds the next letter to a rank from this source with this tag. */
static int next_letter(const letter *all, int n, byte *taken, int from, int to, int tag) {
  for (int i = 0; i < n; i++)
    if (!taken[i] && all[i].is_theirs && all[i].from == from && all[i].to == to && all[i].tag == tag) return taken[i] = 1, i;
  return -1;
}

/* Room for a letter that has not come yet. */
typedef struct {
  layout l;
  area a;
  long count;
  MPI_Status status;
  int expected; /* the letter that a receive with source and tag must get, or -1 */
} room;

static void open_room(room *m, const signature *g, long groups, u64 key) {
  rng r = derived(key, draw(own));
  memset(m, 0, sizeof *m);
  m->l = layout_of(&r, g, groups, RECEIVED), m->count = count_of(&m->l, g, groups), m->expected = -1;
  widen(&m->a, &m->l.s, m->count, 0), fill(&m->a, key + 17);
}

static void close_room(room *m, const signature *g, const letter *all, int n, byte *taken, int me, const char *what) {
  int at = next_letter(all, n, taken, m->status.MPI_SOURCE, me, m->status.MPI_TAG), elements;
  char text[300];
  if (at < 0) fprintf(stderr, "rank %d: %s: a letter from %d with tag %d\n", rank, what, m->status.MPI_SOURCE, m->status.MPI_TAG), exit(1);
  long bytes;
  byte *data = content(&all[at], g, &bytes);
  snprintf(text, sizeof text, "%s, from %d tag %d, %ld bytes", what, m->status.MPI_SOURCE, m->status.MPI_TAG, bytes);
  put(&m->a, &m->l.s, m->count, 0, data, bytes);
  compare(&m->a, text);
  if (m->l.s.bytes) {
    CHECK(!MPI_Get_count(&m->status, m->l.s.type, &elements));
    if (bytes % m->l.s.bytes ? elements != MPI_UNDEFINED : elements != bytes / m->l.s.bytes)
      fprintf(stderr, "rank %d: %s: Get_count gives %d\n", rank, text, elements), exit(1);
    CHECK(!MPI_Get_elements(&m->status, m->l.s.type, &elements));
    long pieces = 0, left = bytes;
    while (left > 0 && m->l.s.n) left -= m->l.s.pieces[pieces++ % m->l.s.n].size;
    if (elements != pieces) fprintf(stderr, "rank %d: %s: Get_elements gives %d, not %ld\n", rank, text, elements, pieces), exit(1);
  }
  free(data), release(&m->a), drop_layout(&m->l);
}

/* Receives a letter that a probe has found. */
static void receive_probed(group *c, room *m, const signature *g, int from, int tag, u64 key) {
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status seen;
  int flag = 0, bytes, way = (int)between(own, 0, 3);
  if (way == 0) CHECK(!MPI_Probe(from, tag, c->comm, &seen));
  while (way == 1 && !flag) CHECK(!MPI_Iprobe(from, tag, c->comm, &flag, &seen));
  if (way == 2) CHECK(!MPI_Mprobe(from, tag, c->comm, &message, &seen));
  while (way == 3 && !flag) CHECK(!MPI_Improbe(from, tag, c->comm, &flag, &message, &seen));
  CHECK(!MPI_Get_count(&seen, MPI_BYTE, &bytes));
  open_room(m, g, bytes / bytes_of(g, 1), key);
  if (way < 2) {
    CHECK_CALL(MPI_Recv(address(&m->a), (int)m->count, m->l.s.type, seen.MPI_SOURCE, seen.MPI_TAG, c->comm, &m->status));
  } else if (chance(own, 50)) {
    CHECK_CALL(MPI_Mrecv(address(&m->a), (int)m->count, m->l.s.type, &message, &m->status));
  } else {
    MPI_Request q;
    CHECK_CALL(MPI_Imrecv(address(&m->a), (int)m->count, m->l.s.type, &message, &q));
    CHECK(!MPI_Wait(&q, &m->status));
  }
  CHECK(m->status.MPI_SOURCE == seen.MPI_SOURCE && m->status.MPI_TAG == seen.MPI_TAG);
}

static void send_letter(group *c, const letter *l, const signature *g, operation *o, MPI_Request *q, int may_block) {
  rng r = derived(l->key, 3);
  layout s = layout_of(&r, g, l->groups, SENT);
  long count = count_of(&s, g, l->groups);
  area *a = &o->areas[0];
  int to = l->to, tag = l->tag, is_wide = chance(own, 30);
  o->n_areas = 1, widen(a, &s.s, count, 0), fill(a, l->key);
  snprintf(o->what, sizeof o->what, "letter sent");
  const void *from = address(a);
  MPI_Datatype of = s.s.type;
  *q = MPI_REQUEST_NULL;
  if (may_block && chance(own, 50)) {
    switch (between(own, 0, 3)) {
    case 0: CHECK_CALL(SEND(Ssend)); break;
    case 1: CHECK_CALL(SEND(Rsend)); break;
    default: CHECK_CALL(SEND(Send));
    }
  } else
    start_send(c, from, count, of, to, tag, may_block, s.s.bytes * count, q);
  drop_layout(&s);
}

/* Letters between random members. The receivers match them by source and tag, or by wildcards, with receives posted before or after. */
static void mail(rng *r, group *c, u64 seed, int is_shared) {
  signature g = draw_signature(r, 500);
  int n = (int)between(r, 0, chance(r, 20) ? LETTERS : 12), posted_first = chance(r, 40), tags = (int)between(r, 1, 4), k = 0, mine = 0;
  int way[MOST_RANKS];
  static __thread letter all[LETTERS];
  static __thread room rooms[LETTERS];
  static __thread operation outs[LETTERS];
  MPI_Request sends[LETTERS], receives[LETTERS];
  MPI_Status statuses[LETTERS];
  byte taken[LETTERS] = {0};
  char what[100];
  long most = 0;
  for (int i = 0; i < n; i++) {
    draw_pair(r, c, &all[i]), all[i].tag = TAG_MAIL + (int)between(r, 0, tags - 1) + (is_shared ? (int)(seed % 100000 + 1) * 4 : 0);
    all[i].groups = draw_groups(r, &g, 600000), all[i].key = KEY(seed, i, 9);
    if (all[i].groups > most) most = all[i].groups;
  }
  for (int i = 0; i < MOST_RANKS; i++) way[i] = (int)between(r, is_shared ? 2 : 0, 3);
  if (is_shared) posted_first = 0;
  if (c->me < 0) return;
  int me = c->me, n_out = 0, order[LETTERS];
  snprintf(what, sizeof what, "mail on %s, way %d, posted first %d, seed %llu", c->name, way[me], posted_first, seed);
  memset(outs, 0, sizeof outs);
  for (int i = 0; i < n; i++)
    if (all[i].to == me && all[i].is_theirs) order[mine++] = i;
  /* Receives by source and tag may be posted in any order that keeps that of each pair; a fixed order is one. */
  int any_source = way[me] == 0 || way[me] == 2, any_tag = way[me] == 0 || way[me] == 1, is_probed = !posted_first && chance(own, 50);
  if (!posted_first)
    for (int i = 0; i < n; i++)
      if (all[i].from == me && all[i].is_ours) send_letter(c, &all[i], &g, &outs[n_out], &sends[n_out], 0), n_out++;
  for (int i = 0; i < mine; i++) {
    const letter *l = &all[order[i]];
    int from = any_source ? MPI_ANY_SOURCE : l->from, tag = any_tag ? MPI_ANY_TAG : l->tag;
    if (is_probed) {
      receive_probed(c, &rooms[i], &g, from, tag, l->key);
      continue;
    }
    open_room(&rooms[i], &g, most, l->key);
    if (!posted_first && chance(own, 50)) {
      /* A blocking receive after posted ones of the same kind. */
      CHECK_CALL(MPI_Recv(address(&rooms[i].a), (int)rooms[i].count, rooms[i].l.s.type, from, tag, c->comm, &rooms[i].status));
      continue;
    }
    rooms[i].status.MPI_SOURCE = -77;
    CHECK_CALL(MPI_Irecv(address(&rooms[i].a), (int)rooms[i].count, rooms[i].l.s.type, from, tag, c->comm, &receives[k++]));
  }
  if (posted_first) {
    CHECK(!MPI_Barrier(c->comm));
    for (int i = 0; i < n; i++)
      if (all[i].from == me && all[i].is_ours) send_letter(c, &all[i], &g, &outs[n_out], &sends[n_out], 1), n_out++;
  }
  CHECK_CALL(MPI_Waitall(k, receives, statuses));
  for (int i = 0, j = 0; i < mine; i++)
    if (rooms[i].status.MPI_SOURCE == -77) rooms[i].status = statuses[j++];
  for (int i = 0; i < mine; i++) close_room(&rooms[i], &g, all, n, taken, me, what);
  complete(n_out, sends);
  for (int i = 0; i < n_out; i++) check_areas(&outs[i]), end(&outs[i]);
  if (!is_shared) CHECK(!MPI_Barrier(c->comm)); /* later messages must not match the wildcards */
}

/* Messages in partitions, of which each side has its own number. */
static void partitioned(rng *r, group *c, u64 seed) {
  int shift = (int)between(r, 0, c->n - 1), rounds = (int)between(r, 1, 3);
  int parts[MOST_RANKS], others[MOST_RANKS];
  long counts[MOST_RANKS];
  for (int i = 0; i < c->n; i++) {
    static const int options[] = {1, 2, 3, 4, 6, 12, 24};
    parts[i] = options[between(r, 0, 6)], others[i] = options[between(r, 0, 6)];
    counts[i] = 24 * (chance(r, 10) ? between(r, 0, 20000) : between(r, 0, 900));
  }
  if (c->me < 0) return;
  int me = c->me, to = (me + shift) % c->n, from = (me + c->n - shift) % c->n, order[24], flag = 0;
  long out = counts[me], in = counts[from];
  int *a = malloc((out + 1) * sizeof *a), *b = malloc((in + 1) * sizeof *b);
  MPI_Request q[2];
  for (int step = 0, first = chance(own, 50); step < 2; step++)
    if (step == first)
      CHECK_CALL(MPI_Psend_init(a, parts[me], out / parts[me], MPI_INT, to, 3, c->comm, MPI_INFO_NULL, &q[0]));
    else
      CHECK_CALL(MPI_Precv_init(b, others[me], in / others[me], MPI_INT, from, 3, c->comm, MPI_INFO_NULL, &q[1]));
  for (int round = 0; round < rounds; round++) {
    for (long i = 0; i < out; i++) a[i] = -1;
    for (long i = 0; i < in; i++) b[i] = -2;
    CHECK(!MPI_Startall(2, q));
    for (int i = 0; i < parts[me]; i++) order[i] = i;
    shuffle(own, order, parts[me]);
    for (int i = 0; i < parts[me]; i++) {
      long len = out / parts[me];
      for (long k = order[i] * len; k < (order[i] + 1) * len; k++) a[k] = (int)(seed + k * 7 + me * 1000 + round);
      CHECK_CALL(MPI_Pready(order[i], q[0]));
      if (chance(own, 20)) CHECK(!MPI_Parrived(q[1], (int)between(own, 0, others[me] - 1), &flag));
    }
    if (chance(own, 50)) {
      int part = (int)between(own, 0, others[me] - 1);
      for (flag = 0; !flag;) CHECK(!MPI_Parrived(q[1], part, &flag));
      long len = in / others[me];
      for (long k = part * len; k < (part + 1) * len; k++) CHECK(b[k] == (int)(seed + k * 7 + from * 1000 + round));
    }
    complete(2, q);
    for (long k = 0; k < in; k++) CHECK(b[k] == (int)(seed + k * 7 + from * 1000 + round));
  }
  CHECK(!MPI_Request_free(&q[0]) && !MPI_Request_free(&q[1]));
  free(a), free(b);
}

/* Receives that are cancelled, whether or not the message comes. */
static void cancelled(rng *r, group *c, u64 seed) {
  int n = (int)between(r, 1, 5), shift = (int)between(r, 0, c->n - 1);
  long bytes[5];
  for (int i = 0; i < n; i++) bytes[i] = between(r, 0, chance(r, 20) ? 300000 : 3000);
  if (c->me < 0) return;
  int to = (c->me + shift) % c->n, from = (c->me + c->n - shift) % c->n, flag;
  MPI_Request out[5];
  byte *data[5], *in = malloc(300001);
  for (int i = 0; i < n; i++) {
    data[i] = malloc(bytes[i] + 1), memset(data[i], (int)(seed + i + c->me), bytes[i]);
    MPI_Request q;
    MPI_Status status;
    CHECK(!MPI_Irecv(in, 300000, MPI_BYTE, chance(own, 50) ? from : MPI_ANY_SOURCE, 40 + i, c->comm, &q));
    if (chance(own, 50)) CHECK(!MPI_Test(&q, &flag, &status) && (!flag || i >= 0));
    int came = q == MPI_REQUEST_NULL;
    CHECK(!MPI_Isend(data[i], (int)bytes[i], MPI_BYTE, to, 40 + i, c->comm, &out[i]));
    if (!came) {
      CHECK(!MPI_Cancel(&q));
      if (chance(own, 50))
        CHECK(!MPI_Wait(&q, &status));
      else
        for (flag = 0; !flag;) CHECK(!MPI_Test(&q, &flag, &status));
      CHECK(!MPI_Test_cancelled(&status, &flag));
      came = !flag;
    }
    if (!came) CHECK(!MPI_Recv(in, 300000, MPI_BYTE, from, 40 + i, c->comm, &status));
    int count;
    CHECK(!MPI_Get_count(&status, MPI_BYTE, &count) && count == bytes[i] && status.MPI_SOURCE == from);
    for (long k = 0; k < count; k++) CHECK(in[k] == (byte)(seed + i + from));
  }
  complete(n, out);
  for (int i = 0; i < n; i++) free(data[i]);
  free(in);
  CHECK(!MPI_Barrier(c->comm)); /* as above */
}

/* Receives that are too short. The rest of the memory must stay as it is. */
static void truncated(rng *r, group *c, u64 seed) {
  signature g = draw_signature(r, 100);
  int shift = (int)between(r, 0, c->n - 1);
  long sent = 1 + draw_groups(r, &g, 800000), received = between(r, 0, sent - 1);
  if (c->me < 0) return;
  int to = (c->me + shift) % c->n, from = (c->me + c->n - shift) % c->n, class, probe = chance(own, 30);
  letter l = {c->me, to, 60, 1, 1, sent, KEY(seed, c->me, 10)};
  operation *o = calloc(1, sizeof *o);
  MPI_Request q, in;
  room m;
  MPI_Errhandler before;
  CHECK(!MPI_Comm_get_errhandler(c->comm, &before));
  CHECK(!MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN));
  open_room(&m, &g, received, seed);
  int early = chance(own, 50), error;
  if (early) CHECK(!MPI_Irecv(address(&m.a), (int)m.count, m.l.s.type, from, 60, c->comm, &in));
  send_letter(c, &l, &g, o, &q, 0);
  if (early)
    error = MPI_Wait(&in, &m.status);
  else if (probe) {
    MPI_Message message;
    CHECK(!MPI_Mprobe(from, 60, c->comm, &message, &m.status));
    error = MPI_Mrecv(address(&m.a), (int)m.count, m.l.s.type, &message, &m.status);
  } else
    error = MPI_Recv(address(&m.a), (int)m.count, m.l.s.type, from, 60, c->comm, &m.status);
  CHECK(!MPI_Error_class(error, &class));
  if (class != MPI_ERR_TRUNCATE) fprintf(stderr, "rank %d: truncated %ld to %ld: class %d\n", rank, sent, received, class), exit(1);
  complete(1, &q);
  /* The receive's own bytes may have anything. */
  for (long i = 0; i < m.count; i++)
    for (long p = 0; p < m.l.s.n; p++) {
      long at = i * extent_of(&m.l.s) + m.l.s.pieces[p].at - m.a.low;
      memcpy(m.a.want + at, m.a.mem + at, m.l.s.pieces[p].size);
    }
  compare(&m.a, "truncated");
  release(&m.a), drop_layout(&m.l);
  check_areas(o), end(o), free(o);
  CHECK(!MPI_Comm_set_errhandler(c->comm, before) && !MPI_Errhandler_free(&before));
}
