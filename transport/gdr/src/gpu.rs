//! A GPU as the owner of memory: which GPU owns an address, and the context in which its copies run.

use std::ffi::{OsStr, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::no_export;
use crate::library::{Address, Handle, Library};
use crate::path::DmaBuf;

// Numbers of cuda.h.
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const TYPE_DEVICE: c_uint = 2;
const NOT_INITIALIZED: c_int = 3;
/// Memory that the driver does not know is the host's.
const INVALID_VALUE: c_int = 1;
/// Of pinned memory: all contexts may copy from and to it.
const PORTABLE: c_uint = 1;
const FLUSH_CURRENT_CONTEXT: c_int = 0;
const FLUSH_TO_OWNER: c_int = 100;
const HANDLE_DMA_BUF: c_int = 1;
const MAPPED_FOR_PCIE: c_ulonglong = 1;
/// The kernel's side of the driver: there where GPUs are, in containers too if they were given one.
const KERNEL_DRIVER: &str = "/dev/nvidiactl";

/// Owner of the memory at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host's, or managed memory, which the host reaches too.
    Host,
    /// The GPU's of this number.
    Gpu(u32),
    /// The driver did not say. The processor reads it, so it counts as the host's.
    Untold {
        /// The driver's words instead.
        words: String,
        /// Whether this is the first such answer.
        is_first: bool,
    },
}

/// The driver's library, loaded and not started: asking it whose an address is needs no more, since a process in which
/// nobody has started the driver has no memory of a GPU.
#[derive(Debug)]
pub struct Driver {
    library: Arc<Library>,
    /// Those in use, by number.
    gpus: Mutex<Vec<Arc<Gpu>>>,
    /// Answers of the kind [`Owner::Untold`], so far.
    untold: AtomicU64,
}

/// The driver's attributes of an address. All 0 for memory of the host that it does not know.
#[derive(Default)]
struct Attributes {
    kind: c_uint,
    managed: c_uint,
    ordinal: c_int,
}

impl Driver {
    /// Loads the library: a file's name, or the driver's own.
    ///
    /// # Errors
    /// That there is none, or that it is something else.
    pub fn load(library: Option<&OsStr>) -> Result<Self, String> {
        let library = Arc::new(Library::load(library)?);
        Ok(Self { library, gpus: Mutex::default(), untold: AtomicU64::new(0) })
    }

    /// Whether this process may come to have memory of a GPU. Where the kernel's side of the driver is loaded the answer is
    /// yes without asking: a process that has started the driver cannot use GPUs in children that it forks, so that is left
    /// to the program. Elsewhere the driver is started and asked, which is quick and harms nobody where there is no GPU.
    ///
    /// # Errors
    /// Why there is none, in plain words.
    pub fn has_gpus(&self) -> Result<(), String> {
        if Path::new(KERNEL_DRIVER).exists() {
            return Ok(());
        }
        self.library.start()?;
        let count = self.library.need(self.library.functions.device_count)?;
        let mut found = 0;
        // SAFETY: writes one int.
        self.library.check("counting GPUs", unsafe { count(&raw mut found) })?;
        if found > 0 { Ok(()) } else { Err("the GPU's driver knows of no GPU".to_owned()) }
    }

    /// Owner of the memory at this address. One call of the driver. Only its plain answer that memory is a GPU's makes it that:
    /// programs that use no GPU are not stopped by a driver that has failed, or is not in a state to answer (no context in
    /// this thread, the toolkit's stub library, the end of the process).
    ///
    /// # Errors
    /// If the driver does not tell, and the processor cannot read the address either: a GPU's memory, most likely.
    pub fn owner(&self, address: *const u8) -> Result<Owner, String> {
        let (code, Attributes { kind, managed, ordinal }) = self.attributes(address)?;
        match code {
            0 if kind == TYPE_DEVICE && managed == 0 => Ok(Owner::Gpu(ordinal as u32)),
            0 | NOT_INITIALIZED | INVALID_VALUE => Ok(Owner::Host),
            _ => {
                let words = self.library.check("asking whose an address is", code).err().unwrap_or_default();
                if !is_readable(address) {
                    return Err(format!("{words}; and the processor cannot read it"));
                }
                let is_first = self.untold.fetch_add(1, Ordering::Relaxed) == 0;
                Ok(Owner::Untold { words, is_first })
            }
        }
    }

    /// Asks the driver about an address: the code of its answer, and the answer, which counts if the code is 0.
    fn attributes(&self, address: *const u8) -> Result<(c_int, Attributes), String> {
        let ask = self.library.need(self.library.functions.pointer_attributes)?;
        let mut found = Attributes::default();
        let mut which = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL];
        let mut values: [*mut c_void; 3] =
            [(&raw mut found.kind).cast(), (&raw mut found.managed).cast(), (&raw mut found.ordinal).cast()];
        // SAFETY: as many attributes as places, each as wide as its attribute; the address is only looked up.
        let code = unsafe {
            ask(which.len() as c_uint, which.as_mut_ptr(), values.as_mut_ptr(), address.addr() as Address)
        };
        Ok((code, found))
    }

    /// Waits until all that is queued on a stream so far is done, if the driver knows the address: of a GPU's memory, managed
    /// or not. Blocks. `stream` is a `CUstream`, or 1 for the legacy default stream and 2 for the calling thread's.
    ///
    /// # Errors
    /// The driver's error: also that of an operation queued before.
    ///
    /// # Safety
    /// The stream exists until this returns.
    pub unsafe fn synchronize(&self, address: *const u8, stream: usize) -> Result<(), String> {
        let (code, Attributes { kind, ordinal, .. }) = self.attributes(address)?;
        if code != 0 || kind == 0 {
            // Memory of the host alone, which no stream writes, or taken for it: see `owner`.
            return Ok(());
        }
        self.gpu(ordinal as u32)?.within(|library| {
            let synchronize = library.need(library.functions.synchronize_stream)?;
            // SAFETY: a stream, by the caller's promise; the two small numbers are the driver's names for default streams.
            library.check("waiting for a stream", unsafe { synchronize(ptr::without_provenance_mut(stream)) })
        })
    }

    /// How often the driver did not tell whose an address is, and it was taken for the host's.
    #[must_use]
    pub fn untold(&self) -> u64 {
        self.untold.load(Ordering::Relaxed)
    }

    /// A GPU by its number, ready for copies.
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

/// Whether the processor can read an address: the kernel tries it. Only a plain no counts; where it may not be asked, a
/// yes is the better guess.
fn is_readable(address: *const u8) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 1 };
    // SAFETY: writes one byte of ours; the kernel checks the other address, of which there is only a name here.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// A GPU, with its primary context, which is the one that CUDA's runtime uses.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) library: Arc<Library>,
    number: u32,
    device: c_int,
    context: Handle,
}

// SAFETY: the context is a name that any thread may use; it is made current for each use, and popped again.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Gpu {}

impl Gpu {
    fn retain(library: Arc<Library>, number: u32) -> Result<Self, String> {
        library.start()?;
        let device = library.device(number)?;
        let retain = library.need(library.functions.retain_context)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { retain(&raw mut context, device) };
        library.check(&format!("using GPU {number}"), code)?;
        Ok(Self { library, number, device, context })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Runs something with the context current in this thread.
    pub(crate) fn within<R>(&self, run: impl FnOnce(&Library) -> Result<R, String>) -> Result<R, String> {
        let library = &*self.library;
        let push = library.need(library.functions.push_context)?;
        let pop = library.need(library.functions.pop_context)?;
        // SAFETY: a context that is retained.
        library.check("entering the GPU's context", unsafe { push(self.context) })?;
        let result = run(library);
        let mut popped = ptr::null_mut();
        // SAFETY: writes one handle; what was pushed above is on top.
        unsafe { pop(&raw mut popped) };
        result
    }

    /// The allocation that an address is in.
    ///
    /// # Errors
    /// The driver's error.
    pub fn allocation(&self, address: *const u8) -> Result<Allocation, String> {
        self.within(|library| {
            let range = library.need(library.functions.address_range)?;
            let ask = library.need(library.functions.pointer_attributes)?;
            let mut found = Allocation { start: 0, bytes: 0, id: 0 };
            let (mut which, mut value) = (BUFFER_ID, (&raw mut found.id).cast::<c_void>());
            // SAFETY: for the whole block: writes an address, a length, and a number of 64 bits.
            unsafe {
                let code = range(&raw mut found.start, &raw mut found.bytes, address.addr() as Address);
                library.check("looking up an allocation", code)?;
                let code = ask(1, &raw mut which, &raw mut value, address.addr() as Address);
                library.check("looking up an allocation", code)?;
            }
            Ok(found)
        })
    }

    /// Exports a range of its memory as a dma-buf, by whole pages. The range must not end before the allocation that it is
    /// of does, but for the rest of a page.
    ///
    /// # Errors
    /// The driver's error.
    pub fn export(&self, address: u64, len: usize, how: DmaBuf) -> Result<DeviceRange, String> {
        // SAFETY: takes no pointer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let start = address & !(page - 1);
        let bytes = (address + len as u64).next_multiple_of(page) - start;
        let flags = if how == DmaBuf::Pcie { MAPPED_FOR_PCIE } else { 0 };
        self.within(|library| {
            let export = library.functions.export.map_err(no_export)?;
            let mut descriptor: c_int = -1;
            let handle = (&raw mut descriptor).cast();
            // SAFETY: for this kind of handle the driver writes one int; of the range it only looks up the addresses.
            let code = unsafe { export(handle, start, bytes as usize, HANDLE_DMA_BUF, flags) };
            library.check("exporting memory", code)?;
            if descriptor < 0 {
                return Err("exporting memory: the driver gave no descriptor".to_owned());
            }
            // SAFETY: a new descriptor, and nobody else's.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            Ok(DeviceRange { descriptor, offset: address - start })
        })
    }

    /// Makes what adapters have written to this GPU's memory visible to it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn flush(&self) -> Result<(), String> {
        self.within(|library| {
            let missing = |_| "the driver has no cuFlushGPUDirectRDMAWrites (11.3 or newer)".to_owned();
            let flush = library.functions.flush.map_err(missing)?;
            // SAFETY: takes no pointer.
            library.check("flushing", unsafe { flush(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) })
        })
    }

    /// Pins memory of the host, so that the GPU copies from and to it by itself.
    ///
    /// # Errors
    /// The driver's error: such as that no more may be locked.
    ///
    /// # Safety
    /// The memory stays mapped until what is returned is dropped.
    pub unsafe fn pin(self: &Arc<Self>, start: *mut u8, bytes: usize) -> Result<Pinned, String> {
        self.within(|library| {
            let register = library.need(library.functions.register_host)?;
            library.need(library.functions.unregister_host)?;
            // SAFETY: mapped, by the caller's promise.
            let code = unsafe { register(start.cast(), bytes, PORTABLE) };
            library.check(&format!("pinning {bytes} bytes of the host's memory"), code)
        })?;
        Ok(Pinned { gpu: Arc::clone(self), start })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Ok(release) = self.library.functions.release_context {
            // SAFETY: retained once, released once.
            unsafe { release(self.device) };
        }
    }
}

/// A piece of a GPU's memory that was allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its address.
    pub start: u64,
    /// Its length.
    pub bytes: usize,
    /// No other allocation of this process has, or had, the same.
    pub id: u64,
}

/// A range of a GPU's memory as a dma-buf.
#[derive(Debug)]
pub struct DeviceRange {
    /// Names the memory to other drivers.
    pub descriptor: OwnedFd,
    /// Where in it the range begins.
    pub offset: u64,
}

/// Memory of the host that is pinned as long as this is kept.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    start: *mut u8,
}

// SAFETY: the address is a name, given back to the driver; the memory is not touched through it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        // At the end of a process the driver may be gone before us; there is nobody to tell.
        let _ = self.gpu.within(|library| {
            let unregister = library.need(library.functions.unregister_host)?;
            // SAFETY: pinned once, by `Gpu::pin`, and unpinned once.
            library.check("unpinning memory", unsafe { unregister(self.start.cast()) })
        });
    }
}
