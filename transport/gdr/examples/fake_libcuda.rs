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

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
const PAGE: usize = 4096;

struct Allocation {
    /// The address that the caller sees.
    start: usize,
    bytes: usize,
    /// Address at which the stand-in accesses the memory.
    inside: usize,
    file: c_int,
    managed: bool,
    id: u64,
}

enum Item {
    Copy { to: usize, from: usize, bytes: usize },
    Record(usize),
}

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
    fn find(&self, address: usize) -> Option<&Allocation> {
        self.allocations.iter().find(|a| a.start <= address && address < a.start + a.bytes)
    }

    /// Returns the address at which the stand-in accesses these bytes, if the GPU may copy them.
    fn reach(&self, address: usize, bytes: usize) -> Option<usize> {
        if let Some(a) = self.find(address) {
            return (address + bytes <= a.start + a.bytes).then_some(a.inside + (address - a.start));
        }
        let pinned = |(start, len): (&usize, &usize)| *start <= address && address + bytes <= start + len;
        self.pinned.iter().any(pinned).then_some(address)
    }

    fn name(&mut self) -> usize {
        self.names += 1;
        self.names << 8
    }

    /// Executes the next item of a stream; returns whether there was one.
    fn step(&mut self, stream: usize) -> bool {
        let Some(item) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) else { return false };
        match item {
            Item::Copy { to, from, bytes } => {
                if let Some(left) = &mut self.fails_after {
                    *left -= 1;
                    if *left < 0 {
                        self.fails_after = None;
                        self.failed = true;
                        self.failed_streams.push(stream);
                    }
                }
                // If the memory was freed since, the copy fails, as with a real driver.
                let (Some(to), Some(from)) = (self.reach(to, bytes), self.reach(from, bytes)) else {
                    self.failed = true;
                    return true;
                };
                if !self.failed {
                    // SAFETY: both are mapped, as just looked up.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                }
            }
            Item::Record(event) => {
                let result = if std::mem::take(&mut self.failed) { ILLEGAL_ADDRESS } else { 0 };
                self.events.insert(event, Some(result));
            }
        }
        true
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

fn allocate(bytes: usize, managed: bool) -> Result<usize, c_int> {
    let mapped = bytes.max(1).next_multiple_of(PAGE);
    // SAFETY: the calls make a memory file and two mappings of it: at an address that the stand-in owns or the kernel
    // chooses, and at one of the kernel's choice.
    unsafe {
        let file = libc::memfd_create(c"device".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        if file < 0 || libc::ftruncate(file, mapped as i64) != 0 {
            return Err(OUT_OF_MEMORY);
        }
        libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        let mut state = state();
        let place = state.places.iter().position(|(_, len)| *len == mapped);
        let place = place.map(|at| state.places.swap_remove(at).0);
        let map = |at: Option<usize>, protection| {
            let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
            libc::mmap(at.unwrap_or(0) as *mut c_void, mapped, protection, libc::MAP_SHARED | fixed, file, 0)
        };
        let open = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(place, if managed { open } else { libc::PROT_NONE });
        let inside = map(None, open);
        if start == libc::MAP_FAILED || inside == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let (start, inside) = (start as usize, inside as usize);
        let id = state.name() as u64;
        state.allocations.push(Allocation { start, bytes: mapped, inside, file, managed, id });
        Ok(start)
    }
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut c_ulonglong, bytes: usize) -> c_int {
    match allocate(bytes, false) {
        Ok(start) => {
            // SAFETY: the caller's promise.
            unsafe { address.write(start as c_ulonglong) };
            0
        }
        Err(code) => code,
    }
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocManaged(address: *mut c_ulonglong, bytes: usize, _flags: c_uint) -> c_int {
    match allocate(bytes, true) {
        Ok(start) => {
            // SAFETY: the caller's promise.
            unsafe { address.write(start as c_ulonglong) };
            0
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: c_ulonglong) -> c_int {
    let mut state = state();
    let Some(at) = state.allocations.iter().position(|a| a.start == address as usize) else {
        return INVALID_VALUE;
    };
    let a = state.allocations.swap_remove(at);
    state.places.push((a.start, a.bytes));
    // SAFETY: the memory was mapped and its file opened when it was allocated, and it is freed once; its address
    // stays reserved.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        libc::mmap(a.start as *mut c_void, a.bytes, libc::PROT_NONE, flags, -1, 0);
        libc::munmap(a.inside as *mut c_void, a.bytes);
        libc::close(a.file);
    }
    0
}

/// Copies at once; the host's side may be any memory.
///
/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: c_ulonglong, from: *const u8, bytes: usize) -> c_int {
    let Some(to) = state().reach(to as usize, bytes) else { return INVALID_VALUE };
    // SAFETY: the target was just looked up; the caller answers for the host's side.
    unsafe { from.copy_to(to as *mut u8, bytes) };
    0
}

/// Copies at once; the host's side may be any memory.
///
/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: c_ulonglong, bytes: usize) -> c_int {
    let Some(from) = state().reach(from as usize, bytes) else { return INVALID_VALUE };
    // SAFETY: the source was just looked up; the caller answers for the host's side.
    unsafe { to.copy_from(from as *const u8, bytes) };
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    which: *const c_int,
    values: *const *mut c_uint,
    address: c_ulonglong,
) -> c_int {
    let mut state = state();
    state.questions += 1;
    if state.answer != 0 {
        return state.answer;
    }
    if !state.started {
        return NOT_INITIALIZED;
    }
    let found = state.find(address as usize);
    for at in 0..count as usize {
        // SAFETY: the arrays have as many entries as the caller says.
        let (which, value) = unsafe { (*which.add(at), *values.add(at)) };
        if which == 7 {
            // SAFETY: the value has room for 64 bits.
            unsafe { value.cast::<u64>().write_unaligned(found.map_or(0, |a| a.id)) };
            continue;
        }
        let known = match (which, found) {
            (2, Some(_)) => 2,
            (8, Some(a)) => c_uint::from(a.managed),
            _ => 0,
        };
        // SAFETY: the value has room for the attribute.
        unsafe { value.write(known) };
    }
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut c_ulonglong,
    bytes: *mut usize,
    address: c_ulonglong,
) -> c_int {
    let state = state();
    let Some(a) = state.find(address as usize) else { return INVALID_VALUE };
    // SAFETY: the caller's promise.
    unsafe {
        start.write(a.start as c_ulonglong);
        bytes.write(a.bytes);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    state().pinned.insert(start as usize, bytes);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> c_int {
    match state().pinned.remove(&(start as usize)) {
        Some(_) => 0,
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: c_ulonglong, from: c_ulonglong, bytes: usize, stream: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let (to, from) = (to as usize, from as usize);
    let mut state = state();
    if state.reach(to, bytes).is_none() || state.reach(from, bytes).is_none() {
        return INVALID_VALUE;
    }
    match state.streams.get_mut(&stream) {
        Some(stream) => stream.push_back(Item::Copy { to, from, bytes }),
        None => return INVALID_VALUE,
    }
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    let name = state.name();
    state.streams.insert(name, VecDeque::new());
    // SAFETY: the caller's promise.
    unsafe { stream.write(name) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> c_int {
    match state().streams.remove(&stream) {
        Some(left) => c_int::from(!left.is_empty()),
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> c_int {
    let mut state = state();
    while state.step(stream) {}
    let before = state.failed_streams.len();
    state.failed_streams.retain(|failed| *failed != stream);
    if state.failed_streams.len() < before { ILLEGAL_ADDRESS } else { 0 }
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> c_int {
    let mut state = state();
    let name = state.name();
    state.events.insert(name, Some(0));
    // SAFETY: the caller's promise.
    unsafe { event.write(name) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> c_int {
    match state().events.remove(&event) {
        Some(_) => 0,
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    let Some(queue) = state.streams.get_mut(&stream) else { return INVALID_VALUE };
    queue.push_back(Item::Record(event));
    state.events.insert(event, None);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    match state.events.get(&event) {
        None => return INVALID_VALUE,
        Some(Some(result)) => return *result,
        Some(None) => {}
    }
    let holds = |queue: &VecDeque<Item>| queue.iter().any(|i| matches!(i, Item::Record(e) if *e == event));
    let found = state.streams.iter().find(|(_, queue)| holds(queue)).map(|(name, _)| *name);
    if let Some(stream) = found {
        state.step(stream);
    }
    NOT_READY
}

/// Argument of `UDMABUF_CREATE` of linux/udmabuf.h, which makes a dma-buf of a part of a memory file.
#[repr(C)]
struct Create {
    memory: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: c_ulonglong,
    bytes: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    let start = address as usize;
    if !start.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || kind != 1 || flags != 0 {
        return INVALID_VALUE;
    }
    let mut state = state();
    let Some(a) = state.find(start).filter(|a| start + bytes <= a.start + a.bytes) else {
        return INVALID_VALUE;
    };
    let offset = (start - a.start) as u64;
    let wanted = Create { memory: a.file as u32, flags: 0, offset, size: bytes as u64 };
    // SAFETY: the name is constant, the structure has the expected layout, and the descriptors belong to the
    // stand-in; the caller's handle has room for one descriptor.
    unsafe {
        let exporter = libc::open(c"/dev/udmabuf".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if exporter < 0 {
            return NOT_SUPPORTED;
        }
        let descriptor = libc::ioctl(exporter, UDMABUF_CREATE, &raw const wanted);
        libc::close(exporter);
        if descriptor < 0 {
            return NOT_SUPPORTED;
        }
        handle.cast::<c_int>().write(descriptor);
    }
    state.exports += 1;
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

/// Returns a count. 0: flushes; 1: exported ranges; 2: pinned bytes; 3: questions about the owner of an address.
#[unsafe(no_mangle)]
extern "C" fn fake_get(what: u32) -> i64 {
    let state = state();
    match what {
        0 => state.flushes,
        1 => state.exports,
        2 => state.pinned.values().sum::<usize>() as i64,
        3 => state.questions,
        _ => -1,
    }
}
