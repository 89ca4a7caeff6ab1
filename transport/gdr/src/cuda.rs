//! The table of this machine: libcuda, found at run time, and the kernel's modules.
//!
//! A table of our own rather than a binding of all of CUDA: each function may be missing in an older driver, which is then
//! a reason and not a failure; and there are seven of them.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, mem};

use crate::decide::Drivers;
use crate::path::DmaBuf;

/// What is loaded if nothing else is named: the driver's own library, not the toolkit's.
const LIBRARY: &str = "libcuda.so.1";

// Numbers of cuda.h, which the driver keeps for ever.
const HOST_PAGE_TABLES: c_int = 100;
const GPU_DIRECT_RDMA: c_int = 116;
const FLUSH_OPTIONS: c_int = 117;
const WRITES_ORDERING: c_int = 118;
const DMA_BUF: c_int = 124;
/// Of the options for flushing: by a call of the host.
const FLUSH_BY_HOST: c_int = 1;
/// Of the orders of writes: seen in order by the GPU that has the memory; greater: by all.
const ORDERED_FOR_OWNER: c_int = 100;
const FLUSH_CURRENT_CONTEXT: c_int = 0;
const FLUSH_TO_OWNER: c_int = 100;
const HANDLE_DMA_BUF: c_int = 1;
const MAPPED_FOR_PCIE: c_ulonglong = 1;
/// The driver's version that knows [`MAPPED_FOR_PCIE`].
const VERSION_OF_PCIE: c_int = 12_080;

type Code = c_int;
type Init = unsafe extern "C" fn(c_uint) -> Code;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> Code;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Code;
type Version = unsafe extern "C" fn(*mut c_int) -> Code;
type ErrorText = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;
type Export = unsafe extern "C" fn(*mut c_void, c_ulonglong, usize, c_int, c_ulonglong) -> Code;
type FlushWrites = unsafe extern "C" fn(c_int, c_int) -> Code;

/// The functions; what older drivers lack may be missing.
struct Functions {
    device_attribute: Attribute,
    driver_version: Version,
    error_text: Option<ErrorText>,
    export: Option<Export>,
    flush: Option<FlushWrites>,
}

/// A range of a GPU's memory as a dma-buf.
#[derive(Debug)]
pub struct DeviceRange {
    /// Names the memory to other drivers.
    pub descriptor: OwnedFd,
    /// Where in it the range begins.
    pub offset: u64,
}

/// A GPU, its driver, and what is known of the adapters.
pub struct Cuda {
    functions: Result<Functions, String>,
    device: c_int,
    registers: Result<(), String>,
}

impl Cuda {
    /// Loads the driver's library and looks at a GPU by its number. What is missing is an answer of the table, not an
    /// error. `registers` is what the adapters said when they were offered a dma-buf.
    #[must_use]
    pub fn open(number: u32, library: Option<&OsStr>, registers: Result<(), String>) -> Self {
        let mut device = 0;
        let functions = load(library.unwrap_or(OsStr::new(LIBRARY)), number, &mut device);
        Self { functions, device, registers }
    }

    /// Exports a range of the GPU's memory. The range must not end before the allocation that it is of does, but for
    /// the rest of a page.
    ///
    /// # Errors
    /// What the driver says.
    pub fn export(&self, address: u64, len: usize, how: DmaBuf) -> Result<DeviceRange, String> {
        let functions = self.functions.as_ref().map_err(Clone::clone)?;
        let export = functions.export.ok_or_else(no_export)?;
        // SAFETY: takes no pointer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let start = address & !(page - 1);
        let end = (address + len as u64).next_multiple_of(page);
        let mut descriptor: c_int = -1;
        let flags = if how == DmaBuf::Pcie { MAPPED_FOR_PCIE } else { 0 };
        // SAFETY: for this kind of handle the driver writes one int; of the range it only looks up the addresses.
        let code = unsafe {
            export((&raw mut descriptor).cast(), start, (end - start) as usize, HANDLE_DMA_BUF, flags)
        };
        functions.check("exporting memory", code)?;
        if descriptor < 0 {
            return Err("exporting memory: the driver gave no descriptor".to_owned());
        }
        // SAFETY: a new descriptor, and nobody else's.
        Ok(DeviceRange { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, offset: address - start })
    }

    /// Makes what adapters have written to the memory of the current context's GPU visible to it.
    ///
    /// # Errors
    /// What the driver says; with no context current in this thread, that.
    pub fn flush(&self) -> Result<(), String> {
        let functions = self.functions.as_ref().map_err(Clone::clone)?;
        let flush = functions.flush.ok_or("the driver has no cuFlushGPUDirectRDMAWrites (11.3 or newer)")?;
        // SAFETY: takes no pointer.
        functions.check("flushing", unsafe { flush(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) })
    }

    fn attribute(&self, which: c_int) -> c_int {
        let Ok(functions) = &self.functions else { return 0 };
        let mut value = 0;
        // SAFETY: writes one int.
        match unsafe { (functions.device_attribute)(&raw mut value, which, self.device) } {
            0 => value,
            // One that this driver does not know.
            _ => 0,
        }
    }
}

impl Drivers for Cuda {
    fn driver(&self) -> Result<(), String> {
        self.functions.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn gpu_direct(&self) -> Result<(), String> {
        match self.attribute(GPU_DIRECT_RDMA) | self.attribute(DMA_BUF) {
            0 => Err("this GPU, or its driver here, takes no part in GPUDirect RDMA".to_owned()),
            _ => Ok(()),
        }
    }

    fn exports(&self, how: DmaBuf) -> Result<(), String> {
        let functions = self.functions.as_ref().map_err(Clone::clone)?;
        functions.export.ok_or_else(no_export)?;
        if self.attribute(DMA_BUF) == 0 {
            return Err(
                "the GPU's driver exports no dma-bufs (its open kernel modules do, from Linux 5.12 on)"
                    .to_owned(),
            );
        }
        let mut version = 0;
        // SAFETY: writes one int.
        let code = unsafe { (functions.driver_version)(&raw mut version) };
        match how {
            DmaBuf::Pcie if code != 0 || version < VERSION_OF_PCIE => {
                Err("the GPU's driver maps none for PCIe (12.8 or newer)".to_owned())
            }
            DmaBuf::Plain | DmaBuf::Pcie => Ok(()),
        }
    }

    fn wants_pcie(&self) -> bool {
        self.attribute(HOST_PAGE_TABLES) != 0
    }

    fn registers(&self) -> Result<(), String> {
        self.registers.clone()
    }

    fn peer_memory(&self) -> Result<(), String> {
        let known = ["/sys/kernel/mm/memory_peers/nv_mem", "/sys/module/nvidia_peermem"];
        match known.iter().any(|path| Path::new(path).exists()) {
            true => Ok(()),
            false => Err("nvidia_peermem is not loaded (modprobe nvidia_peermem)".to_owned()),
        }
    }

    fn orders_writes(&self) -> bool {
        self.attribute(WRITES_ORDERING) >= ORDERED_FOR_OWNER
    }

    fn flushes(&self) -> bool {
        self.functions.as_ref().is_ok_and(|functions| functions.flush.is_some())
            && self.attribute(FLUSH_OPTIONS) & FLUSH_BY_HOST != 0
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("driver", &self.driver())
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Functions {
    fn check(&self, what: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        if let Some(error_text) = self.error_text {
            // SAFETY: writes one pointer, to text that lasts.
            unsafe { error_text(code, &raw mut text) };
        }
        match text.is_null() {
            true => Err(format!("{what}: CUDA's error {code}")),
            // SAFETY: not null, so a text that the driver keeps.
            false => Err(format!("{what}: {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())),
        }
    }
}

fn no_export() -> String {
    "the GPU's driver has no cuMemGetHandleForAddressRange (11.7 or newer)".to_owned()
}

fn load(library: &OsStr, number: u32, device: &mut c_int) -> Result<Functions, String> {
    let shown = library.display();
    let name = CString::new(library.as_bytes()).map_err(|_| format!("{shown} is no name of a file"))?;
    // SAFETY: a terminated text; the library is never unloaded, so what is found in it stays.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("{shown} cannot be loaded: no GPU's driver is installed"));
    }
    // SAFETY: a loaded library and a terminated text.
    let find = |symbol: &CStr| unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    let demand = |symbol: &CStr| match find(symbol) {
        found if found.is_null() => Err(format!("{shown} has no {}", symbol.to_string_lossy())),
        found => Ok(found),
    };
    // SAFETY: the functions have had these types since they exist; a null pointer becomes none.
    let (init, get, functions) = unsafe {
        (
            mem::transmute::<*mut c_void, Init>(demand(c"cuInit")?),
            mem::transmute::<*mut c_void, Get>(demand(c"cuDeviceGet")?),
            Functions {
                device_attribute: mem::transmute::<*mut c_void, Attribute>(demand(c"cuDeviceGetAttribute")?),
                driver_version: mem::transmute::<*mut c_void, Version>(demand(c"cuDriverGetVersion")?),
                error_text: mem::transmute::<*mut c_void, Option<ErrorText>>(find(c"cuGetErrorString")),
                export: mem::transmute::<*mut c_void, Option<Export>>(find(c"cuMemGetHandleForAddressRange")),
                flush: mem::transmute::<*mut c_void, Option<FlushWrites>>(find(
                    c"cuFlushGPUDirectRDMAWrites",
                )),
            },
        )
    };
    // SAFETY: takes no pointer; may be called more than once.
    functions.check("starting the GPU's driver", unsafe { init(0) })?;
    let number = c_int::try_from(number).map_err(|_| format!("GPU {number}"))?;
    // SAFETY: writes one int.
    functions.check(&format!("GPU {number}"), unsafe { get(device, number) })?;
    Ok(functions)
}
