/* Computes while reductions are in progress: each bucket of a gradient is reduced as soon as it is ready. */
#include <kolo.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 4, LENGTH = 1 << 16 };

static void check(koloResult_t result) {
    if (result != KOLO_SUCCESS) {
        fprintf(stderr, "%s: %s\n", koloGetErrorString(result), koloGetLastError(NULL));
        exit(1);
    }
}

static void compute(float *bucket, int rank, int number) {
    for (int i = 0; i < LENGTH; i++) bucket[i] = (float)(rank + number);
}

int main(void) {
    static float gradient[BUCKETS][LENGTH];
    koloRequest_t requests[BUCKETS];
    koloComm_t comm;
    int rank, size;

    check(koloCommInitEnv(&comm, NULL));
    check(koloCommRank(comm, &rank));
    check(koloCommSize(comm, &size));
    for (int number = 0; number < BUCKETS; number++) {
        compute(gradient[number], rank, number);
        check(koloAllReduceStart(comm, gradient[number], gradient[number], LENGTH, KOLO_FLOAT32, KOLO_AVG,
                                 &requests[number]));
    }
    for (int number = 0; number < BUCKETS; number++) {
        check(koloWait(&requests[number], KOLO_UNSET));
        if (gradient[number][LENGTH - 1] != (float)(size - 1) / 2 + (float)number) return 1;
    }
    if (rank == 0) printf("%d buckets averaged over %d ranks\n", BUCKETS, size);
    check(koloCommDestroy(&comm));
    return 0;
}
