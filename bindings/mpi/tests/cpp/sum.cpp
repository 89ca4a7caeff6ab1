// A C++ program, which needs the header to be one of C++, and constants that only few programs use. Any number of ranks.
#include <mpi.h>

#include <cstdio>
#include <numeric>
#include <vector>

static int wrong(const char *what) {
  std::fprintf(stderr, "not so: %s\n", what);
  return 1;
}

#define CHECK(what) \
  if (!(what)) return wrong(#what)

int main(int argc, char **argv) {
  int rank = -1, size = -1, level, flag = 0, *clocks = nullptr;
  CHECK(!MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
  CHECK(!MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  std::vector<double> values(100), sums(100);
  std::iota(values.begin(), values.end(), rank);
  CHECK(!MPI_Allreduce(values.data(), sums.data(), 100, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD));
  for (int i = 0; i < 100; i++) CHECK(sums[i] == size * (size - 1) / 2.0 + size * i);
  CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_WTIME_IS_GLOBAL, &clocks, &flag));
  MPI_Datatype pair;
  int integers, addresses, types, combiner;
  CHECK(!MPI_Type_contiguous(2, MPI_INTEGER, &pair));
  CHECK(!MPI_Type_get_envelope(pair, &integers, &addresses, &types, &combiner) && combiner == MPI_COMBINER_CONTIGUOUS);
  CHECK(!MPI_Type_free(&pair));
  MPI_Win window;
  CHECK(!MPI_Win_create(values.data(), sizeof(double), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
  int *flavor = nullptr;
  CHECK(!MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, &flavor, &flag) && flag && *flavor == MPI_WIN_FLAVOR_CREATE);
  CHECK(!MPI_Win_lock(MPI_LOCK_SHARED, rank, MPI_MODE_NOCHECK, window) && !MPI_Win_unlock(rank, window) && !MPI_Win_free(&window));
  MPI_Comm spawned;
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  CHECK(MPI_Comm_spawn("program", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &spawned, MPI_ERRCODES_IGNORE) != MPI_SUCCESS);
  CHECK(!MPI_Finalize());
  return 0;
}
