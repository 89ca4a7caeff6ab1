//! The calls that make types and return their sizes and extents.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::basic::fortran;
use super::construct::{made, make, resized};
use super::{Basic, Blocks, Type, arrays, handle_of, lookup, register, unregister};
use crate::args::{Counts, count, put, slice};
use crate::constants::*;
use crate::error::{Class, Outcome, fail};

fn int(value: i64) -> c_int {
    value as c_int
}

/// Records the arguments of a call, for `MPI_Type_get_contents`.
fn noted(mut of: super::Made, large: bool, integers: &[i64], addresses: &[i64]) -> super::Made {
    if large {
        of.counts = integers.iter().chain(addresses).copied().collect();
    } else {
        of.integers = integers.iter().copied().map(int).collect();
        of.addresses = addresses.to_vec();
    }
    of
}

unsafe fn give(of: Type, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(into, register(Arc::new(of))) }
}

/// Runs a call with a thread-local mark that says whether it is in the form with large counts. Arguments that are plain numbers do not
/// show that, so the front end sets the mark.
pub fn in_large_form<T>(large: bool, call: impl FnOnce() -> T) -> T {
    LARGE.with(|mark| {
        let before = mark.replace(large);
        let result = call();
        mark.set(before);
        result
    })
}

thread_local! {
    static LARGE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn is_large() -> bool {
    LARGE.with(std::cell::Cell::get)
}

pub unsafe fn type_commit(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let of = lookup(unsafe { *handle })?;
    // Done here rather than in the first message.
    of.prepare();
    of.committed.store(true, Ordering::Release);
    Ok(())
}

pub unsafe fn type_free(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let number = unsafe { *handle };
    let of = lookup(number)?;
    if of.builtin_handle().is_some() || of.is_fortran() {
        return fail(Class::Type, "a predefined datatype cannot be freed");
    }
    // Other handles of the same type keep its attributes.
    if of.handles.load(Ordering::Relaxed) == 1 {
        of.attributes.delete_all(number)?;
    }
    unregister(number);
    // SAFETY: as above.
    unsafe { *handle = DATATYPE_NULL };
    Ok(())
}

pub unsafe fn type_dup(handle: c_int, new: *mut c_int) -> Outcome {
    let of = lookup(handle)?;
    let blocks = Blocks::Even { count: 1, length: 1, stride: 0 };
    let mut copy = make(made(COMBINER_DUP, vec![Arc::clone(&of)], blocks), Some((of.lower, of.extent)))?;
    // The bounds are the original's, and the program has set them only if it has set the original's.
    copy.bounded = of.bounded;
    copy.committed.store(of.is_committed(), Ordering::Release);
    of.attributes.copy_to(handle, &copy.attributes)?;
    // SAFETY: the caller's promise.
    unsafe { give(copy, new) }
}

pub unsafe fn type_contiguous(n: i64, handle: c_int, new: *mut c_int) -> Outcome {
    count(n)?;
    let of = lookup(handle)?;
    let blocks = Blocks::Even { count: 1, length: n, stride: 0 };
    let made = noted(made(COMBINER_CONTIGUOUS, vec![of], blocks), is_large(), &[n], &[]);
    // SAFETY: the caller's promise.
    unsafe { give(make(made, None)?, new) }
}

pub unsafe fn type_vector(n: i64, length: i64, stride: i64, handle: c_int, new: *mut c_int) -> Outcome {
    count(n)?;
    count(length)?;
    let of = lookup(handle)?;
    let Some(bytes) = stride.checked_mul(of.extent) else {
        return fail(Class::Arg, "the stride is too large");
    };
    let blocks = Blocks::Even { count: n, length, stride: bytes };
    let made = noted(made(COMBINER_VECTOR, vec![of], blocks), is_large(), &[n, length, stride], &[]);
    // SAFETY: the caller's promise.
    unsafe { give(make(made, None)?, new) }
}

pub unsafe fn type_create_hvector(
    n: i64,
    length: i64,
    stride: i64,
    handle: c_int,
    new: *mut c_int,
) -> Outcome {
    count(n)?;
    count(length)?;
    let blocks = Blocks::Even { count: n, length, stride };
    let made =
        noted(made(COMBINER_HVECTOR, vec![lookup(handle)?], blocks), is_large(), &[n, length], &[stride]);
    // SAFETY: the caller's promise.
    unsafe { give(make(made, None)?, new) }
}

/// Makes a type of listed blocks of one type.
unsafe fn listed(
    combiner: c_int,
    lengths: Result<Counts, i64>,
    displacements: Counts,
    n: i64,
    handle: c_int,
    new: *mut c_int,
) -> Outcome {
    let of = lookup(handle)?;
    let len = count(n)?;
    // SAFETY: the caller's promise.
    let (each, places) = unsafe {
        let each = match lengths {
            Ok(lengths) => lengths.list(len)?,
            Err(length) => vec![length; len],
        };
        (each, displacements.list(len)?)
    };
    each.iter().try_for_each(|length| count(*length).map(drop))?;
    let in_elements = matches!(combiner, COMBINER_INDEXED | COMBINER_INDEXED_BLOCK);
    let unit = if in_elements { of.extent } else { 1 };
    let mut blocks = Vec::with_capacity(len);
    for (length, place) in each.iter().zip(&places) {
        let Some(at) = place.checked_mul(unit) else {
            return fail(Class::Arg, "a displacement is too large");
        };
        blocks.push((at, *length, 0));
    }
    let mut integers = vec![n];
    match lengths {
        Ok(_) => integers.extend(&each),
        Err(length) => integers.push(length),
    }
    let mut addresses = Vec::new();
    if in_elements {
        integers.extend(&places)
    } else {
        addresses = places
    }
    let made = noted(made(combiner, vec![of], Blocks::Listed(blocks)), is_large(), &integers, &addresses);
    // SAFETY: the caller's promise.
    unsafe { give(make(made, None)?, new) }
}

pub unsafe fn type_indexed(n: i64, lengths: Counts, places: Counts, of: c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { listed(COMBINER_INDEXED, Ok(lengths), places, n, of, new) }
}

pub unsafe fn type_create_hindexed(
    n: i64,
    lengths: Counts,
    places: *const i64,
    of: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { listed(COMBINER_HINDEXED, Ok(lengths), Counts::Longs(places), n, of, new) }
}

pub unsafe fn type_create_indexed_block(
    n: i64,
    length: i64,
    places: Counts,
    of: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { listed(COMBINER_INDEXED_BLOCK, Err(length), places, n, of, new) }
}

pub unsafe fn type_create_hindexed_block(
    n: i64,
    length: i64,
    places: *const i64,
    of: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { listed(COMBINER_HINDEXED_BLOCK, Err(length), Counts::Longs(places), n, of, new) }
}

pub unsafe fn type_create_struct(
    n: i64,
    lengths: Counts,
    places: *const i64,
    types: *const c_int,
    new: *mut c_int,
) -> Outcome {
    let len = count(n)?;
    // SAFETY: the caller's promise.
    let (lengths, places, types) =
        unsafe { (lengths.list(len)?, Counts::Longs(places).list(len)?, slice(types, len as c_int)?) };
    lengths.iter().try_for_each(|length| count(*length).map(drop))?;
    let types = types.iter().map(|handle| lookup(*handle)).collect::<Outcome<Vec<_>>>()?;
    let blocks = (0..len).map(|at| (places[at], lengths[at], at as u32)).collect();
    let integers: Vec<i64> = std::iter::once(n).chain(lengths).collect();
    let made = noted(made(COMBINER_STRUCT, types, Blocks::Listed(blocks)), is_large(), &integers, &places);
    // SAFETY: the caller's promise.
    unsafe { give(make(made, None)?, new) }
}

pub unsafe fn type_create_resized(handle: c_int, lower: i64, extent: i64, new: *mut c_int) -> Outcome {
    let of = lookup(handle)?;
    let mut resized = resized(&of, lower, extent)?;
    if is_large() {
        resized.made.counts = std::mem::take(&mut resized.made.addresses);
    }
    // SAFETY: the caller's promise.
    unsafe { give(resized, new) }
}

pub unsafe fn type_create_subarray(
    dims: c_int,
    sizes: Counts,
    subsizes: Counts,
    starts: Counts,
    order: c_int,
    handle: c_int,
    new: *mut c_int,
) -> Outcome {
    let n = count(dims.into())?;
    // SAFETY: the caller's promise.
    let lists = unsafe { [sizes.list(n)?, subsizes.list(n)?, starts.list(n)?] };
    let of = lookup(handle)?;
    let mut array = arrays::subarray(&lists, order, &of)?;
    let [sizes, subsizes, starts] = lists;
    if is_large() {
        array.made.integers = vec![dims, order];
        array.made.counts = sizes.into_iter().chain(subsizes).chain(starts).collect();
    } else {
        let numbers = sizes.into_iter().chain(subsizes).chain(starts).map(int);
        array.made.integers = std::iter::once(dims).chain(numbers).chain([order]).collect();
    }
    // SAFETY: the caller's promise.
    unsafe { give(array, new) }
}

pub unsafe fn type_create_darray(
    size: c_int,
    rank: c_int,
    dims: c_int,
    sizes: Counts,
    distribs: *const c_int,
    dargs: *const c_int,
    psizes: *const c_int,
    order: c_int,
    handle: c_int,
    new: *mut c_int,
) -> Outcome {
    let n = count(dims.into())?;
    // SAFETY: the caller's promise.
    let (sizes, distribs, dargs, psizes) =
        unsafe { (sizes.list(n)?, slice(distribs, dims)?, slice(dargs, dims)?, slice(psizes, dims)?) };
    let of = lookup(handle)?;
    let mut array = arrays::darray(size, rank, &sizes, distribs, dargs, psizes, order, &of)?;
    let rest = distribs.iter().chain(dargs).chain(psizes).copied().chain([order]);
    if is_large() {
        array.made.integers = [size, rank, dims].into_iter().chain(rest).collect();
        array.made.counts = sizes;
    } else {
        let sizes = sizes.into_iter().map(int);
        array.made.integers = [size, rank, dims].into_iter().chain(sizes).chain(rest).collect();
    }
    // SAFETY: the caller's promise.
    unsafe { give(array, new) }
}

unsafe fn f90(combiner: c_int, integers: Vec<c_int>, handle: c_int, new: *mut c_int) -> Outcome {
    let of = fortran(&*lookup(handle)?, combiner, integers);
    // SAFETY: the caller's promise.
    unsafe { put(new, handle_of(&Arc::new(of))) }
}

/// Returns the real type for a number of digits and an exponent range: of 4, 8 or 16 bytes.
fn real(digits: c_int, range: c_int) -> Outcome<u32> {
    let (digits, range) =
        (if digits == UNDEFINED { 0 } else { digits }, if range == UNDEFINED { 0 } else { range });
    match (digits, range) {
        (..=6, ..=37) => Ok(0x0427),
        (..=15, ..=307) => Ok(0x0829),
        (..=33, ..=4931) => Ok(0x102b),
        _ => fail(Class::Arg, "no real type has that many digits or that large a range"),
    }
}

pub unsafe fn type_create_f90_real(digits: c_int, range: c_int, new: *mut c_int) -> Outcome {
    let handle = 0x4c00_0000 | real(digits, range)?;
    // SAFETY: the caller's promise.
    unsafe { f90(COMBINER_F90_REAL, vec![digits, range], handle as c_int, new) }
}

pub unsafe fn type_create_f90_complex(digits: c_int, range: c_int, new: *mut c_int) -> Outcome {
    let handle = match real(digits, range)? {
        0x0427 => 0x4c00_0828,
        0x0829 => 0x4c00_102a,
        _ => 0x4c00_202c,
    };
    // SAFETY: the caller's promise.
    unsafe { f90(COMBINER_F90_COMPLEX, vec![digits, range], handle, new) }
}

pub unsafe fn type_create_f90_integer(range: c_int, new: *mut c_int) -> Outcome {
    let handle = match range {
        ..=2 => 0x4c00_012d,
        3..=4 => 0x4c00_022f,
        5..=9 => 0x4c00_0430,
        10..=18 => 0x4c00_0831,
        19..=38 => 0x4c00_1032,
        _ => return fail(Class::Arg, "no integer type has that large a range"),
    };
    // SAFETY: the caller's promise.
    unsafe { f90(COMBINER_F90_INTEGER, vec![range], handle, new) }
}

pub unsafe fn type_match_size(class: c_int, size: c_int, new: *mut c_int) -> Outcome {
    let handle = match (class, size) {
        (TYPECLASS_REAL, 2) => 0x0226,
        (TYPECLASS_REAL, 4) => 0x0427,
        (TYPECLASS_REAL, 8) => 0x0829,
        (TYPECLASS_REAL, 16) => 0x102b,
        (TYPECLASS_INTEGER, 1) => 0x012d,
        (TYPECLASS_INTEGER, 2) => 0x022f,
        (TYPECLASS_INTEGER, 4) => 0x0430,
        (TYPECLASS_INTEGER, 8) => 0x0831,
        (TYPECLASS_INTEGER, 16) => 0x1032,
        (TYPECLASS_COMPLEX, 4) => 0x042e,
        (TYPECLASS_COMPLEX, 8) => 0x0828,
        (TYPECLASS_COMPLEX, 16) => 0x102a,
        (TYPECLASS_COMPLEX, 32) => 0x202c,
        _ => return fail(Class::Arg, format!("no type of class {class} has {size} bytes")),
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, 0x4c00_0000 | handle) }
}

pub unsafe fn type_get_value_index(value: c_int, index: c_int, pair: *mut c_int) -> Outcome {
    let basics = (lookup(value)?.basic(), lookup(index)?.basic());
    let handle = match basics {
        (Some(Basic::F32), Some(Basic::I32)) => 0x8c00_0000_u32 as c_int,
        (Some(Basic::F64), Some(Basic::I32)) => 0x8c00_0001_u32 as c_int,
        (Some(Basic::I64 | Basic::LongInt), Some(Basic::I32)) => 0x8c00_0002_u32 as c_int,
        (Some(Basic::I16), Some(Basic::I32)) => 0x8c00_0003_u32 as c_int,
        (Some(Basic::Long), Some(Basic::I32)) => 0x8c00_0004_u32 as c_int,
        (Some(Basic::I32), Some(Basic::I32)) => 0x4c00_0816,
        _ => DATATYPE_NULL,
    };
    // SAFETY: the caller's promise.
    unsafe { put(pair, handle) }
}

pub unsafe fn type_size(handle: c_int, size: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(size, lookup(handle)?.size as i64) }
}

pub unsafe fn type_size_x(handle: c_int, size: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { type_size(handle, size) }
}

pub unsafe fn type_get_extent(handle: c_int, lower: *mut i64, extent: *mut i64) -> Outcome {
    let of = lookup(handle)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(lower, of.lower)?;
        put(extent, of.extent)
    }
}

pub unsafe fn type_get_extent_x(handle: c_int, lower: *mut i64, extent: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { type_get_extent(handle, lower, extent) }
}

pub unsafe fn type_get_true_extent(handle: c_int, lower: *mut i64, extent: *mut i64) -> Outcome {
    let of = lookup(handle)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(lower, of.true_lower)?;
        put(extent, of.true_extent)
    }
}

pub unsafe fn type_get_true_extent_x(handle: c_int, lower: *mut i64, extent: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { type_get_true_extent(handle, lower, extent) }
}

pub unsafe fn get_address(location: *const c_void, address: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(address, location as i64) }
}

/// Returns handles of the types of which a type was made; derived types get new handles.
pub(super) fn handles(of: &Type) -> Vec<c_int> {
    of.made.types.iter().map(handle_of).collect()
}
