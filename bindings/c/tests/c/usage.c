/* Wrong arguments: each is refused with a message, and the communicator remains usable. One rank. */
#include "test.h"

#include <pthread.h>
#include <stdint.h>

static void *other_thread(void *comm) {
    CHECK(koloGetLastError(NULL)[0] == 0);
    CHECK(strstr(koloGetLastError((koloComm_t)comm), "koloAllReduce") != NULL);
    FAILS(koloSend((koloComm_t)comm, NULL, 3, KOLO_INT8, 0), KOLO_USAGE, "NULL");
    return NULL;
}

int main(void) {
    koloComm_t comm = NULL, none = NULL;
    koloConfig_t config = KOLO_CONFIG_INITIALIZER, blank;
    koloCall_t call = KOLO_CALL_INITIALIZER;
    koloRequest_t request = NULL;
    koloUniqueId id;
    koloTransfer_t transfer;
    pthread_t thread;
    void *memory = NULL;
    char url[] = "tcp://127.0.0.1:1", long_name[200];
    int version = 0, done = 0;
    size_t wrong = (size_t)-1;
    const size_t beyond = (size_t)PTRDIFF_MAX / sizeof(float) + 1;
    float x = 1, three[3] = {1, 2, 3};

    OK(koloGetVersion(&version));
    CHECK(version == KOLO_VERSION);
    FAILS(koloGetVersion(NULL), KOLO_USAGE, "version is NULL");
    CHECK(strcmp(koloGetErrorString(KOLO_PEER_LOST), "peer lost") == 0);
    CHECK(strstr(koloGetErrorString(KOLO_USAGE), "argument") != NULL);
    CHECK(koloGetErrorString((koloResult_t)99)[0] != 0);

    memset(&blank, 0, sizeof blank);
    FAILS(koloCommInitEnv(NULL, NULL), KOLO_USAGE, "comm is NULL");
    FAILS(koloCommInitEnv(&comm, &blank), KOLO_USAGE, "KOLO_CONFIG_INITIALIZER");
    config.version = 2;
    FAILS(koloCommInitEnv(&comm, &config), KOLO_USAGE, "newer");
    config.version = KOLO_CONFIG_VERSION;
    config.size -= 8;
    FAILS(koloCommInitEnv(&comm, &config), KOLO_USAGE, "changed");
    config.size += 8;
    config.timeout_ms = 0;
    FAILS(koloCommInitEnv(&comm, &config), KOLO_USAGE, "timeout_ms");
    config.timeout_ms = 5000;
    config.determinism = 5;
    FAILS(koloCommInitEnv(&comm, &config), KOLO_USAGE, "KOLO_CANONICAL");
    config.determinism = KOLO_REPEATABLE;
    config.transport = "pigeon";
    FAILS(koloCommInitEnv(&comm, &config), KOLO_CONFIGURATION, "pigeon");
    config.transport = "\xff";
    FAILS(koloCommInitEnv(&comm, &config), KOLO_USAGE, "UTF-8");
    config.transport = NULL;
    config.port_range = "40010-40000";
    FAILS(koloCommInitEnv(&comm, &config), KOLO_CONFIGURATION, "KOLO_PORT_RANGE");
    config.port_range = NULL;
    FAILS(koloCommInitUrl(&comm, NULL, 1, 0, NULL), KOLO_USAGE, "url is NULL");
    FAILS(koloCommInitUrl(&comm, "pigeon://x", 1, 0, NULL), KOLO_CONFIGURATION, "pigeon");
    FAILS(koloCommInitUrl(&comm, url, 2, 2, NULL), KOLO_CONFIGURATION, "rank 2");
    FAILS(koloCommInitUrl(&comm, url, -1, 2, NULL), KOLO_USAGE, "nranks");
    FAILS(koloCommInitUrl(&comm, "env://", 2, 1, NULL), KOLO_USAGE, "env://");
    config.join_timeout_ms = 300;
    FAILS(koloCommInitUrl(&comm, url, 2, 1, &config), KOLO_JOIN, "127.0.0.1:1");
    config.join_timeout_ms = KOLO_UNSET;
    FAILS(koloGetUniqueId(NULL, NULL), KOLO_USAGE, "id is NULL");
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    FAILS(koloGetUniqueId(&id, long_name), KOLO_USAGE, "short name");
    memset(&id, 0, sizeof id);
    FAILS(koloCommInitRank(&comm, 1, &id, 0, NULL), KOLO_USAGE, "not a unique id");
    FAILS(koloCommInitRank(&comm, 1, NULL, 0, NULL), KOLO_USAGE, "id is NULL");
    OK(koloGetUniqueId(&id, NULL));
    FAILS(koloCommInitRank(&comm, 1, &id, 1, NULL), KOLO_CONFIGURATION, "rank 1");
    FAILS(koloCommInitRank(&comm, 1, &id, -1, NULL), KOLO_USAGE, "rank is -1");
    CHECK(comm == NULL);
    OK(koloCommInitRank(&comm, 1, &id, 0, &config));
    CHECK(comm != NULL && koloGetLastError(comm)[0] == 0 && koloGetLastErrorPeer(comm) == -1);

    FAILS(koloAllReduce(NULL, &x, &x, 1, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "communicator is NULL");
    FAILS(koloBarrier(NULL), KOLO_USAGE, "communicator is NULL");
    FAILS(koloCommRank(comm, NULL), KOLO_USAGE, "NULL");
    FAILS(koloCommSplit(comm, 0, 0, NULL), KOLO_USAGE, "result is NULL");
    FAILS(koloCommSplit(comm, -2, 0, &none), KOLO_USAGE, "color");
    OK(koloCommSplit(comm, 0, -1, &none));
    OK(koloCommDestroy(&none));
    FAILS(koloCommGroup(comm, NULL, 1, &none), KOLO_USAGE, "ranks is NULL");
    FAILS(koloCommGroup(comm, NULL, wrong, &none), KOLO_USAGE, "the communicator has 1");
    FAILS(koloCommSummary(comm, NULL, 10, NULL), KOLO_USAGE, "text is NULL");
    FAILS(koloAllReduce(comm, NULL, &x, 1, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "null pointer");
    FAILS(koloAllReduce(comm, &x, &x, 1, (koloDataType_t)77, KOLO_SUM), KOLO_USAGE, "77 is not a koloDataType_t");
    FAILS(koloAllReduce(comm, &x, &x, 1, KOLO_FLOAT32, (koloRedOp_t)77), KOLO_USAGE, "77 is not a koloRedOp_t");
    FAILS(koloAllReduce(comm, &x, &x, 1, KOLO_FLOAT32, KOLO_BIT_AND), KOLO_USAGE, "bit_and");
    FAILS(koloAllReduce(comm, &x, &x, wrong, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "addressed");
    FAILS(koloAllReduce(comm, &x, &x, beyond, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "addressed");
    FAILS(koloAllGather(comm, &x, &x, beyond, KOLO_FLOAT32), KOLO_USAGE, "addressed");
    FAILS(koloAllGatherV(comm, &x, &x, &beyond, KOLO_FLOAT32), KOLO_USAGE, "addressed");
    FAILS(koloSend(comm, &x, beyond, KOLO_FLOAT32, 0), KOLO_USAGE, "addressed");
    FAILS(koloBatch(comm, &transfer, wrong / 2), KOLO_USAGE, "addressed");
    FAILS(koloCommMemAlloc(comm, &memory, (size_t)PTRDIFF_MAX + 1), KOLO_USAGE, "addressed");
    FAILS(koloCommMemAlloc(comm, &memory, (size_t)1 << 60), KOLO_UNSUPPORTED, "available");
    CHECK(memory == NULL);
    FAILS(koloAllReduce(comm, three, three + 1, 2, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "overlap");
    FAILS(koloAllGather(comm, three + 1, three, 2, KOLO_FLOAT32), KOLO_USAGE, "overlap");
    FAILS(koloAllToAllStart(comm, three + 1, three, 2, KOLO_FLOAT32, &request), KOLO_USAGE, "overlap");
    FAILS(koloSendRecv(comm, three, 2, 0, three + 1, 2, 0, KOLO_FLOAT32), KOLO_USAGE, "overlap");
    CHECK(three[0] == 1 && three[1] == 2 && three[2] == 3);
    FAILS(koloBroadcast(comm, &x, &x, 1, KOLO_FLOAT32, 1), KOLO_USAGE, "root 1");
    FAILS(koloBroadcast(comm, &x, &x, 1, KOLO_FLOAT32, -1), KOLO_USAGE, "root is -1");
    FAILS(koloAllReduceStart(comm, &x, &x, 1, KOLO_FLOAT32, KOLO_SUM, NULL), KOLO_USAGE, "request is NULL");
    FAILS(koloAllGatherV(comm, &x, &x, NULL, KOLO_FLOAT32), KOLO_USAGE, "counts is NULL");
    FAILS(koloAllGatherV(comm, &x, &x, &wrong, KOLO_FLOAT32), KOLO_USAGE, "addressed");
    FAILS(koloSend(comm, &x, 1, KOLO_FLOAT32, 5), KOLO_USAGE, "rank 5");
    FAILS(koloSend(comm, NULL, 1, KOLO_FLOAT32, 0), KOLO_USAGE, "NULL");
    FAILS(koloRecv(comm, &x, wrong, KOLO_FLOAT32, 0), KOLO_USAGE, "addressed");
    FAILS(koloBatch(comm, NULL, 2), KOLO_USAGE, "transfers is NULL");
    memset(&transfer, 0, sizeof transfer);
    transfer.kind = (koloTransferKind_t)9;
    FAILS(koloBatch(comm, &transfer, 1), KOLO_USAGE, "kind 9");
    FAILS(koloTest(NULL, &done), KOLO_USAGE, "request is NULL");
    FAILS(koloWait(NULL, KOLO_UNSET), KOLO_USAGE, "request is NULL");
    FAILS(koloCommDestroy(NULL), KOLO_USAGE, "comm is NULL");
    FAILS(koloRun(comm, NULL), KOLO_USAGE, "call is NULL");
    call.magic = 0;
    FAILS(koloStart(comm, &call, &request), KOLO_USAGE, "KOLO_CALL_INITIALIZER");
    call.magic = KOLO_CALL_MAGIC;
    call.collective = (koloCollective_t)40;
    FAILS(koloRun(comm, &call), KOLO_USAGE, "koloCollective_t");
    FAILS(koloCommRegister(comm, NULL, 4, NULL), KOLO_USAGE, "NULL");

    /* Messages are per communicator and per thread. */
    FAILS(koloAllReduce(comm, NULL, &x, 1, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "koloAllReduce");
    CHECK(pthread_create(&thread, NULL, other_thread, comm) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strstr(koloGetLastError(NULL), "koloAllReduce") != NULL);
    CHECK(strstr(koloGetLastError(comm), "koloSend") != NULL);

    OK(koloAllReduce(comm, &x, &x, 1, KOLO_FLOAT32, KOLO_SUM));
    CHECK(x == 1);
    FAILS(koloAllReduceStart(comm, &x, &x, 1, KOLO_FLOAT32, (koloRedOp_t)-1, &request), KOLO_USAGE, "-1 is not a");
    CHECK(request == NULL);
    OK(koloAllReduceStart(comm, &x, &x, 1, KOLO_FLOAT32, KOLO_SUM, &request));
    FAILS(koloWait(&request, -7), KOLO_USAGE, "-7");
    CHECK(request == NULL);
    OK(koloCommDestroy(&comm));
    OK(koloCommDestroy(&comm));
    return 0;
}
