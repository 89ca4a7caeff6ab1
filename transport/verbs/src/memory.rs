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
    /// To be sent from and to be the source of RDMA writes only.
    pub const LOCAL_READ: Self = Self(0);
    /// Receives and RDMA reads land in it.
    pub const LOCAL_WRITE: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers write to it; needs `LOCAL_WRITE`.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Peers read from it.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers do atomics on it; needs `LOCAL_WRITE`.
    pub const REMOTE_ATOMIC: Self = Self(sys::IBV_ACCESS_REMOTE_ATOMIC);
    /// The adapter may write it in any order, which is faster on some hosts. Only completions then say that bytes
    /// are there. Left out where the library does not know it.
    pub const RELAXED_ORDERING: Self = Self(sys::IBV_ACCESS_RELAXED_ORDERING);

    /// libibverbs' bits.
    #[must_use]
    pub fn raw(self) -> u32 {
        self.0
    }

    /// Whether all of `other` is allowed.
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

/// Queue pairs and memory that may work together. Cheap to clone.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Domain>);

struct Domain {
    context: Context,
    domain: NonNull<sys::ibv_pd>,
}

// SAFETY: the verbs are thread-safe, and nothing of the structure is read here.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; regions and queue pairs hold an `Arc` of this and are gone.
        unsafe { (self.context.symbols().ibv_dealloc_pd)(self.domain.as_ptr()) };
    }
}

/// Whether a device takes memory of others, such as a GPU's, by dma-buf.
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
        // SAFETY: a live context; the result is checked.
        let domain = unsafe { (context.symbols().ibv_alloc_pd)(context.as_ptr()) };
        let domain = NonNull::new(domain)
            .ok_or_else(|| Error::call("ibv_alloc_pd", "making a protection domain", errno()))?;
        Ok(Self(Arc::new(Domain { context, domain })))
    }

    /// The opened device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers `len` bytes at `start`: pins them and makes them known to the device.
    ///
    /// # Errors
    /// [`Error::MemoryLock`] if this process may not lock that much; else what the system says.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped. With remote access, whoever has the key reads or
    /// writes it at any time: the caller holds no reference into it while a peer may, and reads what was written
    /// only after a completion says so.
    pub unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let symbols = self.context().symbols();
        let domain = self.0.domain.as_ptr();
        let start = start.cast::<c_void>();
        let mut granted = access;
        // SAFETY: a live domain; the memory is the caller's promise.
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
                // The same number as for real exhaustion: the limit tells which.
                (libc::ENOMEM, MemoryLock::Limited { bytes }) => {
                    Error::MemoryLock { bytes: len, limit_bytes: bytes }
                }
                _ => Error::call("ibv_reg_mr", format!("registering {len} bytes"), errno),
            }
        })
    }

    /// Registers `len` bytes at `offset` of a dma-buf, to be addressed from `address` on, which must have the same
    /// place in its page as `offset`. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the library lacks it; EOPNOTSUPP if the driver does.
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
        // SAFETY: a live domain and an open descriptor; the memory is the caller's promise.
        let region =
            unsafe { register(self.0.domain.as_ptr(), offset, len, address, dma_buf.as_raw_fd(), bits) };
        MemoryRegion::new(self.clone(), region, address, len, access).map_err(|errno| {
            Error::call("ibv_reg_dmabuf_mr", format!("registering {len} bytes of a dma-buf"), errno)
        })
    }

    /// Whether dma-bufs can be registered, found out by offering a descriptor that cannot be one.
    #[must_use]
    pub fn dma_buf_support(&self) -> DmaBufSupport {
        let Some(register) = self.context().symbols().ibv_reg_dmabuf_mr else {
            return DmaBufSupport::NotInLibrary;
        };
        // SAFETY: a live domain; descriptor -1 is refused before anything is registered.
        // Some drivers look at the length before the descriptor, so it is one that could be.
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

    /// A new reliable connected queue pair, in state RESET.
    ///
    /// # Errors
    /// If the numbers are beyond the device.
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

/// Registered memory. Deregistered when dropped; whatever then still names its keys fails with an access error.
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
// SAFETY: as above.
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
        // SAFETY: just made by the library, which does not change its keys.
        let (local_key, remote_key) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Ok(Self { domain, region, address, len, local_key, remote_key, access })
    }

    /// Address of the first byte, as work requests name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Uses it was registered for; without optional bits that the library does not know.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The key that a peer needs.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The key for this side's work requests.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// A part of it, for this side's work requests.
    ///
    /// # Panics
    /// If it is not within the region, or longer than 4 GiB less a byte.
    #[must_use]
    pub fn local(&self, offset: usize, len: usize) -> Local {
        self.check(offset, len);
        let len = u32::try_from(len).expect("a piece of a work request is shorter than 4 GiB");
        Local::new(self.address + offset as u64, len, self.local_key)
    }

    /// A place in it, for a peer's work requests.
    ///
    /// # Panics
    /// If it is not within the region.
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
        // SAFETY: registered once, deregistered once.
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

/// Memory of our own, registered: for staging, rings and credits. It is never handed out as a slice, since the
/// device may write to it at any time.
#[derive(Debug)]
pub struct PinnedBuffer {
    // Dropped before the memory is freed, by `Drop` below.
    region: Option<MemoryRegion>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory, accessed through raw pointers by whoever answers for it.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference only `read` copies out of it; writing needs the only reference.
unsafe impl Sync for PinnedBuffer {}

/// Larger than any page of 64-bit Linux but huge ones, so that no page is shared with other allocations' data: pages
/// of a region are pinned whole, and left out of a forked child on old kernels.
const ALIGNMENT: usize = 64 * 1024;

impl PinnedBuffer {
    fn new(domain: &ProtectionDomain, len: usize, access: Access) -> Result<Self, Error> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT)
            .map(|layout| layout.pad_to_align())
            .map_err(|_| Error::Usage { detail: format!("a buffer of {len} bytes") })?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        let mut buffer = Self { region: None, start, layout };
        // SAFETY: the memory lives until `drop`, which drops the region first; no reference to it is ever made.
        buffer.region = Some(unsafe { domain.register(start.as_ptr(), len, access)? });
        Ok(buffer)
    }

    /// Its registration.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        self.region.as_ref().expect("registered until it is dropped")
    }

    /// Its first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies into it.
    ///
    /// # Panics
    /// If out of bounds.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.region().check(offset, bytes.len());
        // SAFETY: within the allocation; `bytes` cannot overlap it, since no slice of it exists. A device that
        // reads meanwhile sends old or new bytes.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(self.as_ptr().add(offset), bytes.len()) };
    }

    /// Copies out of it. Bytes that a device writes meanwhile are old or new; those that a completion told of are
    /// new.
    ///
    /// # Panics
    /// If out of bounds.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region().check(offset, bytes.len());
        // SAFETY: within the allocation, not overlapping as above.
        unsafe { self.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // The device forgets the memory before it is freed.
        self.region = None;
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
