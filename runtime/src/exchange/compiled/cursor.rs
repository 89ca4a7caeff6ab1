//! Progress of a call through the exchange, and how the call is cut into parts.

use kolo_collectives::plan::Collective;
use kolo_transport::shm::{EXCHANGE_LONG, copy_streaming};

use super::places::InPlace;
use super::two_shot::{Shots, one_shot_max};
use crate::call::{Call, Counts};
use crate::reduce::{Combine, GRAIN};

/// Longest broadcast that is cut into short parts, in bytes.
const PARTED_MAX: usize = 1 << 20;

/// Lengths at which calls are cut, in bytes. They depend on the number of ranks, and on whether these share processors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// Longest vector that every rank reduces as a whole.
    pub(super) one_shot_max: usize,
    /// Part of a broadcast of up to [`PARTED_MAX`], which the others copy out while the root copies in the next one.
    /// Processors that are shared make only one of these copies at a time.
    broadcast_part: usize,
}

impl Cuts {
    pub(super) fn new(members: usize, shares_processors: bool, one_shot_bytes: Option<usize>) -> Self {
        Self {
            one_shot_max: one_shot_bytes.unwrap_or(one_shot_max(members, shares_processors)),
            broadcast_part: if shares_processors || members < 3 { usize::MAX } else { 32 << 10 },
        }
    }

    fn parts_broadcast(self, collective: Collective, block: usize) -> bool {
        collective == Collective::Broadcast && block <= PARTED_MAX
    }
}

/// Bytes of a block, or the same bytes of several blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Offset in the block.
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Progress of a call through the exchange.
#[derive(Debug)]
pub(crate) struct ExchangeCursor {
    pub(super) combine: Combine,
    /// Tag, on which all ranks' calls must agree.
    pub(crate) tag: u64,
    pub(crate) turn: u64,
    /// Bytes of the vector, or of one rank's block.
    pub(super) block: usize,
    /// Number of blocks that a rank publishes.
    blocks: usize,
    /// Bytes of each block in one part.
    step: usize,
    /// Shares of the ranks, if the call takes two shots.
    pub(super) shots: Option<Shots>,
    /// Number of the current exchange.
    exchange: usize,
    /// Number of exchanges of the call.
    exchanges: usize,
    /// The current part: 0 bytes once only sums are left.
    pub(super) part: Part,
    /// Whether results are written past the caches.
    pub(super) streams: bool,
    /// State of a call that may read the other ranks' buffers in place.
    pub(super) in_place: InPlace,
}

impl ExchangeCursor {
    // Inlined, since little of it remains where collective and length are known to be short.
    #[inline(always)]
    pub(super) fn new(call: &Call, combine: Combine, tag: u64, members: usize, cuts: Cuts) -> Self {
        let (block, blocks) = (block(call), blocks(call.collective, members));
        // Most calls are short, and the computations below contain many divisions.
        let (shots, step, exchanges) = match Shots::of(call, block, members, cuts.one_shot_max) {
            // The sums of a part follow in the next exchange.
            Some(shots) => (Some(shots), shots.step, block.div_ceil(shots.step) + 1),
            None if block > cuts.broadcast_part && cuts.parts_broadcast(call.collective, block) => {
                (None, cuts.broadcast_part, block.div_ceil(cuts.broadcast_part))
            }
            None if block * blocks <= EXCHANGE_LONG => (None, block, 1),
            None => {
                let step = (part_max(call.collective, members) / blocks / GRAIN * GRAIN).max(GRAIN);
                (None, step, block.div_ceil(step))
            }
        };
        let part = Part { at: 0, len: step.min(block) };
        Self {
            combine,
            tag,
            turn: 0,
            block,
            blocks,
            step,
            shots,
            exchange: 0,
            exchanges,
            part,
            streams: false,
            in_place: InPlace::default(),
        }
    }

    /// Returns whether other ranks may read this rank's buffers directly.
    #[inline(always)]
    pub(crate) fn may_lend(&self) -> bool {
        self.in_place.is_possible()
    }

    /// Returns the number of exchanges of the call.
    pub(super) fn exchanges(&self) -> usize {
        self.exchanges
    }

    /// Returns the number of exchanges so far, plus the steps in which the call has read in place.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.exchange + self.in_place.turns
    }

    /// Makes the current exchange the last one.
    pub(super) fn end_with_this(&mut self) {
        self.exchanges = self.exchange + 1;
    }

    /// Goes on to the next exchange. Returns whether there is none.
    #[inline]
    pub(super) fn is_over_after_this(&mut self) -> bool {
        self.exchange += 1;
        if self.exchange == self.exchanges {
            return true;
        }
        self.part = self.part_at(self.exchange);
        false
    }

    /// Returns the previous part.
    pub(super) fn part_before(&self) -> Option<Part> {
        self.exchange.checked_sub(1).map(|before| self.part_at(before))
    }

    #[inline]
    fn part_at(&self, index: usize) -> Part {
        let at = index * self.step;
        Part { at, len: self.step.min(self.block.saturating_sub(at)) }
    }

    /// Copies results.
    ///
    /// # Safety
    /// See [`std::ptr::copy_nonoverlapping`].
    #[inline]
    pub(super) unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.streams {
                copy_streaming(from, to, len);
            } else {
                to.copy_from_nonoverlapping(from, len);
            }
        }
    }

    /// Returns the bytes that a rank publishes in the current exchange.
    #[inline]
    pub(super) fn published(&self) -> usize {
        match self.shots {
            Some(shots) => shots.published(self),
            None => self.blocks * self.part.len,
        }
    }
}

/// Returns the bytes of the vector, or of one rank's block.
#[inline]
pub(super) fn block(call: &Call) -> usize {
    let Counts::Even(count) = call.counts else { unreachable!("`serves` takes even counts only") };
    if call.collective == Collective::Barrier { 0 } else { count * call.data_type.size() }
}

/// Returns the most bytes that a rank publishes in one exchange of a long call.
///
/// Two ranks usually have a processor each. Where one gives and the other takes, short parts let one copy in while the
/// other copies out. Where both give, both copy in and then both copy out, and each part costs them a wait for each
/// other. More than two ranks often share processors, and a long part costs fewer turns of them. But two parts of all
/// ranks should stay in the third-level cache, and so should the result of an all-gather: see docs/measurements.md,
/// "Parts and rounds".
pub(super) fn part_max(collective: Collective, members: usize) -> usize {
    let all_give = matches!(
        collective,
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll
    );
    match members {
        0..=2 if collective == Collective::AllToAll => 512 << 10,
        0..=2 if all_give => 256 << 10,
        0..=2 => EXCHANGE_LONG,
        8..=26 if collective == Collective::AllGather => 320 << 10,
        _ => (640 << 10).min((8 << 20) / members).max(EXCHANGE_LONG),
    }
}

/// Returns the number of blocks that each rank publishes.
#[inline]
pub(super) fn blocks(collective: Collective, members: usize) -> usize {
    match collective {
        Collective::ReduceScatter => members,
        // The block for the rank itself is left out.
        Collective::Scatter | Collective::AllToAll => members - 1,
        _ => 1,
    }
}

/// Returns the place of the block for another member in a member's payload.
#[inline]
pub(super) fn place(collective: Collective, member: usize, block: usize) -> usize {
    let is_left_out = matches!(collective, Collective::Scatter | Collective::AllToAll);
    if is_left_out && block > member { block - 1 } else { block }
}
