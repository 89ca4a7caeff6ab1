/* Tags, any source, started messages and started calls with blocks of unequal length. Three ranks. */
#include "test.h"

static int rank, size;

static void tags(koloComm_t comm) {
    enum { LENGTH = 50000 };
    static int first[LENGTH], second[LENGTH];
    int source = -7;
    if (rank == 1) {
        for (int i = 0; i < LENGTH; i++) first[i] = i, second[i] = -i;
        OK(koloSendTagged(comm, first, LENGTH, KOLO_INT32, 0, 11));
        OK(koloSendTagged(comm, second, LENGTH, KOLO_INT32, 0, 22));
    } else if (rank == 0) {
        OK(koloRecvTagged(comm, second, LENGTH, KOLO_INT32, 1, 22, NULL));
        OK(koloRecvTagged(comm, first, LENGTH, KOLO_INT32, KOLO_ANY_SOURCE, 11, &source));
        CHECK(source == 1);
        for (int i = 0; i < LENGTH; i++) CHECK(first[i] == i && second[i] == -i);
    }
}

static void any_source(koloComm_t comm) {
    /* Not 0: a rank that has sent this goes on to send rank 0 longer messages, with small tags. */
    enum { TAG = 99 };
    if (rank > 0) {
        OK(koloSendTagged(comm, &rank, 1, KOLO_INT32, 0, TAG));
        return;
    }
    int seen = 0;
    for (int i = 1; i < size; i++) {
        int got = -1, source = -1;
        koloRequest_t request;
        OK(koloRecvStart(comm, &got, 1, KOLO_INT32, KOLO_ANY_SOURCE, TAG, &request));
        OK(koloWaitSource(&request, KOLO_UNSET, &source));
        CHECK(request == NULL && got == source && source > 0);
        seen |= 1 << source;
    }
    CHECK(seen == 6);
}

static void started(koloComm_t comm) {
    enum { LENGTH = 100000, EACH = 4 };
    static double out[EACH][LENGTH], in[EACH][LENGTH];
    koloRequest_t sends[EACH], receives[EACH], request;
    koloTransfer_t transfers[2];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, done = 0, source = 0;
    for (unsigned tag = 0; tag < EACH; tag++) {
        for (int i = 0; i < LENGTH; i++) out[tag][i] = rank * 1e6 + i + tag / 8.0;
        OK(koloSendStart(comm, out[tag], LENGTH, KOLO_FLOAT64, right, tag, &sends[tag]));
    }
    for (unsigned tag = EACH; tag-- > 0;)
        OK(koloRecvStart(comm, in[tag], LENGTH, KOLO_FLOAT64, left, tag, &receives[tag]));
    /* They complete without a wait. */
    while (!done) OK(koloTest(receives[0], &done));
    for (unsigned tag = 0; tag < EACH; tag++) {
        OK(koloWait(&receives[tag], 20000));
        OK(koloWaitSource(&sends[tag], KOLO_UNSET, &source));
        CHECK(source == KOLO_ANY_SOURCE);
        for (int i = 0; i < LENGTH; i++) CHECK(in[tag][i] == left * 1e6 + i + tag / 8.0);
    }
    transfers[0].kind = KOLO_RECV, transfers[0].peer = left, transfers[0].buffer = in[0];
    transfers[1].kind = KOLO_SEND, transfers[1].peer = right, transfers[1].buffer = out[1];
    for (int i = 0; i < 2; i++) transfers[i].type = KOLO_FLOAT64, transfers[i].count = LENGTH;
    OK(koloBatchStart(comm, transfers, 2, &request));
    OK(koloWait(&request, KOLO_UNSET));
    for (int i = 0; i < LENGTH; i++) CHECK(in[0][i] == left * 1e6 + i + 1 / 8.0);
    FAILS(koloBatchStart(comm, transfers, 0, &request), KOLO_USAGE, "empty");
    CHECK(request == NULL);
    FAILS(koloBatchStart(comm, NULL, 3, &request), KOLO_USAGE, "transfers is NULL");
    FAILS(koloRecvStart(comm, NULL, 1, KOLO_INT8, 0, 0, &request), KOLO_USAGE, "NULL");
    FAILS(koloRecvStart(comm, in, 1, KOLO_INT8, -2, 0, &request), KOLO_USAGE, "KOLO_ANY_SOURCE");
    FAILS(koloSendStart(comm, out, 1, KOLO_INT8, KOLO_ANY_SOURCE, 0, &request), KOLO_USAGE, "-1");
    FAILS(koloSendTagged(comm, out, 1, KOLO_INT8, size, 0), KOLO_USAGE, "rank 3");
}

/* A message can be probed any number of times, and is received in the end. */
static void probes(koloComm_t comm) {
    enum { SHORT = 70, LONG = 71, COUNT = 30000 };
    static double numbers[COUNT];
    koloMessage_t message = {-7, 0, 0, -7};
    int found = -7, left = size - 1;
    OK(koloProbeNow(comm, KOLO_ANY_SOURCE, SHORT, LONG, &found, &message));
    CHECK(rank == 0 || (found == 0 && message.source == -7));
    OK(koloBarrier(comm));
    if (rank == 1) {
        for (int i = 0; i < COUNT; i++) numbers[i] = i / 4.0;
        OK(koloSendTagged(comm, numbers, COUNT, KOLO_FLOAT64, 0, LONG));
    } else if (rank == 2) {
        OK(koloSendTagged(comm, &rank, 1, KOLO_INT32, 0, SHORT));
    } else {
        OK(koloProbe(comm, 2, 0, UINT32_MAX, 20000, &message));
        CHECK(message.source == 2 && message.tag == SHORT && message.bytes == 4 && message.type == KOLO_INT32);
        for (found = 0; !found;) OK(koloProbeNow(comm, 1, LONG, LONG, &found, &message));
        CHECK(message.source == 1 && message.tag == LONG && message.type == KOLO_FLOAT64);
        CHECK(message.bytes == sizeof numbers);
        /* A probe sees only its own tags, and only its own source. */
        OK(koloProbeNow(comm, 1, 0, LONG - 1, &found, &message));
        CHECK(found == 0);
        while (left > 0) {
            OK(koloProbe(comm, KOLO_ANY_SOURCE, SHORT, LONG, KOLO_UNSET, &message));
            if (message.tag == LONG) {
                OK(koloRecvTagged(comm, numbers, COUNT, KOLO_FLOAT64, message.source, LONG, NULL));
                for (int i = 0; i < COUNT; i++) CHECK(numbers[i] == i / 4.0);
            } else {
                OK(koloRecvTagged(comm, &found, 1, KOLO_INT32, message.source, SHORT, NULL));
                CHECK(found == 2);
            }
            left--;
        }
        OK(koloProbeNow(comm, KOLO_ANY_SOURCE, SHORT, LONG, &found, &message));
        CHECK(found == 0);
    }
    FAILS(koloProbe(comm, size, 0, 1, KOLO_UNSET, &message), KOLO_USAGE, "rank 3");
    FAILS(koloProbe(comm, -2, 0, 1, KOLO_UNSET, &message), KOLO_USAGE, "KOLO_ANY_SOURCE");
    FAILS(koloProbe(comm, 0, 2, 1, KOLO_UNSET, &message), KOLO_USAGE, "the range of tags from 2 to 1 is empty");
    FAILS(koloProbe(comm, 0, 0, 1, -3, &message), KOLO_USAGE, "timeout_ms is -3");
    FAILS(koloProbe(comm, 0, 0, 1, KOLO_UNSET, NULL), KOLO_USAGE, "message is NULL");
    FAILS(koloProbeNow(comm, 0, 0, 1, NULL, &message), KOLO_USAGE, "found is NULL");
    OK(koloBarrier(comm));
}

/* Rank r contributes r + 1 elements to the gather, and likewise in the other calls. */
static void uneven(koloComm_t comm) {
    size_t counts[3] = {1, 2, 3}, equal[3] = {1, 1, 1};
    int own[3] = {rank, rank, rank}, all[6], six[6] = {1, 2, 2, 3, 3, 3}, part[3] = {-1, -1, -1}, three[3];
    koloRequest_t requests[5];
    OK(koloAllGatherVStart(comm, own, all, counts, KOLO_INT32, &requests[0]));
    OK(koloReduceScatterVStart(comm, six, part, counts, KOLO_INT32, KOLO_SUM, &requests[1]));
    OK(koloAllToAllVStart(comm, own, equal, three, equal, KOLO_INT32, &requests[2]));
    for (int i = 0; i < 3; i++) {
        OK(koloWait(&requests[i], KOLO_UNSET));
        CHECK(three[0] >= 0 || i < 2);
    }
    for (int i = 0; i < 6; i++) CHECK(all[i] == (i == 0 ? 0 : i < 3 ? 1 : 2));
    for (int i = 0; i < 3; i++) {
        CHECK(part[i] == (i <= rank ? size * (rank + 1) : -1));
        CHECK(three[i] == i);
    }
    memset(all, -1, sizeof all);
    OK(koloGatherVStart(comm, own, counts[rank], rank == 1 ? all : NULL, rank == 1 ? counts : NULL, KOLO_INT32, 1,
                        &requests[3]));
    OK(koloWait(&requests[3], KOLO_UNSET));
    for (int i = 0; i < 6; i++) CHECK(all[i] == (rank != 1 ? -1 : i == 0 ? 0 : i < 3 ? 1 : 2));
    OK(koloScatterVStart(comm, rank == 2 ? six : NULL, rank == 2 ? counts : NULL, part, counts[rank], KOLO_INT32, 2,
                         &requests[4]));
    OK(koloWait(&requests[4], KOLO_UNSET));
    for (int i = 0; i <= rank; i++) CHECK(part[i] == rank + 1);
    FAILS(koloAllGatherVStart(comm, own, all, NULL, KOLO_INT32, &requests[0]), KOLO_USAGE, "counts is NULL");
    CHECK(requests[0] == NULL);
    FAILS(koloAllToAllVStart(comm, six, equal, six + 1, equal, KOLO_INT32, &requests[0]), KOLO_USAGE, "overlap");
}

static void asynchronous_error(koloComm_t comm) {
    koloResult_t result = KOLO_INTERNAL;
    OK(koloCommGetAsyncError(comm, &result));
    CHECK(result == KOLO_SUCCESS);
    if (rank > 0) {
        OK(koloSend(comm, &rank, 1, KOLO_INT32, 0));
    } else {
        koloRequest_t request;
        char byte;
        int ready;
        for (int i = 1; i < size; i++) OK(koloRecv(comm, &ready, 1, KOLO_INT32, i));
        OK(koloRecvStart(comm, &byte, 1, KOLO_UINT8, 1, 5, &request));
        OK(koloCommAbort(comm, "no more of it"));
        CHECK(koloWait(&request, KOLO_UNSET) == KOLO_ABORTED && request == NULL);
    }
    while (result == KOLO_SUCCESS) OK(koloCommGetAsyncError(comm, &result));
    CHECK(result == KOLO_ABORTED);
    CHECK(strstr(koloGetLastError(comm), "no more of it") != NULL && koloGetLastErrorPeer(comm) == 0);
}

int main(int argc, char **argv) {
    koloComm_t comm;
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    config.transport = argc > 1 ? argv[1] : NULL;
    config.timeout_ms = 20000;
    OK(koloCommInitEnv(&comm, &config));
    OK(koloCommRank(comm, &rank));
    OK(koloCommSize(comm, &size));
    CHECK(size == 3);
    tags(comm);
    any_source(comm);
    probes(comm);
    started(comm);
    uneven(comm);
    asynchronous_error(comm);
    OK(koloCommDestroy(&comm));
    return 0;
}
