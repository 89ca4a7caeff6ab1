//! The handles of started operations on arrays, as users get them.

use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::prelude::*;

use crate::work::Work;

/// A started operation. It makes progress even if no thread waits for it, and may be dropped at any time.
#[pyclass(frozen, subclass, module = "kolo", name = "Work")]
#[derive(Debug)]
pub(crate) struct Handle {
    work: Work,
    out: Py<PyAny>,
    /// The default time-out of a wait.
    seconds: f64,
    /// The source of a receive, once known; else [`NOBODY`].
    source: AtomicI64,
}

const NOBODY: i64 = -1;

impl Handle {
    pub(crate) fn new(work: Work, out: Py<PyAny>, seconds: f64) -> Self {
        Self { work, out, seconds, source: AtomicI64::new(NOBODY) }
    }
}

#[pymethods]
impl Handle {
    #[new]
    fn of(work: &Bound<'_, Work>, out: Py<PyAny>, seconds: f64) -> PyResult<Self> {
        Ok(Self::new(work.get().taken()?, out, seconds))
    }

    /// Blocks until the operation is complete, at most ``timeout`` seconds (default: the communicator's), and returns its output.
    ///
    /// Raises the same errors as the blocking form of the call. After the time-out, the communicator is aborted. May be called again.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let source = self.work.wait(py, timeout.unwrap_or(self.seconds))?;
        self.source.store(source.map_or(NOBODY, i64::from), Ordering::Relaxed);
        Ok(self.out.clone_ref(py))
    }

    /// Returns whether the operation is complete, successfully or not; never blocks for long.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.work.done(py)
    }

    /// The sender of a received message, after :meth:`wait`; ``None`` for all other operations.
    #[getter]
    fn source(&self) -> Option<u32> {
        u32::try_from(self.source.load(Ordering::Relaxed)).ok()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<kolo.Work {}>", if self.done(py)? { "over" } else { "in progress" }))
    }
}
