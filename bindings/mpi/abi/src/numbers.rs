//! Conversion of ranks, tags, error codes and all other numbers between the standard's ABI and the engine.

use std::ffi::c_int;

use engine::constants::*;

/// Makes the conversions of numbers that differ, given as `standard = engine`. All other numbers are the same.
macro_rules! numbers {
    ($($number_in:ident, $number_out:ident, [$($standard:literal = $engine:expr),+];)+) => {$(
        /// Returns the engine's number.
        #[allow(dead_code, reason = "some only go one way")]
        #[inline]
        pub(crate) fn $number_in(number: c_int) -> c_int {
            match number {
                $($standard => $engine,)+
                _ => number,
            }
        }

        /// Returns the standard's number.
        #[allow(dead_code, reason = "some only go one way")]
        pub(crate) fn $number_out(number: c_int) -> c_int {
            $(if number == $engine {
                return $standard;
            })+
            number
        }
    )+};
}

/// An invalid value of every argument. It replaces numbers that are invalid in the standard's ABI but valid in the engine.
const WRONG: c_int = -9999;

numbers! {
    verb_in, verb_out, [
        0x09 = 221, 0x0a = 222, 0x0c = 223, 0x11 = 224, 0x12 = 225, 0x14 = 226, 0x21 = 227, 0x22 = 228, 0x24 = 229
    ];
    bind_in, bind_out, [1 = 9700, 2 = 9701];
    scope_in, scope_out, [1 = 60438, 2 = 60439, 3 = 60440, 4 = 60441, 5 = 60442, 6 = 60443, 7 = 60444];
    pclass_in, pclass_out, [
        1 = 240, 2 = 241, 3 = 242, 4 = 243, 5 = 244, 6 = 245, 7 = 246, 8 = 247, 9 = 248, 10 = 249
    ];
    known_rank_in, rank_out, [-1 = ANY_SOURCE, -3 = PROC_NULL, -4 = ROOT];
    known_tag_in, tag_out, [-2 = ANY_TAG];
    level_in, level_out, [0 = 0, 1024 = 1, 2048 = 2, 4096 = 3];
    cmp_in, cmp_out, [201 = IDENT, 202 = CONGRUENT, 203 = SIMILAR, 204 = UNEQUAL];
    topo_in, topo_out, [211 = CART, 212 = GRAPH, 213 = DIST_GRAPH];
    split_in, split_out, [
        221 = COMM_TYPE_SHARED, 222 = COMM_TYPE_HW_UNGUIDED, 223 = COMM_TYPE_HW_GUIDED, 224 = COMM_TYPE_RESOURCE_GUIDED
    ];
    order_in, order_out, [12 = ORDER_C, 15 = ORDER_FORTRAN];
    dists_in, dists_out, [16 = DISTRIBUTE_NONE, 17 = DISTRIBUTE_BLOCK, 18 = DISTRIBUTE_CYCLIC];
    dargs_in, dargs_out, [19 = DISTRIBUTE_DFLT_DARG];
    whence_in, whence_out, [401 = SEEK_CUR, 402 = SEEK_END, 403 = SEEK_SET];
    flavor_in, flavor_out, [
        311 = WIN_FLAVOR_CREATE, 312 = WIN_FLAVOR_ALLOCATE, 313 = WIN_FLAVOR_DYNAMIC, 314 = WIN_FLAVOR_SHARED
    ];
    model_in, model_out, [321 = WIN_UNIFIED];
    lock_in, lock_out, [301 = LOCK_EXCLUSIVE, 302 = LOCK_SHARED];
    class_in, class_out, [192 = TYPECLASS_INTEGER, 193 = TYPECLASS_REAL, 194 = TYPECLASS_COMPLEX];
    combiner_in, combiner_out, [
        101 = COMBINER_NAMED, 102 = COMBINER_DUP, 103 = COMBINER_CONTIGUOUS, 104 = COMBINER_VECTOR, 105 = COMBINER_HVECTOR,
        106 = COMBINER_INDEXED, 107 = COMBINER_HINDEXED, 108 = COMBINER_INDEXED_BLOCK, 109 = COMBINER_HINDEXED_BLOCK,
        110 = COMBINER_STRUCT, 111 = COMBINER_SUBARRAY, 112 = COMBINER_DARRAY, 113 = COMBINER_F90_REAL,
        114 = COMBINER_F90_COMPLEX, 115 = COMBINER_F90_INTEGER, 116 = COMBINER_RESIZED, 117 = COMBINER_VALUE_INDEX
    ];
    keyval_in, keyval_out, [
        0 = KEYVAL_INVALID, 501 = TAG_UB, 502 = IO, 503 = HOST, 504 = WTIME_IS_GLOBAL, 505 = APPNUM, 506 = LASTUSEDCODE,
        507 = UNIVERSE_SIZE, 601 = WIN_BASE, 602 = WIN_DISP_UNIT, 603 = WIN_SIZE, 604 = WIN_CREATE_FLAVOR, 605 = WIN_MODEL
    ];
}

#[inline]
pub(crate) fn rank_in(rank: c_int) -> c_int {
    if rank == -2 { WRONG } else { known_rank_in(rank) }
}

#[inline]
pub(crate) fn tag_in(tag: c_int) -> c_int {
    if tag == -1 { WRONG } else { known_tag_in(tag) }
}

/// Keeps the assertions `MPI_MODE_NOCHECK` and `MPI_MODE_NOSUCCEED`, whose bits are the same in both ABIs; the engine ignores all others.
pub(crate) const fn asserts_in(assertion: c_int) -> c_int {
    assertion & (1024 | 16384)
}

/// Bits of access modes: the standard's, then the engine's.
const MODES: [(c_int, c_int); 9] = [
    (1, MODE_APPEND),
    (2, MODE_CREATE),
    (4, MODE_DELETE_ON_CLOSE),
    (8, MODE_EXCL),
    (16, MODE_RDONLY),
    (32, MODE_RDWR),
    (64, MODE_SEQUENTIAL),
    (128, MODE_UNIQUE_OPEN),
    (256, MODE_WRONLY),
];

/// Converts an access mode. Unknown bits, which lie above the known ones, stay.
pub(crate) fn amode_in(mode: c_int) -> c_int {
    let known = MODES.iter().filter(|(standard, _)| mode & standard != 0);
    known.fold(mode & !MODE_ALL, |all, (_, engine)| all | engine)
}

pub(crate) fn amode_out(mode: c_int) -> c_int {
    MODES.iter().filter(|(_, engine)| mode & engine != 0).fold(0, |all, (standard, _)| all | standard)
}

pub(crate) const fn disp_in(displacement: i64) -> i64 {
    match displacement {
        -1 => DISPLACEMENT_CURRENT,
        // The engine's number is invalid in this ABI, so it becomes an invalid displacement.
        DISPLACEMENT_CURRENT => -1,
        _ => displacement,
    }
}

pub(crate) fn cranks_in(rank: c_int) -> c_int {
    rank_in(rank)
}

/// The engine's classes by the standard's numbers, from 1 on.
const CLASSES: [c_int; 63] = [
    0, 1, 2, 3, 4, 5, 6, 19, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 17, 20, 21, 53, 22, 46, 23, 52, 24, 25,
    26, 27, 29, 31, 30, 28, 32, 48, 47, 33, 34, 35, 36, 37, 38, 39, 40, 56, 49, 55, 57, 50, 41, 51, 42, 43,
    44, 45, 58, 76, 77, 75, 80, 81,
];

/// The bits of an error code that hold its class. The bits above are the engine's and stay as they are.
const CLASS_BITS: c_int = 0xff;
/// The first class that a program adds, as programs see it and in the engine.
const ADDED_OUT: c_int = 16384;
const ADDED_IN: c_int = ERR_LASTCODE + 1;
/// Marks a code that has a text of its own, far above the classes.
const TEXTS: c_int = 0x4000_0000;

/// Codes of the tools interface: the standard's number, then the engine's.
const TOOLS: [(c_int, c_int); 18] = [
    (1001, 61),
    (1002, 79),
    (1003, 60),
    (1004, 78),
    (1005, 59),
    (1006, 74),
    (1007, 62),
    (1008, 63),
    (1009, 67),
    (1010, 64),
    (1011, 73),
    (1012, 65),
    (1013, 66),
    (1014, 68),
    (1015, 69),
    (1016, 71),
    (1017, 70),
    (1018, 72),
];

#[inline]
pub(crate) fn err_out(code: c_int) -> c_int {
    if code == SUCCESS { SUCCESS } else { failure_out(code) }
}

fn failure_out(code: c_int) -> c_int {
    if let Some((standard, _)) = TOOLS.iter().find(|(_, engine)| *engine == code) {
        return *standard;
    }
    if code >= ADDED_IN {
        return code - ADDED_IN + ADDED_OUT;
    }
    if code == ERR_LASTCODE {
        return ADDED_OUT - 1;
    }
    let class = code & CLASS_BITS;
    let class = CLASSES.iter().position(|engine| *engine == class).map_or(13, |at| at as c_int);
    if code > CLASS_BITS { TEXTS | code & !CLASS_BITS | class } else { class }
}

pub(crate) fn err_in(code: c_int) -> c_int {
    let has_text = code & TEXTS != 0;
    if code < 0 {
        return -1;
    }
    if !has_text && code >= ADDED_OUT {
        return code - ADDED_OUT + ADDED_IN;
    }
    match CLASSES.get((code & CLASS_BITS) as usize) {
        Some(class) if has_text || code <= CLASS_BITS => code & !TEXTS & !CLASS_BITS | class,
        // A number that is no class is none in the engine either.
        _ => ERR_LASTCODE,
    }
}

/// Copies an array of numbers and translates them.
///
/// # Safety
/// `given` points to `len` numbers, or is null.
pub(crate) unsafe fn numbers(given: *const c_int, len: c_int, translate: fn(c_int) -> c_int) -> Vec<c_int> {
    let len = if given.is_null() { 0 } else { usize::try_from(len).unwrap_or(0) };
    // SAFETY: the caller's promise.
    (0..len).map(|at| translate(unsafe { *given.add(at) })).collect()
}

/// Translates an array of numbers in place.
///
/// # Safety
/// `at` points to `len` numbers.
pub(crate) unsafe fn numbers_back(at: *mut c_int, len: c_int, translate: fn(c_int) -> c_int) {
    for nth in 0..usize::try_from(len).unwrap_or(0) {
        // SAFETY: the caller's promise.
        unsafe { *at.add(nth) = translate(*at.add(nth)) };
    }
}
