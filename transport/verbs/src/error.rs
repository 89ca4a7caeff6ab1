//! The reasons why RDMA cannot be used or a call failed, as fields and in plain words, with a remedy.

use std::ffi::OsString;
use std::{fmt, io};

use crate::probe::DeviceReport;
use crate::queue_pair::State;
use crate::sys::LoadError;

/// Reason why there is no RDMA on this machine. Nothing is broken; a program goes on without it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Absence {
    /// There is no libibverbs, or it cannot be loaded.
    NoLibrary {
        /// The requested library.
        library: OsString,
        /// The dynamic loader's error text.
        reason: String,
    },
    /// The library lacks a required function: it is far too old, or not libibverbs.
    MissingSymbol {
        /// The library.
        library: OsString,
        /// The function.
        symbol: &'static str,
        /// The version requested first; the function is missing without a version too.
        version: &'static str,
    },
    /// The library is there, but the kernel has no user-space RDMA.
    NoKernelSupport,
    /// The system refused to list the devices.
    NoList {
        /// The system's error number.
        errno: i32,
    },
    /// Library and kernel are there, but no device.
    NoDevice {
        /// Devices that the kernel has and the library does not offer.
        kernel_devices: Vec<String>,
    },
    /// There are devices, but none of them works.
    NoUsableDevice {
        /// All devices, each with its reason.
        devices: Vec<DeviceReport>,
    },
}

impl Absence {
    /// Returns the next step for a user who wants RDMA.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoLibrary { .. } => {
                "install it (Debian, Ubuntu: libibverbs1 and ibverbs-providers; Fedora, RHEL: libibverbs), or name \
                 the file in KOLO_IBVERBS_LIB"
                    .into()
            }
            Self::MissingSymbol { .. } => "install libibverbs of rdma-core 15 or newer, or correct KOLO_IBVERBS_LIB".into(),
            Self::NoKernelSupport => {
                "load the module ib_uverbs and the adapter's driver; without an adapter, rdma_rxe turns any \
                 network interface into one (see tests/softroce)"
                    .into()
            }
            Self::NoList { .. } => "check whether `ibv_devices` says more".into(),
            Self::NoDevice { kernel_devices } if kernel_devices.is_empty() => {
                "load the adapter's driver (mlx5_ib, irdma, bnxt_re ...); without an adapter: `rdma link add rxe0 \
                 type rxe netdev eth0`"
                    .into()
            }
            Self::NoDevice { .. } => {
                "install the adapter's provider (Debian, Ubuntu: ibverbs-providers); in a container, pass \
                 /dev/infiniband through"
                    .into()
            }
            Self::NoUsableDevice { devices } => devices
                .iter()
                .filter_map(|device| {
                    Some(format!("{}: {}", device.name, device.trouble.as_ref()?.remedy()))
                })
                .collect::<Vec<_>>()
                .join("; "),
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary { library, reason } => {
                write!(f, "{} cannot be loaded: {reason}", library.to_string_lossy())
            }
            Self::MissingSymbol { library, symbol, version } => {
                write!(
                    f,
                    "{} has no {symbol} (neither in version {version} nor in any other)",
                    library.to_string_lossy()
                )
            }
            Self::NoKernelSupport => {
                f.write_str("libibverbs is there, but this kernel has no user-space RDMA (no ib_uverbs)")
            }
            Self::NoList { errno } => {
                write!(f, "the RDMA devices cannot be listed: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::NoDevice { kernel_devices } if kernel_devices.is_empty() => f.write_str("no RDMA device"),
            Self::NoDevice { kernel_devices } => write!(
                f,
                "the kernel has {} but libibverbs does not offer it: no provider for it, or no access to its \
                 device node",
                kernel_devices.join(", ")
            ),
            Self::NoUsableDevice { devices } => {
                f.write_str("no usable RDMA device")?;
                for (number, device) in devices.iter().enumerate() {
                    f.write_str(if number == 0 { ": " } else { "; " })?;
                    match &device.trouble {
                        Some(trouble) => write!(f, "{}: {trouble}", device.name)?,
                        None => f.write_str(&device.name)?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Absence {}

impl From<LoadError> for Absence {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::NotLoaded { library, reason } => Self::NoLibrary { library, reason },
            LoadError::MissingSymbol { library, symbol, version } => {
                Self::MissingSymbol { library, symbol, version }
            }
        }
    }
}

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// libibverbs or the kernel refused.
    Call {
        /// The function.
        call: &'static str,
        /// The action, with names and numbers.
        doing: String,
        /// The system's error number.
        errno: i32,
        /// The remedy, or empty.
        remedy: &'static str,
    },
    /// Memory could not be registered because this process may not lock that much.
    MemoryLock {
        /// The bytes to be registered.
        bytes: usize,
        /// `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
    },
    /// The library or the device lacks a feature.
    Unsupported {
        /// The requested feature.
        what: &'static str,
    },
    /// A queue pair is not in the state that a step requires.
    State {
        /// The step.
        step: &'static str,
        /// Its state.
        is: State,
        /// The required state.
        needs: State,
    },
    /// The caller's arguments are out of range.
    Usage {
        /// The argument, and its range.
        detail: String,
    },
}

impl Error {
    pub(crate) fn call(call: &'static str, doing: impl Into<String>, errno: i32) -> Self {
        Self::Call { call, doing: doing.into(), errno, remedy: remedy(call, errno) }
    }

    /// Returns the system's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::MemoryLock { .. } => Some(libc::ENOMEM),
            _ => None,
        }
    }

    /// Returns the remedy, or an empty text.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Call { remedy, .. } => remedy,
            Self::MemoryLock { .. } => crate::memlock::REMEDY,
            _ => "",
        }
    }
}

/// Returns the usual remedy for an error number of a call.
fn remedy(call: &str, errno: i32) -> &'static str {
    match (call, errno) {
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "this user may not open the device node under /dev/infiniband: check its mode and group"
        }
        ("ibv_open_device", libc::ENOENT | libc::ENODEV) => {
            "no device node under /dev/infiniband: in a container, pass it through"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "the peer's address could not be resolved: is there a route from this interface to the peer's \
             (RoCE needs IP reachability between the two interfaces named by the GIDs)?"
        }
        ("ibv_modify_qp", libc::EINVAL) => {
            "a parameter is invalid: the GID index is empty or has another RoCE version than the peer's, the \
             MTU is above the port's, or a depth is above the device's"
        }
        ("ibv_create_qp" | "ibv_create_cq" | "ibv_alloc_pd", libc::ENOMEM) => {
            "the queues are too deep for the device, or its resources or the lockable memory (ulimit -l) are \
             used up"
        }
        ("ibv_create_qp", libc::EINVAL) => "more queue entries, pieces or inline bytes than the device has",
        ("ibv_reg_mr", libc::EFAULT) => "part of the range is not mapped, or not writable",
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => {
            "the adapter's driver does not accept dma-bufs (kernel 5.12 or newer needed)"
        }
        ("ibv_post_send" | "ibv_post_recv", libc::ENOMEM) => "the queue is full: reap completions first",
        (_, libc::EIO | libc::ENODEV) => "the device is gone or was reset",
        _ => "",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { call, doing, errno, remedy } => {
                write!(f, "{doing}: {call}: {}", io::Error::from_raw_os_error(*errno))?;
                if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
            }
            Self::MemoryLock { bytes, limit_bytes } => write!(
                f,
                "cannot register {bytes} bytes: this process may lock {limit_bytes} bytes of memory; {}",
                crate::memlock::REMEDY
            ),
            Self::Unsupported { what } => write!(f, "{what}: not supported here"),
            Self::State { step, is, needs } => {
                write!(f, "{step} needs a queue pair in state {needs}, this one is in {is}")
            }
            Self::Usage { detail } => f.write_str(detail),
        }
    }
}

impl std::error::Error for Error {}

/// Returns this thread's `errno`.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Turns the return value of a verb into an error number: some verbs return it, some return it negated, and some
/// return -1 and set `errno`.
pub(crate) fn code(returned: i32) -> Result<(), i32> {
    match returned {
        0 => Ok(()),
        -1 => Err(errno()),
        number => Err(number.wrapping_abs()),
    }
}
