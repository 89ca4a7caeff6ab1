/* A child made by fork cannot use its parent's communicator, and its end does not disturb the parent. Three ranks; arguments: the
 * child's action, transport. */
#include "test.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static koloComm_t comm;
static koloSurvivors_t group;
static koloState_t state;
static int rank;

/* Destroys the inherited communicator when the child exits, as the destructor of a C++ object would. */
static void destroy(void) { OK(koloCommDestroy(&comm)); }

static void sums(int expected) {
    static const size_t counts[] = {1, 1000, 200000};
    for (size_t which = 0; which < 3; which++) {
        size_t count = counts[which];
        int *x = malloc(count * sizeof *x);
        for (size_t i = 0; i < count; i++) x[i] = rank + 1;
        OK(koloAllReduce(comm, x, x, count, KOLO_INT32, KOLO_SUM));
        for (size_t i = 0; i < count; i++) CHECK(x[i] == expected);
        free(x);
    }
}

static void refused_calls(koloRequest_t *waited, koloRequest_t *freed) {
    int x[3] = {1000, 1000, 1000}, y[3], peer = 0, done = 0;
    size_t counts[3] = {1, 1, 1};
    void *memory = NULL;
    uint64_t epoch = 0;
    char text[64];
    koloComm_t none = NULL;
    koloRequest_t request = NULL;
    koloRegistration_t registration = NULL;
    koloResult_t found = KOLO_SUCCESS;
    koloCall_t call = KOLO_CALL_INITIALIZER;
    koloTransfer_t transfer = {KOLO_SEND, 0, x, 1, KOLO_INT32};
    koloPart_t part = {"x", x, sizeof x};
    call.input = call.output = x;
    call.count = 3;
#define REFUSED(call) FAILS(call, KOLO_USAGE, "before a fork")
    REFUSED(koloAllReduce(comm, x, x, 3, KOLO_INT32, KOLO_SUM));
    REFUSED(koloBarrier(comm));
    REFUSED(koloAllGatherV(comm, x, y, counts, KOLO_INT32));
    REFUSED(koloAllReduceStart(comm, x, x, 3, KOLO_INT32, KOLO_SUM, &request));
    REFUSED(koloRun(comm, &call));
    REFUSED(koloStart(comm, &call, &request));
    REFUSED(koloExplain(comm, &call, text, sizeof text, NULL));
    REFUSED(koloSend(comm, x, 1, KOLO_INT32, 0));
    REFUSED(koloRecv(comm, x, 1, KOLO_INT32, 0));
    REFUSED(koloRecvTagged(comm, x, 1, KOLO_INT32, KOLO_ANY_SOURCE, 3, &peer));
    REFUSED(koloSendStart(comm, x, 1, KOLO_INT32, 0, 0, &request));
    REFUSED(koloBatch(comm, &transfer, 1));
    REFUSED(koloBatchStart(comm, &transfer, 1, &request));
    REFUSED(koloCommSplit(comm, 0, 0, &none));
    REFUSED(koloCommGroup(comm, (const int[]){0, 1, 2}, 3, &none));
    REFUSED(koloCommMemAlloc(comm, &memory, 4096));
    REFUSED(koloCommRegister(comm, x, sizeof x, &registration));
    REFUSED(koloCommAbort(comm, "a child has no say"));
    REFUSED(koloStateOffer(state, group, &part, 1, NULL));
    OK(koloSurvivorsDestroy(&group));
    OK(koloCommGetAsyncError(comm, &found));
    CHECK(found == KOLO_USAGE && strstr(koloGetLastError(comm), "before a fork") != NULL);
    OK(koloTest(*waited, &done));
    CHECK(done == 1);
    REFUSED(koloWait(waited, KOLO_UNSET));
    CHECK(*waited == NULL && none == NULL && request == NULL && memory == NULL && registration == NULL);
    OK(koloRequestFree(freed));
    OK(koloCommRank(comm, &peer));
    CHECK(peer == rank);
    OK(koloCommSize(comm, &peer));
    OK(koloCommLocalRank(comm, &peer));
    OK(koloCommEpoch(comm, &epoch));
    OK(koloCommRanksBefore(comm, y));
    OK(koloCommSlots(comm, y));
    OK(koloCommOwnShards(comm, 3, &peer, &done));
    OK(koloCommSummary(comm, text, sizeof text, NULL));
    OK(koloCommSettings(comm, text, sizeof text, NULL));
    OK(koloCommWaiting(comm, &done));
    CHECK(done == 0);
}

static void make_group(void) {
    koloComm_t members;
    OK(koloCommSplit(comm, 0, 0, &members));
    OK(koloStateCreate(members, &state));
    OK(koloSurvivorsCreate(&members, &group));
}

/* A communicator of the child's own. */
static void new_communicator(void) {
    koloComm_t own;
    koloUniqueId id;
    int x = 5;
    OK(koloGetUniqueId(&id, "127.0.0.1"));
    OK(koloCommInitRank(&own, 1, &id, 0, NULL));
    OK(koloAllReduce(own, &x, &x, 1, KOLO_INT32, KOLO_SUM));
    CHECK(x == 5);
    OK(koloCommDestroy(&own));
}

int main(int argc, char **argv) {
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    const char *what = argc > 1 ? argv[1] : "";
    koloRequest_t requests[2];
    int started[2] = {1, 1}, *memory;
    void *found;
    pid_t child;
    int status = -1;
    time_t begin = time(NULL);
    if (argc > 2) config.transport = argv[2];
    OK(koloCommInitEnv(&comm, &config));
    OK(koloCommRank(comm, &rank));
    CHECK(atexit(destroy) == 0);
    OK(koloCommMemAlloc(comm, &found, 40000));
    memory = found;
    for (int i = 0; i < 10000; i++) memory[i] = 7;
    make_group();
    sums(6);
    for (int i = 0; i < 2; i++)
        OK(koloAllReduceStart(comm, &started[i], &started[i], 1, KOLO_INT32, KOLO_SUM, &requests[i]));
    if (rank == 1) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(25);
            begin = time(NULL);
            if (strcmp(what, "call") == 0) refused_calls(&requests[0], &requests[1]);
            if (strcmp(what, "new") == 0) new_communicator();
            if (strcmp(what, "destroy") == 0) {
                OK(koloCommMemFree(comm, memory));
                OK(koloCommDestroy(&comm));
            }
            CHECK(time(NULL) - begin < 3);
            return 0; /* Destroys the inherited communicator by atexit. */
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    sums(6);
    for (int i = 0; i < 2; i++) {
        OK(koloWait(&requests[i], KOLO_UNSET));
        CHECK(started[i] == 3);
    }
    for (int i = 0; i < 10000; i++) CHECK(memory[i] == 7);
    OK(koloBarrier(comm));
    OK(koloSurvivorsDestroy(&group));
    OK(koloStateDestroy(&state));
    return 0;
}
