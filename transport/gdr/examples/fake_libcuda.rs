//! A stand-in for libcuda: one GPU that exports its memory, of a driver that is too old to map for PCIe. What it exports
//! is a pipe, so that the descriptor is one.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    if number != 0 {
        return 101;
    }
    // SAFETY: the caller's.
    unsafe { device.write(7) };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: c_int) -> c_int {
    assert_eq!(device, 7, "the device that was given out");
    let known = match which {
        100 | 116 | 124 => 1,
        117 => 3,
        118 => 0,
        _ => return 1,
    };
    // SAFETY: the caller's.
    unsafe { value.write(known) };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { version.write(12_040) };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    let known = match code {
        101 => c"no such device",
        _ => c"invalid argument",
    };
    // SAFETY: the caller's.
    unsafe { text.write(known.as_ptr()) };
    0
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: c_ulonglong,
    bytes: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    if !address.is_multiple_of(4096) || !bytes.is_multiple_of(4096) || kind != 1 || flags != 0 {
        return 1;
    }
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors; the caller's handle has room for one.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::close(ends[1]);
        handle.cast::<c_int>().write(ends[0]);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    c_int::from(target != 0 || scope != 100)
}
