//! The one trait every transport implements: bytes between two ranks, nothing about collectives.
//!
//! # Contract
//!
//! 1. An [`Endpoint`] is one rank's end of a transport. It has one owner (`&mut self`), never blocks (but for
//!    [`Endpoint::establish`]) and never sleeps: the owner decides when to poll and how to wait.
//! 2. A [`Channel`] is a FIFO of messages between two ranks, one in each direction. The i-th message posted for
//!    sending meets the i-th posted receive of the peer. No tags, no wildcards, no reordering inside a channel;
//!    no order between channels. A receive that is not posted exerts back-pressure on its own channel only.
//! 3. Connections are made on first use. The choice of dialer and acceptor is the transport's affair; both ends posting at the same time
//!    is the normal case. A message may be posted before the peer exists.
//! 4. Every posted token completes exactly once: in the return value ([`Posted::Done`]) or in one [`Event`].
//! 5. The length and the tag of a message are checked at the receiver against what it posted. A difference is
//!    [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) on that token; the payload is not delivered.
//! 6. After a peer is lost every token that involves it, present or future, fails with
//!    [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost); other peers go on.
//! 7. Bytes from the wire or from shared memory are hostile until checked: no index, length or count from a peer
//!    is used before it is bounded.
//! 8. No allocation, lock or thread hop per message in steady state.
//! 9. A transport that [can probe](Endpoint::can_probe) lets its owner match messages by tag: a receive posted with
//!    [`Endpoint::post_recv_if`] takes the next message only if tag and length are its own. Meets it another, then it
//!    and all receives behind it on that channel come back ([`Event::Returned`], in their order), and after them one
//!    [`Event::Waiting`] tells what waits. Their memory may have been written to. The message stays where it is, whole,
//!    for the next receive that is posted. Neither event ever comes out of a post.
//! 10. [`Endpoint::send_short`] and [`Endpoint::take_short`] are posts without tokens: they do all at once, in the order of the channel, or
//!     nothing. A transport need not have them, and says no to whatever is not simple; a post then tells why.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::error::Error;
use crate::memory::{Backing, DeviceAccess, MemoryCounters, Registered};
use crate::shm::Exchange;
use crate::stage::{Stage, StageCaps};
use crate::sys::atomic::AtomicU32;

/// A FIFO between this rank and `peer`, in both directions. `index` is small and dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// The rank at the other end.
    pub peer: u32,
    /// Which of the channels to that peer, less than [`Caps::channels_max`].
    pub index: u16,
}

/// The caller's name for a posted message; comes back exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A run of bytes of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub ptr: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

/// Consumers get pieces of a message at offsets that are multiples of this many bytes, and of lengths that are
/// multiples of it but for the last: a cache line, so that a reduction never sees a split element and can use
/// aligned vector access where the buffers are aligned.
pub const GRAIN_BYTES: usize = 64;

/// A function that eats a message as it arrives, each byte once. A message that comes over several connections need not arrive in
/// order.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// `call(context, offset, data, len)`: bytes `offset..offset + len` of the message lie at `data`, for the
    /// duration of the call.
    pub call: unsafe fn(context: *mut (), offset: usize, data: *const u8, len: usize),
    /// Handed to `call`.
    pub context: *mut (),
}

/// Destination of a received message.
#[derive(Clone, Copy, Debug)]
pub enum Sink<'a> {
    /// It is put into these pieces, in place where the transport can.
    Place(&'a [Piece]),
    /// It is eaten in pieces: straight from the shared slot, or from a cache-sized staging buffer.
    Consume {
        /// Expected length in bytes.
        len: usize,
        /// The consumer of its pieces.
        consumer: Consumer,
    },
}

/// Whether a posted operation is already over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// It is over; no event will follow.
    Done,
    /// An [`Event`] will tell.
    Pending,
}

/// Event that [`Endpoint::poll`] reports.
#[derive(Debug)]
pub enum Event {
    /// A send's source may be reused, or a receive is complete.
    Done(Token),
    /// The operation failed; its memory is no longer touched.
    Failed(Token, Error),
    /// A receive that was posted on condition did not fit, or was behind one that did not. It may be posted again.
    Returned(Token),
    /// The next message of a channel is another than the receives that were posted for it, or nothing is posted and
    /// [`Endpoint::probe`] asked for it.
    Waiting(Envelope),
    /// A peer is lost. Reported once, after the failures of its tokens.
    Down {
        /// Its rank.
        peer: u32,
        /// Why.
        cause: Error,
    },
    /// Nothing has failed, but somebody should know: a cable was pulled.
    Warning(String),
}

/// Facts about a message before it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The channel it has come on.
    pub on: Channel,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes, as the sender says.
    pub len: u64,
}

/// Messages that [`Endpoint::take_short`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fits {
    /// Their tag.
    pub tag: u64,
    /// The bits of the tag that count.
    pub mask: u64,
    /// Their length at most.
    pub room: usize,
}

impl Fits {
    /// Whether a message is one of them.
    #[inline]
    #[must_use]
    pub const fn takes(&self, tag: u64, len: usize) -> bool {
        (tag ^ self.tag) & self.mask == 0 && len <= self.room
    }
}

/// Answer of [`Endpoint::take_short`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Short {
    /// The message is in its place.
    Taken {
        /// Its tag.
        tag: u64,
        /// Its length.
        len: usize,
    },
    /// None has come.
    NotYet,
    /// The next message does not fit or is not short, or something is posted, or the transport cannot tell: a receive is to be posted.
    Other,
}

/// A transport's capabilities, as data. The runtime never asks for a name.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Name for people: "tcp", "shm".
    pub name: &'static str,
    /// Number of channels per peer.
    pub channels_max: u16,
    /// Longest message in bytes.
    pub message_max: usize,
    /// Messages up to this length complete at the sender without the receiver's doing, as long as the channel
    /// is otherwise empty. 0 = every send may wait for its receive.
    pub eager_max: usize,
    /// Bytes of staging this endpoint may use per connected channel.
    pub staging_per_channel: usize,
    /// Whether a waiting owner can sleep on a futex word (see [`Endpoint::arm`]).
    pub park_word: bool,
    /// Whether a waiting owner can sleep on a file descriptor.
    pub park_fd: bool,
    /// Whether payload is placed without an intermediate copy of the transport's own.
    pub in_place: bool,
    /// Capabilities of its [stage](Endpoint::stage), if it has one.
    pub stage: Option<StageCaps>,
}

/// How the owner is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkBy {
    /// On a futex word; only if every endpoint that is not [idle](Armed::Idle) offers one.
    Word,
    /// With `poll(2)` on file descriptors.
    Fd,
}

/// Something to sleep on.
#[derive(Clone, Copy, Debug)]
pub enum Armed<'a> {
    /// Nothing is outstanding here; this endpoint will not wake anybody.
    Idle,
    /// Sleep while the word holds this value.
    Word(&'a AtomicU32, u32),
    /// Sleep until the descriptor is readable.
    Fd(BorrowedFd<'a>),
}

/// An endpoint's answer when it is told of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It can talk to that peer.
    Yes {
        /// For the summary: "same host, memfd", "192.0.2.1:4567 via eth0".
        how: String,
    },
    /// It cannot, for this reason.
    No {
        /// Plain words: "different host".
        because: String,
    },
}

/// One of the ways on which long messages go to a peer at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    /// This rank's interface; empty if it is not known.
    pub interface: String,
    /// The peer's address there.
    pub remote: std::net::IpAddr,
    /// Bytes per second that one connection has carried lately, or 0 if none has been measured.
    pub bytes_per_second: f64,
    /// Bytes of long messages sent on it.
    pub sent_bytes: u64,
    /// Why it is not used, if it is not.
    pub problem: Option<String>,
}

/// One rank's end of a transport. See the module for the contract.
pub trait Endpoint: Send + std::fmt::Debug {
    /// Its capabilities.
    fn caps(&self) -> &Caps;

    /// How peers find this endpoint: opaque and at most 1 KiB; the control plane carries it to all ranks.
    fn address(&self) -> &[u8];

    /// Tells of a peer. Called once for every other rank of the communicator, before [`Endpoint::establish`].
    ///
    /// # Errors
    /// If the address is malformed.
    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error>;

    /// Sets up what the introduced peers share (not the connections, which are lazy). Blocks until done or
    /// `deadline`; every reachable peer calls it at about the same time.
    ///
    /// # Errors
    /// If a peer does not show up in time, or the system refuses.
    fn establish(&mut self, deadline: Instant) -> Result<(), Error>;

    /// Has a message go each way over every path to these peers, before anything relies on them; they do the same at about
    /// the same time. Blocks until it is known, or `deadline`. Those that it failed with, which are given up. Only where
    /// [`Features::tries_paths`](crate::Features::tries_paths) says so; before [`Endpoint::establish`].
    fn try_paths(&mut self, peers: &[u32], deadline: Instant) -> Vec<(u32, Error)> {
        let _ = (peers, deadline);
        Vec::new()
    }

    /// Tells that the ranks of this host share processors, and with them caches. Before [`Endpoint::exchange`] and the first message.
    fn share_processors(&mut self) {}

    /// The short exchange of a host, if this transport has one and all ranks of the world are on this host. Once, after
    /// [`Endpoint::establish`]; it stays usable without the endpoint.
    fn exchange(&mut self) -> Option<Exchange> {
        None
    }

    /// Posts a message. With [`Posted::Done`] the source may be reused at once.
    ///
    /// # Errors
    /// If the peer is lost or the arguments are beyond [`Caps`]; the token is then spent.
    ///
    /// # Safety
    /// `src` itself and the memory it names stay valid, and the memory unwritten, until the token completes or
    /// the endpoint is dropped.
    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error>;

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`Endpoint::post_send`].
    ///
    /// # Safety
    /// The pieces (the slice itself too) or the consumer's context stay valid and otherwise untouched until the
    /// token completes or the endpoint is dropped.
    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        token: Token,
    ) -> Result<Posted, Error>;

    /// Sends a short message at once, if it need not wait for anything. `false` if nothing has been sent: it is to be posted.
    ///
    /// # Safety
    /// The memory that `src` names is readable. An empty message may name any.
    unsafe fn send_short(&mut self, on: Channel, tag: u64, src: Piece) -> bool {
        let _ = (on, tag, src);
        false
    }

    /// Takes the next message of a channel at once if it fits and all of it is there. [`Endpoint::probe`] stays as it is.
    ///
    /// # Safety
    /// `to` is writable for the room that `fits` names.
    unsafe fn take_short(&mut self, on: Channel, fits: Fits, to: *mut u8) -> Short {
        let _ = (on, fits, to);
        Short::Other
    }

    /// Whether [`Endpoint::post_recv_if`] and [`Endpoint::probe`] do what they say.
    fn can_probe(&self) -> bool {
        false
    }

    /// Posts a receive that is taken back if another message comes: see rule 9. A transport that cannot probe
    /// treats it as [`Endpoint::post_recv`].
    ///
    /// # Errors
    /// As [`Endpoint::post_recv`].
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`], until the token completes or comes back.
    unsafe fn post_recv_if(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.post_recv(on, tag, dst, token) }
    }

    /// Asks for one [`Event::Waiting`] about the next message of a channel on which nothing is posted for receiving.
    /// A post there takes it back. The end of the connection is no event: whoever posts meets it.
    ///
    /// # Errors
    /// If the transport cannot probe, the peer is lost, or the channel is beyond [`Caps`].
    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        let detail = "this transport cannot tell what waits on a channel";
        Err(Error::new(crate::error::ErrorKind::Usage, self.caps().name, Some(on.peer), detail))
    }

    /// Takes [`Endpoint::probe`] back.
    fn cancel_probe(&mut self, _on: Channel) {}

    /// Whether a peer is still there: for owners that wait for something of it on which nothing is posted here. Never blocks.
    /// A transport that can make the link on which the peer's end shows, makes it; one that cannot tell says yes.
    ///
    /// # Errors
    /// [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost) if it has ended or closed its endpoint.
    fn look_for(&mut self, _peer: u32) -> Result<(), Error> {
        Ok(())
    }

    /// The memory that this rank shares with others of its host, after [`Endpoint::establish`]: with all that it was introduced
    /// to and can reach. None where [`Caps::stage`] is none.
    fn stage(&self) -> Option<&dyn Stage> {
        None
    }

    /// The same, to publish there.
    fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        None
    }

    /// Whether something is posted for receiving, or [probed](Endpoint::probe) for, on an open connection on which the end of `peer`
    /// arrives behind its last bytes. Other signs that the peer has left may come before these; as long as this is so, nothing follows
    /// from it. Never blocks, makes no progress.
    fn is_hearing(&self, _peer: u32) -> bool {
        false
    }

    /// Whether what this rank has sent to `peer` is sent again and again and never acknowledged: the peer's kernel does so
    /// even while its process is stopped, so something between the two is cut. For texts only, since networks heal. Never
    /// blocks, makes no progress.
    fn is_unheard(&self, _peer: u32) -> bool {
        false
    }

    /// The ways on which long messages go to `peer`, those that do not work among them, where there is more than one.
    fn rails(&self, _peer: u32) -> Vec<Rail> {
        Vec::new()
    }

    /// Says how many bytes per second the way to `peer` carries, as all ranks know it. Connections to it may then make room for what
    /// a long way holds. Never blocks.
    fn expect(&mut self, _peer: u32, _bytes_per_second: f64) {}

    /// Peers that this end reaches by a relay, since neither can dial the other.
    fn relayed(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The owner leaves in good order, and will [abort](Endpoint::abort) and drop this endpoint next: messages reported done
    /// must reach their peers nevertheless. Never blocks; dropping may, for a second at most. Nothing may be posted after.
    fn leave(&mut self) {}

    /// Registers memory until [`Endpoint::deregister`] or the end of this endpoint: messages from and to it need no
    /// registration of their own.
    ///
    /// # Errors
    /// If it cannot be registered; nothing is then.
    ///
    /// # Safety
    /// The memory stays mapped, as it is, for as long; it is what `backing` says.
    unsafe fn register(&mut self, memory: Piece, backing: Backing<'_>) -> Result<Registered, Error> {
        let _ = (memory, backing);
        Ok(Registered::NotNeeded("the processor copies; no device needs to know the memory"))
    }

    /// Ends a registration of exactly this memory.
    fn deregister(&mut self, _memory: Piece) {}

    /// Tells that messages from and to parts of this memory will come until [`Endpoint::reclaim`]. A transport that registers
    /// memory then registers all of it when the first of them comes, once, in place of each part.
    ///
    /// # Safety
    /// The memory stays mapped until it is reclaimed, or everything is aborted.
    unsafe fn lend(&mut self, _memory: Piece) {}

    /// Ends one [`Endpoint::lend`] of exactly this memory.
    fn reclaim(&mut self, _memory: Piece) {}

    /// How devices get at memory, if it has such that read and write it by themselves.
    fn device_access(&self) -> Option<DeviceAccess> {
        None
    }

    /// Work with the caller's memory so far. All zero where nothing is registered.
    fn memory_counters(&self) -> MemoryCounters {
        MemoryCounters::default()
    }

    /// Makes progress without blocking and appends what happened. Returns whether anything moved, bytes included.
    fn poll(&mut self, events: &mut Vec<Event>) -> bool;

    /// Declares that the owner is about to sleep, so that peers wake it. The owner must poll once more between
    /// this call and sleeping, and call [`Endpoint::disarm`] after.
    fn arm(&mut self, by: ParkBy) -> Armed<'_>;

    /// Takes [`Endpoint::arm`] back. The owner polls before it arms again: what has woken it, such as a readable descriptor, stays
    /// until then.
    fn disarm(&mut self);

    /// Gives up on a peer: every token that involves it fails with `cause`, and its connections are closed.
    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>);

    /// Fails all outstanding tokens without touching memory again, and closes all connections at once.
    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>);

    /// Whether everything posted has left this rank's memory and reached the peer or the kernel, so that the
    /// endpoint may be dropped without losing a message already reported done.
    fn is_flushed(&self) -> bool;
}
