//! Texts and the version.

use std::ffi::{c_char, c_int};

use crate::checked;
use crate::guard::{Outcome, guard, place, usage};

/// Copies as much of a text as there is room for.
///
/// # Safety
/// `to` is null or valid for `bytes` bytes; `needed` is null or valid.
pub(crate) unsafe fn give_text(text: &str, to: *mut c_char, bytes: usize, needed: *mut usize) -> Outcome {
    if to.is_null() && bytes > 0 {
        return Err(usage(format!("text is NULL, but should have {bytes} bytes")));
    }
    // SAFETY: the caller's promise.
    if let Some(needed) = unsafe { needed.as_mut() } {
        *needed = text.len() + 1;
    }
    if let Some(room) = bytes.checked_sub(1) {
        let room = room.min(text.len());
        let whole = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        // SAFETY: `whole` + 1 is at most `bytes`, for which `to` is valid by the caller's promise; the two cannot overlap, since
        // `text` is Rust's.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), whole);
            *to.add(whole) = 0;
        }
    }
    Ok(())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGetVersion(version: *mut c_int) -> c_int {
    guard("koloGetVersion", None, || {
        // SAFETY: the header's promise.
        unsafe { place("version", version) }?.write(VERSION);
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
extern "C" fn koloTypeBytes(data_type: c_int) -> usize {
    checked::data_type(data_type).map_or(0, kolo_rs::DataType::size)
}

/// The package's version in the form of `KOLO_VERSION`.
const VERSION: c_int = 10_000 * digits(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * digits(env!("CARGO_PKG_VERSION_MINOR"))
    + digits(env!("CARGO_PKG_VERSION_PATCH"));

const fn digits(text: &str) -> c_int {
    let (bytes, mut at, mut number) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        number = 10 * number + (bytes[at] - b'0') as c_int;
        at += 1;
    }
    number
}
