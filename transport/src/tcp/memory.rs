//! Lists of memory ranges that the kernel takes in one call.

use crate::pieces::{Cursor, Pieces};

/// Maximum length of a list. It is far below the kernel's limit of 1024, and lets 32 small messages go in one call,
/// which makes the call a small part of their cost.
pub(super) const IO_PIECES: usize = 64;

/// Ranges of memory for one call of `sendmsg` or `recvmsg`.
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

    /// Appends bytes to be read. They must stay valid until the call, which the caller makes next.
    pub(super) fn push_source(&mut self, bytes: &[u8]) {
        self.push_raw(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Appends bytes to be written.
    pub(super) fn push_target(&mut self, bytes: &mut [u8]) {
        self.push_raw(bytes.as_mut_ptr(), bytes.len());
    }

    /// Appends up to `limit` bytes of `pieces` from `at` on; returns how many. Fewer mean that the pieces have ended
    /// or the list is full.
    pub(super) fn gather(&mut self, pieces: &Pieces, at: Cursor, limit: usize) -> usize {
        let before = self.bytes;
        pieces.walk_while(at, limit, |ptr, len| {
            let has_room = !self.is_full();
            if has_room {
                self.push_raw(ptr, len);
            }
            has_room
        });
        self.bytes - before
    }

    fn push_raw(&mut self, ptr: *mut u8, len: usize) {
        self.runs[self.len] = libc::iovec { iov_base: ptr.cast(), iov_len: len };
        self.len += 1;
        self.bytes += len;
    }

    /// Returns the list for a system call.
    pub(super) fn raw(&mut self) -> (*mut libc::iovec, usize) {
        (self.runs.as_mut_ptr(), self.len)
    }
}

impl std::fmt::Debug for IoList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoList({} runs, {} bytes)", self.len, self.bytes)
    }
}

/// A cache line. Its alignment lets consumers use aligned vector access.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Returns the bytes of whole lines.
pub(super) fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a `Line` is exactly 64 bytes without padding (its alignment is its size). All are initialised, and
    // every value is valid.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Piece;

    #[test]
    fn a_list_takes_what_it_has_room_for() {
        let mut bytes = [0u8; 3];
        let piece = Piece { ptr: bytes.as_mut_ptr(), len: 3 };
        let list = vec![piece; IO_PIECES + 1];
        let (pieces, total) = Pieces::new(&list);
        let mut io = IoList::new();
        assert_eq!(io.gather(&pieces, Cursor::START, 4), 4);
        assert_eq!((io.bytes(), io.room()), (4, IO_PIECES - 2));
        io.clear();
        assert_eq!(io.gather(&pieces, Cursor::START, total.unwrap()), 3 * IO_PIECES);
        assert!(io.is_full());
    }
}
