//! Calls on a GPU's memory: which buffers are such, and how they are carried out.
//!
//! Each rank decides for itself: plans, segments and messages are the same whatever the memory, so ranks need not agree.

use std::ffi::OsStr;
use std::sync::Arc;

use kolo_gdr::{Driver, Flush, Gpu, Owner, Path, Wish};

use super::Communicator;
use super::shared::{Core, Shared};
use super::waited::Waited;
use crate::call::{Call, reduces, touches};
use crate::cancel::Whole;
use crate::config::Config;
use crate::engine::Route;
use crate::error::{Error, Result};
use crate::gpu::{GpuPath, Staged};
use crate::sides::{Reach, Sides};

/// What was done with memory of GPUs, for calls on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCounters {
    /// Collectives and messages whose bytes adapters took and put where they belong.
    pub direct_calls: u64,
    /// How often what adapters had written was flushed.
    pub flushes: u64,
    /// Collectives and messages whose bytes were copied through the host's memory.
    pub staged_calls: u64,
    /// Bytes copied from GPUs for that.
    pub loaded_bytes: u64,
    /// Bytes copied to GPUs for that.
    pub stored_bytes: u64,
    /// Buffers taken for the host's because the driver did not tell whose they are; the log has its words.
    pub untold_buffers: u64,
}

impl Communicator {
    /// What was done with memory of GPUs so far.
    #[must_use]
    pub fn gpu_counters(&self) -> GpuCounters {
        self.shared.look(|core| {
            let (loaded, stored, flushes) = core.engine.copied();
            let mut counters = core.gpu_counters;
            counters.loaded_bytes += loaded;
            counters.stored_bytes += stored;
            counters.flushes += flushes;
            counters.untold_buffers = self.shared.driver.as_ref().map_or(0, Driver::untold);
            counters
        })
    }

    /// Waits until what is queued on a stream of a GPU so far is done, if `address` is memory that a GPU writes: then what the
    /// stream writes there is there. For bindings to libraries that say on which stream they write. Blocks, without a time-out
    /// of ours. `stream` is a `CUstream` as a number, or 1 for the legacy default stream and 2 for the calling thread's.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what the driver says.
    ///
    /// # Safety
    /// The stream exists until this returns.
    pub unsafe fn synchronize_stream(&self, address: *const u8, stream: usize) -> Result<()> {
        let Some(driver) = &self.shared.driver else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { driver.synchronize(address, stream) }.map_err(|problem| Error::Unsupported {
            context: self.shared.context(Waited::other("waiting for a stream")),
            problem,
        })
    }
}

impl Communicator {
    /// Whether calls on raw memory take this address for a GPU's; no address is where there is no driver.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver cannot say.
    pub fn is_gpu_memory(&self, address: *const u8) -> Result<bool> {
        Ok(self.shared.gpu_of((address, 1), || Waited::other("is_gpu_memory"))?.is_some())
    }
}

/// The library of the GPUs' driver, if there is one, and a GPU.
///
/// # Errors
/// [`Error::Configuration`] if one was named that is none.
pub(super) fn driver(config: &Config) -> Result<Option<Driver>> {
    let named = config.cuda_library.as_deref();
    match (Driver::load(named.map(OsStr::new)), named) {
        (Ok(driver), _) => Ok(match driver.has_gpus() {
            Ok(()) => Some(driver),
            Err(because) => {
                tracing::debug!("no buffer is a GPU's: {because}");
                None
            }
        }),
        (Err(_), None) => Ok(None),
        (Err(problem), Some(_)) => {
            Err(Error::configuration("KOLO_CUDA_LIBRARY", problem, "Name the file of a libcuda, or none"))
        }
    }
}

impl Shared {
    /// The GPU whose memory this is, if it is one's.
    pub(super) fn gpu_of(
        &self,
        (address, bytes): (*const u8, usize),
        waited: impl FnOnce() -> Waited,
    ) -> Result<Option<Arc<Gpu>>> {
        let Some(driver) = self.driver.as_ref().filter(|_| !address.is_null()) else { return Ok(None) };
        let found = match driver.owner(address) {
            Ok(Owner::Host) => return Ok(None),
            Ok(Owner::Gpu(number)) => driver.gpu(number).map(Some),
            Ok(Owner::Untold { words, is_first }) => {
                if is_first {
                    tracing::warn!(
                        rank = self.rank,
                        "the GPU's driver does not tell whose memory {address:?} is ({words}); it is taken for the \
                         host's, and others from now on without a word"
                    );
                }
                Ok(None)
            }
            // Nobody touches it.
            Err(_) if bytes == 0 => Ok(None),
            Err(words) => Err(words),
        };
        found.map_err(|words| Error::Unsupported {
            context: self.context(waited()),
            problem: format!("whose memory {address:?} is: {words}"),
        })
    }

    /// Notes in a call on raw memory which buffers are a GPU's.
    pub(super) fn locate(&self, call: &mut Call) -> Result<()> {
        if self.driver.is_none() {
            return Ok(());
        }
        let _whole = Whole::new();
        let waited = || Waited::call(call.summary(false), 0);
        let (reads, writes) = touches(call.collective, self.rank == call.root);
        let (input_bytes, output_bytes) = call.bytes(self.rank, self.world_size);
        let input = if reads { self.gpu_of((call.input, input_bytes), waited)? } else { None };
        let output = match writes {
            true if reads && call.input == call.output.cast_const() => input.clone(),
            true => self.gpu_of((call.output, output_bytes), waited)?,
            false => None,
        };
        if input.is_some() || output.is_some() {
            call.gpus = Some(Box::new(Sides { input, output, ..Sides::default() }));
        }
        Ok(())
    }

    /// How a call is carried out, if it is on a GPU's memory; registers what it needs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if adapters must reach the memory by themselves, and do not.
    pub(super) fn gpu_path(&self, core: &mut Core, call: &Call, waited: Waited) -> Result<Option<GpuPath>> {
        let _whole = Whole::new();
        let Some(path) = self.foreseen(core, call) else { return Ok(None) };
        let (input, output) = call.bytes(self.rank, self.world_size);
        let buffers = [
            (&call.sides().input, call.input, input),
            (&call.sides().output, call.output.cast_const(), output),
        ];
        let buffers = buffers.into_iter().filter_map(|(gpu, at, len)| Some((gpu.as_ref()?, at, len)));
        self.settle_path(core, path, buffers, waited).map(Some)
    }

    /// How a message from or to a GPU's memory is carried out; registers what it needs.
    ///
    /// # Errors
    /// As [`Shared::gpu_path`].
    pub(super) fn message_path(
        &self,
        core: &mut Core,
        peer: Option<u32>,
        buffer: (&Arc<Gpu>, *const u8, usize),
        waited: Waited,
    ) -> Result<GpuPath> {
        let reached = Route::uses_adapters;
        let concerned = |route: &&Route| peer.is_none_or(|peer| route.peer == peer);
        let path = match peer {
            Some(peer) if peer == self.rank => GpuPath::Staged(Staged::ToItself),
            _ => direct_or(core, self.routes.iter().filter(concerned).all(reached)),
        };
        self.settle_path(core, path, [buffer], waited)
    }

    /// How a call will be carried out as far as can be told beforehand, if it is on a GPU's memory.
    pub(super) fn foreseen(&self, core: &Core, call: &Call) -> Option<GpuPath> {
        call.gpus.as_deref()?.any()?;
        let (reads, writes) = touches(call.collective, self.rank == call.root);
        let is_mixed = (reads && call.sides().input.is_none()) || (writes && call.sides().output.is_none());
        Some(if reduces(call.collective) {
            GpuPath::Staged(Staged::Reduces)
        } else if is_mixed {
            GpuPath::Staged(Staged::Mixed)
        } else {
            direct_or(core, self.routes.iter().all(Route::uses_adapters))
        })
    }

    fn settle_path<'a>(
        &self,
        core: &mut Core,
        mut path: GpuPath,
        buffers: impl IntoIterator<Item = (&'a Arc<Gpu>, *const u8, usize)>,
        waited: Waited,
    ) -> Result<GpuPath> {
        let mut words = String::new();
        if path == GpuPath::Direct {
            let Core { engine, gpu_regions, gpu_direct, .. } = core;
            let by = gpu_direct.as_ref().map_or(Path::Staged, |plan| plan.path);
            for (gpu, at, len) in buffers.into_iter().filter(|(.., len)| *len > 0) {
                if let Err(refused) = gpu_regions.reach(engine, gpu, at, len, by) {
                    tracing::warn!(rank = self.rank, "GPU memory is staged: {refused}");
                    words = format!(" ({refused})");
                    path = GpuPath::Staged(Staged::Refused);
                    break;
                }
            }
        }
        match path {
            GpuPath::Direct => core.gpu_counters.direct_calls += 1,
            GpuPath::Staged(why) => {
                let excepted = matches!(why, Staged::Reduces | Staged::ToItself);
                if self.config.gdr == Wish::Require && !excepted {
                    return Err(Error::Unsupported {
                        context: self.context(waited),
                        problem: format!(
                            "KOLO_GDR=require, and a GPU's memory would be copied through the host's: {why}{words}; \
                             KOLO_GDR=auto allows it"
                        ),
                    });
                }
                core.gpu_counters.staged_calls += 1;
            }
        }
        Ok(path)
    }
}

impl Core {
    /// What a path is to the engine.
    pub(super) fn reach(&self, path: GpuPath) -> Reach {
        match path {
            GpuPath::Direct => {
                let flush = self.gpu_direct.as_ref().is_none_or(|plan| plan.flush != Flush::NotNeeded);
                Reach::Direct { flush }
            }
            GpuPath::Staged(_) => Reach::Staged,
        }
    }
}

/// Direct if adapters can, and reach all that they would have to.
fn direct_or(core: &Core, all_reached: bool) -> GpuPath {
    match &core.gpu_direct {
        Some(plan) if plan.path == Path::Staged => GpuPath::Staged(Staged::NoPath),
        Some(plan) if plan.flush == Flush::ReadBack => GpuPath::Staged(Staged::NoFlush),
        Some(_) if all_reached => GpuPath::Direct,
        _ => GpuPath::Staged(Staged::NotRdma),
    }
}
