//! Protection domains and registered memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::Context;
use crate::error::{Error, errno};
use crate::memlock::MemoryLock;
use crate::queue_pair::{QueuePair, QueuePairSpec};
use crate::sys;
use crate::work::{Local, Remote};

/// Permitted uses of a region's memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u32);

impl Access {
    /// The memory may be sent from, and may be the source of RDMA writes.
    pub const LOCAL_READ: Self = Self(0);
    /// Receives and RDMA reads may write it.
    pub const LOCAL_WRITE: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write it; needs `LOCAL_WRITE`.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may execute atomic operations on it; needs `LOCAL_WRITE`.
    pub const REMOTE_ATOMIC: Self = Self(sys::IBV_ACCESS_REMOTE_ATOMIC);
    /// The adapter may write it in any order, which is faster on some hosts. Only completions then show that bytes
    /// have arrived. Left out if the library does not know it.
    pub const RELAXED_ORDERING: Self = Self(sys::IBV_ACCESS_RELAXED_ORDERING);

    /// Returns libibverbs' bits.
    #[must_use]
    pub fn raw(self) -> u32 {
        self.0
    }

    /// Returns whether all of `other` is permitted.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({:#x})", self.0)
    }
}

/// A group of queue pairs and memory that may work together. Cheap to clone.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Domain>);

struct Domain {
    context: Context,
    domain: NonNull<sys::ibv_pd>,
}

// SAFETY: the verbs are thread-safe, and nothing of the structure is read here.
unsafe impl Send for Domain {}
// SAFETY: as for `Send`.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the domain was allocated once and is freed once; regions and queue pairs hold an `Arc` of this and
        // are gone.
        unsafe { (self.context.symbols().ibv_dealloc_pd)(self.domain.as_ptr()) };
    }
}

/// Whether a device registers memory of other drivers, such as a GPU's, as dma-bufs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaBufSupport {
    /// It does.
    Yes,
    /// The library is too old.
    NotInLibrary,
    /// The kernel or the driver refuses.
    NotInDriver,
}

impl ProtectionDomain {
    pub(crate) fn new(context: Context) -> Result<Self, Error> {
        // SAFETY: the context is live; the result is checked.
        let domain = unsafe { (context.symbols().ibv_alloc_pd)(context.as_ptr()) };
        let domain = NonNull::new(domain)
            .ok_or_else(|| Error::call("ibv_alloc_pd", "making a protection domain", errno()))?;
        Ok(Self(Arc::new(Domain { context, domain })))
    }

    /// Returns the opened device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers `len` bytes at `start`: pins them and makes them known to the device.
    ///
    /// # Errors
    /// [`Error::MemoryLock`] if this process may not lock that much; otherwise the system's error.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped. With remote access, a peer that has the key may read or
    /// write it at any time: the caller must hold no reference into the memory while a peer may do so, and must read
    /// data that a peer has written only after a completion that reports it.
    pub unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let symbols = self.context().symbols();
        let domain = self.0.domain.as_ptr();
        let start = start.cast::<c_void>();
        let mut granted = access;
        // SAFETY: the domain is live; the caller answers for the memory.
        let region = unsafe {
            match symbols.ibv_reg_mr_iova2 {
                Some(register) if access.0 & sys::IBV_ACCESS_OPTIONAL_RANGE != 0 => {
                    register(domain, start, len, start as u64, access.0)
                }
                _ => {
                    granted = Access(access.0 & !sys::IBV_ACCESS_OPTIONAL_RANGE);
                    (symbols.ibv_reg_mr)(domain, start, len, granted.0 as c_int)
                }
            }
        };
        MemoryRegion::new(self.clone(), region, start as u64, len, granted).map_err(|errno| {
            let lock = MemoryLock::current();
            match (errno, lock) {
                // Real exhaustion has the same error number; the limit distinguishes the two.
                (libc::ENOMEM, MemoryLock::Limited { bytes }) => {
                    Error::MemoryLock { bytes: len, limit_bytes: bytes }
                }
                _ => Error::call("ibv_reg_mr", format!("registering {len} bytes"), errno),
            }
        })
    }

    /// Registers `len` bytes at `offset` of a dma-buf. Work requests address them from `address` on, which must have
    /// the same position within its page as `offset`. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the library lacks this; EOPNOTSUPP if the driver does.
    ///
    /// # Safety
    /// As [`ProtectionDomain::register`], for the memory behind the descriptor.
    pub unsafe fn register_dma_buf(
        &self,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        address: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let register = self.context().symbols().ibv_reg_dmabuf_mr.ok_or(Error::Unsupported {
            what: "registering a dma-buf with this libibverbs (rdma-core 34 or newer)",
        })?;
        let bits = access.0 as c_int;
        // SAFETY: the domain is live and the descriptor open; the caller answers for the memory.
        let region =
            unsafe { register(self.0.domain.as_ptr(), offset, len, address, dma_buf.as_raw_fd(), bits) };
        MemoryRegion::new(self.clone(), region, address, len, access).map_err(|errno| {
            Error::call("ibv_reg_dmabuf_mr", format!("registering {len} bytes of a dma-buf"), errno)
        })
    }

    /// Returns whether dma-bufs can be registered, by trying it with an invalid descriptor.
    #[must_use]
    pub fn dma_buf_support(&self) -> DmaBufSupport {
        let Some(register) = self.context().symbols().ibv_reg_dmabuf_mr else {
            return DmaBufSupport::NotInLibrary;
        };
        // SAFETY: the domain is live; descriptor -1 is refused before anything is registered. Some drivers check the
        // length before the descriptor, so the length is a valid one.
        let region = unsafe { register(self.0.domain.as_ptr(), 0, 4096, 0, -1, 0) };
        if region.is_null() && errno() == libc::EBADF {
            DmaBufSupport::Yes
        } else {
            DmaBufSupport::NotInDriver
        }
    }

    /// Allocates page-aligned zeroed memory and registers it.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn allocate(&self, len: usize, access: Access) -> Result<PinnedBuffer, Error> {
        PinnedBuffer::new(self, len, access)
    }

    /// Makes a reliable connected queue pair, in state RESET.
    ///
    /// # Errors
    /// If the capacities exceed the device's limits.
    pub fn queue_pair(&self, spec: &QueuePairSpec<'_>) -> Result<QueuePair, Error> {
        QueuePair::new(self.clone(), spec)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.0.domain.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain").field(self.context()).finish()
    }
}

/// Registered memory. It is deregistered when dropped; later uses of its keys fail with an access error.
pub struct MemoryRegion {
    domain: ProtectionDomain,
    region: NonNull<sys::ibv_mr>,
    address: u64,
    len: usize,
    local_key: u32,
    remote_key: u32,
    access: Access,
}

// SAFETY: the verbs are thread-safe; the region's fields were copied out.
unsafe impl Send for MemoryRegion {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    fn new(
        domain: ProtectionDomain,
        region: *mut sys::ibv_mr,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, i32> {
        let region = NonNull::new(region).ok_or_else(errno)?;
        // SAFETY: the library has just made the region, and does not change its keys.
        let (local_key, remote_key) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(Self { domain, region, address, len, local_key, remote_key, access })
    }

    /// Returns the address of the first byte, as work requests name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the permitted uses, without optional bits that the library does not know.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the key that a peer needs.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Returns the key for this side's work requests.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// Returns a part of it, for this side's work requests.
    ///
    /// # Panics
    /// If the part is not within the region, or has 4 GiB or more.
    #[must_use]
    pub fn local(&self, offset: usize, len: usize) -> Local {
        self.check(offset, len);
        let len = u32::try_from(len).expect("a piece of a work request is shorter than 4 GiB");
        Local::new(self.address + offset as u64, len, self.local_key)
    }

    /// Returns a location in it, for a peer's work requests.
    ///
    /// # Panics
    /// If the location is not within the region.
    #[must_use]
    pub fn remote(&self, offset: usize) -> Remote {
        self.check(offset, 0);
        Remote { address: self.address + offset as u64, key: self.remote_key }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len).expect("a range of addresses");
        assert!(end <= self.len, "bytes {offset} to {end} of a region of {}", self.len);
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region was registered once and is deregistered once.
        unsafe { (self.domain.context().symbols().ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Registered memory that it allocates itself, for staging, rings and credits. It is never lent as a slice, since the
/// device may write to it at any time.
#[derive(Debug)]
pub struct PinnedBuffer {
    // `Drop` below deregisters the region before it frees the memory.
    region: Option<MemoryRegion>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: this is plain memory, accessed through raw pointers by code that answers for it.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference, only `read` copies from the memory; writing needs the only reference.
unsafe impl Sync for PinnedBuffer {}

/// Alignment that exceeds every page size of 64-bit Linux except huge pages, so that other allocations share no page
/// with a region: pages of a region are pinned as a whole, and on old kernels they are missing in a forked child.
const ALIGNMENT: usize = 64 * 1024;

impl PinnedBuffer {
    fn new(domain: &ProtectionDomain, len: usize, access: Access) -> Result<Self, Error> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT)
            .map(|layout| layout.pad_to_align())
            .map_err(|_| Error::Usage { detail: format!("a buffer of {len} bytes") })?;
        // SAFETY: the layout has a nonzero size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        let mut buffer = Self { region: None, start, layout };
        // SAFETY: the memory lives until `drop`, which drops the region first; no reference to it is ever made.
        buffer.region = Some(unsafe { domain.register(start.as_ptr(), len, access)? });
        Ok(buffer)
    }

    /// Returns its registration.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        self.region.as_ref().expect("registered until it is dropped")
    }

    /// Returns the address of its first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` into it, from `offset` on.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.region().check(offset, bytes.len());
        // SAFETY: the range is within the allocation; `bytes` cannot overlap it, since no slice of it exists. A
        // device that reads meanwhile sends old or new bytes.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(self.as_ptr().add(offset), bytes.len()) };
    }

    /// Copies from it, from `offset` on. Bytes that a device writes meanwhile may be old or new; those that a
    /// completion has reported are new.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region().check(offset, bytes.len());
        // SAFETY: the range is within the allocation, and `bytes` does not overlap it, as in `write`.
        unsafe { self.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // The device forgets the memory before it is freed.
        self.region = None;
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
