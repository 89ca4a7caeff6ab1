//! Facts about GPU memory: counters, and how it is reached.

use kolo_gdr::Driver;

use super::Communicator;
use crate::call::Waited;
use crate::communicator::on_gpus;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::gpu::GpuCounters;

/// # GPU memory
impl Communicator {
    /// Returns counts of operations on GPU memory so far.
    #[must_use]
    pub fn gpu_counters(&self) -> GpuCounters {
        self.shared.look(|core| {
            let copies = core.engine.copies();
            let mut counters = core.gpu.counters;
            counters.loaded_bytes += copies.loaded_bytes;
            counters.stored_bytes += copies.stored_bytes;
            counters.flushes += copies.flushes;
            if let Some(bounces) = core.exchange.as_ref().map(Exchange::bounces) {
                counters.loaded_bytes += bounces.loaded_bytes;
                counters.stored_bytes += bounces.stored_bytes;
            }
            counters.untold_buffers = self.shared.gpus.driver.as_ref().map_or(0, Driver::unknown_owners);
            counters
        })
    }

    /// Waits for the work queued so far on a GPU's stream, if `address` is memory that a GPU writes, so that the
    /// stream's writes there are complete. For bindings to libraries that say which stream they write on. Blocks,
    /// without a time-out of Kolo's. `stream` is a `CUstream` as a number, or 1 for the legacy default stream and 2
    /// for the calling thread's.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the driver's message.
    ///
    /// # Safety
    /// The stream exists until this returns.
    pub unsafe fn synchronize_stream(&self, address: *const u8, stream: usize) -> Result<()> {
        let Some(driver) = &self.shared.gpus.driver else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { driver.synchronize(address, stream) }.map_err(|problem| Error::Unsupported {
            context: self.shared.context(Waited::Other("waiting for a stream")),
            problem,
        })
    }

    /// Returns whether calls on raw memory take this address for a GPU's. Always false without a driver.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver cannot say.
    pub fn is_gpu_memory(&self, address: *const u8) -> Result<bool> {
        Ok(on_gpus::owner(&self.shared, address, 1, || Waited::Other("is_gpu_memory"))?.is_some())
    }

    /// Describes in one line how the RDMA adapters of this communicator reach the memory of this rank's GPU, and the
    /// reason for any fallback. `None` if no peer is reached by RDMA.
    #[must_use]
    pub fn gpu_direct(&self) -> Option<String> {
        self.shared.look(|core| core.gpu.plan.as_ref().map(ToString::to_string))
    }
}
