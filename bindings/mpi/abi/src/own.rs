//! Functions of this ABI that the engine does not have: the ABI's version, conversion of handles to numbers, and the clocks.

use std::ffi::{c_int, c_void};

use engine::constants::Status;
use engine::flavor::{self, Flavor, Kind};

use crate::handles::*;
use crate::numbers::{err_in, err_out, flavor_out, model_out, rank_out};
use crate::statuses::{AbiStatus, from_abi, to_abi};

fn to_user(kind: Kind, handle: c_int) -> usize {
    match kind {
        Kind::Comm => comm_out(handle),
        Kind::Type => type_out(handle),
        Kind::Win => win_out(handle),
        Kind::Session => session_out(handle),
        Kind::File => file_out(handle),
    }
}

fn from_user(kind: Kind, handle: usize) -> c_int {
    match kind {
        Kind::Comm => comm_in(handle),
        Kind::Type => type_in(handle),
        Kind::Win => win_in(handle),
        Kind::Session => session_in(handle),
        Kind::File => file_in(handle),
    }
}

fn status_out(status: &Status, place: &mut [c_int; 8]) {
    // SAFETY: a status is eight numbers.
    *place = unsafe { std::mem::transmute::<AbiStatus, [c_int; 8]>(to_abi(status)) };
}

fn status_in(place: &[c_int; 8], status: &mut Status) {
    // SAFETY: as above; every bit pattern is a valid number.
    *status = from_abi(&unsafe { std::mem::transmute::<[c_int; 8], AbiStatus>(*place) });
}

/// Tells the engine which ABI this is.
#[inline]
pub(crate) fn prepare() {
    flavor::set(Flavor {
        to_user,
        from_user,
        code_out: err_out,
        code_in: err_in,
        status: Some((status_out, status_in)),
        automatic: AUTOMATIC,
        rank_out,
        window_out: |flavor, model| (flavor_out(flavor), model_out(model)),
    });
}

/// Makes functions that return the lengths of arrays of types: the number of ranks, or of neighbours.
macro_rules! lengths {
    ($($name:ident, $of:expr;)+) => {$(
        pub(crate) fn $name(comm: usize) -> usize {
            let of: fn(c_int) -> usize = $of;
            of(comm_in(comm))
        }
    )+};
}

lengths! {
    peers, engine::size_of_comm;
    in_peers, |comm| engine::degrees(comm).0;
    out_peers, |comm| engine::degrees(comm).1;
}

macro_rules! both_names {
    ($($name:ident, $profiled:ident($($argument:ident: $of:ty),*) -> $result:ty = $body:expr;)+) => {$(
        /// See the standard.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of),*) -> $result {
            $body
        }

        /// See the standard.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $profiled($($argument: $of),*) -> $result {
            $body
        }
    )+};
}

unsafe fn put_version(major: *mut c_int, minor: *mut c_int) -> c_int {
    if major.is_null() || minor.is_null() {
        return err_out(engine::error::Class::Arg as c_int);
    }
    // SAFETY: places for numbers.
    unsafe {
        *major = 1;
        *minor = 0;
    }
    0
}

both_names! {
    MPI_Wtime, PMPI_Wtime() -> f64 = engine::wtime();
    MPI_Wtick, PMPI_Wtick() -> f64 = engine::wtick();
    MPI_Aint_add, PMPI_Aint_add(base: i64, displacement: i64) -> i64 = base.wrapping_add(displacement);
    MPI_Aint_diff, PMPI_Aint_diff(address: i64, other: i64) -> i64 = address.wrapping_sub(other);
    // SAFETY: the caller's promise.
    MPI_Abi_get_version, PMPI_Abi_get_version(major: *mut c_int, minor: *mut c_int) -> c_int = unsafe { put_version(major, minor) };
}

/// Makes the conversions of handles to numbers: predefined handles have the standard's number, all others the engine's.
macro_rules! handle_numbers {
    ($($toint:ident, $profiled_toint:ident, $fromint:ident, $profiled_fromint:ident;)+) => {
        both_names! {$(
            $toint, $profiled_toint(handle: usize) -> c_int = handle as u32 as c_int;
            $fromint, $profiled_fromint(number: c_int) -> usize = number as u32 as usize;
        )+}
    };
}

handle_numbers! {
    MPI_Comm_toint, PMPI_Comm_toint, MPI_Comm_fromint, PMPI_Comm_fromint;
    MPI_Errhandler_toint, PMPI_Errhandler_toint, MPI_Errhandler_fromint, PMPI_Errhandler_fromint;
    MPI_File_toint, PMPI_File_toint, MPI_File_fromint, PMPI_File_fromint;
    MPI_Group_toint, PMPI_Group_toint, MPI_Group_fromint, PMPI_Group_fromint;
    MPI_Info_toint, PMPI_Info_toint, MPI_Info_fromint, PMPI_Info_fromint;
    MPI_Message_toint, PMPI_Message_toint, MPI_Message_fromint, PMPI_Message_fromint;
    MPI_Op_toint, PMPI_Op_toint, MPI_Op_fromint, PMPI_Op_fromint;
    MPI_Request_toint, PMPI_Request_toint, MPI_Request_fromint, PMPI_Request_fromint;
    MPI_Session_toint, PMPI_Session_toint, MPI_Session_fromint, PMPI_Session_fromint;
    MPI_Type_toint, PMPI_Type_toint, MPI_Type_fromint, PMPI_Type_fromint;
    MPI_Win_toint, PMPI_Win_toint, MPI_Win_fromint, PMPI_Win_fromint;
}

/// Returns the function that copies attributes; the number 1 stands for the library's own function.
pub(crate) fn copy_function(given: *const c_void) -> *const c_void {
    if given.addr() == 1 { copy_value as *const c_void } else { given }
}

/// Copies the value of an attribute, as `MPI_COMM_DUP_FN` and its counterparts do, which are the number 1 in this ABI.
unsafe extern "C" fn copy_value(
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
