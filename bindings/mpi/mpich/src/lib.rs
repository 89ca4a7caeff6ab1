//! `libmpi.so.12`: the MPICH ABI, whose numbers are the engine's own.

#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "the standard's names; its text says what callers promise"
)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::args::Counts;
use engine::constants::{Status, UNDEFINED, UNWEIGHTED, WEIGHTS_EMPTY};
use engine::error::{Class, Outcome, fail};
use engine::flavor::Kind;
use engine::{How, Scope};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    unused_variables,
    unreachable_pub,
    reason = "made by the build script"
)]
mod functions {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
}

mod fault;
mod fortran;
mod removed;

/// Runs a call; turns a panic into an error.
fn guard(name: &str, call: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| fail(Class::Intern, format!("{name} panicked")))
}

/// Converts an error code; the engine's codes are this ABI's.
const fn code_out(code: c_int) -> c_int {
    code
}

#[cold]
fn null(what: &str, scope: Scope, name: &str) -> c_int {
    engine::finish(engine::calls::null(what, scope), scope, name)
}

#[cold]
fn missing(name: &str, scope: Scope) -> c_int {
    engine::finish(engine::calls::missing(name, scope), scope, name)
}

/// A constant address with which programs compare.
#[repr(transparent)]
#[derive(Debug)]
pub struct Mark(*const c_int);

// SAFETY: the address is never written to, and only compared.
unsafe impl Sync for Mark {}

static NO_WEIGHTS: c_int = 0;
static EMPTY_WEIGHTS: c_int = 0;

/// `int *const MPI_UNWEIGHTED`.
#[unsafe(no_mangle)]
pub static MPI_UNWEIGHTED: Mark = Mark(&raw const NO_WEIGHTS);
/// `int *const MPI_WEIGHTS_EMPTY`.
#[unsafe(no_mangle)]
pub static MPI_WEIGHTS_EMPTY: Mark = Mark(&raw const EMPTY_WEIGHTS);

/// `MPI_T_PVAR_ALL_HANDLES`.
#[unsafe(no_mangle)]
pub static MPI_T_PVAR_ALL_HANDLES: Mark = Mark(std::ptr::without_provenance(1));

/// Returns the engine's handle of a file, which is an address for programs.
const fn file_in(handle: usize) -> c_int {
    handle as u32 as c_int
}

/// Returns the program's handle of a file.
const fn file_out(handle: c_int) -> usize {
    handle as u32 as usize
}

fn edges(given: *const c_int) -> *const c_int {
    if given == MPI_UNWEIGHTED.0 {
        UNWEIGHTED
    } else if given == MPI_WEIGHTS_EMPTY.0 {
        WEIGHTS_EMPTY
    } else {
        given
    }
}

/// Copies the value of an attribute: `MPI_COMM_DUP_FN` and its counterparts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPIR_Dup_fn(
    _: usize,
    _: c_int,
    _: *mut c_void,
    value: *mut c_void,
    copy: *mut *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: by the standard, the arguments point to an address and a number.
    unsafe {
        *copy = value;
        *flag = 1;
    }
    0
}

macro_rules! clocks {
    ($($name:ident = $of:expr;)+) => {$(
        /// See the standard.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> f64 {
            $of
        }
    )+};
}

clocks! {
    MPI_Wtime = engine::wtime();
    PMPI_Wtime = engine::wtime();
    MPI_Wtick = engine::wtick();
    PMPI_Wtick = engine::wtick();
}

macro_rules! addresses {
    ($($name:ident($to:ident) = $of:ident;)+) => {$(
        /// See the standard.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(base: i64, $to: i64) -> i64 {
            base.$of($to)
        }
    )+};
}

addresses! {
    MPI_Aint_add(displacement) = wrapping_add;
    PMPI_Aint_add(displacement) = wrapping_add;
    MPI_Aint_diff(other) = wrapping_sub;
    PMPI_Aint_diff(other) = wrapping_sub;
}

macro_rules! handle_numbers {
    ($($name:ident)+) => {$(
        /// Converts between a handle and its number, for Fortran or of MPI-5, which are the same.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(handle: c_int) -> c_int {
            handle
        }
    )+};
}

handle_numbers! {
    MPI_Comm_c2f MPI_Comm_f2c MPI_Comm_toint MPI_Comm_fromint
    PMPI_Comm_c2f PMPI_Comm_f2c PMPI_Comm_toint PMPI_Comm_fromint
    MPI_Errhandler_c2f MPI_Errhandler_f2c MPI_Errhandler_toint MPI_Errhandler_fromint
    PMPI_Errhandler_c2f PMPI_Errhandler_f2c PMPI_Errhandler_toint PMPI_Errhandler_fromint
    MPI_Group_c2f MPI_Group_f2c MPI_Group_toint MPI_Group_fromint
    PMPI_Group_c2f PMPI_Group_f2c PMPI_Group_toint PMPI_Group_fromint
    MPI_Info_c2f MPI_Info_f2c MPI_Info_toint MPI_Info_fromint
    PMPI_Info_c2f PMPI_Info_f2c PMPI_Info_toint PMPI_Info_fromint
    MPI_Message_c2f MPI_Message_f2c MPI_Message_toint MPI_Message_fromint
    PMPI_Message_c2f PMPI_Message_f2c PMPI_Message_toint PMPI_Message_fromint
    MPI_Op_c2f MPI_Op_f2c MPI_Op_toint MPI_Op_fromint
    PMPI_Op_c2f PMPI_Op_f2c PMPI_Op_toint PMPI_Op_fromint
    MPI_Request_c2f MPI_Request_f2c MPI_Request_toint MPI_Request_fromint
    PMPI_Request_c2f PMPI_Request_f2c PMPI_Request_toint PMPI_Request_fromint
    MPI_Session_c2f MPI_Session_f2c MPI_Session_toint MPI_Session_fromint
    PMPI_Session_c2f PMPI_Session_f2c PMPI_Session_toint PMPI_Session_fromint
    MPI_Type_c2f MPI_Type_f2c MPI_Type_toint MPI_Type_fromint
    PMPI_Type_c2f PMPI_Type_f2c PMPI_Type_toint PMPI_Type_fromint
    MPI_Win_c2f MPI_Win_f2c MPI_Win_toint MPI_Win_fromint
    PMPI_Win_c2f PMPI_Win_f2c PMPI_Win_toint PMPI_Win_fromint
}

macro_rules! file_numbers {
    ($($out:ident $back:ident;)+) => {$(
        /// Returns the number of a file, for Fortran or of MPI-5.
        #[unsafe(no_mangle)]
        pub extern "C" fn $out(handle: usize) -> c_int {
            file_in(handle)
        }

        /// Returns the file of a number.
        #[unsafe(no_mangle)]
        pub extern "C" fn $back(number: c_int) -> usize {
            file_out(number)
        }
    )+};
}

file_numbers! {
    MPI_File_c2f MPI_File_f2c;
    PMPI_File_c2f PMPI_File_f2c;
    MPI_File_toint MPI_File_fromint;
    PMPI_File_toint PMPI_File_fromint;
}

macro_rules! abi_versions {
    ($($name:ident)+) => {$(
        /// Reports that this library does not have the standard's ABI, which `libmpi_abi.so.1` has.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(major: *mut c_int, minor: *mut c_int) -> c_int {
            if major.is_null() || minor.is_null() {
                return null("a version", Scope::Process, "MPI_Abi_get_version");
            }
            // SAFETY: the caller's promise: places for numbers.
            unsafe {
                *major = -1;
                *minor = -1;
            }
            0
        }
    )+};
}

abi_versions! { MPI_Abi_get_version PMPI_Abi_get_version }
