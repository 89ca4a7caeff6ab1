//! How adapters reach a GPU's memory, as far as a communicator has to do with it.

use std::ffi::OsStr;

use super::Communicator;
use crate::config::Config;
use crate::error::{Error, Result};
use kolo_gdr::{Cuda, Plan, decide};

impl Communicator {
    /// How the RDMA adapters of this communicator reach the memory of this rank's GPU, and why not better, in a line. None
    /// if no peer is reached by RDMA.
    #[must_use]
    pub fn gpu_direct(&self) -> Option<String> {
        self.shared.look(|core| core.gpu_direct.as_ref().map(ToString::to_string))
    }
}

/// Decides.
///
/// # Errors
/// [`Error::Configuration`] if `KOLO_GDR=require` cannot be had.
pub(super) fn plan(config: &Config, takes_dma_bufs: std::result::Result<(), String>) -> Result<Plan> {
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
