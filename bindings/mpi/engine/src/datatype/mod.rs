//! Datatypes: where the bytes of an element lie.

mod arrays;
mod basic;
mod calls;
mod construct;
mod contents;
mod external;
mod layout;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub use basic::{Basic, builtin};
pub use calls::*;
pub use contents::*;
pub use external::*;
pub use layout::{Part, Run};

use crate::attributes::Attributes;
use crate::constants::DATATYPE_NULL;
use crate::error::{Class, Outcome, fail};
use crate::handle::{Held, Table};

/// A datatype.
#[derive(Debug)]
pub struct Type {
    size: usize,
    pub(crate) lower: i64,
    pub(crate) extent: i64,
    pub(crate) true_lower: i64,
    pub(crate) true_extent: i64,
    align: i64,
    /// Whether the program has set the bounds itself.
    bounded: bool,
    /// Whether elements lie one behind the other without holes.
    dense: bool,
    builtin: c_int,
    made: Made,
    parts: OnceLock<Outcome<Arc<[Part]>>>,
    runs: OnceLock<Arc<[Run]>>,
    committed: AtomicBool,
    pub(crate) name: Mutex<String>,
    pub(crate) attributes: Attributes,
}

/// How a type was made: what `MPI_Type_get_contents` tells.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) combiner: c_int,
    pub(crate) integers: Vec<c_int>,
    pub(crate) addresses: Vec<i64>,
    pub(crate) counts: Vec<i64>,
    pub(crate) types: Vec<Arc<Type>>,
    /// The blocks: displacement in bytes, elements, and which of the types.
    pub(crate) blocks: Blocks,
}

/// Where the elements of the types lie.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// A predefined type.
    Basic(Vec<Part>),
    /// Blocks at equal distances.
    Even { count: i64, length: i64, stride: i64 },
    /// Blocks at displacements, each of so many elements of a type.
    Listed(Vec<(i64, i64, u32)>),
}

static TYPES: Table<Arc<Type>> = Table::new(0x3);

impl Type {
    /// Bytes of data in an element.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether elements are one run of bytes, from the address on.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.dense
    }

    /// The predefined type that this is.
    #[must_use]
    pub fn basic(&self) -> Option<Basic> {
        match &self.made.blocks {
            Blocks::Basic(parts) if parts.len() == 1 && self.builtin != DATATYPE_NULL => Some(parts[0].basic),
            _ => None,
        }
    }

    /// Handle of a predefined type.
    #[must_use]
    pub fn builtin_handle(&self) -> Option<c_int> {
        (self.builtin != DATATYPE_NULL).then_some(self.builtin)
    }

    fn is_committed(&self) -> bool {
        self.builtin != DATATYPE_NULL || self.committed.load(Ordering::Acquire)
    }
}

/// The type of a handle, committed or not.
///
/// # Errors
/// [`Class::Type`].
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
        _ => fail(Class::Type, format!("{handle:#x} is no datatype, or one that was freed")),
    }
}

/// The type of a handle, for communication.
///
/// # Errors
/// [`Class::Type`].
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

/// The same, counted.
///
/// # Errors
/// As [`held`].
#[inline]
pub fn committed(handle: c_int) -> Outcome<Arc<Type>> {
    held(handle).map(|of| Arc::clone(&of))
}

/// A handle for a type.
pub(crate) fn register(of: Arc<Type>) -> c_int {
    TYPES.insert(of)
}

/// Handle of a type: its own if it is predefined, else a new one.
pub(crate) fn handle_of(of: &Arc<Type>) -> c_int {
    of.builtin_handle().unwrap_or_else(|| register(Arc::clone(of)))
}

/// Takes a handle back that was made for a callback.
pub(crate) fn unregister(handle: c_int) {
    TYPES.remove(handle);
}
