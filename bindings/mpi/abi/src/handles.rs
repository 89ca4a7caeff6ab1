//! Conversion of handles: predefined objects have the standard's small numbers; for all others, the engine's number serves as address.

use std::ffi::{c_int, c_void};

use engine::constants::*;

/// The lowest address of a handle: the standard reserves the first page for predefined handles.
const FIRST_ADDRESS: usize = 0x1000;

/// A handle that is invalid in the engine. It stands for every invalid handle of the program.
const INVALID: c_int = 0x0bad;

macro_rules! kinds {
    ($($kind_in:ident, $kind_out:ident, $null:expr, [$($number:literal = $engine:expr),+];)+) => {$(
        /// Returns the engine's handle.
        #[inline]
        pub(crate) fn $kind_in(handle: usize) -> c_int {
            match handle {
                $($number => $engine,)+
                FIRST_ADDRESS.. => handle as u32 as c_int,
                _ => INVALID,
            }
        }

        /// Returns the program's handle.
        pub(crate) fn $kind_out(handle: c_int) -> usize {
            $(if handle == $engine {
                return $number;
            })+
            // A call that fails may not have written the handle, which then becomes the null handle.
            if handle == 0 { $null } else { handle as u32 as usize }
        }
    )+};
}

kinds! {
    comm_in, comm_out, 0x100, [0x100 = COMM_NULL, 0x101 = COMM_WORLD, 0x102 = COMM_SELF];
    group_in, group_out, 0x108, [0x108 = GROUP_NULL, 0x109 = GROUP_EMPTY];
    win_in, win_out, 0x110, [0x110 = WIN_NULL];
    file_in, file_out, 0x118, [0x118 = FILE_NULL];
    session_in, session_out, 0x120, [0x120 = SESSION_NULL];
    info_in, info_out, 0x130, [0x130 = INFO_NULL, 0x131 = INFO_ENV];
    errh_in, errh_out, 0x140, [
        0x140 = ERRHANDLER_NULL, 0x141 = ERRORS_ARE_FATAL, 0x142 = ERRORS_ABORT, 0x143 = ERRORS_RETURN
    ];
    req_in, req_out, 0x180, [0x180 = REQUEST_NULL];
    msg_in, msg_out, 0x128, [0x128 = REQUEST_NULL, 0x129 = MESSAGE_NO_PROC];
}

/// The standard's number of each operator, and the last digit of the engine's handle; 0 is the null operator.
const OPS: [(usize, c_int); 15] = [
    (0x20, 0),
    (0x21, 3),
    (0x22, 2),
    (0x23, 1),
    (0x24, 4),
    (0x28, 6),
    (0x29, 8),
    (0x2a, 10),
    (0x30, 5),
    (0x31, 7),
    (0x32, 9),
    (0x38, 11),
    (0x39, 12),
    (0x3c, 13),
    (0x3d, 14),
];

pub(crate) fn op_in(handle: usize) -> c_int {
    if handle >= FIRST_ADDRESS {
        return handle as u32 as c_int;
    }
    match OPS.iter().find(|(number, _)| *number == handle) {
        Some((_, 0)) => OP_NULL,
        Some((_, digit)) => 0x5800_0000 | digit,
        None => INVALID,
    }
}

pub(crate) fn op_out(handle: c_int) -> usize {
    let digit = if handle == OP_NULL { 0 } else { handle.wrapping_sub(0x5800_0000) };
    let found = OPS.iter().find(|(_, other)| *other == digit);
    found.map_or(if handle == 0 { 0x20 } else { handle as u32 as usize }, |(number, _)| *number)
}

/// The standard's number of each type, and the lower half of the engine's handle.
const TYPES: [(usize, c_int); 72] = [
    (0x201, 0x0843),
    (0x202, 0x0845),
    (0x203, 0x0844),
    (0x207, 0x010f),
    (0x208, 0x0203),
    (0x209, 0x0405),
    (0x20a, 0x0807),
    (0x20b, 0x0809),
    (0x20c, 0x0204),
    (0x20d, 0x0406),
    (0x20e, 0x0808),
    (0x20f, 0x0819),
    (0x210, 0x040a),
    (0x212, 0x0840),
    (0x213, 0x0834),
    (0x214, 0x080b),
    (0x216, 0x1041),
    (0x217, 0x1035),
    (0x218, 0x041d),
    (0x219, 0x041b),
    (0x21a, 0x041c),
    (0x21b, 0x081e),
    (0x21c, 0x081f),
    (0x21d, 0x1022),
    (0x21e, 0x011a),
    (0x220, 0x100c),
    (0x224, 0x2042),
    (0x225, 0x2036),
    (0x228, PAIR),
    (0x229, PAIR + 1),
    (0x22a, PAIR + 2),
    (0x22b, 0x0816),
    (0x22c, PAIR + 3),
    (0x22d, PAIR + 4),
    (0x230, 0x0821),
    (0x231, 0x1023),
    (0x232, 0x0820),
    (0x238, 0x013f),
    (0x239, 0x0133),
    (0x23c, 0x040e),
    (0x240, 0x0137),
    (0x241, 0x013b),
    (0x243, 0x0101),
    (0x244, 0x0118),
    (0x245, 0x0102),
    (0x247, 0x010d),
    (0x248, 0x0238),
    (0x249, 0x023c),
    (0x250, 0x0439),
    (0x251, 0x043d),
    (0x258, 0x083a),
    (0x259, 0x083e),
    (0x2c0, 0x0147),
    (0x2c1, 0x012d),
    (0x2c8, 0x0248),
    (0x2c9, 0x022f),
    (0x2ca, 0x0226),
    (0x2d0, 0x0449),
    (0x2d1, 0x0430),
    (0x2d2, 0x0427),
    (0x2d3, 0x042e),
    (0x2d8, 0x084a),
    (0x2d9, 0x0831),
    (0x2da, 0x0829),
    (0x2db, 0x0828),
    (0x2e0, 0x104b),
    (0x2e1, 0x1032),
    (0x2e2, 0x102b),
    (0x2e3, 0x102a),
    (0x2eb, 0x202c),
    // Handles without a number in the standard keep the engine's.
    (0x4c00_0246, 0x0246),
    (0x4c00_024c, 0x024c),
];

/// Marks handles of pairs, which have another upper half.
const PAIR: c_int = 0x1_0000;

const fn engine_type(half: c_int) -> c_int {
    if half >= PAIR { (0x8c00_0000_u32 as c_int) | (half - PAIR) } else { 0x4c00_0000 | half }
}

/// The types by the lower bits of their numbers.
static BY_NUMBER: [c_int; 512] = {
    let mut all = [INVALID; 512];
    let mut at = 0;
    while at < TYPES.len() {
        let (number, half) = TYPES[at];
        if number >= 0x200 && number < 0x400 {
            all[number - 0x200] = engine_type(half);
        }
        at += 1;
    }
    all[0] = DATATYPE_NULL;
    all
};

#[inline]
pub(crate) fn type_in(handle: usize) -> c_int {
    match handle {
        0x200..0x400 => BY_NUMBER[handle - 0x200],
        FIRST_ADDRESS.. => handle as u32 as c_int,
        _ => INVALID,
    }
}

pub(crate) fn type_out(handle: c_int) -> usize {
    if handle == DATATYPE_NULL || handle == 0 {
        return 0x200;
    }
    BY_NUMBER.iter().position(|other| *other == handle).map_or(handle as u32 as usize, |at| at + 0x200)
}

/// Copies an array of handles and translates them. Returns no handles for null, which the engine then reports.
///
/// # Safety
/// `given` points to `len` handles, or is null.
pub(crate) unsafe fn handles(
    given: *const usize,
    len: impl TryInto<usize>,
    translate: fn(usize) -> c_int,
) -> Vec<c_int> {
    let len = if given.is_null() { 0 } else { len.try_into().unwrap_or(0) };
    // SAFETY: the caller's promise.
    (0..len).map(|at| translate(unsafe { *given.add(at) })).collect()
}

/// Requests of the program, and copies for the engine, which are written back when this value is dropped.
pub(crate) struct Requests {
    program: *mut usize,
    engine: Vec<c_int>,
}

impl Requests {
    /// # Safety
    /// `program` points to `len` requests, or is null.
    pub(crate) unsafe fn new(program: *mut usize, len: c_int) -> Self {
        // SAFETY: the caller's promise.
        Self { program, engine: unsafe { handles(program, len, req_in) } }
    }

    /// Returns the requests for the engine; null if the program gave null.
    pub(crate) fn engine(&mut self) -> *mut c_int {
        if self.program.is_null() { std::ptr::null_mut() } else { self.engine.as_mut_ptr() }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        for (at, handle) in self.engine.iter().enumerate() {
            // SAFETY: the promise to `new`. Unchanged requests may lie in read-only memory, so they are not written.
            unsafe {
                let now = req_out(*handle);
                if *self.program.add(at) != now {
                    *self.program.add(at) = now;
                }
            }
        }
    }
}

/// Writes handles back to the program.
///
/// # Safety
/// `into` has room for the handles of `list`, or is null.
pub(crate) unsafe fn handles_back(into: *mut usize, list: &[c_int], translate: fn(c_int) -> usize) {
    for (at, handle) in list.iter().enumerate().filter(|_| !into.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { *into.add(at) = translate(*handle) };
    }
}

/// `MPI_BUFFER_AUTOMATIC` of this ABI.
pub(crate) const AUTOMATIC: usize = 2;

/// Translates `MPI_IN_PLACE` and `MPI_BUFFER_AUTOMATIC`; all other addresses stay as they are.
#[inline]
pub(crate) fn const_buffer(given: *const c_void) -> *const c_void {
    match given.addr() {
        1 => IN_PLACE,
        AUTOMATIC => BUFFER_AUTOMATIC,
        _ => given,
    }
}

#[inline]
pub(crate) fn buffer(given: *mut c_void) -> *mut c_void {
    const_buffer(given).cast_mut()
}
