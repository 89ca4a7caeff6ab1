/* A newcomer joins two members by an invitation, and gets their state. Three processes; arguments: "given" or "environment" (how the
 * newcomer has the invitation), the file for it. */
#include "test.h"

#include <unistd.h>

#define COUNT 300000

static float weights[COUNT], out[1];
static int counter[2];

/* Writes the invitation atomically, since the newcomer may read the file at any time. */
static void invite(koloComm_t comm, const char *path) {
    char text[4096], beside[4096];
    size_t needed = 0;
    FILE *file;
    OK(koloCommAccept(comm, text, sizeof text, &needed));
    CHECK(needed == strlen(text) + 1 && needed > 50);
    snprintf(beside, sizeof beside, "%s.new", path);
    file = fopen(beside, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0 && rename(beside, path) == 0);
}

static koloComm_t join(const char *way, const char *path) {
    koloComm_t comm = NULL;
    char text[4096] = {0};
    if (strcmp(way, "given") == 0) {
        FILE *file = NULL;
        for (int turn = 0; turn < 3000 && (file = fopen(path, "r")) == NULL; turn++) sleep_ms(10);
        CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0);
        FAILS(koloCommInitInvitation(&comm, NULL, KOLO_UNSET, KOLO_UNSET, NULL), KOLO_USAGE, "invitation is NULL");
        FAILS(koloCommInitInvitation(&comm, "nonsense", KOLO_UNSET, KOLO_UNSET, NULL), KOLO_CONFIGURATION, "invitation");
        FAILS(koloCommInitInvitation(&comm, text, -2, KOLO_UNSET, NULL), KOLO_USAGE, "slot is -2");
        FAILS(koloCommInitInvitation(&comm, text, 0, -2, NULL), KOLO_USAGE, "wait_ms is -2");
        CHECK(comm == NULL);
        OK(koloCommInitInvitation(&comm, text, KOLO_UNSET, 60000, NULL));
    } else {
        char where[4200];
        snprintf(where, sizeof where, "file://%s", path);
        CHECK(setenv("KOLO_JOIN", where, 1) == 0);
        OK(koloCommInitEnv(&comm, NULL));
    }
    return comm;
}

/* Lets the members wait until the newcomer is at one of their ports, and takes it in. */
static koloComm_t take_in(koloComm_t comm) {
    koloComm_t next = NULL;
    int waiting = 0, epoch_is = 0;
    uint64_t epoch = 9;
    FAILS(koloCommGrow(comm, -1, &next), KOLO_USAGE, "more than the 4096 that are supported");
    FAILS(koloCommGrow(comm, 4, NULL), KOLO_USAGE, "result is NULL");
    CHECK(koloCommWaiting(comm, NULL) == KOLO_USAGE && koloCommSlots(comm, NULL) == KOLO_USAGE);
    CHECK(koloCommAccept(comm, NULL, 7, NULL) == KOLO_USAGE && koloCommReplace(comm, NULL) == KOLO_USAGE);
    while (waiting == 0) {
        OK(koloCommWaiting(comm, &waiting));
        OK(koloAllReduce(comm, &waiting, &waiting, 1, KOLO_INT32, KOLO_SUM));
    }
    CHECK(waiting == 1);
    OK(koloCommGrow(comm, 4, &next));
    OK(koloCommEpoch(next, &epoch));
    epoch_is = (int)epoch;
    CHECK(epoch_is == 1);
    OK(koloCommDestroy(&comm));
    return next;
}

/* The members' state is of step 7; the newcomer has none. */
static void share(koloComm_t comm, koloState_t state, int is_newcomer) {
    koloPart_t parts[2] = {{"weights", weights, sizeof weights}, {"counter", counter, sizeof counter}};
    koloPart_t wrong[2] = {{"weights", weights, sizeof weights}, {"again", weights + 9, 4}};
    uint64_t received = 1;
    int64_t version = 0;
    OK(koloStateGetVersion(state, &version));
    CHECK(version == (is_newcomer ? KOLO_UNSET : 7));
    FAILS(koloStateShare(state, comm, wrong, 2, NULL), KOLO_USAGE, "parts 'weights' and 'again' overlap");
    FAILS(koloStateShare(state, comm, NULL, 2, NULL), KOLO_USAGE, "parts is NULL");
    FAILS(koloStateShare(NULL, comm, parts, 2, NULL), KOLO_USAGE, "the state is NULL");
    wrong[1].memory = NULL;
    FAILS(koloStateShare(state, comm, wrong, 2, NULL), KOLO_USAGE, "the memory of part 'again' is NULL");
    OK(koloStateShare(state, comm, parts, 2, &received));
    CHECK(received == (is_newcomer ? sizeof weights + sizeof counter : 0));
    OK(koloStateGetVersion(state, &version));
    CHECK(version == 7 && counter[1] == 5);
    for (int i = 0; i < COUNT; i++) CHECK(weights[i] == (float)(i % 1000));
    OK(koloStateAdvance(state));
    OK(koloStateGetVersion(state, &version));
    CHECK(version == 8);
}

int main(int argc, char **argv) {
    const char *way = argc > 2 ? argv[1] : "", *path = argc > 2 ? argv[2] : "", *number = getenv("RANK");
    int started_as = number == NULL ? 0 : atoi(number), rank = -1, size = 0, before[3] = {9, 9, 9}, slots[3] = {9, 9, 9};
    uint64_t flags = 6;
    koloComm_t comm = NULL, left = NULL;
    koloState_t state = NULL;
    if (started_as == 2) {
        /* RANK and WORLD_SIZE, which the launcher has set, do not apply to a newcomer. */
        comm = join(way, path);
        OK(koloStateCreate(comm, &state));
    } else {
        OK(koloCommInitUrl(&comm, getenv("KOLO_RENDEZVOUS"), 2, started_as, NULL));
        if (started_as == 1) invite(comm, path);
        for (int i = 0; i < COUNT; i++) weights[i] = (float)(i % 1000);
        counter[1] = 5;
        OK(koloStateCreate(comm, &state));
        FAILS(koloStateSetVersion(state, -3), KOLO_USAGE, "version is -3");
        OK(koloStateSetVersion(state, 7));
        comm = take_in(comm);
    }
    OK(koloCommRank(comm, &rank));
    OK(koloCommSize(comm, &size));
    OK(koloCommRanksBefore(comm, before));
    OK(koloCommSlots(comm, slots));
    CHECK(size == 3 && rank == started_as && before[0] == 0 && before[1] == 1 && before[2] == KOLO_NEWCOMER);
    CHECK(slots[0] == 0 && slots[1] == 1 && slots[2] == 2);
    share(comm, state, started_as == 2);
    FAILS(koloCommReplace(comm, &left), KOLO_USAGE, "none of the 3 slots is free");
    FAILS(koloCommAgreeWithin(comm, &flags, NULL, -1), KOLO_USAGE, "limit_ms is -1");
    OK(koloCommAgreeWithin(comm, &flags, NULL, 60000));
    CHECK(flags == 6);
    OK(koloCommShrinkWithin(comm, 60000, &left));
    out[0] = (float)rank;
    OK(koloAllReduce(left, out, out, 1, KOLO_FLOAT32, KOLO_SUM));
    CHECK(out[0] == 3);
    OK(koloStateDestroy(&state));
    OK(koloStateDestroy(&state));
    OK(koloCommDestroy(&left));
    OK(koloCommDestroy(&comm));
    return 0;
}
