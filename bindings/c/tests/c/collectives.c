/* Every collective: blocking, in place, started, and with unequal blocks. */
#include "test.h"

#define MOST 16
#define COUNT 1000

static koloComm_t comm;
static int rank, size;

/* Small whole numbers, so that sums are exact in every order. */
static float value(int of, size_t i) { return (float)((of + 1) * 3 + (int)(i % 7)); }

static float total(size_t i, int ranks) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += value(r, i);
    return sum;
}

static void fill(float *at, int of, size_t from, size_t count) {
    for (size_t i = 0; i < count; i++) at[i] = value(of, from + i);
}

static void clear(float *at, size_t count) {
    for (size_t i = 0; i < count; i++) at[i] = -1;
}

/* Block b of rank r's long vector. */
static void fill_blocks(float *at, int of) { fill(at, of, 0, (size_t)size * COUNT); }

enum form { BLOCKING, STARTED };

#define MAKE(form, name, ...)                                                                                          \
    do {                                                                                                               \
        if ((form) == BLOCKING) {                                                                                      \
            OK(name(comm, __VA_ARGS__));                                                                               \
        } else {                                                                                                       \
            koloRequest_t request;                                                                                     \
            int done = 0;                                                                                              \
            OK(name##Start(comm, __VA_ARGS__, &request));                                                              \
            while (!done) OK(koloTest(request, &done));                                                                \
            OK(koloWait(&request, KOLO_UNSET));                                                                        \
            CHECK(request == NULL);                                                                                    \
            OK(koloWait(&request, KOLO_UNSET));                                                                        \
        }                                                                                                              \
    } while (0)

static float in[MOST * COUNT], out[MOST * COUNT];

static void vectors(enum form form) {
    fill(in, rank, 0, COUNT);
    clear(out, COUNT);
    MAKE(form, koloAllReduce, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM);
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == total(i, size));
    MAKE(form, koloAllReduce, in, in, COUNT, KOLO_FLOAT32, KOLO_MAX);
    for (size_t i = 0; i < COUNT; i++) CHECK(in[i] == value(size - 1, i));

    for (int root = 0; root < size; root++) {
        fill(in, rank, 0, COUNT);
        clear(out, COUNT);
        MAKE(form, koloReduce, in, rank == root ? out : NULL, COUNT, KOLO_FLOAT32, KOLO_SUM, root);
        for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == (rank == root ? total(i, size) : -1));
        clear(out, COUNT);
        MAKE(form, koloBroadcast, rank == root ? in : NULL, out, COUNT, KOLO_FLOAT32, root);
        for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == value(root, i));
    }

    fill(in, rank, 0, COUNT);
    MAKE(form, koloScan, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM);
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == total(i, rank + 1));
    clear(out, COUNT);
    MAKE(form, koloExScan, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM);
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == (rank == 0 ? -1 : total(i, rank)));
}

static void blocks(enum form form) {
    size_t own = (size_t)rank * COUNT, all = (size_t)size * COUNT;

    fill(in, rank, 0, COUNT);
    clear(out, all);
    MAKE(form, koloAllGather, in, out, COUNT, KOLO_FLOAT32);
    for (size_t i = 0; i < all; i++) CHECK(out[i] == value((int)(i / COUNT), i % COUNT));
    clear(out, all);
    fill(out + own, rank, 0, COUNT);
    MAKE(form, koloAllGather, out + own, out, COUNT, KOLO_FLOAT32);
    for (size_t i = 0; i < all; i++) CHECK(out[i] == value((int)(i / COUNT), i % COUNT));

    fill_blocks(in, rank);
    clear(out, all);
    MAKE(form, koloReduceScatter, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM);
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == total(own + i, size));

    clear(out, all);
    MAKE(form, koloAllToAll, in, out, COUNT, KOLO_FLOAT32);
    for (size_t i = 0; i < all; i++) CHECK(out[i] == value((int)(i / COUNT), own + i % COUNT));

    for (int root = 0; root < size; root++) {
        fill(in, rank, 0, COUNT);
        clear(out, all);
        MAKE(form, koloGather, in, rank == root ? out : NULL, COUNT, KOLO_FLOAT32, root);
        for (size_t i = 0; i < all; i++) CHECK(out[i] == (rank == root ? value((int)(i / COUNT), i % COUNT) : -1));
        fill_blocks(in, rank);
        clear(out, all);
        MAKE(form, koloScatter, rank == root ? in : NULL, out, COUNT, KOLO_FLOAT32, root);
        for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == value(root, own + i));
    }
}

/* Rank r's block has r + 1 elements. */
static void unequal(void) {
    size_t counts[MOST], sends[MOST], recvs[MOST], at[MOST], all = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = (size_t)r + 1;
        at[r] = all;
        all += counts[r];
        sends[r] = (size_t)(rank + r);
        recvs[r] = (size_t)(rank + r);
    }
    size_t own = counts[rank];

    fill(in, rank, 0, own);
    clear(out, all);
    OK(koloAllGatherV(comm, in, out, counts, KOLO_FLOAT32));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < counts[r]; i++) CHECK(out[at[r] + i] == value(r, i));
    FAILS(koloAllGatherV(comm, out, out, counts, KOLO_FLOAT32), KOLO_USAGE, "overlap");
    /* The output is longer than PTRDIFF_MAX bytes, but none of its blocks is. */
    FAILS(koloAllGather(comm, in, out, (size_t)1 << 60, KOLO_FLOAT32), KOLO_USAGE, "addressed");

    for (int root = 0; root < size; root++) {
        fill(in, rank, 0, own);
        clear(out, all);
        OK(koloGatherV(comm, in, own, out, rank == root ? counts : NULL, KOLO_FLOAT32, root));
        for (int r = 0; r < size && rank == root; r++)
            for (size_t i = 0; i < counts[r]; i++) CHECK(out[at[r] + i] == value(r, i));
        fill(in, rank, 0, all);
        OK(koloScatterV(comm, rank == root ? in : NULL, counts, out, own, KOLO_FLOAT32, root));
        for (size_t i = 0; i < own; i++) CHECK(out[i] == value(root, at[rank] + i));
    }

    fill(in, rank, 0, all);
    OK(koloReduceScatterV(comm, in, out, counts, KOLO_FLOAT32, KOLO_SUM));
    for (size_t i = 0; i < own; i++) CHECK(out[i] == total(at[rank] + i, size));

    for (int r = 0, i = 0; r < size; r++)
        for (size_t k = 0; k < sends[r]; k++) in[i++] = value(rank, (size_t)r);
    OK(koloAllToAllV(comm, in, sends, out, recvs, KOLO_FLOAT32));
    for (int r = 0, i = 0; r < size; r++)
        for (size_t k = 0; k < recvs[r]; k++) CHECK(out[i++] == value(r, (size_t)rank));
}

static void types(void) {
    for (int type = KOLO_BOOL; type <= KOLO_INT16; type++) {
        unsigned char raw[9 * 8 + 1], got[9 * 8 + 1];
        size_t bytes = koloTypeBytes((koloDataType_t)type);
        CHECK(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
        for (size_t i = 0; i < sizeof raw; i++) raw[i] = (unsigned char)(i % 2);
        /* Unaligned on purpose. */
        OK(koloBroadcast(comm, raw + 1, got + 1, 9, (koloDataType_t)type, 0));
        CHECK(memcmp(raw + 1, got + 1, 9 * bytes) == 0);
        size_t counts[MOST];
        for (int r = 0; r < size; r++) counts[r] = r == 1 ? 9 : 0;
        OK(koloAllGatherV(comm, raw + 1, got + 1, counts, (koloDataType_t)type));
        CHECK(memcmp(raw + 1, got + 1, 9 * bytes) == 0);
    }
    CHECK(koloTypeBytes((koloDataType_t)13) == 0);

    int64_t number = rank + 1, result = 0;
    OK(koloAllReduce(comm, &number, &result, 1, KOLO_INT64, KOLO_PROD));
    int64_t product = 1;
    for (int r = 0; r < size; r++) product *= r + 1;
    CHECK(result == product);
    OK(koloAllReduce(comm, &number, &result, 1, KOLO_INT64, KOLO_MIN));
    CHECK(result == 1);
    uint32_t bit = 1u << rank, bits = 0;
    OK(koloAllReduce(comm, &bit, &bits, 1, KOLO_UINT32, KOLO_BIT_OR));
    CHECK(bits == (1u << size) - 1);
    double mean = rank;
    OK(koloAllReduce(comm, &mean, &mean, 1, KOLO_FLOAT64, KOLO_AVG));
    CHECK(mean == (size - 1) / 2.0);
}

static void by_value(void) {
    double x = 1, y = 0;
    koloCall_t call = KOLO_CALL_INITIALIZER;
    koloRequest_t request;
    char text[400];
    size_t needed = 0;
    call.collective = KOLO_ALL_REDUCE;
    call.type = KOLO_FLOAT64;
    call.op = KOLO_PREMUL_SUM;
    call.factor = rank + 0.5;
    call.input = &x;
    call.output = &y;
    call.count = 1;
    OK(koloRun(comm, &call));
    CHECK(y == size * size / 2.0);
    y = 0;
    OK(koloStart(comm, &call, &request));
    OK(koloWait(&request, 10000));
    CHECK(y == size * size / 2.0);
    OK(koloExplain(comm, &call, text, sizeof text, &needed));
    CHECK(needed > 10 && text[0] != 0);
    OK(koloExplain(comm, &call, text, 5, NULL));
    CHECK(strlen(text) == 4);
    OK(koloExplain(comm, &call, NULL, 0, &needed));
    FAILS(koloAllReduce(comm, &x, &y, 1, KOLO_FLOAT64, KOLO_PREMUL_SUM), KOLO_USAGE, "koloRun");
}

static void several_at_once(void) {
    koloRequest_t requests[8];
    static float buffers[8][COUNT];
    for (int k = 0; k < 8; k++) {
        fill(buffers[k], rank, (size_t)k, COUNT);
        OK(koloAllReduceStart(comm, buffers[k], buffers[k], COUNT, KOLO_FLOAT32, KOLO_SUM, &requests[k]));
    }
    for (int k = 7; k > 0; k--) OK(koloWait(&requests[k], KOLO_UNSET));
    OK(koloRequestFree(&requests[0]));
    CHECK(requests[0] == NULL);
    koloRequest_t barrier;
    OK(koloBarrierStart(comm, &barrier));
    OK(koloWait(&barrier, KOLO_UNSET));
    for (int k = 1; k < 8; k++)
        for (size_t i = 0; i < COUNT; i++) CHECK(buffers[k][i] == total((size_t)k + i, size));
}

/* Symmetric memory: all ranks reach it directly, and each uses it at a different offset. */
static void symmetric(void) {
    enum { LENGTH = 50001 };
    void *memory = NULL, *left_alone = NULL;
    char text[2000];

    FAILS(koloCommMemAlloc(comm, &memory, 100 + (size_t)rank), KOLO_USAGE, "bytes");
    CHECK(memory == NULL);
    OK(koloCommMemAlloc(comm, &memory, (LENGTH + 100) * sizeof(int)));
    OK(koloCommMemAlloc(comm, &left_alone, 1));
    CHECK((uintptr_t)memory % 4096 == 0);
    int *numbers = (int *)memory + 7 * rank;
    for (int i = 0; i < LENGTH; i++) {
        CHECK(numbers[i] == 0);
        numbers[i] = i + rank;
    }
    OK(koloAllReduce(comm, numbers, numbers, LENGTH, KOLO_INT32, KOLO_SUM));
    for (int i = 0; i < LENGTH; i++) CHECK(numbers[i] == size * i + size * (size - 1) / 2);

    koloCall_t call = KOLO_CALL_INITIALIZER;
    call.collective = KOLO_ALL_REDUCE, call.input = numbers, call.output = numbers;
    call.count = LENGTH, call.type = KOLO_INT32, call.op = KOLO_SUM;
    OK(koloExplain(comm, &call, text, sizeof text, NULL));
    CHECK(strstr(text, "each rank reduces a slice") != NULL);

    OK(koloCommMemFree(comm, memory));
    FAILS(koloCommMemFree(comm, memory), KOLO_USAGE, "not memory of this communicator");
    OK(koloCommMemFree(comm, NULL));
}

/* Nine shards; each rank's own vectors lie one behind the other. */
static void shards(void) {
    enum { SHARDS = 9 };
    int first = -1, own = -1;
    OK(koloCommOwnShards(comm, SHARDS, &first, &own));
    CHECK(first == rank * SHARDS / size && own == (rank + 1) * SHARDS / size - first);
    for (int k = 0; k < own; k++) fill(in + k * COUNT, first + k, 0, COUNT);
    clear(out, COUNT);
    OK(koloAllReduceShards(comm, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM, SHARDS));
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == total(i, SHARDS));
    OK(koloAllReduceShards(comm, in, out, COUNT, KOLO_FLOAT32, KOLO_MAX, SHARDS));
    for (size_t i = 0; i < COUNT; i++) CHECK(out[i] == value(SHARDS - 1, i));
    FAILS(koloAllReduceShards(comm, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM, 0), KOLO_USAGE, "0 shards");
    FAILS(koloAllReduceShards(comm, in, out, COUNT, KOLO_FLOAT32, KOLO_SUM, -1), KOLO_USAGE, "shards is -1");
    FAILS(koloAllReduceShards(comm, in, in, COUNT, KOLO_FLOAT32, KOLO_SUM, SHARDS), KOLO_USAGE, "must not overlap");
    FAILS(koloCommOwnShards(comm, SHARDS, &first, NULL), KOLO_USAGE, "count is NULL");
}

int main(void) {
    OK(koloCommInitEnv(&comm, NULL));
    OK(koloCommRank(comm, &rank));
    OK(koloCommSize(comm, &size));
    CHECK(size <= MOST);
    vectors(BLOCKING);
    vectors(STARTED);
    blocks(BLOCKING);
    blocks(STARTED);
    unequal();
    shards();
    types();
    by_value();
    several_at_once();
    symmetric();
    OK(koloBarrier(comm));
    OK(koloCommDestroy(&comm));
    CHECK(comm == NULL);
    return 0;
}
