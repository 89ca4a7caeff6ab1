//! GPU memory: which buffers are GPU memory, how calls on them run, and what was registered and counted for that.
//!
//! Each rank decides for itself. Plans, segments and messages do not depend on the kind of memory, so ranks need not
//! agree.

mod bounce;
mod found;
mod path;
mod regions;

use std::sync::Arc;

use kolo_gdr::{Driver, Flush, Gpu, Owner, Path, Plan};

pub(crate) use bounce::{Bounce, Bounces};
pub use found::{InstalledGpus, installed};
pub(crate) use found::{driver, plan};
pub use path::{GpuPath, StagingReason};
use regions::Regions;

use crate::call::{AdapterAccess, Call, GpuBuffers, reduces};
use crate::cancel::Whole;
use crate::engine::Engine;

/// Counts of operations on GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCounters {
    /// Collectives and messages whose bytes adapters moved to and from GPU memory directly.
    pub direct_calls: u64,
    /// Flushes of adapters' writes.
    pub flushes: u64,
    /// Collectives and messages whose bytes were copied through host memory.
    pub staged_calls: u64,
    /// Bytes copied from GPUs for staged calls.
    pub loaded_bytes: u64,
    /// Bytes copied to GPUs for staged calls.
    pub stored_bytes: u64,
    /// Buffers assumed to be host memory because the driver did not say whose they are; the log has its message.
    pub untold_buffers: u64,
}

/// The adapters' access to GPU memory.
#[derive(Debug, Default)]
pub(crate) struct GpuAccess {
    rank: u32,
    /// Plan of the access; `None` if no peer is reached by RDMA.
    pub(crate) plan: Option<Plan>,
    pub(crate) regions: Regions,
    /// Whether it was said that GPU memory is staged although adapters reach GPU memory.
    has_warned: bool,
    pub(crate) counters: GpuCounters,
}

/// A buffer in GPU memory: its GPU, address and bytes.
pub(crate) type Buffer<'a> = (&'a Arc<Gpu>, *const u8, usize);

impl GpuAccess {
    pub(crate) fn new(rank: u32, plan: Option<Plan>) -> Self {
        Self { rank, plan, ..Self::default() }
    }

    /// Returns the expected path of a call on GPU memory, as far as it is known beforehand.
    pub(crate) fn foreseen(&self, call: &Call, all_by_rdma: bool) -> Option<GpuPath> {
        call.gpus.as_deref()?.any()?;
        let (reads, writes) = call.touches();
        let is_mixed = (reads && call.gpus().input.is_none()) || (writes && call.gpus().output.is_none());
        Some(if reduces(call.collective) {
            GpuPath::Staged(StagingReason::Reduces)
        } else if is_mixed {
            GpuPath::Staged(StagingReason::Mixed)
        } else {
            self.direct_or(all_by_rdma)
        })
    }

    /// Returns the direct path if adapters can reach GPU memory, and if RDMA reaches every peer concerned.
    pub(crate) fn direct_or(&self, all_by_rdma: bool) -> GpuPath {
        match &self.plan {
            Some(plan) if plan.path == Path::Staged => GpuPath::Staged(StagingReason::NoPath),
            Some(plan) if plan.flush == Flush::ReadBack => GpuPath::Staged(StagingReason::NoFlush),
            Some(_) if all_by_rdma => GpuPath::Direct,
            _ => GpuPath::Staged(StagingReason::NotRdma),
        }
    }

    /// Registers the buffers that a path needs, counts the call, and returns the path that it takes. `required` demands
    /// the direct path, with some exceptions.
    ///
    /// # Errors
    /// A text, if adapters are required to reach the memory directly, and do not.
    pub(crate) fn settle<'a>(
        &mut self,
        engine: &mut Engine,
        mut path: GpuPath,
        buffers: impl IntoIterator<Item = Buffer<'a>>,
        required: bool,
    ) -> Result<GpuPath, String> {
        let mut words = String::new();
        if path == GpuPath::Direct {
            let by = self.plan.as_ref().map_or(Path::Staged, |plan| plan.path);
            for (gpu, at, len) in buffers.into_iter().filter(|(.., len)| *len > 0) {
                if let Err(refused) = self.regions.reach(engine, gpu, at, len, by) {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(
                            rank = self.rank,
                            "GPU memory is staged: {refused}; further buffers may be, without a warning"
                        );
                    }
                    words = format!(" ({refused})");
                    path = GpuPath::Staged(StagingReason::Refused);
                    break;
                }
            }
        }
        match path {
            GpuPath::Direct => self.counters.direct_calls += 1,
            GpuPath::Staged(why) => {
                let excepted = matches!(why, StagingReason::Reduces | StagingReason::ToItself);
                if required && !excepted {
                    return Err(format!(
                        "KOLO_GDR=require is set, but GPU memory would be copied through host memory: \
                         {why}{words}; KOLO_GDR=auto allows it"
                    ));
                }
                self.counters.staged_calls += 1;
            }
        }
        Ok(path)
    }

    /// Translates a path for the engine.
    pub(crate) fn access(&self, path: GpuPath) -> AdapterAccess {
        match path {
            GpuPath::Direct => {
                let flush = self.plan.as_ref().is_none_or(|plan| plan.flush != Flush::NotNeeded);
                AdapterAccess::Direct { flush }
            }
            GpuPath::Staged(_) => AdapterAccess::Staged,
        }
    }
}

/// The GPUs on which a rank's buffers may lie.
#[derive(Debug)]
pub(crate) struct Gpus {
    pub(crate) rank: u32,
    /// The driver; `None` if there is no driver or no GPU.
    pub(crate) driver: Option<Driver>,
}

impl Gpus {
    /// Returns the GPU that owns this memory, if one does.
    ///
    /// # Errors
    /// A text, if the driver cannot say.
    pub(crate) fn owner(&self, address: *const u8, bytes: usize) -> Result<Option<Arc<Gpu>>, String> {
        let Some(driver) = self.driver.as_ref().filter(|_| !address.is_null()) else { return Ok(None) };
        let found = match driver.owner(address) {
            Ok(Owner::Host) => return Ok(None),
            Ok(Owner::Gpu(number)) => driver.gpu(number).map(Some),
            Ok(Owner::Unknown { words, is_first }) => {
                if is_first {
                    tracing::warn!(
                        rank = self.rank,
                        "the GPU driver does not say whose memory {address:?} is ({words}); it is treated as \
                         host memory, and so are others from now on, without further warnings"
                    );
                }
                Ok(None)
            }
            // An empty buffer is never touched.
            Err(_) if bytes == 0 => Ok(None),
            Err(words) => Err(words),
        };
        found.map_err(|words| format!("finding out whose memory {address:?} is: {words}"))
    }

    /// Notes in a call on raw memory which buffers are GPU memory.
    ///
    /// # Errors
    /// See [`Gpus::owner`].
    #[inline]
    pub(crate) fn locate(&self, call: &mut Call) -> Result<(), String> {
        if self.driver.is_some() { self.locate_both(call) } else { Ok(()) }
    }

    fn locate_both(&self, call: &mut Call) -> Result<(), String> {
        let _whole = Whole::new();
        let (reads, writes) = call.touches();
        let (input_bytes, output_bytes) = call.bytes();
        let input = if reads { self.owner(call.input, input_bytes)? } else { None };
        let output = match writes {
            true if reads && call.input == call.output.cast_const() => input.clone(),
            true => self.owner(call.output, output_bytes)?,
            false => None,
        };
        if input.is_some() || output.is_some() {
            call.gpus = Some(Box::new(GpuBuffers { input, output, ..GpuBuffers::default() }));
        }
        Ok(())
    }
}
