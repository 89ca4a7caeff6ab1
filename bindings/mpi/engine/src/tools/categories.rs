//! Categories of variables. Events and enumerations are empty: Kolo has no events, and no variable has named values.

use std::ffi::{c_char, c_int};

use super::control::settings;
use super::performance::COUNTED;
use super::{INVALID_HANDLE, INVALID_NAME, check, give, give_text, index, wrong};
use crate::args::{put, text};
use crate::error::Outcome;

const CATEGORIES: [(&str, &str); 2] = [
    (
        "settings",
        "Kolo's settings, KOLO_*, as they are in effect; set them in the environment before MPI_Init",
    ),
    ("messages", "messages between ranks"),
];

pub unsafe fn t_category_get_num(number: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(number, CATEGORIES.len() as c_int) }
}

/// Returns the numbers of control and performance variables of a category.
fn members(at: usize) -> (usize, usize) {
    if at == 0 { (settings().len(), 0) } else { (0, COUNTED.len()) }
}

pub unsafe fn t_category_get_info(
    at: c_int,
    name: *mut c_char,
    name_length: *mut c_int,
    about: *mut c_char,
    about_length: *mut c_int,
    cvars: *mut c_int,
    pvars: *mut c_int,
    categories: *mut c_int,
) -> Outcome {
    check()?;
    let at = index(&CATEGORIES, at)?;
    let (controls, counted) = members(at);
    // SAFETY: the caller's promise: the strings have room as their lengths say, and the other pointers are valid or NULL.
    unsafe {
        give_text(CATEGORIES[at].0, name, name_length)?;
        give_text(CATEGORIES[at].1, about, about_length)?;
        give(cvars, controls as c_int);
        give(pvars, counted as c_int);
        give(categories, 0);
    }
    Ok(())
}

pub unsafe fn t_category_get_index(name: *const c_char, at: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    match CATEGORIES.iter().position(|(category, _)| *category == name) {
        // SAFETY: the caller's promise.
        Some(found) => unsafe { put(at, found as c_int) },
        None => wrong(INVALID_NAME),
    }
}

unsafe fn list(count: usize, room: c_int, into: *mut c_int) -> Outcome {
    for nth in 0..count.min(usize::try_from(room).unwrap_or(0)) {
        // SAFETY: the caller's promise: room for `room` numbers.
        unsafe { put(into.wrapping_add(nth), nth as c_int) }?;
    }
    Ok(())
}

pub unsafe fn t_category_get_cvars(at: c_int, room: c_int, into: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { list(members(index(&CATEGORIES, at)?).0, room, into) }
}

pub unsafe fn t_category_get_pvars(at: c_int, room: c_int, into: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { list(members(index(&CATEGORIES, at)?).1, room, into) }
}

pub unsafe fn t_category_get_categories(at: c_int, _room: c_int, _into: *mut c_int) -> Outcome {
    check()?;
    index(&CATEGORIES, at).map(|_| ())
}

/// Writes 0, since no category has events.
pub unsafe fn t_category_get_num_events(at: c_int, number: *mut c_int) -> Outcome {
    check()?;
    index(&CATEGORIES, at)?;
    // SAFETY: the caller's promise.
    unsafe { put(number, 0) }
}

pub unsafe fn t_category_get_events(at: c_int, _room: c_int, _indices: *mut c_int) -> Outcome {
    check()?;
    index(&CATEGORIES, at).map(drop)
}

/// Writes 0, since there are no events and no sources of events.
pub unsafe fn t_event_get_num(number: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(number, 0) }
}

pub unsafe fn t_event_get_index(_name: *const c_char, _index: *mut c_int) -> Outcome {
    check()?;
    wrong(INVALID_NAME)
}

pub unsafe fn t_source_get_num(number: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(number, 0) }
}

pub unsafe fn t_category_changed(stamp: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(stamp, 0) }
}

/// Fails, since no variable has named values.
pub unsafe fn t_enum_get_info(
    _values: usize,
    _number: *mut c_int,
    _name: *mut c_char,
    _length: *mut c_int,
) -> Outcome {
    check()?;
    wrong(INVALID_HANDLE)
}

pub unsafe fn t_enum_get_item(
    _values: usize,
    _at: c_int,
    _value: *mut c_int,
    _name: *mut c_char,
    _length: *mut c_int,
) -> Outcome {
    check()?;
    wrong(INVALID_HANDLE)
}
