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
    AbiStatus {
        source: rank_out(status.source),
        tag: tag_out(status.tag),
        error: err_out(status.error),
        inside: inside(status),
    }
}

const fn inside(status: &Status) -> [c_int; 5] {
    let mut inside = [0; 5];
    inside[COUNT_LOW] = status.count_low;
    inside[COUNT_HIGH] = status.count_high;
    inside
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
    if now.source != before.source {
        program.source = rank_out(now.source);
    }
    if now.tag != before.tag {
        program.tag = tag_out(now.tag);
    }
    if now.error != before.error {
        program.error = err_out(now.error);
    }
    if (now.count_low, now.count_high) != (before.count_low, before.count_high) {
        program.inside = inside(now);
    }
}

/// The program's statuses and copies in the engine's layout. The fields that the engine changes are written back when this value is
/// dropped. The others may have any value, and stay as they are.
pub(crate) struct Place {
    program: *mut AbiStatus,
    len: usize,
    /// The copies, then what they were before the call.
    several: Vec<Status>,
    /// The same for one status.
    one: [Status; 2],
}

impl Place {
    /// # Safety
    /// `program` points to `len` statuses, or is null, which is `MPI_STATUS_IGNORE`.
    pub(crate) unsafe fn new(program: *mut AbiStatus, len: usize) -> Self {
        let mut place = Self { program, len, several: Vec::new(), one: [Status::EMPTY; 2] };
        // SAFETY: the caller's promise.
        unsafe {
            if program.is_null() {
            } else if len == 1 {
                place.one = [from_abi(&*program); 2];
            } else {
                place.several.reserve_exact(2 * len);
                place.several.extend((0..len).map(|at| from_abi(&*program.add(at))));
                place.several.extend_from_within(..);
            }
        }
        place
    }

    /// Returns the statuses for the engine.
    pub(crate) fn engine(&mut self) -> *mut Status {
        match (self.program.is_null(), self.len) {
            (true, _) => STATUS_IGNORE,
            (false, 1) => self.one.as_mut_ptr(),
            (false, _) => self.several.as_mut_ptr(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.program.is_null() {
            return;
        }
        let all: &[Status] = if self.len == 1 { &self.one } else { &self.several };
        let (now, before) = all.split_at(self.len);
        for (at, (now, before)) in now.iter().zip(before).enumerate() {
            // SAFETY: the promise to `new`; the call is over.
            write_back(unsafe { &mut *self.program.add(at) }, before, now);
        }
    }
}
