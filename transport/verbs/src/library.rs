//! The library, and the list of devices.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, fs};

use crate::context::Context;
use crate::error::{Absence, Error, code, errno};
use crate::sys::{self, Symbols};

/// Environment variable that names the file to load in place of `libibverbs.so.1`.
pub const LIBRARY_VARIABLE: &str = "KOLO_IBVERBS_LIB";

/// The library that is loaded without that variable.
pub const LIBRARY_NAME: &str = "libibverbs.so.1";

/// The loaded libibverbs. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    name: OsString,
    symbols: Symbols,
    fork: ForkSafety,
}

/// Effect of `fork` on registered memory. If the kernel does not copy pinned pages on fork (it does since 5.9, for
/// huge pages since 5.12), the parent's first write after a fork gives it a new page while the device keeps the old
/// one: data is silently wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkSafety {
    /// The kernel copies pinned pages for the child.
    ByKernel,
    /// The library keeps registered pages out of children, which must not touch them.
    ByLibrary,
    /// The library was prepared, but is too old to say which of the two applies.
    Prepared,
    /// The library refused with this error number of the system. As a rule, another user of the library in this
    /// process has registered memory before without asking for fork safety.
    Refused {
        /// The system's error number.
        errno: i32,
    },
    /// The library has no such function.
    NotOffered,
}

/// Answer of `ibv_is_fork_initialized` if the kernel copies pinned pages.
const FORK_UNNEEDED: i32 = 2;

impl ForkSafety {
    /// Prepares the library. This has an effect once per process; later calls change nothing.
    fn prepare(symbols: &Symbols) -> Self {
        let Some(prepare) = symbols.ibv_fork_init else { return Self::NotOffered };
        // SAFETY: the call takes no argument.
        match code(unsafe { prepare() }) {
            Err(errno) => Self::Refused { errno },
            // SAFETY: the call takes no argument.
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
    /// Loads the file named by [`LIBRARY_VARIABLE`], or [`LIBRARY_NAME`] if that is not set.
    ///
    /// # Errors
    /// [`Absence::NoLibrary`] or [`Absence::MissingSymbol`].
    pub fn open() -> Result<Self, Absence> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(file) if !file.is_empty() => Self::open_file(&file),
            _ => Self::open_file(OsStr::new(LIBRARY_NAME)),
        }
    }

    /// Loads this file, or the library that the dynamic loader finds by this name.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_file(name: &OsStr) -> Result<Self, Absence> {
        let symbols = Symbols::load(name)?;
        // This must come before any registration; later it is refused.
        let fork = ForkSafety::prepare(&symbols);
        Ok(Self(Arc::new(Inner { name: name.to_owned(), symbols, fork })))
    }

    /// Returns the name or file that was loaded.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.0.name
    }

    /// Returns the raw functions.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.0.symbols
    }

    /// Returns the effect of `fork` on memory that is registered through this library, which was prepared when it was
    /// loaded.
    #[must_use]
    pub fn fork_safety(&self) -> ForkSafety {
        self.0.fork
    }

    /// Returns the present devices, at least one.
    ///
    /// # Errors
    /// [`Absence::NoKernelSupport`], [`Absence::NoDevice`] or [`Absence::NoList`].
    pub fn devices(&self) -> Result<DeviceList, Absence> {
        let mut count = 0;
        // SAFETY: the call writes one int; the result is checked.
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

/// The devices at the time of the query.
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
// SAFETY: as for `Send`.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list comes from `ibv_get_device_list`, and is freed once. A context opened from it keeps what
        // it needs.
        unsafe { (self.library.symbols().ibv_free_device_list)(self.list.as_ptr()) };
    }
}

impl DeviceList {
    /// Iterates over the devices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Device> + '_ {
        (0..self.count).map(|index| {
            // SAFETY: the library said that the list has `count` entries; it lives as long as `list`.
            let device = unsafe { *self.list.list.as_ptr().add(index) };
            let device = NonNull::new(device).expect("libibverbs' list of devices has as many as it says");
            Device { list: self.list.clone(), device }
        })
    }

    /// Returns the device of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Device> {
        self.iter().find(|device| device.name() == name)
    }
}

/// Kind of network below a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand or RoCE; queue pairs are connected by exchanging numbers.
    Infiniband,
    /// iWARP: connections only through the RDMA connection manager.
    Iwarp,
    /// Another kind, by libibverbs' number.
    Other(u32),
}

/// A device, not opened.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    device: NonNull<sys::ibv_device>,
}

// SAFETY: as for the list, to an entry of which it points.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

impl Device {
    /// Returns the kernel's name: "mlx5_0", "rxe0".
    #[must_use]
    pub fn name(&self) -> String {
        text(&self.raw().name)
    }

    /// Returns the world-wide name of the device, or 0 if unknown.
    #[must_use]
    pub fn node_guid(&self) -> u64 {
        // SAFETY: the device is in a live list.
        u64::from_be(unsafe { (self.library().symbols().ibv_get_device_guid)(self.device.as_ptr()) })
    }

    /// Returns the kind of network below.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.raw().transport_type {
            sys::IBV_TRANSPORT_IB => Transport::Infiniband,
            sys::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }

    /// Returns its folder in sysfs.
    #[must_use]
    pub fn sysfs(&self) -> PathBuf {
        PathBuf::from(text(&self.raw().ibdev_path))
    }

    /// Returns the NUMA node to which it is attached; `None` if unknown.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        // "-1" means unknown, and does not parse.
        fs::read_to_string(self.sysfs().join("device/numa_node")).ok()?.trim().parse().ok()
    }

    /// Opens the device.
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
        // SAFETY: the device lives as long as the list, which `self` holds; the library does not write to it
        // meanwhile.
        unsafe { self.device.as_ref() }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// Returns the text up to the first zero, or all of it if there is none.
pub(crate) fn text(chars: &[c_char]) -> String {
    // SAFETY: `c_char` and `u8` have the same layout.
    let bytes = unsafe { std::slice::from_raw_parts(chars.as_ptr().cast::<u8>(), chars.len()) };
    let bytes = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    OsStr::from_bytes(bytes).to_string_lossy().into_owned()
}
