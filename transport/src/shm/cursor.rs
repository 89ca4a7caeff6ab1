//! A position in a list of pieces of the caller's memory.

use std::ptr;

use super::copier::Copier;
use super::copy::copy_streaming;
use super::remote::{NEAR_RUNS, Near};
use super::rendezvous::Rts;
use crate::endpoint::Piece;

/// A cursor that walks a list of pieces front to back. The list and the memory it names belong to the caller, who has
/// promised (in [`Endpoint::post_send`](crate::Endpoint::post_send) and `post_recv`) to keep both valid until the
/// token completes; a cursor is dropped no later than that.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    piece: *const Piece,
    end: *const Piece,
    offset: usize,
}

// SAFETY: the owner of the endpoint may move it to another thread while messages are pending, and has promised that
// the memory stays valid and untouched meanwhile. A cursor holds nothing that belongs to a thread.
unsafe impl Send for Cursor {}

impl Cursor {
    /// Returns a cursor at the front of `pieces`.
    pub(crate) fn new(pieces: &[Piece]) -> Self {
        let range = pieces.as_ptr_range();
        Self { piece: range.start, end: range.end, offset: 0 }
    }

    /// Copies the next `len` bytes of the list to `to`.
    ///
    /// # Safety
    /// The promise of `post_send` holds, `len` bytes are left in the list, and `to` is writable for `len` bytes.
    pub(crate) unsafe fn gather(&mut self, mut to: *mut u8, len: usize, copier: &mut Copier) {
        // SAFETY: `walk` yields ranges inside the caller's pieces; `to` advances by the number of bytes copied, `len`
        // in all. The ranges do not overlap: one is shared memory mapped by this crate, the other is the caller's.
        unsafe {
            self.walk(len, |from, run| {
                copier.copy(from, to, run);
                to = to.add(run);
            });
        }
    }

    /// Copies `len` bytes from `from` to the next positions in the list, past the caches if `streaming`.
    ///
    /// # Safety
    /// The promise of `post_recv` holds, `len` bytes are left in the list, and `from` is readable for `len` bytes.
    pub(crate) unsafe fn scatter(&mut self, mut from: *const u8, len: usize, streaming: bool) {
        // SAFETY: as in `gather`, with source and destination exchanged.
        unsafe {
            self.walk(len, |to, run| {
                if streaming {
                    copy_streaming(from, to, run);
                } else {
                    ptr::copy_nonoverlapping(from, to, run);
                }
                from = from.add(run);
            });
        }
    }

    /// Returns the ranges of the whole list, if they are few enough for a request. Valid only at the front of the
    /// list.
    ///
    /// # Safety
    /// The list is valid, and `total` bytes long.
    pub(crate) unsafe fn rts(&self, total: usize) -> Option<Rts> {
        let (mut rts, mut fits) = (Rts::new(), true);
        // SAFETY: the caller's promise.
        unsafe { self.clone().walk(total, |at, run| fits = fits && rts.push(at, run)) };
        fits.then_some(rts)
    }

    /// Moves past the next bytes, `len` of them or as many as lie in [`NEAR_RUNS`] pieces, and appends their ranges
    /// to `near`.
    ///
    /// # Safety
    /// The promise of `post_recv` holds, and `len` bytes are left in the list.
    pub(crate) unsafe fn runs(&mut self, mut len: usize, near: &mut Near) {
        for _ in 0..NEAR_RUNS {
            while len > 0 {
                // SAFETY: bytes are left, so there is a piece here.
                let piece = unsafe { *self.piece };
                let run = len.min(piece.len - self.offset);
                // SAFETY: this piece holds `run` more bytes.
                unsafe { self.walk(run, |at, run| near.push(at, run)) };
                len -= run;
                if run > 0 {
                    break;
                }
                // SAFETY: bytes are left behind this empty piece, so the list goes on.
                self.piece = unsafe { self.piece.add(1) };
            }
        }
    }

    /// Moves past the next `len` bytes and calls `each` with every contiguous run of them.
    ///
    /// # Safety
    /// The list is valid, and `len` bytes are left in it.
    unsafe fn walk(&mut self, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        while len > 0 {
            debug_assert!(self.piece < self.end, "the list is shorter than its total");
            // SAFETY: bytes are left, so there is a piece here.
            let piece = unsafe { *self.piece };
            let run = len.min(piece.len - self.offset);
            if run > 0 {
                // SAFETY: `offset + run <= piece.len`.
                each(unsafe { piece.ptr.add(self.offset) }, run);
                self.offset += run;
                len -= run;
            }
            if self.offset == piece.len {
                // SAFETY: one past the current piece is at most the end of the list.
                self.piece = unsafe { self.piece.add(1) };
                self.offset = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::copier::Stores;
    use super::*;

    #[test]
    fn gathers_and_scatters_across_odd_and_empty_pieces() {
        let source: Vec<u8> = (0..100).collect();
        let cut = |bytes: &[u8], cuts: &[usize]| {
            let mut at = 0;
            let mut pieces = Vec::new();
            for &len in cuts {
                pieces.push(Piece { ptr: bytes[at..].as_ptr().cast_mut(), len });
                at += len;
            }
            assert_eq!(at, bytes.len());
            pieces
        };
        let from = cut(&source, &[0, 7, 0, 64, 29, 0]);
        let mut target = vec![0u8; 100];
        let base = target.as_mut_ptr();
        let to = [Piece { ptr: base, len: 50 }, Piece { ptr: base.wrapping_add(50), len: 50 }];
        let (mut gather, mut scatter) = (Cursor::new(&from), Cursor::new(&to));
        let mut middle = [0u8; 64];
        for step in [1, 33, 0, 64, 2] {
            // SAFETY: the steps add up to 100, the length of both lists, whose memory lives here.
            unsafe {
                gather.gather(middle.as_mut_ptr(), step, &mut Copier::new(Stores::Ordinary));
                scatter.scatter(middle.as_ptr(), step, step == 64);
            }
        }
        assert_eq!(source, target);
    }
}
