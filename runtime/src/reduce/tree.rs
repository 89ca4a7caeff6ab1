//! The order in which partial results are combined so that it depends on the number of ranks only.

use super::Combine;

/// Reduces `len` payloads along the canonical tree, as the canonical generators do: of `len` = 2^k + e ranks the first 2e
/// are added in pairs, and the 2^k values that there are then in a balanced tree. The result is the first block of
/// `scratch`, which has room for 2^k.
///
/// # Safety
/// Payloads hold `count` elements in `bytes` bytes; `len` is at least 2.
pub(crate) unsafe fn tree(
    combine: Combine,
    count: usize,
    bytes: usize,
    payload: impl Fn(usize) -> *const u8,
    len: usize,
    scratch: &mut [u8],
) {
    let leaves = 1 << len.ilog2();
    let pairs = len - leaves;
    let blocks = scratch.as_mut_ptr();
    // SAFETY: for the whole block: blocks are below `leaves`; a destination is one of its operands or neither.
    unsafe {
        for leaf in 0..leaves {
            let to = blocks.add(leaf * bytes);
            if leaf < pairs {
                combine(to, payload(2 * leaf), payload(2 * leaf + 1), count);
            } else {
                to.copy_from_nonoverlapping(payload(leaf + pairs), bytes);
            }
        }
        let mut width = 1;
        while width < leaves {
            for left in (0..leaves).step_by(2 * width) {
                let to = blocks.add(left * bytes);
                combine(to, to, blocks.add((left + width) * bytes), count);
            }
            width *= 2;
        }
    }
}
