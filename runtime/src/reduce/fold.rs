//! The arithmetic of a call, and the reduction of many operands to one result, block by block.

use std::cell::RefCell;

use super::tree::tree_blocks;
use super::{Combine, divide, tree};
use crate::types::DataType;

/// Bytes of each operand that are reduced at a time. The partial result stays in the first-level cache while the
/// operands pass through it.
const BLOCK_BYTES: usize = 4 << 10;

/// How a call combines elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    /// The kernel. It does nothing in calls that do not reduce.
    pub(crate) combine: Combine,
    pub(crate) data_type: DataType,
    /// Factor of PremulSum.
    pub(crate) factor: Option<f64>,
    /// Divisor of Avg.
    pub(crate) divisor: Option<u32>,
    /// Whether several operands are reduced along the canonical tree.
    pub(crate) canonical: bool,
}

impl Arithmetic {
    #[inline]
    pub(crate) const fn element_bytes(&self) -> usize {
        self.data_type.size()
    }

    /// Returns how to reduce several operands, with memory for the tree's partial results.
    #[inline]
    pub(crate) const fn folding<'a>(&self, scratch: &'a RefCell<Vec<u8>>) -> Folding<'a> {
        let Self { combine, canonical, .. } = *self;
        Folding { combine, element_bytes: self.element_bytes(), canonical, scratch }
    }

    /// Divides a result by the divisor, if there is one.
    ///
    /// # Safety
    /// The result is valid for `bytes` bytes, which are whole elements.
    #[inline]
    pub(crate) unsafe fn divide(&self, result: *mut u8, bytes: usize) {
        if let Some(by) = self.divisor {
            // SAFETY: the caller's promise, passed on.
            unsafe { divide(self.data_type, result, bytes / self.element_bytes(), by) };
        }
    }
}

/// How to reduce several operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding<'a> {
    combine: Combine,
    element_bytes: usize,
    /// Whether to reduce along the canonical tree instead of in the order of the operands.
    canonical: bool,
    /// Memory for the tree's partial results.
    scratch: &'a RefCell<Vec<u8>>,
}

impl Folding<'_> {
    /// Reduces `operands` operands of `bytes` bytes each into `output`, which may be one of the first two. `operand`
    /// returns an operand's address.
    ///
    /// # Safety
    /// All operands and `output` are valid for `bytes` bytes, which are whole elements; for none, they may be null. There is
    /// at least one operand.
    #[inline]
    pub(crate) unsafe fn fold(
        self,
        output: *mut u8,
        bytes: usize,
        operands: usize,
        operand: impl Fn(usize) -> *const u8,
    ) {
        if bytes == 0 {
            return;
        }
        // Sizes are powers of two.
        let shift = self.element_bytes.trailing_zeros();
        // SAFETY: the blocks are parts of the caller's buffers, which are valid by the caller's promise.
        unsafe {
            if operands == 2 {
                return (self.combine)(output, operand(0), operand(1), bytes >> shift);
            }
            for at in (0..bytes).step_by(BLOCK_BYTES) {
                let bytes = BLOCK_BYTES.min(bytes - at);
                let operand = |index| operand(index).add(at);
                self.block(output.add(at), (bytes, bytes >> shift), operands, operand);
            }
        }
    }

    /// Reduces one operand, or more than two, for a number of bytes and elements that stays in the first-level cache.
    ///
    /// # Safety
    /// As for [`Self::fold`].
    unsafe fn block(
        self,
        output: *mut u8,
        (bytes, count): (usize, usize),
        operands: usize,
        operand: impl Fn(usize) -> *const u8,
    ) {
        // SAFETY: the caller promises valid buffers for the whole block, and scratch has the size that the tree needs.
        unsafe {
            if operands == 1 {
                let from = operand(0);
                if from != output.cast_const() {
                    output.copy_from_nonoverlapping(from, bytes);
                }
            } else if self.canonical {
                let mut scratch = self.scratch.borrow_mut();
                scratch.resize(tree_blocks(operands) * bytes, 0);
                tree(self.combine, count, bytes, operand, operands, (output, &mut scratch));
            } else {
                (self.combine)(output, operand(0), operand(1), count);
                for index in 2..operands {
                    (self.combine)(output, output, operand(index), count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::reduce::combine_fn;
    use crate::types::{DataType, ReduceOp};

    #[test]
    fn nothing_is_reduced_at_null() {
        let combine = combine_fn(DataType::F32, ReduceOp::Sum);
        for (operands, canonical) in [(1, false), (2, false), (3, false), (3, true)] {
            let folding = Folding { combine, element_bytes: 4, canonical, scratch: &RefCell::default() };
            // SAFETY: there are no bytes.
            unsafe { folding.fold(ptr::null_mut(), 0, operands, |_| ptr::null()) };
        }
    }
}
