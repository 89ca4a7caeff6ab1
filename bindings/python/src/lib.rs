//! The compiled module of the Python package `kolo`: communicators and works on raw addresses.
//!
//! The Python code (`python/kolo/`) finds addresses, lengths and types of the users' objects, and keeps the objects alive. Each call here
//! runs one operation, with the interpreter's lock released. The usual calls on arrays bypass the Python code: `quick.rs` takes them
//! straight from the interpreter, and `buffer.rs` and `tensor.rs` borrow their memory.
//!
//! # Rules
//! 1. An address that Python passes belongs to memory that lives until the call returns or, for started operations, as
//!    long as the `owner` passed with it. The `SAFETY` comments call it "Python's promise"; only `kolo.communicator` and
//!    `kolo.torch` call these functions, and `test_array_values.py` and `test_array_quick.py` drop the memory that they must keep.
//! 2. Nothing waits with the interpreter's lock held.
//! 3. No thread holds a lock of this crate while it waits for the interpreter's lock.
//! 4. Objects made before a fork are neither used nor freed in the child (`fork.rs`).

mod base;
mod board;
mod buffer;
mod calls;
mod comm;
mod dlpack;
mod errors;
mod fork;
mod handle;
mod join;
mod numbers;
mod quick;
mod state;
mod symmetric;
mod tensor;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _kolo {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::base::Base;
    #[pymodule_export]
    use crate::buffer::Held;
    #[pymodule_export]
    use crate::comm::Comm;
    #[pymodule_export]
    use crate::dlpack::dlpack;
    #[pymodule_export]
    use crate::fork::forked;
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::join::{
        connect_board, connect_env, connect_id, connect_url, launched_as, reachable_at, unique_id,
    };
    #[pymodule_export]
    use crate::quick::quicken;
    #[pymodule_export]
    use crate::state::State;
    #[pymodule_export]
    use crate::symmetric::Symmetric;
    #[pymodule_export]
    use crate::work::Work;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const TIMEOUT_REMEDY: &str = kolo_rs::error::TIMEOUT_REMEDY;
    #[pymodule_export]
    const JOIN_REMEDY: &str = kolo_rs::error::JOIN_REMEDY;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::numbers::names().into_iter().try_for_each(|(table, names)| module.add(table, names))
    }
}
