//! Functions that MPI-3 removed, for old programs that still call them. Each calls the function that has replaced it.

use std::ffi::{c_int, c_void};

use super::functions as now;

unsafe fn upper_bound(of: c_int, bound: *mut i64) -> c_int {
    let mut lower = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let code = now::MPI_Type_get_extent(of, &raw mut lower, bound);
        if code == 0 {
            *bound += lower;
        }
        code
    }
}

macro_rules! removed {
    ($($name:ident, $profiled:ident($($argument:ident: $of:ty),+) = $call:expr;)+) => {$(
        /// See the standard, "Removed Interfaces".
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $of),+) -> c_int {
            // SAFETY: the caller's promise, which is the same as for the replacement.
            unsafe { $call }
        }

        /// The same function under its profiling name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $profiled($($argument: $of),+) -> c_int {
            // SAFETY: as above.
            unsafe { $name($($argument),+) }
        }
    )+};
}

removed! {
    MPI_Address, PMPI_Address(location: *const c_void, address: *mut i64)
        = now::MPI_Get_address(location, address);
    MPI_Type_extent, PMPI_Type_extent(of: c_int, extent: *mut i64)
        = { let mut lower = 0; now::MPI_Type_get_extent(of, &raw mut lower, extent) };
    MPI_Type_lb, PMPI_Type_lb(of: c_int, bound: *mut i64)
        = { let mut extent = 0; now::MPI_Type_get_extent(of, bound, &raw mut extent) };
    MPI_Type_ub, PMPI_Type_ub(of: c_int, bound: *mut i64)
        = upper_bound(of, bound);
    MPI_Type_hvector, PMPI_Type_hvector(count: c_int, length: c_int, stride: i64, of: c_int, new: *mut c_int)
        = now::MPI_Type_create_hvector(count, length, stride, of, new);
    MPI_Type_hindexed, PMPI_Type_hindexed(
        count: c_int, lengths: *const c_int, displacements: *const i64, of: c_int, new: *mut c_int
    ) = now::MPI_Type_create_hindexed(count, lengths, displacements, of, new);
    MPI_Type_struct, PMPI_Type_struct(
        count: c_int, lengths: *const c_int, displacements: *const i64, types: *const c_int, new: *mut c_int
    ) = now::MPI_Type_create_struct(count, lengths, displacements, types, new);
    MPI_Errhandler_create, PMPI_Errhandler_create(function: *const c_void, handler: *mut c_int)
        = now::MPI_Comm_create_errhandler(function, handler);
    MPI_Errhandler_set, PMPI_Errhandler_set(comm: c_int, handler: c_int)
        = now::MPI_Comm_set_errhandler(comm, handler);
    MPI_Errhandler_get, PMPI_Errhandler_get(comm: c_int, handler: *mut c_int)
        = now::MPI_Comm_get_errhandler(comm, handler);
}
