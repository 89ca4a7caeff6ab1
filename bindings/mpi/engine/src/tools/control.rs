//! Control variables: Kolo's settings.

use std::ffi::{c_char, c_int, c_void};

use super::{INVALID_HANDLE, INVALID_NAME, check, free, give, give_text, index, wrong};
use crate::args::{put, put_text, text};
use crate::error::Outcome;
use crate::handle::Table;
use crate::world;

const CVAR_SET_NEVER: c_int = 69;
const VERBOSITY_USER_BASIC: c_int = 221;
const SCOPE_READONLY: c_int = 60439;
const TYPE_CHAR: c_int = 0x4c00_0101;
pub(super) const BIND_NO_OBJECT: c_int = 9700;

/// Room for the text of a setting, including its zero.
const SETTING_BYTES: usize = 1024;

static CVARS: Table<usize> = Table::new(0x8);

/// Returns the settings with their values. All processes have the same settings in the same order.
pub(super) fn settings() -> Vec<(String, String)> {
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    world::settings().lines().filter_map(pair).collect()
}

pub unsafe fn t_cvar_get_num(number: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(number, settings().len() as c_int) }
}

pub unsafe fn t_cvar_get_info(
    at: c_int,
    name: *mut c_char,
    name_length: *mut c_int,
    verbosity: *mut c_int,
    of: *mut c_int,
    values: *mut usize,
    about: *mut c_char,
    about_length: *mut c_int,
    bind: *mut c_int,
    scope: *mut c_int,
) -> Outcome {
    check()?;
    let all = settings();
    let (setting, _) = &all[index(&all, at)?];
    let shown =
        format!("Kolo's setting {setting}, as the environment variable of this name had it before MPI_Init");
    // SAFETY: the caller's promise: the strings have room as their lengths say, and the other pointers are valid or NULL.
    unsafe {
        give_text(setting, name, name_length)?;
        give_text(&shown, about, about_length)?;
        give(verbosity, VERBOSITY_USER_BASIC);
        give(of, TYPE_CHAR);
        give(values, 0);
        give(bind, BIND_NO_OBJECT);
        give(scope, SCOPE_READONLY);
    }
    Ok(())
}

pub unsafe fn t_cvar_get_index(name: *const c_char, at: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    match settings().iter().position(|(setting, _)| *setting == name) {
        // SAFETY: the caller's promise.
        Some(found) => unsafe { put(at, found as c_int) },
        None => wrong(INVALID_NAME),
    }
}

pub unsafe fn t_cvar_handle_alloc(
    at: c_int,
    _object: *mut c_void,
    handle: *mut usize,
    count: *mut c_int,
) -> Outcome {
    check()?;
    let at = index(&settings(), at)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(handle, CVARS.insert(at) as u32 as usize)?;
        put(count, SETTING_BYTES as c_int)
    }
}

pub unsafe fn t_cvar_handle_free(handle: *mut usize) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe { free(&CVARS, handle, INVALID_HANDLE) }
}

pub unsafe fn t_cvar_read(handle: usize, into: *mut c_void) -> Outcome {
    check()?;
    let Some(at) = CVARS.get(handle as c_int) else { return wrong(INVALID_HANDLE) };
    let all = settings();
    let value = all.get(at).map_or("", |(_, value)| value.as_str());
    // SAFETY: the caller's promise: room for as many characters as the handle's count says.
    unsafe { put_text(value, into.cast(), SETTING_BYTES, std::ptr::null_mut()) }
}

pub unsafe fn t_cvar_write(handle: usize, _from: *const c_void) -> Outcome {
    check()?;
    wrong(if CVARS.get(handle as c_int).is_some() { CVAR_SET_NEVER } else { INVALID_HANDLE })
}
