//! Memory for buffers: aligned memory, symmetric memory, and registration with transports that pin memory.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use kolo_rs::SymmetricBuffer;
use kolo_rs::internal::Unpoisoned;

use crate::comm::Comm;
use crate::guard::{guard, place, take, usage, with_comm};

/// The page size of the systems on which Kolo runs, or a multiple of it: transports pin and map whole pages.
const ALIGNMENT: usize = 4096;

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloMemAlloc(memory: *mut *mut c_void, bytes: usize) -> c_int {
    guard("koloMemAlloc", None, || {
        // SAFETY: the header's promise.
        let memory = unsafe { place("memory", memory) }?;
        memory.write(std::ptr::null_mut());
        if bytes == 0 {
            return Ok(());
        }
        let mut found = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two and a multiple of a pointer's size; the result goes to a local variable.
        let code = unsafe { libc::posix_memalign(&raw mut found, ALIGNMENT, bytes) };
        if code != 0 {
            let error = std::io::Error::from_raw_os_error(code);
            return Err(kolo_rs::Error::system(format!("allocating {bytes} bytes"), error).into());
        }
        memory.write(found);
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloMemFree(memory: *mut c_void) -> c_int {
    guard("koloMemFree", None, || {
        // SAFETY: the header's promise: the memory is null or from `koloMemAlloc`, and so from posix_memalign.
        unsafe { libc::free(memory) };
        Ok(())
    })
}

/// Symmetric buffers of a communicator that C has not freed, by address.
pub(crate) type Lent = Mutex<HashMap<usize, SymmetricBuffer<u8>>>;

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommMemAlloc(comm: *const Comm, memory: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommMemAlloc", comm, |comm| {
            let memory = place("memory", memory)?;
            memory.write(std::ptr::null_mut());
            let mut found = comm.communicator.alloc_raw(bytes)?;
            let at = found.as_mut_ptr();
            comm.lent.lock().unpoisoned().insert(at.expose_provenance(), found);
            memory.write(at.cast());
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommMemFree(comm: *const Comm, memory: *mut c_void) -> c_int {
    // SAFETY: the header's promise; the memory is only looked up by its address.
    unsafe {
        with_comm("koloCommMemFree", comm, |comm| {
            let known = comm.lent.lock().unpoisoned().remove(&memory.addr());
            if known.is_none() && !memory.is_null() {
                return Err(usage(format!("{memory:?} is not memory of this communicator")));
            }
            Ok(())
        })
    }
}

/// Target of a `koloRegistration_t`.
#[derive(Debug)]
pub(crate) struct Registration(#[expect(dead_code, reason = "kept for its end")] kolo_rs::Registration);

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommRegister(
    comm: *const Comm,
    memory: *mut c_void,
    bytes: usize,
    registration: *mut *mut Registration,
) -> c_int {
    // SAFETY: the header's promise, for all pointers; also, the memory stays until it is deregistered.
    unsafe {
        with_comm("koloCommRegister", comm, |comm| {
            let registration = place("registration", registration)?;
            registration.write(std::ptr::null_mut());
            let made = comm.communicator.register_raw(memory.cast(), bytes)?;
            registration.write(Box::into_raw(Box::new(Registration(made))));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommDeregister(_comm: *const Comm, registration: *mut *mut Registration) -> c_int {
    // The communicator may be gone: either may end first.
    guard("koloCommDeregister", None, || {
        // SAFETY: the header's promise; the handle is from `koloCommRegister`. Dropping it ends the registration.
        drop(unsafe { take("registration", registration) }?);
        Ok(())
    })
}
