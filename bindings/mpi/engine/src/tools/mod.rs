//! The tools interface, `MPI_T_*`: Kolo's settings as control variables, and what messages count as performance variables.
//!
//! Errors are those of the interface; no error handler hears of them. Handles keep their tables apart by kind.

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

/// Codes of the interface, by the numbers of the MPICH ABI.
const NOT_INITIALIZED: c_int = 60;
const INVALID_INDEX: c_int = 62;
const INVALID_HANDLE: c_int = 64;
const INVALID_NAME: c_int = 73;

/// Inits without their finalize.
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

/// Frees an object, and the handle with it; `invalid` if there is none.
///
/// # Safety
/// The handle can be read and written.
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

/// Results may be unwanted.
unsafe fn give<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: the caller's promise: a place for it.
        unsafe { into.write(value) };
    }
}

/// Writes as much of a text as there is room for, and how much there would have to be with the zero behind it.
unsafe fn give_text(shown: &str, into: *mut c_char, length: *mut c_int) -> Outcome {
    if length.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise: so much room.
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
