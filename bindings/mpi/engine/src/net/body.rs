//! The ends of a message: posted receives, the memory that they fill, and the completion of operations.

use std::sync::{Arc, OnceLock};

use kolo_transport::{Consumer, Packer};

use crate::constants::ANY_TAG;
use crate::datatype::Type;
use crate::error::Fail;

/// The result of a send or receive.
#[derive(Clone, Debug)]
pub struct Finished {
    /// World rank of the sender.
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Bytes received.
    pub bytes: usize,
    /// The failure, if any.
    pub error: Option<Fail>,
    /// Whether the operation was cancelled.
    pub cancelled: bool,
}

impl Finished {
    /// Makes the result of a send.
    pub(super) const fn sent() -> Self {
        Self { source: 0, tag: 0, bytes: 0, error: None, cancelled: false }
    }

    pub(super) const fn cancelled() -> Self {
        Self { source: 0, tag: 0, bytes: 0, error: None, cancelled: true }
    }

    pub(super) const fn failed(source: u32, tag: i32, error: Fail) -> Self {
        Self { source, tag, bytes: 0, error: Some(error), cancelled: false }
    }
}

/// A cell that receives the result of an operation when it completes.
#[derive(Debug, Default)]
pub struct Completion(OnceLock<Finished>);

impl Completion {
    /// Makes the completion of a new operation.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the result if the operation is complete.
    #[must_use]
    pub fn get(&self) -> Option<&Finished> {
        self.0.get()
    }

    /// Returns whether the operation is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.get().is_some()
    }

    /// Completes a receive from `MPI_PROC_NULL`.
    pub fn never_came(&self) {
        self.set(Finished { source: u32::MAX, tag: ANY_TAG, ..Finished::sent() });
    }

    pub(super) fn set(&self, finished: Finished) {
        // Only the first end counts. A second one comes from the loss of the peer after the operation has ended.
        let _ = self.0.set(finished);
    }
}

/// Elements of a type with gaps in the program's memory.
#[derive(Clone, Debug)]
pub struct Elements {
    /// Address from which the type's displacements count.
    pub ptr: *mut u8,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub of: Arc<Type>,
}

// SAFETY: the program lends the memory to the library until the operation is complete. Only the thread that holds the lock of the
// messages, or owns the request, touches it.
unsafe impl Send for Elements {}

impl Elements {
    /// Returns the bytes of data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count * self.of.size()
    }

    /// Returns a consumer that unpacks a message. It refers to this value, which must stay at its address.
    pub(super) fn consumer(&self) -> Consumer {
        Consumer { call: unpack, context: std::ptr::from_ref(self).cast_mut().cast() }
    }

    /// Returns a packer that makes a message of these elements, on the same condition.
    pub(super) fn packer(&self) -> Packer {
        Packer { call: pack, context: std::ptr::from_ref(self).cast_mut().cast() }
    }
}

/// # Safety
/// `context` is an [`Elements`], whose elements are writable; `data` is readable for `len` bytes.
unsafe fn unpack(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the owner of the endpoint keeps the elements until the token comes back. Test: `typed_messages` in tests/c/layouts.c.
    unsafe {
        let elements = &*context.cast::<Elements>();
        elements.of.unpack_range(data, len, elements.ptr, elements.count, offset);
    }
}

/// # Safety
/// `context` is an [`Elements`] with at least `offset + len` bytes, which are readable; `to` is writable for `len` bytes.
unsafe fn pack(context: *mut (), offset: usize, to: *mut u8, len: usize) {
    // SAFETY: as above; a message is no longer than its elements.
    unsafe {
        let elements = &*context.cast::<Elements>();
        elements.of.pack_range(elements.ptr, elements.count, offset..offset + len, to);
    }
}

/// The memory of a receive.
#[derive(Clone, Debug)]
pub enum Sink {
    /// One run of bytes.
    Flat {
        /// First byte.
        ptr: *mut u8,
        /// Its length in bytes.
        room: usize,
    },
    /// Elements of a type with gaps.
    Typed(Elements),
}

// SAFETY: the program lends the memory to the library until the operation is complete. Only the thread that holds the lock of the
// messages, or owns the request, touches it.
unsafe impl Send for Sink {}

impl Sink {
    /// Returns the bytes for which there is room.
    #[must_use]
    pub fn room(&self) -> usize {
        match self {
            Self::Flat { room, .. } => *room,
            Self::Typed(elements) => elements.bytes(),
        }
    }

    /// Returns whether a message of so many bytes ends within a value of elements with gaps. The types of flat memory are not known here.
    pub(super) fn ends_within_value(&self, bytes: usize) -> bool {
        match self {
            Self::Flat { .. } => false,
            Self::Typed(elements) => {
                bytes < elements.bytes() && elements.of.values_in(bytes as i64).is_none()
            }
        }
    }

    /// Returns whether the memory is one run of bytes.
    pub(super) const fn is_flat(&self) -> bool {
        matches!(self, Self::Flat { .. })
    }

    /// Copies bytes to the memory, as far as there is room.
    pub fn put(&self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room())];
        match self {
            // SAFETY: the room is the caller's promise to the receive; the source is a slice of this process's own memory or of
            // a send's, and MPI forbids that they overlap.
            Self::Flat { ptr, .. } => unsafe { std::ptr::copy(bytes.as_ptr(), *ptr, bytes.len()) },
            // SAFETY: likewise, for the elements of the receive.
            Self::Typed(Elements { ptr, count, of }) => unsafe { of.unpack(bytes, *ptr, *count) },
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub struct Recv {
    /// World rank of the sender; `None` for any.
    pub source: Option<u32>,
    /// Tag; `None` for any.
    pub tag: Option<i32>,
    /// The memory for the message.
    pub sink: Sink,
    /// Set when the receive is complete.
    pub done: Arc<Completion>,
}

impl Recv {
    pub(super) fn takes(&self, source: u32, tag: i32) -> bool {
        self.source.is_none_or(|wanted| wanted == source) && self.tag.is_none_or(|wanted| wanted == tag)
    }
}
