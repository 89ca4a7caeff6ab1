/*
 * kolo.h - Kolo, collective communication, as a C library.
 *
 * A communicator is a group of processes ("ranks", numbered from 0). All of its ranks make the same collective calls in
 * the same order, with equal counts, types, operators and roots. A call that differs is reported on both sides
 * (KOLO_MISMATCH), and so is the loss of a process (KOLO_PEER_LOST): nothing hangs for ever.
 *
 *     koloComm_t comm;
 *     float x[2] = {1, 2};
 *     if (koloCommInitEnv(&comm, NULL) != KOLO_SUCCESS) { fputs(koloGetLastError(NULL), stderr); exit(1); }
 *     koloAllReduce(comm, x, x, 2, KOLO_FLOAT32, KOLO_SUM);
 *     koloCommDestroy(&comm);
 *
 * Conventions
 * -----------
 * Results     Every call that can fail returns koloResult_t. koloGetLastError gives the message, with rank, operation
 *             and remedy. Nothing here exits or aborts the process, prints (but for a defect of Kolo itself, which is
 *             also described on the standard error), handles or raises signals (not even SIGPIPE).
 * Errors      KOLO_USAGE, KOLO_UNSUPPORTED and KOLO_CONFIGURATION come before anything is sent: the communicator is as it
 *             was. After any other error of a call on a communicator it cannot be used any more, on any rank; destroy it.
 * Blocking    Calls block until this rank's part is done: its output is complete and its input may be changed. They give
 *             up after the time-out of the communicator. Calls ending in Start return at once; see koloWait.
 * Threads     Every function may be called from every thread at any time, with two limits: all ranks must make the
 *             calls of one communicator in the same order, and a communicator, request or block of memory must not be
 *             destroyed while another call uses it. koloCommAbort may run beside any other call.
 * Counts      Elements, never bytes. Sizes named "bytes" are bytes.
 * Buffers     Plain memory of any alignment, or memory of an NVIDIA GPU by its address, whose streams the caller has
 *             synchronised. They may be the same (in place) where it says so below. Buffers of a call that overlap in any
 *             other way are refused with KOLO_USAGE, and so is a length of more than PTRDIFF_MAX bytes.
 * fork        A communicator belongs to the process that made it. In a child made by fork its calls fail with KOLO_USAGE
 *             and do nothing, also koloCommAbort; destroying and freeing succeed at once and leave the parent's
 *             communicator and memory alone. The child may make communicators of its own.
 * Cancelling  pthread_cancel takes effect after a call has returned: no thread ends inside Kolo. This holds for deferred
 *             cancellation, the default; a thread of type PTHREAD_CANCEL_ASYNCHRONOUS must not call Kolo.
 *
 * What calls return, beside KOLO_SUCCESS
 * --------------------------------------
 * Every call        KOLO_USAGE for arguments that make no sense, and in a child made by fork; KOLO_INTERNAL for a defect.
 *                   Nothing else from koloGetVersion, koloTest, koloRequestFree, koloMemFree, koloCommRank, koloCommSize,
 *                   koloCommLocalRank, koloCommSummary, koloCommSettings, koloCommAbort, koloCommRevoke, koloCommEpoch,
 *                   koloCommRanksBefore, koloCommOwnShards, koloCommGetAsyncError (which writes what it has found), koloCommMemFree,
 *                   koloCommDeregister, koloCommDestroy, koloCommWaiting, koloCommSlots, koloState... but Share and Fetch, and
 *                   koloSurvivors... but Admit, Run and AllReduce.
 * koloStateFetch    KOLO_JOIN if the state has not come in time, and KOLO_CONFIGURATION for text that is no invitation.
 * koloCommInit...   KOLO_CONFIGURATION, KOLO_JOIN, KOLO_TRANSPORT, KOLO_SYSTEM; and KOLO_PEER_LOST, KOLO_TIMEOUT or
 *                   KOLO_ABORTED when a rank is lost or fails after all have come.
 * Calls that block  KOLO_UNSUPPORTED, after which the communicator is as it was; KOLO_MISMATCH, KOLO_PEER_LOST,
 *                   KOLO_TIMEOUT, KOLO_ABORTED, KOLO_TRANSPORT and KOLO_SYSTEM, after which it cannot be used any more.
 *                   These are collectives, messages, batches, probes, koloRun, koloWait, koloWaitSource, koloCommSplit,
 *                   koloCommGroup, koloCommMemAlloc and koloStateShare; koloCommSplit, koloCommGroup and koloCommMemAlloc
 *                   also return KOLO_JOIN and KOLO_CONFIGURATION.
 *                   After koloCommRevoke they return KOLO_REVOKED.
 * koloCommAgree, koloCommShrink, koloCommGrow, koloCommReplace: KOLO_FENCED, KOLO_MINORITY, KOLO_TIMEOUT, KOLO_UNSUPPORTED;
 *                   all but koloCommAgree also those of koloCommInit. They work after the errors of calls that block.
 *                   koloCommShrinkWithin also KOLO_ABORTED.
 * koloSurvivorsRun, koloSurvivorsAllReduce: those of koloCommAgree and koloCommShrink, KOLO_REVOKED, KOLO_ABORTED, and the step's
 *                   own; koloSurvivorsAdmit KOLO_FENCED and KOLO_MINORITY. Their errors leave a group that can be used.
 * koloCommAccept    KOLO_UNSUPPORTED, KOLO_JOIN, KOLO_SYSTEM.
 * Calls with Start  KOLO_UNSUPPORTED; and the error of an earlier call: where something has failed nothing is started.
 * koloExplain       KOLO_UNSUPPORTED.
 * koloCommRegister  KOLO_TRANSPORT, after which the communicator is as it was; and the error of an earlier call.
 * koloGetUniqueId, koloMemAlloc: KOLO_SYSTEM.
 */
#ifndef KOLO_H
#define KOLO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- Version -- */

#define KOLO_VERSION_MAJOR 0
#define KOLO_VERSION_MINOR 2
#define KOLO_VERSION_PATCH 0
/** The version of this header as one number: 10000 * major + 100 * minor + patch. */
#define KOLO_VERSION (10000 * KOLO_VERSION_MAJOR + 100 * KOLO_VERSION_MINOR + KOLO_VERSION_PATCH)

/** What a call returns. */
typedef enum {
    KOLO_SUCCESS = 0,
    /** An argument makes no sense (a null pointer, a root out of range), or this is a child made by fork. Nothing was sent. */
    KOLO_USAGE = 1,
    /** A setting or environment variable is missing or wrong. */
    KOLO_CONFIGURATION = 2,
    /** The ranks could not find each other in time, or did not agree on who is who. */
    KOLO_JOIN = 3,
    /** The ranks called different things at the same point. */
    KOLO_MISMATCH = 4,
    /** A process ended or its connection broke; see koloGetLastErrorPeer. */
    KOLO_PEER_LOST = 5,
    /** The time-out passed. */
    KOLO_TIMEOUT = 6,
    /** The communicator was aborted, by koloCommAbort or by an error elsewhere. */
    KOLO_ABORTED = 7,
    /** The combination is not supported. Nothing was sent. */
    KOLO_UNSUPPORTED = 8,
    /** A transport failed in another way. */
    KOLO_TRANSPORT = 9,
    /** The operating system refused something. */
    KOLO_SYSTEM = 10,
    /** A defect of Kolo. */
    KOLO_INTERNAL = 11,
    /** A rank called koloCommRevoke; those that live may shrink the communicator. */
    KOLO_REVOKED = 12,
    /** This rank was silent for too long, and the others have gone on without it. It cannot come back to this group. */
    KOLO_FENCED = 13,
    /** Too few ranks answer to go on: the others may be alive behind a network that is cut. */
    KOLO_MINORITY = 14
} koloResult_t;

/** The version of the library that is linked, as KOLO_VERSION. */
koloResult_t koloGetVersion(int *version);

/** A short text for a result, such as "peer lost". Never NULL. */
const char *koloGetErrorString(koloResult_t result);

/* --------------------------------------------------------------------------------------------- Communicators -- */

/** A communicator. */
typedef struct koloComm *koloComm_t;

/**
 * The message of the last error of a communicator, from whichever thread; or, if comm is NULL, of the last error of the
 * calling thread. An empty string if there was none. Never NULL. Successful calls leave it alone.
 * The text is the calling thread's and stays valid until its next call of this function.
 */
const char *koloGetLastError(koloComm_t comm);

/** The rank that the last error is about (lost, mismatched, aborted), chosen as by koloGetLastError; -1 if none. */
int koloGetLastErrorPeer(koloComm_t comm);

/**
 * The stable code of the last error, such as "K0401", chosen as by koloGetLastError; an empty string if there was none. It also stands
 * at the end of the message: `kolo explain-error K0401` says what it stands for. Never NULL, and valid for ever.
 */
const char *koloGetLastErrorCode(koloComm_t comm);

/** A number in koloConfig_t that is left to the environment or the default. */
#define KOLO_UNSET (-1)

/** How results may depend on how they are computed. */
typedef enum {
    /** All ranks get the same bits and runs repeat, for a given size and configuration. */
    KOLO_REPEATABLE = 0,
    /** Also independent of algorithm, transport and message size. */
    KOLO_CANONICAL = 1
} koloDeterminism_t;

/**
 * Settings of a communicator. Always start from KOLO_CONFIG_INITIALIZER, so that programs keep working when fields are
 * added. What is left NULL or KOLO_UNSET comes from the KOLO_* variable named beside it, then from the default.
 * Strings are copied. All ranks must agree on transport, algorithms, segment_bytes, window, exchange_bytes and determinism.
 */
typedef struct {
    /** Size, magic number and version of this struct: set by the initializer. */
    size_t size;
    uint32_t magic;
    uint32_t version;
    /** KOLO_TRANSPORT: "auto" or a list such as "shm,tcp". */
    const char *transport;
    /** KOLO_ALGO: "ring", or "all_reduce:tree,broadcast:binomial". Default: chosen by cost. */
    const char *algorithms;
    /** KOLO_HOST_ID: ranks with different names count as being on different hosts. */
    const char *host_id;
    /** KOLO_SOCKET_IFNAME: network interfaces by prefix, "^" in front to exclude. */
    const char *socket_interfaces;
    /** KOLO_SOCKET_CONGESTION: TCP congestion control, or "system". */
    const char *socket_congestion;
    /** KOLO_TIMEOUT, here in milliseconds: after this a blocking call gives up. Default: 10 minutes. */
    int64_t timeout_ms;
    /** KOLO_JOIN_TIMEOUT, here in milliseconds: how long to wait for all ranks. Default: 5 minutes. */
    int64_t join_timeout_ms;
    /** KOLO_SEGMENT_BYTES: bytes per segment of a long vector. Default: chosen by cost. */
    int64_t segment_bytes;
    /** KOLO_WINDOW: segments in flight. Default: chosen by cost. */
    int64_t window;
    /** KOLO_EXCHANGE_BYTES: up to this many bytes per rank, calls inside one host take the exchange; 0 = never. */
    int64_t exchange_bytes;
    /** KOLO_SPIN_US: microseconds that a waiting thread spins before it yields. */
    int64_t spin_us;
    /** KOLO_DETERMINISM: a koloDeterminism_t, or KOLO_UNSET. Default: KOLO_REPEATABLE. */
    int determinism;
    /** KOLO_PORT_RANGE: TCP ports to listen at, such as "40000-40099"; as many as there are processes on a host. */
    const char *port_range;
} koloConfig_t;

#define KOLO_CONFIG_MAGIC 0x6b636667u
#define KOLO_CONFIG_VERSION 1u
#define KOLO_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        sizeof(koloConfig_t), KOLO_CONFIG_MAGIC, KOLO_CONFIG_VERSION, NULL, NULL, NULL, NULL, NULL, KOLO_UNSET,        \
            KOLO_UNSET, KOLO_UNSET, KOLO_UNSET, KOLO_UNSET, KOLO_UNSET, KOLO_UNSET, NULL                               \
    }

/**
 * Joins the other ranks as the environment says: KOLO_RENDEZVOUS, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
 * torchrun sets them, or the variables of Open MPI, MPICH, Slurm and so on. Blocks until all ranks are there. With KOLO_JOIN the
 * process is a newcomer: see koloCommInitInvitation. config may be NULL. *comm is NULL after an error.
 */
koloResult_t koloCommInitEnv(koloComm_t *comm, const koloConfig_t *config);

/**
 * The same by URL: "tcp://host:port" (an address of rank 0's host and a free port there), "file:///path" (a file that
 * all ranks see; it need not exist), "multicast://239.1.2.3:port/job" or "env://". If rank and nranks are both -1, they
 * come from "?rank=R&world_size=N" in the URL, or from the environment.
 */
koloResult_t koloCommInitUrl(koloComm_t *comm, const char *url, int nranks, int rank, const koloConfig_t *config);

#define KOLO_UNIQUE_ID_BYTES 128

/** Names a communicator yet to be made. Plain bytes, to be passed on by whatever means the program has. */
typedef struct {
    unsigned char bytes[KOLO_UNIQUE_ID_BYTES];
} koloUniqueId;

/**
 * Makes an id for one communicator. Call it on the host that will run rank 0, best in rank 0's own process, and give the
 * 128 bytes to all ranks. The id holds an address of this host, a port that this process keeps free for rank 0 until
 * rank 0 has joined or this process ends, and a random secret: whoever has the id can join, nobody else can.
 *
 * host: a name or address by which the other ranks reach this host; NULL for the address of the default route, or
 * 127.0.0.1 on a host without network.
 */
koloResult_t koloGetUniqueId(koloUniqueId *id, const char *host);

/** Joins by id, which serves for one communicator. Blocks until all ranks are there. */
koloResult_t koloCommInitRank(koloComm_t *comm, int nranks, const koloUniqueId *id, int rank,
                              const koloConfig_t *config);

/** Color of a rank that is to be in no new communicator. */
#define KOLO_NO_COLOR (-1)

/**
 * Ranks that give the same color (0 or more, or KOLO_NO_COLOR) form a new communicator, ordered by key (of either sign),
 * then by rank. Every rank calls it; blocks until all have. *result is NULL for KOLO_NO_COLOR. If one rank gives another
 * color, the call is KOLO_USAGE on every rank, and the communicator is as it was.
 */
koloResult_t koloCommSplit(koloComm_t comm, int color, int key, koloComm_t *result);

/**
 * A communicator of the listed ranks, in this order. Only these call it, with the same list. Blocks until all have.
 */
koloResult_t koloCommGroup(koloComm_t comm, const int *ranks, size_t count, koloComm_t *result);

/**
 * Waits a short time (at most 5 s) for what was sent to leave, says goodbye and frees the communicator; *comm becomes
 * NULL. Local: it does not wait for other ranks. Communicators split off it live on. Nothing happens if *comm is NULL.
 * Requests of the communicator must still be given to koloWait or koloRequestFree.
 */
koloResult_t koloCommDestroy(koloComm_t *comm);

/**
 * Gives up: every call in progress, on every rank, and every later one fails with KOLO_ABORTED and the reason (may be
 * NULL). Returns at once. The communicator must still be destroyed.
 */
koloResult_t koloCommAbort(koloComm_t comm, const char *reason);

/**
 * Ends the communicator for all of its ranks: every call in progress, and every later one, fails with KOLO_REVOKED (or with
 * the loss that came before), except koloCommAgree and koloCommShrink. Returns at once.
 */
koloResult_t koloCommRevoke(koloComm_t comm);

/**
 * Agrees with all ranks that live: *flags becomes the AND of everybody's, the same on all of them. takes_part (may be NULL)
 * has room for as many ints as the communicator has ranks; those of ranks that took part become 1, the others 0. Works on
 * a communicator that has failed. All ranks that live call it, in the same order with koloCommShrink; blocks until all have.
 */
koloResult_t koloCommAgree(koloComm_t comm, uint64_t *flags, int *takes_part);

/**
 * A communicator of the ranks that live, in their order. All of them call it; blocks until all have. Works on a
 * communicator that has failed, and on a healthy one, which stays as it is; either must still be destroyed.
 * KOLO_FENCED if the others have gone on without this rank, KOLO_MINORITY if too few ranks answer.
 */
koloResult_t koloCommShrink(koloComm_t comm, koloComm_t *result);

/**
 * As koloCommAgree, but ranks that live and have not called after limit_ms milliseconds are waited for no longer. They count as
 * having set no flag, and get this very answer when they call: all ranks have it, and one that is late holds up nobody.
 */
koloResult_t koloCommAgreeWithin(koloComm_t comm, uint64_t *flags, int *takes_part, int64_t limit_ms);

/**
 * As koloCommShrink, but if a rank that lives has not called after limit_ms milliseconds, it is KOLO_ABORTED on all ranks, also on
 * that one when it calls. They may call it again then.
 */
koloResult_t koloCommShrinkWithin(koloComm_t comm, int64_t limit_ms, koloComm_t *result);

/** How many times the group has changed: one more with each koloCommShrink, koloCommGrow and koloCommReplace. */
koloResult_t koloCommEpoch(koloComm_t comm, uint64_t *epoch);

/** What koloCommRanksBefore has for a rank that was not there before. */
#define KOLO_NEWCOMER (-1)

/**
 * The rank of each rank in the communicator that this one was made of by koloCommShrink, koloCommGrow or koloCommReplace, or
 * KOLO_NEWCOMER; `ranks` has room for as many ints as this one has ranks.
 */
koloResult_t koloCommRanksBefore(koloComm_t comm, int *ranks);

/* ------------------------------------------------------------------------------------------------- Newcomers -- */

/**
 * An invitation to this communicator's group: text, to be passed on by any way. Newcomers join by it (koloCommInitInvitation) and
 * wait at this rank's door, or at another's if this one dies, until the members call koloCommGrow or koloCommReplace. Local; any
 * rank may call it at any time. Who has the text can become a member: keep it secret. It is good for any number of newcomers,
 * and for as long as one of the ranks lives that it names (up to 16). Writes as koloCommSummary does; 4096 bytes are enough.
 */
koloResult_t koloCommAccept(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/**
 * Joins a group that is at work, by an invitation. Blocks until the members take this newcomer in, or the last of them that it knows
 * is gone; at most wait_ms milliseconds (KOLO_UNSET: as long as the group lives). slot: the one that it would have and no other, or
 * KOLO_UNSET. koloCommInitEnv does the same with KOLO_JOIN (an invitation, or "file://PATH" of a file with one) and KOLO_SLOT.
 */
koloResult_t koloCommInitInvitation(koloComm_t *comm, const char *invitation, int slot, int64_t wait_ms,
                                    const koloConfig_t *config);

/** How many newcomers wait at this rank's door; others may wait at those of other ranks. Local. */
koloResult_t koloCommWaiting(koloComm_t comm, int *count);

/**
 * A communicator of the ranks that live and of the newcomers that wait, as long as there are at most `most` ranks in all. Ranks
 * keep their order; newcomers come last. All ranks that live call it with the same `most`; blocks until all have come. Deaths
 * meanwhile are absorbed. comm stays as it is, also after an error, which all ranks get; it must still be destroyed.
 */
koloResult_t koloCommGrow(koloComm_t comm, int most, koloComm_t *result);

/** The same, but newcomers take the slots of ranks that have been lost; KOLO_USAGE if none is free. */
koloResult_t koloCommReplace(koloComm_t comm, koloComm_t *result);

/**
 * The slot of each rank: its rank in the first communicator of the group, or that of the rank whose place it has taken. `slots` has
 * room for as many ints as the communicator has ranks.
 */
koloResult_t koloCommSlots(koloComm_t comm, int *slots);

/** Which step a rank's state is of, and with whom it has shared it. */
typedef struct koloState *koloState_t;

/** Memory that is part of a program's state. Names and lengths are the same on all ranks; parts do not overlap. */
typedef struct {
    /** For messages. */
    const char *name;
    void *memory;
    size_t bytes;
} koloPart_t;

/** The state of a program that begins: of step 0, or, on a newcomer, of none. */
koloResult_t koloStateCreate(koloComm_t comm, koloState_t *state);

/** Frees it; *state becomes NULL. Nothing happens if it is NULL. The memory of its parts is the program's. */
koloResult_t koloStateDestroy(koloState_t *state);

/** The step that this rank's memory is of; KOLO_UNSET if it has none. */
koloResult_t koloStateGetVersion(koloState_t state, int64_t *version);

/** The memory is of this step from now on. */
koloResult_t koloStateSetVersion(koloState_t state, int64_t version);

/** The memory is of the next step from now on. */
koloResult_t koloStateAdvance(koloState_t state);

/**
 * Ranks that have the latest version send it to those that do not; then all have it. Costs a comparison if it has succeeded on this
 * communicator before. All ranks call it, with the same parts in the same order; blocks as collectives do. Nobody else uses the
 * parts meanwhile. After the loss of a rank it can be called again on the next communicator: what has come is kept.
 * *received (may be NULL) becomes the bytes that this rank was sent.
 */
koloResult_t koloStateShare(koloState_t state, koloComm_t comm, const koloPart_t *parts, size_t count, uint64_t *received);

/* ----------------------------------------------------------------------------------------------- Collectives -- */

/** Type of an element. */
typedef enum {
    KOLO_BOOL = 0,
    KOLO_UINT8 = 1,
    KOLO_INT8 = 2,
    KOLO_UINT32 = 3,
    KOLO_INT32 = 4,
    KOLO_UINT64 = 5,
    KOLO_INT64 = 6,
    KOLO_FLOAT16 = 7,
    KOLO_BFLOAT16 = 8,
    KOLO_FLOAT32 = 9,
    KOLO_FLOAT64 = 10,
    KOLO_UINT16 = 11,
    KOLO_INT16 = 12
} koloDataType_t;

/** Bytes of an element; 0 for a type that does not exist. */
size_t koloTypeBytes(koloDataType_t type);

/**
 * How values are combined. Integers wrap; 16-bit floats are combined in 32 bits; minimum and maximum are NaN if either
 * value is.
 */
typedef enum {
    KOLO_SUM = 0,
    KOLO_PROD = 1,
    KOLO_MIN = 2,
    KOLO_MAX = 3,
    /** Sum divided by the number of ranks. Not for bool, nor for scans. */
    KOLO_AVG = 4,
    /** Each rank's values times its own factor, then summed. By koloRun and koloStart only, which take the factor. */
    KOLO_PREMUL_SUM = 5,
    /** Bitwise; not for floating point. */
    KOLO_BIT_AND = 6,
    KOLO_BIT_OR = 7,
    KOLO_BIT_XOR = 8,
    /** 1 or 0, for every type. */
    KOLO_LOGICAL_AND = 9,
    KOLO_LOGICAL_OR = 10,
    KOLO_LOGICAL_XOR = 11
} koloRedOp_t;

/** A collective, for koloCall_t. */
typedef enum {
    KOLO_ALL_REDUCE = 0,
    KOLO_ALL_GATHER = 1,
    KOLO_REDUCE_SCATTER = 2,
    KOLO_BROADCAST = 3,
    KOLO_REDUCE = 4,
    KOLO_GATHER = 5,
    KOLO_SCATTER = 6,
    KOLO_ALL_TO_ALL = 7,
    KOLO_SCAN = 8,
    KOLO_EXSCAN = 9,
    KOLO_BARRIER = 10
} koloCollective_t;

/** Every rank gets the reduction of `count` elements over all ranks. In place: output == input. */
koloResult_t koloAllReduce(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                           koloRedOp_t op);

/**
 * The shards of this rank, of `shards` among all ranks: `count` of them from `first` on, which are those from
 * rank * shards / ranks up to those of the next rank. There may be none.
 */
koloResult_t koloCommOwnShards(koloComm_t comm, int shards, int *first, int *count);

/**
 * Every rank gets the reduction of `shards` vectors of `count` elements: input holds those of this rank's own shards
 * (koloCommOwnShards), one behind the other. The bits of the result depend on the shards alone, not on the number of ranks nor on
 * who they are. KOLO_AVG divides by the number of shards, of which there are 1 to 16,384. Input and output do not overlap, and are in
 * the host's memory.
 */
koloResult_t koloAllReduceShards(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                                 koloRedOp_t op, int shards);

/** The root gets the reduction; output is used there only. In place: output == input on the root. */
koloResult_t koloReduce(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                        koloRedOp_t op, int root);

/** Every rank gets the root's `count` elements; input is used on the root only. In place: output == input. */
koloResult_t koloBroadcast(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                           int root);

/**
 * Every rank gets the blocks of all ranks, one behind the other: `count` elements each, nranks * count in output.
 * In place: input == output + rank * count elements.
 */
koloResult_t koloAllGather(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type);

/**
 * Rank r gets the reduction of everybody's block r: nranks blocks of `count` elements in input, `count` in output.
 * In place: output == input + rank * count elements.
 */
koloResult_t koloReduceScatter(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                               koloRedOp_t op);

/** Block s of input goes to rank s, block r of output comes from rank r, `count` elements each. In place: equal. */
koloResult_t koloAllToAll(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type);

/** The root gets the blocks of all ranks, `count` elements each; output is used there only. In place as koloAllGather. */
koloResult_t koloGather(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type, int root);

/** Rank r gets the root's block r, of `count` elements; input is used on the root only. In place as koloReduceScatter. */
koloResult_t koloScatter(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type, int root);

/** Rank r gets the reduction over ranks 0 to r. In place: output == input. */
koloResult_t koloScan(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                      koloRedOp_t op);

/** Rank r gets the reduction over ranks 0 to r - 1; rank 0's output is left as it was. In place: output == input. */
koloResult_t koloExScan(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                        koloRedOp_t op);

/** Returns once every rank has called it. */
koloResult_t koloBarrier(koloComm_t comm);

/*
 * Blocks of unequal length, one behind the other. `counts` has one entry per rank. Not in place.
 */

/** Every rank gets the blocks of all ranks, counts[r] elements from rank r. All ranks pass the same counts. */
koloResult_t koloAllGatherV(koloComm_t comm, const void *input, void *output, const size_t *counts,
                            koloDataType_t type);

/** Rank r gets the reduction of everybody's block r, of counts[r] elements. All ranks pass the same counts. */
koloResult_t koloReduceScatterV(koloComm_t comm, const void *input, void *output, const size_t *counts,
                                koloDataType_t type, koloRedOp_t op);

/** The root gets counts[r] elements from rank r; this rank sends input_count. output and counts: root only. */
koloResult_t koloGatherV(koloComm_t comm, const void *input, size_t input_count, void *output, const size_t *counts,
                         koloDataType_t type, int root);

/** Rank r gets the root's block r, of counts[r] elements; this rank receives output_count. input and counts: root only. */
koloResult_t koloScatterV(koloComm_t comm, const void *input, const size_t *counts, void *output, size_t output_count,
                          koloDataType_t type, int root);

/** Sends send_counts[s] elements to each rank s and receives recv_counts[r] from each rank r. */
koloResult_t koloAllToAllV(koloComm_t comm, const void *input, const size_t *send_counts, void *output,
                           const size_t *recv_counts, koloDataType_t type);

/* ------------------------------------------------------------------------------------------------- Survivors -- */

/**
 * A group of ranks that goes on when some of them die: a communicator that is replaced by one of the ranks that live. Its steps
 * succeed on all ranks that live, or on none; after a loss those that live repeat them. All ranks make one, and make the same calls
 * on it in the same order, one at a time. A call from a step or a watcher, or beside another, is KOLO_USAGE.
 */
typedef struct koloSurvivors *koloSurvivors_t;

/** How the members of a group have changed. Lives until the watcher has returned. */
typedef struct {
    /** How many times they have, this time too. */
    uint64_t epoch;
    /** Who has left: ranks in the communicator before. None on a newcomer, which does not know. */
    const int *left;
    size_t left_count;
    /** Who has come: ranks now. */
    const int *came;
    size_t came_count;
    /** This rank now, and how many there are. */
    int rank;
    int size;
} koloChange_t;

/**
 * A step: calls on comm, which has the members of the moment. Returns KOLO_SUCCESS, or the result of the first call that failed, or a
 * number of its own. It may run several times, so it must not change what it starts from: its calls are out of place, or on copies.
 * Messages and started operations are over when it returns. Nothing is thrown from it, and no longjmp leaves it.
 */
typedef koloResult_t (*koloStep_t)(koloComm_t comm, void *context);

/** Hears of a change, before the step begins (again), on the thread that calls koloSurvivorsRun. As of a step, nothing is thrown. */
typedef void (*koloWatcher_t)(const koloChange_t *change, void *context);

/**
 * Takes *comm over, which becomes NULL if it succeeds. A newcomer gives the communicator that it has joined. `kolo run --elastic
 * MIN:MAX` sets how few and how many ranks there may be, unless the calls below do.
 */
koloResult_t koloSurvivorsCreate(koloComm_t *comm, koloSurvivors_t *group);

/** Destroys it with its communicator; *group becomes NULL. Nothing happens if it is NULL. */
koloResult_t koloSurvivorsDestroy(koloSurvivors_t *group);

/** Gives up, with KOLO_MINORITY, when fewer than so many ranks are left (1). The same on all ranks. */
koloResult_t koloSurvivorsAtLeast(koloSurvivors_t group, int ranks);

/** How many ranks there may be: koloSurvivorsAdmit takes newcomers in until then (0). The same on all ranks, newcomers too. */
koloResult_t koloSurvivorsUpTo(koloSurvivors_t group, int ranks);

/** Calls `watcher` with `context` when the members have changed; on a newcomer before its first step. NULL: nobody is told. */
koloResult_t koloSurvivorsOnChange(koloSurvivors_t group, koloWatcher_t watcher, void *context);

/**
 * The members of the last step, until the next call on the group, which owns the communicator. Calls on it are on their own: they may
 * fail on some ranks and succeed on others.
 */
koloResult_t koloSurvivorsComm(koloSurvivors_t group, koloComm_t *comm);

/**
 * Runs `step` until it has succeeded on all members; the others have died. Blocks as its calls do, and until all members have come to
 * its end. With limit_ms (else KOLO_UNSET), the step is over on all ranks after so many milliseconds: its calls fail, and who has
 * not come to its end is waited for no longer.
 *
 * All ranks that live get an error, or none does. An error after which the communicator can be used, such as KOLO_USAGE, and a failure
 * after which no rank is missing are not repeated: the rank where it happened gets the result of its step, the others KOLO_REVOKED.
 * After the limit ranks get KOLO_TIMEOUT or KOLO_ABORTED. The group can go on in these cases. KOLO_FENCED if the others have left
 * this rank behind; KOLO_MINORITY if too few are left, or answer.
 */
koloResult_t koloSurvivorsRun(koloSurvivors_t group, int64_t limit_ms, koloStep_t step, void *context);

/** koloAllReduce as such a step: the sum over the members that are left. Out of place only. */
koloResult_t koloSurvivorsAllReduce(koloSurvivors_t group, int64_t limit_ms, const void *input, void *output, size_t count,
                                    koloDataType_t type, koloRedOp_t op);

/**
 * The point between two steps where newcomers come in, if some wait and there are fewer ranks than koloSurvivorsUpTo says. Costs
 * nothing if nobody waits. All members call it at the same point; a newcomer begins there. A failure leaves the members as they are.
 */
koloResult_t koloSurvivorsAdmit(koloSurvivors_t group);

/**
 * Takes a copy of this rank's state if newcomers ask for one by koloStateFetch, and serves it to them while the program goes on, in as much
 * memory again until they have gone. All members call it right after koloSurvivorsAdmit, with the memory of the state's version, which
 * nobody changes meanwhile. Costs nothing while nobody asks; local, and never waits for others. *offered (may be NULL) becomes 1 if a copy
 * was taken.
 */
koloResult_t koloStateOffer(koloState_t state, koloSurvivors_t group, const koloPart_t *parts, size_t count, int *offered);

/**
 * For a newcomer, before it joins by the same invitation: fetches a copy of the members' state while they go on. The first koloStateShare then
 * brings what has changed since. Makes *state if it is NULL, also where it fails: called again with it, it goes on where it has ended.
 * Blocks for limit_ms at most. *received (may be NULL) becomes the bytes that have come.
 */
koloResult_t koloStateFetch(koloState_t *state, const char *invitation, int64_t limit_ms, const koloPart_t *parts, size_t count,
                            uint64_t *received);

/**
 * Writes into *result what the next call on the communicator would fail with, or KOLO_SUCCESS: for programs that are not
 * inside a call and want to hear of a failure elsewhere. The message is then that of koloGetLastError(comm). Returns at
 * once while all is well.
 */
koloResult_t koloCommGetAsyncError(koloComm_t comm, koloResult_t *result);

/** Number of this rank, from 0. */
koloResult_t koloCommRank(koloComm_t comm, int *rank);

/** Number of ranks. */
koloResult_t koloCommSize(koloComm_t comm, int *size);

/** Number of this rank among those of its host, from 0. */
koloResult_t koloCommLocalRank(koloComm_t comm, int *local_rank);

/**
 * One line: how the other ranks are reached, and why so. Writes at most `bytes` bytes with the final 0, and into
 * *needed (may be NULL) how many the whole text takes. Likewise koloCommSettings and koloExplain.
 */
koloResult_t koloCommSummary(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/** The settings in force, one "KOLO_NAME=value" per line. */
koloResult_t koloCommSettings(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/* ----------------------------------------------------------------------------------------- Asynchronous calls -- */

/** A collective, a send or a receive in progress. */
typedef struct koloRequest *koloRequest_t;

/*
 * As the calls without Start, but they return at once. The buffers must stay, and must not be touched, until koloWait
 * has returned. Progress is made whether or not anybody waits; several may be in progress. All ranks start them in the
 * same order, and a call with Start does not match one without. *request is NULL after an error.
 */
koloResult_t koloAllReduceStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                                koloRedOp_t op, koloRequest_t *request);
koloResult_t koloReduceStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                             koloRedOp_t op, int root, koloRequest_t *request);
koloResult_t koloBroadcastStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                                int root, koloRequest_t *request);
koloResult_t koloAllGatherStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                                koloRequest_t *request);
koloResult_t koloReduceScatterStart(koloComm_t comm, const void *input, void *output, size_t count,
                                    koloDataType_t type, koloRedOp_t op, koloRequest_t *request);
koloResult_t koloAllToAllStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                               koloRequest_t *request);
koloResult_t koloGatherStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                             int root, koloRequest_t *request);
koloResult_t koloScatterStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                              int root, koloRequest_t *request);
koloResult_t koloScanStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                           koloRedOp_t op, koloRequest_t *request);
koloResult_t koloExScanStart(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                             koloRedOp_t op, koloRequest_t *request);
koloResult_t koloBarrierStart(koloComm_t comm, koloRequest_t *request);

/* Blocks of unequal length. The counts are copied and need not stay. */
koloResult_t koloAllGatherVStart(koloComm_t comm, const void *input, void *output, const size_t *counts,
                                 koloDataType_t type, koloRequest_t *request);
koloResult_t koloReduceScatterVStart(koloComm_t comm, const void *input, void *output, const size_t *counts,
                                     koloDataType_t type, koloRedOp_t op, koloRequest_t *request);
koloResult_t koloGatherVStart(koloComm_t comm, const void *input, size_t input_count, void *output,
                              const size_t *counts, koloDataType_t type, int root, koloRequest_t *request);
koloResult_t koloScatterVStart(koloComm_t comm, const void *input, const size_t *counts, void *output,
                               size_t output_count, koloDataType_t type, int root, koloRequest_t *request);
koloResult_t koloAllToAllVStart(koloComm_t comm, const void *input, const size_t *send_counts, void *output,
                                const size_t *recv_counts, koloDataType_t type, koloRequest_t *request);

/**
 * Writes 1 into *done if the request is over, well or not, else 0. Makes a little progress; does not block. The result
 * and the memory of the request come from koloWait.
 */
koloResult_t koloTest(koloRequest_t request, int *done);

/**
 * Waits for a request and frees it, whatever the result; *request becomes NULL. Gives up after timeout_ms, or, if that
 * is KOLO_UNSET, after the time-out of the communicator; then the communicator is aborted, as after every time-out, and
 * the buffers are no longer touched. Succeeds at once if *request is NULL.
 */
koloResult_t koloWait(koloRequest_t *request, int64_t timeout_ms);

/**
 * As koloWait, and writes into *source the rank whose message a request of koloRecvStart has received; KOLO_ANY_SOURCE for
 * any other request. *source is left alone after an error.
 */
koloResult_t koloWaitSource(koloRequest_t *request, int64_t timeout_ms, int *source);

/**
 * Frees a request without waiting; *request becomes NULL. The operation goes on: its buffers must stay until the
 * communicator is destroyed.
 */
koloResult_t koloRequestFree(koloRequest_t *request);

/** A collective as a value. Always start from KOLO_CALL_INITIALIZER. */
typedef struct {
    /** Size, magic number and version of this struct: set by the initializer. */
    size_t size;
    uint32_t magic;
    uint32_t version;
    koloCollective_t collective;
    koloDataType_t type;
    koloRedOp_t op;
    int root;
    const void *input;
    void *output;
    size_t count;
    /** This rank's factor for KOLO_PREMUL_SUM. */
    double factor;
} koloCall_t;

#define KOLO_CALL_MAGIC 0x6b63616cu
#define KOLO_CALL_VERSION 1u
#define KOLO_CALL_INITIALIZER                                                                                          \
    {                                                                                                                  \
        sizeof(koloCall_t), KOLO_CALL_MAGIC, KOLO_CALL_VERSION, KOLO_ALL_REDUCE, KOLO_UINT8, KOLO_SUM, 0, NULL, NULL,  \
            0, 1.0                                                                                                     \
    }

/** Makes any of the collectives with equal blocks. Blocks. */
koloResult_t koloRun(koloComm_t comm, const koloCall_t *call);

/** Starts any of the collectives with equal blocks. */
koloResult_t koloStart(koloComm_t comm, const koloCall_t *call, koloRequest_t *request);

/** The algorithm that a call would use, what was weighed against it and why, as text; see koloCommSummary. */
koloResult_t koloExplain(koloComm_t comm, const koloCall_t *call, char *text, size_t bytes, size_t *needed);

/* -------------------------------------------------------------------------------------------- Point to point -- */

/*
 * A message has a tag; calls that take none use 0. The i-th send from one rank to another with some tag meets the i-th
 * receive of that pair for that tag, whichever of the calls below makes them. Counts and types must agree. Messages that
 * come before one with another tag that is asked for are taken into memory of the receiver, up to KOLO_UNEXPECTED_BYTES
 * (an environment variable; 64 MiB if it is not set); beyond that they wait, and with them what was sent after them.
 * Blocking: a ring of plain sends may wait for ever for its receives; use koloSendRecv, koloBatch or the Start forms.
 */

/** In the place of the rank of a receive: the message of whichever rank sends one first. */
#define KOLO_ANY_SOURCE (-1)

/** Sends to rank `to`; returns once the input may be changed, which may be before it has been received. */
koloResult_t koloSend(koloComm_t comm, const void *input, size_t count, koloDataType_t type, int to);

/** Receives exactly `count` elements from rank `from`. */
koloResult_t koloRecv(koloComm_t comm, void *output, size_t count, koloDataType_t type, int from);

/** Sends and receives at the same time. */
koloResult_t koloSendRecv(koloComm_t comm, const void *input, size_t send_count, int to, void *output,
                          size_t recv_count, int from, koloDataType_t type);

/** As koloSend, with a tag. */
koloResult_t koloSendTagged(koloComm_t comm, const void *input, size_t count, koloDataType_t type, int to,
                            uint32_t tag);

/**
 * As koloRecv, of a message with this tag, from rank `from` or KOLO_ANY_SOURCE. Writes the rank that sent it into *source,
 * which may be NULL.
 */
koloResult_t koloRecvTagged(koloComm_t comm, void *output, size_t count, koloDataType_t type, int from, uint32_t tag,
                            int *source);

/** A message that has come and that no receive has asked for. */
typedef struct {
    /** Rank that has sent it. */
    int source;
    uint32_t tag;
    size_t bytes;
    /** Type of its elements, a koloDataType_t; KOLO_UNSET where no receive of this communicator would take the message. */
    int type;
} koloMessage_t;

/**
 * Waits for a message from rank `from` or KOLO_ANY_SOURCE whose tag is first_tag to last_tag (0 to UINT32_MAX: any), and tells
 * what it is. The message stays, for the next receive that names its source and tag; another thread's may come first. Messages that
 * receives have asked for already are not seen. Gives up after timeout_ms, or, if that is KOLO_UNSET, after the time-out of the
 * communicator; then the communicator is aborted, as after every time-out. KOLO_UNSUPPORTED where the transport cannot tell (RDMA).
 * *message is left alone after an error.
 */
koloResult_t koloProbe(koloComm_t comm, int from, uint32_t first_tag, uint32_t last_tag, int64_t timeout_ms,
                       koloMessage_t *message);

/**
 * As koloProbe, but does not block: writes 1 into *found if such a message is there, else 0, and leaves *message alone then. A
 * message that was sent may take some calls to be seen.
 */
koloResult_t koloProbeNow(koloComm_t comm, int from, uint32_t first_tag, uint32_t last_tag, int *found,
                          koloMessage_t *message);

/** Starts a send; see koloAllReduceStart. Any number of sends and receives may be in progress. */
koloResult_t koloSendStart(koloComm_t comm, const void *input, size_t count, koloDataType_t type, int to, uint32_t tag,
                           koloRequest_t *request);

/** Starts a receive from rank `from` or KOLO_ANY_SOURCE; koloWaitSource tells who sent it. */
koloResult_t koloRecvStart(koloComm_t comm, void *output, size_t count, koloDataType_t type, int from, uint32_t tag,
                           koloRequest_t *request);

/** What a transfer does. */
typedef enum { KOLO_SEND = 0, KOLO_RECV = 1 } koloTransferKind_t;

/** One transfer of a batch. */
typedef struct {
    koloTransferKind_t kind;
    /** The other rank. */
    int peer;
    /** Only read if sent. */
    void *buffer;
    size_t count;
    koloDataType_t type;
} koloTransfer_t;

/** Runs all the transfers together, whatever their order: no pattern of them deadlocks. Blocks until all are done. */
koloResult_t koloBatch(koloComm_t comm, const koloTransfer_t *transfers, size_t count);

/** Starts all the transfers, at least one; the request is over when all are. The list is copied, the buffers stay. */
koloResult_t koloBatchStart(koloComm_t comm, const koloTransfer_t *transfers, size_t count, koloRequest_t *request);

/* ---------------------------------------------------------------------------------------------------- Memory -- */

/**
 * Memory that all transports can use without a copy of their own: aligned to pages. Plain memory works everywhere too.
 * The contents are undefined. *memory is NULL after an error, and for 0 bytes.
 */
koloResult_t koloMemAlloc(void **memory, size_t bytes);

/** Frees what koloMemAlloc gave. Nothing happens for NULL. */
koloResult_t koloMemFree(void *memory);

/**
 * Memory for buffers, zeroed and aligned to pages, that all ranks of a host reach directly ("symmetric"). Collective: all
 * ranks call it with the same number of bytes (else KOLO_USAGE on all), and it blocks until all have and the memory is
 * there. If a host has not got it, all ranks get KOLO_UNSUPPORTED, with the bytes wanted and available. Blocking calls on
 * this communicator in which all ranks' buffers lie in such memory, at whatever offsets, copy nothing in between:
 * all-reduce and reduce with inputs and outputs in it; reduce-scatter, all-gather, scatter, broadcast and all-to-all (not
 * in place) with inputs in it. Everything else works on it as on plain memory. *memory is NULL after an error.
 */
koloResult_t koloCommMemAlloc(koloComm_t comm, void **memory, size_t bytes);

/**
 * Gives back what koloCommMemAlloc gave; each rank when it likes, while no call uses the memory. Nothing happens for
 * NULL. What is not given back goes with koloCommDestroy.
 */
koloResult_t koloCommMemFree(koloComm_t comm, void *memory);

/** Memory made known to a communicator. */
typedef struct koloRegistration *koloRegistration_t;

/**
 * Makes memory known that will be used often. Shared memory and TCP have no use for it and do nothing; RDMA pins it, once
 * rather than with each message. Local. The memory must stay, mapped as it is, until koloCommDeregister or
 * koloCommDestroy, whichever is first. KOLO_TRANSPORT if it cannot be pinned, with what to do about it.
 */
koloResult_t koloCommRegister(koloComm_t comm, void *memory, size_t bytes, koloRegistration_t *registration);

/** Undoes koloCommRegister; *registration becomes NULL. Nothing happens if it is NULL. */
koloResult_t koloCommDeregister(koloComm_t comm, koloRegistration_t *registration);

#ifdef __cplusplus
}
#endif

#endif
