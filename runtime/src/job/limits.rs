//! Every limit and time constant of the control plane, with its derivation.

use std::time::Duration;

/// Version of the protocol. It is raised whenever a message changes; the preamble's own layout never changes.
pub const PROTOCOL: u32 = 15;

/// Largest number of ranks in a job. The coordinator holds one descriptor and two small tasks per rank: 4096 of them
/// stay well under the usual descriptor limit of large systems, and an abort reaches all ranks within some ten
/// milliseconds.
pub const MAX_WORLD_SIZE: u32 = 4096;

/// Longest blob of one rank in [`Control::all_gather`](crate::control::Control::all_gather). A rank's addresses on all
/// transports take less than 2 KiB; the rest is room for growth.
pub const MAX_BLOB_BYTES: usize = 64 << 10;

/// Longest total of all blobs in one all-gather: 4 KiB per rank at the largest world size, 64 KiB per rank up to 256
/// ranks. The coordinator sends this much to every member, so this limit bounds both the coordinator's work and a
/// member's memory.
pub const MAX_GATHERED_BYTES: usize = 16 << 20;

/// Largest number of communicators that a listener names to a rank that was left behind: 10 bytes each in the first
/// frame.
pub(crate) const MAX_LEFT_BEHIND: usize = 256;

/// Number of decided agreements of a job that a listener tells of after its process has left the job. A member that has
/// not heard of a decision has not voted in the next agreement of that communicator.
pub(crate) const MAX_DECIDED: usize = 4;

/// Longest text (reason, host name, operation) in a message. The sender cuts longer texts.
pub(crate) const MAX_TEXT_BYTES: usize = 2 << 10;

/// A varint of 32 bits takes at most 5 bytes.
const VARINT_BYTES: usize = 5;

/// Longest first frame of a rank: a few numbers, a host name and a job name. Each unauthenticated connection can make
/// the coordinator set this much memory aside.
pub(crate) const MAX_HELLO_FRAME: usize = 4 << 10;

/// Longest frame to the coordinator: one blob, one list of members and a few texts.
pub(crate) const MAX_FRAME_TO_COORDINATOR: usize =
    MAX_BLOB_BYTES + MAX_WORLD_SIZE as usize * VARINT_BYTES + 8 * MAX_TEXT_BYTES;

/// Longest frame from the coordinator: the blobs of an all-gather with their lengths, or the welcome with all ranks'
/// facts.
pub(crate) const MAX_FRAME_FROM_COORDINATOR: usize =
    MAX_GATHERED_BYTES + MAX_WORLD_SIZE as usize * VARINT_BYTES + 8 * MAX_TEXT_BYTES;

/// Longest name of a host, version or job. Longer ones are cut.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// Longest description of where a rank's number came from, as told to the coordinator. Lists of hosts may be long.
pub(crate) const MAX_SOURCE_BYTES: usize = 1 << 10;

/// Most bytes queued for one rank that does not read before the coordinator gives it up: four of the longest frames.
pub(crate) const MAX_QUEUE_BYTES: usize = 4 * MAX_FRAME_FROM_COORDINATOR;

/// Most all-gathers that one rank may have open at a time: one for each thread that creates a communicator.
pub(crate) const MAX_OPEN_GATHERS: usize = 256;

/// Failed all-gathers and aborted communicators that are remembered for latecomers. Ids are not reused, so when one is
/// forgotten, a latecomer merely waits for its own deadline.
pub(crate) const MAX_REMEMBERED: usize = 1024;

/// Most connections in the handshake at a time, beyond one per rank. If more arrive, some are dropped (`pending`). With
/// 128, a rank that needs 2 ms for its two round trips still gets through a flood of 60 000 connections a second.
pub(crate) const SPARE_HANDSHAKES: usize = 128;

/// Most connections in the handshake at a time, however large the job is. 1152 of them hold 5 MiB at worst, and the
/// ranks of larger jobs wait in the kernel's queue.
pub(crate) const MAX_HANDSHAKES: usize = 1024 + SPARE_HANDSHAKES;

/// Most connections accepted in one go, so that a flood does not hold up ranks that are members.
pub(crate) const ACCEPTS_AT_ONCE: usize = 16;

/// Pause before the next accept after descriptors ran out.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Longest handshake, from a connection's first byte to the last byte of the handshake. It takes two round trips; a
/// busy host with hundreds of starting ranks needs up to about a second.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest attempt to connect to one address. The kernel sends three SYNs within it (at 0, 1 and 3 s).
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(3500);

/// Longest time that rank 0 keeps trying to bind a port that is in use, as a port is for a moment between two jobs.
pub(crate) const BIND_PATIENCE: Duration = Duration::from_millis(1500);

/// Pause between two attempts to reach the coordinator, at first. It grows by half each time.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(4);

/// Longest pause between two attempts. With 4096 ranks, it means 40 000 connection attempts a second, which the kernel
/// refuses.
pub(crate) const RETRY_MOST: Duration = Duration::from_millis(100);

/// Most addresses of a member's listener that are kept: more than a host has that are useful to others.
pub(crate) const MAX_LISTENER_ADDRESSES: usize = 8;

/// Longest description of a listener: its number, its key and its addresses. The longest address (IPv6 with flow and
/// scope) takes 33 bytes.
pub(crate) const MAX_LISTENER_BYTES: usize = 32 + MAX_LISTENER_ADDRESSES * 33;

/// Most newcomers that wait at one listener. Their facts, of some 300 bytes each and twice that at most, fit into one
/// blob when members tell each other who is waiting.
pub(crate) const MAX_WAITING_NEWCOMERS: usize = 64;

/// Longest silence of a newcomer that fetches a copy of the state, and longest time for one answer to it. It says
/// something at every beat. A newcomer that was away for longer connects again, and continues where it was.
pub(crate) const FETCHER_TIMEOUT: Duration = Duration::from_secs(10);

/// Age of the last word of the newcomers that fetch a copy of the state, beyond which it is not given to a further one:
/// five beats. The newcomers for which it was made may be gone, and it grows old.
pub(crate) const COPY_UNHEARD: Duration = Duration::from_secs(1);

/// Most copies of its state that a member keeps for newcomers: the one that is served, and the one before, which some
/// may still be fetching. Each takes as much memory as the state.
pub(crate) const MAX_COPIES: usize = 2;

/// Most listeners that an invitation names. Its text, of some 150 characters per listener, stays short enough for a
/// variable.
pub(crate) const MAX_MEMBER_ADDRESSES: usize = 16;

/// Longest frame between members: two sets of members as bits, and a value with a third set.
pub(crate) const MAX_FRAME_BETWEEN_MEMBERS: usize =
    4 * (MAX_WORLD_SIZE as usize / 8) * 2 + 2 * MAX_TEXT_BYTES;

/// Interval of repetitions while members agree. TCP rarely loses a message, so repetitions only replace messages lost
/// with a broken connection.
pub(crate) const AGREEMENT_BEAT: Duration = Duration::from_millis(100);

/// Number of `silent_after` periods that a member without a quorum waits before it stops. A network cut that is
/// repaired within them does no harm.
pub(crate) const STRANDED_SILENCES: u32 = 4;

/// Longest wait for the coordinator's answer to a goodbye.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time that a leaving rank waits until members have heard that it has given up, if no coordinator tells them.
/// They hear it within milliseconds unless they are stopped, and they wait as long for it before they blame a rank.
pub(crate) const ABORT_DELIVERY_TIMEOUT: Duration = Duration::from_millis(300);

/// Time within which the coordinator echoes an abort to the rank that has sent it. After that, the rank tells the other
/// members itself. A coordinator of thousands of ranks answers within some ten milliseconds; a false alarm costs a few
/// connections.
pub(crate) const ABORT_ECHO: Duration = Duration::from_millis(100);

/// Longest time that the closing coordinator waits for its last messages to be read.
pub(crate) const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time for a member to pass a message of the coordinator on to another member: 16 MiB, the longest message, at
/// 0.3 MB/s.
pub(crate) const FORWARD_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time that a rank which gave up an all-gather waits for the coordinator to say who was missing.
pub(crate) const VERDICT_TIMEOUT: Duration = Duration::from_millis(500);

const _: () = assert!(4 * MAX_NAME_BYTES + MAX_SOURCE_BYTES + MAX_LISTENER_BYTES + 256 < MAX_HELLO_FRAME);
const _: () = assert!(10 * MAX_LEFT_BEHIND + 16 < MAX_HELLO_FRAME);
// A decision has a bit for each rank, in words of 64, and less than 100 bytes besides.
const _: () = assert!(MAX_DECIDED * (MAX_WORLD_SIZE as usize / 64 * 10 + 100) < MAX_HELLO_FRAME);
const _: () = assert!(MAX_HELLO_FRAME < MAX_FRAME_TO_COORDINATOR);
const _: () = assert!(MAX_FRAME_TO_COORDINATOR < MAX_FRAME_FROM_COORDINATOR);
const _: () = assert!(MAX_BLOB_BYTES <= MAX_GATHERED_BYTES);
const _: () =
    assert!(MAX_WAITING_NEWCOMERS * (MAX_NAME_BYTES + MAX_LISTENER_BYTES + 128) + 128 < MAX_BLOB_BYTES);
const _: () = assert!(
    MAX_WORLD_SIZE as usize * (2 * MAX_NAME_BYTES + MAX_LISTENER_BYTES + 128) < MAX_FRAME_FROM_COORDINATOR
);
const _: () = assert!(MAX_FRAME_FROM_COORDINATOR < u32::MAX as usize);

/// Time limits for deciding that a silent peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Each side sends something at least this often. A frame of five bytes per second and rank costs next to nothing.
    pub heartbeat: Duration,
    /// After this much silence a warning is logged. Ten missed heartbeats are more than a swapping host or a busy
    /// switch explains, and less than a user's patience.
    pub suspect_after: Duration,
    /// After this much silence the peer is given up. The limit is long because a process stopped by a debugger or
    /// SIGSTOP is silent too. A process that died is noticed at once by its closed connection, without this limit.
    pub dead_after: Duration,
    /// Whether a group that goes on after a loss gives up a host whose kernel does not answer earlier than
    /// `dead_after`.
    pub watches_hosts: bool,
    /// Longest time that rank 0's goodbye waits for the others' goodbyes before it closes the coordinator.
    pub linger: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            suspect_after: Duration::from_secs(10),
            dead_after: Duration::from_secs(60),
            watches_hosts: true,
            linger: Duration::from_secs(5),
        }
    }
}
