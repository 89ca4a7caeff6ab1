//! Instances: each has the cursors, pieces and scratch of the segment that it runs.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::{Awaited, Error, Piece};

use super::super::local::Reducer;
use super::super::memory::Binding;
use super::super::staging::Staging;
use super::staged::FoldBuffers;

/// Most pinned scratch of an operation on GPU memory, unless a single segment needs more. It is enough to copy a few
/// MiB while as much is on the network, and little compared with the limit on locked memory.
const PINNED_BYTES: usize = 32 << 20;

/// Phase of an instance with its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The instance has no segment.
    Idle,
    /// Bounce buffers are being filled.
    Loading,
    /// The lanes run.
    Running,
    /// Bounce buffers are being copied back.
    Storing,
    /// The segment is over.
    Over,
}

#[derive(Debug)]
pub(super) struct Instance {
    pub(super) segment: usize,
    pub(super) phase: Phase,
    pub(super) lanes: Vec<Lane>,
    pub(super) pieces: Vec<Piece>,
    pub(super) scratch: Staging,
    /// Number of rounds that the segment has published on the stage.
    pub(super) round: u16,
    /// Publications that a step waits for on the stage.
    pub(super) awaited: Option<Awaited>,
    pub(super) fold_buffers: FoldBuffers,
}

/// Progress of a lane of the plan.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) cursor: u32,
    pub(super) sends_pending: u32,
    /// Whether a completion will end the step at the cursor.
    pub(super) receiving: bool,
    /// The reducer of the posted receive, if it has one.
    pub(super) reducer: Box<UnsafeCell<MaybeUninit<Reducer>>>,
}

impl Lane {
    /// Ends the step at the cursor, which was pending.
    pub(super) fn end_step(&mut self) {
        self.receiving = false;
        self.cursor += 1;
    }
}

impl Instance {
    /// Begins a segment.
    pub(super) fn begin(&mut self, segment: usize) {
        self.segment = segment;
        self.pieces.clear();
        (self.round, self.awaited) = (0, None);
        for lane in &mut self.lanes {
            (lane.cursor, lane.sends_pending, lane.receiving) = (0, 0, false);
        }
    }

    fn empty() -> Self {
        Self {
            segment: 0,
            phase: Phase::Idle,
            lanes: Vec::new(),
            pieces: Vec::new(),
            scratch: Staging::new(),
            round: 0,
            awaited: None,
            fold_buffers: FoldBuffers::default(),
        }
    }

    /// Makes room for the segments of a bound plan: see the operation's rules 1 and 3.
    fn prepare(&mut self, binding: &Binding, gpu: Option<&Arc<Gpu>>) -> Result<(), Error> {
        self.phase = Phase::Idle;
        self.pieces.clear();
        self.pieces.reserve(binding.pieces_max);
        self.scratch.reserve(binding.scratch_bytes);
        if let Some(gpu) = gpu {
            self.scratch.pin(gpu)?;
        }
        self.lanes.resize_with(binding.plan.lanes.len(), || Lane {
            cursor: 0,
            sends_pending: 0,
            receiving: false,
            reducer: Box::new(UnsafeCell::new(MaybeUninit::uninit())),
        });
        Ok(())
    }
}

/// Prepares the first `count` instances for a bound plan.
pub(super) fn prepare(
    instances: &mut Vec<Instance>,
    binding: &Binding,
    count: usize,
    gpu: Option<&Arc<Gpu>>,
) -> Result<(), Error> {
    if instances.len() < count {
        instances.resize_with(count, Instance::empty);
    }
    instances[..count].iter_mut().try_for_each(|instance| instance.prepare(binding, gpu))
}

/// Returns the greatest number of instances of operations with this window.
pub(super) fn most(binding: &Binding, window: u16, gpu: Option<&Arc<Gpu>>) -> usize {
    match gpu {
        Some(_) => most_within(PINNED_BYTES, binding.scratch_bytes, window),
        None => window as usize,
    }
}

/// Returns the number of instances with this scratch that fit within the limit, at least one. It divides the window, so
/// that segments on the same sub-channels follow each other in one instance.
fn most_within(limit: usize, scratch_bytes: usize, window: u16) -> usize {
    let fits = |count: &usize| (window as usize).is_multiple_of(*count) && count * scratch_bytes <= limit;
    (1..=window as usize).rev().find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::most_within;

    #[test]
    fn instances_stay_within_the_bound_and_divide_the_window() {
        assert_eq!(most_within(100, 0, 12), 12);
        assert_eq!(most_within(100, 10, 12), 6);
        assert_eq!(most_within(100, 30, 12), 3);
        assert_eq!(most_within(100, 30, 7), 1);
        assert_eq!(most_within(100, 101, 12), 1, "one segment goes in any case");
    }
}
