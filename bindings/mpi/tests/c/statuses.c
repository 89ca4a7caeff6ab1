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

static void fill(MPI_Status *statuses, int n) {
  memset(statuses, 0x5a, n * sizeof *statuses);
}

static int is_empty(const MPI_Status *status) {
  int count, cancelled;
  CHECK(!MPI_Get_count(status, MPI_BYTE, &count) && !MPI_Test_cancelled(status, &cancelled));
  return status->MPI_ERROR == MPI_SUCCESS && status->MPI_SOURCE == MPI_ANY_SOURCE && status->MPI_TAG == MPI_ANY_TAG && !count && !cancelled;
}

/* The empty status says that there is no error, whatever the status was before. */
static void empty_statuses(void) {
  int value, flag, n, indices[2];
  MPI_Request inactive, requests[2];
  MPI_Status status, statuses[2];
  CHECK(!MPI_Recv_init(&value, 1, MPI_INT, 0, 5, MPI_COMM_SELF, &inactive));
  requests[0] = MPI_REQUEST_NULL, requests[1] = inactive;
  for (int which = 0; which < 2; which++) {
    fill(&status, 1);
    CHECK(!MPI_Wait(&requests[which], &status) && is_empty(&status));
    fill(&status, 1);
    CHECK(!MPI_Test(&requests[which], &flag, &status) && flag && is_empty(&status));
    fill(&status, 1);
    CHECK(!MPI_Request_get_status(requests[which], &flag, &status) && flag && is_empty(&status));
  }
  fill(statuses, 2);
  CHECK(!MPI_Waitall(2, requests, statuses) && is_empty(&statuses[0]) && is_empty(&statuses[1]));
  fill(statuses, 2);
  CHECK(!MPI_Testall(2, requests, &flag, statuses) && flag && is_empty(&statuses[0]) && is_empty(&statuses[1]));
  fill(statuses, 2);
  CHECK(!MPI_Request_get_status_all(2, requests, &flag, statuses) && flag && is_empty(&statuses[0]) && is_empty(&statuses[1]));
  fill(&status, 1);
  CHECK(!MPI_Request_get_status_any(2, requests, &n, &flag, &status) && flag && n == MPI_UNDEFINED && is_empty(&status));
  fill(&status, 1);
  CHECK(!MPI_Waitany(2, requests, &n, &status) && n == MPI_UNDEFINED && is_empty(&status));
  CHECK(!MPI_Request_get_status_some(2, requests, &n, indices, statuses) && n == MPI_UNDEFINED && !MPI_Request_free(&inactive));
}

/* A call writes to a status only what it has to tell. Its error field belongs to calls with several statuses that fail. */
static void fields_that_stay(void) {
  int value = -1, flag, n;
  MPI_Request requests[3];
  MPI_Status before[3], statuses[3];
  fill(before, 3), fill(statuses, 3);
  for (int i = 0; i < 3; i++) CHECK(!MPI_Irecv(&value, 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]));
  CHECK(!MPI_Testall(3, requests, &flag, statuses) && !flag && !memcmp(before, statuses, sizeof statuses));
  CHECK(!MPI_Test(&requests[0], &flag, statuses) && !flag && !MPI_Testany(3, requests, &n, &flag, statuses) && !flag);
  CHECK(!MPI_Iprobe(0, 9, MPI_COMM_SELF, &flag, statuses) && !flag && !memcmp(before, statuses, sizeof statuses));
  int numbers[] = {-1, -2, -77, 0x40000000, 0x12345678, 255};
  for (int i = 0; i < 3; i++) {
    statuses[i].MPI_ERROR = statuses[i].MPI_SOURCE = statuses[i].MPI_TAG = numbers[i];
    CHECK(!MPI_Send(&rank, 1, MPI_INT, 0, i, MPI_COMM_SELF) && !MPI_Wait(&requests[i], &statuses[i]));
    CHECK(statuses[i].MPI_ERROR == numbers[i] && statuses[i].MPI_SOURCE == 0 && statuses[i].MPI_TAG == i && value == rank);
  }
  for (int i = 3; i < 6; i++) {
    statuses[0].MPI_ERROR = numbers[i];
    CHECK(!MPI_Sendrecv(&rank, 1, MPI_INT, 0, i, &value, 1, MPI_INT, 0, i, MPI_COMM_SELF, statuses) && statuses[0].MPI_ERROR == numbers[i]);
  }
  /* Calls with several statuses set the error fields if one of the operations has failed. */
  int two[2] = {1, 2};
  fill(statuses, 3);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  for (int i = 0; i < 2; i++) CHECK(!MPI_Irecv(&value, 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]));
  for (int i = 0; i < 2; i++) CHECK(!MPI_Send(two, i + 1, MPI_INT, 0, i, MPI_COMM_SELF));
  FAILS(MPI_ERR_IN_STATUS, MPI_Waitall(2, requests, statuses));
  FAILS(MPI_ERR_TRUNCATE, statuses[1].MPI_ERROR);
  CHECK(statuses[0].MPI_ERROR == MPI_SUCCESS && statuses[0].MPI_TAG == 0 && statuses[1].MPI_TAG == 1);
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  elements_of_long_types(), empty_statuses(), fields_that_stay();
  CHECK(!MPI_Finalize());
  return 0;
}
