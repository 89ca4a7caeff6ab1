//! Operations on GPU memory that adapters reach directly: pieces name it, and the GPU does the copies that are steps of
//! the plan. Adapters' writes are flushed before such a copy, and before the operation is done.

use kolo_transport::Error;

use super::super::copies::{CopyKind, CopyQueues};
use super::super::memory::Part;
use super::Operation;
use crate::call::AdapterAccess;

impl Operation {
    /// Makes bytes received into GPU memory, which is the output's, visible to its GPU.
    pub(super) fn flush(&mut self, copies: &mut CopyQueues) -> Result<(), Error> {
        if self.bound.gpus.access == (AdapterAccess::Direct { flush: true })
            && std::mem::take(&mut self.unflushed)
            && let Some(gpu) = &self.bound.gpus.output
        {
            copies.flush(gpu)?;
        }
        Ok(())
    }

    /// Lets the GPU do a copy that is a step of a lane.
    pub(super) fn start_step(
        &mut self,
        index: u16,
        lane: usize,
        parts: Vec<Part>,
        copies: &mut CopyQueues,
    ) -> Result<(), Error> {
        self.flush(copies)?;
        let Some(gpu) = self.bound.gpus.any() else { unreachable!("adapters reach a GPU's memory") };
        let mark = self.bound.mark(index, Some(lane as u16));
        // SAFETY: the parts are valid by `begin`, and the scratch is pinned. The checker proves that they do not
        // overlap, and that nothing else touches them before the step is over. The engine settles copies before it
        // gives an operation up.
        unsafe { copies.start(CopyKind::Step, gpu, parts, mark) }?;
        // As for a receive, a completion will end the step.
        self.instances[index as usize].lanes[lane].receiving = true;
        Ok(())
    }
}
