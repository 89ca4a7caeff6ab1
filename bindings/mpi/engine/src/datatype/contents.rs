//! Queries about types: how they were made, and their names.

use std::ffi::{c_char, c_int};

use kolo_transport::Unpoisoned;

use super::calls::handles;
use super::lookup;
use crate::args::{put, put_text, text};
use crate::constants::{COMBINER_NAMED, DATATYPE_NULL, MAX_OBJECT_NAME};
use crate::error::{Class, Outcome, fail};

pub unsafe fn type_get_envelope(
    handle: c_int,
    integers: *mut c_int,
    addresses: *mut c_int,
    types: *mut c_int,
    combiner: *mut c_int,
) -> Outcome {
    let of = lookup(handle)?;
    if !of.made.counts.is_empty() {
        return fail(Class::Type, "the datatype was made with large counts; use MPI_Type_get_envelope_c");
    }
    // SAFETY: the caller's promise.
    unsafe {
        put(integers, of.made.integers.len() as c_int)?;
        put(addresses, of.made.addresses.len() as c_int)?;
        put(types, of.made.types.len() as c_int)?;
        put(combiner, of.made.combiner)
    }
}

pub unsafe fn type_get_envelope_c(
    handle: c_int,
    integers: *mut i64,
    addresses: *mut i64,
    counts: *mut i64,
    types: *mut i64,
    combiner: *mut c_int,
) -> Outcome {
    let of = lookup(handle)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(integers, of.made.integers.len() as i64)?;
        put(addresses, of.made.addresses.len() as i64)?;
        put(counts, of.made.counts.len() as i64)?;
        put(types, of.made.types.len() as i64)?;
        put(combiner, of.made.combiner)
    }
}

unsafe fn copy_out<T: Copy>(from: &[T], room: i64, into: *mut T) -> Outcome {
    if from.is_empty() {
        return Ok(());
    }
    if (room as usize) < from.len() || into.is_null() {
        return fail(Class::Arg, "there is not enough room for the contents; see MPI_Type_get_envelope");
    }
    // SAFETY: the caller's promise: `into` has room for the elements.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
    Ok(())
}

pub unsafe fn type_get_contents_c(
    handle: c_int,
    max_integers: i64,
    max_addresses: i64,
    max_counts: i64,
    max_types: i64,
    integers: *mut c_int,
    addresses: *mut i64,
    counts: *mut i64,
    types: *mut c_int,
) -> Outcome {
    let of = lookup(handle)?;
    if of.made.combiner == COMBINER_NAMED {
        return fail(Class::Type, "a predefined datatype has no contents");
    }
    if max_types < of.made.types.len() as i64 {
        return fail(Class::Arg, "there is not enough room for the datatypes");
    }
    // SAFETY: the caller's promise.
    unsafe {
        copy_out(&of.made.integers, max_integers, integers)?;
        copy_out(&of.made.addresses, max_addresses, addresses)?;
        copy_out(&of.made.counts, max_counts, counts)?;
        copy_out(&handles(&of), max_types, types)
    }
}

pub unsafe fn type_get_contents(
    handle: c_int,
    max_integers: c_int,
    max_addresses: c_int,
    max_types: c_int,
    integers: *mut c_int,
    addresses: *mut i64,
    types: *mut c_int,
) -> Outcome {
    if !lookup(handle)?.made.counts.is_empty() {
        return fail(Class::Type, "the datatype was made with large counts; use MPI_Type_get_contents_c");
    }
    let rooms = (max_integers.into(), max_addresses.into(), max_types.into());
    // SAFETY: the caller's promise.
    unsafe {
        type_get_contents_c(
            handle,
            rooms.0,
            rooms.1,
            0,
            rooms.2,
            integers,
            addresses,
            std::ptr::null_mut(),
            types,
        )
    }
}

pub unsafe fn type_get_name(handle: c_int, name: *mut c_char, length: *mut c_int) -> Outcome {
    let of = if handle == DATATYPE_NULL { None } else { Some(lookup(handle)?) };
    let shown = of.map_or_else(|| "MPI_DATATYPE_NULL".to_owned(), |of| of.name.lock().unpoisoned().clone());
    // SAFETY: the caller's promise.
    unsafe { put_text(&shown, name, MAX_OBJECT_NAME as usize, length) }
}

pub unsafe fn type_set_name(handle: c_int, name: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    *lookup(handle)?.name.lock().unpoisoned() = name;
    Ok(())
}
