/* Statuses: counts of elements, empty statuses, and the fields that calls leave alone. Any number of ranks. */
#include "test.h"

/* Types whose lists of parts would be too long: only the last, incomplete element is looked into. */
static void elements_of_long_types(void) {
  const MPI_Count many = (MPI_Count)1 << 30;
  int lengths[3] = {1, 1, 2};
  MPI_Aint places[3] = {0, 8, 12};
  MPI_Datatype members[3] = {MPI_DOUBLE, MPI_CHAR, MPI_INT}, member, type;
  MPI_Status status;
  MPI_Count found;
  CHECK(!MPI_Type_create_struct(3, lengths, places, members, &member));
  CHECK(!MPI_Type_vector((int)many, 1, 2, member, &type) && !MPI_Type_commit(&type));
  struct { MPI_Count bytes, elements; } cases[] = {
    {17 * 5, 20}, {17 * 5 + 8, 21}, {17 * 5 + 9, 22}, {17 * 5 + 13, 23}, {17 * 5 + 10, MPI_UNDEFINED}, {17 * many * 3 + 9, 4 * many * 3 + 2}, {0, 0},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    CHECK(!MPI_Status_set_elements_c(&status, MPI_BYTE, cases[i].bytes) && !MPI_Get_elements_c(&status, type, &found));
    CHECK(found == cases[i].elements);
    if (found == MPI_UNDEFINED) continue;
    CHECK(!MPI_Status_set_elements_c(&status, type, found) && !MPI_Get_elements_c(&status, MPI_BYTE, &found) && found == cases[i].bytes);
  }
  CHECK(!MPI_Type_free(&type) && !MPI_Type_free(&member));
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  elements_of_long_types();
  CHECK(!MPI_Finalize());
  return 0;
}
