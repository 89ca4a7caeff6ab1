//! Attributes: values that programs cache on communicators, types and windows.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use kolo_transport::Unpoisoned;

use crate::args::put;
use crate::constants::{KEYVAL_INVALID, SUCCESS};
use crate::error::{Class, Fail, Outcome, fail};
use crate::flavor::{self, Kind};
use crate::handle::Table;
use crate::{comm, datatype, window};

/// `int copy(handle, keyval, extra, value, place for the copy, flag)`. If handles are narrower than an address, the function reads the
/// lower half.
type Copy = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `int delete(handle, keyval, value, extra)`.
type Delete = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

/// A function that calls another language's copy function: `int (function, handle, keyval, extra, kind, value, place, flag)`.
type CopyProxy = unsafe extern "C" fn(
    Copy,
    c_int,
    c_int,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut c_int,
) -> c_int;
/// A function that calls another language's delete function: `int (function, handle, keyval, kind, value, extra)`.
type DeleteProxy = unsafe extern "C" fn(Delete, c_int, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

/// The kind that a proxy is told: a value is an integer as wide as an address.
const ADDRESS_WIDE: c_int = 1;

#[derive(Debug)]
struct Keyval {
    of: Kind,
    copy: Option<Copy>,
    delete: Option<Delete>,
    extra: usize,
    /// Set if the functions are written in another language.
    proxies: OnceLock<(CopyProxy, DeleteProxy)>,
    /// Whether the program has freed the keyval. By the standard, it lives on until no object has its attribute.
    is_freed: AtomicBool,
    /// The number of objects that have its attribute.
    uses: AtomicUsize,
}

impl Keyval {
    /// Calls the program's copy function. Returns the copy, if the program wants one.
    fn copy(&self, owner: c_int, number: c_int, value: usize) -> Outcome<Option<usize>> {
        let Some(copy) = self.copy else { return Ok(None) };
        let (mut copied, mut flag) = (std::ptr::null_mut::<c_void>(), 0);
        let (extra, value, flag_at) = (self.extra as *mut c_void, value as *mut c_void, &raw mut flag);
        // SAFETY: calls the program's function with the standard's arguments, or its proxy with the arguments of its type.
        callback(unsafe {
            match self.proxies.get() {
                Some((proxy, _)) => {
                    proxy(copy, owner, number, extra, ADDRESS_WIDE, value, &raw mut copied, flag_at)
                }
                None => {
                    let handle = flavor::to_user(self.of, owner);
                    copy(handle, number, extra, value, (&raw mut copied).cast(), flag_at)
                }
            }
        })?;
        Ok((flag != 0).then_some(copied as usize))
    }

    fn add_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_use(&self, number: c_int) {
        if self.uses.fetch_sub(1, Ordering::Relaxed) == 1 && self.is_freed.load(Ordering::Relaxed) {
            KEYVALS.remove(number);
        }
    }

    /// Calls the program's delete function for a value.
    fn delete(&self, owner: c_int, number: c_int, value: usize) -> Outcome {
        let Some(delete) = self.delete else { return Ok(()) };
        let (extra, value) = (self.extra as *mut c_void, value as *mut c_void);
        // SAFETY: as in `copy`.
        callback(unsafe {
            match self.proxies.get() {
                Some((_, proxy)) => proxy(delete, owner, number, ADDRESS_WIDE, value, extra),
                None => delete(flavor::to_user(self.of, owner), number, value, extra),
            }
        })
    }
}

/// Sets the proxies that call a keyval's functions, which are written in another language.
///
/// # Safety
/// The proxies are functions of the types above.
pub unsafe fn keyval_set_proxy(number: c_int, copy: *const c_void, delete: *const c_void) {
    // SAFETY: the caller's promise.
    let (copy, delete) = unsafe {
        (
            std::mem::transmute::<*const c_void, Option<CopyProxy>>(copy),
            std::mem::transmute::<*const c_void, Option<DeleteProxy>>(delete),
        )
    };
    if let (Some(keyval), Some(copy), Some(delete)) = (KEYVALS.get(number), copy, delete) {
        // Set once, right after the keyval was made.
        let _ = keyval.proxies.set((copy, delete));
    }
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
        _ => fail(Class::Keyval, format!("{number:#x} is not a keyval for this kind of object")),
    }
}

impl Attributes {
    fn list(&self) -> MutexGuard<'_, Vec<Attribute>> {
        self.0.lock().unpoisoned()
    }

    fn get(&self, number: c_int) -> Option<usize> {
        self.list().iter().find(|attribute| attribute.number == number).map(|attribute| attribute.value)
    }

    fn set(&self, owner: c_int, number: c_int, of: Kind, value: usize) -> Outcome {
        let keyval = keyval(number, of)?;
        if keyval.is_freed.load(Ordering::Relaxed) {
            return fail(Class::Keyval, format!("{number:#x} is a keyval that was freed"));
        }
        if self.get(number).is_some() {
            self.delete(owner, number)?;
        }
        keyval.add_use();
        self.list().push(Attribute { number, keyval, value });
        Ok(())
    }

    fn delete(&self, owner: c_int, number: c_int) -> Outcome {
        let found = {
            let list = self.list();
            let attribute = list.iter().find(|attribute| attribute.number == number);
            attribute.map(|attribute| (Arc::clone(&attribute.keyval), attribute.value))
        };
        let Some((keyval, value)) = found else {
            return fail(Class::Keyval, "there is no such attribute");
        };
        keyval.delete(owner, number, value)?;
        self.list().retain(|attribute| attribute.number != number);
        keyval.drop_use(number);
        Ok(())
    }

    /// Deletes all attributes, the last one first.
    ///
    /// # Errors
    /// The error of the program's delete function; the remaining attributes then stay.
    pub fn delete_all(&self, owner: c_int) -> Outcome {
        loop {
            let last = self.list().last().map(|attribute| attribute.number);
            let Some(number) = last else { return Ok(()) };
            self.delete(owner, number)?;
        }
    }

    /// Copies the attributes to a duplicate of an object, as far as their copy functions say so.
    ///
    /// # Errors
    /// The error of the program's copy function.
    pub fn copy_to(&self, owner: c_int, new: &Self) -> Outcome {
        let all: Vec<(c_int, Arc<Keyval>, usize)> = self
            .list()
            .iter()
            .map(|attribute| (attribute.number, Arc::clone(&attribute.keyval), attribute.value))
            .collect();
        for (number, keyval, value) in all {
            if let Some(value) = keyval.copy(owner, number, value)? {
                keyval.add_use();
                new.list().push(Attribute { number, keyval, value });
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
    // SAFETY: by the standard, the program passes functions of these types; null is `None`.
    let (copy, delete) = unsafe {
        (
            std::mem::transmute::<*const c_void, Option<Copy>>(copy),
            std::mem::transmute::<*const c_void, Option<Delete>>(delete),
        )
    };
    let keyval = Keyval {
        of,
        copy,
        delete,
        extra: extra as usize,
        proxies: OnceLock::new(),
        is_freed: AtomicBool::new(false),
        uses: AtomicUsize::new(0),
    };
    // SAFETY: the caller's promise.
    unsafe { put(number, KEYVALS.insert(Arc::new(keyval))) }
}

unsafe fn free(of: Kind, number: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        let keyval = keyval(*number, of)?;
        keyval.is_freed.store(true, Ordering::Relaxed);
        if keyval.uses.load(Ordering::Relaxed) == 0 {
            KEYVALS.remove(*number);
        }
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
