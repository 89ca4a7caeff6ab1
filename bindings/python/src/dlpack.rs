//! Reading the capsules of DLPack, by which array libraries lend each other memory.
//!
//! The capsule is not consumed: whoever holds it keeps the memory, and its destructor gives the memory back.

use std::ffi::{CStr, c_int, c_void};

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::usage;

const NAME: &CStr = c"dltensor";

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

/// Address, shape, strides in elements, type code, bits, lanes.
type Description = (usize, Vec<i64>, Vec<i64>, u8, u8, u16);

/// What an unversioned capsule describes.
#[pyfunction]
pub(crate) fn dlpack(capsule: &Bound<'_, PyCapsule>) -> PyResult<Description> {
    let pointer = capsule.pointer_checked(Some(NAME))?;
    // SAFETY: a capsule of this name holds a `DLManagedTensor`, by the DLPack protocol; `capsule` keeps it alive.
    let tensor = unsafe { pointer.cast::<DlTensor>().as_ref() };
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
    Ok((address, shape, strides, tensor.type_code, tensor.type_bits, tensor.type_lanes))
}
