// oneCCL's side of the comparison: the loop of benches/src/bin/kolo_bench.rs, over oneCCL on host buffers.
//
// Options, method and output are those of mpi_bench.c. Intel MPI's launcher starts the ranks; they exchange the
// address of oneCCL's store through a file that the launcher names (BENCH_STORE). Operations are started and
// waited for one by one. Their schedules are cached, as in oneCCL's own benchmark.
#include <oneapi/ccl.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <time.h>
#include <unistd.h>
#include <vector>

// Entry points of a tracing tool that the static library refers to; null means that the tool is absent.
#define TRACING(name)                                                                                                  \
  extern "C" {                                                                                                         \
  void *__itt_##name##_ptr__3_0 = nullptr;                                                                             \
  }
TRACING(domain_create)
TRACING(event_create)
TRACING(event_start)
TRACING(event_end)
TRACING(metadata_add)
TRACING(string_handle_create)
TRACING(task_begin)
TRACING(task_end)
TRACING(thread_set_name)

namespace {

constexpr double sample_seconds = 300e-6; // a sample lasts at least this
constexpr double slow_seconds = 50e-3;    // a sample this long needs no further samples, and no second attempt
constexpr double estimate_seconds = 0.25; // no further estimates after this time
constexpr int estimates = 5;              // and no more than this many
constexpr int min_samples = 5, min_slow_samples = 2, max_samples = 200;
constexpr double lasting_parts = 8; // a batch of a long sample takes this part (1/8) of the time left
constexpr double disturbed = 0.10; // share of the machine used by other processes
constexpr size_t checked_bytes = 2 << 20;
constexpr auto f32 = ccl::datatype::float32;
constexpr auto sum = ccl::reduction::sum;

double seconds_of(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}
double now() { return seconds_of(CLOCK_MONOTONIC); }

// Processor time of all processes so far, including time stolen by the host.
double machine_seconds() {
  unsigned long long t[8];
  FILE *stat = fopen("/proc/stat", "r");
  if (!stat) return 0;
  int fields = fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6,
                      t + 7);
  fclose(stat);
  return fields == 8 ? double(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / double(sysconf(_SC_CLK_TCK)) : 0;
}

// Result of an attempt.
struct Attempt {
  std::vector<double> samples; // sorted
  long batch;                  // operations of one sample
  double foreign;              // share of the machine that other processes used meanwhile
  double processors;           // processor seconds per operation, of all ranks together
  double from, to;             // of the monotonic clock
};

struct Options {
  std::string collectives = "all_reduce,reduce_scatter,all_gather,broadcast,all_to_all,barrier";
  std::string sizes = "8,1024,1048576";
  double budget_seconds = 0.06;
  int retries = 2;
  double mean_seconds = 0; // if set, a point is one sample that lasts at least this
};

std::vector<std::string> split(const std::string &list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

class Bench {
public:
  Bench(ccl::communicator &comm, size_t max_bytes)
      : comm(comm), rank(comm.rank()), ranks(comm.size()), send(std::max(max_bytes / 4, size_t(ranks))),
        receive(send.size()) {}

  void point(const std::string &name, size_t bytes, const Options &options) {
    if (bytes <= checked_bytes && !check(name, bytes)) {
      fprintf(stderr, "wrong result: %s, %zu bytes, rank %d\n", name.c_str(), bytes, rank);
      _exit(1);
    }
    fill(bytes, 0);
    double mean = options.mean_seconds;
    double seconds = mean ? lasting(name, bytes, mean / lasting_parts).second : estimate(name, bytes);
    long batch = long(sample_seconds / seconds) + 1;
    if (name == "broadcast" && seconds < slow_seconds) batch = (batch + ranks - 1) / ranks * ranks;
    int least = seconds < slow_seconds ? min_samples : min_slow_samples;
    int samples = int(std::clamp(options.budget_seconds / (double(batch) * seconds), double(least), double(max_samples)));
    samples = mean ? 1 : samples;
    Attempt kept = attempt(name, bytes, batch, samples, mean);
    int attempts = 1;
    for (; kept.foreign > disturbed && attempts <= options.retries && seconds < slow_seconds; attempts++) {
      Attempt again = attempt(name, bytes, batch, samples, mean);
      if (again.foreign < kept.foreign) kept = again;
    }
    if (rank) return;
    const std::vector<double> &best = kept.samples;
    printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"batch\":%ld,\"samples\":%d,\"median_us\":%.3f,"
           "\"min_us\":%.3f,\"p95_us\":%.3f,\"cpu_us\":%.3f,\"foreign\":%.3f,\"attempts\":%d,\"from_s\":%.4f,\"to_s\":%.4f}\n",
           name.c_str(), ranks, bytes, kept.batch, samples, (best[(samples - 1) / 2] + best[samples / 2]) / 2 * 1e6,
           best[0] * 1e6, best[std::min(samples - 1, samples * 95 / 100)] * 1e6, kept.processors * 1e6, kept.foreign,
           attempts, kept.from, kept.to);
    fflush(stdout);
  }

private:
  ccl::communicator &comm;
  int rank, ranks;
  std::vector<float> send, receive;
  unsigned turn = 0; // counts operations; moves the root of broadcasts

  static size_t whole_of(size_t bytes) { return std::max(bytes / 4, size_t(1)); }
  size_t part_of(size_t bytes) const { return std::max(bytes / 4 / ranks, size_t(1)); }

  // Attributes by which oneCCL finds the schedule of the last such operation again.
  template <class Attributes> static const Attributes &cached(const char *name, size_t bytes, int root = 0) {
    static std::map<std::pair<size_t, int>, Attributes> known;
    auto found = known.find({bytes, root});
    if (found == known.end()) {
      std::string id = std::string(name) + "." + std::to_string(bytes) + "." + std::to_string(root);
      auto attributes = ccl::create_operation_attr<Attributes>(
          ccl::attr_val<ccl::operation_attr_id::to_cache>(true),
          ccl::attr_val<ccl::operation_attr_id::match_id>(ccl::string_class(id.c_str())));
      found = known.emplace(std::make_pair(bytes, root), std::move(attributes)).first;
    }
    return found->second;
  }

  void once(const std::string &name, size_t bytes) {
    size_t whole = whole_of(bytes), part = part_of(bytes);
    int root = int(turn++ % unsigned(ranks));
    float *in = send.data(), *out = receive.data();
    if (name == "all_reduce")
      ccl::allreduce(out, out, whole, f32, sum, comm, cached<ccl::allreduce_attr>("ar", bytes)).wait();
    else if (name == "reduce_scatter")
      ccl::reduce_scatter(in, out, part, f32, sum, comm, cached<ccl::reduce_scatter_attr>("rs", bytes)).wait();
    else if (name == "all_gather")
      ccl::allgather(in, out, part, f32, comm, cached<ccl::allgather_attr>("ag", bytes)).wait();
    else if (name == "broadcast")
      ccl::broadcast(out, whole, f32, root, comm, cached<ccl::broadcast_attr>("bc", bytes, root)).wait();
    else if (name == "all_to_all")
      ccl::alltoall(in, out, part, f32, comm, cached<ccl::alltoall_attr>("aa", bytes)).wait();
    else
      ccl::barrier(comm).wait();
  }

  // Sets the memory that an operation of this size touches.
  void fill(size_t bytes, float value) {
    size_t count = std::max(whole_of(bytes), part_of(bytes) * ranks);
    std::fill_n(send.begin(), count, value);
    std::fill_n(receive.begin(), count, value);
  }

  // Runs the operation once on data whose result is known.
  bool check(const std::string &name, size_t bytes) {
    fill(bytes, float(rank + 1));
    turn = 0;
    once(name, bytes);
    size_t part = part_of(bytes);
    float total = float(ranks * (ranks + 1) / 2);
    auto all = [&](size_t from, size_t count, float value) {
      return std::all_of(&receive[from], &receive[from] + count, [=](float x) { return x == value; });
    };
    if (name == "all_reduce") return all(0, whole_of(bytes), total);
    if (name == "reduce_scatter") return all(0, part, total);
    if (name == "broadcast") return all(0, whole_of(bytes), 1);
    bool right = true;
    if (name == "all_gather" || name == "all_to_all")
      for (int from = 0; from < ranks; from++) right &= all(from * part, part, float(from + 1));
    return right;
  }

  double timed(const std::string &name, size_t bytes, long batch) {
    double start = now();
    for (long i = 0; i < batch; i++) once(name, bytes);
    return (now() - start) / double(batch);
  }

  void over_ranks(double *values, size_t count, ccl::reduction op) {
    ccl::allreduce(values, values, count, ccl::datatype::float64, op, comm).wait();
  }

  double agreed(const std::string &name, size_t bytes, long batch) {
    double seconds = timed(name, bytes, batch);
    over_ranks(&seconds, 1, ccl::reduction::max);
    return seconds;
  }

  double estimate(const std::string &name, size_t bytes) {
    double seconds = agreed(name, bytes, 1), spent = seconds;
    for (int i = 1; i < estimates && spent < estimate_seconds; i++) {
      long batch = long(1e-3 / seconds) + 1;
      double again = agreed(name, bytes, batch);
      spent += again * double(batch);
      seconds = std::min(seconds, again);
    }
    return seconds;
  }

  // Runs operations for at least `limit`; returns their number and the seconds per operation. Rank 0 decides when
  // to stop.
  std::pair<long, double> lasting(const std::string &name, size_t bytes, double limit) {
    double start = now(), batch = 1;
    long count = 0;
    while (batch > 0) {
      timed(name, bytes, long(batch));
      count += long(batch);
      double elapsed = now() - start, wanted = (limit - elapsed) * double(count) / elapsed / lasting_parts + 1;
      batch = rank == 0 && elapsed < limit ? std::floor(std::min(wanted, 2 * batch)) : 0;
      over_ranks(&batch, 1, ccl::reduction::max);
    }
    return {count, (now() - start) / double(count)};
  }

  Attempt attempt(const std::string &name, size_t bytes, long batch, int count, double mean) {
    std::vector<double> samples(count);
    double machine = machine_seconds(), ours = -seconds_of(CLOCK_PROCESS_CPUTIME_ID), from = now();
    ccl::barrier(comm).wait();
    if (mean) {
      std::tie(batch, samples[0]) = lasting(name, bytes, mean);
    } else {
      for (double &sample : samples) {
        // A root leaves its broadcast early, and would count the rest of it as time of the next one.
        if (name == "broadcast" && batch < ranks) ccl::barrier(comm).wait();
        sample = timed(name, bytes, batch);
      }
    }
    ccl::barrier(comm).wait();
    ours += seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    double busy = machine_seconds() - machine, to = now();
    over_ranks(&ours, 1, ccl::reduction::sum);
    over_ranks(samples.data(), samples.size(), ccl::reduction::max);
    std::sort(samples.begin(), samples.end());
    // The greatest value over the ranks, since all must agree on whether to try again.
    double foreign = (busy - ours) / (to - from) / double(sysconf(_SC_NPROCESSORS_ONLN));
    over_ranks(&foreign, 1, ccl::reduction::max);
    return {samples, batch, std::max(foreign, 0.0), ours / (double(count) * double(batch)), from, to};
  }
};

ccl::shared_ptr_class<ccl::kvs> meet(int rank, const std::string &path) {
  ccl::kvs::address_type address;
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    address = store->get_address();
    std::string part = path + ".part";
    FILE *file = fopen(part.c_str(), "w");
    if (!file || fwrite(address.data(), 1, address.size(), file) != address.size() || fclose(file) ||
        rename(part.c_str(), path.c_str()))
      perror(path.c_str()), exit(1);
    return store;
  }
  FILE *file;
  while (!(file = fopen(path.c_str(), "r"))) usleep(2000);
  if (fread(address.data(), 1, address.size(), file) != address.size()) perror(path.c_str()), exit(1);
  fclose(file);
  return ccl::create_kvs(address);
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i], value = argv[i + 1];
    if (name == "--collectives") options.collectives = value;
    if (name == "--sizes") options.sizes = value;
    if (name == "--budget-ms") options.budget_seconds = atof(value.c_str()) * 1e-3;
    if (name == "--retries") options.retries = atoi(value.c_str());
    if (name == "--mean-ms") options.mean_seconds = atof(value.c_str()) * 1e-3;
  }
  const char *rank = getenv("PMI_RANK"), *ranks = getenv("PMI_SIZE"), *store = getenv("BENCH_STORE");
  if (!rank || !ranks || !store) {
    fprintf(stderr, "PMI_RANK, PMI_SIZE and BENCH_STORE are needed: see rig/oneccl.py\n");
    return 2;
  }
  ccl::init();
  auto comm = ccl::create_communicator(atoi(ranks), atoi(rank), meet(atoi(rank), store));
  ccl::barrier(comm).wait();
  size_t largest = 0;
  std::vector<size_t> sizes;
  for (const auto &size : split(options.sizes)) sizes.push_back(strtoull(size.c_str(), nullptr, 10));
  for (size_t size : sizes) largest = std::max(largest, size);
  Bench bench(comm, largest);
  for (const auto &name : split(options.collectives)) {
    if (name == "barrier") bench.point(name, 0, options);
    else
      for (size_t size : sizes) bench.point(name, size, options);
  }
  ccl::barrier(comm).wait();
  return 0;
}
