//! Copies that bypass the caches.

/// Least memory that a message or a call touches on a host if its results are written with streaming stores, past the
/// caches. It fills a third-level cache, and ordinary stores would first read every line of the destination. See
/// docs/measurements.md, "Streaming stores".
pub const STREAMING_BYTES: usize = 32 << 20;

/// Copies `len` bytes with stores that go to memory without reading the lines first. As with ordinary stores, all
/// bytes are visible to any thread that synchronises with this one afterwards.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::ptr;

    let head = to.align_offset(64).min(len);
    let lines = (len - head) / 64;
    let tail = head + lines * 64;
    // SAFETY: head, lines and tail make up `len`, for which the caller vouches; the lines' destination is aligned to
    // 64 bytes, and the wider form is called only where it exists.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        if is_x86_feature_detected!("avx") {
            stream_lines_wide(from.add(head), to.add(head), lines);
        } else {
            stream_lines(from.add(head), to.add(head), lines);
        }
        // Only this fence orders streaming stores.
        std::arch::x86_64::_mm_sfence();
        ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

/// # Safety
/// `from` is readable and `to` writable for `64 * lines` bytes, `to` is aligned to 64, and they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(mut from: *const u8, mut to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    for _ in 0..lines {
        let (f, t) = (from.cast::<__m128i>(), to.cast::<__m128i>());
        // SAFETY: this is one of the caller's lines; every x86-64 has these instructions.
        unsafe {
            let (a, b) = (_mm_loadu_si128(f), _mm_loadu_si128(f.add(1)));
            let (c, d) = (_mm_loadu_si128(f.add(2)), _mm_loadu_si128(f.add(3)));
            _mm_stream_si128(t, a);
            _mm_stream_si128(t.add(1), b);
            _mm_stream_si128(t.add(2), c);
            _mm_stream_si128(t.add(3), d);
            from = from.add(64);
            to = to.add(64);
        }
    }
}

/// # Safety
/// As [`stream_lines`], on a processor with AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_lines_wide(mut from: *const u8, mut to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};

    for _ in 0..lines {
        // SAFETY: this is one of the caller's lines.
        unsafe {
            let (f, t) = (from.cast::<__m256i>(), to.cast::<__m256i>());
            let (a, b) = (_mm256_loadu_si256(f), _mm256_loadu_si256(f.add(1)));
            _mm256_stream_si256(t, a);
            _mm256_stream_si256(t.add(1), b);
            from = from.add(64);
            to = to.add(64);
        }
    }
}

/// Copies `len` bytes with ordinary stores, on architectures without streaming stores.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
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

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_narrow_form_copies_too() {
        #[repr(align(64))]
        struct Aligned([u8; 640]);
        let source: Vec<u8> = (0..641u32).map(|i| i as u8).collect();
        let mut target = Aligned([0; 640]);
        // SAFETY: both sides have ten lines, and the target's are aligned.
        unsafe { stream_lines(source[1..].as_ptr(), target.0.as_mut_ptr(), 10) };
        assert_eq!(target.0[..], source[1..]);
    }
}
