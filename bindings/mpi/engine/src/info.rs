//! Info objects: keys and values, in the order in which they were set.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use kolo_transport::Unpoisoned;

use crate::args::{put, put_text, text};
use crate::constants::{INFO_ENV, INFO_NULL, MAX_INFO_KEY, MAX_INFO_VAL};
use crate::error::{Class, Outcome, fail};
use crate::handle::Table;

/// Keys with their values.
pub(crate) type Pairs = Vec<(String, String)>;

static INFOS: Table<Arc<Mutex<Pairs>>> = Table::new(0x7);

fn lookup(handle: c_int) -> Outcome<Arc<Mutex<Pairs>>> {
    if handle == INFO_ENV {
        return Ok(Arc::default());
    }
    INFOS.get(handle).map_or_else(|| fail(Class::Info, format!("{handle:#x} is not an info object")), Ok)
}

fn lock(pairs: &Mutex<Pairs>) -> MutexGuard<'_, Pairs> {
    pairs.lock().unpoisoned()
}

/// Returns the entries of an info object; none for the null object.
pub(crate) fn pairs(handle: c_int) -> Outcome<Pairs> {
    if handle == INFO_NULL { Ok(Pairs::new()) } else { Ok(lock(&*lookup(handle)?).clone()) }
}

/// Makes an info object of pairs, and returns its handle.
pub(crate) fn make(pairs: Pairs) -> c_int {
    INFOS.insert(Arc::new(Mutex::new(pairs)))
}

unsafe fn key(ptr: *const c_char) -> Outcome<String> {
    if ptr.is_null() {
        return fail(Class::InfoKey, "the key is NULL");
    }
    // SAFETY: the caller's promise.
    let key = unsafe { text(ptr) }?;
    if key.is_empty() || key.len() > MAX_INFO_KEY as usize {
        return fail(Class::InfoKey, format!("a key cannot have {} characters", key.len()));
    }
    Ok(key)
}

pub unsafe fn info_create(info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(info, make(Pairs::new())) }
}

/// Returns an empty info object, since Kolo does not describe the hardware; the standard allows that.
pub unsafe fn get_hw_resource_info(info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { info_create(info) }
}

/// Returns the widths of the ABI's numbers, in bytes.
pub unsafe fn abi_get_info(info: *mut c_int) -> Outcome {
    let widths =
        ["mpi_aint_size", "mpi_count_size", "mpi_offset_size"].map(|key| (key.to_owned(), "8".to_owned()));
    // SAFETY: the caller's promise.
    unsafe { put(info, make(widths.to_vec())) }
}

/// Answers that no Fortran bindings have set their info.
pub unsafe fn abi_get_fortran_info(info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(info, INFO_NULL) }
}

/// Answers that no Fortran bindings have set their logical values.
pub unsafe fn abi_get_fortran_booleans(
    _size: c_int,
    _true: *mut c_void,
    _false: *mut c_void,
    is_set: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(is_set, 0) }
}

pub unsafe fn info_create_env(_count: c_int, _values: *mut c_void, info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(info, make(Pairs::new())) }
}

pub unsafe fn info_delete(info: c_int, name: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let key = unsafe { key(name) }?;
    let pairs = lookup(info)?;
    let mut pairs = lock(&pairs);
    match pairs.iter().position(|(name, _)| *name == key) {
        Some(at) => {
            pairs.remove(at);
            Ok(())
        }
        None => fail(Class::InfoNokey, key),
    }
}

pub unsafe fn info_dup(info: c_int, new: *mut c_int) -> Outcome {
    lookup(info)?;
    // SAFETY: the caller's promise.
    unsafe { put(new, make(pairs(info)?)) }
}

pub unsafe fn info_free(info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        if INFOS.remove(*info).is_none() {
            return fail(Class::Info, "this info object cannot be freed");
        }
        *info = INFO_NULL;
    }
    Ok(())
}

unsafe fn get(info: c_int, name: *const c_char) -> Outcome<Option<String>> {
    // SAFETY: the caller's promise.
    let key = unsafe { key(name) }?;
    let pairs = lookup(info)?;
    Ok(lock(&pairs).iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone()))
}

pub unsafe fn info_get(
    info: c_int,
    key: *const c_char,
    room: c_int,
    value: *mut c_char,
    flag: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise: room for `room` characters and a zero.
    unsafe {
        let found = get(info, key)?;
        if room < 0 {
            return fail(Class::InfoValue, format!("room for {room} characters"));
        }
        put(flag, found.is_some().into())?;
        found.map_or(Ok(()), |found| put_text(&found, value, room as usize + 1, std::ptr::null_mut()))
    }
}

pub unsafe fn info_get_string(
    info: c_int,
    key: *const c_char,
    room: *mut c_int,
    value: *mut c_char,
    flag: *mut c_int,
) -> Outcome {
    if room.is_null() {
        return fail(Class::Arg, "the length is NULL");
    }
    // SAFETY: the caller's promise.
    unsafe {
        let found = get(info, key)?;
        put(flag, found.is_some().into())?;
        let Some(found) = found else { return Ok(()) };
        if *room > 0 {
            put_text(&found, value, *room as usize, std::ptr::null_mut())?;
        }
        *room = found.len() as c_int + 1;
    }
    Ok(())
}

pub unsafe fn info_get_nkeys(info: c_int, number: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(number, lock(&*lookup(info)?).len() as c_int) }
}

pub unsafe fn info_get_nthkey(info: c_int, n: c_int, key: *mut c_char) -> Outcome {
    let pairs = lookup(info)?;
    let pairs = lock(&pairs);
    let Some((name, _)) = usize::try_from(n).ok().and_then(|n| pairs.get(n)) else {
        return fail(Class::Arg, format!("there is no key number {n}"));
    };
    // SAFETY: the caller's promise.
    unsafe { put_text(name, key, MAX_INFO_KEY as usize + 1, std::ptr::null_mut()) }
}

pub unsafe fn info_get_valuelen(
    info: c_int,
    key: *const c_char,
    length: *mut c_int,
    flag: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let found = get(info, key)?;
        put(flag, found.is_some().into())?;
        found.map_or(Ok(()), |found| put(length, found.len() as c_int))
    }
}

pub unsafe fn info_set(info: c_int, name: *const c_char, value: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let key = unsafe { key(name) }?;
    if value.is_null() {
        return fail(Class::InfoValue, "the value is NULL");
    }
    // SAFETY: the caller's promise.
    let value = unsafe { text(value) }?;
    if value.len() > MAX_INFO_VAL as usize {
        return fail(Class::InfoValue, format!("a value cannot have {} characters", value.len()));
    }
    let pairs = lookup(info)?;
    let mut pairs = lock(&pairs);
    match pairs.iter_mut().find(|(name, _)| *name == key) {
        Some((_, old)) => *old = value,
        None => pairs.push((key, value)),
    }
    Ok(())
}
