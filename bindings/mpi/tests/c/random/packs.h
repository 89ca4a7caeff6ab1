/* Packing, and the contents of types, from which the same types can be made again. */
#include "windows.h"

/* Makes a type again from its contents. Types made with MPI_Count show these only to functions with MPI_Count. */
static MPI_Datatype made_again(MPI_Datatype of) {
  MPI_Count n[4];
  int combiner;
  CHECK(!MPI_Type_get_envelope_c(of, &n[0], &n[1], &n[2], &n[3], &combiner));
  if (combiner == MPI_COMBINER_NAMED) return of;
  int *i = malloc((n[0] + 1) * sizeof *i), is_wide = n[2] > 0;
  MPI_Aint *a = malloc((n[1] + 1) * sizeof *a);
  MPI_Count *c = malloc((n[2] + 1) * sizeof *c);
  MPI_Datatype *t = malloc((n[3] + 1) * sizeof *t), made = MPI_DATATYPE_NULL, *again = malloc((n[3] + 1) * sizeof *t);
  if (is_wide || chance(own, 50))
    CHECK(!MPI_Type_get_contents_c(of, n[0], n[1], n[2], n[3], i, a, c, t));
  else
    CHECK(!MPI_Type_get_contents(of, (int)n[0], (int)n[1], (int)n[3], i, a, t));
  for (int k = 0; k < n[3]; k++) again[k] = made_again(t[k]);
  MPI_Datatype b = n[3] ? again[0] : MPI_DATATYPE_NULL;
  if (combiner == MPI_COMBINER_DUP)
    CHECK(!MPI_Type_dup(b, &made));
  else if (combiner == MPI_COMBINER_CONTIGUOUS)
    EITHER(MPI_Type_contiguous(i[0], b, &made), MPI_Type_contiguous_c(c[0], b, &made));
  else if (combiner == MPI_COMBINER_VECTOR)
    EITHER(MPI_Type_vector(i[0], i[1], i[2], b, &made), MPI_Type_vector_c(c[0], c[1], c[2], b, &made));
  else if (combiner == MPI_COMBINER_HVECTOR)
    EITHER(MPI_Type_create_hvector(i[0], i[1], a[0], b, &made), MPI_Type_create_hvector_c(c[0], c[1], c[2], b, &made));
  else if (combiner == MPI_COMBINER_INDEXED)
    EITHER(MPI_Type_indexed(i[0], i + 1, i + 1 + i[0], b, &made), MPI_Type_indexed_c(c[0], c + 1, c + 1 + c[0], b, &made));
  else if (combiner == MPI_COMBINER_HINDEXED)
    EITHER(MPI_Type_create_hindexed(i[0], i + 1, a, b, &made), MPI_Type_create_hindexed_c(c[0], c + 1, c + 1 + c[0], b, &made));
  else if (combiner == MPI_COMBINER_INDEXED_BLOCK)
    EITHER(MPI_Type_create_indexed_block(i[0], i[1], i + 2, b, &made), MPI_Type_create_indexed_block_c(c[0], c[1], c + 2, b, &made));
  else if (combiner == MPI_COMBINER_HINDEXED_BLOCK)
    EITHER(MPI_Type_create_hindexed_block(i[0], i[1], a, b, &made), MPI_Type_create_hindexed_block_c(c[0], c[1], c + 2, b, &made));
  else if (combiner == MPI_COMBINER_STRUCT)
    EITHER(MPI_Type_create_struct(i[0], i + 1, a, again, &made), MPI_Type_create_struct_c(c[0], c + 1, c + 1 + c[0], again, &made));
  else if (combiner == MPI_COMBINER_SUBARRAY)
    EITHER(MPI_Type_create_subarray(i[0], i + 1, i + 1 + i[0], i + 1 + 2 * i[0], i[1 + 3 * i[0]], b, &made),
           MPI_Type_create_subarray_c(i[0], c, c + i[0], c + 2 * i[0], i[1], b, &made));
  else if (combiner == MPI_COMBINER_DARRAY)
    EITHER(MPI_Type_create_darray(i[0], i[1], i[2], i + 3, i + 3 + i[2], i + 3 + 2 * i[2], i + 3 + 3 * i[2], i[3 + 4 * i[2]], b, &made),
           MPI_Type_create_darray_c(i[0], i[1], i[2], c, i + 3, i + 3 + i[2], i + 3 + 2 * i[2], i[3 + 3 * i[2]], b, &made));
  else if (combiner == MPI_COMBINER_RESIZED)
    EITHER(MPI_Type_create_resized(b, a[0], a[1], &made), MPI_Type_create_resized_c(b, c[0], c[1], &made));
  CHECK(made != MPI_DATATYPE_NULL);
  for (int k = 0; k < n[3]; k++) {
    MPI_Count m[4];
    CHECK(!MPI_Type_get_envelope_c(t[k], &m[0], &m[1], &m[2], &m[3], &combiner));
    if (combiner != MPI_COMBINER_NAMED) CHECK(!MPI_Type_free(&t[k]) && !MPI_Type_free(&again[k]));
  }
  free(i), free(a), free(c), free(t), free(again);
  return made;
}

/* Whether the numbers of external32 have all bits of these: not those of longs, long doubles and truth values that are not 0 or 1. */
static int fits_external(const signature *g) {
  for (int i = 0; i < g->length; i++)
    for (int k = 0; k < BASICS; k++)
      if (k == g->unit[i] && (k == 6 || k == 8 || k == 12 || k == 16 || k == 17 || k == 18)) return 0;
  return 1;
}

/* Packs elements in one or several pieces, and unpacks them with another layout. */
static void packs(rng *r, u64 seed) {
  signature g = draw_signature(r, 2000);
  long groups = draw_groups(r, &g, 1000000);
  u64 key = KEY(seed, rank, 21);
  rng mine = derived(key, 1);
  layout out = layout_of(&mine, &g, groups, SENT), in = layout_of(&mine, &g, groups, RECEIVED);
  long n = count_of(&out, &g, groups), m = count_of(&in, &g, groups), bytes = out.s.bytes * n;
  area from = {0}, to = {0};
  int room, place = 0, is_again = chance(own, 50), is_external = chance(own, 30);
  widen(&from, &out.s, n, 0), widen(&to, &in.s, m, 0), fill(&from, key), fill(&to, key + 1);
  MPI_Datatype source = out.s.type, target = in.s.type;
  if (is_again) source = made_again(out.s.type), target = made_again(in.s.type);
  if (is_again && out.s.is_own) CHECK(!MPI_Type_commit(&source));
  if (is_again && in.s.is_own) CHECK(!MPI_Type_commit(&target));
  byte *data = malloc(bytes + 1), *packed;
  stream(data, &out.s, n, 0, key);
  put(&to, &in.s, m, 0, data, bytes);
  if (is_external) {
    MPI_Aint all, at = 0;
    CHECK(!MPI_Pack_external_size("external32", (int)n, source, &all));
    packed = malloc(all + 1);
    CHECK(!MPI_Pack_external("external32", address(&from), (int)n, source, packed, all, &at) && at == all);
    at = 0;
    CHECK(!MPI_Unpack_external("external32", packed, all, &at, address(&to), (int)m, target) && at == all);
  } else {
    CHECK(!MPI_Pack_size((int)n, source, MPI_COMM_WORLD, &room) && room >= bytes);
    packed = malloc(room + 1);
    for (long i = 0; i < n;) {
      long some = chance(own, 70) ? n - i : between(own, 1, n - i);
      CHECK(!MPI_Pack((byte *)address(&from) + i * extent_of(&out.s), (int)some, source, packed, room, &place, MPI_COMM_WORLD));
      i += some;
    }
    CHECK(place == bytes && !memcmp(packed, data, bytes));
    MPI_Count wide = 0;
    for (long i = 0; i < m;) {
      long some = chance(own, 70) ? m - i : between(own, 1, m - i);
      CHECK(!MPI_Unpack_c(packed, place, &wide, (byte *)address(&to) + i * extent_of(&in.s), some, target, MPI_COMM_WORLD));
      i += some;
    }
  }
  char what[200];
  snprintf(what, sizeof what, "%s of %ld bytes, again %d, seed %llu", is_external ? "external packing" : "packing", bytes, is_again, seed);
  /* Some numbers are shorter in external32. */
  if (!is_external || fits_external(&g)) compare(&to, what);
  if (is_again && out.s.is_own) CHECK(!MPI_Type_free(&source));
  if (is_again && in.s.is_own) CHECK(!MPI_Type_free(&target));
  free(data), free(packed), release(&from), release(&to), drop_layout(&out), drop_layout(&in);
}
