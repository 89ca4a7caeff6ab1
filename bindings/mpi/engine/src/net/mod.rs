//! Messages between ranks: MPI's matching over Kolo's transports.
//!
//! Channel 0 of a pair carries *heads* (short messages, and announcements of long ones) in the order in which they were sent. The 64 bits
//! of a transport message's tag are the envelope, so a short message has no other header. A rank probes channel 0 of every peer and takes
//! each head as it comes: into the buffer of the receive that it matches, or into memory of its own. The sender of a long message
//! announces it there. Once a receive has matched it, the receiver gets it from the sender's memory, if the transport can do that and it
//! proves quicker, and answers that it has; otherwise the answer asks for the data, which go over channel 1 in the order of the answers.
//!
//! One lock guards all of this state. Threads that wait poll; while the program is inside a collective, a thread of the library polls.

mod body;
mod cancel;
mod claims;
mod direct;
mod eager;
mod exposed;
mod links;
mod matching;
mod overdue;
mod poll;
mod rest;
mod servant;
mod source;
mod wait;
mod wire;

pub use body::{Completion, Elements, Finished, Recv, Sink};
pub use direct::Awaited;
pub(crate) use links::close;
pub use links::open;
pub use matching::{Claimed, Found, Wanted};
pub use servant::{Absence, expect_threads, serve_windows};
pub use source::Source;
pub use wait::{
    forsake, look, poll_once, sleeps, wait_for, wait_for_receive, wait_to_find, wait_until, wait_until_all,
};

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, OnceLock};

use kolo_transport::{Endpoint, Event, Unpoisoned};

use crate::error::{Class, Outcome, fail};
use matching::Mailbox;
use wire::{Head, Parked, Slot};

/// Hashes the numbers of contexts, which are assigned in order.
#[derive(Debug, Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// The longest message of elements with gaps that is packed before it is sent. The transport packs longer ones on their way.
const PACKED_BYTES: usize = 8 << 10;

/// The state of all messages of this process.
pub struct Net {
    rank: u32,
    ends: Vec<Box<dyn Endpoint>>,
    /// For each rank, the endpoint that reaches it.
    via: Vec<Option<usize>>,
    /// For each rank, who takes its next head.
    heads: Vec<Head>,
    /// The ranks whose heads are [`Head::Resting`].
    resting: Vec<u32>,
    /// For each rank, whether its last message was exactly as long as its receive; then the next one may be too.
    fitting: Vec<bool>,
    /// For each lost rank, the reason.
    lost: Vec<Option<Box<str>>>,
    boxes: HashMap<u32, Mailbox, BuildHasherDefault<Plain>>,
    /// The messages for which probes wait.
    probed: Vec<Wanted>,
    #[allow(clippy::vec_box, reason = "a slot stays where it is while a transport has it")]
    slots: Vec<Box<Slot>>,
    free: Vec<u32>,
    /// Long messages whose receivers have not answered.
    parked: HashMap<u64, Parked>,
    next_parked: u64,
    /// Numbers of announced messages that were given up, with the receivers, which may still ask for them.
    withheld: HashMap<u64, u32>,
    events: Vec<Event>,
    /// Memory for short messages of elements with gaps.
    packed: Box<[u8]>,
    counters: Counters,
    /// Handler of messages for windows.
    on_window: Option<fn(&mut Self, u32, &[u8])>,
}

/// Counts of messages sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages sent.
    pub sent: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Messages received.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Messages that arrived before their receives were posted.
    pub unexpected: u64,
}

/// The number of incomplete receives and sends. Changed under the lock, and read without it.
static PENDING: AtomicUsize = AtomicUsize::new(0);

static NET: OnceLock<Mutex<Net>> = OnceLock::new();

/// Locks the messages of this process.
///
/// # Errors
/// Before MPI is initialized.
pub fn net() -> Outcome<MutexGuard<'static, Net>> {
    match NET.get() {
        Some(net) => Ok(net.lock().unpoisoned()),
        None => fail(Class::Other, "MPI is not initialized"),
    }
}

impl Net {
    fn new(rank: u32, ends: Vec<Box<dyn Endpoint>>, via: Vec<Option<usize>>) -> Self {
        let mut net = Self {
            rank,
            ends,
            heads: vec![Head::Taken; via.len()],
            resting: Vec::new(),
            fitting: vec![true; via.len()],
            lost: via.iter().map(|_| None).collect(),
            via,
            boxes: HashMap::default(),
            probed: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            parked: HashMap::new(),
            next_parked: 0,
            withheld: HashMap::new(),
            events: Vec::new(),
            packed: vec![0; PACKED_BYTES].into(),
            counters: Counters::default(),
            on_window: None,
        };
        for peer in 0..net.via.len() as u32 {
            net.watch(peer);
        }
        net
    }

    /// Returns whether all sent data has left.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.ends.iter().all(|end| end.is_flushed())
    }

    /// Returns the counts of messages so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the world ranks that are lost, as far as this process knows.
    #[must_use]
    pub fn lost(&self) -> Vec<u32> {
        (0..).zip(&self.lost).filter(|(_, why)| why.is_some()).map(|(rank, _)| rank).collect()
    }

    /// Returns the numbers of posted receives and of unexpected messages.
    #[must_use]
    pub fn queued(&self) -> (u64, u64) {
        let lengths = self.boxes.values().map(Mailbox::lengths);
        lengths.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Sets the handler of messages for windows.
    pub fn handle_windows(&mut self, handler: fn(&mut Self, u32, &[u8])) {
        self.on_window = Some(handler);
    }

    /// Drops the mailbox of a communicator's context if it is empty.
    pub fn forget(&mut self, context: u32) {
        if self.boxes.get(&context).is_some_and(Mailbox::is_idle) {
            self.boxes.remove(&context);
        }
    }

    /// Leaves all peers in good order.
    pub fn close(&mut self) {
        for end in &mut self.ends {
            end.leave();
        }
        self.ends.clear();
        self.via.iter_mut().for_each(|via| *via = None);
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").field("rank", &self.rank).finish_non_exhaustive()
    }
}
