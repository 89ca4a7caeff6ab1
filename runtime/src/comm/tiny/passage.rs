//! A call on its way through the exchange, and how it is cut into parts.

use kolo_collectives::plan::Collective;
use kolo_transport::shm::{FLAT_MAX, copy_streaming};

use crate::call::{Call, Counts};
use crate::reduce::Combine;

/// Parts of a block begin at multiples of this: two cache lines, and a whole number of elements of any type.
pub(super) const GRAIN: usize = 128;

/// A call on its way through the exchange.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    pub(super) call: &'a Call,
    pub(super) combine: Combine,
    pub(super) tag: u64,
    pub(super) turn: u64,
    /// Bytes of the vector, or of one rank's block.
    pub(super) block: usize,
    /// Blocks that a rank publishes.
    blocks: usize,
    /// Bytes of each block in one part.
    step: usize,
    /// Which exchange is at hand.
    exchange: usize,
    /// And of how many.
    exchanges: usize,
    /// Whether results are written past the caches.
    pub(super) streams: bool,
}

impl<'a> Passage<'a> {
    pub(super) fn new(call: &'a Call, combine: Combine, tag: u64, members: usize) -> Self {
        let (block, blocks) = (block(call), blocks(call.collective, members));
        let step = match block * blocks <= FLAT_MAX {
            true => block,
            false => FLAT_MAX / blocks / GRAIN * GRAIN,
        };
        let exchanges = if step == 0 { 1 } else { block.div_ceil(step) };
        Self { call, combine, tag, turn: 0, block, blocks, step, exchange: 0, exchanges, streams: false }
    }

    /// How far it has come; grows with every exchange.
    pub(crate) fn position(&self) -> usize {
        self.exchange
    }

    /// Goes on to the next exchange; tells whether there is none.
    pub(super) fn is_over_after_this(&mut self) -> bool {
        self.exchange += 1;
        self.exchange == self.exchanges
    }

    /// Where in its block the part at hand is, and how many bytes of each block belong to it.
    pub(super) fn part(&self) -> (usize, usize) {
        let at = self.exchange * self.step;
        (at, self.step.min(self.block - at))
    }

    /// Copies results.
    ///
    /// # Safety
    /// As [`std::ptr::copy_nonoverlapping`].
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

    /// Bytes that a rank publishes in the exchange at hand.
    pub(super) fn published(&self) -> usize {
        self.blocks * self.part().1
    }
}

/// Bytes of the vector, or of one rank's block.
pub(super) fn block(call: &Call) -> usize {
    let Counts::Even(count) = call.counts else { unreachable!("`serves` takes even counts only") };
    if call.collective == Collective::Barrier { 0 } else { count * call.data_type.size() }
}

/// Blocks that each rank publishes.
pub(super) fn blocks(collective: Collective, members: usize) -> usize {
    match collective {
        Collective::ReduceScatter => members,
        // Not the one for itself.
        Collective::Scatter | Collective::AllToAll => members - 1,
        _ => 1,
    }
}

/// Where among what a member publishes the block for another lies.
pub(super) fn place(collective: Collective, member: usize, block: usize) -> usize {
    let is_left_out = matches!(collective, Collective::Scatter | Collective::AllToAll);
    if is_left_out && block > member { block - 1 } else { block }
}

/// In how many exchanges a call is through.
pub(super) fn exchanges(call: &Call, members: usize) -> usize {
    unsafe fn none(_: *mut u8, _: *const u8, _: *const u8, _: usize) {}
    Passage::new(call, none, 0, members).exchanges
}
