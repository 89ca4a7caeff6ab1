//! The job of an operation: everything needed to start it.

use std::sync::Arc;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::Plan;
use kolo_transport::Piece;

use super::super::Owner;
use super::super::memory::Buffers;
use crate::call::GpuBuffers;
use crate::reduce::Arithmetic;

/// Host memory that an operation works on: input and output, or one of them if it works in place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lent {
    pub(crate) input: Option<Piece>,
    pub(crate) output: Option<Piece>,
}

// SAFETY: the pieces name memory that the caller keeps while the operation runs, whichever thread drives it; see
// `Engine::start`.
unsafe impl Send for Lent {}

impl Lent {
    pub(crate) fn pieces(self) -> impl Iterator<Item = Piece> {
        [self.input, self.output].into_iter().flatten()
    }
}

/// Everything needed to start an operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) buffers: Buffers,
    pub(crate) gpus: GpuBuffers,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) segment_elements: usize,
    pub(crate) window: usize,
    pub(crate) tag: u64,
    /// The whole memory that messages come from and go to.
    pub(crate) lent: Lent,
    /// Memory that must live as long as the operation runs.
    pub(crate) keep: Option<Owner>,
}
