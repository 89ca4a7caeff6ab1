//! A stand-in for libcuda: one GPU, with a driver that is too old to map memory for PCIe.
//!
//! The GPU's memory is a memory file. The address that the caller gets is mapped without access, so a program that
//! touches it with the processor crashes. The stand-in copies from and to a mapping of its own, and exports the file
//! as a dma-buf if the system supports that (`/dev/udmabuf`).
//!
//! Copies wait in their stream. Each query of an event executes one of them, so a program that does not query, or
//! reads before the answer, finds wrong bytes. The host's side of a copy must be pinned.
//!
//! `fake_set` and `fake_get` are for tests; `kolo-tests` has the meaning of their numbers.

mod memory;
mod streams;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memory::Allocation;
use streams::Item;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const NO_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
const ILLEGAL_ADDRESS: c_int = 700;
const NOT_SUPPORTED: c_int = 801;

const DEVICE: c_int = 7;
const CONTEXT: usize = 0x7007;
/// The legacy default stream, and that of a thread.
const DEFAULT_STREAMS: [usize; 2] = [1, 2];

#[derive(Default)]
struct State {
    started: bool,
    /// If nonzero, the stand-in has no GPU.
    lacking: i64,
    /// If nonzero, the answer to questions about the owner of an address.
    answer: c_int,
    allocations: Vec<Allocation>,
    /// Freed addresses with their lengths. Like those of a real driver, they are reused for GPU memory only.
    places: Vec<(usize, usize)>,
    pinned: HashMap<usize, usize>,
    streams: HashMap<usize, VecDeque<Item>>,
    /// Answers to queries by event; `None` while the event waits in a stream.
    events: HashMap<usize, Option<c_int>>,
    names: usize,
    /// Number of copies until one fails.
    fails_after: Option<i64>,
    failed: bool,
    /// Streams with a failed copy, until they are synchronised.
    failed_streams: Vec<usize>,
    flushes: i64,
    exports: i64,
    /// Calls that ask for an export.
    asked_exports: i64,
    questions: i64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct Locked(MutexGuard<'static, Option<State>>);

fn state() -> Locked {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let defaults = || DEFAULT_STREAMS.map(|stream| (stream, VecDeque::new())).into();
    guard.get_or_insert_with(|| State { streams: defaults(), ..State::default() });
    Locked(guard)
}

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("made when locked")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("made when locked")
    }
}

impl State {
    fn name(&mut self) -> usize {
        self.names += 1;
        self.names << 8
    }
}

fn has_context() -> bool {
    CONTEXTS.with_borrow(|stack| stack.last() == Some(&CONTEXT))
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    let mut state = state();
    if state.lacking > 0 {
        return NO_DEVICE;
    }
    state.started = true;
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    let state = state();
    if !state.started {
        return NOT_INITIALIZED;
    }
    // SAFETY: the caller's promise.
    unsafe { count.write(1) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    if number != 0 {
        return NO_DEVICE;
    }
    // SAFETY: the caller's promise.
    unsafe { device.write(DEVICE) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    assert_eq!(device, DEVICE, "the device that was given out");
    let text = c"Stand-in".to_bytes_with_nul();
    assert!(text.len() <= len as usize);
    // SAFETY: the caller's promise.
    unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> c_int {
    assert_eq!(device, DEVICE, "the device that was given out");
    let known = match which {
        100 | 116 | 124 => 1,
        117 => 3,
        118 => 0,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's promise.
    unsafe { value.write(known) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { version.write(12_040) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    let known = match code {
        OUT_OF_MEMORY => c"out of memory",
        NO_DEVICE => c"no such device",
        INVALID_CONTEXT => c"invalid device context",
        ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        NOT_SUPPORTED => c"operation not supported",
        _ => c"invalid argument",
    };
    // SAFETY: the caller's promise.
    unsafe { text.write(known.as_ptr()) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    assert_eq!(device, DEVICE, "the device that was given out");
    // SAFETY: the caller's promise.
    unsafe { context.write(CONTEXT) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> c_int {
    CONTEXTS.with_borrow_mut(|stack| stack.push(context));
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    let Some(popped) = CONTEXTS.with_borrow_mut(Vec::pop) else { return INVALID_CONTEXT };
    // SAFETY: the caller's promise.
    unsafe { context.write(popped) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    state().flushes += 1;
    c_int::from(target != 0 || scope != 100)
}

/// Sets a behaviour. 0: a copy fails after this many copies; negative: none fails. 1: if nonzero, the answer to
/// questions about the owner of an address. 2: if nonzero, there is no GPU; must be set before the driver is started.
#[unsafe(no_mangle)]
extern "C" fn fake_set(what: u32, value: i64) {
    let mut state = state();
    match what {
        0 => state.fails_after = (value >= 0).then_some(value),
        1 => state.answer = value as c_int,
        2 => state.lacking = value,
        _ => {}
    }
}

/// Returns a count. 0: flushes; 1: exported ranges; 2: pinned bytes; 3: questions about the owner of an address;
/// 4: exports that were asked for.
#[unsafe(no_mangle)]
extern "C" fn fake_get(what: u32) -> i64 {
    let state = state();
    match what {
        0 => state.flushes,
        1 => state.exports,
        2 => state.pinned.values().sum::<usize>() as i64,
        3 => state.questions,
        4 => state.asked_exports,
        _ => -1,
    }
}
