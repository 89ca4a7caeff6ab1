//! Tensors of libraries that lend memory to C without a Python call: `DLPackExchangeAPI` of dlpack.h, from 1.3 on.

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

/// `DLPackManagedTensorFromPyObjectNoSync`: returns 0, or sets an exception.
type Lend = unsafe extern "C" fn(*mut PyObject, *mut *mut DlVersioned) -> c_int;

/// The first type of tensor that was seen, and its library's function; most programs use one type.
static FIRST: PyOnceLock<(Py<PyType>, Lend)> = PyOnceLock::new();

/// A contiguous tensor in host memory, lent until [`Tensor::release`].
#[derive(Debug)]
pub(crate) struct Tensor {
    managed: NonNull<DlVersioned>,
    data_type: DataType,
    elements: usize,
}

impl Tensor {
    /// Borrows the memory of an object; returns `None` if it is not such a tensor. Raises nothing.
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
        // Refuse tensors that require gradients, as `__dlpack__` does but this function does not, and views whose memory holds the
        // negative of their values, which neither does. In libraries without them, tensors lack these attributes.
        let is = |answer: PyResult<Bound<'_, PyAny>>| {
            answer.is_ok_and(|answer| answer.is_truthy().unwrap_or(true))
        };
        if is(object.getattr(intern!(py, "requires_grad"))) || is(object.call_method0(intern!(py, "is_neg")))
        {
            return None;
        }
        let mut managed = ptr::null_mut();
        // SAFETY: the object's type has this function; the interpreter's lock is held.
        let code = unsafe { lend(object.as_ptr(), &raw mut managed) };
        if code != 0 {
            drop(PyErr::take(py));
            return None;
        }
        // SAFETY: the function has returned a tensor of version 1, the version of its table; the tensor is ours until it is given back.
        let versioned = unsafe { NonNull::new(managed)?.as_ref() };
        match versioned.plain(writable) {
            Some((data_type, elements)) => Some(Self { managed: versioned.into(), data_type, elements }),
            None => {
                // SAFETY: as above; the tensor is given back once.
                unsafe { DlVersioned::release(versioned.into()) };
                None
            }
        }
    }

    pub(crate) fn address(&self) -> usize {
        // SAFETY: the tensor is lent until it is given back.
        unsafe { self.managed.as_ref() }.address()
    }

    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements * self.data_type.size()
    }

    /// Gives the tensor back.
    ///
    /// # Safety
    /// Called once, with the interpreter's lock held.
    pub(crate) unsafe fn release(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { DlVersioned::release(self.managed) };
    }
}

#[cold]
fn lender(object: &Bound<'_, PyAny>) -> Option<Lend> {
    let found = object.get_type().getattr(intern!(object.py(), "__dlpack_c_exchange_api__")).ok()?;
    let capsule = found.cast_into::<PyCapsule>().ok()?;
    let exchange = capsule.pointer_checked(Some(NAME)).ok()?.cast::<Exchange>();
    // SAFETY: a capsule of this name points to such a structure, which lives as long as the process. All versions begin with the version;
    // the rest is read only if the version is the known one.
    unsafe { if exchange.as_ref().major == MAJOR { exchange.as_ref().lend } else { None } }
}
