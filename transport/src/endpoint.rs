//! The [`Endpoint`] trait, which every transport implements: it moves bytes between two ranks and knows nothing about
//! collectives.
//!
//! # Contract
//!
//! 1. An [`Endpoint`] is one rank's end of a transport. It has one owner (`&mut self`), and never sleeps or blocks: the
//!    owner decides when to poll and how to wait. The exceptions are [`Endpoint::try_paths`], [`Endpoint::establish`]
//!    and dropping it.
//! 2. A [`Channel`] is a FIFO of messages between two ranks, one in each direction. The i-th message posted for
//!    sending meets the i-th receive that the peer posts. A channel has no tag matching, no wildcards and no
//!    reordering; channels are not ordered among each other. A receiver that posts no receive exerts back-pressure on
//!    that channel only.
//! 3. Connections are made on first use. The transport chooses who dials; both ends may post at the same time. A
//!    message may be posted before the peer exists.
//! 4. Every posted token completes exactly once: in the return value ([`Posted::Done`]) or in one [`Event`].
//! 5. The receiver checks the length and the tag of a message against those that it posted. A difference fails that
//!    token with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch), and the payload is not delivered.
//! 6. After a peer is lost, every present or future token that involves it fails with
//!    [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost). Operations with other peers go on.
//! 7. Bytes from the wire or from shared memory are hostile until checked: no index, length or count from a peer is
//!    used before its bounds are checked.
//! 8. In steady state, a message costs no allocation, no lock and no change of thread.
//! 9. A transport that [can probe](Caps::can_probe) lets its owner match messages by tag. A receive posted with
//!    [`OnMisfit::Return`] is conditional: it takes the next message only if tag and length are its own. If
//!    another message comes, this receive and all receives behind it on that channel come back in their order
//!    ([`Event::Returned`]), and one [`Event::Waiting`] after them describes the message that waits. The memory of
//!    the returned receives is as it was. The message stays where it is, whole, for the next receive that is posted. A
//!    post never returns either event.
//! 10. [`Endpoint::send_short`] and [`Endpoint::take_short`] are posts without tokens: they complete at once, in the
//!     order of the channel, or do nothing. They are optional, and a transport may decline any case that is not
//!     simple; an ordinary post then reports the reason.
//! 11. A rank may [expose](Endpoint::exposes) memory to a peer: it tells the peer in a message where the memory is. The
//!     peer [gets](Endpoint::post_get) it, and reports that in a message. Until that report, the memory stays as it is.
//!     A rank takes all exposed memory back when it gives up the peer or drops the endpoint; gets that are not complete
//!     by then fail.

use std::time::Instant;

use crate::arm::{Armed, ParkBy};
use crate::error::{Error, ErrorKind};
use crate::memory::{Backing, DeviceAccess, MemoryCounters, Registered};
use crate::shm::Exchange;
use crate::stage::{Stage, StageCaps};

/// A FIFO between this rank and `peer`, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// The rank at the other end.
    pub peer: u32,
    /// Number of the channel among those to that peer: less than [`Caps::channels_max`], small and dense.
    pub index: u16,
}

/// The caller's name for a posted message; each token comes back exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A contiguous range of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub ptr: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

/// Granularity at which [`Consumer`]s get pieces of a message, in bytes. All offsets are multiples of it, and so are
/// all lengths but the last. It is a cache line, so a reduction never sees a split element and can use aligned vector
/// access where the buffers are aligned.
pub const GRAIN_BYTES: usize = 64;

/// A function that consumes a message as it arrives, each byte once. The parts of a message that comes over several
/// connections may arrive out of order.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// `call(context, offset, data, len)`: bytes `offset..offset + len` of the message lie at `data` for the duration
    /// of the call.
    pub call: unsafe fn(context: *mut (), offset: usize, data: *const u8, len: usize),
    /// First argument of `call`.
    pub context: *mut (),
}

/// A function that makes a message as it leaves, each byte once and in order, so that data with gaps needs no copy.
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    /// `call(context, offset, to, len)`: writes bytes `offset..offset + len` of the message to `to`.
    pub call: unsafe fn(context: *mut (), offset: usize, to: *mut u8, len: usize),
    /// First argument of `call`.
    pub context: *mut (),
}

/// Destination of a received message.
#[derive(Clone, Copy, Debug)]
pub enum Sink<'a> {
    /// The message is written to these pieces, in place where the transport can.
    Place(&'a [Piece]),
    /// A consumer gets the message in pieces, straight from the shared slot or from a cache-sized staging buffer.
    Consume {
        /// Expected length in bytes.
        len: usize,
        /// Receives the pieces.
        consumer: Consumer,
    },
}

/// Fate of a posted receive if another message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMisfit {
    /// It fails: see rule 5.
    Fail,
    /// It comes back: see rule 9. If the transport cannot probe, it fails.
    Return,
}

/// Whether a posted operation has already completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// The operation has completed; no event follows.
    Done,
    /// An [`Event`] will report the completion.
    Pending,
}

/// Event that [`Endpoint::poll`] reports.
#[derive(Debug)]
pub enum Event {
    /// A send's source may be reused, or a receive is complete.
    Done(Token),
    /// The operation failed; its memory is no longer touched.
    Failed(Token, Error),
    /// A conditional receive did not fit the next message, or was queued behind one that did not. It may be posted
    /// again.
    Returned(Token),
    /// A message waits on a channel, and the conditional receives posted there did not fit it, or [`Endpoint::probe`]
    /// asked for it.
    Waiting(Envelope),
    /// A peer is lost. Reported once, after the failures of its tokens.
    Down {
        /// The lost peer's rank.
        peer: u32,
        /// The reason for the loss.
        cause: Error,
    },
    /// A condition that the user should know about although nothing has failed, for example a cable that was pulled.
    Warning(String),
}

/// Facts about a message before it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The channel on which it has come.
    pub on: Channel,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes, according to the sender.
    pub len: u64,
}

/// Condition on the messages that [`Endpoint::take_short`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fits {
    /// The tag to compare with.
    pub tag: u64,
    /// The bits of the tag that are compared.
    pub mask: u64,
    /// The greatest length in bytes.
    pub room: usize,
}

impl Fits {
    /// Returns whether a message of this tag and length fits.
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
    /// The message has been written to its place.
    Taken {
        /// Its tag.
        tag: u64,
        /// Its length in bytes.
        len: usize,
    },
    /// No message has come.
    NotYet,
    /// The caller must post a receive: the next message does not fit or is not short, a receive is posted already, or
    /// the transport cannot tell.
    Other,
}

/// Capabilities of a transport, as data, so that the runtime never asks for its name.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Name for people: "tcp", "shm".
    pub name: &'static str,
    /// Number of channels per peer.
    pub channels_max: u16,
    /// Longest message in bytes.
    pub message_max: usize,
    /// Messages up to this length in bytes complete at the sender without any action of the receiver, as long as the
    /// channel is otherwise empty. With 0, every send may wait for its receive.
    pub eager_max: usize,
    /// Bytes of staging memory that a connected channel may fill in one direction before its receiver acts.
    pub staging_per_channel: usize,
    /// Whether a waiting owner can sleep on a futex word (see [`Endpoint::arm`]).
    pub park_word: bool,
    /// Whether a waiting owner can sleep on a file descriptor.
    pub park_fd: bool,
    /// Whether [`OnMisfit::Return`] and [`Endpoint::probe`] are implemented.
    pub can_probe: bool,
    /// Whether [`Endpoint::cancel_recvs`] can return receives.
    pub can_cancel_recvs: bool,
    /// Whether [`Endpoint::post_send_packed`] is implemented.
    pub can_pack: bool,
    /// Capabilities of the endpoint's [stage](Endpoint::stage), if it has one.
    pub stage: Option<StageCaps>,
}

/// An endpoint's answer to the introduction of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The endpoint can reach the peer.
    Yes {
        /// Description for the summary: "same host, memfd", "192.0.2.1:4567 via eth0".
        how: String,
    },
    /// The endpoint cannot reach the peer.
    No {
        /// The reason in plain words: "different host".
        because: String,
    },
}

/// One of several paths on which long messages go to a peer at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    /// This rank's interface; empty if it is not known.
    pub interface: String,
    /// The peer's address on this path.
    pub remote: std::net::IpAddr,
    /// Bytes per second that one connection has carried lately, or 0 if none has been measured.
    pub bytes_per_second: f64,
    /// Bytes of long messages sent on this path.
    pub sent_bytes: u64,
    /// The reason why the path is not in use; `None` if it is in use.
    pub problem: Option<String>,
}

/// How an endpoint has paced long messages.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Paced {
    /// Number of times that a connection was paced.
    pub times: u64,
    /// The last limit of a connection, in bytes per second.
    pub bytes_per_second: f64,
    /// The system's refusal, if it has refused.
    pub problem: Option<String>,
}

/// One rank's end of a transport. The module documentation holds the contract.
pub trait Endpoint: Send + std::fmt::Debug {
    // For every owner.

    /// Returns the transport's capabilities.
    fn caps(&self) -> &Caps;

    /// Returns the bytes by which peers find this endpoint: opaque, at most 1 KiB. The control plane carries them to
    /// all ranks.
    fn address(&self) -> &[u8];

    /// Introduces a peer. The owner calls this once for every other rank of the communicator, before
    /// [`Endpoint::establish`].
    ///
    /// # Errors
    /// If the address is malformed.
    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error>;

    /// Sets up the resources that the introduced peers share (connections are made later, on first use). Blocks until
    /// done, `deadline` or `is_aborted` (asked several times a second). Every reachable peer calls it at about that time.
    ///
    /// # Errors
    /// If a peer does not show up in time, the owner gives up, or the system refuses.
    fn establish(&mut self, is_aborted: &dyn Fn() -> bool, deadline: Instant) -> Result<(), Error>;

    /// Sends a message each way over every path to these peers, before anything relies on the paths; the peers do the
    /// same at about the same time. Blocks until all paths are known to work or fail, or until `deadline`. Returns
    /// the peers that could not be reached, which are given up, with the reasons. Called before
    /// [`Endpoint::establish`], and only where [`Features::tries_paths`](crate::Features::tries_paths) is set.
    fn try_paths(&mut self, peers: &[u32], deadline: Instant) -> Vec<(u32, Error)> {
        let _ = (peers, deadline);
        Vec::new()
    }

    /// Tells the endpoint that ranks of this host share processors, and with them caches. Called before
    /// [`Endpoint::exchange`] and the first message.
    fn share_processors(&mut self) {}

    /// Returns the host's exchange for short calls, if this transport has one and all ranks of the world are on this
    /// host. Called once, after [`Endpoint::establish`]. The exchange stays usable after the endpoint is dropped.
    fn exchange(&mut self) -> Option<Exchange> {
        None
    }

    /// Posts a message for sending. After [`Posted::Done`] the source may be reused at once.
    ///
    /// # Errors
    /// If the peer is lost or the arguments exceed [`Caps`]; the token is then spent.
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
    /// token completes or comes back, or the endpoint is dropped.
    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error>;

    /// Asks for one [`Event::Waiting`] about the next message of a channel on which no receive is posted. Posting a
    /// receive there cancels the request. The end of the connection is not reported here: the next post on the
    /// channel meets it.
    ///
    /// # Errors
    /// If the transport cannot probe, the peer is lost, or the channel is beyond [`Caps`].
    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        Err(unused(self.caps(), on, "this transport cannot tell what waits on a channel"))
    }

    /// Cancels [`Endpoint::probe`].
    fn cancel_probe(&mut self, _on: Channel) {}

    /// Checks that a peer is still there, for an owner that waits for something from it without a posted receive.
    /// Never blocks. A transport that can open the link on which the peer's end would show opens it; one that cannot
    /// tell returns `Ok`.
    ///
    /// # Errors
    /// [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost) if the peer has ended or closed its endpoint.
    fn look_for(&mut self, _peer: u32) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the stage that this rank shares with all introduced peers that it can reach, once
    /// [`Endpoint::establish`] has succeeded; `None` where [`Caps::stage`] is `None`.
    fn stage(&self) -> Option<&dyn Stage> {
        None
    }

    /// Returns the stage for publishing.
    fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        None
    }

    /// Returns whether this rank listens to `peer`, by a posted receive or a [probe](Endpoint::probe), on an open
    /// connection that ends only after the peer's last bytes have arrived. Other signs of the peer's departure may
    /// overtake these bytes; while this returns `true`, those signs prove nothing. Never blocks.
    fn is_hearing(&self, _peer: u32) -> bool {
        false
    }

    /// Returns whether a message to `peer` may be outstanding. Never blocks and makes no progress.
    fn is_sending(&self, _peer: u32) -> bool {
        true
    }

    /// Returns whether the data that this rank has sent to `peer` is being retransmitted without any acknowledgement.
    /// The peer's kernel acknowledges even while its process is stopped, so the network between the two is cut. For
    /// error texts only, since networks heal. Never blocks and makes no progress.
    fn is_unheard(&self, _peer: u32) -> bool {
        false
    }

    /// Returns the length of packets to `peer` that are lost although short ones arrive, once some calls have proven it.
    fn black_hole(&mut self, _peer: u32) -> Option<u32> {
        None
    }

    /// Returns the paths on which long messages go to `peer`, even those that do not work, if there are several.
    fn rails(&self, _peer: u32) -> Vec<Rail> {
        Vec::new()
    }

    /// Sets how many bytes per second the path to `peer` carries, which all ranks know alike. Connections to the peer
    /// may then size their buffers for the bandwidth-delay product. Never blocks.
    fn expect(&mut self, _peer: u32, _bytes_per_second: f64) {}

    /// Returns how this endpoint has paced long messages to several hosts at the same time. `None` if it has not.
    fn paced(&self) -> Option<&Paced> {
        None
    }

    /// Returns the peers that this endpoint reaches through a relay, since neither side can dial the other.
    fn relayed(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Announces an orderly departure: the owner will [abort](Endpoint::abort) and drop this endpoint next, but
    /// messages reported done must still reach their peers. Never blocks; dropping the endpoint may block, for a
    /// second at most. Nothing may be posted afterwards.
    fn leave(&mut self) {}

    /// Registers memory until [`Endpoint::deregister`] or the end of this endpoint, so that messages from and to it
    /// need no registration of their own.
    ///
    /// # Errors
    /// If the memory cannot be registered; it is then unchanged.
    ///
    /// # Safety
    /// Until then the memory stays mapped as it is, and `backing` describes it truly.
    unsafe fn register(&mut self, memory: Piece, backing: Backing<'_>) -> Result<Registered, Error> {
        let _ = (memory, backing);
        Ok(Registered::NotNeeded("the processor copies; no device needs to know the memory"))
    }

    /// Ends the registration of exactly this memory.
    fn deregister(&mut self, _memory: Piece) {}

    /// Announces messages from and to parts of this memory until [`Endpoint::reclaim`]. A transport that registers
    /// memory then registers all of it once, when the first of these messages comes, instead of each part by itself.
    ///
    /// # Safety
    /// The memory stays mapped until it is reclaimed, or everything is aborted.
    unsafe fn lend(&mut self, _memory: Piece) {}

    /// Ends one [`Endpoint::lend`] of exactly this memory.
    fn reclaim(&mut self, _memory: Piece) {}

    /// Returns how devices reach memory, if this transport uses devices that read and write it by themselves.
    fn device_access(&self) -> Option<DeviceAccess> {
        None
    }

    /// Returns counters of this endpoint's work with the caller's memory so far. All are zero where nothing is
    /// registered.
    fn memory_counters(&self) -> MemoryCounters {
        MemoryCounters::default()
    }

    /// Makes progress without blocking and appends the events that have happened. Returns whether anything moved,
    /// even if only bytes.
    fn poll(&mut self, events: &mut Vec<Event>) -> bool;

    /// Announces that the owner is about to sleep, so that peers wake it. The owner must poll once more between this
    /// call and sleeping, and call [`Endpoint::disarm`] after it wakes.
    fn arm(&mut self, by: ParkBy) -> Armed<'_>;

    /// Cancels [`Endpoint::arm`]. The owner must poll before it arms again: the cause of its waking, such as a
    /// readable descriptor, persists until then.
    fn disarm(&mut self);

    /// Wakes threads of the owner that sleep on what [`Endpoint::arm`] has returned. For owners whose threads share the
    /// endpoint. Where it does nothing, such a thread sleeps until its next event or its limit.
    fn rouse(&mut self) {}

    /// Gives up on a peer: every token that involves it fails with `cause`, and its connections are closed.
    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>);

    /// Fails all outstanding tokens without touching memory again, and closes all connections at once.
    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>);

    /// Returns whether every posted message has left this rank's memory and reached the peer or the kernel, so that
    /// dropping the endpoint loses no message already reported done.
    fn is_flushed(&self) -> bool;

    // For owners that match messages themselves, as the MPI library does.

    /// Sends a short message at once if nothing stands in the way. Returns `false` if nothing has been sent; the
    /// caller then posts the message.
    ///
    /// # Safety
    /// The memory that `src` names is readable. An empty message may name any address.
    unsafe fn send_short(&mut self, on: Channel, tag: u64, src: Piece) -> bool {
        let _ = (on, tag, src);
        false
    }

    /// Takes the next message of a channel at once, if it fits and has arrived whole. A pending [`Endpoint::probe`]
    /// stays pending.
    ///
    /// # Safety
    /// `to` is valid for writes of `fits.room` bytes.
    unsafe fn take_short(&mut self, on: Channel, fits: Fits, to: *mut u8) -> Short {
        let _ = (on, fits, to);
        Short::Other
    }

    /// As [`Endpoint::take_short`], but a consumer gets the message, in one call.
    ///
    /// # Safety
    /// The consumer may be called with up to `fits.room` bytes.
    unsafe fn consume_short(&mut self, on: Channel, fits: Fits, consumer: Consumer) -> Short {
        let _ = (on, fits, consumer);
        Short::Other
    }

    /// Posts a message of `len` bytes that a packer makes.
    ///
    /// # Errors
    /// As [`Endpoint::post_send`], and if the transport has no use for packers.
    ///
    /// # Safety
    /// The packer's context and the memory that it reads stay valid, and the memory unwritten, until the token
    /// completes or the endpoint is dropped.
    unsafe fn post_send_packed(
        &mut self,
        on: Channel,
        tag: u64,
        len: usize,
        packer: Packer,
        token: Token,
    ) -> Result<Posted, Error> {
        let _ = (tag, len, packer, token);
        Err(unused(self.caps(), on, "this transport sends no messages that are packed on their way"))
    }

    /// Returns whether the peer of a channel gets memory of this process that is exposed to it: see rule 11.
    fn exposes(&mut self, _on: Channel) -> bool {
        false
    }

    /// Returns whether a message of `len` bytes, which its sender has exposed on this channel, should be taken with
    /// [`Endpoint::post_get`] rather than sent and received. The time until the next receive or get on the channel is
    /// complete may influence later answers.
    fn prefers_get(&mut self, _on: Channel, _len: usize) -> bool {
        false
    }

    /// Gets memory that the peer has exposed on this channel, from address `from` in the peer's process on, as much as
    /// `dst` has room for. Gets are ordered neither among each other nor with the messages of the channel.
    ///
    /// If the kernel does not read that memory, the get alone fails, with [`ErrorKind::System`](crate::ErrorKind), and the
    /// peer has to send the message.
    ///
    /// # Errors
    /// As [`Endpoint::post_recv`], and if the peer exposes no memory to this rank.
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`], for the memory of `dst`.
    unsafe fn post_get(
        &mut self,
        on: Channel,
        from: u64,
        dst: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let _ = (from, dst, token);
        Err(unused(self.caps(), on, "this transport gets no memory of its peers"))
    }

    /// Returns the conditional receives of a channel ([`Event::Returned`] alone), unless the message of the first has
    /// begun to arrive. The result is whether no receive is posted any more.
    fn cancel_recvs(&mut self, _on: Channel, _events: &mut Vec<Event>) -> bool {
        false
    }
}

/// Returns the error of a method that a transport does not have.
fn unused(caps: &Caps, on: Channel, what: &str) -> Error {
    Error::new(ErrorKind::Usage, caps.name, Some(on.peer), what)
}
