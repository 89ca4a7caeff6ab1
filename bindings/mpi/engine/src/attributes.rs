//! Values that programs cache on communicators, types and windows.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::args::put;
use crate::constants::{KEYVAL_INVALID, SUCCESS};
use crate::error::{Class, Fail, Outcome, fail};
use crate::flavor::{self, Kind};
use crate::handle::Table;
use crate::{comm, datatype, window};

/// `int copy(handle, keyval, extra, value, place for the copy, flag)`; a handle narrower than an address reads its lower half.
type Copy = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `int delete(handle, keyval, value, extra)`.
type Delete = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

#[derive(Debug)]
struct Keyval {
    of: Kind,
    copy: Option<Copy>,
    delete: Option<Delete>,
    extra: usize,
}

static KEYVALS: Table<Arc<Keyval>> = Table::new(0x9);

#[derive(Debug)]
struct Attribute {
    number: c_int,
    keyval: Arc<Keyval>,
    value: usize,
}

/// The attributes of one object, in the order in which they were set.
#[derive(Debug, Default)]
pub struct Attributes(Mutex<Vec<Attribute>>);

fn callback(code: c_int) -> Outcome {
    if code == SUCCESS { Ok(()) } else { Err(Fail::code(flavor::code_in(code))) }
}

fn keyval(number: c_int, of: Kind) -> Outcome<Arc<Keyval>> {
    match KEYVALS.get(number) {
        Some(keyval) if keyval.of == of => Ok(keyval),
        _ => fail(Class::Keyval, format!("{number:#x} is no keyval of this kind of object")),
    }
}

impl Attributes {
    fn list(&self) -> MutexGuard<'_, Vec<Attribute>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: c_int) -> Option<usize> {
        self.list().iter().find(|attribute| attribute.number == number).map(|attribute| attribute.value)
    }

    fn set(&self, owner: c_int, number: c_int, of: Kind, value: usize) -> Outcome {
        let keyval = keyval(number, of)?;
        if self.get(number).is_some() {
            self.delete(owner, number)?;
        }
        self.list().push(Attribute { number, keyval, value });
        Ok(())
    }

    fn delete(&self, owner: c_int, number: c_int) -> Outcome {
        let found = self.list().iter().position(|attribute| attribute.number == number);
        let Some(at) = found else { return fail(Class::Keyval, "there is no such attribute") };
        let (keyval, value) = {
            let list = self.list();
            (Arc::clone(&list[at].keyval), list[at].value)
        };
        if let Some(delete) = keyval.delete {
            let handle = flavor::to_user(keyval.of, owner);
            // SAFETY: the program's function, with the arguments that the standard says.
            callback(unsafe { delete(handle, number, value as *mut c_void, keyval.extra as *mut c_void) })?;
        }
        self.list().retain(|attribute| attribute.number != number);
        Ok(())
    }

    /// Deletes all, the last one first.
    ///
    /// # Errors
    /// What the program's function for deleting says; the others stay then.
    pub fn delete_all(&self, owner: c_int) -> Outcome {
        loop {
            let last = self.list().last().map(|attribute| attribute.number);
            let Some(number) = last else { return Ok(()) };
            self.delete(owner, number)?;
        }
    }

    /// Copies those that want to be, for a duplicate of an object.
    ///
    /// # Errors
    /// What the program's function for copying says.
    pub fn copy_to(&self, owner: c_int, new: &Self) -> Outcome {
        let all: Vec<(c_int, Arc<Keyval>, usize)> = self
            .list()
            .iter()
            .map(|attribute| (attribute.number, Arc::clone(&attribute.keyval), attribute.value))
            .collect();
        for (number, keyval, value) in all {
            let Some(copy) = keyval.copy else { continue };
            let (mut copied, mut flag) = (0_usize, 0);
            let handle = flavor::to_user(keyval.of, owner);
            // SAFETY: as for deleting.
            callback(unsafe {
                let place = (&raw mut copied).cast();
                copy(handle, number, keyval.extra as *mut c_void, value as *mut c_void, place, &raw mut flag)
            })?;
            if flag != 0 {
                new.list().push(Attribute { number, keyval, value: copied });
            }
        }
        Ok(())
    }
}

unsafe fn create(
    of: Kind,
    copy: *const c_void,
    delete: *const c_void,
    number: *mut c_int,
    extra: *mut c_void,
) -> Outcome {
    // SAFETY: the program says that these are functions of these types; null is none.
    let (copy, delete) = unsafe {
        (
            std::mem::transmute::<*const c_void, Option<Copy>>(copy),
            std::mem::transmute::<*const c_void, Option<Delete>>(delete),
        )
    };
    let keyval = Keyval { of, copy, delete, extra: extra as usize };
    // SAFETY: the caller's promise.
    unsafe { put(number, KEYVALS.insert(Arc::new(keyval))) }
}

unsafe fn free(of: Kind, number: *mut c_int) -> Outcome {
    // SAFETY: the front end has checked it.
    unsafe {
        keyval(*number, of)?;
        KEYVALS.remove(*number);
        *number = KEYVAL_INVALID;
    }
    Ok(())
}

unsafe fn give(found: Option<usize>, value: *mut c_void, flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise: a place for an address.
    unsafe {
        put(flag, found.is_some().into())?;
        found.map_or(Ok(()), |found| put(value.cast(), found))
    }
}

macro_rules! calls {
    ($kind:expr, $lookup:path, $special:path, $create:ident, $free:ident, $set:ident, $get:ident, $delete:ident) => {
        pub unsafe fn $create(
            copy: *const c_void,
            delete: *const c_void,
            number: *mut c_int,
            extra: *mut c_void,
        ) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { create($kind, copy, delete, number, extra) }
        }

        pub unsafe fn $free(number: *mut c_int) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { free($kind, number) }
        }

        pub unsafe fn $set(owner: c_int, number: c_int, value: *mut c_void) -> Outcome {
            $lookup(owner)?.attributes.set(owner, number, $kind, value as usize)
        }

        pub unsafe fn $get(owner: c_int, number: c_int, value: *mut c_void, flag: *mut c_int) -> Outcome {
            let object = $lookup(owner)?;
            let found = match $special(&object, number)? {
                Some(found) => found,
                None => {
                    keyval(number, $kind)?;
                    object.attributes.get(number)
                }
            };
            // SAFETY: the caller's promise.
            unsafe { give(found, value, flag) }
        }

        pub unsafe fn $delete(owner: c_int, number: c_int) -> Outcome {
            keyval(number, $kind)?;
            $lookup(owner)?.attributes.delete(owner, number)
        }
    };
}

fn none_special(_: &Arc<datatype::Type>, _: c_int) -> Outcome<Option<Option<usize>>> {
    Ok(None)
}

calls!(
    Kind::Comm,
    comm::lookup,
    comm::predefined_attribute,
    comm_create_keyval,
    comm_free_keyval,
    comm_set_attr,
    comm_get_attr,
    comm_delete_attr
);
calls!(
    Kind::Type,
    datatype::lookup,
    none_special,
    type_create_keyval,
    type_free_keyval,
    type_set_attr,
    type_get_attr,
    type_delete_attr
);
calls!(
    Kind::Win,
    window::lookup,
    window::predefined_attribute,
    win_create_keyval,
    win_free_keyval,
    win_set_attr,
    win_get_attr,
    win_delete_attr
);
