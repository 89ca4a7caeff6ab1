//! Direct access of adapters to a GPU's memory: pieces name it, and a copy that is a step of the plan is the GPU's. The adapters' writes
//! are flushed before such a copy, and before the operation is done.

use kolo_transport::Error;

use super::super::copies::{CopyLines, Mark, Way};
use super::super::memory::Part;
use super::Operation;
use crate::call::AdapterAccess;

impl Operation {
    /// Makes bytes received into a GPU's memory visible to the GPU.
    pub(super) fn flush(&mut self, copies: &mut CopyLines) -> Result<(), Error> {
        if self.gpus.access == (AdapterAccess::Direct { flush: true })
            && std::mem::take(&mut self.unflushed)
            && let Some(gpu) = self.gpus.any()
        {
            copies.flush(gpu)?;
        }
        Ok(())
    }

    /// Has the GPU do a copy that is a step of a lane.
    pub(super) fn start_step(
        &mut self,
        index: u16,
        lane: usize,
        parts: Vec<Part>,
        copies: &mut CopyLines,
    ) -> Result<(), Error> {
        self.flush(copies)?;
        let Some(gpu) = self.gpus.any() else { unreachable!("adapters reach a GPU's memory") };
        let (slot, generation, instance) = (self.slot, self.generation, index as u8);
        let mark = Mark::Step { slot, generation, instance, lane: lane as u16 };
        // SAFETY: valid by `start`, the scratch pinned; the checker proves that they do not overlap, and that nothing else
        // touches them before the step is over; the engine settles copies before it gives an operation up.
        unsafe { copies.start(Way::Step, gpu, parts, mark) }?;
        // As a receive does, it ends with a word from elsewhere.
        self.instances[index as usize].lanes[lane].receiving = true;
        Ok(())
    }
}
