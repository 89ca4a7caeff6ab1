//! Reduction into memory that is written now but not read soon.
//!
//! An ordinary store first reads the cache line that it is about to overwrite. A streaming store does not, which saves
//! a third of the traffic of `dst = a op b`. The operands are combined piece by piece into a buffer that stays in the
//! first-level cache, and streamed out from there, so one loop serves every type and operator.

use super::Combine;

/// Bytes combined at a time: a sixth or less of a first-level cache (32 KiB or more), which also holds the operands'
/// lines on their way through.
#[cfg(target_arch = "x86_64")]
const PIECE_BYTES: usize = 4096;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};
    use std::mem::MaybeUninit;

    use super::{Combine, PIECE_BYTES};

    /// Size of a cache line. Streaming stores are fast only if they fill whole lines.
    const LINE_BYTES: usize = 64;

    #[repr(align(64))]
    struct Piece(MaybeUninit<[u8; PIECE_BYTES]>);

    /// Computes what `kernel` computes, with streaming stores for the whole cache lines of `dst`.
    ///
    /// # Safety
    /// As for [`Combine`], but `dst` overlaps neither operand; `PIECE_BYTES` is a multiple of `element_bytes`.
    pub(super) unsafe fn combine(
        kernel: Combine,
        element_bytes: usize,
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
    ) {
        let bytes = count * element_bytes;
        let head = dst.align_offset(LINE_BYTES).min(bytes);
        if !head.is_multiple_of(element_bytes) {
            // No element starts at the beginning of a line.
            // SAFETY: same contract.
            return unsafe { kernel(dst, a, b, count) };
        }
        let mut piece = Piece(MaybeUninit::uninit());
        let scratch = piece.0.as_mut_ptr().cast::<u8>();
        // SAFETY: head, pieces and tail together are the caller's elements. `dst + at` is aligned to a line, because
        // `head` makes it so and pieces are whole lines. The fence orders the streaming stores before any store that
        // publishes the result, as ordinary stores would be. Test: `streaming_is_the_same`.
        unsafe {
            kernel(dst, a, b, head / element_bytes);
            let mut at = head;
            while bytes - at >= PIECE_BYTES {
                kernel(scratch, a.add(at), b.add(at), PIECE_BYTES / element_bytes);
                for offset in (0..PIECE_BYTES).step_by(size_of::<__m128i>()) {
                    let vector = _mm_load_si128(scratch.add(offset).cast());
                    _mm_stream_si128(dst.add(at + offset).cast(), vector);
                }
                at += PIECE_BYTES;
            }
            _mm_sfence();
            kernel(dst.add(at), a.add(at), b.add(at), (bytes - at) / element_bytes);
        }
    }
}

/// Computes what `kernel` computes, with streaming stores if the processor has them and `dst` is not an operand.
///
/// # Safety
/// As for [`Combine`]; `element_bytes` is the size of the kernel's elements, a power of two.
pub(super) unsafe fn combine(
    kernel: Combine,
    element_bytes: usize,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    let in_place = dst.cast_const() == a || dst.cast_const() == b;
    // SAFETY: same contract; `PIECE_BYTES` is a multiple of any element's size.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if !in_place && count * element_bytes >= PIECE_BYTES {
            return x86_64::combine(kernel, element_bytes, dst, a, b, count);
        }
        let _ = (in_place, element_bytes);
        kernel(dst, a, b, count);
    }
}
