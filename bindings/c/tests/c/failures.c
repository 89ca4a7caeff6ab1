/* Failures that end a communicator: calls that differ, a time-out, an abort, a lost process. Three ranks; arguments: case, transport. */
#include "test.h"

#include <pthread.h>
#include <unistd.h>

static koloComm_t comm;
static int rank;

/* Waits until this rank has heard of a failure elsewhere. */
static void expect_news(void) {
    koloResult_t result = KOLO_SUCCESS;
    while (result == KOLO_SUCCESS) {
        sleep_ms(1);
        OK(koloCommGetAsyncError(comm, &result));
    }
}

static void *abort_soon(void *unused) {
    (void)unused;
    sleep_ms(100);
    OK(koloCommAbort(comm, "enough of this"));
    return NULL;
}

int main(int argc, char **argv) {
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    const char *what = argc > 1 ? argv[1] : "";
    float x[4] = {0};
    if (argc > 2) config.transport = argv[2];
    OK(koloCommInitEnv(&comm, &config));
    OK(koloCommRank(comm, &rank));
    if (strcmp(what, "mismatch") == 0) {
        /* Rank 1 and the ranks that exchanged data with it see the mismatch themselves; a rank that did not is told of it. */
        koloResult_t result = koloAllReduce(comm, x, x, rank == 1 ? 3 : 4, KOLO_FLOAT32, KOLO_SUM);
        CHECK(result == KOLO_MISMATCH || (rank != 1 && result == KOLO_ABORTED));
        CHECK(strstr(koloGetLastError(comm), "all_reduce(3 x f32, sum)") != NULL);
        CHECK(koloGetLastErrorPeer(comm) >= 0);
        CHECK(koloBarrier(comm) != KOLO_SUCCESS);
    } else if (strcmp(what, "timeout") == 0) {
        if (rank == 0) {
            koloRequest_t request;
            OK(koloAllReduceStart(comm, x, x, 4, KOLO_FLOAT32, KOLO_SUM, &request));
            FAILS(koloWait(&request, 300), KOLO_TIMEOUT, "not finished after 0.3 s");
            CHECK(request == NULL);
            CHECK(strstr(koloGetLastError(comm), "koloWait") != NULL);
        } else {
            expect_news();
            FAILS(koloBarrier(comm), KOLO_ABORTED, "rank 0");
            CHECK(koloGetLastErrorPeer(comm) == 0);
        }
    } else if (strcmp(what, "abort") == 0) {
        pthread_t thread;
        if (rank == 2) CHECK(pthread_create(&thread, NULL, abort_soon, NULL) == 0);
        if (rank == 1) expect_news();
        FAILS(koloBarrier(comm), KOLO_ABORTED, "enough of this");
        CHECK(koloGetLastErrorPeer(comm) == 2);
        if (rank == 2) CHECK(pthread_join(thread, NULL) == 0);
    } else if (strcmp(what, "destroyed") == 0) {
        /* Requests that outlive their communicator; no other rank starts these calls. */
        if (rank == 0) {
            koloRequest_t first, second;
            OK(koloAllReduceStart(comm, x, x, 4, KOLO_FLOAT32, KOLO_SUM, &first));
            OK(koloAllReduceStart(comm, x, x, 4, KOLO_FLOAT32, KOLO_SUM, &second));
            OK(koloCommAbort(comm, NULL));
            OK(koloCommDestroy(&comm));
            CHECK(koloWait(&first, KOLO_UNSET) == KOLO_ABORTED && first == NULL);
            OK(koloRequestFree(&second));
        }
    } else if (strcmp(what, "lost") == 0) {

        OK(koloBarrier(comm));
        if (rank == 2) _exit(0);
        /* Sending to a process that is gone must not raise SIGPIPE. */
        FAILS(koloAllReduce(comm, x, x, 4, KOLO_FLOAT32, KOLO_SUM), KOLO_PEER_LOST, "rank 2 is lost");
        CHECK(koloGetLastErrorPeer(comm) == 2);
    } else if (strcmp(what, "shrink") == 0) {
        koloComm_t left = NULL;
        uint64_t flags = 6 + (uint64_t)rank, epoch = 9;
        int takes_part[3] = {7, 7, 7}, before[2] = {-1, -1}, size = 0;
        OK(koloBarrier(comm));
        CHECK(koloCommAgree(comm, NULL, NULL) == KOLO_USAGE && koloCommShrink(comm, NULL) == KOLO_USAGE);
        CHECK(koloCommEpoch(comm, NULL) == KOLO_USAGE && koloCommRanksBefore(comm, NULL) == KOLO_USAGE);
        /* The first rank, which runs the control plane. */
        if (rank == 0) _exit(0);
        FAILS(koloAllReduce(comm, x, x, 4, KOLO_FLOAT32, KOLO_SUM), KOLO_PEER_LOST, "rank 0 is lost");
        OK(koloCommRevoke(comm));
        OK(koloCommAgree(comm, &flags, takes_part));
        CHECK(flags == (7 & 8) && takes_part[0] == 0 && takes_part[1] == 1 && takes_part[2] == 1);
        OK(koloCommShrink(comm, &left));
        OK(koloCommSize(left, &size));
        OK(koloCommEpoch(left, &epoch));
        OK(koloCommRanksBefore(left, before));
        CHECK(size == 2 && epoch == 1 && before[0] == 1 && before[1] == 2);
        x[0] = (float)rank;
        OK(koloAllReduce(left, x, x, 1, KOLO_FLOAT32, KOLO_SUM));
        CHECK(x[0] == 3);
        /* A revocation could overtake the sum on the other rank, so both ranks get the sum first. */
        OK(koloCommAgree(left, &flags, takes_part));
        OK(koloCommRevoke(left));
        FAILS(koloBarrier(left), KOLO_REVOKED, "revoked");
        OK(koloCommDestroy(&left));
    } else {
        fprintf(stderr, "no such case: %s\n", what);
        return 2;
    }
    OK(koloCommDestroy(&comm));
    return 0;
}
