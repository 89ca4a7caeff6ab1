//! State for newcomers: see `kolo.state`.

use std::sync::{Mutex, PoisonError};

use kolo_rs::state::{Part, State as Inner};
use pyo3::prelude::*;

use crate::comm::Comm;

/// Which step a rank's state is of.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct State {
    inner: Mutex<Inner>,
}

/// Name, address and bytes.
type Address = (String, usize, usize);

#[pymethods]
impl State {
    #[new]
    #[pyo3(signature = (version, /))]
    fn new(version: Option<u64>) -> Self {
        Self { inner: Mutex::new(version.map_or_else(Inner::new, Inner::at)) }
    }

    fn version(&self) -> Option<u64> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).version()
    }

    fn set_version(&self, version: u64) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).set_version(version);
    }

    /// Bytes received and sent, and the ranks whose chunks failed their hash.
    #[pyo3(signature = (comm, parts, /))]
    fn share(&self, py: Python<'_>, comm: &Comm, parts: Vec<Address>) -> PyResult<(u64, u64, Vec<u32>)> {
        comm.with(py, move |comm| {
            let part = |(name, address, bytes): &Address| {
                let at =
                    if *bytes == 0 { std::ptr::NonNull::dangling().as_ptr() } else { *address as *mut u8 };
                // SAFETY: Python's promise: writable memory of so many bytes, no two parts overlap, and nobody else uses it until
                // this returns. `kolo.state` checks the overlap.
                (name.clone(), unsafe { std::slice::from_raw_parts_mut(at, *bytes) })
            };
            let mut named: Vec<_> = parts.iter().map(part).collect();
            let mut parts: Vec<_> = named.iter_mut().map(|(name, bytes)| Part::new(name, *bytes)).collect();
            let shared = self.inner.lock().unwrap_or_else(PoisonError::into_inner).share(comm, &mut parts)?;
            Ok((shared.received, shared.sent, shared.refetched))
        })
    }
}
