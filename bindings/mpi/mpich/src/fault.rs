//! Fault tolerance, by MPICH's names `MPIX_*`. The MPI-5 standard has no such functions, so the library with its ABI has none either.

use std::ffi::c_int;

use engine::Scope;

macro_rules! calls {
    ($($name:ident, $profiled:ident = $engine:ident($($argument:ident $(or $null:ident)?)?);)+) => {$(
        /// See `docs/mpi.md`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(comm: c_int $(, $argument: *mut c_int)?) -> c_int {
            $(if $argument.is_null() {
                return super::null(stringify!($argument), Scope::Comm(comm), stringify!($name));
            })?
            // SAFETY: the caller's promise: the result is valid for writing.
            let outcome = super::guard(stringify!($name), || unsafe { engine::calls::$engine(comm $(, $argument)?) });
            $($(if outcome.is_err() {
                // SAFETY: as above.
                unsafe { *$argument = engine::constants::$null };
            })?)?
            engine::finish(outcome, Scope::Comm(comm), stringify!($name))
        }

        /// The same function under its profiling name.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $profiled(comm: c_int $(, $argument: *mut c_int)?) -> c_int {
            // SAFETY: as above.
            unsafe { $name(comm $(, $argument)?) }
        }
    )+};
}

calls! {
    MPIX_Comm_revoke, PMPIX_Comm_revoke = comm_revoke();
    MPIX_Comm_is_revoked, PMPIX_Comm_is_revoked = comm_is_revoked(flag);
    MPIX_Comm_shrink, PMPIX_Comm_shrink = comm_shrink(newcomm or COMM_NULL);
    MPIX_Comm_agree, PMPIX_Comm_agree = comm_agree(flag);
    MPIX_Comm_failure_ack, PMPIX_Comm_failure_ack = comm_failure_ack();
    MPIX_Comm_failure_get_acked, PMPIX_Comm_failure_get_acked = comm_failure_get_acked(group or GROUP_NULL);
    MPIX_Comm_get_failed, PMPIX_Comm_get_failed = comm_get_failed(group or GROUP_NULL);
}
