//! Memory of the caller that is announced to a transport in advance, and counters of a transport's use of memory.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Memory behind a range of addresses.
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
        /// Copies ranges that are too short to be registered.
        copier: &'a Arc<dyn DeviceCopier>,
    },
}

/// Copies from and to memory that the processor cannot look at.
pub trait DeviceCopier: fmt::Debug + Send + Sync {
    /// Copies from such memory to the host's. Blocks until it is done: some microseconds.
    ///
    /// # Errors
    /// In plain words.
    ///
    /// # Safety
    /// Both are valid for so many bytes, and not touched by anybody else until this returns.
    unsafe fn load(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Copies from the host's memory to such. Blocks as [`DeviceCopier::load`] does.
    ///
    /// # Errors
    /// In plain words.
    ///
    /// # Safety
    /// As [`DeviceCopier::load`].
    unsafe fn store(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;
}

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is registered, until [`Endpoint::deregister`](crate::Endpoint::deregister).
    Yes,
    /// The transport has no use for it, for this reason.
    NotNeeded(&'static str),
}

/// Fate of registrations of the caller's memory that nobody uses any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationPolicy {
    /// They are kept, and let go of when the kernel tells that memory changed.
    Watched,
    /// They are to be kept, and the kernel tells nothing to this process: they end with their operations.
    Unwatched {
        /// The refused system call, with its error.
        because: String,
    },
    /// They are kept, as the user promises not to unmap.
    Promised,
    /// They end with their messages, as the user wished.
    Never,
}

impl fmt::Display for RegistrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watched => f.write_str("kept, and let go of when the kernel tells that memory changed"),
            Self::Unwatched { because } => write!(
                f,
                "not kept, since changes of memory go unnoticed ({because}): short buffers are copied, those from 1 MiB \
                 on registered by each call; let the process use userfaultfd (a container's seccomp profile, \
                 vm.unprivileged_userfaultfd=1), or promise with KOLO_IB_CACHE=always that no buffer is unmapped"
            ),
            Self::Promised => {
                f.write_str("kept, as KOLO_IB_CACHE=always promises that no buffer is unmapped")
            }
            Self::Never => f.write_str("not kept, as KOLO_IB_CACHE=never wants"),
        }
    }
}

/// How devices that read and write memory by themselves get at it.
#[derive(Clone, Debug)]
pub struct DeviceAccess {
    /// Fate of registrations of the caller's memory.
    pub registrations: RegistrationPolicy,
    /// Whether they take memory of other drivers, such as a GPU's, as dma-bufs; if not, which does not, and why.
    pub takes_dma_bufs: Result<(), String>,
    /// Effect of a `fork` of this process on registered memory, in words.
    pub fork: String,
}

/// A transport's work with the caller's memory since its beginning: so that zero-copy is a number and no claim.
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
