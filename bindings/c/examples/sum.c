/*
 * Adds up a vector over all ranks and prints how fast that was.
 *
 *     kolo run -n 4 ./sum            on this host
 *     torchrun, mpirun or srun       work too: see koloCommInitEnv
 */
#include <kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(koloResult_t result, const char *what) {
    if (result != KOLO_SUCCESS) {
        fprintf(stderr, "%s: %s: %s\n", what, koloGetErrorString(result), koloGetLastError(NULL));
        exit(1);
    }
}

int main(void) {
    const size_t count = 1 << 20;
    const int rounds = 10;
    koloComm_t comm;
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    int rank, size;
    char summary[500];
    void *memory;

    config.timeout_ms = 30 * 1000;
    check(koloCommInitEnv(&comm, &config), "joining");
    check(koloCommRank(comm, &rank), "rank");
    check(koloCommSize(comm, &size), "size");
    check(koloCommSummary(comm, summary, sizeof summary, NULL), "summary");
    printf("%s\n", summary);

    check(koloMemAlloc(&memory, count * sizeof(float)), "memory");
    float *x = (float *)memory;
    for (size_t i = 0; i < count; i++) x[i] = 1.0f;

    check(koloBarrier(comm), "barrier");
    clock_t before = clock();
    for (int round = 0; round < rounds; round++) {
        check(koloAllReduce(comm, x, x, count, KOLO_FLOAT32, KOLO_SUM), "all-reduce");
        check(koloAllReduce(comm, x, x, count, KOLO_FLOAT32, KOLO_MIN), "all-reduce");
        for (size_t i = 0; i < count; i++) {
            if (x[i] != (float)size) {
                fprintf(stderr, "rank %d: element %zu is %g, not %d\n", rank, i, (double)x[i], size);
                return 1;
            }
            x[i] = 1.0f;
        }
    }
    double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
    if (rank == 0) printf("%d ranks: sums are right; %.2f ms of processor time a round\n", size, 1e3 * seconds / rounds);

    check(koloMemFree(memory), "memory");
    check(koloCommDestroy(&comm), "leaving");
    return 0;
}
