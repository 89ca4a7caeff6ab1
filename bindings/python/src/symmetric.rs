//! Symmetric buffers as Python objects. A buffer lives as long as an array lies in it.

use kolo_rs::SymmetricBuffer;
use pyo3::prelude::*;

/// A symmetric buffer, which is freed with this object. `kolo.communicator` makes arrays on it, which keep the object alive.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Symmetric {
    #[pyo3(get)]
    address: usize,
    #[pyo3(get)]
    bytes: usize,
    /// Frees the memory when it is dropped.
    _memory: SymmetricBuffer<u8>,
}

impl Symmetric {
    pub(crate) fn new(mut memory: SymmetricBuffer<u8>) -> Self {
        let (address, bytes) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        Self { address, bytes, _memory: memory }
    }
}
