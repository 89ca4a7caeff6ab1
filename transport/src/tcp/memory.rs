//! The caller's memory: pieces, cursors into them, and the lists of them that the kernel takes.
//!
//! # Safety argument of this file
//!
//! `Endpoint::post_send` and `post_recv` oblige the caller to keep the slice of pieces, the memory that it names, and the consumer's
//! context valid until the token completes or the endpoint is dropped. A [`Pieces`] or an [`Eater`] is made in a post and lives in a queue
//! entry, which is removed when its token completes. The memory is therefore valid for as long as either can be used. `abort` and `abandon`
//! empty the queues, so nothing is touched afterwards.

use crate::endpoint::{Consumer, Piece};

/// Longest list handed to the kernel in one call: far below its limit of 1024, and enough that 32 small messages go
/// in one, which makes the call a small part of their cost.
pub(super) const IO_PIECES: usize = 64;

/// A list of pieces that a token keeps alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    first: *const Piece,
    count: usize,
}

// SAFETY: the memory is lent to the endpoint for as long as the token is outstanding (see the module); which
// thread the endpoint lives on does not matter to it.
unsafe impl Send for Pieces {}

/// A place in a [`Pieces`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    piece: usize,
    offset: usize,
}

impl Pieces {
    /// The pieces, and their total length; `None` if that overflows what a slice may be long.
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

    /// Appends up to `limit` bytes from `at` on to `io`; returns how many. Less than the limit means that the
    /// pieces or the list are at their end.
    pub(super) fn gather(&self, at: Cursor, limit: usize, io: &mut IoList) -> usize {
        let mut taken = 0;
        let mut offset = at.offset;
        for piece in self.list().iter().skip(at.piece) {
            let len = (piece.len - offset).min(limit - taken);
            if len > 0 {
                if io.is_full() {
                    break;
                }
                io.push_raw(piece.ptr.wrapping_add(offset), len);
                taken += len;
            }
            if taken == limit {
                break;
            }
            offset = 0;
        }
        taken
    }

    /// Moves `at` on by `bytes`, which are there.
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

    /// Copies `bytes` into the pieces at `at`, and moves on.
    pub(super) fn fill(&self, at: &mut Cursor, bytes: &[u8]) {
        let mut done = 0;
        self.walk(*at, bytes.len(), |ptr, len| {
            // SAFETY: ptr..ptr + len lies in a piece of a posted receive: writable, and not `bytes`, which is
            // memory of the endpoint. `walk` stays within bytes.len().
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), ptr, len) };
            done += len;
        });
        self.advance(at, bytes.len());
    }

    /// The piece at `at`, and how much of it is before `at`; none at the end. Empty pieces are passed over.
    pub(crate) fn piece(&self, at: &mut Cursor) -> Option<(Piece, usize)> {
        let list = self.list();
        while at.piece < list.len() && list[at.piece].len == at.offset {
            *at = Cursor { piece: at.piece + 1, offset: 0 };
        }
        list.get(at.piece).map(|piece| (*piece, at.offset))
    }

    /// The shortest piece that is not empty, in bytes, and the number of those.
    pub(crate) fn shortest(&self) -> (usize, usize) {
        let lens = self.list().iter().map(|piece| piece.len).filter(|&len| len > 0);
        lens.fold((usize::MAX, 0), |(least, count), len| (least.min(len), count + 1))
    }

    /// Calls `each(address, bytes from the first, bytes)` for the runs that make up `len` bytes from `at` on, and moves on.
    /// The addresses lie in pieces of a posted message, which are alive.
    pub(crate) fn each_run(&self, at: &mut Cursor, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        self.walk(*at, len, |ptr, len| {
            each(ptr, done, len);
            done += len;
        });
        self.advance(at, len);
    }

    /// Appends `len` bytes from `at` on to `out`.
    pub(super) fn copy_out(&self, at: Cursor, len: usize, out: &mut Vec<u8>) {
        self.walk(at, len, |ptr, len| {
            // SAFETY: ptr..ptr + len lies in a piece of a posted receive; the kernel has written these bytes.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(ptr, len) });
        });
    }

    /// Calls `f` on the runs that make up `len` bytes from `at` on.
    fn walk(&self, at: Cursor, mut len: usize, mut f: impl FnMut(*mut u8, usize)) {
        let mut offset = at.offset;
        for piece in self.list().iter().skip(at.piece) {
            let run = (piece.len - offset).min(len);
            if run > 0 {
                f(piece.ptr.wrapping_add(offset), run);
                len -= run;
            }
            if len == 0 {
                return;
            }
            offset = 0;
        }
    }
}

/// A consumer that a token keeps alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eater(Consumer);

// SAFETY: as for `Pieces`: the context is lent until the token completes, wherever the endpoint lives.
unsafe impl Send for Eater {}

impl Eater {
    pub(crate) fn new(consumer: Consumer) -> Self {
        Self(consumer)
    }

    /// Feeds `len` bytes at `data`, bytes `offset..` of the message.
    ///
    /// # Safety
    /// They are there and do not change during the call.
    pub(crate) unsafe fn eat_raw(&self, offset: usize, data: *const u8, len: usize) {
        if len > 0 {
            // SAFETY: the context is valid until the token completes (see the module); `data` is the caller's
            // promise.
            unsafe { (self.0.call)(self.0.context, offset, data, len) }
        }
    }

    /// Feeds bytes `offset..` of the message.
    pub(super) fn eat(&self, offset: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: the context is valid until the token completes (see the module), and `bytes` for the call.
            unsafe { (self.0.call)(self.0.context, offset, bytes.as_ptr(), bytes.len()) }
        }
    }
}

/// Runs of memory for one call of `sendmsg` or `recvmsg`.
pub(super) struct IoList {
    runs: [libc::iovec; IO_PIECES],
    len: usize,
    bytes: usize,
}

// SAFETY: the pointers are only used between `clear` and the system call that follows, under `&mut`.
unsafe impl Send for IoList {}

impl IoList {
    pub(super) fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { runs: [none; IO_PIECES], len: 0, bytes: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.bytes = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn room(&self) -> usize {
        IO_PIECES - self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == IO_PIECES
    }

    /// Appends bytes to be read from. They stay valid until the call, which the caller makes next.
    pub(super) fn push_source(&mut self, bytes: &[u8]) {
        self.push_raw(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Appends bytes to be written to.
    pub(super) fn push_target(&mut self, bytes: &mut [u8]) {
        self.push_raw(bytes.as_mut_ptr(), bytes.len());
    }

    fn push_raw(&mut self, ptr: *mut u8, len: usize) {
        self.runs[self.len] = libc::iovec { iov_base: ptr.cast(), iov_len: len };
        self.len += 1;
        self.bytes += len;
    }

    /// The list, for a system call.
    pub(super) fn raw(&mut self) -> (*mut libc::iovec, usize) {
        (self.runs.as_mut_ptr(), self.len)
    }
}

impl std::fmt::Debug for IoList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoList({} runs, {} bytes)", self.len, self.bytes)
    }
}

/// A cache line, for alignment: consumers may use aligned vector access.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// The bytes of whole lines.
pub(super) fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a `Line` is exactly 64 bytes without padding (its alignment is its size), each of them initialised,
    // and every value of them is a valid one.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
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
                let mut io = IoList::new();
                prop_assert_eq!(pieces.gather(cursor, total - done, &mut io), total - done);
                prop_assert_eq!(io.bytes(), total - done);
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
