//! The caller's memory: how it is announced to a transport in advance, and counters of a transport's use of it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Memory behind a range of addresses.
#[derive(Clone, Copy, Debug)]
pub enum Backing<'a> {
    /// Ordinary memory of this process.
    Pages,
    /// Memory that another driver exports, such as a GPU's: the range begins at `offset` of this dma-buf. The
    /// descriptor may be closed once the call has returned.
    DmaBuf {
        /// The descriptor of the dma-buf.
        descriptor: BorrowedFd<'a>,
        /// Offset in bytes. It has the same position within its page as the first address.
        offset: u64,
    },
    /// Memory that the processor cannot access, such as a GPU's.
    Device {
        /// The dma-buf and offset, as in [`Backing::DmaBuf`]; `None` where a kernel module lets adapters find such
        /// memory by its address.
        export: Option<(BorrowedFd<'a>, u64)>,
        /// Copies ranges that are too short to be registered.
        copier: &'a Arc<dyn DeviceCopier>,
    },
}

/// Copies from and to memory that the processor cannot access.
pub trait DeviceCopier: fmt::Debug + Send + Sync {
    /// Copies from such memory to the host's. Blocks until the copy is done, which takes some microseconds.
    ///
    /// # Errors
    /// If the copy fails, with the reason in plain words.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `len` bytes, and nobody else touches either until this
    /// returns.
    unsafe fn load(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;

    /// Copies from the host's memory to such memory. Blocks as [`DeviceCopier::load`] does.
    ///
    /// # Errors
    /// If the copy fails, with the reason in plain words.
    ///
    /// # Safety
    /// As [`DeviceCopier::load`].
    unsafe fn store(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;
}

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The memory is registered until [`Endpoint::deregister`](crate::Endpoint::deregister).
    Yes,
    /// The transport does not need registration, for this reason.
    NotNeeded(&'static str),
}

/// Treatment of registrations of the caller's memory that are no longer in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationPolicy {
    /// They are kept, and dropped when the kernel reports that the memory's mapping changed.
    Watched,
    /// They were to be kept, but the kernel does not report changes to this process: they end with their operations.
    Unwatched {
        /// The system call that was refused, with its error.
        because: String,
    },
    /// They are kept, because the user promises not to unmap the memory.
    Promised,
    /// They end with their messages, as the user asked.
    Never,
}

impl fmt::Display for RegistrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watched => {
                f.write_str("kept, and released when the kernel reports that memory has changed")
            }
            Self::Unwatched { because } => write!(
                f,
                "not kept, since changes to memory go unnoticed ({because}): short buffers are copied, and \
                 buffers of 1 MiB and more are registered by each call; allow the process to use userfaultfd \
                 (a container's seccomp profile, vm.unprivileged_userfaultfd=1), or promise with \
                 KOLO_IB_CACHE=always that no buffer is unmapped"
            ),
            Self::Promised => {
                f.write_str("kept, as KOLO_IB_CACHE=always promises that no buffer is unmapped")
            }
            Self::Never => f.write_str("not kept, as KOLO_IB_CACHE=never demands"),
        }
    }
}

/// How devices that read and write memory by themselves reach it.
#[derive(Clone, Debug)]
pub struct DeviceAccess {
    /// Treatment of registrations of the caller's memory that are no longer in use.
    pub registrations: RegistrationPolicy,
    /// Whether all devices take memory of other drivers, such as a GPU's, as dma-bufs; if not, the device that does
    /// not, and why.
    pub takes_dma_bufs: Result<(), String>,
    /// Effect of a `fork` of this process on registered memory, in words.
    pub fork: String,
}

/// Counters of a transport's work with the caller's memory since its beginning, by which zero-copy can be verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounters {
    /// Bytes of messages that went straight from or into the caller's memory, or were consumed where they arrived.
    pub in_place_bytes: u64,
    /// Bytes of messages that were copied through the transport's staging although they are long enough for
    /// zero-copy.
    pub staged_bytes: u64,
    /// Registrations made, explicit ones included.
    pub registrations: u64,
    /// Ranges of messages that were found registered already.
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
