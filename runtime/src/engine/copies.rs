//! Copies between the caller's memory on a GPU and Kolo's memory on the host. They are started here, and polled by each
//! call of progress.
//!
//! There are two streams per GPU, one for each direction, since its engines copy both ways at once. All copies of an
//! engine in one direction run in order, so only the first mark needs to be polled.

use std::sync::Arc;

use kolo_gdr::{Copies, Gpu};
use kolo_transport::{Error, ErrorKind};

use super::memory::Part;

/// Identifies the operation or message that waits for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The segment of an instance, whose input is loaded or output stored; or a lane, whose step is the copy.
    Operation { slot: u16, generation: u16, instance: u8, lane: Option<u16> },
    /// A message.
    Transfer { slot: u16, generation: u16 },
}

/// The kind of a copy, which decides its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyKind {
    /// From the GPU to the host.
    Load,
    /// From the host to the GPU.
    Store,
    /// For a step of the plan.
    Step,
}

/// The copies of an engine.
#[derive(Debug, Default)]
pub(crate) struct CopyQueues {
    queues: Vec<(CopyKind, Copies<Mark>)>,
    /// Bytes copied from GPUs, bytes copied to them, and flushes.
    pub(crate) loaded_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) flushes: u64,
}

impl CopyQueues {
    /// Starts copies. The mark is returned by [`poll`](Self::poll) when they are done.
    ///
    /// # Safety
    /// The memory of the parts is valid, and that of the host is pinned. It stays so, and otherwise untouched, until
    /// the mark is returned or this was settled.
    pub(crate) unsafe fn start(
        &mut self,
        kind: CopyKind,
        gpu: &Arc<Gpu>,
        parts: impl IntoIterator<Item = Part>,
        mark: Mark,
    ) -> Result<(), Error> {
        let known = self
            .queues
            .iter()
            .position(|(other, copies)| *other == kind && copies.gpu().number() == gpu.number());
        let at = match known {
            Some(at) => at,
            None => {
                self.queues.push((kind, Copies::new(gpu).map_err(failed)?));
                self.queues.len() - 1
            }
        };
        let mut bytes = 0;
        let parts = parts.into_iter().inspect(|part| bytes += part.2 as u64);
        // SAFETY: the caller's promise.
        unsafe { self.queues[at].1.start(parts, mark) }.map_err(failed)?;
        match kind {
            CopyKind::Load => self.loaded_bytes += bytes,
            CopyKind::Store => self.stored_bytes += bytes,
            CopyKind::Step => {}
        }
        Ok(())
    }

    /// Makes the adapters' writes to a GPU's memory visible to the GPU.
    pub(crate) fn flush(&mut self, gpu: &Gpu) -> Result<(), Error> {
        self.flushes += 1;
        gpu.flush().map_err(failed)
    }

    /// Returns whether any copy is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.queues.iter().any(|(_, copies)| !copies.is_idle())
    }

    /// Returns the next mark whose copies are done.
    pub(crate) fn poll(&mut self) -> Result<Option<Mark>, Error> {
        for (_, copies) in &mut self.queues {
            if let Some(mark) = copies.poll().map_err(failed)? {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }

    /// Blocks until no copy is under way. Forgets all marks.
    pub(crate) fn settle(&mut self) {
        self.queues.iter_mut().for_each(|(_, copies)| copies.settle());
    }
}

/// Turns a message of the GPU's driver into an error of the engine.
pub(crate) fn failed(words: String) -> Error {
    Error::new(ErrorKind::System, "GPU memory", None, words)
}
