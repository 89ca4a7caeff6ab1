//! Reading the capsules of DLPack, by which array libraries lend each other memory.
//!
//! The capsule is not consumed: whoever holds it keeps the memory, and its destructor gives the memory back.

use std::ffi::{CStr, c_int, c_void};

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::usage;

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// `DLManagedTensorVersioned`, as far as the array.
#[repr(C)]
#[derive(Debug)]
struct DlVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: *const c_void,
    flags: u64,
    tensor: DlTensor,
}

/// Minor versions add only what need not be understood.
const MAJOR: u32 = 1;

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

/// More than any array has.
const DIMENSIONS_MOST: usize = 64;

/// Address, shape, strides in elements, type code, bits, lanes, and the flags, if it says any.
type Description = (usize, Vec<i64>, Vec<i64>, u8, u8, u16, Option<u64>);

/// What a capsule describes.
#[pyfunction]
pub(crate) fn dlpack(capsule: &Bound<'_, PyCapsule>) -> PyResult<Description> {
    let (tensor, flags) = if capsule.is_valid_checked(Some(VERSIONED_NAME)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED_NAME))?.cast::<DlVersioned>();
        // SAFETY: a capsule of this name holds a `DLManagedTensorVersioned`, by the DLPack protocol, which begins with its
        // version whatever that is; `capsule` keeps it alive.
        let major = unsafe { (*pointer.as_ptr()).major };
        if major != MAJOR {
            return Err(usage(format!(
                "the DLPack capsule is of version {major}; Kolo reads version {MAJOR}"
            )));
        }
        // SAFETY: as above, of a version whose layout is this.
        let versioned = unsafe { pointer.as_ref() };
        (&versioned.tensor, Some(versioned.flags))
    } else {
        // SAFETY: a capsule of this name holds a `DLManagedTensor`, by the DLPack protocol; `capsule` keeps it alive.
        (unsafe { capsule.pointer_checked(Some(NAME))?.cast::<DlTensor>().as_ref() }, None)
    };
    let dimensions = usize::try_from(tensor.dimensions).ok().filter(|n| *n <= DIMENSIONS_MOST);
    let dimensions = dimensions.ok_or_else(|| usage("the DLPack capsule describes no array"))?;
    let list = |from: *const i64| -> Option<Vec<i64>> {
        if from.is_null() {
            return (dimensions == 0).then(Vec::new);
        }
        // SAFETY: by the protocol there is an entry per dimension.
        Some(unsafe { std::slice::from_raw_parts(from, dimensions) }.to_vec())
    };
    let shape = list(tensor.shape).ok_or_else(|| usage("the DLPack capsule has no shape"))?;
    // No strides means that the array is contiguous.
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
