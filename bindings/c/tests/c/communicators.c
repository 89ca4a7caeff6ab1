/* Settings, split, group, queries, messages between two ranks, memory. */
#include "test.h"

#include <pthread.h>

static int rank, size;

static void parts(koloComm_t comm) {
    koloComm_t part = NULL, pair = NULL;
    int number = -1, ranks[2] = {2, 0}, sum = rank;
    char text[2000];

    OK(koloCommSplit(comm, rank % 2, size - rank, &part));
    OK(koloCommSize(part, &number));
    CHECK(number == (size + 1 - rank % 2) / 2);
    OK(koloAllReduce(part, &sum, &sum, 1, KOLO_INT32, KOLO_SUM));
    CHECK(sum == (rank % 2 == 0 ? 2 : 1));
    OK(koloCommRank(part, &number));
    CHECK(number == (rank == 0 ? 1 : 0));
    OK(koloCommDestroy(&part));

    /* Keys of either sign order the ranks, here in reverse. */
    OK(koloCommSplit(comm, 0, 1 - rank, &part));
    OK(koloCommRank(part, &number));
    CHECK(number == size - 1 - rank);
    OK(koloCommDestroy(&part));

    /* One rank's wrong argument is an error on all ranks, at once, and the next split matches again. */
    FAILS(koloCommSplit(comm, rank == 1 ? -2 : 0, 0, &part), KOLO_USAGE, "rank 1 cannot take part: color is -2");
    FAILS(koloCommSplit(comm, 0, 0, rank == 1 ? NULL : &part), KOLO_USAGE, "result is NULL");
    CHECK(part == NULL);

    OK(koloCommSplit(comm, rank == 1 ? KOLO_NO_COLOR : 7, 0, &part));
    CHECK((part == NULL) == (rank == 1));
    OK(koloCommDestroy(&part));

    if (rank == 1) {
        FAILS(koloCommGroup(comm, ranks, 2, &pair), KOLO_USAGE, "not in the list");
        CHECK(pair == NULL);
    } else {
        OK(koloCommGroup(comm, ranks, 2, &pair));
        OK(koloCommRank(pair, &number));
        CHECK(number == (rank == 2 ? 0 : 1));
        OK(koloBarrier(pair));
        OK(koloCommDestroy(&pair));
    }

    OK(koloCommLocalRank(comm, &number));
    CHECK(number == rank);
    OK(koloCommSummary(comm, text, sizeof text, NULL));
    CHECK(strstr(text, "tcp") != NULL);
    OK(koloCommSettings(comm, text, sizeof text, NULL));
    CHECK(strstr(text, "KOLO_TIMEOUT=20\n") != NULL);
    CHECK(strstr(text, "KOLO_DETERMINISM=canonical\n") != NULL);
    CHECK(strstr(text, "KOLO_TRANSPORT=tcp\n") != NULL);
}

static void messages(koloComm_t comm) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, got = -1;
    enum { LENGTH = 100000 };
    int *from_left, *to_right;
    void *memory = NULL, *more = NULL;
    koloRegistration_t registration = NULL;
    koloComm_t other;
    koloTransfer_t transfers[4];

    if (rank == 0) {
        int seven = 7;
        OK(koloSend(comm, &seven, 1, KOLO_INT32, 1));
    } else if (rank == 1) {
        OK(koloRecv(comm, &got, 1, KOLO_INT32, 0));
        CHECK(got == 7);
    }
    OK(koloSendRecv(comm, &rank, 1, right, &got, 1, left, KOLO_INT32));
    CHECK(got == left);

    OK(koloMemAlloc(&memory, LENGTH * sizeof(int)));
    OK(koloMemAlloc(&more, LENGTH * sizeof(int)));
    CHECK((uintptr_t)memory % 4096 == 0);
    OK(koloCommRegister(comm, memory, LENGTH * sizeof(int), &registration));
    from_left = (int *)memory;
    to_right = (int *)more;
    for (int i = 0; i < LENGTH; i++) to_right[i] = rank * LENGTH + i;
    /* Every rank receives and sends in both directions, in an order that would deadlock if the transfers ran one by one. */
    transfers[0].kind = KOLO_RECV, transfers[0].peer = left, transfers[0].buffer = from_left;
    transfers[1].kind = KOLO_SEND, transfers[1].peer = right, transfers[1].buffer = to_right;
    transfers[2].kind = KOLO_RECV, transfers[2].peer = right, transfers[2].buffer = &got;
    transfers[3].kind = KOLO_SEND, transfers[3].peer = left, transfers[3].buffer = &rank;
    for (int i = 0; i < 4; i++) transfers[i].type = KOLO_INT32, transfers[i].count = i < 2 ? LENGTH : 1;
    OK(koloBatch(comm, transfers, 4));
    for (int i = 0; i < LENGTH; i++) CHECK(from_left[i] == left * LENGTH + i);
    CHECK(got == right);
    OK(koloBatch(comm, NULL, 0));
    OK(koloCommDeregister(comm, &registration));
    CHECK(registration == NULL);
    OK(koloCommDeregister(comm, &registration));
    OK(koloCommGroup(comm, &rank, 1, &other));
    OK(koloCommRegister(other, memory, LENGTH * sizeof(int), &registration));
    OK(koloCommDestroy(&other));
    OK(koloCommDeregister(other, &registration));
    CHECK(registration == NULL);
    OK(koloMemFree(memory));
    OK(koloMemFree(more));
    OK(koloMemFree(NULL));
    OK(koloMemAlloc(&memory, 0));
    CHECK(memory == NULL);
    FAILS(koloMemAlloc(&memory, (size_t)-1 / 2), KOLO_SYSTEM, "allocating");
}

/* Each thread has its own communicator; the calls of different threads interleave in any order. */
static void *work(void *part) {
    koloComm_t comm = (koloComm_t)part;
    for (int round = 0; round < 100; round++) {
        int64_t long_vector[3000], sum = rank + round;
        OK(koloAllReduce(comm, &sum, &sum, 1, KOLO_INT64, KOLO_SUM));
        CHECK(sum == size * (size - 1) / 2 + size * round);
        for (int i = 0; i < 3000; i++) long_vector[i] = i + rank;
        koloRequest_t request;
        OK(koloAllReduceStart(comm, long_vector, long_vector, 3000, KOLO_INT64, KOLO_MAX, &request));
        FAILS(koloSend(comm, NULL, 1, KOLO_INT8, 0), KOLO_USAGE, "koloSend");
        OK(koloWait(&request, KOLO_UNSET));
        for (int i = 0; i < 3000; i++) CHECK(long_vector[i] == i + size - 1);
    }
    return NULL;
}

static void threads(koloComm_t comm) {
    enum { THREADS = 3 };
    pthread_t running[THREADS];
    koloComm_t parts[THREADS];
    for (int i = 0; i < THREADS; i++) OK(koloCommSplit(comm, 0, 0, &parts[i]));
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&running[i], NULL, work, parts[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++) OK(koloCommDestroy(&parts[i]));
}

int main(void) {
    koloComm_t comm;
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    config.transport = "tcp";
    config.timeout_ms = 20000;
    config.determinism = KOLO_CANONICAL;
    OK(koloCommInitUrl(&comm, getenv("KOLO_RENDEZVOUS"), -1, -1, &config));
    OK(koloCommRank(comm, &rank));
    OK(koloCommSize(comm, &size));
    CHECK(size == 3);
    parts(comm);
    messages(comm);
    threads(comm);
    OK(koloBarrier(comm));
    OK(koloCommDestroy(&comm));
    return 0;
}
