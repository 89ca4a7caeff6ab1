//! Symmetric buffers, for as long as an array lies in one.

use kolo_rs::SymmetricBuffer;
use pyo3::prelude::*;

/// The memory of a symmetric buffer, which ends with it. `kolo.communicator` makes arrays over it, which keep it.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Symmetric {
    #[pyo3(get)]
    address: usize,
    #[pyo3(get)]
    bytes: usize,
    /// Kept for its end.
    _memory: SymmetricBuffer<u8>,
}

impl Symmetric {
    pub(crate) fn new(mut memory: SymmetricBuffer<u8>) -> Self {
        let (address, bytes) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        Self { address, bytes, _memory: memory }
    }
}
