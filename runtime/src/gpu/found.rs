//! Finds the GPUs of this host and the adapters' paths to their memory, when a communicator is made.

use std::ffi::OsStr;

use kolo_gdr::{Cuda, Driver, Plan, decide};

use crate::config::Config;
use crate::error::{Error, Result};

/// Loads the GPU driver's library. `None` if there is no driver or no GPU.
///
/// # Errors
/// [`Error::Configuration`] if a library was named that is not one.
pub(crate) fn driver(config: &Config) -> Result<Option<Driver>> {
    let named = config.cuda_library.as_deref();
    match (Driver::load(named.map(OsStr::new)), named) {
        (Ok(driver), _) => Ok(match driver.has_gpus() {
            Ok(()) => Some(driver),
            Err(because) => {
                tracing::debug!("no buffer is in GPU memory: {because}");
                None
            }
        }),
        (Err(_), None) => Ok(None),
        (Err(problem), Some(_)) => Err(Error::configuration(
            "KOLO_CUDA_LIBRARY",
            problem,
            "Set it to the file name of a libcuda, or unset it",
        )),
    }
}

/// Looks for GPUs on this host. `None` without a GPU driver. Starts the driver, after which this process must not fork
/// children that use GPUs.
///
/// # Errors
/// The driver's words.
#[must_use]
pub fn installed(config: &Config) -> Option<std::result::Result<InstalledGpus, String>> {
    let named = config.cuda_library.as_ref().map(OsStr::new);
    let names = Driver::load(named).ok()?.names();
    let table = Cuda::open(0, named, Err("no adapter is in use".to_owned()));
    let path = decide(config.gdr, &table).map_or_else(|refused| refused.to_string(), |plan| plan.to_string());
    Some(names.map(|names| InstalledGpus { names, path }))
}

/// The GPUs that a process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstalledGpus {
    /// Their names, by number.
    pub names: Vec<String>,
    /// The way of calls to their memory without RDMA, in one line with the reasons.
    pub path: String,
}

/// Decides how adapters reach GPU memory.
///
/// # Errors
/// [`Error::Configuration`] if `KOLO_GDR=require` cannot be satisfied.
pub(crate) fn plan(config: &Config, takes_dma_bufs: std::result::Result<(), String>) -> Result<Plan> {
    // The first GPU that the process sees: launchers assign GPUs by making only one visible.
    let table = Cuda::open(0, config.cuda_library.as_ref().map(OsStr::new), takes_dma_bufs);
    decide(config.gdr, &table).map_err(|refused| {
        Error::configuration("KOLO_GDR", refused.to_string(), "KOLO_GDR=auto stages through host memory")
    })
}
