//! Arrays of ndarray in started calls.

use ndarray::{Array, Dimension};

use super::stable::StableBuffer;

/// An array of ndarray for started calls: `comm.all_reduce_start(DenseArray::from(array), ReduceOp::Sum)`. Its
/// elements lie row by row, so that the same position is the same element on all ranks. Blocking calls take
/// `array.as_slice_mut()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseArray<T, D: Dimension>(Array<T, D>);

impl<T, D: Dimension> DenseArray<T, D> {
    /// Returns the array.
    #[must_use]
    pub fn into_inner(self) -> Array<T, D> {
        self.0
    }
}

/// Copies only if the elements do not lie row by row, as after transposing or slicing.
impl<T: Clone, D: Dimension> From<Array<T, D>> for DenseArray<T, D> {
    fn from(array: Array<T, D>) -> Self {
        Self(if array.is_standard_layout() { array } else { array.as_standard_layout().into_owned() })
    }
}

// SAFETY: an array keeps its elements on the heap, and this one is not changed while it is kept. Its elements are in
// the standard layout, so there is always a slice of them (test `arrays_of_ndarray`).
unsafe impl<T, D: Dimension> StableBuffer for DenseArray<T, D> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self.0.as_slice_mut().unwrap_or_default()
    }
    fn elements_ref(&self) -> &[T] {
        self.0.as_slice().unwrap_or_default()
    }
}
