//! State for newcomers: see `kolo.state`.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use kolo_rs::internal::Unpoisoned;
use kolo_rs::state::{Part, State as Inner};
use pyo3::prelude::*;

use crate::comm::Comm;
use crate::errors::exception;

/// The version of a rank's state.
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

    // A share may take long, and no thread may wait for its end with the interpreter's lock held.

    fn version(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.lock().version())
    }

    fn set_version(&self, py: Python<'_>, version: u64) {
        py.detach(|| self.lock().set_version(version));
    }

    /// Shares the state. Returns the bytes received and sent, and the ranks whose chunks failed their hash.
    #[pyo3(signature = (comm, parts, /))]
    fn share(&self, py: Python<'_>, comm: &Comm, mut parts: Vec<Address>) -> PyResult<(u64, u64, Vec<u32>)> {
        comm.with(py, move |comm| {
            let mut named = memory(&mut parts);
            let shared = self.lock().share(comm, &mut as_parts(&mut named))?;
            Ok((shared.received, shared.sent, shared.refetched))
        })
    }

    /// Offers the state to newcomers. Returns whether a copy was made.
    #[pyo3(signature = (comm, is_asked, parts, /))]
    fn offer(&self, py: Python<'_>, comm: &Comm, is_asked: bool, mut parts: Vec<Address>) -> PyResult<bool> {
        comm.with(py, move |comm| {
            let mut named = memory(&mut parts);
            Ok(self.lock().offer_if(comm, is_asked, &as_parts(&mut named)))
        })
    }

    /// Returns whether a copy is kept for newcomers.
    fn is_offering(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().is_offering())
    }

    /// Fetches the members' state. Returns the bytes received.
    #[pyo3(signature = (invitation, parts, seconds, /))]
    fn fetch(
        &self,
        py: Python<'_>,
        invitation: &str,
        mut parts: Vec<Address>,
        seconds: f64,
    ) -> PyResult<u64> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let fetched = py.detach(|| {
            let invitation = invitation.parse()?;
            let mut named = memory(&mut parts);
            self.lock().fetch(&invitation, &mut as_parts(&mut named), limit)
        });
        fetched.map(|fetched| fetched.received).map_err(|error| exception(py, &error))
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unpoisoned()
    }
}

/// Returns the names and the memory of parts.
fn memory<'a>(parts: &'a mut [Address]) -> Vec<(&'a str, &'a mut [u8])> {
    let part = |(name, address, bytes): &'a mut Address| {
        let at = if *bytes == 0 { std::ptr::NonNull::dangling().as_ptr() } else { *address as *mut u8 };
        // SAFETY: Python's promise: the address has `bytes` writable bytes, no two parts overlap, and nothing else uses the memory until
        // the call returns, which drops the slices. `kolo.state` checks that parts do not overlap.
        (name.as_str(), unsafe { std::slice::from_raw_parts_mut(at, *bytes) })
    };
    parts.iter_mut().map(part).collect()
}

fn as_parts<'a>(named: &'a mut [(&'a str, &mut [u8])]) -> Vec<Part<'a>> {
    named.iter_mut().map(|(name, bytes)| Part::new(name, bytes)).collect()
}
