/*
 * kolo.h - the C interface of Kolo, a collective communication library.
 *
 * A communicator is a group of processes ("ranks", numbered from 0). All of its ranks make the same collective calls in
 * the same order, with equal counts, types, operators and roots. If calls differ, both sides report it (KOLO_MISMATCH). If
 * a process is lost, the others report that (KOLO_PEER_LOST). No call hangs for ever.
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
 *             and remedy. No function exits or aborts the process, handles or raises a signal (not even SIGPIPE), or
 *             prints, with one exception: a defect of Kolo itself is also described on standard error.
 * Errors      KOLO_USAGE, KOLO_UNSUPPORTED and KOLO_CONFIGURATION are returned before anything is sent, and leave the
 *             communicator usable. After any other error, no rank can use the communicator any more; destroy it.
 * Blocking    Calls block until this rank's part is done: its output is complete and its input may be changed. They give
 *             up after the time-out of the communicator. Calls ending in Start return at once; see koloWait.
 * Threads     Every function may be called from every thread at any time, with two limits: all ranks must make the
 *             calls of one communicator in the same order, and a communicator, request or block of memory must not be
 *             destroyed while another call uses it. koloCommAbort may run beside any other call.
 * Counts      Elements, never bytes. Sizes named "bytes" are bytes.
 * Buffers     Plain memory of any alignment, or memory of an NVIDIA GPU, given by its address; the caller has synchronised
 *             the streams that use it. Input and output may be the same (in place) where the description says so. Any
 *             other overlap of a call's buffers is KOLO_USAGE, and so is a length of more than PTRDIFF_MAX bytes.
 * fork        A communicator belongs to the process that made it. In a child made by fork, calls on it (koloCommAbort too)
 *             fail with KOLO_USAGE and do nothing; destroying and freeing succeed at once and leave the parent's
 *             communicator and memory alone. These calls succeed, and tell as little as if nothing had been called yet:
 *             koloTest, koloCommRank, koloCommSize, koloCommLocalRank, koloCommEpoch, koloCommRanksBefore, koloCommSlots,
 *             koloCommOwnShards, koloCommSummary, koloCommSettings, koloCommWaiting and koloCommGetAsyncError (which
 *             writes KOLO_USAGE). The child may make communicators of its own.
 * Cancelling  pthread_cancel takes effect after a call has returned: no thread ends inside Kolo. This holds for deferred
 *             cancellation, the default; a thread of type PTHREAD_CANCEL_ASYNCHRONOUS must not call Kolo.
 *
 * Results of each call, beside KOLO_SUCCESS
 * -----------------------------------------
 * Every call        KOLO_USAGE for arguments that make no sense, and in a child made by fork; KOLO_INTERNAL for a defect.
 *                   These calls return nothing else: koloGetVersion, koloTest, koloRequestFree, koloMemFree, koloCommRank,
 *                   koloCommSize, koloCommLocalRank, koloCommSummary, koloCommSettings, koloCommAbort, koloCommRevoke,
 *                   koloCommEpoch, koloCommRanksBefore, koloCommOwnShards, koloCommGetAsyncError (which writes the error
 *                   that it finds), koloCommMemFree, koloCommDeregister, koloCommDestroy, koloCommWaiting, koloCommSlots,
 *                   koloState... except Share and Fetch, and koloSurvivors... except Admit, Run and AllReduce.
 * koloStateFetch    KOLO_JOIN if the state has not arrived in time, and KOLO_CONFIGURATION for text that is no invitation.
 * koloCommInit...   KOLO_CONFIGURATION, KOLO_JOIN, KOLO_TRANSPORT, KOLO_SYSTEM; and KOLO_PEER_LOST, KOLO_TIMEOUT or
 *                   KOLO_ABORTED when a rank is lost or fails after all have joined.
 * Calls that block  KOLO_UNSUPPORTED, after which the communicator can be used; KOLO_MISMATCH, KOLO_PEER_LOST,
 *                   KOLO_TIMEOUT, KOLO_ABORTED, KOLO_TRANSPORT and KOLO_SYSTEM, after which it cannot be used any more.
 *                   These are collectives, messages, batches, probes, koloRun, koloWait, koloWaitSource, koloCommSplit,
 *                   koloCommGroup, koloCommMemAlloc and koloStateShare; koloCommSplit, koloCommGroup and koloCommMemAlloc
 *                   also return KOLO_JOIN and KOLO_CONFIGURATION.
 *                   After koloCommRevoke all of them return KOLO_REVOKED.
 * koloCommAgree, koloCommShrink, koloCommGrow, koloCommReplace: KOLO_FENCED, KOLO_MINORITY, KOLO_TIMEOUT, KOLO_UNSUPPORTED;
 *                   all but koloCommAgree also the results of koloCommInit. They work on a communicator on which calls
 *                   that block have failed. koloCommShrinkWithin also returns KOLO_ABORTED.
 * koloSurvivorsRun, koloSurvivorsAllReduce: the results of koloCommAgree and koloCommShrink, KOLO_REVOKED, KOLO_ABORTED, and
 *                   the step's own; koloSurvivorsAdmit: KOLO_FENCED and KOLO_MINORITY. After these errors the group can
 *                   still be used.
 * koloCommAccept    KOLO_UNSUPPORTED, KOLO_JOIN, KOLO_SYSTEM.
 * Calls with Start  KOLO_UNSUPPORTED; and the error of an earlier call: nothing is started on a failed communicator.
 * koloExplain       KOLO_UNSUPPORTED.
 * koloCommRegister  KOLO_TRANSPORT, after which the communicator can be used; and the error of an earlier call.
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

/** The result of a call. */
typedef enum {
    KOLO_SUCCESS = 0,
    /** An argument makes no sense (a null pointer, a root out of range), or this is a child made by fork. Nothing was sent. */
    KOLO_USAGE = 1,
    /** A setting or environment variable is missing or wrong. */
    KOLO_CONFIGURATION = 2,
    /** The ranks could not find each other in time, or did not agree on who is who. */
    KOLO_JOIN = 3,
    /** The ranks made different calls at the same point. */
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
    /** Too few ranks answer to go on. The others may be alive in another part of a network that has been cut. */
    KOLO_MINORITY = 14
} koloResult_t;

/** Writes the version of the library that is linked, in the form of KOLO_VERSION. */
koloResult_t koloGetVersion(int *version);

/** Returns a short text for a result, such as "peer lost". Never NULL. */
const char *koloGetErrorString(koloResult_t result);

/* --------------------------------------------------------------------------------------------- Communicators -- */

/** A communicator. */
typedef struct koloComm *koloComm_t;

/**
 * Returns the message of the communicator's last error, on whichever thread it occurred; or, if comm is NULL, of the last
 * error of the calling thread. An empty string if there was none. Never NULL. Successful calls do not clear it.
 * The text belongs to the calling thread and stays valid until that thread calls this function again.
 */
const char *koloGetLastError(koloComm_t comm);

/** Returns the rank that the last error is about (lost, mismatched, aborted), chosen as by koloGetLastError; -1 if none. */
int koloGetLastErrorPeer(koloComm_t comm);

/**
 * Returns the stable code of the last error, such as "K0401", chosen as by koloGetLastError; an empty string if there was
 * none. The message ends with the same code, and `kolo explain-error K0401` explains it. Never NULL, and valid for ever.
 */
const char *koloGetLastErrorCode(koloComm_t comm);

/** In a number of koloConfig_t: the environment or the default decides. */
#define KOLO_UNSET (-1)

/** How far the bits of a reduction may depend on the way in which it is computed. */
typedef enum {
    /** All ranks get the same bits, and so does every run with the same number of ranks and the same configuration. */
    KOLO_REPEATABLE = 0,
    /** The bits are also independent of algorithm, transport and message size. */
    KOLO_CANONICAL = 1
} koloDeterminism_t;

/**
 * Settings of a communicator. Always start from KOLO_CONFIG_INITIALIZER, so that programs keep working when fields are
 * added. A field that is NULL or KOLO_UNSET takes the value of the KOLO_* variable named beside it, then the default.
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
    /** KOLO_HOST_ID: a name for this host. Ranks with different names count as being on different hosts. */
    const char *host_id;
    /** KOLO_SOCKET_IFNAME: network interfaces to use, by prefix of their names; a leading "^" excludes them instead. */
    const char *socket_interfaces;
    /** KOLO_SOCKET_CONGESTION: TCP congestion control, or "system". */
    const char *socket_congestion;
    /** KOLO_TIMEOUT, here in milliseconds: a blocking call gives up after this time. Default: 10 minutes. */
    int64_t timeout_ms;
    /** KOLO_JOIN_TIMEOUT, here in milliseconds: how long to wait for all ranks to join. Default: 5 minutes. */
    int64_t join_timeout_ms;
    /** KOLO_SEGMENT_BYTES: bytes per segment of a long vector. Default: chosen by cost. */
    int64_t segment_bytes;
    /** KOLO_WINDOW: segments in flight. Default: chosen by cost. */
    int64_t window;
    /** KOLO_EXCHANGE_BYTES: calls inside one host use the shared-memory exchange up to this many bytes per rank; 0 = never. */
    int64_t exchange_bytes;
    /** KOLO_SPIN_US: microseconds that a waiting thread spins before it yields. */
    int64_t spin_us;
    /** KOLO_DETERMINISM: a koloDeterminism_t, or KOLO_UNSET. Default: KOLO_REPEATABLE. */
    int determinism;
    /** KOLO_PORT_RANGE: TCP ports to listen at, such as "40000-40099"; at least one for each process of a host. */
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
 * torchrun sets them, or the variables of Open MPI, MPICH, Slurm and so on. Blocks until all ranks have joined. If
 * KOLO_JOIN is set, the process joins as a newcomer: see koloCommInitInvitation. config may be NULL. *comm is NULL after
 * an error.
 */
koloResult_t koloCommInitEnv(koloComm_t *comm, const koloConfig_t *config);

/**
 * Joins the other ranks by URL: "tcp://host:port" (an address of rank 0's host and a free port there), "file:///path" (a
 * file that all ranks see; it need not exist), "multicast://239.1.2.3:port/job" or "env://". If rank and nranks are both -1, they
 * come from "?rank=R&world_size=N" in the URL, or from the environment.
 */
koloResult_t koloCommInitUrl(koloComm_t *comm, const char *url, int nranks, int rank, const koloConfig_t *config);

#define KOLO_UNIQUE_ID_BYTES 128

/** Identifies a communicator that is yet to be made. Plain bytes, which the program passes on by any means it has. */
typedef struct {
    unsigned char bytes[KOLO_UNIQUE_ID_BYTES];
} koloUniqueId;

/**
 * Makes an id for one communicator. Call it on the host that will run rank 0, best in rank 0's own process, and give the
 * 128 bytes to all ranks. The id holds an address of this host, a port that this process keeps free for rank 0 until
 * rank 0 has joined or this process ends, and a random secret: only processes that have the id can join.
 *
 * host: a name or address by which the other ranks reach this host; NULL for the address of the default route, or
 * 127.0.0.1 on a host without network.
 */
koloResult_t koloGetUniqueId(koloUniqueId *id, const char *host);

/** Joins by id. An id serves for one communicator. Blocks until all ranks have joined. */
koloResult_t koloCommInitRank(koloComm_t *comm, int nranks, const koloUniqueId *id, int rank,
                              const koloConfig_t *config);

/** The color of a rank that does not want to be in any new communicator. */
#define KOLO_NO_COLOR (-1)

/**
 * Splits a communicator: ranks that give the same color (0 or more) form a new communicator, ordered by key (of either
 * sign), then by rank. For KOLO_NO_COLOR, *result is NULL. Every rank calls it; blocks until all have. If one rank gives any
 * other color, every rank gets KOLO_USAGE, and the communicator can still be used.
 */
koloResult_t koloCommSplit(koloComm_t comm, int color, int key, koloComm_t *result);

/**
 * Makes a communicator of the listed ranks, in this order. Only these ranks call it, with the same list. Blocks until all
 * of them have.
 */
koloResult_t koloCommGroup(koloComm_t comm, const int *ranks, size_t count, koloComm_t *result);

/**
 * Waits a short time until all sent data has left, says goodbye to the other ranks and frees the communicator; *comm becomes
 * NULL. The last communicator of world rank 0, which carries the goodbyes, also waits for those of the other ranks. Waits at
 * most 5 s in all. Otherwise local: it does not wait for other ranks. Communicators that were split off it remain usable.
 * Nothing happens if *comm is NULL.
 * Requests of the communicator must still be given to koloWait or koloRequestFree.
 */
koloResult_t koloCommDestroy(koloComm_t *comm);

/**
 * Aborts the communicator on all ranks: every call in progress, and every later one, fails with KOLO_ABORTED and the reason
 * (which may be NULL). Returns at once. The communicator must still be destroyed.
 */
koloResult_t koloCommAbort(koloComm_t comm, const char *reason);

/**
 * Revokes the communicator on all ranks: every call in progress, and every later one, fails with KOLO_REVOKED (or with the
 * loss that came before), except koloCommAgree and koloCommShrink. Returns at once.
 */
koloResult_t koloCommRevoke(koloComm_t comm);

/**
 * Agrees with all live ranks on flags: *flags becomes the bitwise AND of the flags of all, the same on each of them.
 * takes_part (may be NULL) has room for one int per rank of the communicator; the ints of ranks that took part become 1, the
 * others 0. Works on a communicator that has failed. All live ranks call it, and they make their calls of it and of
 * koloCommShrink in the same order; blocks until all have.
 */
koloResult_t koloCommAgree(koloComm_t comm, uint64_t *flags, int *takes_part);

/**
 * Makes a communicator of the live ranks, in their order. All of them call it; blocks until all have. Works on a
 * communicator that has failed, and on a healthy one, which stays as it is; comm must still be destroyed in either case.
 * KOLO_FENCED if the others have gone on without this rank, KOLO_MINORITY if too few ranks answer.
 */
koloResult_t koloCommShrink(koloComm_t comm, koloComm_t *result);

/**
 * As koloCommAgree, but after limit_ms milliseconds it no longer waits for live ranks that have not called. They count as
 * having set no flag, and get the same answer when they call, so all ranks agree and a late rank delays no other.
 */
koloResult_t koloCommAgreeWithin(koloComm_t comm, uint64_t *flags, int *takes_part, int64_t limit_ms);

/**
 * As koloCommShrink, but if a live rank has not called after limit_ms milliseconds, all ranks get KOLO_ABORTED, the late
 * rank when it calls. They may then call it again.
 */
koloResult_t koloCommShrinkWithin(koloComm_t comm, int64_t limit_ms, koloComm_t *result);

/** Writes how many times the group has changed: each koloCommShrink, koloCommGrow and koloCommReplace adds one. */
koloResult_t koloCommEpoch(koloComm_t comm, uint64_t *epoch);

/** The entry in koloCommRanksBefore of a rank that was not there before. */
#define KOLO_NEWCOMER (-1)

/**
 * Writes, for each rank, its rank in the previous communicator, from which koloCommShrink, koloCommGrow or koloCommReplace
 * made this one; KOLO_NEWCOMER if it was not there. `ranks` has room for one int per rank of this communicator.
 */
koloResult_t koloCommRanksBefore(koloComm_t comm, int *ranks);

/* ------------------------------------------------------------------------------------------------- Newcomers -- */

/**
 * Makes an invitation to this communicator's group: a text that the program passes on by any means. Newcomers join with it
 * (koloCommInitInvitation) and wait at this rank's port, or at another rank's if this one dies, until the members
 * call koloCommGrow or koloCommReplace. Local; any rank may call it at any time. A process that has the text can become a
 * member, so keep it secret. It serves any number of newcomers, for as long as one of the ranks that it names (up to 16)
 * lives. Writes the text as koloCommSummary does; 4096 bytes are enough.
 */
koloResult_t koloCommAccept(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/**
 * Joins a running group by an invitation. Blocks until the members admit this newcomer, or until the last member that it
 * knows is gone; at most wait_ms milliseconds (KOLO_UNSET: as long as the group lives). slot: the only slot that the newcomer
 * accepts, or KOLO_UNSET for any. koloCommInitEnv does the same if the variables KOLO_JOIN (an invitation, or "file://PATH" of
 * a file with one) and KOLO_SLOT are set.
 */
koloResult_t koloCommInitInvitation(koloComm_t *comm, const char *invitation, int slot, int64_t wait_ms,
                                    const koloConfig_t *config);

/** Writes how many newcomers wait at this rank's port. Others may wait at the ports of other ranks. Local. */
koloResult_t koloCommWaiting(koloComm_t comm, int *count);

/**
 * Makes a communicator of the live ranks and of waiting newcomers, of at most `most` ranks in all. Ranks keep their order;
 * newcomers come last. All live ranks call it with the same `most`; blocks until all have. If a rank dies meanwhile, the call
 * goes on without it. After KOLO_FENCED and KOLO_MINORITY this rank must stop, since the others may have gone on without it.
 * Any other error comes to all ranks, and they may call it again. comm stays as it is in either case and must still be destroyed.
 */
koloResult_t koloCommGrow(koloComm_t comm, int most, koloComm_t *result);

/** As koloCommGrow, but newcomers take the slots of ranks that have been lost; KOLO_USAGE if no slot is free. */
koloResult_t koloCommReplace(koloComm_t comm, koloComm_t *result);

/**
 * Writes the slot of each rank: its rank in the first communicator of the group, or the slot of the rank that it has
 * replaced. `slots` has room for one int per rank of the communicator.
 */
koloResult_t koloCommSlots(koloComm_t comm, int *slots);

/** A record of the step that this rank's state belongs to, and of the communicator on which it was last shared. */
typedef struct koloState *koloState_t;

/** Memory that is part of a program's state. Names and lengths are the same on all ranks; parts do not overlap. */
typedef struct {
    /** Names the part in error messages. */
    const char *name;
    void *memory;
    size_t bytes;
} koloPart_t;

/** Creates a state. When the job starts, its version is step 0; the state of a newcomer has no version yet. */
koloResult_t koloStateCreate(koloComm_t comm, koloState_t *state);

/** Frees a state; *state becomes NULL. Nothing happens if it is NULL. The memory of the parts remains the program's. */
koloResult_t koloStateDestroy(koloState_t *state);

/** Writes the version: the step that the contents of this rank's memory belong to; KOLO_UNSET if it has none. */
koloResult_t koloStateGetVersion(koloState_t state, int64_t *version);

/** Declares that the memory now belongs to this step. */
koloResult_t koloStateSetVersion(koloState_t state, int64_t version);

/** Declares that the memory now belongs to the next step. */
koloResult_t koloStateAdvance(koloState_t state);

/**
 * Brings all ranks to the latest version: the ranks that have it send it to the others. If it has succeeded on this
 * communicator before, it costs one comparison. All ranks call it, with the same parts in the same order; blocks as collectives
 * do. Nothing else may use the parts meanwhile. After the loss of a rank it can be called again on the next communicator; data
 * that has arrived is kept. *received (may be NULL) becomes the number of bytes that this rank has received.
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

/** Returns the bytes of an element; 0 for a type that does not exist. */
size_t koloTypeBytes(koloDataType_t type);

/**
 * The operator of a reduction. Integers wrap; 16-bit floats are combined in 32 bits; minimum and maximum are NaN if either
 * value is.
 */
typedef enum {
    KOLO_SUM = 0,
    KOLO_PROD = 1,
    KOLO_MIN = 2,
    KOLO_MAX = 3,
    /** Sum divided by the number of ranks. Not for bool, nor for scans. */
    KOLO_AVG = 4,
    /** Each rank's values are multiplied by its own factor, then summed. Only in koloRun and koloStart, which take the factor. */
    KOLO_PREMUL_SUM = 5,
    /** Bitwise; not for floating point. */
    KOLO_BIT_AND = 6,
    KOLO_BIT_OR = 7,
    KOLO_BIT_XOR = 8,
    /** Logical, for every type; the result is 1 or 0. A single operand (one rank, the first of a scan) stays as it is. */
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
 * Writes which of the `shards` shards are this rank's own: `count` of them, from `first` on. Rank r has the shards from
 * r * shards / ranks up to the first of rank r + 1. There may be none.
 */
koloResult_t koloCommOwnShards(koloComm_t comm, int shards, int *first, int *count);

/**
 * Every rank gets the reduction of `shards` vectors of `count` elements: input holds the vectors of this rank's own shards
 * (koloCommOwnShards), one after another. The bits of the result depend on the shards alone, not on the number of ranks or
 * their distribution. KOLO_AVG divides by the number of shards, which is 1 to 16,384. Input and output must be in host
 * memory and must not overlap.
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
 * Every rank gets the blocks of all ranks, one after another: `count` elements each, nranks * count in output.
 * In place: input == output + rank * count elements.
 */
koloResult_t koloAllGather(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type);

/**
 * Rank r gets the reduction of all ranks' blocks r: nranks blocks of `count` elements in input, `count` in output.
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

/** Rank r gets the reduction over ranks 0 to r - 1; rank 0's output is unchanged. In place: output == input. */
koloResult_t koloExScan(koloComm_t comm, const void *input, void *output, size_t count, koloDataType_t type,
                        koloRedOp_t op);

/** Returns once every rank has called it. */
koloResult_t koloBarrier(koloComm_t comm);

/*
 * Blocks of unequal length, one after another. `counts` has one entry per rank. Not in place.
 */

/** Every rank gets the blocks of all ranks, counts[r] elements from rank r. All ranks pass the same counts. */
koloResult_t koloAllGatherV(koloComm_t comm, const void *input, void *output, const size_t *counts,
                            koloDataType_t type);

/** Rank r gets the reduction of all ranks' blocks r, of counts[r] elements. All ranks pass the same counts. */
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
 * A group of ranks that goes on when some of them die. It owns a communicator, and replaces it by one of the live ranks after a
 * loss. Its steps succeed on all live ranks or on none, and the live ranks repeat a step after a loss. All ranks create a
 * koloSurvivors_t, and make the same calls on it in the same order, one at a time. A call from within a step or a watcher, or
 * while another call runs, is KOLO_USAGE.
 */
typedef struct koloSurvivors *koloSurvivors_t;

/** How the members of a group have changed. Valid until the watcher has returned. */
typedef struct {
    /** How many times the members have changed, this change included. */
    uint64_t epoch;
    /** The ranks that have left, as numbered in the previous communicator. Empty on a newcomer, which does not know them. */
    const int *left;
    size_t left_count;
    /** The ranks that have come, as numbered now. */
    const int *came;
    size_t came_count;
    /** This rank's number now, and the number of ranks. */
    int rank;
    int size;
} koloChange_t;

/**
 * A step: makes calls on comm, which has the current members. Returns KOLO_SUCCESS, or the result of the first call that failed,
 * or a number of its own. A step may run several times, so it must not change its own inputs: its calls are out of place, or on
 * copies. Messages and started operations must be complete when it returns. It must not throw, nor leave by longjmp.
 */
typedef koloResult_t (*koloStep_t)(koloComm_t comm, void *context);

/** Is told of a change before the step begins (again), on the thread that calls koloSurvivorsRun. Must not throw, like a step. */
typedef void (*koloWatcher_t)(const koloChange_t *change, void *context);

/**
 * Creates a group, which takes *comm over; *comm becomes NULL if the call succeeds. A newcomer gives the communicator that it has
 * joined. `kolo run --elastic MIN:MAX` sets the smallest and largest number of ranks, unless the calls below do.
 */
koloResult_t koloSurvivorsCreate(koloComm_t *comm, koloSurvivors_t *group);

/**
 * Destroys a group with its communicator; *group becomes NULL. Nothing happens if it is NULL. From within a step or a watcher of
 * the group: KOLO_USAGE, and the group stays.
 */
koloResult_t koloSurvivorsDestroy(koloSurvivors_t *group);

/** Sets the smallest number of ranks (default 1): with fewer, calls fail with KOLO_MINORITY. The same on all ranks. */
koloResult_t koloSurvivorsAtLeast(koloSurvivors_t group, int ranks);

/**
 * Sets the largest number of ranks to which koloSurvivorsAdmit lets the group grow (default 0: it admits nobody). The same on
 * all ranks, newcomers included.
 */
koloResult_t koloSurvivorsUpTo(koloSurvivors_t group, int ranks);

/** Calls `watcher` with `context` when the members have changed, on a newcomer before its first step. NULL removes the watcher. */
koloResult_t koloSurvivorsOnChange(koloSurvivors_t group, koloWatcher_t watcher, void *context);

/**
 * Writes the communicator of the members of the last step. The group owns it, and it is valid until the next call on the group.
 * Calls on it are not protected as those of a step are: they may fail on some ranks and succeed on others.
 */
koloResult_t koloSurvivorsComm(koloSurvivors_t group, koloComm_t *comm);

/**
 * Runs `step` until it has succeeded on all members that are alive. Blocks as the step's calls do, and until all members have
 * finished it. With limit_ms (else KOLO_UNSET), the step ends on all ranks after that many milliseconds: its calls fail, and the
 * others no longer wait for a member that has not finished it.
 *
 * Either all live ranks get an error, or none does. Two kinds of failure are not repeated: a result that is no failure of the
 * communicator, such as KOLO_USAGE or a number of the step's own, and a failure after which no rank is missing. The rank where
 * it happened gets the result of its step, the others KOLO_REVOKED. After the limit, ranks get KOLO_TIMEOUT or KOLO_ABORTED. The
 * group can go on in these cases. KOLO_FENCED if the others have gone on without this rank; KOLO_MINORITY if too few ranks are
 * left, or too few answer.
 */
koloResult_t koloSurvivorsRun(koloSurvivors_t group, int64_t limit_ms, koloStep_t step, void *context);

/** Runs koloAllReduce as a step, over the members that are left. Out of place only. */
koloResult_t koloSurvivorsAllReduce(koloSurvivors_t group, int64_t limit_ms, const void *input, void *output, size_t count,
                                    koloDataType_t type, koloRedOp_t op);

/**
 * Takes in waiting newcomers between two steps, if there are fewer ranks than koloSurvivorsUpTo says. Costs nothing if no
 * newcomer waits. All members call it at the same point, and a newcomer begins there. A failure leaves the members as they are.
 */
koloResult_t koloSurvivorsAdmit(koloSurvivors_t group);

/**
 * Copies this rank's state if newcomers ask for it by koloStateFetch, and serves the copy to them while the program goes on. The
 * copy takes as much memory again until the newcomers have gone. All members call it right after koloSurvivorsAdmit, with the
 * memory of the state's version; nothing may change that memory during the call. Costs nothing while none asks. Local: it never
 * waits for others. *offered (may be NULL) becomes 1 if a copy was made: only where a newcomer has connected to this rank.
 */
koloResult_t koloStateOffer(koloState_t state, koloSurvivors_t group, const koloPart_t *parts, size_t count, int *offered);

/**
 * Fetches a copy of the members' state while they go on. A newcomer calls it before it joins by the same invitation; the first
 * koloStateShare then brings the changes made since. Creates *state if it is NULL, even if the call fails: a second call with
 * that state continues where the first ended. Blocks for limit_ms at most. *received (may be NULL) becomes the number of bytes
 * that have arrived.
 */
koloResult_t koloStateFetch(koloState_t *state, const char *invitation, int64_t limit_ms, const koloPart_t *parts, size_t count,
                            uint64_t *received);

/* ------------------------------------------------------------------------------ Information on a communicator -- */

/**
 * Writes into *result the error with which the next call on the communicator would fail, or KOLO_SUCCESS. With it, a program
 * that is not inside a call learns of a failure elsewhere; koloGetLastError(comm) then has the message. Returns at once while
 * all is well.
 */
koloResult_t koloCommGetAsyncError(koloComm_t comm, koloResult_t *result);

/** Writes the number of this rank, from 0. */
koloResult_t koloCommRank(koloComm_t comm, int *rank);

/** Writes the number of ranks. */
koloResult_t koloCommSize(koloComm_t comm, int *size);

/** Writes the number of this rank among the ranks of its host, from 0. */
koloResult_t koloCommLocalRank(koloComm_t comm, int *local_rank);

/**
 * Writes one line of text that says how the other ranks are reached, and why. Writes at most `bytes` bytes, the final 0
 * included, and into *needed (may be NULL) the bytes of the whole text. koloCommSettings and koloExplain do the same.
 */
koloResult_t koloCommSummary(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/** Writes the settings in force, one "KOLO_NAME=value" per line. */
koloResult_t koloCommSettings(koloComm_t comm, char *text, size_t bytes, size_t *needed);

/* ----------------------------------------------------------------------------------------- Asynchronous calls -- */

/** A collective, a send or a receive in progress. */
typedef struct koloRequest *koloRequest_t;

/*
 * These calls do the same as the calls without Start, but return at once. The buffers must stay, and must not be touched, until
 * koloWait has returned. Operations make progress even if no thread waits for them, and several may be in progress. All ranks
 * start them in the same order, and a call with Start does not match one without. *request is NULL after an error.
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

/* Blocks of unequal length. The counts are copied, so they need not outlive the call. */
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
 * Writes 1 into *done if the request is complete, successfully or not, else 0. Makes a little progress; does not block.
 * koloWait then returns the result and frees the request. A collective that needs a rank which has left is complete once
 * nothing has moved on the communicator for about a second. A send or receive stays incomplete then; koloWait returns its
 * error. The communicator's time-out does not apply to programs that poll.
 */
koloResult_t koloTest(koloRequest_t request, int *done);

/**
 * Waits for a request and frees it, whatever the result; *request becomes NULL. Gives up after timeout_ms, or, if that
 * is KOLO_UNSET, after the time-out of the communicator. As after every time-out, the communicator is then aborted, and
 * Kolo no longer touches the buffers. Succeeds at once if *request is NULL.
 */
koloResult_t koloWait(koloRequest_t *request, int64_t timeout_ms);

/**
 * As koloWait, and writes into *source the rank whose message a request of koloRecvStart has received; KOLO_ANY_SOURCE for
 * any other request. *source is unchanged after an error.
 */
koloResult_t koloWaitSource(koloRequest_t *request, int64_t timeout_ms, int *source);

/**
 * Frees a request without waiting; *request becomes NULL. The operation goes on: its buffers must stay until the
 * communicator is destroyed.
 */
koloResult_t koloRequestFree(koloRequest_t *request);

/** A collective call as a value. Always start from KOLO_CALL_INITIALIZER. */
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

/** Runs any of the collectives with equal blocks. Blocks. */
koloResult_t koloRun(koloComm_t comm, const koloCall_t *call);

/** Starts any of the collectives with equal blocks. */
koloResult_t koloStart(koloComm_t comm, const koloCall_t *call, koloRequest_t *request);

/** Writes as text the algorithm that a call would use, the alternatives and the reasons. Writes as koloCommSummary does. */
koloResult_t koloExplain(koloComm_t comm, const koloCall_t *call, char *text, size_t bytes, size_t *needed);

/* -------------------------------------------------------------------------------------------- Point to point -- */

/*
 * A message has a tag; calls that take none use 0. The i-th send from one rank to another with some tag matches the i-th
 * receive of that pair for that tag, whichever of the calls below makes them. Counts and types must agree. If a receive asks
 * for a message with another tag than those that come before it, the receiver buffers the earlier ones in its memory, up to
 * KOLO_UNEXPECTED_BYTES (an environment variable; 64 MiB if it is not set). Beyond that limit they wait at the sender, and
 * everything sent after them waits too. A ring of ranks that all call koloSend first may wait until the time-out; use
 * koloSendRecv, koloBatch or the Start forms.
 */

/** As the source of a receive: take the message of whichever rank sends one first. */
#define KOLO_ANY_SOURCE (-1)

/** Sends to rank `to`; returns once the input may be changed, possibly before the message has been received. */
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
 * As koloRecv, for a message with this tag, from rank `from` or KOLO_ANY_SOURCE. Writes the rank that sent it into *source,
 * which may be NULL.
 */
koloResult_t koloRecvTagged(koloComm_t comm, void *output, size_t count, koloDataType_t type, int from, uint32_t tag,
                            int *source);

/** A message that has arrived and that no receive has asked for. */
typedef struct {
    /** The rank that sent it. */
    int source;
    uint32_t tag;
    size_t bytes;
    /** Type of its elements, a koloDataType_t; KOLO_UNSET where no receive of this communicator would take the message. */
    int type;
} koloMessage_t;

/**
 * Waits for a message from rank `from` or KOLO_ANY_SOURCE whose tag is first_tag to last_tag (0 to UINT32_MAX: any), and
 * describes it in *message. The message itself stays for the next receive that names its source and tag, which may be one of
 * another thread. Messages that receives have already asked for are not seen. Gives up after timeout_ms, or, if that is KOLO_UNSET,
 * after the time-out of the communicator; then the communicator is aborted, as after every time-out. KOLO_UNSUPPORTED where the
 * transport cannot probe (RDMA). *message is unchanged after an error.
 */
koloResult_t koloProbe(koloComm_t comm, int from, uint32_t first_tag, uint32_t last_tag, int64_t timeout_ms,
                       koloMessage_t *message);

/**
 * As koloProbe, but does not block: writes 1 into *found if such a message is there; else it writes 0 and leaves *message
 * unchanged. It may take several calls until a message that was sent is seen.
 */
koloResult_t koloProbeNow(koloComm_t comm, int from, uint32_t first_tag, uint32_t last_tag, int *found,
                          koloMessage_t *message);

/**
 * Starts a send; see koloAllReduceStart. Up to 65,000 sends and receives of a communicator may be in progress, those of batches
 * included; KOLO_USAGE beyond.
 */
koloResult_t koloSendStart(koloComm_t comm, const void *input, size_t count, koloDataType_t type, int to, uint32_t tag,
                           koloRequest_t *request);

/** Starts a receive from rank `from` or KOLO_ANY_SOURCE; koloWaitSource tells which rank sent the message. */
koloResult_t koloRecvStart(koloComm_t comm, void *output, size_t count, koloDataType_t type, int from, uint32_t tag,
                           koloRequest_t *request);

/** The direction of a transfer. */
typedef enum { KOLO_SEND = 0, KOLO_RECV = 1 } koloTransferKind_t;

/** One transfer of a batch. */
typedef struct {
    koloTransferKind_t kind;
    /** The other rank. */
    int peer;
    /** A send only reads it. */
    void *buffer;
    size_t count;
    koloDataType_t type;
} koloTransfer_t;

/**
 * Runs all the transfers together, whatever their order: no pattern of them deadlocks. Blocks until all are done. koloSendStart
 * says how many may be in progress.
 */
koloResult_t koloBatch(koloComm_t comm, const koloTransfer_t *transfers, size_t count);

/**
 * Starts all the transfers, of which there must be at least one; the request is complete when all are. The list is copied; the
 * buffers must stay.
 */
koloResult_t koloBatchStart(koloComm_t comm, const koloTransfer_t *transfers, size_t count, koloRequest_t *request);

/* ---------------------------------------------------------------------------------------------------- Memory -- */

/**
 * Allocates memory, aligned to pages, that all transports can use without a copy of their own. Plain memory works everywhere
 * too. The contents are undefined. *memory is NULL after an error, and for 0 bytes.
 */
koloResult_t koloMemAlloc(void **memory, size_t bytes);

/** Frees memory of koloMemAlloc. Nothing happens for NULL. */
koloResult_t koloMemFree(void *memory);

/**
 * Allocates memory for buffers, zeroed and aligned to pages, that all ranks of a host reach directly ("symmetric").
 * Collective: all ranks call it with the same number of bytes (else KOLO_USAGE on all), and it blocks until all have and the
 * memory is there. If a host lacks the memory, all ranks get KOLO_UNSUPPORTED, with the bytes wanted and available. Blocking
 * calls on this communicator make no intermediate copy if all ranks' buffers lie in such memory, at any offsets: all-reduce
 * and reduce with inputs and outputs in it; reduce-scatter, all-gather, scatter, broadcast and all-to-all (not in place) with
 * inputs in it. Everything else works on it as on plain memory. *memory is NULL after an error.
 */
koloResult_t koloCommMemAlloc(koloComm_t comm, void **memory, size_t bytes);

/**
 * Frees memory of koloCommMemAlloc. Local; no call may use the memory at that time. Nothing happens for NULL. koloCommDestroy
 * frees the rest.
 */
koloResult_t koloCommMemFree(koloComm_t comm, void *memory);

/** Memory registered with a communicator. */
typedef struct koloRegistration *koloRegistration_t;

/**
 * Registers memory that will be used often. RDMA pins it once rather than with each message; shared memory and TCP need no
 * registration and do nothing. Local. The memory must stay mapped as it is until koloCommDeregister or koloCommDestroy,
 * whichever is first. KOLO_TRANSPORT if it cannot be pinned; the message has the remedy.
 */
koloResult_t koloCommRegister(koloComm_t comm, void *memory, size_t bytes, koloRegistration_t *registration);

/**
 * Undoes koloCommRegister; *registration becomes NULL. Nothing happens if it is NULL. comm may be NULL, after
 * koloCommDestroy.
 */
koloResult_t koloCommDeregister(koloComm_t comm, koloRegistration_t *registration);

#ifdef __cplusplus
}
#endif

#endif
