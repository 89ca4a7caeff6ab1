/* The last rank exits without finalizing. The others then give up calls whose peers compute, without any call of MPI, or are stopped. They
   still reach each other after that. Takes the path of a file, and the call that is given up. Three ranks. */
#define _GNU_SOURCE
#include "test.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DATA = 1, WORD, LONG = 1 << 20 };

/* Numbers that ranks show each other without MPI. */
static volatile int *stage;

static void compute_until(int number) {
  while (*stage < number) sched_yield();
}

/* Waits for a word of another rank. Probes fail once the loss is known, but still advance messages. */
static void word_from(int peer) {
  int there = 0, word = 0;
  MPI_Request request;
  while (!there) MPI_Iprobe(peer, WORD, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  CHECK(!MPI_Irecv(&word, 1, MPI_INT, peer, WORD, MPI_COMM_WORLD, &request) && !MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(word == 9);
}

static void tell(int peer) {
  static const int word = 9;
  MPI_Request request;
  CHECK(!MPI_Isend(&word, 1, MPI_INT, peer, WORD, MPI_COMM_WORLD, &request) && !MPI_Request_free(&request));
}

/* A rank gives up a receive of which nothing has arrived, while its source computes. */
static void receive(void) {
  int into = 3;
  if (rank == 0) {
    compute_until(1);
    tell(1);
    word_from(1);
  } else {
    CHECK(MPI_Recv(&into, 1, MPI_INT, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE) && into == 3);
    *stage = 1;
    word_from(0);
    tell(0);
  }
}

/* A rank gives up a send while its receiver computes, and uses the buffer for other data. The receiver gets none of these. */
static void send(void) {
  static char data[LONG];
  MPI_Request request;
  memset(data, 5, LONG);
  if (rank == 0) {
    compute_until(1);
    CHECK(MPI_Send(data, LONG, MPI_CHAR, 1, DATA, MPI_COMM_WORLD));
    memset(data, 6, LONG);
    *stage = 2;
    word_from(1);
    tell(1);
  } else {
    CHECK(!MPI_Irecv(data, LONG, MPI_CHAR, 0, DATA, MPI_COMM_WORLD, &request));
    *stage = 1;
    compute_until(2);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) && !memchr(data, 6, LONG));
    tell(0);
    word_from(0);
  }
}

/* Waits until a process is stopped. */
static void wait_until_stopped(int process) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  while (state != 'T') {
    FILE *stat = fopen(path, "r");
    CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && !fclose(stat));
  }
}

/* A rank gives up a get whose target is stopped, while it waits for earlier data to leave. The answer does not come to its memory. */
static void get(MPI_Win window) {
  enum { BACKLOG = (64 << 20) - 256 };
  int into = 3, failed = 0;
  if (rank == 1) {
    *stage = getpid();
    CHECK(!raise(SIGSTOP));
    word_from(0);
    tell(0);
    return;
  }
  char *data = calloc(1, BACKLOG);
  compute_until(1);
  int target = *stage;
  wait_until_stopped(target);
  CHECK(!MPI_Put(data, BACKLOG, MPI_CHAR, 1, 0, BACKLOG, MPI_CHAR, window));
  *stage = -1;
  while (!failed) failed = MPI_Get(&into, 1, MPI_INT, 1, 0, 1, MPI_INT, window);
  CHECK(!kill(target, SIGCONT));
  tell(1);
  word_from(1);
  CHECK(into == 3);
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  int file = open(argv[1], O_CREAT | O_RDWR, 0600);
  CHECK(size == 3 && argc == 3 && file >= 0 && !ftruncate(file, sizeof *stage));
  stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(stage != MAP_FAILED);
  *stage = 0;
  CHECK(!MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) && !MPI_Barrier(MPI_COMM_WORLD));
  if (!strcmp(argv[2], "get")) {
    MPI_Win window;
    char *memory;
    /* Operations on memory that the library has allocated would take no message. */
    CHECK((memory = malloc(64 << 20)) != NULL);
    CHECK(!MPI_Win_create(memory, 64 << 20, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window) && !MPI_Win_fence(0, window));
    CHECK(!MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
    while (rank == 2 && *stage >= 0) sched_yield();
    if (rank < 2) get(window);
  } else if (rank < 2) {
    strcmp(argv[2], "send") ? receive() : send();
  }
  _exit(0);
}
