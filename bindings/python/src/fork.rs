//! Protects objects that a child made by `fork` must not touch.
//!
//! The threads of a communicator do not exist in the child, and its connections are the parent's. So every handle
//! remembers the process that made it. In another process, using it raises, and freeing it leaks the object.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors;

/// The number of forks between the process that loaded the package and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. The package registers a handler that calls it in every child.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A value that belongs to the process that made it.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    forks: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Returns the value; raises in a child of the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.is_ours() => Ok(value),
            _ => Err(errors::usage(
                "this communicator was made before a fork and cannot be used in the child; make a new one there, \
                 or start workers with the 'spawn' or 'forkserver' method",
            )),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(self.value.take());
        }
    }
}
