//! Arguments from the front ends: arrays of two widths, checked pointers and strings.

use std::ffi::{CStr, c_char, c_int};

use crate::error::{Class, Outcome, fail};

/// An array of counts or displacements: `int`, or `MPI_Count` and `MPI_Aint`.
#[derive(Clone, Copy, Debug)]
pub enum Counts {
    /// Of the plain form.
    Ints(*const c_int),
    /// Of the form with large counts.
    Longs(*const i64),
}

impl Counts {
    /// Whether there is no array.
    #[must_use]
    pub fn is_null(&self) -> bool {
        match self {
            Self::Ints(ptr) => ptr.is_null(),
            Self::Longs(ptr) => ptr.is_null(),
        }
    }

    /// Whether it is of the form with large counts.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        matches!(self, Self::Longs(_))
    }

    /// A copy of the first `len`.
    ///
    /// # Errors
    /// [`Class::Arg`] if there is no array.
    ///
    /// # Safety
    /// There are so many.
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

/// The elements of a C array.
///
/// # Errors
/// [`Class::Arg`] for a negative length, or no array of some.
///
/// # Safety
/// There are so many, and nobody changes them meanwhile.
pub unsafe fn slice<'a, T>(ptr: *const T, len: c_int) -> Outcome<&'a [T]> {
    match usize::try_from(len) {
        Ok(0) => Ok(&[]),
        Ok(_) if ptr.is_null() => fail(Class::Arg, "an array is NULL"),
        // SAFETY: the caller's promise.
        Ok(len) => Ok(unsafe { std::slice::from_raw_parts(ptr, len) }),
        Err(_) => fail(Class::Arg, format!("{len} elements of an array")),
    }
}

/// A C string.
///
/// # Errors
/// [`Class::Arg`] for NULL.
///
/// # Safety
/// It ends with a zero.
pub unsafe fn text(ptr: *const c_char) -> Outcome<String> {
    if ptr.is_null() {
        return fail(Class::Arg, "a string is NULL");
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(ptr) }.to_string_lossy().into_owned())
}

/// Writes a string of at most `room` bytes with its zero, and its length where that is wanted.
///
/// # Errors
/// [`Class::Arg`] for NULL.
///
/// # Safety
/// There is so much room.
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
/// It may be written there, unless it is NULL.
pub unsafe fn put<T>(into: *mut T, value: T) -> Outcome {
    if into.is_null() {
        return fail(Class::Arg, "the place for a result is NULL");
    }
    // SAFETY: the caller's promise.
    unsafe { into.write(value) };
    Ok(())
}

/// A count, which is not negative.
///
/// # Errors
/// [`Class::Count`].
pub fn count(value: i64) -> Outcome<usize> {
    usize::try_from(value).or_else(|_| fail(Class::Count, format!("a count of {value}")))
}
