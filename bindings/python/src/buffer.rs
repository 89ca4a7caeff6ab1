//! Memory that Python objects lend: by the buffer protocol, or as tensors.
//!
//! The limited API that one wheel for all Pythons is built on has this protocol from 3.11 on only. But every CPython since 3.0
//! exports these functions, with this structure: 3.11 declared both stable as they were. So they are declared here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use kolo_rs::DataType;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::tensor::Tensor;

/// `Py_buffer`. Some exporters let `shape` and `strides` point into the structure itself; it is moved here, so neither is
/// looked at: what is asked for is contiguous.
#[repr(C)]
#[derive(Debug)]
struct View {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
/// `PyBUF_C_CONTIGUOUS`, which includes shape and strides.
const C_CONTIGUOUS: c_int = 0x20 | 0x10 | 0x08;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

impl View {
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let null = ptr::null_mut();
        let mut view = Self {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 1,
            readonly: 1,
            ndim: 0,
            format: ptr::null_mut(),
            shape: null,
            strides: null,
            suboffsets: null,
            internal: ptr::null_mut(),
        };
        let flags = C_CONTIGUOUS | FORMAT | if writable { WRITABLE } else { 0 };
        // SAFETY: a live object and a structure to fill; `object` shows that the interpreter's lock is held.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut view, flags) };
        if code == 0 { Ok(view) } else { Err(PyErr::fetch(object.py())) }
    }

    /// The type of its elements, if it is one of Kolo's, in the machine's byte order.
    #[inline]
    fn data_type(&self) -> Option<DataType> {
        let letter = match self.format {
            // By the protocol bytes.
            format if format.is_null() => b'B',
            // SAFETY: not null, so a C string, which lives as long as the view.
            format => match unsafe { CStr::from_ptr(format) }.to_bytes() {
                [letter] | [b'@' | b'=', letter] => *letter,
                [b'<', letter] if cfg!(target_endian = "little") => *letter,
                _ => return None,
            },
        };
        Some(match (letter, self.itemsize) {
            (b'?', 1) => DataType::Bool,
            (b'b', 1) => DataType::I8,
            (b'B' | b'c', 1) => DataType::U8,
            (b'h', 2) => DataType::I16,
            (b'H', 2) => DataType::U16,
            (b'i' | b'l' | b'q' | b'n', 4) => DataType::I32,
            (b'i' | b'l' | b'q' | b'n', 8) => DataType::I64,
            (b'I' | b'L' | b'Q' | b'N', 4) => DataType::U32,
            (b'I' | b'L' | b'Q' | b'N', 8) => DataType::U64,
            (b'e', 2) => DataType::F16,
            (b'f', 4) => DataType::F32,
            (b'd', 8) => DataType::F64,
            _ => return None,
        })
    }
}

/// The loan.
#[derive(Debug)]
enum Loan {
    Buffer(View),
    Tensor(Tensor),
}

impl Loan {
    fn address(&self) -> usize {
        match self {
            Self::Buffer(view) => view.buf as usize,
            Self::Tensor(tensor) => tensor.address(),
        }
    }

    /// # Safety
    /// Once, with the interpreter's lock held.
    unsafe fn release(&mut self) {
        // SAFETY: the caller's promise; the view was filled by `PyObject_GetBuffer`.
        unsafe {
            match self {
                Self::Buffer(view) => PyBuffer_Release(view),
                Self::Tensor(tensor) => tensor.release(),
            }
        }
    }
}

/// Contiguous memory of an object, which stays where it is until this is dropped.
#[derive(Debug)]
pub(crate) struct Lent<'py> {
    loan: Loan,
    /// It is given back with the interpreter's lock held.
    _py: PhantomData<Python<'py>>,
}

impl<'py> Lent<'py> {
    /// The memory that an object lends; `None` if it has none of this kind. Raises nothing.
    #[inline]
    pub(crate) fn of(object: &Bound<'py, PyAny>, writable: bool) -> Option<Self> {
        // SAFETY: a live object.
        let loan = match unsafe { PyObject_CheckBuffer(object.as_ptr()) } {
            0 => Loan::Tensor(Tensor::of(object, writable)?),
            _ => Loan::Buffer(View::of(object, writable).ok()?),
        };
        Some(Self { loan, _py: PhantomData })
    }

    pub(crate) fn address(&self) -> usize {
        self.loan.address()
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.loan {
            Loan::Buffer(view) => view.len as usize,
            Loan::Tensor(tensor) => tensor.bytes(),
        }
    }

    /// The type of its elements, if it is one of Kolo's, in the machine's byte order.
    #[inline]
    pub(crate) fn data_type(&self) -> Option<DataType> {
        match &self.loan {
            Loan::Buffer(view) => view.data_type(),
            Loan::Tensor(tensor) => Some(tensor.data_type()),
        }
    }

    /// The same, for a started operation to keep.
    fn kept(self) -> Loan {
        // SAFETY: read once, and never dropped here.
        unsafe { ptr::read(&raw const std::mem::ManuallyDrop::new(self).loan) }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // SAFETY: given back once; the lifetime shows that the lock is held.
        unsafe { self.loan.release() };
    }
}

/// Buffers that stay lent for as long as this object lives.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Held {
    loans: [Option<Loan>; 2],
}

// SAFETY: only numbers are read of a loan after it was made; and it is given back where Python frees this object, with the
// interpreter's lock held.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    pub(crate) fn new(one: Option<Lent<'_>>, other: Option<Lent<'_>>) -> Self {
        Self { loans: [one.map(Lent::kept), other.map(Lent::kept)] }
    }
}

#[pymethods]
impl Held {
    /// Borrows what `object` lends, or raises what it raises.
    #[new]
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        Ok(Self { loans: [Some(Loan::Buffer(View::of(object, writable)?)), None] })
    }

    /// Where the (first) buffer begins.
    #[getter]
    fn address(&self) -> usize {
        self.loans[0].as_ref().map_or(0, Loan::address)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for loan in self.loans.iter_mut().flatten() {
            // SAFETY: given back once. Python frees objects with its lock held.
            unsafe { loan.release() };
        }
    }
}
