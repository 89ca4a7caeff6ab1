//! A lane: a queue pair and its outstanding requests.

use std::collections::VecDeque;

use kolo_verbs::{
    Access, Address, CompletionQueue, Error, Flags, Local, Operation, QueuePair, QueuePairSpec, Reliability,
    Remote, Report, Send,
};

use super::rails::Rail;
use super::registrations::Use;
use crate::endpoint::Token;

/// Maximum number of requests without a report. Their entries of the queue become free only with a report.
const UNREPORTED_MAX: u64 = 32;

/// Number of receives that are posted again at a time. At worst, almost as many are missing.
pub(super) const RECEIVES_AT_ONCE: u32 = 8;

/// Identifiers of requests: this bit marks receives; the other bits hold the lane and the count.
const RECEIVE: u64 = 1 << 63;
const LANE_SHIFT: u32 = 48;

/// Number of bytes that a request should hold inline: a header and a few cache lines. More would enlarge the entries
/// of the queue.
const INLINE_BYTES: u32 = 192;

/// Resources that a completed request gives back.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Length of the request.
    pub(super) bytes: usize,
    /// The region that it was read from, if the memory is the caller's.
    pub(super) held: Option<Use>,
    /// Number of the piece of the bounce buffer that it was read from.
    pub(super) chunk: Option<u8>,
    /// Token of the message that completes with it.
    pub(super) token: Option<Token>,
}

#[derive(Debug)]
struct Posted {
    count: u64,
    settled: Settled,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Lane {
    pair: QueuePair,
    /// Number of the lane in the link, which is part of its requests' identifiers.
    number: u8,
    /// Number of this side's rail.
    pub(super) rail: u8,
    first_packet: u32,
    depth: u64,
    inline_bytes: usize,
    posted: u64,
    reaped: u64,
    reported: u64,
    under_way: VecDeque<Posted>,
    pub(super) bytes_under_way: usize,
    /// Number of receives to be posted again.
    taken: u32,
    /// Whether a packet of the peer's has come through the lane.
    pub(super) probed: bool,
}

/// Kind and lane of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Receive { lane: u8 },
    Send { lane: u8, count: u64 },
}

impl Request {
    pub(super) fn of(id: u64) -> Self {
        let lane = (id >> LANE_SHIFT) as u8 & 0x7f;
        if id & RECEIVE != 0 {
            Self::Receive { lane }
        } else {
            Self::Send { lane, count: id & ((1 << LANE_SHIFT) - 1) }
        }
    }
}

impl Lane {
    /// Makes the queue pair, binds it to its port, and posts `receives` of the `receive_depth` possible receives.
    pub(super) fn new(
        number: u8,
        (rail_number, rail): (u8, &Rail),
        queue: &CompletionQueue,
        (send_depth, receive_depth): (u32, u32),
        receives: u32,
    ) -> Result<Self, Error> {
        let spec = |inline_bytes| QueuePairSpec {
            send_queue: queue,
            receive_queue: queue,
            send_depth,
            receive_depth,
            send_pieces: 1,
            receive_pieces: 1,
            inline_bytes,
        };
        // Not all adapters copy bytes into requests, and they cannot be asked how many.
        let pair = match rail.domain.queue_pair(&spec(INLINE_BYTES)) {
            Err(_) => rail.domain.queue_pair(&spec(0))?,
            made => made?,
        };
        pair.initialize(&rail.path, Access::REMOTE_WRITE)?;
        let first_packet = getrandom::u32().unwrap_or(std::process::id()) & 0xff_ffff;
        let lane = Self {
            inline_bytes: pair.capacity().inline_bytes as usize,
            pair,
            number,
            rail: rail_number,
            first_packet,
            depth: send_depth.into(),
            posted: 0,
            reaped: 0,
            reported: 0,
            under_way: VecDeque::with_capacity(send_depth as usize),
            bytes_under_way: 0,
            taken: 0,
            probed: false,
        };
        lane.post_receives(receives)?;
        Ok(lane)
    }

    /// Returns the queue pair's number.
    pub(super) fn pair_number(&self) -> u32 {
        self.pair.number()
    }

    /// Moves the queue pair to its error state, as a device does that gives it up; for tests.
    pub(super) fn sever(&self) -> Result<(), Error> {
        self.pair.fail()
    }

    pub(super) fn address(&self, rail: &Rail) -> Address {
        Address {
            number: self.pair.number(),
            first_packet: self.first_packet,
            lid: rail.lid,
            mtu: rail.path.mtu,
            gid: rail.gid,
        }
    }

    pub(super) fn connect(&self, rail: &Rail, peer: &Address) -> Result<(), Error> {
        self.pair.connect(&rail.path, self.first_packet, peer, &Reliability::default())
    }

    /// Counts a receive that was taken. Receives are posted again in batches.
    pub(super) fn receive_taken(&mut self) -> Result<(), Error> {
        self.taken += 1;
        if self.taken < RECEIVES_AT_ONCE {
            return Ok(());
        }
        let count = std::mem::take(&mut self.taken);
        self.post_receives(count)
    }

    /// Posts receives for notes, which need no memory.
    pub(super) fn post_receives(&self, count: u32) -> Result<(), Error> {
        let id = RECEIVE | u64::from(self.number) << LANE_SHIFT;
        for _ in 0..count {
            // SAFETY: the receive has no memory.
            unsafe { self.pair.post_receive(id, &[])? };
        }
        Ok(())
    }

    pub(super) fn has_room(&self) -> bool {
        self.posted - self.reaped < self.depth
    }

    /// Returns whether no request is in flight that holds resources.
    pub(super) fn is_settled(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether the peer has acknowledged everything, as far as has been reported.
    pub(super) fn is_flushed(&self) -> bool {
        self.reaped == self.posted
    }

    /// Writes `local` to `to`, then sends the note, if there is one. A request with `settled` is reported when it
    /// completes, and its resources can then be taken; without that, the completion may never be reported.
    ///
    /// # Safety
    /// The memory of `local` stays unchanged until the peer has acknowledged the request, which `settled` or an
    /// answer shows, or until the lane is dropped.
    pub(super) unsafe fn write(
        &mut self,
        to: Remote,
        local: Option<Local>,
        note: Option<u32>,
        settled: Option<Settled>,
    ) -> Result<(), Error> {
        let bytes = local.map_or(0, |local| local.bytes() as usize);
        let count = self.posted;
        let reported = settled.is_some() || count - self.reported >= UNREPORTED_MAX;
        // The processor copies inline bytes, and it may be unable to read the caller's memory, such as a GPU's.
        let is_ours = settled.as_ref().is_none_or(|settled| settled.held.is_none());
        let inline = is_ours && bytes > 0 && bytes <= self.inline_bytes;
        let list = local.as_slice();
        let request = Send {
            id: u64::from(self.number) << LANE_SHIFT | count,
            operation: match note {
                Some(note) => Operation::WriteWithImmediate(to, note),
                None => Operation::Write(to),
            },
            local: list,
            report: if reported { Report::Yes } else { Report::No },
            flags: if inline { Flags::INLINE } else { Flags::NONE },
        };
        // SAFETY: the caller's promise.
        unsafe { self.pair.post_send(&request)? };
        self.posted += 1;
        if reported {
            self.reported = count;
        }
        if let Some(settled) = settled {
            self.bytes_under_way += settled.bytes;
            self.under_way.push_back(Posted { count, settled });
        }
        Ok(())
    }

    /// Marks the request of that count as completed, and with it all before it. Returns `false` if there is no such
    /// request.
    pub(super) fn reap(&mut self, count: u64) -> bool {
        if count < self.reaped || count >= self.posted {
            return false;
        }
        self.reaped = count + 1;
        true
    }

    /// Takes the resources of the next completed request.
    pub(super) fn settle(&mut self) -> Option<Settled> {
        let first = self.under_way.front()?;
        if first.count >= self.reaped {
            return None;
        }
        let posted = self.under_way.pop_front()?;
        self.bytes_under_way -= posted.settled.bytes;
        Some(posted.settled)
    }

    /// Takes the resources of all requests in flight, of a lane that is given up.
    pub(super) fn take_all(&mut self) -> VecDeque<Settled> {
        self.under_way.drain(..).map(|posted| posted.settled).collect()
    }
}
