//! Views of the caller's memory inside transports: lists of pieces, positions in them, and consumers.
//!
//! # Safety argument of this file
//!
//! `Endpoint::post_send` and `post_recv` oblige the caller to keep the slice of pieces, the memory that it names, and
//! the consumer's context valid until the token completes or the endpoint is dropped. A [`Pieces`] or an [`Eater`] is
//! made in a post and lives in a queue entry, which is removed when its token completes. The memory is therefore
//! valid for as long as either can be used. `abort` and `abandon` empty the queues, so nothing is touched afterwards.

use crate::endpoint::{Consumer, Piece};

/// A list of pieces that stays valid as long as its token is outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    first: *const Piece,
    count: usize,
}

// SAFETY: the memory is lent to the endpoint for as long as the token is outstanding (see the module). The memory is
// valid on any thread, so it does not matter which thread the endpoint lives on.
unsafe impl Send for Pieces {}

/// A position in a list of pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    piece: usize,
    offset: usize,
}

impl Cursor {
    /// The front of the list.
    pub const START: Self = Self { piece: 0, offset: 0 };

    /// Returns the next contiguous run of `pieces`, of at most `len` bytes, and moves past it.
    ///
    /// # Panics
    /// At the end of the list, if `len` is not 0.
    #[inline]
    pub fn next(&mut self, pieces: &[Piece], len: usize) -> (*mut u8, usize) {
        while self.offset == pieces[self.piece].len {
            *self = Self { piece: self.piece + 1, offset: 0 };
        }
        let piece = pieces[self.piece];
        let run = len.min(piece.len - self.offset);
        let ptr = piece.ptr.wrapping_add(self.offset);
        self.offset += run;
        (ptr, run)
    }
}

impl Pieces {
    /// Returns the list and its total length, or `None` for a total that exceeds the maximum length of a slice.
    pub(crate) fn new(list: &[Piece]) -> (Self, Option<usize>) {
        let total = list
            .iter()
            .try_fold(0usize, |sum, piece| sum.checked_add(piece.len))
            .filter(|&sum| isize::try_from(sum).is_ok());
        (Self { first: list.as_ptr(), count: list.len() }, total)
    }

    fn list(&self) -> &[Piece] {
        // SAFETY: first and count come from a slice that outlives the token (see the module).
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }

    /// Calls `each` on the runs that make up `len` bytes from `at` on, until it returns `false`.
    pub(crate) fn walk_while(
        &self,
        at: Cursor,
        mut len: usize,
        mut each: impl FnMut(*mut u8, usize) -> bool,
    ) {
        let mut offset = at.offset;
        for piece in self.list().iter().skip(at.piece) {
            let run = (piece.len - offset).min(len);
            if run > 0 {
                if !each(piece.ptr.wrapping_add(offset), run) {
                    return;
                }
                len -= run;
            }
            if len == 0 {
                return;
            }
            offset = 0;
        }
    }

    /// Moves `at` forward by `bytes`. The list must have that many left.
    pub(crate) fn advance(&self, at: &mut Cursor, mut bytes: usize) {
        let list = self.list();
        while bytes > 0 {
            let left = list[at.piece].len - at.offset;
            if bytes < left {
                at.offset += bytes;
                return;
            }
            bytes -= left;
            *at = Cursor { piece: at.piece + 1, offset: 0 };
        }
    }

    /// Copies `bytes` into the pieces at `at`, and moves `at` past them.
    pub(crate) fn fill(&self, at: &mut Cursor, bytes: &[u8]) {
        let mut done = 0;
        self.walk(*at, bytes.len(), |ptr, len| {
            // SAFETY: ptr..ptr + len lies in a piece of a posted receive: writable, and not `bytes`, which is
            // memory of the endpoint. `walk` stays within bytes.len().
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), ptr, len) };
            done += len;
        });
        self.advance(at, bytes.len());
    }

    /// Returns the piece at `at`, and how much of it lies before `at`, or `None` at the end. Skips empty pieces.
    pub(crate) fn piece(&self, at: &mut Cursor) -> Option<(Piece, usize)> {
        let list = self.list();
        while at.piece < list.len() && list[at.piece].len == at.offset {
            *at = Cursor { piece: at.piece + 1, offset: 0 };
        }
        list.get(at.piece).map(|piece| (*piece, at.offset))
    }

    /// Returns the length of the shortest non-empty piece in bytes, and the number of non-empty pieces.
    pub(crate) fn shortest(&self) -> (usize, usize) {
        let lens = self.list().iter().map(|piece| piece.len).filter(|&len| len > 0);
        lens.fold((usize::MAX, 0), |(least, count), len| (least.min(len), count + 1))
    }

    /// Calls `each(address, bytes before this run, bytes)` for the runs that make up `len` bytes from `at` on, and
    /// moves `at` past them. The addresses lie in pieces of a posted message, which are alive.
    pub(crate) fn each_run(&self, at: &mut Cursor, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        self.walk(*at, len, |ptr, len| {
            each(ptr, done, len);
            done += len;
        });
        self.advance(at, len);
    }

    /// Appends `len` bytes from `at` on to `out`.
    pub(crate) fn copy_out(&self, at: Cursor, len: usize, out: &mut Vec<u8>) {
        self.walk(at, len, |ptr, len| {
            // SAFETY: ptr..ptr + len lies in a piece of a posted receive; the kernel has written these bytes.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(ptr, len) });
        });
    }

    /// Calls `f` on the runs that make up `len` bytes from `at` on.
    fn walk(&self, at: Cursor, len: usize, mut f: impl FnMut(*mut u8, usize)) {
        self.walk_while(at, len, |ptr, len| {
            f(ptr, len);
            true
        });
    }
}

/// A consumer that stays valid as long as its token is outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eater(Consumer);

// SAFETY: as for `Pieces`: the context is lent until the token completes, on whichever thread the endpoint lives.
unsafe impl Send for Eater {}

impl Eater {
    pub(crate) fn new(consumer: Consumer) -> Self {
        Self(consumer)
    }

    /// Passes `len` bytes at `data` to the consumer: the bytes of the message from `offset` on.
    ///
    /// # Safety
    /// The bytes are readable and do not change during the call.
    pub(crate) unsafe fn eat_raw(&self, offset: usize, data: *const u8, len: usize) {
        if len > 0 {
            // SAFETY: the context is valid until the token completes (see the module); the caller answers for `data`.
            unsafe { (self.0.call)(self.0.context, offset, data, len) }
        }
    }

    /// Passes the bytes of the message from `offset` on to the consumer.
    pub(crate) fn eat(&self, offset: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: the context is valid until the token completes (see the module), and `bytes` for the call.
            unsafe { (self.0.call)(self.0.context, offset, bytes.as_ptr(), bytes.len()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filling_in_steps_fills_every_piece_in_order(
            lens in proptest::collection::vec(0usize..40, 0..20),
            steps in proptest::collection::vec(0usize..50, 0..40),
        ) {
            let mut parts: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let list: Vec<Piece> =
                parts.iter_mut().map(|part| Piece { ptr: part.as_mut_ptr(), len: part.len() }).collect();
            let (pieces, total) = Pieces::new(&list);
            let total = total.unwrap();
            let source: Vec<u8> = (0..total).map(|i| i as u8).collect();
            let mut cursor = Cursor::default();
            let mut done = 0;
            for step in steps.into_iter().chain([total]) {
                let end = (done + step).min(total);
                let mut left = 0;
                pieces.walk(cursor, total - done, |_, len| left += len);
                prop_assert_eq!(left, total - done);
                pieces.fill(&mut cursor, &source[done..end]);
                done = end;
            }
            let mut back = Vec::new();
            pieces.copy_out(Cursor::default(), total, &mut back);
            prop_assert_eq!(&back, &source);
            prop_assert_eq!(parts.concat(), source);
        }
    }

    #[test]
    fn a_total_beyond_a_slice_is_refused() {
        let ptr = std::ptr::null_mut();
        let list = [Piece { ptr, len: usize::MAX }, Piece { ptr, len: 2 }];
        assert_eq!(Pieces::new(&list).1, None);
        assert_eq!(Pieces::new(&list[..1]).1, None);
    }
}
