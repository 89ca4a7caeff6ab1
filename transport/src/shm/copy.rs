//! Copying out of the ring past the caches.

/// Messages at least this long go to their destination with streaming stores. Such a destination does not fit the
/// caches anyway, and ordinary stores would first read every line of it: a third of the memory traffic.
pub(crate) const STREAMING_BYTES: usize = 16 << 20;

/// Copies `len` bytes with stores that go to memory without reading the lines first. All of them are visible to
/// whoever synchronises with this thread afterwards, as with ordinary stores.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::ptr;

    let head = to.align_offset(64).min(len);
    let lines = (len - head) / 64;
    // SAFETY: head, lines and tail make up `len`, for which the caller vouches. The destination of the lines is
    // aligned to 64 bytes; the sources need not be. These instructions are part of every x86-64.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        let (mut from, mut to) = (from.add(head), to.add(head));
        for _ in 0..lines {
            let (f, t) = (from.cast::<__m128i>(), to.cast::<__m128i>());
            let (a, b) = (_mm_loadu_si128(f), _mm_loadu_si128(f.add(1)));
            let (c, d) = (_mm_loadu_si128(f.add(2)), _mm_loadu_si128(f.add(3)));
            _mm_stream_si128(t, a);
            _mm_stream_si128(t.add(1), b);
            _mm_stream_si128(t.add(2), c);
            _mm_stream_si128(t.add(3), d);
            from = from.add(64);
            to = to.add(64);
        }
        // Streaming stores are ordered by nothing else.
        _mm_sfence();
        ptr::copy_nonoverlapping(from, to, len - head - lines * 64);
    }
}

/// Elsewhere, an ordinary copy.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_all_lengths_at_all_alignments() {
        let source: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        for (from, to, len) in
            [(0, 0, 0), (0, 0, 1), (3, 5, 63), (1, 0, 64), (0, 63, 65), (7, 9, 700), (64, 64, 640)]
        {
            let mut target = vec![0xaau8; 1000];
            // SAFETY: both ranges are inside their vectors.
            unsafe { copy_streaming(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
            assert_eq!(target[to..to + len], source[from..from + len]);
            assert!(target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xaa));
        }
    }
}
