/* Steps that survive losses. Three processes; arguments: "lost" (and "tcp"), "own", "limit", or "admit" and the file for an invitation. */
#include "test.h"

#include <unistd.h>

#define COUNT 1000

static float input[COUNT], output[COUNT], table[300 * COUNT];

/* The context of a step. */
struct plan {
    koloSurvivors_t group;
    int first;
    int runs;
    int dies;
    int fails;
};

static int changes, left, came, size_now;

static void watch(const koloChange_t *change, void *context) {
    CHECK(context == (void *)&changes && change->epoch > 0);
    changes++;
    left = change->left_count > 0 ? change->left[0] : -1;
    came = change->came_count > 0 ? change->came[0] : -1;
    size_now = change->size;
    CHECK(change->rank >= 0 && change->rank < change->size);
}

/* A step in the middle of which one rank dies, or fails by itself. */
static koloResult_t sum(koloComm_t comm, void *context) {
    struct plan *plan = context;
    int rank = -1;
    plan->runs++;
    OK(koloCommRank(comm, &rank));
    CHECK(koloSurvivorsAdmit(plan->group) == KOLO_USAGE);
    CHECK(koloSurvivorsDestroy(&plan->group) == KOLO_USAGE && plan->group != NULL);
    if (plan->first == plan->dies) _exit(0);
    if (plan->first == plan->fails) {
        FAILS(koloAllReduce(comm, input, NULL, COUNT, KOLO_FLOAT32, KOLO_SUM), KOLO_USAGE, "");
        return KOLO_USAGE;
    }
    return koloAllReduce(comm, input, output, COUNT, KOLO_FLOAT32, KOLO_SUM);
}

static void wrong_arguments(koloSurvivors_t group, koloComm_t *comm) {
    koloSurvivors_t other = NULL;
    koloComm_t members = NULL;
    FAILS(koloSurvivorsCreate(comm, &other), KOLO_USAGE, "the communicator is NULL");
    FAILS(koloSurvivorsCreate(comm, NULL), KOLO_USAGE, "group is NULL");
    FAILS(koloSurvivorsAtLeast(group, -2), KOLO_USAGE, "ranks is -2");
    FAILS(koloSurvivorsUpTo(NULL, 2), KOLO_USAGE, "the group is NULL");
    FAILS(koloSurvivorsRun(group, KOLO_UNSET, NULL, NULL), KOLO_USAGE, "step is NULL");
    FAILS(koloSurvivorsRun(group, -2, sum, NULL), KOLO_USAGE, "limit_ms is -2");
    FAILS(koloSurvivorsComm(group, NULL), KOLO_USAGE, "comm is NULL");
    OK(koloSurvivorsComm(group, &members));
    FAILS(koloCommDestroy(&members), KOLO_USAGE, "koloSurvivorsDestroy ends both");
    FAILS(koloSurvivorsCreate(&members, &other), KOLO_USAGE, "already belongs to a group");
    CHECK(members != NULL && other == NULL);
}

/* A step that fails on one rank, for a reason of its own, before it makes a call. */
static koloResult_t refuses(koloComm_t comm, void *context) {
    struct plan *plan = context;
    (void)comm;
    return plan->first == plan->fails ? KOLO_USAGE : KOLO_SUCCESS;
}

static void lost(koloSurvivors_t group, int rank, koloComm_t *comm) {
    struct plan plan = {group, rank, 0, -1, -1};
    koloComm_t members = NULL;
    koloResult_t same;
    uint64_t flags = 5;
    int size = 0;
    wrong_arguments(group, comm);
    OK(koloSurvivorsRun(group, KOLO_UNSET, sum, &plan));
    CHECK(output[COUNT - 1] == 7 && plan.runs == 1 && changes == 0);
    /* The first rank, which runs the control plane. */
    plan.dies = 0;
    OK(koloSurvivorsRun(group, KOLO_UNSET, sum, &plan));
    CHECK(output[COUNT - 1] == 6 && plan.runs == 3 && changes == 1 && left == 0 && came == -1 && size_now == 2);
    OK(koloSurvivorsComm(group, &members));
    OK(koloCommSize(members, &size));
    OK(koloCommAgree(members, &flags, NULL));
    CHECK(size == 2 && flags == 5);
    /* One rank's own mistake is an error on all, and is not repeated. */
    plan.fails = 1;
    if (rank == 1) {
        FAILS(koloSurvivorsRun(group, KOLO_UNSET, sum, &plan), KOLO_USAGE, "null pointer");
    } else {
        FAILS(koloSurvivorsRun(group, KOLO_UNSET, sum, &plan), KOLO_REVOKED, "");
    }
    CHECK(plan.runs == 4);
    /* The error of the earlier step is not that of this one. */
    if (rank == 1) {
        FAILS(koloSurvivorsRun(group, KOLO_UNSET, refuses, &plan), KOLO_USAGE, "it returned");
        CHECK(!strstr(koloGetLastError(NULL), "null pointer"));
    } else {
        FAILS(koloSurvivorsRun(group, KOLO_UNSET, refuses, &plan), KOLO_REVOKED, "");
    }
    /* The rank that finds the error first may have ended the step for the other. */
    same = koloSurvivorsAllReduce(group, KOLO_UNSET, input, input, COUNT, KOLO_FLOAT32, KOLO_SUM);
    CHECK(same == KOLO_REVOKED || (same == KOLO_USAGE && strstr(koloGetLastError(NULL), "input and output are the same")));
    OK(koloSurvivorsAllReduce(group, KOLO_UNSET, input, output, COUNT, KOLO_FLOAT32, KOLO_SUM));
    CHECK(output[0] == 6);
    /* Both ranks get the error that they are too few. */
    OK(koloSurvivorsAtLeast(group, 2));
    plan.fails = -1;
    plan.dies = 1;
    FAILS(koloSurvivorsRun(group, KOLO_UNSET, sum, &plan), KOLO_MINORITY, "at least 2 are needed to go on");
}

/* A step of which one rank dies, and in which another makes a result of its own out of the failure that follows. */
static koloResult_t own(koloComm_t comm, void *context) {
    struct plan *plan = context;
    koloResult_t result;
    plan->runs++;
    if (plan->first == plan->dies) _exit(0);
    result = koloBarrier(comm);
    CHECK(result != KOLO_SUCCESS);
    return plan->first == plan->fails ? (koloResult_t)99 : result;
}

static void own_result(koloSurvivors_t group, int rank) {
    struct plan plan = {group, rank, 0, 0, 1};
    koloResult_t done = koloSurvivorsRun(group, KOLO_UNSET, own, &plan);
    CHECK(plan.runs == 1 && (rank == 1 ? done == (koloResult_t)99 : done != KOLO_SUCCESS));
    OK(koloSurvivorsAllReduce(group, KOLO_UNSET, input, output, COUNT, KOLO_FLOAT32, KOLO_SUM));
    CHECK(output[0] == 6);
}

/* Waits for ranks that do not come. */
static koloResult_t half(koloComm_t comm, void *context) {
    struct plan *plan = context;
    return plan->first == 0 ? koloBarrier(comm) : KOLO_SUCCESS;
}

static void limited(koloSurvivors_t group, int rank) {
    struct plan plan = {group, rank, 0, -1, -1};
    koloResult_t done = koloSurvivorsRun(group, 300, half, &plan);
    /* The rank whose time is over first may have ended the step for the other. */
    CHECK(done == KOLO_TIMEOUT || done == KOLO_ABORTED || done == KOLO_REVOKED);
    CHECK(rank != 0 || done == KOLO_TIMEOUT);
    OK(koloSurvivorsAllReduce(group, 60000, input, output, COUNT, KOLO_FLOAT32, KOLO_SUM));
    CHECK(output[COUNT - 1] == 7);
}

static koloPart_t parts[1] = {{"table", table, sizeof table}};

/* Before it joins, the newcomer fetches what the members offer. */
static void fetch(koloState_t *state, const char *invitation) {
    koloPart_t wrong[2] = {{"table", table, sizeof table}, {"again", table + 9, 4}};
    uint64_t received = 0;
    int64_t version = 0;
    FAILS(koloStateFetch(NULL, invitation, 1, parts, 1, NULL), KOLO_USAGE, "state is NULL");
    FAILS(koloStateFetch(state, NULL, 1, parts, 1, NULL), KOLO_USAGE, "invitation is NULL");
    FAILS(koloStateFetch(state, "nonsense", 1, parts, 1, NULL), KOLO_CONFIGURATION, "invitation");
    FAILS(koloStateFetch(state, invitation, -1, parts, 1, NULL), KOLO_USAGE, "limit_ms is -1");
    FAILS(koloStateFetch(state, invitation, 1, wrong, 2, NULL), KOLO_USAGE, "parts 'table' and 'again' overlap");
    CHECK(*state != NULL);
    FAILS(koloStateFetch(state, invitation, 0, parts, 1, NULL), KOLO_JOIN, "in time");
    CHECK(*state != NULL);
    OK(koloStateFetch(state, invitation, 60000, parts, 1, &received));
    OK(koloStateGetVersion(*state, &version));
    CHECK(version == 3 && received > 0);
    for (int i = 0; i < 300 * COUNT; i++) CHECK(table[i] == (float)(i % 1000));
}

static koloResult_t share(koloComm_t comm, void *state) {
    koloResult_t result = koloStateShare(state, comm, parts, 1, NULL);
    return result != KOLO_SUCCESS ? result : koloAllReduce(comm, input, output, COUNT, KOLO_FLOAT32, KOLO_SUM);
}

static void admit(koloSurvivors_t group, koloState_t state, int is_newcomer) {
    int has_offered = 0;
    FAILS(koloStateOffer(NULL, group, parts, 1, NULL), KOLO_USAGE, "the state is NULL");
    FAILS(koloStateOffer(state, NULL, parts, 1, NULL), KOLO_USAGE, "the group is NULL");
    FAILS(koloStateOffer(state, group, NULL, 1, NULL), KOLO_USAGE, "parts is NULL");
    do {
        int offered = -1;
        OK(koloSurvivorsAdmit(group));
        OK(koloStateOffer(state, group, parts, 1, &offered));
        CHECK(offered == 0 || offered == 1);
        has_offered |= offered;
        OK(koloSurvivorsRun(group, KOLO_UNSET, share, state));
    } while (output[0] != 7);
    /* Members to which the newcomer has not connected in time make no copy. */
    CHECK(!has_offered || !is_newcomer);
    CHECK(changes == 1 && came == 2 && left == -1 && size_now == 3);
}

/* The first two meet, and the third joins them by an invitation. */
static koloComm_t join(int started_as, const char *path, koloState_t *state) {
    koloComm_t comm = NULL;
    char text[4096] = {0};
    FILE *file = NULL;
    if (started_as == 2) {
        for (int turn = 0; turn < 3000 && (file = fopen(path, "r")) == NULL; turn++) sleep_ms(10);
        CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0);
        fetch(state, text);
        OK(koloCommInitInvitation(&comm, text, KOLO_UNSET, 60000, NULL));
        return comm;
    }
    OK(koloCommInitUrl(&comm, getenv("KOLO_RENDEZVOUS"), 2, started_as, NULL));
    OK(koloStateCreate(comm, state));
    OK(koloStateSetVersion(*state, 3));
    for (int i = 0; i < 300 * COUNT; i++) table[i] = (float)(i % 1000);
    if (started_as == 0) {
        char beside[4200];
        size_t needed = 0;
        OK(koloCommAccept(comm, text, sizeof text, &needed));
        snprintf(beside, sizeof beside, "%s.new", path);
        file = fopen(beside, "w");
        CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0 && rename(beside, path) == 0);
    }
    return comm;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *number = getenv("RANK");
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    koloSurvivors_t group = NULL;
    koloComm_t comm = NULL;
    koloState_t state = NULL;
    int rank = number == NULL ? 0 : atoi(number);
    for (int i = 0; i < COUNT; i++) input[i] = (float)(1 << rank);
    if (strcmp(what, "admit") == 0 && argc > 2) {
        comm = join(rank, argv[2], &state);
    } else {
        if (argc > 2) config.transport = argv[2];
        OK(koloCommInitEnv(&comm, &config));
    }
    OK(koloSurvivorsCreate(&comm, &group));
    CHECK(comm == NULL && group != NULL);
    OK(koloSurvivorsUpTo(group, 3));
    OK(koloSurvivorsOnChange(group, watch, &changes));
    if (strcmp(what, "lost") == 0) lost(group, rank, &comm);
    if (strcmp(what, "own") == 0) own_result(group, rank);
    if (strcmp(what, "limit") == 0) limited(group, rank);
    if (strcmp(what, "admit") == 0) admit(group, state, rank == 2);
    OK(koloStateDestroy(&state));
    OK(koloSurvivorsDestroy(&group));
    OK(koloSurvivorsDestroy(&group));
    CHECK(group == NULL);
    return 0;
}
