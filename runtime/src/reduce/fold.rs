//! Many operands to one result, block by block.

use std::cell::RefCell;

use super::tree::tree_blocks;
use super::{Combine, tree};

/// Bytes of each operand that are reduced at a time: what is computed stays in the first-level cache while the operands pass
/// through it.
const BLOCK_BYTES: usize = 4 << 10;

/// Parameters of a reduction of operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding<'a> {
    pub(crate) combine: Combine,
    pub(crate) element_bytes: usize,
    /// Along the canonical tree instead of in their order.
    pub(crate) canonical: bool,
    /// For the tree's partial results.
    pub(crate) scratch: &'a RefCell<Vec<u8>>,
}

impl Folding<'_> {
    /// Reduces `operands` operands of `bytes` bytes, of which `operand` gives the addresses, into `output`, which may be one of
    /// the first two.
    ///
    /// # Safety
    /// All are valid for as much, and hold whole elements; there is at least one.
    #[inline]
    pub(crate) unsafe fn fold(
        self,
        output: *mut u8,
        bytes: usize,
        operands: usize,
        operand: impl Fn(usize) -> *const u8,
    ) {
        // Sizes are powers of two.
        let shift = self.element_bytes.trailing_zeros();
        // SAFETY: for the whole block: the caller's promise.
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

    /// The same of one or more than two operands, for so many bytes and elements as stay in the first-level cache.
    ///
    /// # Safety
    /// As [`Self::fold`].
    unsafe fn block(
        self,
        output: *mut u8,
        (bytes, count): (usize, usize),
        operands: usize,
        operand: impl Fn(usize) -> *const u8,
    ) {
        // SAFETY: for the whole block: the caller's promise, and scratch of the size that the tree asks for.
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
