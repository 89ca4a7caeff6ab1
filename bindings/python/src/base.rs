//! The base of `kolo.Communicator`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

use crate::comm::Comm;
use crate::numbers::limit;

/// Holds the compiled communicator and the time-out of `kolo.Communicator`, so that compiled methods reach them directly.
#[pyclass(frozen, subclass, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Base {
    comm: Py<Comm>,
    /// The bits of the time-out in seconds.
    timeout: AtomicU64,
}

#[pymethods]
impl Base {
    /// Wraps `comm`. Without a `timeout`, that of the settings is in force.
    #[new]
    #[pyo3(signature = (comm, timeout=None))]
    fn new(comm: Py<Comm>, timeout: Option<f64>) -> PyResult<Self> {
        let timeout = timeout.map_or_else(|| comm.get().timeout(), Ok)?;
        Ok(Self { comm, timeout: AtomicU64::new(timeout.to_bits()) })
    }

    #[getter]
    fn _comm(&self, py: Python<'_>) -> Py<Comm> {
        self.comm.clone_ref(py)
    }

    /// This process's rank, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.comm().rank()
    }

    /// Number of ranks.
    #[getter]
    fn world_size(&self) -> u32 {
        self.comm().world_size()
    }

    /// Seconds after which a blocking call, or the wait for a started one, gives up.
    #[getter]
    pub(crate) fn timeout(&self) -> f64 {
        f64::from_bits(self.timeout.load(Ordering::Relaxed))
    }

    #[setter]
    fn set_timeout(&self, seconds: f64) {
        self.timeout.store(seconds.to_bits(), Ordering::Relaxed);
    }
}

impl Base {
    pub(crate) fn comm(&self) -> &Comm {
        self.comm.get()
    }

    pub(crate) fn limit(&self) -> Duration {
        limit(self.timeout())
    }
}
