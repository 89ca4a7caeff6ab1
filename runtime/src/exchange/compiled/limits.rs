//! Which calls take the exchange, and which of them write past the caches.

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::shm::FLAT_LONG;

use super::cursor::{block, blocks, exchanges};
use super::{CompiledExchange, two_shot};
use crate::call::{Call, Counts};

/// Calls that touch at least so much memory write what they only copy with streaming stores: see
/// docs/tuning.md, "Streaming stores".
const STREAMING_BYTES: usize = 32 << 20;

/// Most bytes that a rank reads or writes where buffers may be a GPU's. On this path those are copied to and from the host as a
/// whole, through as much pinned memory; a plan copies them segment by segment. A rank does not know whose memory the others'
/// is, so the limit holds for all: high enough that calls on the host's memory lose nothing but where nearly all of it is
/// data (gradients come in buckets of 25 MB), low enough to be pinned.
const GPU_BYTES: usize = 64 << 20;

/// Contributions up to this length take this path all the same: of a hundred ranks, a hundred of them are pinned.
const GPU_BYTES_LEAST: usize = 1 << 20;

/// Contributions from this length on take a plan that uses the stage of the host, where the selection knows of one and it was
/// measured within 3 % of this path: see docs/tuning.md. All-reduces (0.89 to 0.96), shorter calls (0.88 to 0.99), two ranks and
/// reduce_scatters stay here until a round of a plan costs less.
const STAGED_FROM: usize = 4 << 20;

/// Most ranks for which that was measured.
const STAGED_MEMBERS_MAX: usize = 8;

/// Most ranks with which long calls share out slices of a part.
pub(super) const MEMBERS_MAX: usize = 64;

/// The facts about one collective that every call needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    /// That a rank gives.
    blocks: usize,
    /// Calls in which a rank gives fewer bytes take this path, whatever else is set.
    below: usize,
}

impl CompiledExchange {
    /// For each collective, by its number.
    pub(super) fn served(&self) -> [Served; Collective::ALL.len()] {
        Collective::ALL.map(|collective| Served {
            blocks: blocks(collective, self.members),
            below: match self.bytes_max(collective) {
                _ if self.forced.names(collective) => 0,
                most => most.map_or(usize::MAX, |most| most.saturating_add(1)),
            },
        })
    }

    /// Whether a call is one for this path. The same answer on all ranks.
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

    /// Longest contribution of a rank, in bytes, with which a collective takes the exchange; `None` if any does. Unless it was
    /// set, that is where plans begin to win, or [`GPU_BYTES`]: see
    /// docs/tuning.md, "The exchange beside plans of messages".
    fn bytes_max(&self, collective: Collective) -> Option<usize> {
        match (self.bytes_max, self.quicker_upto(collective)) {
            (Some(set), _) => Some(set),
            (None, most) if self.has_gpus => {
                // The result is as many times as long.
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

    /// Which collectives take plans from [`STAGED_FROM`] on; `takes_stages` tells whether the selection takes one that uses the
    /// stage, for so many bytes (of the vector or of a block) and more.
    pub(super) fn staged(
        &self,
        takes_stages: impl Fn(Collective, usize) -> bool,
    ) -> [bool; Collective::ALL.len()] {
        Collective::ALL.map(|collective| {
            let is_long =
                matches!(collective, Collective::Broadcast | Collective::AllGather | Collective::AllToAll);
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
            // Each rank copies and computes no more than over messages.
            _ if self.members <= 2 => None,
            // Each rank copies in once, and out what it needs; messages would be copied in for each receiver.
            Collective::Broadcast | Collective::AllGather | Collective::Barrier => None,
            // Of more ranks, the slices would be too short.
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllToAll
                if self.members <= MEMBERS_MAX =>
            {
                None
            }
            Collective::Gather => Some(2 << 20),
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => Some(FLAT_LONG),
            // Everybody, or the one root, reduces everything.
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::ExScan => {
                Some(two_shot::ONE_SHOT_MAX)
            }
        }
    }

    /// Description of this path for a call that it serves.
    pub(crate) fn describe(&self, call: &Call) -> String {
        let given = blocks(call.collective, self.members) * block(call);
        let in_place = if self.may_read_in_place(call.collective, block(call)) {
            ", read in place where all ranks' lie in huge pages and that shows to be quicker, or"
        } else {
            ""
        };
        let exchanges = match exchanges(call, self.members) {
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

    /// Whether the ranks' buffers are together too long for the caches, so that results had better go past them.
    #[inline]
    pub(super) fn streams(&self, call: &Call, block: usize) -> bool {
        let blocks_touched = match call.collective {
            Collective::Broadcast => self.members,
            Collective::Gather | Collective::Scatter => 2 * self.members,
            Collective::AllGather => self.members * (1 + self.members),
            Collective::AllToAll => 2 * self.members * self.members,
            // In place, the target was read a moment ago.
            Collective::AllReduce if call.placement == Placement::OutOfPlace => 2 * self.members,
            // Results of these are computed rather than copied.
            _ => 0,
        };
        blocks_touched * block >= STREAMING_BYTES
    }
}
