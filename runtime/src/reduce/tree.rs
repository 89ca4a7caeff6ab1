//! The canonical tree: an order of combining partial results that depends only on the number of ranks.

use super::Combine;

/// Returns the blocks of scratch that [`tree`] needs for `len` payloads: a partial result for each level.
pub(crate) fn tree_blocks(len: usize) -> usize {
    len.ilog2() as usize + 1
}

/// Reduces `len` payloads along the canonical tree, as the canonical generators do: of `len` = 2^k + e ranks, the first
/// 2e are added in pairs, and the resulting 2^k values in a balanced tree. `output` may be one of the payloads, because
/// it is written last. Payloads are read where they are. `scratch` has room for [`tree_blocks`] blocks.
///
/// # Safety
/// Payloads and `output` hold `count` elements in `bytes` bytes; `len` is at least 2.
pub(crate) unsafe fn tree(
    combine: Combine,
    count: usize,
    bytes: usize,
    payload: impl Fn(usize) -> *const u8,
    len: usize,
    (output, scratch): (*mut u8, &mut [u8]),
) {
    let leaves = 1 << len.ilog2();
    assert!(scratch.len() >= tree_blocks(len) * bytes, "{} bytes of scratch", scratch.len());
    let tree = Tree { combine, count, bytes, payload, pairs: len - leaves };
    let blocks = scratch.as_mut_ptr();
    // SAFETY: the caller promises valid payloads and output, and the size of scratch was checked.
    unsafe {
        let left = tree.value(blocks, 0, leaves / 2);
        let right = tree.value(blocks.add(bytes), leaves / 2, leaves / 2);
        combine(output, left, right, count);
    }
}

struct Tree<P> {
    combine: Combine,
    count: usize,
    bytes: usize,
    payload: P,
    /// Number of leaves that are sums of two payloads. These are the first leaves.
    pairs: usize,
}

impl<P: Fn(usize) -> *const u8> Tree<P> {
    /// Returns the address of the value of `leaves` leaves from `first` on. The value is in the first block of
    /// `blocks`, or is a payload.
    ///
    /// # Safety
    /// As for [`tree`]. There is a block for each level of the subtree.
    unsafe fn value(&self, blocks: *mut u8, first: usize, leaves: usize) -> *const u8 {
        let payload = &self.payload;
        if leaves == 1 && first >= self.pairs {
            return payload(first + self.pairs);
        }
        // SAFETY: the caller's promise covers both halves: each needs one level less, and the right half begins one
        // block further on.
        unsafe {
            let (left, right) = if leaves == 1 {
                (payload(2 * first), payload(2 * first + 1))
            } else {
                let half = leaves / 2;
                (self.value(blocks, first, half), self.value(blocks.add(self.bytes), first + half, half))
            };
            (self.combine)(blocks, left, right, self.count);
        }
        blocks
    }
}
