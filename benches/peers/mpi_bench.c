// An MPI library's side of the comparison: the loop of benches/src/bin/kolo_bench.rs, over MPI.
//
//   mpicc -O2 -o mpi_bench mpi_bench.c
//   mpirun -n 4 ./mpi_bench --collectives all_reduce --sizes 8,1048576
//
// In addition to the collectives of the comparison, it has `reduce` and two patterns of messages: `there_and_back`, from
// each even rank to the next rank and back, and `sendrecv`, from each rank to the next one around a ring.
//
// Rank 0 prints one JSON object for each point. README.md describes the method. A point is one collective at one
// size: a check of the result, an estimate, and then samples of back-to-back operations.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SAMPLES = 200, MIN_SAMPLES = 5, MIN_SLOW_SAMPLES = 2, ESTIMATES = 5, MAX_SIZES = 64 };
static const double SAMPLE_SECONDS = 300e-6; // a sample lasts at least this
enum { LEAST_BATCH = 4 };                   // and has this many operations, if they are shorter than
static const double SINGLE_SECONDS = 150e-3; // this: see the README, "Samples"
static const double SLOW_SECONDS = 50e-3;    // a sample this long needs no further samples, and no second attempt
static const double ESTIMATE_SECONDS = 0.25; // no further estimates after this time
static const double DISTURBED = 0.10;        // share of the machine used by other processes
static const double LASTING_PARTS = 8;       // a batch of a long sample takes this part (1/8) of the time left
static const size_t CHECKED_BYTES = 2 << 20;

enum operation {
  ALL_REDUCE,
  REDUCE_SCATTER,
  ALL_GATHER,
  BROADCAST,
  ALL_TO_ALL,
  REDUCE,
  THERE_AND_BACK,
  SENDRECV,
  BARRIER,
  OPERATIONS
};
static const char *const NAMES[OPERATIONS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
                                              "reduce",     "there_and_back", "sendrecv",   "barrier"};

static int rank, ranks;
static float *send_buffer, *receive_buffer;
static unsigned turn;   // counts operations; moves the root of broadcasts
static double budget_seconds = 0.06;
static int retries = 2;
static double mean_seconds; // if set, a point is one sample that lasts at least this

static size_t whole_of(size_t bytes) { return bytes < 4 ? 1 : bytes / 4; }

// Elements of one rank's part; if a size has less than one element per rank, the part is one element.
static size_t part_of(size_t bytes) {
  size_t part = bytes / 4 / ranks;
  return part ? part : 1;
}

static void there_and_back(int count) {
  int peer = rank ^ 1;
  if (peer >= ranks) return;
  if (rank < peer) MPI_Send(send_buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
  MPI_Recv(receive_buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank > peer) MPI_Send(send_buffer, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void once(enum operation operation, size_t bytes) {
  int whole = (int)whole_of(bytes), part = (int)part_of(bytes), root = (int)(turn++ % ranks);
  switch (operation) {
  case ALL_REDUCE:
    MPI_Allreduce(MPI_IN_PLACE, receive_buffer, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    break;
  case REDUCE_SCATTER:
    MPI_Reduce_scatter_block(send_buffer, receive_buffer, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    break;
  case ALL_GATHER:
    MPI_Allgather(send_buffer, part, MPI_FLOAT, receive_buffer, part, MPI_FLOAT, MPI_COMM_WORLD);
    break;
  case BROADCAST:
    MPI_Bcast(receive_buffer, whole, MPI_FLOAT, root, MPI_COMM_WORLD);
    break;
  case ALL_TO_ALL:
    MPI_Alltoall(send_buffer, part, MPI_FLOAT, receive_buffer, part, MPI_FLOAT, MPI_COMM_WORLD);
    break;
  case REDUCE:
    MPI_Reduce(send_buffer, receive_buffer, whole, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
    break;
  case THERE_AND_BACK:
    there_and_back(whole);
    break;
  case SENDRECV:
    MPI_Sendrecv(send_buffer, whole, MPI_FLOAT, (rank + 1) % ranks, 0, receive_buffer, whole, MPI_FLOAT,
                 (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    break;
  default:
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// Sets the memory that an operation of this size touches.
static void fill(size_t bytes, float value) {
  size_t parts = part_of(bytes) * (size_t)ranks, count = whole_of(bytes) > parts ? whole_of(bytes) : parts;
  for (size_t i = 0; i < count; i++) send_buffer[i] = receive_buffer[i] = value;
}

static int all_are(const float *values, size_t count, float expected) {
  for (size_t i = 0; i < count; i++)
    if (values[i] != expected) return 0;
  return 1;
}

// Runs the operation once on data whose result is known.
static void check(enum operation operation, size_t bytes) {
  fill(bytes, (float)(rank + 1));
  turn = 0;
  once(operation, bytes);
  float total = (float)(ranks * (ranks + 1) / 2);
  int right = 1;
  if (operation == ALL_REDUCE) right = all_are(receive_buffer, whole_of(bytes), total);
  if (operation == REDUCE_SCATTER) right = all_are(receive_buffer, part_of(bytes), total);
  if (operation == BROADCAST) right = all_are(receive_buffer, whole_of(bytes), 1);
  if (operation == REDUCE && rank == 0) right = all_are(receive_buffer, whole_of(bytes), total);
  if (operation == THERE_AND_BACK && (rank ^ 1) < ranks)
    right = all_are(receive_buffer, whole_of(bytes), (float)((rank ^ 1) + 1));
  if (operation == SENDRECV)
    right = all_are(receive_buffer, whole_of(bytes), (float)((rank + ranks - 1) % ranks + 1));
  if (operation == ALL_GATHER || operation == ALL_TO_ALL)
    for (int from = 0; from < ranks; from++)
      right &= all_are(receive_buffer + from * part_of(bytes), part_of(bytes), (float)(from + 1));
  if (!right) {
    fprintf(stderr, "wrong result: %s, %zu bytes, rank %d\n", NAMES[operation], bytes, rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

// Returns the seconds per operation on this rank.
static double timed(enum operation operation, size_t bytes, long batch) {
  double start = MPI_Wtime();
  for (long i = 0; i < batch; i++) once(operation, bytes);
  return (MPI_Wtime() - start) / (double)batch;
}

// Runs operations for at least `limit`; stores their number, and returns the seconds per operation. Rank 0
// decides when to stop.
static double lasting(enum operation operation, size_t bytes, double limit, long *count) {
  double start = MPI_Wtime();
  long batch = 1;
  for (*count = 0; batch;) {
    timed(operation, bytes, batch);
    *count += batch;
    double elapsed = MPI_Wtime() - start, wanted = (limit - elapsed) * (double)*count / elapsed / LASTING_PARTS + 1;
    batch = elapsed >= limit ? 0 : wanted < 2.0 * (double)batch ? (long)wanted : 2 * batch;
    MPI_Bcast(&batch, 1, MPI_LONG, 0, MPI_COMM_WORLD);
  }
  return (MPI_Wtime() - start) / (double)*count;
}

// The same as `timed` on the slowest rank; all ranks get the same number.
static double agreed(enum operation operation, size_t bytes, long batch) {
  double own = timed(operation, bytes, batch), slowest;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

// Returns the time of one operation: the least of some tries, since an interrupted one would cost the point its
// samples. Sets *batch to the number of operations of a sample.
static double estimate(enum operation operation, size_t bytes, long *batch) {
  double seconds = agreed(operation, bytes, 1), spent = seconds;
  for (int i = 1; i < ESTIMATES && spent < ESTIMATE_SECONDS; i++) {
    long count = (long)(1e-3 / seconds) + 1;
    double again = agreed(operation, bytes, count);
    spent += again * (double)count;
    if (again < seconds) seconds = again;
  }
  *batch = (long)(SAMPLE_SECONDS / seconds) + 1;
  if (operation == BROADCAST || operation == REDUCE) {
    if (seconds < SLOW_SECONDS) *batch = (*batch + ranks - 1) / ranks * ranks;
  } else if (seconds < SINGLE_SECONDS && *batch < LEAST_BATCH) {
    *batch = LEAST_BATCH;
  }
  return seconds;
}

static double seconds_of(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Processor time of this process so far.
static double process_seconds(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

// Processor time of all processes so far, including time stolen by the host; 0 if it is not known.
static double machine_seconds(void) {
  unsigned long long user, nice, system, idle, wait, irq, softirq, steal;
  FILE *stat = fopen("/proc/stat", "r");
  if (!stat) return 0;
  int fields = fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait,
                      &irq, &softirq, &steal);
  fclose(stat);
  if (fields != 8) return 0;
  return (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
}

static int ascending(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

// Result of an attempt, in addition to its samples.
struct attempt {
  double foreign;    // share of the machine that other processes used meanwhile
  double processors; // processor seconds per operation, of all ranks together
  double from, to;   // times of the monotonic clock
};

// Takes the samples and sorts them; a long sample sets the number of its operations.
static struct attempt attempt(enum operation operation, size_t bytes, long *batch, int samples, double *slowest) {
  static double own[MAX_SAMPLES];
  double machine = machine_seconds(), process = process_seconds(), from = seconds_of(CLOCK_MONOTONIC);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < samples; i++) {
    // A root leaves its broadcast early, and would count the rest of it as time of the next one.
    if (!mean_seconds && operation == BROADCAST && *batch < ranks) MPI_Barrier(MPI_COMM_WORLD);
    own[i] = mean_seconds ? lasting(operation, bytes, mean_seconds, batch) : timed(operation, bytes, *batch);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double mine = process_seconds() - process, ours;
  double busy = machine_seconds() - machine, to = seconds_of(CLOCK_MONOTONIC);
  MPI_Allreduce(&mine, &ours, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(own, slowest, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(slowest, (size_t)samples, sizeof *slowest, ascending);
  double foreign = (busy - ours) / (to - from) / (double)sysconf(_SC_NPROCESSORS_ONLN);
  // All ranks must agree on whether to try again.
  MPI_Bcast(&foreign, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return (struct attempt){.foreign = foreign < 0 ? 0 : foreign,
                          .processors = ours / ((double)samples * (double)*batch),
                          .from = from,
                          .to = to};
}

// Measures one point and prints it on rank 0.
static void point(enum operation operation, size_t bytes) {
  static double best[MAX_SAMPLES], next[MAX_SAMPLES];
  if (bytes <= CHECKED_BYTES) check(operation, bytes);
  fill(bytes, 0);
  long batch;
  double seconds = mean_seconds ? lasting(operation, bytes, mean_seconds / LASTING_PARTS, &batch)
                                : estimate(operation, bytes, &batch);
  double wanted = budget_seconds / ((double)batch * seconds);
  int least = seconds < SLOW_SECONDS ? MIN_SAMPLES : MIN_SLOW_SAMPLES;
  int samples = mean_seconds ? 1 : wanted < least ? least : wanted > MAX_SAMPLES ? MAX_SAMPLES : (int)wanted;
  struct attempt kept = attempt(operation, bytes, &batch, samples, best);
  int attempts = 1;
  while (kept.foreign > DISTURBED && attempts <= retries && seconds < SLOW_SECONDS) {
    struct attempt again = attempt(operation, bytes, &batch, samples, next);
    attempts++;
    if (again.foreign < kept.foreign) {
      kept = again;
      memcpy(best, next, sizeof best);
    }
  }
  if (rank) return;
  int high = samples * 95 / 100;
  printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"batch\":%ld,\"samples\":%d,\"median_us\":%.3f,"
         "\"min_us\":%.3f,\"p95_us\":%.3f,\"cpu_us\":%.3f,\"foreign\":%.3f,\"attempts\":%d,\"from_s\":%.4f,\"to_s\":%.4f}\n",
         NAMES[operation], ranks, bytes, batch, samples, (best[(samples - 1) / 2] + best[samples / 2]) / 2 * 1e6,
         best[0] * 1e6, best[high < samples ? high : samples - 1] * 1e6, kept.processors * 1e6,
         kept.foreign, attempts, kept.from, kept.to);
  fflush(stdout);
}

static int wants(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return 1;
  return 0;
}

int main(int argc, char **argv) {
  const char *collectives = "all_reduce,reduce_scatter,all_gather,broadcast,all_to_all,barrier";
  const char *sizes = "8,1024,1048576";
  MPI_Init(&argc, &argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--collectives")) collectives = argv[i + 1];
    if (!strcmp(argv[i], "--sizes")) sizes = argv[i + 1];
    if (!strcmp(argv[i], "--budget-ms")) budget_seconds = atof(argv[i + 1]) * 1e-3;
    if (!strcmp(argv[i], "--retries")) retries = atoi(argv[i + 1]);
    if (!strcmp(argv[i], "--mean-ms")) mean_seconds = atof(argv[i + 1]) * 1e-3;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  size_t bytes[MAX_SIZES], largest = 0;
  int count = 0;
  for (const char *at = sizes; at && *at && count < MAX_SIZES; count++) {
    bytes[count] = strtoull(at, NULL, 10);
    if (bytes[count] > largest) largest = bytes[count];
    at = strchr(at, ',');
    if (at) at++;
  }
  size_t capacity = largest / 4 < (size_t)ranks ? (size_t)ranks : largest / 4;
  send_buffer = malloc(capacity * sizeof(float)), receive_buffer = malloc(capacity * sizeof(float));
  if (!send_buffer || !receive_buffer) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int operation = 0; operation < OPERATIONS; operation++) {
    if (!wants(collectives, NAMES[operation])) continue;
    for (int i = 0; i < (operation == BARRIER ? 1 : count); i++) point(operation, operation == BARRIER ? 0 : bytes[i]);
  }
  MPI_Finalize();
  return 0;
}
