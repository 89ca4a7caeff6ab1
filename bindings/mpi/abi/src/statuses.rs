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
        source: rank_in(status.source),
        tag: tag_in(status.tag),
        error: err_in(status.error),
    }
}

/// The program's statuses and copies in the engine's layout, which are written back when this value is dropped.
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
            unsafe { *self.program.add(at) = to_abi(status) };
        }
    }
}
