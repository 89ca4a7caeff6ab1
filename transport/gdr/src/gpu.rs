//! GPUs as owners of memory: which GPU owns an address, and the context in which its copies run.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::no_export;
use crate::library::{Address, Handle, Library};
use crate::path::DmaBuf;

// Constants of cuda.h.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const TYPE_DEVICE: c_uint = 2;
const NOT_INITIALIZED: c_int = 3;
/// The answer for memory that the driver does not know, which is the host's.
const INVALID_VALUE: c_int = 1;
/// Flag for pinned memory: all contexts may copy from and to it.
const PORTABLE: c_uint = 1;
const FLUSH_CURRENT_CONTEXT: c_int = 0;
const FLUSH_TO_OWNER: c_int = 100;
const HANDLE_DMA_BUF: c_int = 1;
const MAPPED_FOR_PCIE: c_ulonglong = 1;
/// Device file of the kernel's side of the driver. It exists where GPUs are, also in containers that were given one.
const KERNEL_DRIVER: &str = "/dev/nvidiactl";

/// Owner of the memory at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host: also for managed memory, which the host reaches too.
    Host,
    /// The GPU of this number.
    Gpu(u32),
    /// The driver did not say. The processor can read the memory, so it counts as the host's.
    Unknown {
        /// The driver's error text.
        words: String,
        /// Whether this is the first such answer.
        is_first: bool,
    },
}

/// The driver's library, loaded but not started. Finding the owner of an address needs no more: a process in which
/// nobody has started the driver has no memory of a GPU.
#[derive(Debug)]
pub struct Driver {
    library: Arc<Library>,
    /// GPUs in use.
    gpus: Mutex<Vec<Arc<Gpu>>>,
    /// Number of [`Owner::Unknown`] answers so far.
    unknown: AtomicU64,
}

/// The driver's attributes of an address. All are 0 for memory of the host that it does not know.
#[derive(Default)]
struct Attributes {
    kind: c_uint,
    managed: c_uint,
    ordinal: c_int,
}

impl Driver {
    /// Loads the library: the named file, or the driver's own.
    ///
    /// # Errors
    /// If there is no such library, or it is another one.
    pub fn load(library: Option<&OsStr>) -> Result<Self, String> {
        let library = Arc::new(Library::load(library)?);
        Ok(Self { library, gpus: Mutex::default(), unknown: AtomicU64::new(0) })
    }

    /// Checks whether this process may get memory of a GPU. If the kernel's side of the driver is loaded, the answer
    /// is yes without a query: a process that has started the driver cannot use GPUs in children that it forks, so
    /// starting it is left to the program. Elsewhere the driver is started and asked, which is fast, and harmless
    /// where there is no GPU.
    ///
    /// # Errors
    /// The reason why there is no GPU, in plain words.
    pub fn has_gpus(&self) -> Result<(), String> {
        if Path::new(KERNEL_DRIVER).exists() {
            return Ok(());
        }
        if self.count()? > 0 { Ok(()) } else { Err("the GPU driver does not see any GPU".to_owned()) }
    }

    fn count(&self) -> Result<u32, String> {
        self.library.start()?;
        let count = self.library.need(self.library.functions.device_count)?;
        let mut found = 0;
        // SAFETY: the call writes one int.
        self.library.check("counting GPUs", unsafe { count(&raw mut found) })?;
        Ok(u32::try_from(found).unwrap_or(0))
    }

    /// Returns the names of the GPUs that this process sees, by number. Starts the driver, after which the process must not fork
    /// children that use GPUs.
    ///
    /// # Errors
    /// The driver's words.
    pub fn names(&self) -> Result<Vec<String>, String> {
        (0..self.count()?).map(|number| self.name(number)).collect()
    }

    fn name(&self, number: u32) -> Result<String, String> {
        let device = self.library.device(number)?;
        let name_of = self.library.need(self.library.functions.device_name)?;
        let mut name = [0_u8; 256];
        // SAFETY: the call writes a terminated text of at most so many bytes.
        let code = unsafe { name_of(name.as_mut_ptr().cast(), name.len() as c_int, device) };
        self.library.check("naming a GPU", code)?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns the owner of the memory at this address, with one call of the driver. Memory counts as a GPU's only if
    /// the driver plainly says so. A driver that has failed or cannot answer (no context in this thread, the
    /// toolkit's stub library, the end of the process) thus does not stop programs that use no GPU.
    ///
    /// # Errors
    /// If the driver does not say, and the processor cannot read the address: most likely, the memory is a GPU's.
    pub fn owner(&self, address: *const u8) -> Result<Owner, String> {
        let (code, Attributes { kind, managed, ordinal }) = self.attributes(address)?;
        match code {
            0 if kind == TYPE_DEVICE && managed == 0 => Ok(Owner::Gpu(ordinal as u32)),
            0 | NOT_INITIALIZED | INVALID_VALUE => Ok(Owner::Host),
            _ => {
                let words =
                    self.library.check("asking whose memory an address is", code).err().unwrap_or_default();
                if !is_readable(address) {
                    return Err(format!("{words}; and the CPU cannot read it"));
                }
                let is_first = self.unknown.fetch_add(1, Ordering::Relaxed) == 0;
                Ok(Owner::Unknown { words, is_first })
            }
        }
    }

    /// Asks the driver about an address. Returns the code of its answer, and the answer, which is valid if the code
    /// is 0.
    fn attributes(&self, address: *const u8) -> Result<(c_int, Attributes), String> {
        let ask = self.library.need(self.library.functions.pointer_attributes)?;
        let mut found = Attributes::default();
        let mut which = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL];
        let mut values: [*mut c_void; 3] =
            [(&raw mut found.kind).cast(), (&raw mut found.managed).cast(), (&raw mut found.ordinal).cast()];
        // SAFETY: there are as many attributes as places, each as wide as its attribute; the address is only looked
        // up.
        let code = unsafe {
            ask(which.len() as c_uint, which.as_mut_ptr(), values.as_mut_ptr(), address.addr() as Address)
        };
        Ok((code, found))
    }

    /// Waits until everything queued on a stream so far is done, if the driver knows the address as memory of a GPU,
    /// managed or not. Blocks. `stream` is a `CUstream`, or 1 for the legacy default stream and 2 for the calling
    /// thread's.
    ///
    /// # Errors
    /// The driver's error, which may be that of an operation queued before.
    ///
    /// # Safety
    /// The stream exists until this returns.
    pub unsafe fn synchronize(&self, address: *const u8, stream: usize) -> Result<(), String> {
        let (code, Attributes { kind, ordinal, .. }) = self.attributes(address)?;
        if code != 0 || kind == 0 {
            // The memory is the host's alone and no stream writes it, or it is taken for that: see `owner`.
            return Ok(());
        }
        self.gpu(ordinal as u32)?.within(|library| {
            let synchronize = library.need(library.functions.synchronize_stream)?;
            // SAFETY: by the caller's promise this is a stream; the two small numbers are the driver's names for
            // default streams.
            library.check("waiting for a stream", unsafe { synchronize(ptr::without_provenance_mut(stream)) })
        })
    }

    /// Returns how often the driver did not say who owns an address, so that the host was taken for the owner.
    #[must_use]
    pub fn unknown_owners(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Returns a GPU by its number, ready for copies.
    ///
    /// # Errors
    /// The driver's error.
    pub fn gpu(&self, number: u32) -> Result<Arc<Gpu>, String> {
        let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.number == number) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Arc::new(Gpu::retain(Arc::clone(&self.library), number)?);
        gpus.push(Arc::clone(&gpu));
        Ok(gpu)
    }
}

/// Returns whether the processor can read an address, which the kernel tries. Only a clear failure counts: if the
/// kernel may not be asked, `true` is the better guess.
fn is_readable(address: *const u8) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 1 };
    // SAFETY: the call writes one byte of this function; the kernel checks the other address, which is only a number
    // here.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// A GPU, with its primary context, which CUDA's runtime uses too.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) library: Arc<Library>,
    number: u32,
    device: c_int,
    context: Handle,
}

// SAFETY: the context is a handle that any thread may use; it is made current for each use, and popped again.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`; the driver does its own locking.
unsafe impl Sync for Gpu {}

impl Gpu {
    fn retain(library: Arc<Library>, number: u32) -> Result<Self, String> {
        library.start()?;
        let device = library.device(number)?;
        let retain = library.need(library.functions.retain_context)?;
        let mut context = ptr::null_mut();
        // SAFETY: the call writes one handle.
        let code = unsafe { retain(&raw mut context, device) };
        library.check(&format!("using GPU {number}"), code)?;
        Ok(Self { library, number, device, context })
    }

    /// Returns its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Calls `run` with the context current in this thread.
    pub(crate) fn within<R>(&self, run: impl FnOnce(&Library) -> Result<R, String>) -> Result<R, String> {
        let library = &*self.library;
        let push = library.need(library.functions.push_context)?;
        let pop = library.need(library.functions.pop_context)?;
        // SAFETY: the context is retained.
        library.check("entering the GPU's context", unsafe { push(self.context) })?;
        let result = run(library);
        let mut popped = ptr::null_mut();
        // SAFETY: the call writes one handle; the context pushed above is on top.
        unsafe { pop(&raw mut popped) };
        result
    }

    /// Returns the allocation that an address is in.
    ///
    /// # Errors
    /// The driver's error.
    pub fn allocation(&self, address: *const u8) -> Result<Allocation, String> {
        self.within(|library| {
            let range = library.need(library.functions.address_range)?;
            let ask = library.need(library.functions.pointer_attributes)?;
            let mut found = Allocation { start: 0, bytes: 0, id: 0 };
            let (mut which, mut value) = (BUFFER_ID, (&raw mut found.id).cast::<c_void>());
            // SAFETY: for the whole block: the calls write an address, a length, and a number of 64 bits.
            unsafe {
                let code = range(&raw mut found.start, &raw mut found.bytes, address.addr() as Address);
                library.check("looking up an allocation", code)?;
                let code = ask(1, &raw mut which, &raw mut value, address.addr() as Address);
                library.check("looking up an allocation", code)?;
            }
            Ok(found)
        })
    }

    /// Exports a range of its memory as a dma-buf, in whole pages. The allocation must contain these pages: past its
    /// end, it has only the rest of a page.
    ///
    /// # Errors
    /// The driver's error.
    pub fn export(&self, address: u64, len: usize, how: DmaBuf) -> Result<DeviceRange, String> {
        // SAFETY: the call takes no pointer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let start = address & !(page - 1);
        let bytes = (address + len as u64).next_multiple_of(page) - start;
        let flags = if how == DmaBuf::Pcie { MAPPED_FOR_PCIE } else { 0 };
        self.within(|library| {
            let export = library.functions.export.map_err(no_export)?;
            let mut descriptor: c_int = -1;
            let handle = (&raw mut descriptor).cast();
            // SAFETY: for this kind of handle, the driver writes one int; it only looks up the addresses of the
            // range.
            let code = unsafe { export(handle, start, bytes as usize, HANDLE_DMA_BUF, flags) };
            library.check("exporting memory", code)?;
            if descriptor < 0 {
                return Err("exporting memory: the driver gave no descriptor".to_owned());
            }
            // SAFETY: the descriptor is new, and nobody else owns it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            Ok(DeviceRange { descriptor, offset: address - start })
        })
    }

    /// Makes data that adapters have written to this GPU's memory visible to it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn flush(&self) -> Result<(), String> {
        self.within(|library| {
            let missing = |_| "the driver has no cuFlushGPUDirectRDMAWrites (11.3 or newer)".to_owned();
            let flush = library.functions.flush.map_err(missing)?;
            // SAFETY: the call takes no pointer.
            library.check("flushing", unsafe { flush(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) })
        })
    }

    /// Pins memory of the host, so that the GPU can copy from and to it by itself.
    ///
    /// # Errors
    /// The driver's error, for example that no more memory may be locked.
    ///
    /// # Safety
    /// The memory stays mapped until the returned [`Pinned`] is dropped.
    pub unsafe fn pin(self: &Arc<Self>, start: *mut u8, bytes: usize) -> Result<Pinned, String> {
        self.within(|library| {
            let register = library.need(library.functions.register_host)?;
            library.need(library.functions.unregister_host)?;
            // SAFETY: the memory is mapped, by the caller's promise.
            let code = unsafe { register(start.cast(), bytes, PORTABLE) };
            library.check(&format!("pinning {bytes} bytes of the host's memory"), code)
        })?;
        Ok(Pinned { gpu: Arc::clone(self), start })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Ok(release) = self.library.functions.release_context {
            // SAFETY: the context was retained once, and is released once.
            unsafe { release(self.device) };
        }
    }
}

/// An allocation of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: usize,
    /// Unique number: no other allocation of this process has, or had, the same.
    pub id: u64,
}

/// A range of a GPU's memory, exported as a dma-buf.
#[derive(Debug)]
pub struct DeviceRange {
    /// The descriptor by which other drivers know the memory.
    pub descriptor: OwnedFd,
    /// Offset in it at which the range begins.
    pub offset: u64,
}

/// Memory of the host that stays pinned until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    start: *mut u8,
}

// SAFETY: the address is only a name that is given back to the driver; the memory is not accessed through it.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        // At the end of a process, the driver may be gone already; nobody can be told.
        let _ = self.gpu.within(|library| {
            let unregister = library.need(library.functions.unregister_host)?;
            // SAFETY: the memory was pinned once, by `Gpu::pin`, and is unpinned once.
            library.check("unpinning memory", unsafe { unregister(self.start.cast()) })
        });
    }
}
