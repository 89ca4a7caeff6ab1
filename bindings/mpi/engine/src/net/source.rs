//! The bytes of messages to send.

use kolo_transport::Piece;

use super::body::Elements;
use crate::staging::Staging;

/// Bytes to send.
#[derive(Debug)]
pub enum Source {
    /// The program's memory.
    Lent(*const u8, usize),
    /// A copy.
    Kept(Vec<u8>),
    /// A packed copy.
    Staged(Staging),
    /// The program's elements, of which as many bytes are sent.
    Elements(Elements, usize),
}

// SAFETY: lent memory is the program's, which leaves it alone until the operation is over.
unsafe impl Send for Source {}

impl Source {
    pub(super) const fn piece(&self) -> Piece {
        match self {
            Self::Lent(ptr, len) => Piece { ptr: ptr.cast_mut(), len: *len },
            Self::Kept(data) => Piece { ptr: data.as_ptr().cast_mut(), len: data.len() },
            Self::Staged(data) => Piece { ptr: data.at().cast_mut(), len: data.len() },
            Self::Elements(_, len) => Piece { ptr: std::ptr::null_mut(), len: *len },
        }
    }

    /// Returns the elements that are still to be packed.
    pub(super) const fn elements(&self) -> Option<&Elements> {
        match self {
            Self::Elements(elements, _) => Some(elements),
            _ => None,
        }
    }

    /// Packs the elements, for a transport that does not.
    pub(super) fn stage(&mut self) {
        if let Self::Elements(elements, len) = self {
            let mut data = Staging::new(*len);
            // SAFETY: lent for as long as the operation runs; the message is no longer than its elements.
            unsafe { elements.of.pack_range(elements.ptr, elements.count, 0..*len, data.ptr()) };
            *self = Self::Staged(data);
        }
    }

    /// Leaves out the bytes from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        match self {
            Self::Lent(_, all) | Self::Elements(_, all) => *all = len.min(*all),
            Self::Kept(kept) => kept.truncate(len),
            Self::Staged(staged) => staged.truncate(len),
        }
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.piece().len
    }

    /// Calls `call` with the bytes, packed if necessary.
    pub(super) fn with_bytes<T>(&mut self, call: impl FnOnce(&[u8]) -> T) -> T {
        self.stage();
        let Piece { ptr, len } = self.piece();
        // SAFETY: lent for as long as the operation runs, or a copy. Test: `messages_home` in tests/c/layouts.c.
        call(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ptr, len) } })
    }
}
