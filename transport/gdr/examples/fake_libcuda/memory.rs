//! The GPU's memory: allocation, the owner of an address, pinning, copies at once, and export as a dma-buf.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::{
    INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, OUT_OF_MEMORY, State, has_context, state,
};

const PAGE: usize = 4096;

pub(crate) struct Allocation {
    /// The address that the caller sees.
    start: usize,
    bytes: usize,
    /// Address at which the stand-in accesses the memory.
    inside: usize,
    file: c_int,
    managed: bool,
    id: u64,
}

impl State {
    fn find(&self, address: usize) -> Option<&Allocation> {
        self.allocations.iter().find(|a| a.start <= address && address < a.start + a.bytes)
    }

    /// Returns the address at which the stand-in accesses these bytes, if the GPU may copy them.
    pub(crate) fn reach(&self, address: usize, bytes: usize) -> Option<usize> {
        if let Some(a) = self.find(address) {
            return (address + bytes <= a.start + a.bytes).then_some(a.inside + (address - a.start));
        }
        let pinned = |(start, len): (&usize, &usize)| *start <= address && address + bytes <= start + len;
        self.pinned.iter().any(pinned).then_some(address)
    }
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
    state.asked_exports += 1;
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
