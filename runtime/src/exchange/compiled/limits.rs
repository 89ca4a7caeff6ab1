//! Decides which calls take the exchange, and which of them write past the caches.

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::shm::{EXCHANGE_LONG, STREAMING_BYTES};

use super::cursor::{ExchangeCursor, block, blocks};
use super::{CompiledExchange, two_shot};
use crate::call::{Call, Counts};
use crate::reduce::combine_nothing;

/// Most bytes that a rank reads or writes on this path where buffers may be GPU memory. GPU buffers are copied here to
/// and from the host as a whole, through as much pinned memory, whereas a plan copies them segment by segment. A rank
/// does not know whose memory the others use, so the limit holds for all. It is high enough that calls on host memory
/// lose only where nearly all of that memory is data (gradients come in buckets of 25 MB), and low enough to be pinned.
const GPU_BYTES: usize = 64 << 20;

/// Contributions up to this length take this path in any case. With a hundred ranks, a hundred of them are pinned.
const GPU_BYTES_LEAST: usize = 1 << 20;

/// Contributions from this length on take a plan that uses the stage of the host, if the selection knows one and it was
/// measured within 3 % of this path: see docs/measurements.md. All-reduces (0.89 to 0.96), broadcasts with roots in turn
/// (0.6 to 0.9), shorter calls (0.88 to 0.99), two ranks and reduce-scatters stay on this path until a round of a plan
/// costs less.
const STAGED_FROM: usize = 4 << 20;

/// Most ranks for which such plans were measured.
const STAGED_MEMBERS_MAX: usize = 8;

/// Most bytes, of all vectors together, that the root of a reduce reduces alone where ranks share processors: see
/// docs/measurements.md, "One shot or two".
const ROOT_REDUCES: usize = 1 << 20;

/// Most ranks among which long calls divide a part into slices.
pub(super) const MEMBERS_MAX: usize = 64;

/// Facts about one collective that every call needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    /// Number of blocks that a rank gives.
    blocks: usize,
    /// A call in which a rank gives fewer bytes takes this path, whatever else is set.
    below: usize,
}

impl CompiledExchange {
    /// Returns the facts for each collective, by its number.
    pub(super) fn served(&self) -> [Served; Collective::ALL.len()] {
        Collective::ALL.map(|collective| Served {
            blocks: blocks(collective, self.members),
            below: match self.bytes_max(collective) {
                _ if self.forced.names(collective) => 0,
                most => most.map_or(usize::MAX, |most| most.saturating_add(1)),
            },
        })
    }

    /// Returns whether a call takes this path. The answer is the same on all ranks.
    #[inline(always)]
    pub(crate) fn serves(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        let Served { blocks, below } = self.served[call.collective as usize];
        let given = blocks * count * call.data_type.size();
        given < below || self.serves_what_is_not_forced(call, given)
    }

    #[cold]
    fn serves_what_is_not_forced(&self, call: &Call, given: usize) -> bool {
        self.forced.names(call.collective)
            && !self.forced.covers(call)
            && self.bytes_max(call.collective).is_none_or(|most| given <= most)
    }

    /// Returns the longest contribution of a rank, in bytes, with which a collective takes the exchange; `None` if
    /// there is no limit. Unless a setting gives the limit, plans win beyond it, or it is [`GPU_BYTES`]: see
    /// docs/measurements.md, "The exchange and plans of messages".
    fn bytes_max(&self, collective: Collective) -> Option<usize> {
        match (self.bytes_max, self.quicker_upto(collective)) {
            (Some(set), _) => Some(set),
            (None, most) if self.facts.has_gpus => {
                // The result is this many times as long.
                let times = match collective {
                    Collective::AllGather | Collective::Gather => self.members,
                    _ => 1,
                };
                let limit = (GPU_BYTES / times).max(GPU_BYTES_LEAST);
                Some(most.unwrap_or(limit).min(limit))
            }
            (None, most) => most,
        }
    }

    /// Returns which collectives take plans from [`STAGED_FROM`] on. `takes_stages` returns whether the selection takes
    /// a plan that uses the stage for a length (of the vector or of a block) and longer ones.
    pub(super) fn staged(
        &self,
        takes_stages: impl Fn(Collective, usize) -> bool,
    ) -> [bool; Collective::ALL.len()] {
        Collective::ALL.map(|collective| {
            let is_long = matches!(collective, Collective::AllGather | Collective::AllToAll);
            let block = STAGED_FROM / blocks(collective, self.members).max(1);
            is_long
                && !self.may_read_in_place(collective, block)
                && (3..=STAGED_MEMBERS_MAX).contains(&self.members)
                && takes_stages(collective, block)
        })
    }

    fn quicker_upto(&self, collective: Collective) -> Option<usize> {
        match collective {
            _ if self.staged[collective as usize] => Some(STAGED_FROM - 1),
            // Each rank copies and computes no more than with messages.
            _ if self.members <= 2 => None,
            // Each rank copies in once, and copies out the data that it needs; messages would be copied in for each
            // receiver.
            Collective::Broadcast | Collective::AllGather | Collective::Barrier => None,
            // With more ranks, the slices would be too short.
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllToAll
                if self.members <= MEMBERS_MAX =>
            {
                None
            }
            Collective::Gather => Some(2 << 20),
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => Some(EXCHANGE_LONG),
            // Every rank, or the one root, reduces everything.
            Collective::AllReduce => Some(self.cuts.one_shot_max),
            Collective::Reduce if self.facts.shares_processors => {
                Some((ROOT_REDUCES / self.members).max(two_shot::ONE_SHOT_MAX))
            }
            Collective::Reduce | Collective::Scan | Collective::ExScan => Some(two_shot::ONE_SHOT_MAX),
        }
    }

    /// Returns the number of exchanges of a call.
    fn exchanges(&self, call: &Call) -> usize {
        ExchangeCursor::new(call, combine_nothing, 0, self.members, self.cuts).exchanges()
    }

    /// Describes this path for a call that it serves.
    pub(crate) fn describe(&self, call: &Call) -> String {
        let given = blocks(call.collective, self.members) * block(call);
        let in_place = if self.may_read_in_place(call.collective, block(call)) {
            ", read in place where that shows to be quicker, or"
        } else {
            ""
        };
        let exchanges = match self.exchanges(call) {
            1 => "one exchange".to_owned(),
            several => format!("{several} exchanges"),
        };
        let limit = self
            .bytes_max(call.collective)
            .map_or_else(|| "at any length".to_owned(), |most| format!("up to {most} bytes"));
        format!(
            "exchange: {given} bytes per rank{in_place} in {exchanges} over shared memory ({limit}; KOLO_EXCHANGE_BYTES)"
        )
    }

    /// Returns whether the ranks' buffers together exceed the caches, so that results should be written past them.
    #[inline]
    pub(super) fn streams(&self, call: &Call, block: usize) -> bool {
        let blocks_touched = match call.collective {
            Collective::Broadcast => self.members,
            Collective::Gather | Collective::Scatter => 2 * self.members,
            Collective::AllGather => self.members * (1 + self.members),
            Collective::AllToAll => 2 * self.members * self.members,
            // In place, the target was just read.
            Collective::AllReduce if call.placement == Placement::OutOfPlace => 2 * self.members,
            // These collectives compute their results rather than copy them.
            _ => 0,
        };
        blocks_touched * block >= STREAMING_BYTES
    }
}
