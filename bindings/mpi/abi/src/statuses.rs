//! Statuses of the standard's ABI: eight numbers, of which the first three are public fields.

use std::ffi::c_int;

use engine::constants::{STATUS_IGNORE, Status};

use crate::numbers::{err_in, err_out, rank_in, rank_out, tag_in, tag_out};

/// `MPI_Status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AbiStatus {
    source: c_int,
    tag: c_int,
    error: c_int,
    inside: [c_int; 5],
}

const COUNT_LOW: usize = 3;
const COUNT_HIGH: usize = 4;

pub(crate) fn to_abi(status: &Status) -> AbiStatus {
    let mut inside = [0; 5];
    inside[COUNT_LOW] = status.count_low;
    inside[COUNT_HIGH] = status.count_high;
    AbiStatus {
        source: rank_out(status.source),
        tag: tag_out(status.tag),
        error: err_out(status.error),
        inside,
    }
}

pub(crate) fn from_abi(status: &AbiStatus) -> Status {
    Status {
        count_low: status.inside[COUNT_LOW],
        count_high: status.inside[COUNT_HIGH],
        source: known(status.source, rank_in, rank_out),
        tag: known(status.tag, tag_in, tag_out),
        error: known(status.error, err_in, err_out),
    }
}

/// A number that the engine never writes. It stands for numbers of the program that mean nothing in this ABI.
const STRANGE: c_int = c_int::MIN | 0xff;

/// Returns the engine's number, from which the program's number follows again.
fn known(number: c_int, translate: fn(c_int) -> c_int, back: fn(c_int) -> c_int) -> c_int {
    let engine = translate(number);
    if back(engine) == number { engine } else { STRANGE }
}

/// Writes those fields of a status that differ from what they were.
fn write_back(program: &mut AbiStatus, before: &Status, now: &Status) {
    let new = to_abi(now);
    if now.source != before.source {
        program.source = new.source;
    }
    if now.tag != before.tag {
        program.tag = new.tag;
    }
    if now.error != before.error {
        program.error = new.error;
    }
    if (now.count_low, now.count_high) != (before.count_low, before.count_high) {
        program.inside = new.inside;
    }
}

/// The program's statuses and copies in the engine's layout. The fields that the engine changes are written back when this value is
/// dropped. The others may have any value, and stay as they are.
pub(crate) struct Place {
    program: *mut AbiStatus,
    engine: Vec<Status>,
    one: Status,
    len: usize,
}

impl Place {
    /// # Safety
    /// `program` points to `len` statuses, or is null, which is `MPI_STATUS_IGNORE`.
    pub(crate) unsafe fn new(program: *mut AbiStatus, len: usize) -> Self {
        let mut place = Self { program, engine: Vec::new(), one: Status::EMPTY, len };
        // SAFETY: the caller's promise.
        unsafe {
            if program.is_null() {
            } else if len == 1 {
                place.one = from_abi(&*program);
            } else {
                place.engine = (0..len).map(|at| from_abi(&*program.add(at))).collect();
            }
        }
        place
    }

    /// Returns the statuses for the engine.
    pub(crate) fn engine(&mut self) -> *mut Status {
        match (self.program.is_null(), self.len) {
            (true, _) => STATUS_IGNORE,
            (false, 1) => &raw mut self.one,
            (false, _) => self.engine.as_mut_ptr(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.program.is_null() {
            return;
        }
        let all = if self.len == 1 { std::slice::from_ref(&self.one) } else { &self.engine };
        for (at, status) in all.iter().enumerate() {
            // SAFETY: the promise to `new`; the call is over.
            let program = unsafe { &mut *self.program.add(at) };
            write_back(program, &from_abi(program), status);
        }
    }
}
