//! Calls that query or change properties of windows.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use kolo_transport::Unpoisoned;

use super::lookup;
use crate::args::{put, put_text, text};
use crate::constants::{MAX_OBJECT_NAME, WIN_NULL};
use crate::error::Outcome;
use crate::{group, hints, info};

pub unsafe fn win_get_group(win: c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(into, group::register(Arc::clone(&lookup(win)?.comm.members))) }
}

pub unsafe fn win_set_info(win: c_int, hints: c_int) -> Outcome {
    let (window, new) = (lookup(win)?, info::pairs(hints)?);
    hints::merge(&mut window.info.lock().unpoisoned(), new);
    Ok(())
}

pub unsafe fn win_get_info(win: c_int, into: *mut c_int) -> Outcome {
    let hints = lookup(win)?.info.lock().unpoisoned().clone();
    // SAFETY: the caller's promise.
    unsafe { put(into, info::make(hints)) }
}

pub unsafe fn win_set_name(win: c_int, name: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    *lookup(win)?.name.lock().unpoisoned() = name;
    Ok(())
}

pub unsafe fn win_get_name(win: c_int, name: *mut c_char, length: *mut c_int) -> Outcome {
    let window = if win == WIN_NULL { None } else { Some(lookup(win)?) };
    let shown =
        window.map_or_else(|| "MPI_WIN_NULL".to_owned(), |window| window.name.lock().unpoisoned().clone());
    // SAFETY: by the standard, the program gives this much room.
    unsafe { put_text(&shown, name, MAX_OBJECT_NAME as usize, length) }
}
