//! Messages between ranks: MPI's matching over Kolo's transports.
//!
//! Channel 0 of a pair carries heads in the order in which they were sent; the 64 bits of a message's tag are its envelope, so a
//! short message has no other header. A rank probes channel 0 of every peer and takes each message when it comes: into the
//! buffer of the receive that it fits, or into memory of its own. Longer messages announce themselves there, and wait for the
//! receiver's answer; their bytes go over channel 1, in the order of the answers.
//!
//! One lock holds everything. A waiting thread polls; a thread of the library's own does while the program is inside a collective.

mod body;
mod direct;
mod links;
mod matching;
mod rest;
mod servant;
mod wait;
mod wire;

pub use body::{Completion, Finished, Recv, Sink};
pub use direct::Awaited;
pub(crate) use links::close;
pub use links::open;
pub use matching::{Claimed, Found};
pub use servant::{Absence, expect_threads, serve_windows};
pub use wait::{nap, poll_once, sleeps, wait_for_receive, wait_until, wait_until_all};
pub use wire::Source;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kolo_transport::{Endpoint, Event};

use crate::error::{Class, Outcome, fail};
use matching::Mailbox;
use wire::{Head, Parked, Slot};

/// Spreads the numbers of contexts, which the ranks give away in order.
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

/// The messages of this process.
pub struct Net {
    rank: u32,
    ends: Vec<Box<dyn Endpoint>>,
    /// Which endpoint reaches a rank.
    via: Vec<Option<usize>>,
    /// Observer of the next head of each rank.
    heads: Vec<Head>,
    /// Those that a thread has looked for.
    resting: Vec<u32>,
    /// Whether the last message of a rank was as long as its receive had room: the next may be, too.
    fitting: Vec<bool>,
    /// Why a rank can not be reached any more.
    lost: Vec<Option<Box<str>>>,
    boxes: HashMap<u32, Mailbox, BuildHasherDefault<Plain>>,
    #[allow(clippy::vec_box, reason = "a slot stays where it is while a transport has it")]
    slots: Vec<Box<Slot>>,
    free: Vec<u32>,
    /// Long messages whose receivers have not answered.
    parked: HashMap<u64, Parked>,
    next_parked: u64,
    events: Vec<Event>,
    counters: Counters,
    /// Handler of messages for windows.
    on_window: Option<fn(&mut Self, u32, &[u8])>,
}

/// Counts of messages that have come and gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Messages that came before their receives.
    pub unexpected: u64,
}

/// Receives and sends that are not over. Changed under the lock, and read without it.
static PENDING: AtomicUsize = AtomicUsize::new(0);

static NET: OnceLock<Mutex<Net>> = OnceLock::new();

/// The messages of this process, locked.
///
/// # Errors
/// Before they are there.
pub fn net() -> Outcome<MutexGuard<'static, Net>> {
    match NET.get() {
        Some(net) => Ok(net.lock().unwrap_or_else(PoisonError::into_inner)),
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
            slots: Vec::new(),
            free: Vec::new(),
            parked: HashMap::new(),
            next_parked: 0,
            events: Vec::new(),
            counters: Counters::default(),
            on_window: None,
        };
        for peer in 0..net.via.len() as u32 {
            net.watch(peer);
        }
        net
    }

    /// Whether everything that was sent has left.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.ends.iter().all(|end| end.is_flushed())
    }

    /// Counts of messages so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Ranks of the world that are lost, as far as this one knows.
    #[must_use]
    pub fn lost(&self) -> Vec<u32> {
        (0..).zip(&self.lost).filter(|(_, why)| why.is_some()).map(|(rank, _)| rank).collect()
    }

    /// Receives without messages, and messages without receives.
    #[must_use]
    pub fn queued(&self) -> (u64, u64) {
        let lengths = self.boxes.values().map(Mailbox::lengths);
        lengths.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Has messages for windows handled.
    pub fn handle_windows(&mut self, handler: fn(&mut Self, u32, &[u8])) {
        self.on_window = Some(handler);
    }

    /// Forgets what has come for a communicator.
    pub fn forget(&mut self, context: u32) {
        if self.boxes.get(&context).is_some_and(Mailbox::is_idle) {
            self.boxes.remove(&context);
        }
    }

    /// Leaves in good order.
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
