//! Calls on a GPU's memory: which buffers are such, and how they are carried out.
//!
//! Each rank decides for itself: plans, segments and messages are the same whatever the memory, so ranks need not agree.

use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

use kolo_gdr::{Driver, Gpu, Wish};

use super::Communicator;
use super::shared::{Core, Shared};
use super::waited::Waited;
use crate::call::{Call, reduces, touches};
use crate::config::Config;
use crate::engine::Sides;
use crate::error::{Error, Result};

/// How a call on a GPU's memory is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuPath {
    /// Through pinned memory of the host, for this reason.
    Staged(Staged),
}

/// Why memory of a GPU is copied through the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// The processor reduces.
    Reduces,
    /// Adapters do not reach the memory; [`Communicator::gpu_direct`] says why.
    NoPath,
    /// Some rank is not reached by RDMA.
    NotRdma,
}

impl fmt::Display for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reduces => "the processor reduces",
            Self::NoPath => "adapters do not reach it",
            Self::NotRdma => "not all ranks are reached by RDMA",
        })
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staged(why) => write!(f, "a GPU's memory, copied through the host's: {why}"),
        }
    }
}

/// What was done with memory of GPUs, for calls on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCounters {
    /// Collectives and messages whose bytes were copied through the host's memory.
    pub staged_calls: u64,
    /// Bytes copied from GPUs for that.
    pub loaded_bytes: u64,
    /// Bytes copied to GPUs for that.
    pub stored_bytes: u64,
}

impl Communicator {
    /// What was done with memory of GPUs so far.
    #[must_use]
    pub fn gpu_counters(&self) -> GpuCounters {
        let core = self.shared.core();
        let (loaded, stored) = core.engine.copied_bytes();
        let mut counters = core.gpu_counters;
        counters.loaded_bytes += loaded;
        counters.stored_bytes += stored;
        counters
    }
}

/// The library of the GPUs' driver, if there is one.
///
/// # Errors
/// [`Error::Configuration`] if one was named that is none.
pub(super) fn driver(config: &Config) -> Result<Option<Driver>> {
    let named = config.cuda_library.as_deref();
    match (Driver::load(named.map(OsStr::new)), named) {
        (Ok(driver), _) => Ok(Some(driver)),
        (Err(_), None) => Ok(None),
        (Err(problem), Some(_)) => {
            Err(Error::configuration("KOLO_CUDA_LIBRARY", problem, "Name the file of a libcuda, or none"))
        }
    }
}

impl Shared {
    /// The GPU whose memory this is, if it is one's.
    pub(super) fn gpu_of(&self, address: *const u8, waited: Waited) -> Result<Option<Arc<Gpu>>> {
        let Some(driver) = self.driver.as_ref().filter(|_| !address.is_null()) else { return Ok(None) };
        let found = driver.owner(address).and_then(|number| number.map(|n| driver.gpu(n)).transpose());
        found.map_err(|words| Error::Unsupported {
            context: self.context(waited),
            problem: format!("whose memory {address:?} is: {words}"),
        })
    }

    /// Notes in a call on raw memory which buffers are a GPU's.
    pub(super) fn locate(&self, call: &mut Call) -> Result<()> {
        if self.driver.is_none() {
            return Ok(());
        }
        let waited = Waited::call(call.summary(false), 0);
        let (reads, writes) = touches(call.collective, self.rank == call.root);
        let input = if reads { self.gpu_of(call.input, waited)? } else { None };
        let output = match writes {
            true if reads && call.input == call.output.cast_const() => input.clone(),
            true => self.gpu_of(call.output, waited)?,
            false => None,
        };
        call.sides = Sides { input, output };
        Ok(())
    }

    /// How a call is carried out, if it is on a GPU's memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if adapters must reach the memory by themselves, and do not.
    pub(super) fn gpu_path(&self, core: &Core, call: &Call, waited: Waited) -> Result<Option<GpuPath>> {
        if call.sides.any().is_none() {
            return Ok(None);
        }
        let why = if reduces(call.collective) { Staged::Reduces } else { self.staged_because(core) };
        self.allow(why, core, waited)?;
        Ok(Some(GpuPath::Staged(why)))
    }

    /// Why messages from and to a GPU's memory are staged.
    pub(super) fn staged_because(&self, core: &Core) -> Staged {
        match core.gpu_direct {
            Some(_) => Staged::NoPath,
            None => Staged::NotRdma,
        }
    }

    /// # Errors
    /// [`Error::Unsupported`] if staging for this reason is refused.
    pub(super) fn allow(&self, why: Staged, core: &Core, waited: Waited) -> Result<()> {
        if self.config.gdr != Wish::Require || why == Staged::Reduces {
            return Ok(());
        }
        let more = core.gpu_direct.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
        Err(Error::Unsupported {
            context: self.context(waited),
            problem: format!(
                "KOLO_GDR=require, and a GPU's memory would be copied through the host's: {why}{more}; KOLO_GDR=auto allows it"
            ),
        })
    }
}
