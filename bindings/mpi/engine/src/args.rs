//! Arguments from the front ends: arrays of 32-bit or 64-bit counts, checked pointers, and strings.

use std::ffi::{CStr, c_char, c_int};

use crate::error::{Class, Outcome, fail};

/// An array of counts or displacements: `int`, or `MPI_Count` and `MPI_Aint`.
#[derive(Clone, Copy, Debug)]
pub enum Counts {
    /// The array of a call with `int` counts.
    Ints(*const c_int),
    /// The array of a call with large counts.
    Longs(*const i64),
}

impl Counts {
    /// Returns whether there is no array.
    #[must_use]
    pub fn is_null(&self) -> bool {
        match self {
            Self::Ints(ptr) => ptr.is_null(),
            Self::Longs(ptr) => ptr.is_null(),
        }
    }

    /// Returns whether the call has large counts.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        matches!(self, Self::Longs(_))
    }

    /// Copies the first `len` elements.
    ///
    /// # Errors
    /// [`Class::Arg`] if there is no array.
    ///
    /// # Safety
    /// The array has at least `len` elements, or is null.
    pub unsafe fn list(&self, len: usize) -> Outcome<Vec<i64>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if self.is_null() {
            return fail(Class::Arg, "an array is NULL");
        }
        // SAFETY: the caller's promise.
        Ok(unsafe {
            match self {
                Self::Ints(ptr) => (0..len).map(|at| i64::from(*ptr.add(at))).collect(),
                Self::Longs(ptr) => (0..len).map(|at| *ptr.add(at)).collect(),
            }
        })
    }
}

/// Returns the elements of a C array.
///
/// # Errors
/// [`Class::Arg`] for a negative length, or for null with a length above 0.
///
/// # Safety
/// The array has `len` elements, or is null. Nothing changes them while the slice is in use.
pub unsafe fn slice<'a, T>(ptr: *const T, len: c_int) -> Outcome<&'a [T]> {
    match usize::try_from(len) {
        Ok(0) => Ok(&[]),
        Ok(_) if ptr.is_null() => fail(Class::Arg, "an array is NULL"),
        // SAFETY: the caller's promise.
        Ok(len) => Ok(unsafe { std::slice::from_raw_parts(ptr, len) }),
        Err(_) => fail(Class::Arg, format!("an array cannot have {len} elements")),
    }
}

/// Copies a C string.
///
/// # Errors
/// [`Class::Arg`] for NULL.
///
/// # Safety
/// The string ends with a zero.
pub unsafe fn text(ptr: *const c_char) -> Outcome<String> {
    if ptr.is_null() {
        return fail(Class::Arg, "a string is NULL");
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(ptr) }.to_string_lossy().into_owned())
}

/// Writes a string of at most `room` bytes with its zero, and its length unless `length` is null.
///
/// # Errors
/// [`Class::Arg`] for NULL.
///
/// # Safety
/// `into` has room for `room` bytes.
pub unsafe fn put_text(text: &str, into: *mut c_char, room: usize, length: *mut c_int) -> Outcome {
    if into.is_null() {
        return fail(Class::Arg, "a string is NULL");
    }
    let mut len = text.len().min(room.saturating_sub(1));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, len);
        *into.add(len) = 0;
        if !length.is_null() {
            *length = len as c_int;
        }
    }
    Ok(())
}

/// Writes a result.
///
/// # Errors
/// [`Class::Arg`] for NULL.
///
/// # Safety
/// `into` is valid for writing, or NULL.
pub unsafe fn put<T>(into: *mut T, value: T) -> Outcome {
    if into.is_null() {
        return fail(Class::Arg, "the place for a result is NULL");
    }
    // SAFETY: the caller's promise.
    unsafe { into.write(value) };
    Ok(())
}

/// Returns a count, which must not be negative.
///
/// # Errors
/// [`Class::Count`] if it is.
pub fn count(value: i64) -> Outcome<usize> {
    usize::try_from(value).or_else(|_| fail(Class::Count, format!("the count is {value}")))
}
