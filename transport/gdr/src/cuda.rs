//! The [`Drivers`] table of this machine: the answers of libcuda and of the kernel's modules.

use std::ffi::{OsStr, c_int};
use std::fmt;
use std::path::Path;

use crate::decide::Drivers;
use crate::library::Library;
use crate::path::DmaBuf;

// Constants of cuda.h, which the driver never changes.
const HOST_PAGE_TABLES: c_int = 100;
const GPU_DIRECT_RDMA: c_int = 116;
const FLUSH_OPTIONS: c_int = 117;
const WRITES_ORDERING: c_int = 118;
const DMA_BUF: c_int = 124;
/// Flush option: by a call of the host.
const FLUSH_BY_HOST: c_int = 1;
/// Ordering of writes: in order for the GPU that has the memory; greater values mean for all readers.
const ORDERED_FOR_OWNER: c_int = 100;
/// First version of the driver that can map memory for PCIe.
const VERSION_OF_PCIE: c_int = 12_080;

/// A GPU, its driver, and the known facts about the adapters.
pub struct Cuda {
    library: Result<Library, String>,
    device: c_int,
    registers: Result<(), String>,
}

impl Cuda {
    /// Loads the driver's library and looks up a GPU by its number. A missing function is an answer of the table, not
    /// an error. `registers` is the adapters' answer to whether they register dma-bufs.
    #[must_use]
    pub fn open(number: u32, library: Option<&OsStr>, registers: Result<(), String>) -> Self {
        let found = Library::load(library).and_then(|library| {
            library.start()?;
            let device = library.device(number)?;
            library.need(library.functions.device_attribute)?;
            Ok((library, device))
        });
        let device = found.as_ref().map_or(0, |(_, device)| *device);
        Self { library: found.map(|(library, _)| library), device, registers }
    }

    fn attribute(&self, which: c_int) -> c_int {
        let Ok(library) = &self.library else { return 0 };
        let Ok(attribute) = library.functions.device_attribute else { return 0 };
        let mut value = 0;
        // SAFETY: the call writes one int.
        match unsafe { attribute(&raw mut value, which, self.device) } {
            0 => value,
            // This driver does not know the attribute.
            _ => 0,
        }
    }
}

impl Drivers for Cuda {
    fn driver(&self) -> Result<(), String> {
        self.library.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn gpu_direct(&self) -> Result<(), String> {
        match self.attribute(GPU_DIRECT_RDMA) | self.attribute(DMA_BUF) {
            0 => Err("this GPU, or its driver here, does not support GPUDirect RDMA".to_owned()),
            _ => Ok(()),
        }
    }

    fn exports(&self, how: DmaBuf) -> Result<(), String> {
        let library = self.library.as_ref().map_err(Clone::clone)?;
        library.functions.export.map_err(no_export)?;
        if self.attribute(DMA_BUF) == 0 {
            return Err(
                "the GPU driver does not export dma-bufs (its open kernel modules do, on Linux 5.12 or newer)"
                    .to_owned(),
            );
        }
        let mut version = 0;
        if let Ok(ask) = library.functions.version {
            // SAFETY: the call writes one int.
            unsafe { ask(&raw mut version) };
        }
        match how {
            DmaBuf::Pcie if version < VERSION_OF_PCIE => {
                Err("the GPU driver does not map them for PCIe (12.8 or newer)".to_owned())
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
        self.library.as_ref().is_ok_and(|library| library.functions.flush.is_ok())
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

pub(crate) fn no_export<T>(_: T) -> String {
    "the GPU driver has no cuMemGetHandleForAddressRange (11.7 or newer)".to_owned()
}
