//! Tensors of libraries that lend them to C without a call of Python: `DLPackExchangeAPI` of dlpack.h, from 1.3 on.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use kolo_rs::DataType;
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};

use crate::dlpack::{DlVersioned, MAJOR};

const NAME: &CStr = c"dlpack_exchange_api";

/// The beginning of `DLPackExchangeAPI`: its version, and two functions.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    previous: *const c_void,
    allocate: *const c_void,
    lend: Option<Lend>,
}

/// `DLPackManagedTensorFromPyObjectNoSync`: 0, or an exception is set.
type Lend = unsafe extern "C" fn(*mut PyObject, *mut *mut DlVersioned) -> c_int;

/// The first kind of tensor that was met, and its library's function: most programs use one kind.
static FIRST: PyOnceLock<(Py<PyType>, Lend)> = PyOnceLock::new();

/// A contiguous tensor in the host's memory that is lent until [`Tensor::release`].
#[derive(Debug)]
pub(crate) struct Tensor {
    managed: NonNull<DlVersioned>,
    data_type: DataType,
    elements: usize,
}

impl Tensor {
    /// The memory that an object lends; `None` if it is no such tensor. Raises nothing.
    #[inline]
    pub(crate) fn of(object: &Bound<'_, PyAny>, writable: bool) -> Option<Self> {
        let py = object.py();
        let lend = match FIRST.get(py) {
            Some((kind, lend)) if object.get_type().is(kind) => *lend,
            known => {
                let (kind, lend) = (object.get_type(), lender(object)?);
                if known.is_none() {
                    let _ = FIRST.set(py, (kind.unbind(), lend));
                }
                lend
            }
        };
        // The function does not ask, as `__dlpack__` does. A library without gradients has none.
        if object.getattr(intern!(py, "requires_grad")).is_ok_and(|asks| asks.is_truthy().unwrap_or(true)) {
            return None;
        }
        let mut managed = ptr::null_mut();
        // SAFETY: an object of the type that the function was found at; the interpreter's lock is held.
        let code = unsafe { lend(object.as_ptr(), &raw mut managed) };
        if code != 0 {
            drop(PyErr::take(py));
            return None;
        }
        // SAFETY: the function gave a tensor of version 1, as its own is, which is ours until it is given back.
        let versioned = unsafe { NonNull::new(managed)?.as_ref() };
        match versioned.plain(writable) {
            Some((data_type, elements)) => Some(Self { managed: versioned.into(), data_type, elements }),
            None => {
                // SAFETY: as above; given back once.
                unsafe { DlVersioned::release(versioned.into()) };
                None
            }
        }
    }

    pub(crate) fn address(&self) -> usize {
        // SAFETY: lent until it is given back.
        unsafe { self.managed.as_ref() }.address()
    }

    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements * self.data_type.size()
    }

    /// Gives it back.
    ///
    /// # Safety
    /// Once, with the interpreter's lock held.
    pub(crate) unsafe fn release(&mut self) {
        // SAFETY: handed on.
        unsafe { DlVersioned::release(self.managed) };
    }
}

#[cold]
fn lender(object: &Bound<'_, PyAny>) -> Option<Lend> {
    let found = object.get_type().getattr(intern!(object.py(), "__dlpack_c_exchange_api__")).ok()?;
    let capsule = found.cast_into::<PyCapsule>().ok()?;
    let exchange = capsule.pointer_checked(Some(NAME)).ok()?.cast::<Exchange>();
    // SAFETY: a capsule of this name points to such a structure, which lives as long as the process. Its version comes first
    // in all of them; the rest is of the version that is known.
    unsafe { if exchange.as_ref().major == MAJOR { exchange.as_ref().lend } else { None } }
}
