//! libcuda, found at run time: the functions that Kolo calls, and descriptions of its errors.
//!
//! This is a small table instead of a binding of all of CUDA. An older driver may lack some functions, which rules
//! out one way but is not a failure of the whole.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::mem;
use std::os::unix::ffi::OsStrExt;

/// The library that is loaded unless another is named: the driver's own, not the toolkit's.
const LIBRARY: &str = "libcuda.so.1";

/// Return value of every function; 0 is success.
pub(crate) type Code = c_int;
/// An address as the driver takes it, of a GPU's memory or of the host's.
pub(crate) type Address = c_ulonglong;
/// A context, stream or event.
pub(crate) type Handle = *mut c_void;

/// A function, or its name if the library lacks it.
pub(crate) type Found<F> = Result<F, &'static CStr>;

/// One row for each function: its name here, its name in the library, and its arguments.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        pub(crate) struct Functions {
            $(pub(crate) $name: Found<unsafe extern "C" fn($($argument),*) -> Code>,)*
        }

        impl Functions {
            /// # Safety
            /// `find` returns the addresses of functions of libcuda, or null.
            unsafe fn load(find: impl Fn(&CStr) -> *mut c_void) -> Self {
                Self {
                    $($name: match find($symbol) {
                        found if found.is_null() => Err($symbol),
                        // SAFETY: the driver never changes the types of its functions: another type has another name.
                        found => Ok(unsafe {
                            mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Code>(found)
                        }),
                    },)*
                }
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    error_text = c"cuGetErrorString" (Code, *mut *const c_char);
    version = c"cuDriverGetVersion" (*mut c_int);
    device = c"cuDeviceGet" (*mut c_int, c_int);
    device_count = c"cuDeviceGetCount" (*mut c_int);
    device_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain_context = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release_context = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push_context = c"cuCtxPushCurrent_v2" (Handle);
    pop_context = c"cuCtxPopCurrent_v2" (*mut Handle);
    pointer_attributes = c"cuPointerGetAttributes" (c_uint, *mut c_int, *mut *mut c_void, Address);
    address_range = c"cuMemGetAddressRange_v2" (*mut Address, *mut usize, Address);
    register_host = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister_host = c"cuMemHostUnregister" (*mut c_void);
    copy = c"cuMemcpyAsync" (Address, Address, usize, Handle);
    create_stream = c"cuStreamCreate" (*mut Handle, c_uint);
    destroy_stream = c"cuStreamDestroy_v2" (Handle);
    synchronize_stream = c"cuStreamSynchronize" (Handle);
    create_event = c"cuEventCreate" (*mut Handle, c_uint);
    destroy_event = c"cuEventDestroy_v2" (Handle);
    record_event = c"cuEventRecord" (Handle, Handle);
    query_event = c"cuEventQuery" (Handle);
    export = c"cuMemGetHandleForAddressRange" (*mut c_void, Address, usize, c_int, c_ulonglong);
    flush = c"cuFlushGPUDirectRDMAWrites" (c_int, c_int);
}

/// The driver's library. It is never unloaded, so the addresses of its functions stay valid.
pub(crate) struct Library {
    pub(crate) functions: Functions,
    shown: String,
}

impl Library {
    /// Loads the library, without starting the driver.
    pub(crate) fn load(named: Option<&OsStr>) -> Result<Self, String> {
        let named = named.unwrap_or(OsStr::new(LIBRARY));
        let shown = named.display().to_string();
        let name = CString::new(named.as_bytes()).map_err(|_| format!("{shown} is not a file name"))?;
        // SAFETY: the name is a terminated string.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("{shown} cannot be loaded: no GPU driver is installed"));
        }
        // SAFETY: the library is loaded, and the names are terminated strings.
        let functions = unsafe { Functions::load(|symbol| libc::dlsym(handle, symbol.as_ptr())) };
        let library = Self { functions, shown };
        library.need(library.functions.init)?;
        Ok(library)
    }

    /// Returns a function, or the error that the library lacks it.
    pub(crate) fn need<F>(&self, function: Found<F>) -> Result<F, String> {
        function.map_err(|name| format!("{} has no {}", self.shown, name.to_string_lossy()))
    }

    /// Starts the driver for this process. May be called more than once.
    pub(crate) fn start(&self) -> Result<(), String> {
        let init = self.need(self.functions.init)?;
        // SAFETY: the call takes no pointer.
        self.check("starting the GPU driver", unsafe { init(0) })
    }

    /// Returns the driver's handle of a GPU.
    pub(crate) fn device(&self, number: u32) -> Result<c_int, String> {
        let device = self.need(self.functions.device)?;
        let number = c_int::try_from(number).map_err(|_| format!("GPU {number}: no GPU has this number"))?;
        let mut found = 0;
        // SAFETY: the call writes one int.
        self.check(&format!("GPU {number}"), unsafe { device(&raw mut found, number) })?;
        Ok(found)
    }

    /// Turns a code into a result, with the driver's text for an error.
    pub(crate) fn check(&self, what: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        if let Ok(error_text) = self.functions.error_text {
            // SAFETY: the call writes one pointer, to a text that lasts.
            unsafe { error_text(code, &raw mut text) };
        }
        match text.is_null() {
            true => Err(format!("{what}: CUDA's error {code}")),
            // SAFETY: the pointer is not null, so it leads to a text that the driver keeps.
            false => Err(format!("{what}: {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())),
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("shown", &self.shown).finish_non_exhaustive()
    }
}
