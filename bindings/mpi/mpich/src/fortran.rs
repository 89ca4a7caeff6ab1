//! Support for MPICH's Fortran bindings (`libmpifort.so.12`): addresses that they compare with, attributes whose values are integers, and
//! operators and error handlers with a state. The bindings call all other functions by the standard's names.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;

use engine::Scope;
use engine::constants::{ERRHANDLER_NULL, OP_NULL, Status};

use super::functions as c;

macro_rules! statuses {
    ($($name:ident, $profiled:ident;)+) => {$(
        /// Copies a status, which has the same layout in all languages.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(from: *const Status, to: *mut Status) -> c_int {
            // SAFETY: the caller's promise: `from` is a status, and `to` is valid for writing.
            unsafe { copy(from, to) }
        }

        /// The same function under its profiling name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $profiled(from: *const Status, to: *mut Status) -> c_int {
            // SAFETY: as above.
            unsafe { copy(from, to) }
        }
    )+};
}

/// Copies a status. Fails for null and for `MPI_STATUS_IGNORE`.
unsafe fn copy(from: *const Status, to: *mut Status) -> c_int {
    if from.is_null() || from.addr() == 1 || to.is_null() || to.addr() == 1 {
        return super::null("a status", Scope::Process, "MPI_Status_c2f or a relative");
    }
    // SAFETY: the caller's promise.
    unsafe { *to = *from };
    0
}

statuses! {
    MPI_Status_c2f, PMPI_Status_c2f;
    MPI_Status_f2c, PMPI_Status_f2c;
    MPI_Status_c2f08, PMPI_Status_c2f08;
    MPI_Status_f082c, PMPI_Status_f082c;
    MPI_Status_f2f08, PMPI_Status_f2f08;
    MPI_Status_f082f, PMPI_Status_f082f;
}

macro_rules! marks {
    ($($name:ident: $of:ty;)+) => {$(
        /// The address of the bindings' constant of this name. The bindings set it when the program starts.
        #[unsafe(no_mangle)]
        pub(crate) static $name: AtomicPtr<$of> = AtomicPtr::new(ptr::null_mut());
    )+};
}

marks! {
    MPI_F_STATUS_IGNORE: c_int;
    MPI_F_STATUSES_IGNORE: c_int;
    MPI_F08_STATUS_IGNORE: Status;
    MPI_F08_STATUSES_IGNORE: Status;
}

/// The form in which the caller wants a value: its address, or the value as an integer as wide as an address. Any other number stands for
/// an int.
const POINTER: c_int = 0;
const ADDRESS_WIDE: c_int = 1;

/// The common upper bits of the standard's predefined keyvals. In C these keyvals are odd; in Fortran they are one higher.
const OF_COMMUNICATORS: c_int = 0x6440_0000;
const OF_WINDOWS: c_int = 0x6600_0000;
const WINDOW_BASE: c_int = 0x6600_0001;
const WINDOW_SIZE: c_int = 0x6600_0003;

type Get = unsafe extern "C" fn(c_int, c_int, *mut c_void, *mut c_int) -> c_int;

/// Looks up an attribute, and writes it in the form that the caller's language wants.
///
/// # Safety
/// `value` is valid for writing a value of `kind`, and `flag` for writing a number.
unsafe fn get(
    get: Get,
    of: c_int,
    keyval: c_int,
    value: *mut c_void,
    flag: *mut c_int,
    kind: c_int,
) -> c_int {
    let is_named = matches!(keyval & !0xff, OF_COMMUNICATORS | OF_WINDOWS);
    let keyval = if is_named && keyval % 2 == 0 { keyval - 1 } else { keyval };
    let mut found = ptr::null_mut::<c_void>();
    // SAFETY: the caller's promise. The predefined attributes are addresses of numbers, except for a window's base.
    unsafe {
        let code = get(of, keyval, (&raw mut found).cast(), flag);
        if code != 0 || *flag == 0 {
            return code;
        }
        let number = match keyval {
            _ if !is_named || keyval == WINDOW_BASE => found as i64,
            WINDOW_SIZE => *found.cast::<i64>(),
            _ => i64::from(*found.cast::<c_int>()),
        };
        match kind {
            POINTER => *value.cast() = found,
            ADDRESS_WIDE => *value.cast() = number,
            _ => *value.cast() = number as c_int,
        }
        code
    }
}

macro_rules! attributes {
    ($($get:ident($of_get:path), $set:ident($of_set:path);)+) => {$(
        /// Returns an attribute as a value of `kind`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $get(
            of: c_int,
            keyval: c_int,
            value: *mut c_void,
            flag: *mut c_int,
            kind: c_int,
        ) -> c_int {
            // SAFETY: the bindings' promise.
            unsafe { get($of_get, of, keyval, value, flag, kind) }
        }

        /// Sets an attribute; a number is passed in the place of the address.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $set(of: c_int, keyval: c_int, value: *mut c_void, _: c_int) -> c_int {
            // SAFETY: the bindings' promise.
            unsafe { $of_set(of, keyval, value) }
        }
    )+};
}

attributes! {
    MPII_Comm_get_attr(c::MPI_Comm_get_attr), MPII_Comm_set_attr(c::MPI_Comm_set_attr);
    MPII_Type_get_attr(c::MPI_Type_get_attr), MPII_Type_set_attr(c::MPI_Type_set_attr);
    MPII_Win_get_attr(c::MPI_Win_get_attr), MPII_Win_set_attr(c::MPI_Win_set_attr);
}

/// Sets the proxies that call the Fortran functions of a keyval.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn MPII_Keyval_set_proxy(
    keyval: c_int,
    copy: *const c_void,
    delete: *const c_void,
) {
    // SAFETY: the bindings' promise.
    unsafe { engine::calls::keyval_set_proxy(keyval, copy, delete) }
}

/// Reports that a generalized request has Fortran functions, which Kolo does not support.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn MPII_Grequest_set_lang_f77(_: c_int) {
    super::missing("MPI_Grequest_start of Fortran", Scope::Process);
}

macro_rules! with_state {
    ($($name:ident, $profiled:ident;)+) => {$(
        /// Makes an error handler from a function with a state, as the bindings of MPICH 4.3 and later do.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            function: *const c_void,
            destructor: *const c_void,
            state: *mut c_void,
            handler: *mut c_int,
        ) -> c_int {
            let name = stringify!($name);
            // SAFETY: the caller's promise: functions of the right types, and a place for a handle or NULL.
            let outcome = super::guard(name, || unsafe {
                engine::calls::create_errhandler_x(function, destructor, state, handler)
            });
            if outcome.is_err() && !handler.is_null() {
                // SAFETY: as above.
                unsafe { *handler = ERRHANDLER_NULL };
            }
            engine::finish(outcome, Scope::Process, name)
        }

        /// The same function under its profiling name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $profiled(
            function: *const c_void,
            destructor: *const c_void,
            state: *mut c_void,
            handler: *mut c_int,
        ) -> c_int {
            // SAFETY: as above.
            unsafe { $name(function, destructor, state, handler) }
        }
    )+};
}

with_state! {
    MPIX_Comm_create_errhandler_x, PMPIX_Comm_create_errhandler_x;
    MPIX_Win_create_errhandler_x, PMPIX_Win_create_errhandler_x;
    MPIX_File_create_errhandler_x, PMPIX_File_create_errhandler_x;
    MPIX_Session_create_errhandler_x, PMPIX_Session_create_errhandler_x;
}

/// Makes an operator from a function with a state, as the bindings of MPICH 4.3 and later do.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn MPIX_Op_create_x(
    function: *const c_void,
    destructor: *const c_void,
    commutes: c_int,
    state: *mut c_void,
    op: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise: functions of the right types, and a place for a handle or NULL.
    let outcome = super::guard("MPIX_Op_create_x", || unsafe {
        engine::calls::op_create_x(function, destructor, commutes, state, op)
    });
    if outcome.is_err() && !op.is_null() {
        // SAFETY: as above.
        unsafe { *op = OP_NULL };
    }
    engine::finish(outcome, Scope::Process, "MPIX_Op_create_x")
}

/// The same function under its profiling name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn PMPIX_Op_create_x(
    function: *const c_void,
    destructor: *const c_void,
    commutes: c_int,
    state: *mut c_void,
    op: *mut c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { MPIX_Op_create_x(function, destructor, commutes, state, op) }
}
