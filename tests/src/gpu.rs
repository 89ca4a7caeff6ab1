//! Memory of a GPU: by default that of the stand-in for libcuda, which the processor cannot read or write.
//!
//! `KOLO_TEST_GPU=libcuda.so.1` names a real driver; then the tests that control the stand-in do not count.

use std::cell::OnceCell;
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use kolo::{Communicator, Config, RawCall, Result};

use crate::reference::{Case, Memory};

/// Counters of the stand-in; the same list is in `transport/gdr/examples/fake_libcuda/main.rs`.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Flushes.
    Flushes = 0,
    /// Ranges exported as dma-bufs.
    Exports = 1,
    /// Bytes of host memory that are pinned.
    Pinned = 2,
    /// Queries of the owner of an address.
    Questions = 3,
    /// Exports that were asked for, granted or not.
    AskedExports = 4,
}

fn real_driver() -> Option<String> {
    std::env::var("KOLO_TEST_GPU").ok()
}

/// Returns whether the GPU is the stand-in's, which can be told to fail and asked for counts.
#[must_use]
pub fn is_stand_in() -> bool {
    real_driver().is_none()
}

/// Returns the path of the driver: that of `KOLO_TEST_GPU`, or the stand-in's. `cargo test` builds the stand-in, unless told
/// to build one test only.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn library() -> String {
    if let Some(real) = real_driver() {
        return real;
    }
    static FOUND: OnceLock<String> = OnceLock::new();
    let found = || {
        let program = std::env::current_exe().expect("a path");
        let folder = program.parent().and_then(std::path::Path::parent).expect("target").join("examples");
        let file: PathBuf = folder.join("libfake_libcuda.so");
        if !file.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build-as-tests", "--quiet"]);
            let built = cargo.status().expect("cargo runs").success();
            assert!(built && file.exists(), "cannot build {}", file.display());
        }
        file.display().to_string()
    };
    FOUND.get_or_init(found).clone()
}

/// Adds settings that find the stand-in.
#[must_use]
pub fn with_gpu(mut config: Config) -> Config {
    config.cuda_library = Some(library());
    config
}

fn function(name: &str) -> *mut c_void {
    let file = CString::new(std::ffi::OsStr::new(&library()).as_bytes()).expect("a name");
    let name = CString::new(name).expect("a name");
    // SAFETY: the texts are terminated; the library is never unloaded, and loading it twice returns the same one.
    let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Makes the first GPU's primary context current in this thread. The stand-in needs none.
fn enter() {
    thread_local! {
        static ENTERED: OnceCell<()> = const { OnceCell::new() };
    }
    let enter = || {
        // SAFETY: the driver's functions of these types, which write one int and one pointer.
        unsafe {
            let init: extern "C" fn(u32) -> c_int = std::mem::transmute(function("cuInit"));
            let retain: extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                std::mem::transmute(function("cuDevicePrimaryCtxRetain"));
            let set: extern "C" fn(*mut c_void) -> c_int = std::mem::transmute(function("cuCtxSetCurrent"));
            let mut context = std::ptr::null_mut();
            assert_eq!((init(0), retain(&raw mut context, 0), set(context)), (0, 0, 0), "a context");
        }
    };
    if !is_stand_in() {
        ENTERED.with(|entered| *entered.get_or_init(enter));
    }
}

/// One of the stand-in's counts.
#[must_use]
pub fn count(which: Count) -> i64 {
    // SAFETY: the stand-in's own function of that type.
    let get: extern "C" fn(u32) -> i64 = unsafe { std::mem::transmute(function("fake_get")) };
    get(which as u32)
}

/// Makes a copy fail after `copies` successful ones, in the whole process.
pub fn fail_copy_after(copies: i64) {
    set(0, copies);
}

/// Makes queries of an address's owner return this error, if it is not 0, in the whole process.
pub fn answer_with(error: i64) {
    set(1, error);
}

/// Removes the stand-in's GPU before its first use, in the whole process.
pub fn remove_gpu() {
    set(2, 1);
}

fn set(what: u32, value: i64) {
    // SAFETY: the stand-in's own function of that type.
    let set: extern "C" fn(u32, i64) = unsafe { std::mem::transmute(function("fake_set")) };
    set(what, value);
}

/// An allocation on the GPU; freed when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    base: u64,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: this is an address; its memory is only reached through the stand-in.
unsafe impl Send for DeviceMemory {}

/// Offset of buffers in their allocation: not its start, so that nothing is found by that, and not aligned to a
/// cache line.
const OFFSET: usize = 24;

impl DeviceMemory {
    /// Allocates memory of this many bytes.
    ///
    /// # Panics
    /// If the stand-in has none.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self::allocate(bytes, "cuMemAlloc_v2")
    }

    /// As `new`, filled with these bytes.
    ///
    /// # Panics
    /// As `new`.
    #[must_use]
    pub fn holding(bytes: &[u8]) -> Self {
        let mut memory = Self::new(bytes.len());
        memory.put(bytes);
        memory
    }

    /// Allocates managed memory, which the processor can reach too.
    ///
    /// # Panics
    /// As `new`.
    #[must_use]
    pub fn managed(bytes: usize) -> Self {
        Self::allocate(bytes, "cuMemAllocManaged")
    }

    fn allocate(bytes: usize, by: &str) -> Self {
        enter();
        // SAFETY: the stand-in's functions of these types; the plain one takes no third argument, and looks at none.
        let (init, allocate) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> c_int>(function("cuInit")),
                std::mem::transmute::<*mut c_void, extern "C" fn(*mut u64, usize, u32) -> c_int>(function(
                    by,
                )),
            )
        };
        let mut base = 0;
        assert_eq!((init(0), allocate(&raw mut base, bytes + OFFSET, 1)), (0, 0), "{bytes} bytes");
        let start = std::ptr::with_exposed_provenance_mut::<u8>(base as usize).wrapping_add(OFFSET);
        Self { base, start, bytes }
    }

    /// Returns the address, which the processor must not read or write.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.start
    }

    /// Writes the whole buffer.
    ///
    /// # Panics
    /// If the length differs.
    pub fn put(&mut self, bytes: &[u8]) {
        enter();
        assert_eq!(bytes.len(), self.bytes);
        // SAFETY: the stand-in's function of that type.
        let copy: extern "C" fn(u64, *const u8, usize) -> c_int =
            unsafe { std::mem::transmute(function("cuMemcpyHtoD_v2")) };
        assert_eq!(copy(self.start as u64, bytes.as_ptr(), bytes.len()), 0);
        if !is_stand_in() {
            // SAFETY: the driver's function of that type. The driver may return before the bytes are there.
            let synchronize: extern "C" fn() -> c_int =
                unsafe { std::mem::transmute(function("cuCtxSynchronize")) };
            assert_eq!(synchronize(), 0);
        }
    }

    /// Reads the whole buffer.
    ///
    /// # Panics
    /// If the stand-in refuses.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        enter();
        let mut bytes = vec![0; self.bytes];
        // SAFETY: as above.
        let copy: extern "C" fn(*mut u8, u64, usize) -> c_int =
            unsafe { std::mem::transmute(function("cuMemcpyDtoH_v2")) };
        assert_eq!(copy(bytes.as_mut_ptr(), self.start as u64, self.bytes), 0);
        bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        enter();
        // SAFETY: as above.
        let free: extern "C" fn(u64) -> c_int = unsafe { std::mem::transmute(function("cuMemFree_v2")) };
        assert_eq!(free(self.base), 0);
    }
}

/// The buffers of a rank that are on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnGpu {
    /// The input; or the shared memory of input and output, if the input is the longer one.
    pub input: bool,
    /// The output.
    pub output: bool,
}

impl OnGpu {
    /// Both buffers.
    pub const BOTH: Self = Self { input: true, output: true };

    /// Returns a different choice for each rank, so that no two neighbours agree.
    #[must_use]
    pub const fn mixed(rank: u32) -> Self {
        Self { input: rank.is_multiple_of(2), output: rank % 4 < 2 }
    }
}

/// Runs a case on one rank with buffers on the GPU, and counts the errors as [`Case::run`] does.
///
/// # Errors
/// The call's result.
///
/// # Panics
/// As [`Case::run`].
pub fn run(case: &Case, comm: &Communicator, on_gpu: OnGpu) -> Result<u64> {
    let (input, output) = case.bytes(comm);
    let mut buffers = (vec![0; input], vec![0; output]);
    case.run_by(comm, &mut buffers.0, &mut buffers.1, |call, memory| on_device(comm, call, memory, on_gpu))
}

/// Makes a call on copies of its buffers on the GPU.
fn on_device(comm: &Communicator, call: &RawCall, memory: [Memory; 2], on_gpu: OnGpu) -> Result<()> {
    let wanted = [on_gpu.input, on_gpu.output];
    // SAFETY: the buffers of the case, which are not used elsewhere now.
    let slices = memory.map(|(start, bytes)| unsafe { std::slice::from_raw_parts_mut(start, bytes) });
    let devices =
        [0, 1].map(|at| (wanted[at] && memory[at].1 > 0).then(|| DeviceMemory::holding(slices[at])));
    let there = |address: *const u8| {
        for (device, (start, bytes)) in devices.iter().zip(memory) {
            let offset = address.addr().wrapping_sub(start.addr());
            if let Some(device) = device.as_ref().filter(|_| offset < bytes) {
                return device.address().wrapping_add(offset);
            }
        }
        address.cast_mut()
    };
    let call = RawCall { input: there(call.input), output: there(call.output.cast_const()), ..*call };
    // SAFETY: the memory is as long as the buffers of the case, and kept until the call returns.
    unsafe { comm.call_raw(&call)? };
    for (slice, device) in slices.into_iter().zip(&devices) {
        if let Some(device) = device {
            slice.copy_from_slice(&device.bytes());
        }
    }
    Ok(())
}
