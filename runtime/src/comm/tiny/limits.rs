//! Which calls take the tiny path, and which of them write past the caches.

use kolo_collectives::plan::Collective;
use kolo_transport::shm::FLAT_MAX;

use super::Tiny;
use super::passage::{block, blocks, exchanges};
use crate::call::{Call, Counts};

/// Calls that touch at least so much memory write what they only copy with streaming stores, as direct calls do. Times with
/// and without, in this order: broadcast 2 ranks 8 MiB 284 / 160 us, 32 MiB 1.02 / 1.31 ms; 4 ranks 2 MiB 152 / 117 us, 8 MiB
/// 546 / 659, 128 MiB 8.7 / 21.5 ms; all_gather 8 ranks 8 MiB 0.9 / 1.65 ms, 128 MiB 22 / 43.
const STREAMING_BYTES: usize = 32 << 20;

impl Tiny {
    /// Whether a call is one for this path. The same answer on all ranks.
    pub(crate) fn serves(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        let given = blocks(call.collective, self.members) * count * call.data_type.size();
        self.bytes_max(call.collective).is_none_or(|most| given <= most)
    }

    /// Longest contribution of a rank, in bytes, with which a collective takes this path. Unless it was set, that is where
    /// the plans begin to win. Measured on 2 processors with 2, 4 and 8 ranks; ratios of the times, plan / this path:
    ///
    /// | bytes given | 32 KiB | 64 KiB | 128 KiB | 256 KiB | 512 KiB | 2 MiB | 8 MiB | 32 MiB | 128 MiB |
    /// | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    /// | all_reduce, 2 ranks | 1.5 | 1.2 | 1.1 | 1.1 | 1.1 | 1.1 | 1.1 | 1.2 | 1.2 |
    /// | all_reduce, 4 ranks | 0.9 | 0.9 | 0.7 | 0.6 | 0.6 | 0.4 | | | |
    /// | all_reduce, 8 ranks | 1.3 | 1.1 | 0.9 | 0.9 | 0.5 | | | | |
    /// | broadcast, 2 ranks | 1.1 | 1.1 | 1.2 | 1.2 | 1.3 | 1.2 | 1.1 | 1.3 | 1.5 |
    /// | broadcast, 4 ranks | 1.4 | 1.5 | 1.2 | 1.5 | 1.4 | 1.1 | 1.6 | 2.3 | 2.5 |
    /// | broadcast, 8 ranks | 1.1 | 1.6 | 1.4 | 1.7 | 1.6 | 2.4 | 3.4 | 3.2 | 2.1 |
    /// | all_gather, 4 ranks | 0.9 | 1.3 | 1.3 | 1.4 | 1.0 | 1.7 | 2.6 | 1.8 | |
    /// | all_gather, 8 ranks | 1.0 | 1.7 | 2.3 | 1.5 | 1.5 | 3.1 | 2.4 | | |
    /// | all_to_all, 4 ranks | 1.0 | 1.2 | 0.9 | 0.8 | 0.7 | 0.7 | 1.0 | 1.1 | 0.9 |
    /// | all_to_all, 8 ranks | 1.0 | 1.4 | 1.0 | 0.8 | 0.7 | 1.1 | 1.0 | 0.9 | 0.8 |
    fn bytes_max(&self, collective: Collective) -> Option<usize> {
        if self.bytes_max.is_some() {
            return self.bytes_max;
        }
        match collective {
            // Nobody copies more, nor computes more, than over messages.
            _ if self.members <= 2 => None,
            // Each copies in once, and out what it needs; messages would be copied in for each that needs them.
            Collective::Broadcast | Collective::AllGather | Collective::Barrier => None,
            Collective::Gather => Some(2 << 20),
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => Some(FLAT_MAX),
            // Everybody, or the one root, reduces everything.
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::ExScan => {
                Some(32 << 10)
            }
        }
    }

    /// How a call takes this path, as text, if it does.
    pub(crate) fn describe(&self, call: &Call) -> Option<String> {
        if !self.serves(call) {
            return None;
        }
        let given = blocks(call.collective, self.members) * block(call);
        let exchanges = match exchanges(call, self.members) {
            1 => "one exchange".to_owned(),
            several => format!("{several} exchanges"),
        };
        let limit = self
            .bytes_max(call.collective)
            .map_or_else(|| "at any length".to_owned(), |most| format!("up to {most} bytes"));
        Some(format!(
            "tiny: {given} bytes per rank in {exchanges} over shared memory ({limit}; KOLO_TINY_BYTES)"
        ))
    }

    /// Whether the ranks' buffers are together too long for the caches, so that results had better go past them.
    pub(super) fn streams(&self, collective: Collective, block: usize) -> bool {
        let blocks_touched = match collective {
            Collective::Broadcast => self.members,
            Collective::Gather | Collective::Scatter => 2 * self.members,
            Collective::AllGather => self.members * (1 + self.members),
            Collective::AllToAll => 2 * self.members * self.members,
            // Results of these are computed rather than copied.
            _ => 0,
        };
        blocks_touched * block >= STREAMING_BYTES
    }
}
