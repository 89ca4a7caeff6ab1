//! Status objects.

use std::ffi::c_int;

use crate::args::{self, put};
use crate::constants::{Status, UNDEFINED};
use crate::datatype;
use crate::error::{Class, Outcome, fail};

unsafe fn read(status: *const Status) -> Outcome<Status> {
    if status.is_null() || status.addr() == 1 {
        return fail(Class::Arg, "the status is NULL");
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { *status })
}

unsafe fn write(status: *mut Status) -> Outcome<&'static mut Status> {
    if status.is_null() || status.addr() == 1 {
        return fail(Class::Arg, "the status is NULL");
    }
    // SAFETY: the caller's promise; the reference is used within the call only.
    Ok(unsafe { &mut *status })
}

pub unsafe fn get_count(status: *const Status, of: c_int, count: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    let (status, of) = (unsafe { read(status) }?, datatype::committed(of)?);
    let (bytes, size) = (status.bytes(), of.size() as i64);
    let whole = match size {
        0 if bytes == 0 => 0,
        0 => i64::from(UNDEFINED),
        _ if bytes % size == 0 => bytes / size,
        _ => i64::from(UNDEFINED),
    };
    // SAFETY: the caller's promise.
    unsafe { put(count, whole) }
}

pub unsafe fn get_elements(status: *const Status, of: c_int, count: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    let (status, of) = (unsafe { read(status) }?, datatype::committed(of)?);
    let found = of.values_in(status.bytes()).unwrap_or(i64::from(UNDEFINED));
    // SAFETY: the caller's promise.
    unsafe { put(count, found) }
}

pub unsafe fn get_elements_x(status: *const Status, of: c_int, count: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { get_elements(status, of, count) }
}

pub unsafe fn status_set_elements(status: *mut Status, of: c_int, count: i64) -> Outcome {
    let (of, count) = (datatype::committed(of)?, args::count(count)?);
    let Some(bytes) = of.bytes_of_values(count as i64) else {
        return fail(Class::Count, format!("{count} elements have more bytes than a status can hold"));
    };
    // SAFETY: the caller's promise.
    unsafe { write(status) }?.set_bytes(bytes);
    Ok(())
}

pub unsafe fn status_set_elements_x(status: *mut Status, of: c_int, count: i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { status_set_elements(status, of, count) }
}

pub unsafe fn status_set_cancelled(status: *mut Status, flag: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { write(status) }?.set_cancelled(flag != 0);
    Ok(())
}

pub unsafe fn test_cancelled(status: *const Status, flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(flag, read(status)?.is_cancelled().into()) }
}

macro_rules! fields {
    ($($field:ident, $get:ident, $set:ident;)+) => {$(
        pub unsafe fn $get(status: *const Status, value: *mut c_int) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { put(value, read(status)?.$field) }
        }

        pub unsafe fn $set(status: *mut Status, value: c_int) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { write(status) }?.$field = value;
            Ok(())
        }
    )+};
}

fields! {
    source, status_get_source, status_set_source;
    tag, status_get_tag, status_set_tag;
    error, status_get_error, status_set_error;
}
