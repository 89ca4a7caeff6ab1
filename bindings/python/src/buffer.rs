//! Memory that Python objects lend, by the buffer protocol or as tensors.
//!
//! One wheel serves all Pythons, so it is built on the limited API, which has the buffer protocol only from 3.11 on. But every CPython
//! since 3.0 exports these functions with this structure, and 3.11 declared both stable unchanged. So this module declares them itself.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use kolo_rs::DataType;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::tensor::Tensor;

/// `Py_buffer`. Some exporters let `shape` and `strides` point into the structure itself. It is moved here, so neither is read; they are
/// not needed, since only contiguous memory is requested.
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
        // SAFETY: the object is live, and the structure may be filled; `object` shows that the interpreter's lock is held.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut view, flags) };
        if code == 0 { Ok(view) } else { Err(PyErr::fetch(object.py())) }
    }

    /// Returns the type of the elements, if it is one of Kolo's, in the machine's byte order.
    #[inline]
    fn data_type(&self) -> Option<DataType> {
        let letter = match self.format {
            // By the protocol, these are unsigned bytes.
            format if format.is_null() => b'B',
            // SAFETY: the format is not null, so it is a C string, which lives as long as the view.
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

/// Lent memory, which must be released.
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

    /// Gives the memory back.
    ///
    /// # Safety
    /// Called once, with the interpreter's lock held.
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
    /// Shows that the interpreter's lock is held when the memory is given back.
    _py: PhantomData<Python<'py>>,
}

impl<'py> Lent<'py> {
    /// Borrows the memory of an object; returns `None` if it has none of this kind. Raises nothing.
    #[inline]
    pub(crate) fn of(object: &Bound<'py, PyAny>, writable: bool) -> Option<Self> {
        // SAFETY: the object is live.
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

    /// Returns the type of the elements, if it is one of Kolo's, in the machine's byte order.
    #[inline]
    pub(crate) fn data_type(&self) -> Option<DataType> {
        match &self.loan {
            Loan::Buffer(view) => view.data_type(),
            Loan::Tensor(tensor) => Some(tensor.data_type()),
        }
    }

    /// Converts to a loan that a started operation keeps.
    fn kept(self) -> Loan {
        // SAFETY: the loan is read once, and `self` is not dropped.
        unsafe { ptr::read(&raw const std::mem::ManuallyDrop::new(self).loan) }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // SAFETY: the memory is given back once; the lifetime shows that the lock is held.
        unsafe { self.loan.release() };
    }
}

/// Buffers that stay lent for as long as this object lives.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Held {
    loans: [Option<Loan>; 2],
}

// SAFETY: after a loan is made, only its numbers are read. It is given back when Python frees this object, with the interpreter's lock
// held.
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
    /// Borrows the memory of `object`; raises the object's exception if that fails.
    #[new]
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        Ok(Self { loans: [Some(Loan::Buffer(View::of(object, writable)?)), None] })
    }

    /// The address of the (first) buffer.
    #[getter]
    fn address(&self) -> usize {
        self.loans[0].as_ref().map_or(0, Loan::address)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for loan in self.loans.iter_mut().flatten() {
            // SAFETY: the memory is given back once. Python frees objects with its lock held.
            unsafe { loan.release() };
        }
    }
}
