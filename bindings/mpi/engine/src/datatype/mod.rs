//! Datatypes: the layout of an element in memory.

mod arrays;
mod basic;
mod calls;
mod construct;
mod contents;
mod external;
mod layout;
mod loops;
mod pack;
mod shape;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub use basic::{Basic, Domain, builtin};
pub use calls::*;
pub(crate) use construct::bytes_of;
pub use contents::*;
pub use external::*;
use kolo_transport::Unpoisoned;
pub use layout::{Part, Run};
use loops::Body;
pub(crate) use shape::Shape;

use crate::attributes::Attributes;
use crate::constants::{COMBINER_F90_COMPLEX, COMBINER_F90_INTEGER, COMBINER_F90_REAL, DATATYPE_NULL};
use crate::error::{Class, Outcome, fail};
use crate::handle::{Held, Table};

/// A datatype.
#[derive(Debug)]
pub struct Type {
    size: usize,
    /// Number of values of basic types.
    elements: i64,
    pub(crate) lower: i64,
    pub(crate) extent: i64,
    pub(crate) true_lower: i64,
    pub(crate) true_extent: i64,
    align: i64,
    /// Whether the program has set the lower and the upper bound itself.
    bounded: [bool; 2],
    /// Whether consecutive elements form one run of bytes without gaps.
    dense: bool,
    builtin: c_int,
    /// The number of the type's handles. Types made of this one refer to it, too, but have no handle of it.
    handles: AtomicUsize,
    made: Made,
    parts: OnceLock<Outcome<Arc<[Part]>>>,
    runs: OnceLock<Arc<[Run]>>,
    loops: OnceLock<Body>,
    committed: AtomicBool,
    pub(crate) name: Mutex<String>,
    pub(crate) attributes: Attributes,
}

/// The way in which a type was made, as `MPI_Type_get_contents` returns it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) combiner: c_int,
    pub(crate) integers: Vec<c_int>,
    pub(crate) addresses: Vec<i64>,
    pub(crate) counts: Vec<i64>,
    pub(crate) types: Vec<Arc<Type>>,
    /// The blocks of the types' elements.
    pub(crate) blocks: Blocks,
}

/// The positions of the elements of the types.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// A predefined type.
    Basic(Vec<Part>),
    /// The elements of a type that the program does not see.
    Within(Arc<Type>),
    /// Blocks at equal distances.
    Even { count: i64, length: i64, stride: i64 },
    /// Blocks: displacement in bytes, number of elements, and index of their type.
    Listed(Vec<(i64, i64, u32)>),
}

static TYPES: Table<Arc<Type>> = Table::new(0x3);
/// The handles of Fortran's types, by combiner and arguments.
static FORTRAN: Mutex<BTreeMap<(c_int, Vec<c_int>), c_int>> = Mutex::new(BTreeMap::new());

impl Type {
    /// Returns the bytes of data in an element.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether consecutive elements form one run of bytes.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.dense
    }

    /// Fails for NULL as the address of `count` elements. Data of types with absolute addresses begins elsewhere.
    ///
    /// # Errors
    /// [`Class::Buffer`].
    pub fn check_address(&self, at: *const c_void, count: usize) -> Outcome {
        if at.is_null() && count > 0 && self.size > 0 && self.true_lower == 0 {
            return fail(Class::Buffer, format!("the buffer of {count} elements is NULL"));
        }
        Ok(())
    }

    /// Returns the basic type if this is a predefined type of single values.
    #[must_use]
    pub fn basic(&self) -> Option<Basic> {
        match &self.made.blocks {
            Blocks::Basic(parts) if parts.len() == 1 && !self.is_derived() => Some(parts[0].basic),
            _ => None,
        }
    }

    fn is_derived(&self) -> bool {
        self.builtin == DATATYPE_NULL && !self.is_fortran()
    }

    /// Returns whether this is one of Fortran's types, which programs do not free.
    fn is_fortran(&self) -> bool {
        [COMBINER_F90_REAL, COMBINER_F90_COMPLEX, COMBINER_F90_INTEGER].contains(&self.made.combiner)
    }

    /// Returns the handle if this is a predefined type.
    #[must_use]
    pub fn builtin_handle(&self) -> Option<c_int> {
        (self.builtin != DATATYPE_NULL).then_some(self.builtin)
    }

    fn is_committed(&self) -> bool {
        self.builtin != DATATYPE_NULL || self.committed.load(Ordering::Acquire)
    }
}

/// Returns the type of a handle, committed or not.
///
/// # Errors
/// [`Class::Type`] for an invalid handle.
#[inline]
pub fn lookup(handle: c_int) -> Outcome<Arc<Type>> {
    match builtin(handle) {
        Some(found) => Ok(Arc::clone(found)),
        None => TYPES.get(handle).map_or_else(|| invalid(handle), Ok),
    }
}

#[cold]
fn invalid<T>(handle: c_int) -> Outcome<T> {
    match handle {
        DATATYPE_NULL => fail(Class::Type, "MPI_DATATYPE_NULL"),
        _ => fail(Class::Type, format!("{handle:#x} is not a datatype, or was freed")),
    }
}

/// Returns the type of a handle, for communication.
///
/// # Errors
/// [`Class::Type`] for an invalid handle, or a type that is not committed.
#[inline]
pub fn held(handle: c_int) -> Outcome<Held<Type>> {
    if let Some(found) = builtin(handle) {
        return Ok(Held::Predefined(found));
    }
    let found = lookup(handle)?;
    if !found.is_committed() {
        return fail(Class::Type, "the datatype is not committed");
    }
    Ok(Held::Counted(found))
}

/// As [`held`], but returns a counted reference.
///
/// # Errors
/// As [`held`].
#[inline]
pub fn committed(handle: c_int) -> Outcome<Arc<Type>> {
    held(handle).map(|of| Arc::clone(&of))
}

/// Makes a handle for a type.
pub(crate) fn register(of: Arc<Type>) -> c_int {
    of.handles.fetch_add(1, Ordering::Relaxed);
    TYPES.insert(of)
}

/// Returns a handle of a type: its own if it is predefined or one of Fortran's, else a new one.
pub(crate) fn handle_of(of: &Arc<Type>) -> c_int {
    match of.builtin_handle() {
        Some(handle) => handle,
        None if of.is_fortran() => {
            let key = (of.made.combiner, of.made.integers.clone());
            let mut known = FORTRAN.lock().unpoisoned();
            *known.entry(key).or_insert_with(|| register(Arc::clone(of)))
        }
        None => register(Arc::clone(of)),
    }
}

/// Returns whether a handle is one of a type.
pub(crate) fn is_handle_of(handle: c_int, of: &Arc<Type>) -> bool {
    TYPES.get(handle).is_some_and(|found| Arc::ptr_eq(&found, of))
}

/// Removes a handle that was made for a callback.
pub(crate) fn unregister(handle: c_int) {
    if let Some(of) = TYPES.remove(handle) {
        of.handles.fetch_sub(1, Ordering::Relaxed);
    }
}
