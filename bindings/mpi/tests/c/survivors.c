/* If there are two or more ranks, the last exits without finalizing, and the others go on. Its status is 0, which counts as success. */
#include "test.h"
#include <unistd.h>

static int is_loss(int code) {
  int class = -1;
  CHECK(!MPI_Error_class(code, &class));
  return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED;
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  int one = 1, sum = 0, flag = 7, code = MPI_SUCCESS, count = -1, left, place;
  MPI_Group lost;
  MPI_Comm part, healthy, alive;
  CHECK(!MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &part) && !MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN));
  CHECK(!MPIX_Comm_agree(MPI_COMM_WORLD, &flag) && flag == 7 && !MPIX_Comm_is_revoked(MPI_COMM_WORLD, &flag) && !flag);
  CHECK(!MPIX_Comm_get_failed(MPI_COMM_WORLD, &lost) && lost == MPI_GROUP_EMPTY);
  alive = MPI_COMM_SELF;
  if (size > 1) FAILS(MPI_ERR_UNSUPPORTED_OPERATION, MPIX_Comm_shrink(part, &alive));
  CHECK(size == 1 || alive == MPI_COMM_NULL);
  CHECK(MPIX_Comm_get_failed(MPI_COMM_NULL, &lost) && lost == MPI_GROUP_NULL);
  CHECK(!MPIX_Comm_shrink(MPI_COMM_WORLD, &healthy) && !MPI_Comm_size(healthy, &left) && left == size && !MPI_Comm_free(&healthy));
  CHECK(!MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) && sum == size);
  if (size > 1 && rank == size - 1) _exit(0);
  while (size > 1 && code == MPI_SUCCESS) code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  CHECK(size == 1 || is_loss(code));
  if (rank == 0) CHECK(!MPIX_Comm_revoke(MPI_COMM_WORLD));
  CHECK(!MPIX_Comm_shrink(MPI_COMM_WORLD, &alive) && !MPI_Comm_size(alive, &left) && !MPI_Comm_rank(alive, &place));
  CHECK(left == (size > 1 ? size - 1 : 1) && place == rank && !MPI_Comm_set_errhandler(alive, MPI_ERRORS_RETURN));
  /* Ask which rank is lost. An agreement reports the loss until it is acknowledged. */
  CHECK(!MPIX_Comm_get_failed(MPI_COMM_WORLD, &lost) && !MPI_Group_size(lost, &count) && count == size - left);
  flag = 3;
  code = MPIX_Comm_agree(MPI_COMM_WORLD, &flag);
  CHECK(flag == 3 && (size == 1 ? code == MPI_SUCCESS : is_loss(code)) && !MPIX_Comm_failure_ack(MPI_COMM_WORLD));
  CHECK(!MPIX_Comm_agree(MPI_COMM_WORLD, &flag) && !MPIX_Comm_failure_get_acked(MPI_COMM_WORLD, &lost));
  CHECK(!MPI_Group_size(lost, &count) && count == size - left);
  /* All kinds of calls work among the ranks left: Kolo's collectives, nonblocking ones, messages, and communicators made of this one. */
  CHECK(!MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, alive) && sum == left);
  MPI_Request request;
  CHECK(!MPI_Iallreduce(&place, &sum, 1, MPI_INT, MPI_SUM, alive, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(sum == left * (left - 1) / 2);
  int next = (place + 1) % left, before = (place + left - 1) % left, got = -1;
  CHECK(!MPI_Sendrecv(&place, 1, MPI_INT, next, 3, &got, 1, MPI_INT, before, 3, alive, MPI_STATUS_IGNORE) && got == before);
  MPI_Comm turned;
  CHECK(!MPI_Comm_split(alive, 0, -place, &turned) && !MPI_Comm_rank(turned, &got) && got == left - 1 - place);
  CHECK(!MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, turned) && sum == left && !MPI_Comm_free(&turned));
  if (size > 1) {
    code = MPI_Send(&one, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD);
    CHECK(is_loss(code) && is_loss(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD)));
  }
  /* A revoke also ends the communicators split off. Rank 0 hears first that the others are done with theirs. */
  if (place > 0) CHECK(!MPI_Send(&one, 1, MPI_INT, 0, 5, alive));
  for (int from = 1; place == 0 && from < left; from++) CHECK(!MPI_Recv(&got, 1, MPI_INT, from, 5, alive, MPI_STATUS_IGNORE));
  /* A rank that only polls learns of a revoke too. */
  flag = code = 0;
  if (place == 0) CHECK(!MPIX_Comm_revoke(alive));
  if (place > 0) CHECK(!MPI_Irecv(&got, 1, MPI_INT, 0, 4, alive, &request));
  while (place > 0 && !flag && !code) code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  CHECK(place == 0 || (flag && is_loss(code) && request == MPI_REQUEST_NULL));
  CHECK(!MPIX_Comm_shrink(alive, &healthy) && !MPI_Comm_size(healthy, &count) && count == left && !MPI_Comm_free(&healthy));
  CHECK(!MPI_Comm_free(&alive) && !MPI_Finalize());
  return 0;
}
