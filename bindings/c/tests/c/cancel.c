/* A thread that is cancelled in a call ends only after the call, which completes. Three ranks; argument: transport. */
#include "test.h"

#include <pthread.h>

static koloComm_t comm;
static int rank;

/* The calls that a thread has completed before it ended. */
typedef struct {
    const char *call;
    koloResult_t result;
    int value, state;
} Outcome;

static void *work(void *argument) {
    Outcome *outcome = argument;
    koloRequest_t request = NULL;
    koloComm_t part = NULL;
    int state;
    outcome->value = 1;
    if (strcmp(outcome->call, "all_reduce") == 0) {
        outcome->result = koloAllReduce(comm, &outcome->value, &outcome->value, 1, KOLO_INT32, KOLO_SUM);
    } else if (strcmp(outcome->call, "wait") == 0) {
        OK(koloAllReduceStart(comm, &outcome->value, &outcome->value, 1, KOLO_INT32, KOLO_SUM, &request));
        outcome->result = koloWait(&request, KOLO_UNSET);
    } else {
        OK(koloCommSplit(comm, 0, 0, &part));
        outcome->result = koloAllReduce(part, &outcome->value, &outcome->value, 1, KOLO_INT32, KOLO_SUM);
        OK(koloCommDestroy(&part));
    }
    /* The state is as it was before the calls. */
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0);
    outcome->state = state;
    pthread_testcancel();
    outcome->value = -1;
    return NULL;
}

/* With a cancellation pending, calls still complete: those that return at once, and those that wait. */
static void *pending(void *argument) {
    static float data[1 << 18];
    int *calls = argument, value;
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (*calls = 0; *calls < 2000; ++*calls) {
        value = 1;
        if (koloAllReduce(comm, &value, &value, 1, KOLO_INT32, KOLO_SUM) != KOLO_SUCCESS || value != 3) return NULL;
        if (*calls % 100 == 0) {
            if (koloBarrier(comm) != KOLO_SUCCESS) return NULL;
            if (koloBroadcast(comm, data, data, 1 << 18, KOLO_FLOAT32, 0) != KOLO_SUCCESS) return NULL;
        }
        /* A wrong call also makes its error text while a cancellation is pending. */
        if (koloBarrier(NULL) != KOLO_USAGE) return NULL;
    }
    pthread_testcancel();
    *calls = -1;
    return NULL;
}

int main(int argc, char **argv) {
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    static const char *const calls[] = {"all_reduce", "wait", "split"};
    if (argc > 1) config.transport = argv[1];
    OK(koloCommInitEnv(&comm, &config));
    OK(koloCommRank(comm, &rank));
    for (int which = 0; which < 3; which++) {
        Outcome outcome = {calls[which], KOLO_INTERNAL, 0, -1};
        if (rank == 0) {
            pthread_t thread;
            void *end = NULL;
            CHECK(pthread_create(&thread, NULL, work, &outcome) == 0);
            CHECK(pthread_cancel(thread) == 0);
            CHECK(pthread_join(thread, &end) == 0);
            CHECK(end == PTHREAD_CANCELED);
            CHECK(outcome.state == PTHREAD_CANCEL_ENABLE);
        } else {
            /* The other ranks come late, when the thread already sleeps in the call. */
            sleep_ms(200);
            work(&outcome);
            outcome.value = 3;
        }
        CHECK(outcome.result == KOLO_SUCCESS && outcome.value == 3);
    }
    {
        pthread_t thread;
        int calls = -1;
        void *end = NULL;
        CHECK(pthread_create(&thread, NULL, pending, &calls) == 0);
        CHECK(pthread_join(thread, &end) == 0);
        CHECK(end == PTHREAD_CANCELED && calls == 2000);
    }
    OK(koloCommDestroy(&comm));
    return 0;
}
