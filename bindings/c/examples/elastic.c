/*
 * Goes on when ranks die, and admits newcomers. Each step is a sum, done by all live ranks or by none. Arguments: the steps, and
 * the most ranks.
 *
 *     kolo run -n 4 --elastic 2:4 ./elastic 100000        and kill -9 one of them: it is started again, and gets the state
 */
#include <kolo.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000

static void check(koloResult_t result, const char *what) {
    if (result != KOLO_SUCCESS) {
        fprintf(stderr, "%s: %s: %s\n", what, koloGetErrorString(result), koloGetLastError(NULL));
        exit(1);
    }
}

/* Replaces the communicator by another. */
static void become(koloComm_t *comm, koloComm_t next, const char *how) {
    int rank, size;
    check(koloCommDestroy(comm), "leaving");
    *comm = next;
    check(koloCommRank(next, &rank), "rank");
    check(koloCommSize(next, &size), "size");
    printf("rank %d of %d, after %s\n", rank, size, how);
}

int main(int argc, char **argv) {
    const int64_t steps = argc > 1 ? atol(argv[1]) : 1000;
    const int most = argc > 2 ? atoi(argv[2]) : 8;
    static float weights[COUNT], gradients[COUNT], sum[COUNT];
    koloPart_t parts[1] = {{"weights", weights, sizeof weights}};
    koloComm_t comm;
    koloState_t state;
    int64_t step;

    /* A newcomer, which the launcher starts with KOLO_JOIN, returns from this call when the members call koloCommGrow below. */
    check(koloCommInitEnv(&comm, NULL), "joining");
    check(koloStateCreate(comm, &state), "state");
    check(koloStateGetVersion(state, &step), "version");
    while (step < steps) {
        koloComm_t next;
        int size, waiting;
        uint64_t flags;
        /* Sends the state to newcomers, and does nothing otherwise. The sum is out of place, so a step that fails changes nothing. */
        koloResult_t done = koloStateShare(state, comm, parts, 1, NULL);
        if (done == KOLO_SUCCESS) {
            check(koloStateGetVersion(state, &step), "version");
            for (int i = 0; i < COUNT; i++) gradients[i] = 1.0f;
            done = koloAllReduce(comm, gradients, sum, COUNT, KOLO_FLOAT32, KOLO_SUM);
        }
        /* Ranks that are still in the step may wait for this one. */
        if (done != KOLO_SUCCESS) check(koloCommRevoke(comm), "revoking");
        check(koloCommWaiting(comm, &waiting), "waiting");
        check(koloCommSize(comm, &size), "size");
        /* The bits mean: this rank's step is done; no newcomer is to come in from its port. The agreement keeps the bits that all
           ranks set. */
        flags = (uint64_t)(done == KOLO_SUCCESS ? 1 : 0) | (uint64_t)(waiting == 0 || size >= most ? 2 : 0);
        check(koloCommAgree(comm, &flags, NULL), "agreeing");
        if ((flags & 1) == 0) {
            check(koloCommShrink(comm, &next), "shrinking");
            become(&comm, next, "a loss");
            continue;
        }
        for (int i = 0; i < COUNT; i++) weights[i] += sum[i] / (float)size;
        check(koloStateAdvance(state), "the next step");
        step++;
        /* All ranks get the same answer. If growing fails, they go on with the present members. */
        if ((flags & 2) == 0 && koloCommGrow(comm, most, &next) == KOLO_SUCCESS) become(&comm, next, "newcomers");
    }
    if (weights[COUNT - 1] != (float)steps) {
        fprintf(stderr, "the weights are %g after %ld steps\n", (double)weights[COUNT - 1], (long)steps);
        return 1;
    }
    check(koloStateDestroy(&state), "state");
    check(koloCommDestroy(&comm), "leaving");
    return 0;
}
