//! The library and the list of devices.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, fs};

use crate::context::Context;
use crate::error::{Absence, Error, code, errno};
use crate::sys::{self, Symbols};

/// Environment variable with the file to load in place of `libibverbs.so.1`.
pub const LIBRARY_VARIABLE: &str = "KOLO_IBVERBS_LIB";

/// The library that is loaded without it.
pub const LIBRARY_NAME: &str = "libibverbs.so.1";

/// libibverbs, loaded. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    name: OsString,
    symbols: Symbols,
    fork: ForkSafety,
}

/// Effect of `fork` on registered memory. Without copy-on-fork of pinned pages in the kernel (5.9, for huge pages 5.12), the first write
/// after it gives the parent a new page, and the device keeps the old one: silent wrong bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkSafety {
    /// The kernel copies pinned pages for the child.
    ByKernel,
    /// The library keeps registered pages out of children: they must not touch these.
    ByLibrary,
    /// The library was prepared, and is too old to say which of the two it is.
    Prepared,
    /// The library refused, with this number of the system's: as a rule another user of it in this process has registered
    /// memory before without asking for this.
    Refused {
        /// The system's error number.
        errno: i32,
    },
    /// The library cannot be asked.
    NotOffered,
}

/// Answer of `ibv_is_fork_initialized` where the kernel does it.
const FORK_UNNEEDED: i32 = 2;

impl ForkSafety {
    /// Prepares the library. It does so once for a process; later calls change nothing.
    fn prepare(symbols: &Symbols) -> Self {
        let Some(prepare) = symbols.ibv_fork_init else { return Self::NotOffered };
        // SAFETY: takes nothing.
        match code(unsafe { prepare() }) {
            Err(errno) => Self::Refused { errno },
            // SAFETY: takes nothing.
            Ok(()) => match symbols.ibv_is_fork_initialized.map(|ask| unsafe { ask() }) {
                None => Self::Prepared,
                Some(FORK_UNNEEDED) => Self::ByKernel,
                Some(_) => Self::ByLibrary,
            },
        }
    }
}

impl fmt::Display for ForkSafety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByKernel => f.write_str("safe: the kernel copies pinned pages"),
            Self::ByLibrary => {
                f.write_str("safe: children do not get registered pages, and must not touch them")
            }
            Self::Prepared => f.write_str("safe: ibv_fork_init was called"),
            Self::Refused { errno } => write!(
                f,
                "not safe on kernels before 5.12: ibv_fork_init refused ({}); set RDMAV_FORK_SAFE=1 before the program \
                 starts",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::NotOffered => f.write_str(
                "not safe on kernels before 5.12: libibverbs has no ibv_fork_init (rdma-core is too old)",
            ),
        }
    }
}

impl Library {
    /// Loads the file named by [`LIBRARY_VARIABLE`], else [`LIBRARY_NAME`].
    ///
    /// # Errors
    /// [`Absence::NoLibrary`] or [`Absence::MissingSymbol`].
    pub fn open() -> Result<Self, Absence> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(file) if !file.is_empty() => Self::open_file(&file),
            _ => Self::open_file(OsStr::new(LIBRARY_NAME)),
        }
    }

    /// Loads this file, or this name as the dynamic loader finds it.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_file(name: &OsStr) -> Result<Self, Absence> {
        let symbols = Symbols::load(name)?;
        // Before anything can be registered: later it is refused.
        let fork = ForkSafety::prepare(&symbols);
        Ok(Self(Arc::new(Inner { name: name.to_owned(), symbols, fork })))
    }

    /// The name or file that was loaded.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.0.name
    }

    /// The raw functions.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.0.symbols
    }

    /// Effect of `fork` on memory that is registered through this library. It was prepared when it was loaded.
    #[must_use]
    pub fn fork_safety(&self) -> ForkSafety {
        self.0.fork
    }

    /// The devices there are now, at least one.
    ///
    /// # Errors
    /// [`Absence::NoKernelSupport`], [`Absence::NoDevice`] or [`Absence::NoList`].
    pub fn devices(&self) -> Result<DeviceList, Absence> {
        let mut count = 0;
        // SAFETY: writes one int; the result is checked.
        let list = unsafe { (self.symbols().ibv_get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(match errno() {
                libc::ENOSYS => Absence::NoKernelSupport,
                errno => Absence::NoList { errno },
            });
        };
        let list = DeviceList {
            list: Arc::new(List { library: self.clone(), list }),
            count: usize::try_from(count).unwrap_or(0),
        };
        if list.count == 0 {
            return Err(Absence::NoDevice {
                kernel_devices: kernel_devices(Path::new("/sys/class/infiniband")),
            });
        }
        Ok(list)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("name", &self.0.name).finish_non_exhaustive()
    }
}

fn kernel_devices(class: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(class)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// The devices at the moment of asking.
#[derive(Clone, Debug)]
pub struct DeviceList {
    list: Arc<List>,
    count: usize,
}

#[derive(Debug)]
struct List {
    library: Library,
    list: NonNull<*mut sys::ibv_device>,
}

// SAFETY: the list is only read after it was made, and libibverbs' functions may be called from any thread.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`, freed once. A context opened from it holds what it needs itself.
        unsafe { (self.library.symbols().ibv_free_device_list)(self.list.as_ptr()) };
    }
}

impl DeviceList {
    /// One after the other.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Device> + '_ {
        (0..self.count).map(|index| {
            // SAFETY: the library said that the list has `count` entries; it lives as long as `list`.
            let device = unsafe { *self.list.list.as_ptr().add(index) };
            let device = NonNull::new(device).expect("libibverbs' list of devices has as many as it says");
            Device { list: self.list.clone(), device }
        })
    }

    /// The device of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Device> {
        self.iter().find(|device| device.name() == name)
    }
}

/// Kind of wire below a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand or RoCE; queue pairs are connected by exchanging numbers.
    Infiniband,
    /// iWARP: connections only through the RDMA connection manager.
    Iwarp,
    /// Something else, by libibverbs' number.
    Other(u32),
}

/// A device, not opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    device: NonNull<sys::ibv_device>,
}

// SAFETY: as for the list, of which it points to an entry.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The kernel's name: "mlx5_0", "rxe0".
    #[must_use]
    pub fn name(&self) -> String {
        text(&self.raw().name)
    }

    /// The world-wide name of the device; 0 where unknown.
    #[must_use]
    pub fn node_guid(&self) -> u64 {
        // SAFETY: a device of a live list.
        u64::from_be(unsafe { (self.library().symbols().ibv_get_device_guid)(self.device.as_ptr()) })
    }

    /// Kind of wire below.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.raw().transport_type {
            sys::IBV_TRANSPORT_IB => Transport::Infiniband,
            sys::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }

    /// Its folder in sysfs.
    #[must_use]
    pub fn sysfs(&self) -> PathBuf {
        PathBuf::from(text(&self.raw().ibdev_path))
    }

    /// The PCI device behind it, as a path in sysfs; none for software devices.
    #[must_use]
    pub fn pci_path(&self) -> Option<PathBuf> {
        fs::canonicalize(self.sysfs().join("device")).ok()
    }

    /// The NUMA node it hangs off; none if unknown.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        // "-1" stands for unknown, and does not parse.
        fs::read_to_string(self.sysfs().join("device/numa_node")).ok()?.trim().parse().ok()
    }

    /// Opens it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open(&self) -> Result<Context, Error> {
        Context::open(self.clone())
    }

    pub(crate) fn library(&self) -> &Library {
        &self.list.library
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_device {
        self.device.as_ptr()
    }

    fn raw(&self) -> &sys::ibv_device {
        // SAFETY: lives as long as the list, which `self` holds; the library does not write to it meanwhile.
        unsafe { self.device.as_ref() }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// The text up to the first zero, or all of it where there is none.
pub(crate) fn text(chars: &[c_char]) -> String {
    // SAFETY: `c_char` and `u8` have one layout.
    let bytes = unsafe { std::slice::from_raw_parts(chars.as_ptr().cast::<u8>(), chars.len()) };
    let bytes = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    OsStr::from_bytes(bytes).to_string_lossy().into_owned()
}
