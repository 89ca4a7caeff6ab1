//! The caller's memory, made known to a transport ahead of time; and what a transport has done with memory.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What is behind a range of addresses.
#[derive(Clone, Copy, Debug)]
pub enum Backing<'a> {
    /// Memory of this process, as any.
    Pages,
    /// Memory that another driver exports, such as a GPU's: the range begins at `offset` of this dma-buf. The descriptor
    /// may be closed when the call has returned.
    DmaBuf {
        /// Names the memory.
        descriptor: BorrowedFd<'a>,
        /// In bytes; at the same place of its page as the first address.
        offset: u64,
    },
    /// Memory that the processor cannot look at, such as a GPU's.
    Device {
        /// As for [`Backing::DmaBuf`]; none where a kernel module lets adapters find such memory by its address.
        export: Option<(BorrowedFd<'a>, u64)>,
        /// Who copies what is too short to be registered for.
        mover: &'a Arc<dyn Mover>,
    },
}

/// Copies from and to memory that the processor cannot look at.
pub trait Mover: fmt::Debug + Send + Sync {
    /// Copies from such memory to the host's. Blocks until it is done: some microseconds.
    ///
    /// # Errors
    /// In plain words.
    ///
    /// # Safety
    /// Both are valid for so many bytes, and not touched by anybody else until this returns.
    unsafe fn load(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Copies from the host's memory to such. Blocks as [`Mover::load`] does.
    ///
    /// # Errors
    /// In plain words.
    ///
    /// # Safety
    /// As [`Mover::load`].
    unsafe fn store(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;
}

/// What came of making memory known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is registered, until [`Endpoint::deregister`](crate::Endpoint::deregister).
    Yes,
    /// The transport has no use for it, for this reason.
    NotNeeded(&'static str),
}

/// What a transport has done with the caller's memory since its beginning: so that zero-copy is a number and no claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounters {
    /// Bytes of messages that went straight from, or into, the caller's memory, or were consumed where they arrived.
    pub in_place_bytes: u64,
    /// Bytes of messages that were copied through staging of the transport's, of messages long enough to count.
    pub staged_bytes: u64,
    /// Registrations made, explicit ones included.
    pub registrations: u64,
    /// Messages' ranges found registered already.
    pub cache_hits: u64,
}

impl std::ops::AddAssign for MemoryCounters {
    fn add_assign(&mut self, other: Self) {
        self.in_place_bytes += other.in_place_bytes;
        self.staged_bytes += other.staged_bytes;
        self.registrations += other.registrations;
        self.cache_hits += other.cache_hits;
    }
}
