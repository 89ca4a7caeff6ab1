//! Reads DLPack capsules, by which array libraries lend each other memory.
//!
//! A capsule is not consumed: the memory stays as long as the capsule, whose destructor gives the memory back.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use kolo_rs::DataType;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::usage;

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DlVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// The supported major version. Minor versions add only fields that need not be understood.
pub(crate) const MAJOR: u32 = 1;

const PROCESSOR: c_int = 1;
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;

impl DlVersioned {
    /// Returns the type and number of the elements, if the tensor is in contiguous host memory, has elements of one of Kolo's types, and
    /// is writable if that is wanted.
    pub(crate) fn plain(&self, writable: bool) -> Option<(DataType, usize)> {
        let tensor = &self.tensor;
        if tensor.device_type != PROCESSOR || (writable && self.flags & (READ_ONLY | COPIED) != 0) {
            return None;
        }
        let data_type = match (tensor.type_code, tensor.type_bits, tensor.type_lanes) {
            (0, 8, 1) => DataType::I8,
            (0, 16, 1) => DataType::I16,
            (0, 32, 1) => DataType::I32,
            (0, 64, 1) => DataType::I64,
            (1, 8, 1) => DataType::U8,
            (1, 16, 1) => DataType::U16,
            (1, 32, 1) => DataType::U32,
            (1, 64, 1) => DataType::U64,
            (2, 16, 1) => DataType::F16,
            (2, 32, 1) => DataType::F32,
            (2, 64, 1) => DataType::F64,
            (4, 16, 1) => DataType::BF16,
            (6, 8, 1) => DataType::Bool,
            _ => return None,
        };
        let mut elements = 1_i64;
        for axis in (0..usize::try_from(tensor.dimensions).ok()?).rev() {
            // SAFETY: by the protocol, there is an entry per dimension; strides may be missing if the tensor is contiguous.
            let (extent, stride) = unsafe {
                let stride = (!tensor.strides.is_null()).then(|| *tensor.strides.add(axis));
                (*tensor.shape.add(axis), stride)
            };
            if extent != 1 && stride.is_some_and(|stride| stride != elements) {
                return None;
            }
            elements *= extent;
        }
        Some((data_type, usize::try_from(elements).ok()?))
    }

    pub(crate) fn address(&self) -> usize {
        self.tensor.data as usize + self.tensor.byte_offset as usize
    }

    /// Gives the tensor back to its library.
    ///
    /// # Safety
    /// The caller owns the tensor, and nothing uses it any more. The interpreter's lock is held.
    pub(crate) unsafe fn release(this: NonNull<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(deleter) = this.as_ref().deleter {
                deleter(this.as_ptr());
            }
        }
    }
}

/// `DLTensor` of dlpack.h, with which `DLManagedTensor` starts.
#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device_type: c_int,
    device_id: c_int,
    dimensions: c_int,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A limit above the number of dimensions of any array.
const DIMENSIONS_MOST: usize = 64;

/// Address, shape, strides in elements, type code, bits, lanes, and the flags, if the capsule has any.
type Description = (usize, Vec<i64>, Vec<i64>, u8, u8, u16, Option<u64>);

/// Describes a capsule's tensor.
#[pyfunction]
pub(crate) fn dlpack(capsule: &Bound<'_, PyCapsule>) -> PyResult<Description> {
    let (tensor, flags) = if capsule.is_valid_checked(Some(VERSIONED_NAME)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED_NAME))?.cast::<DlVersioned>();
        // SAFETY: by the DLPack protocol, a capsule of this name holds a `DLManagedTensorVersioned`, which in all versions begins with the
        // version; `capsule` keeps it alive.
        let major = unsafe { (*pointer.as_ptr()).major };
        if major != MAJOR {
            return Err(usage(format!(
                "the DLPack capsule has version {major}, but Kolo reads version {MAJOR}"
            )));
        }
        // SAFETY: as above, and the version has this layout.
        let versioned = unsafe { pointer.as_ref() };
        (&versioned.tensor, Some(versioned.flags))
    } else {
        // SAFETY: by the DLPack protocol, a capsule of this name holds a `DLManagedTensor`; `capsule` keeps it alive.
        (unsafe { capsule.pointer_checked(Some(NAME))?.cast::<DlTensor>().as_ref() }, None)
    };
    let dimensions = usize::try_from(tensor.dimensions).ok().filter(|n| *n <= DIMENSIONS_MOST);
    let dimensions = dimensions.ok_or_else(|| usage("the DLPack capsule does not describe an array"))?;
    let list = |from: *const i64| -> Option<Vec<i64>> {
        if from.is_null() {
            return (dimensions == 0).then(Vec::new);
        }
        // SAFETY: by the protocol, there is an entry per dimension.
        Some(unsafe { std::slice::from_raw_parts(from, dimensions) }.to_vec())
    };
    let shape = list(tensor.shape).ok_or_else(|| usage("the DLPack capsule has no shape"))?;
    // An array without strides is contiguous.
    let strides = list(tensor.strides).unwrap_or_else(|| {
        let mut strides = vec![1; dimensions];
        for axis in (1..dimensions).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        strides
    });
    let address = tensor.data as usize + tensor.byte_offset as usize;
    Ok((address, shape, strides, tensor.type_code, tensor.type_bits, tensor.type_lanes, flags))
}
