//! Bounce buffers: copies of a segment that a plan works on where a buffer is GPU memory.
//!
//! A segment is first *loaded*, which copies from the GPU to its bounce buffers, and finally *stored*, which copies
//! back. The copies run by themselves, so those of one segment overlap with the messages of others. The input of
//! PremulSum is always bounced, since it may not be written.

use std::sync::Arc;

use kolo_collectives::memory::Memory;
use kolo_collectives::plan::{Placement, Plan};
use kolo_gdr::Gpu;
use kolo_transport::Error;

use super::super::copies::{CopyKind, CopyQueues, Mark};
use super::super::memory::{Binding, Bounced};
use super::instance::Instance;
use super::job::Job;
use super::{Bound, Position};
use crate::call::{AdapterAccess, GpuBuffers};
use crate::reduce::scale;

/// Returns which buffers of a job its plan works on as bounce buffers.
pub(super) fn bounced(job: &Job) -> Bounced {
    let has_input = |plan: &Plan| Memory::of(plan).input_blocks() > 0;
    let is_scaled = job.arithmetic.factor.is_some() && has_input(&job.plan);
    let bounces = job.gpus.access == AdapterAccess::Staged;
    Bounced {
        input: is_scaled || (bounces && job.gpus.input.is_some()),
        output: bounces && job.gpus.output.is_some(),
    }
}

/// Returns the GPU from which bounce buffers are loaded. All loads are from one buffer: the input, or in place the
/// buffer that is both.
fn source<'a>(gpus: &'a GpuBuffers, binding: &Binding) -> Option<&'a Arc<Gpu>> {
    match binding.plan.placement {
        Placement::OutOfPlace => gpus.input.as_ref(),
        Placement::InPlace => gpus.any(),
    }
}

impl Bound {
    /// Starts to fill an instance's bounce buffers from the GPU. Returns whether there is anything to copy.
    pub(super) fn load(
        &self,
        index: u16,
        instance: &Instance,
        copies: &mut CopyQueues,
    ) -> Result<bool, Error> {
        let binding = &self.binding;
        let Some(gpu) = source(&self.gpus, binding).filter(|_| binding.has_loads()) else {
            return Ok(false);
        };
        let parts = binding.loads(instance.segment, self.buffers, instance.scratch.ptr());
        // SAFETY: bounce buffers have room for their segment, and lie in scratch, which is pinned and which no lane
        // uses. The buffers are valid (see `begin`), and the engine settles copies before it gives an operation up.
        unsafe { copies.start(CopyKind::Load, gpu, parts, self.mark(index, None)) }?;
        Ok(true)
    }

    /// Starts to copy the results in a segment's bounce buffers to the GPU. Returns whether there is anything to copy.
    pub(super) fn store(
        &self,
        index: u16,
        instance: &Instance,
        copies: &mut CopyQueues,
    ) -> Result<bool, Error> {
        let binding = &self.binding;
        let Some(gpu) = self.gpus.output.as_ref().filter(|_| binding.has_stores()) else {
            return Ok(false);
        };
        let parts = binding.stores(instance.segment, self.buffers, instance.scratch.ptr());
        // SAFETY: as in `load`.
        unsafe { copies.start(CopyKind::Store, gpu, parts, self.mark(index, None)) }?;
        Ok(true)
    }

    /// Multiplies a segment's input, or the bounce buffers made from it, by the factor of PremulSum.
    pub(super) fn premultiply(&self, instance: &Instance, factor: f64) {
        let binding = &self.binding;
        let (data_type, size) = (self.arithmetic.data_type, binding.element_bytes);
        let (segment, scratch) = (instance.segment, instance.scratch.ptr());
        if binding.is_bounced() && binding.has_loads() {
            let is_here = source(&self.gpus, binding).is_none();
            for (from, to, bytes) in binding.loads(segment, self.buffers, scratch) {
                let from = if is_here { from } else { to.cast_const() };
                // SAFETY: bounced blocks have room for their segment, and the input is valid (see `begin`). Input of a
                // GPU was just copied to the bounce buffer.
                unsafe { scale(data_type, to, from, bytes / size, factor) };
            }
        } else if !binding.is_bounced() {
            binding.each_output(segment, self.buffers, scratch, |at, bytes| {
                // SAFETY: the output is valid (see `begin`), and nothing of this segment is in flight yet.
                unsafe { scale(data_type, at, at, bytes / size, factor) };
            });
        }
    }

    /// Returns the mark of the copies of an instance, or of a step of one of its lanes.
    pub(super) fn mark(&self, index: u16, lane: Option<u16>) -> Mark {
        let Position { slot, generation, .. } = self.position;
        Mark::Operation { slot, generation, instance: index as u8, lane }
    }
}
