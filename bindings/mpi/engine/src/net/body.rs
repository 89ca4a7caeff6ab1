//! Where messages come from and go to, and how it is known that they are over.

use std::sync::{Arc, OnceLock};

use crate::constants::ANY_TAG;
use crate::datatype::Type;
use crate::error::Fail;

/// How a send or receive ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// World rank of the sender.
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Bytes received.
    pub bytes: usize,
    /// Why it failed.
    pub error: Option<Fail>,
    /// Whether it was cancelled.
    pub cancelled: bool,
}

impl Finished {
    /// A send's end.
    pub(super) const fn sent() -> Self {
        Self { source: 0, tag: 0, bytes: 0, error: None, cancelled: false }
    }

    pub(super) const fn failed(source: u32, tag: i32, error: Fail) -> Self {
        Self { source, tag, bytes: 0, error: Some(error), cancelled: false }
    }
}

/// Filled when an operation is over.
#[derive(Debug, Default)]
pub struct Completion(OnceLock<Finished>);

impl Completion {
    /// One that is not over.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn get(&self) -> Option<&Finished> {
        self.0.get()
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.get().is_some()
    }

    /// Ends a receive from nobody.
    pub fn never_came(&self) {
        self.set(Finished { source: u32::MAX, tag: ANY_TAG, ..Finished::sent() });
    }

    pub(super) fn set(&self, finished: Finished) {
        // An operation ends once; a second end would be that of a peer's loss behind it.
        let _ = self.0.set(finished);
    }
}

/// Where received bytes go.
#[derive(Debug)]
pub enum Sink {
    /// One run of bytes.
    Flat {
        /// First byte.
        ptr: *mut u8,
        /// Bytes that there is room for.
        room: usize,
    },
    /// Elements of a type with holes.
    Typed {
        /// Address that displacements count from.
        ptr: *mut u8,
        /// Elements that there is room for.
        count: usize,
        /// Their type.
        of: Arc<Type>,
    },
}

// SAFETY: the memory is the program's, lent to the library until the operation is over; who holds the lock of the messages, or
// owns the request, is the only one to touch it.
unsafe impl Send for Sink {}

impl Sink {
    /// Bytes that it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        match self {
            Self::Flat { room, .. } => *room,
            Self::Typed { count, of, .. } => count * of.size(),
        }
    }

    /// The memory itself, where the bytes may be placed as they come.
    pub(super) const fn flat(&self) -> Option<*mut u8> {
        match self {
            Self::Flat { ptr, .. } => Some(*ptr),
            Self::Typed { .. } => None,
        }
    }

    /// Puts bytes there, as far as there is room.
    pub fn put(&self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room())];
        match self {
            // SAFETY: the room is the caller's promise to the receive; the source is a slice of this process's own memory or of
            // a send's, and MPI forbids that they overlap.
            Self::Flat { ptr, .. } => unsafe { std::ptr::copy(bytes.as_ptr(), *ptr, bytes.len()) },
            // SAFETY: likewise, for the elements that there is room for.
            Self::Typed { ptr, count, of } => unsafe { of.unpack(bytes, *ptr, *count) },
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub struct Recv {
    /// World rank of the sender, or any.
    pub source: Option<u32>,
    /// Tag, or any.
    pub tag: Option<i32>,
    /// Where the bytes go.
    pub sink: Sink,
    /// Told at the end.
    pub done: Arc<Completion>,
}

impl Recv {
    pub(super) fn takes(&self, source: u32, tag: i32) -> bool {
        self.source.is_none_or(|wanted| wanted == source) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}
