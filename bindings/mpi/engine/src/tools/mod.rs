//! The tools interface, `MPI_T_*`: Kolo's settings are control variables, and counts of messages are performance variables.
//!
//! Errors are codes of the interface and go to no error handler. Handles of different kinds are in different tables.

mod categories;
mod control;
mod performance;

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use categories::*;
pub use control::*;
pub use performance::*;

use crate::args::{put, put_text};
use crate::constants::{THREAD_MULTIPLE, THREAD_SINGLE};
use crate::error::{Fail, Outcome};
use crate::handle::Table;

/// Error codes of the interface, as numbers of the MPICH ABI.
const NOT_INITIALIZED: c_int = 60;
const INVALID_INDEX: c_int = 62;
const INVALID_HANDLE: c_int = 64;
const INVALID_NAME: c_int = 73;

/// The number of inits that have not been finalized.
static USERS: AtomicUsize = AtomicUsize::new(0);

fn wrong<T>(code: c_int) -> Outcome<T> {
    Err(Fail::code(code))
}

fn check() -> Outcome {
    if USERS.load(Ordering::Acquire) > 0 { Ok(()) } else { wrong(NOT_INITIALIZED) }
}

fn index<T>(all: &[T], at: c_int) -> Outcome<usize> {
    usize::try_from(at).ok().filter(|at| *at < all.len()).map_or_else(|| wrong(INVALID_INDEX), Ok)
}

/// Frees an object and its handle; fails with `invalid` if there is no such object.
///
/// # Safety
/// `handle` is valid for reading and writing.
unsafe fn free<T: Clone>(table: &Table<T>, handle: *mut usize, invalid: c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe {
        if table.remove(*handle as c_int).is_none() {
            return wrong(invalid);
        }
        *handle = 0;
    }
    Ok(())
}

/// Writes a result, unless the program does not want it and `into` is null.
unsafe fn give<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: the caller's promise: `into` is valid for writing.
        unsafe { into.write(value) };
    }
}

/// Writes as much of a text as there is room for, and the room that the whole text needs, including its zero.
unsafe fn give_text(shown: &str, into: *mut c_char, length: *mut c_int) -> Outcome {
    if length.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise: room for `*length` characters.
    unsafe {
        if *length > 0 && !into.is_null() {
            put_text(shown, into, *length as usize, std::ptr::null_mut())?;
        }
        *length = shown.len() as c_int + 1;
    }
    Ok(())
}

pub unsafe fn t_init_thread(required: c_int, provided: *mut c_int) -> Outcome {
    USERS.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the caller's promise.
    unsafe { put(provided, required.clamp(THREAD_SINGLE, THREAD_MULTIPLE)) }
}

pub unsafe fn t_finalize() -> Outcome {
    let one_less = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1));
    if one_less.is_ok() { Ok(()) } else { wrong(NOT_INITIALIZED) }
}
