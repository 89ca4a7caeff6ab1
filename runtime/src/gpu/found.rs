//! GPUs of this host, and the adapters' access to their memory: determined when a communicator is made.

use std::ffi::OsStr;

use kolo_gdr::{Cuda, Driver, Plan, decide};

use crate::config::Config;
use crate::error::{Error, Result};

/// The library of the GPUs' driver, if there is one, and a GPU.
///
/// # Errors
/// [`Error::Configuration`] if one was named that is none.
pub(crate) fn driver(config: &Config) -> Result<Option<Driver>> {
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

/// Decides how adapters reach a GPU's memory.
///
/// # Errors
/// [`Error::Configuration`] if `KOLO_GDR=require` cannot be had.
pub(crate) fn plan(config: &Config, takes_dma_bufs: std::result::Result<(), String>) -> Result<Plan> {
    // The first that the process sees: launchers deal GPUs out by making only one visible.
    let table = Cuda::open(0, config.cuda_library.as_ref().map(OsStr::new), takes_dma_bufs);
    decide(config.gdr, &table).map_err(|refused| {
        Error::configuration(
            "KOLO_GDR",
            refused.to_string(),
            "KOLO_GDR=auto stages through memory of the host",
        )
    })
}
