//! Copies and reductions over pieces: the memory work of a step.

use kolo_transport::shm::copy_streaming;
use kolo_transport::{Cursor, Piece};

use super::memory::Part;
use crate::reduce::Combine;

/// Copies `src` to `dst`, whose total lengths are equal.
///
/// # Safety
/// The pieces are valid. `dst` is writable and does not overlap `src`.
pub(crate) unsafe fn copy(src: &[Piece], dst: &[Piece]) {
    zip(src, dst, |from, to, len| {
        // SAFETY: `zip` stays inside the pieces; validity and no overlap are the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from, len) }
    });
}

/// Copies past the caches: for bytes that are not read again while the caches would hold them.
///
/// # Safety
/// See [`copy`].
pub(crate) unsafe fn copy_past_caches(src: &[Piece], dst: &[Piece]) {
    zip(src, dst, |from, to, len| {
        // SAFETY: as in `copy`.
        unsafe { copy_streaming(from, to, len) }
    });
}

/// Returns the copies (from, to, bytes) of `src` to `dst`, whose total lengths are equal.
pub(crate) fn parts(src: &[Piece], dst: &[Piece]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(src.len().max(dst.len()));
    zip(src, dst, |from, to, len| parts.push((from.cast_const(), to, len)));
    parts
}

/// Computes `dst = a op b`, where all three have the same total length.
///
/// # Safety
/// The pieces are valid and hold whole elements; `dst` equals `a` or `b` or overlaps neither.
pub(crate) unsafe fn reduce(combine: Combine, element_bytes: usize, a: &[Piece], b: &[Piece], dst: &[Piece]) {
    let mut at = Cursor::default();
    zip(a, b, |a, b, len| {
        let mut done = 0;
        while done < len {
            let (to, room) = at.next(dst, len - done);
            // SAFETY: the range is within all three pieces, and holds whole elements, since pieces do.
            unsafe { combine(to, a.add(done), b.add(done), room / element_bytes) };
            done += room;
        }
    });
}

/// Calls `each(a, b, len)` for the longest runs that lie in one piece on both sides.
fn zip(a: &[Piece], b: &[Piece], mut each: impl FnMut(*mut u8, *mut u8, usize)) {
    let mut at = Cursor::default();
    for piece in a {
        let mut done = 0;
        while done < piece.len {
            let (other, len) = at.next(b, piece.len - done);
            each(piece.ptr.wrapping_add(done), other, len);
            done += len;
        }
    }
}

/// Returns the position `offset` bytes into the pieces, which are at least as long.
fn cursor_at(pieces: &[Piece], offset: usize) -> Cursor {
    let (mut at, mut done) = (Cursor::START, 0);
    while done < offset {
        done += at.next(pieces, offset - done).1;
    }
    at
}

/// Reduces a message as it arrives: the context of a [`kolo_transport::Consumer`].
#[derive(Debug)]
pub(crate) struct Reducer {
    combine: Combine,
    element_bytes: usize,
    with: *const Piece,
    with_count: usize,
    dst: *const Piece,
    dst_count: usize,
    with_at: Cursor,
    dst_at: Cursor,
    /// Offset in the message that both cursors stand for.
    offset: usize,
}

impl Reducer {
    /// Returns the reducer of one message. The slices must outlive the message.
    pub(crate) fn new(combine: Combine, element_bytes: usize, with: &[Piece], dst: &[Piece]) -> Self {
        Self {
            combine,
            element_bytes,
            with: with.as_ptr(),
            with_count: with.len(),
            dst: dst.as_ptr(),
            dst_count: dst.len(),
            with_at: Cursor::default(),
            dst_at: Cursor::default(),
            offset: 0,
        }
    }

    /// Computes `dst = with op data`: the function of the consumer.
    ///
    /// # Safety
    /// `context` points to the `Reducer` of this message, which nobody else uses now. Its pieces are valid.
    pub(crate) unsafe fn consume(context: *mut (), offset: usize, data: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        let this = unsafe { &mut *context.cast::<Self>() };
        // SAFETY: `new` took these from slices that outlive the message.
        let (with, dst) = unsafe {
            (
                std::slice::from_raw_parts(this.with, this.with_count),
                std::slice::from_raw_parts(this.dst, this.dst_count),
            )
        };
        if offset != this.offset {
            (this.with_at, this.dst_at) = (cursor_at(with, offset), cursor_at(dst, offset));
        }
        this.offset = offset + len;
        let mut done = 0;
        while done < len {
            let mut probe = this.with_at;
            let (_, with_room) = probe.next(with, len - done);
            let (to, run) = this.dst_at.next(dst, with_room);
            let (a, _) = this.with_at.next(with, run);
            // SAFETY: `run` bytes are inside both pieces and inside `data`. All are whole elements, because pieces hold
            // whole elements and the transport hands out multiples of GRAIN_BYTES.
            unsafe { (this.combine)(to, a, data.add(done), run / this.element_bytes) };
            done += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(data: &mut [u8], cuts: &[usize]) -> Vec<Piece> {
        let mut start = 0;
        let base = data.as_mut_ptr();
        cuts.iter()
            .map(|len| {
                let piece = Piece { ptr: base.wrapping_add(start), len: *len };
                start += len;
                piece
            })
            .collect()
    }

    unsafe fn add(dst: *mut u8, a: *const u8, b: *const u8, count: usize) {
        for i in 0..count {
            // SAFETY: test data is long enough.
            unsafe { *dst.add(i) = (*a.add(i)).wrapping_add(*b.add(i)) };
        }
    }

    #[test]
    fn pieces_need_not_be_cut_alike() {
        let mut a: Vec<u8> = (0..100).collect();
        let mut b: Vec<u8> = (100..200).collect();
        let mut c = vec![0; 100];
        let (pa, pb, pc) =
            (pieces(&mut a, &[30, 70]), pieces(&mut b, &[1, 0, 99]), pieces(&mut c, &[50, 25, 25]));
        // SAFETY: the vectors are distinct and long enough.
        unsafe { reduce(add, 1, &pa, &pb, &pc) };
        assert!((0..100).all(|i| c[i] == (100 + 2 * i) as u8));
        // Parts may arrive in any order, as over several connections.
        for parts in [[(0, 64), (64, 36)], [(64, 36), (0, 64)]] {
            let mut reducer = Reducer::new(add, 1, &pa, &pc);
            let context = (&raw mut reducer).cast();
            // SAFETY: nothing else uses the vector meanwhile.
            unsafe { std::ptr::write_bytes(pc[0].ptr, 0, 100) };
            for (offset, len) in parts {
                // SAFETY: as above.
                unsafe { Reducer::consume(context, offset, b.as_ptr().add(offset), len) };
            }
            assert!((0..100).all(|i| c[i] == (100 + 2 * i) as u8));
        }
        // SAFETY: as above.
        unsafe { copy(&pa, &pc) };
        assert_eq!(a, c);
    }
}
