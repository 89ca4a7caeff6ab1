//! Every limit and time constant of the control plane, with its derivation.

use std::time::Duration;

/// Version of the protocol. Raised whenever a message changes; the preamble's own layout never changes.
pub(crate) const PROTOCOL: u32 = 7;

/// Most ranks of a job. The coordinator holds one descriptor and two small tasks per rank: 4096 of them stay well under
/// the usual descriptor limit of large systems, and an abort reaches all within some ten milliseconds.
pub const MAX_WORLD_SIZE: u32 = 4096;

/// Longest blob of one rank in [`Control::exchange`](crate::control::Control::exchange). A rank's addresses on all
/// transports take less than 2 KiB; the rest is room for growth.
pub const MAX_BLOB_BYTES: usize = 64 << 10;

/// All blobs of one exchange together: 4 KiB for each of the most ranks, 64 KiB each up to 256 ranks. The coordinator sends
/// this much to every member, so it bounds the coordinator's work as well as a member's memory.
pub const MAX_EXCHANGE_BYTES: usize = 16 << 20;

/// Communicators that a door names to one who was left behind: 10 bytes each, of a first frame.
pub(crate) const MAX_LEFT_BEHIND: usize = 256;

/// Longest text (reason, host name, operation) in a message; longer ones are cut by the sender.
pub(crate) const MAX_TEXT_BYTES: usize = 2 << 10;

/// A varint of 32 bits takes at most 5 bytes.
const VARINT_BYTES: usize = 5;

/// First frame of a rank: a few numbers, a host name and a job name. Strangers can make the coordinator set this much aside each.
pub(crate) const MAX_HELLO_FRAME: usize = 4 << 10;

/// A frame to the coordinator: one blob and one list of members, a few texts.
pub(crate) const MAX_FRAME_TO_COORDINATOR: usize =
    MAX_BLOB_BYTES + MAX_WORLD_SIZE as usize * VARINT_BYTES + 8 * MAX_TEXT_BYTES;

/// A frame from the coordinator: the blobs of an exchange with their lengths, or the welcome with all ranks' facts.
pub(crate) const MAX_FRAME_FROM_COORDINATOR: usize =
    MAX_EXCHANGE_BYTES + MAX_WORLD_SIZE as usize * VARINT_BYTES + 8 * MAX_TEXT_BYTES;

/// Names (of hosts, versions, jobs) are cut to this much.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// Source of a rank's place, as told to the coordinator; lists of hosts may be long.
pub(crate) const MAX_SOURCE_BYTES: usize = 1 << 10;

/// Bytes queued for one rank that does not read, before the coordinator gives it up: four of the largest frames.
pub(crate) const MAX_QUEUE_BYTES: usize = 4 * MAX_FRAME_FROM_COORDINATOR;

/// Exchanges that one rank may have open at a time: one per thread that creates a communicator.
pub(crate) const MAX_OPEN_EXCHANGES: usize = 256;

/// Failed exchanges and aborted communicators that are remembered for latecomers. Ids are not used twice, so
/// forgetting one costs a latecomer its own deadline, nothing more.
pub(crate) const MAX_REMEMBERED: usize = 1024;

/// Connections in the handshake at a time, beyond one per rank. When more come some are given up (`pending`): 128 let a
/// rank that needs 2 ms for its two round trips pass a flood of 60 000 connections a second.
pub(crate) const SPARE_HANDSHAKES: usize = 128;

/// Connections in the handshake at a time at most, however large the job is: what 1152 of them hold is 5 MiB at the very
/// worst, and the ranks of larger jobs wait their turn in the kernel's queue.
pub(crate) const MAX_HANDSHAKES: usize = 1024 + SPARE_HANDSHAKES;

/// Connections taken in one go, so that a flood does not hold up ranks that are members.
pub(crate) const ACCEPTS_AT_ONCE: usize = 16;

/// Before the next look at the port when there were no descriptors for what waits there.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// From a connection's first byte to its last byte of the handshake. Two round trips; a busy host with hundreds of
/// starting ranks needs up to about a second.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// One attempt to connect to one address: three SYNs are sent within it (at 0, 1 and 3 s).
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(3500);

/// Longest time for which rank 0 tries to bind a port that is taken, as it is for a moment between two jobs.
pub(crate) const BIND_PATIENCE: Duration = Duration::from_millis(1500);

/// Between two attempts to reach the coordinator, at first; grows by half each time.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(4);

/// Between two attempts, at most: 4096 ranks make 40 000 connection attempts a second, refused by the kernel.
pub(crate) const RETRY_MOST: Duration = Duration::from_millis(100);

/// Addresses of a member's door that are kept: more than any host has of use to others.
pub(crate) const MAX_DOOR_ADDRESSES: usize = 8;

/// A door's number, key and addresses, of which the longest (IPv6 with flow and scope) takes 33 bytes.
pub(crate) const MAX_DOOR_BYTES: usize = 32 + MAX_DOOR_ADDRESSES * 33;

/// Newcomers that wait at one door: their facts, of some 300 bytes each, fit into one blob when members tell each other who waits.
pub(crate) const MAX_LOBBY: usize = 64;

/// Doors that an invitation names: its text, of some 150 characters for each, stays short enough for a variable.
pub(crate) const MAX_ENTRANCES: usize = 16;

/// A frame between members: two sets of members as bits, and a value with a third.
pub(crate) const MAX_FRAME_BETWEEN_MEMBERS: usize =
    4 * (MAX_WORLD_SIZE as usize / 8) * 2 + 2 * MAX_TEXT_BYTES;

/// Between repetitions while members agree: a message over TCP is rarely lost, so this is for what connections lose that break.
pub(crate) const AGREEMENT_BEAT: Duration = Duration::from_millis(100);

/// Silences that a member without a quorum tolerates before it stops. A cut that is mended within them does no harm.
pub(crate) const STRANDED_SILENCES: u32 = 4;

/// Longest wait of a goodbye for the coordinator's answer.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait of a leaving rank until members have heard that it has given up, where no coordinator tells them. They hear it within
/// milliseconds unless they are stopped, and wait for it as long before they blame a rank.
pub(crate) const LAST_WORDS_TIMEOUT: Duration = Duration::from_millis(300);

/// Longest wait of the closing coordinator for the last messages to be read.
pub(crate) const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time for a member to pass a message of the coordinator on to another: the longest of 16 MiB at 0.3 MB/s.
pub(crate) const PASS_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait of a rank that gave up an exchange for the coordinator to say who was missing.
pub(crate) const VERDICT_TIMEOUT: Duration = Duration::from_millis(500);

const _: () = assert!(4 * MAX_NAME_BYTES + MAX_SOURCE_BYTES + MAX_DOOR_BYTES + 256 < MAX_HELLO_FRAME);
const _: () = assert!(10 * MAX_LEFT_BEHIND + 16 < MAX_HELLO_FRAME);
const _: () = assert!(MAX_HELLO_FRAME < MAX_FRAME_TO_COORDINATOR);
const _: () = assert!(MAX_FRAME_TO_COORDINATOR < MAX_FRAME_FROM_COORDINATOR);
const _: () = assert!(MAX_BLOB_BYTES <= MAX_EXCHANGE_BYTES);
const _: () = assert!(
    MAX_WORLD_SIZE as usize * (2 * MAX_NAME_BYTES + MAX_DOOR_BYTES + 64) < MAX_FRAME_FROM_COORDINATOR
);
const _: () = assert!(MAX_FRAME_FROM_COORDINATOR < u32::MAX as usize);

/// Time limits by which silence is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Each side sends something at least this often. One frame of five bytes per second and rank costs nothing.
    pub heartbeat: Duration,
    /// After this much silence a warning is logged. Ten missed heartbeats: more than a swapping host or a busy
    /// switch explains, less than a user's patience.
    pub suspect_after: Duration,
    /// After this much silence the peer is given up. A process stopped by a debugger or SIGSTOP is silent too, so
    /// this is long; a process that died is noticed at once by its closed connection, without this limit.
    pub dead_after: Duration,
    /// Whether a group that goes on after a loss gives up hosts whose kernels do not answer sooner than `dead_after` says.
    pub watches_hosts: bool,
    /// Longest wait of rank 0's goodbye for the others' goodbyes before it closes the coordinator.
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
