//! Finds libibverbs and its functions at run time.
//!
//! A function is looked up first in the version in which its present form appeared, then without a version: some
//! builds of the library, and stand-ins for tests, have no symbol versions. The library is never unloaded, because
//! providers may have started threads and installed handlers.

use std::ffi::{CStr, CString, OsStr, OsString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use super::mirror::*;

/// Reason why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic loader refused.
    NotLoaded {
        /// The requested file or name.
        library: OsString,
        /// The dynamic loader's error text.
        reason: String,
    },
    /// The library lacks a required function.
    MissingSymbol {
        /// File or name of the library.
        library: OsString,
        /// The function.
        symbol: &'static str,
        /// The version that was requested first.
        version: &'static str,
    },
}

macro_rules! symbols {
    (
        required { $($name:ident $version:literal fn($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($optional:ident = $symbol:literal $optional_version:literal
            fn($($optional_argument:ty),*) $(-> $optional_result:ty)?;)* }
    ) => {
        /// The functions found. A field has the name of its function.
        #[derive(Clone, Copy)]
        pub struct Symbols {
            $(#[doc = concat!("`", stringify!($name), "`.")]
            pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(#[doc = concat!("`", $symbol, "`, where the library has it.")]
            pub $optional: Option<unsafe extern "C" fn($($optional_argument),*) $(-> $optional_result)?>,)*
        }

        /// Symbols that a library must export.
        pub const REQUIRED_SYMBOLS: &[&str] = &[$(stringify!($name)),*];

        impl Symbols {
            /// Loads `library` (a file, or a name that the dynamic loader searches for) and finds its functions.
            ///
            /// # Errors
            /// If the library does not exist, cannot be loaded, or lacks a required function.
            pub fn load(library: &OsStr) -> Result<Self, LoadError> {
                let handle = open(library)?;
                Ok(Self {
                    $($name: {
                        let found = find(handle, concat!(stringify!($name), "\0"), concat!($version, "\0"))
                            .ok_or_else(|| LoadError::MissingSymbol {
                                library: library.to_owned(),
                                symbol: stringify!($name),
                                version: $version,
                            })?;
                        // SAFETY: this is the non-null address of the function of that name; its type is the
                        // prototype of libibverbs' stable interface. A library that lies about its names cannot be
                        // guarded against; the user who sets the path answers for it.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                found,
                            )
                        }
                    },)*
                    $($optional: find(handle, concat!($symbol, "\0"), concat!($optional_version, "\0")).map(
                        |found| {
                            // SAFETY: as for the required functions.
                            unsafe {
                                std::mem::transmute::<
                                    *mut c_void,
                                    unsafe extern "C" fn($($optional_argument),*) $(-> $optional_result)?,
                                >(found)
                            }
                        },
                    ),)*
                })
            }

            /// Returns the optional functions, and whether each was found.
            #[must_use]
            pub fn optional(&self) -> Vec<(&'static str, bool)> {
                vec![$(($symbol, self.$optional.is_some())),*]
            }
        }
    };
}

symbols! {
    required {
        ibv_get_device_list "IBVERBS_1.1" fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list "IBVERBS_1.1" fn(*mut *mut ibv_device);
        ibv_get_device_guid "IBVERBS_1.1" fn(*mut ibv_device) -> u64;
        ibv_open_device "IBVERBS_1.1" fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device "IBVERBS_1.1" fn(*mut ibv_context) -> c_int;
        ibv_get_async_event "IBVERBS_1.1" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event "IBVERBS_1.1" fn(*mut ibv_async_event);
        ibv_query_device "IBVERBS_1.1" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port "IBVERBS_1.1" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid "IBVERBS_1.1" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_alloc_pd "IBVERBS_1.1" fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd "IBVERBS_1.1" fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr "IBVERBS_1.1" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr "IBVERBS_1.1" fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel "IBVERBS_1.0" fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel "IBVERBS_1.0" fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq "IBVERBS_1.1"
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq "IBVERBS_1.1" fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event "IBVERBS_1.1" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events "IBVERBS_1.1" fn(*mut ibv_cq, u32);
        ibv_create_qp "IBVERBS_1.1" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp "IBVERBS_1.1" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp "IBVERBS_1.1" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp "IBVERBS_1.1" fn(*mut ibv_qp) -> c_int;
    }
    optional {
        ibv_fork_init = "ibv_fork_init" "IBVERBS_1.1" fn() -> c_int;
        ibv_is_fork_initialized = "ibv_is_fork_initialized" "IBVERBS_1.13" fn() -> c_int;
        ibv_reg_mr_iova2 = "ibv_reg_mr_iova2" "IBVERBS_1.8" fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
        ibv_query_gid_ex = "_ibv_query_gid_ex" "IBVERBS_1.11"
            fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        ibv_reg_dmabuf_mr = "ibv_reg_dmabuf_mr" "IBVERBS_1.12"
            fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        ibv_query_ece = "ibv_query_ece" "IBVERBS_1.10" fn(*mut ibv_qp, *mut c_void) -> c_int;
        ibv_set_ece = "ibv_set_ece" "IBVERBS_1.10" fn(*mut ibv_qp, *mut c_void) -> c_int;
    }
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols").field("optional", &self.optional()).finish_non_exhaustive()
    }
}

fn open(library: &OsStr) -> Result<*mut c_void, LoadError> {
    let refused = |reason: String| LoadError::NotLoaded { library: library.to_owned(), reason };
    let name = CString::new(library.as_bytes()).map_err(|_| refused("its name has a zero byte".into()))?;
    // SAFETY: the name is a terminated string. Constructors of the library run, as intended. RTLD_LOCAL keeps its
    // names from shadowing others.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(refused(last_error())) } else { Ok(handle) }
}

/// Returns the address of a function by name and version, or else by name alone. Both texts include their terminating
/// zero.
fn find(handle: *mut c_void, symbol: &str, version: &str) -> Option<*mut c_void> {
    let symbol = CStr::from_bytes_with_nul(symbol.as_bytes()).ok()?;
    let version = CStr::from_bytes_with_nul(version.as_bytes()).ok()?;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the handle is live (libraries are never closed here), and the strings are terminated.
        let found = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            return Some(found);
        }
    }
    let _ = version;
    // SAFETY: as in the versioned look-up.
    let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn last_error() -> String {
    // SAFETY: `dlerror` returns null or a terminated string that lives until this thread's next call of its kind.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "no reason given".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
