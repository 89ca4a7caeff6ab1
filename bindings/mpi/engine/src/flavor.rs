//! The front end's ABI, as far as the engine needs it: the handles, codes and statuses that callbacks of the program see.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::constants::{BUFFER_AUTOMATIC, Status};

/// Kinds of objects whose handles callbacks get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Kind {
    Comm,
    Type,
    Win,
    Session,
    File,
}

/// Converts a status to the program's ABI.
pub type StatusOut = fn(&Status, &mut [c_int; 8]);
/// Converts a status from the program's ABI.
pub type StatusIn = fn(&[c_int; 8], &mut Status);

/// An ABI.
#[derive(Clone, Copy, Debug)]
pub struct Flavor {
    /// Converts a handle of the engine to the program's. In an ABI with narrower handles, only the lower half counts.
    pub to_user: fn(Kind, c_int) -> usize,
    /// Converts a handle of the program to the engine's.
    pub from_user: fn(Kind, usize) -> c_int,
    /// Converts an error code of the engine to the program's.
    pub code_out: fn(c_int) -> c_int,
    /// Converts an error code of the program to the engine's.
    pub code_in: fn(c_int) -> c_int,
    /// Converts statuses to the program's and back, if they differ.
    pub status: Option<(StatusOut, StatusIn)>,
    /// `MPI_BUFFER_AUTOMATIC` as the program sees it.
    pub automatic: usize,
    /// Converts a rank, or a number that stands for ranks, to the program's.
    pub rank_out: fn(c_int) -> c_int,
    /// Converts the values of a window's attributes `MPI_WIN_CREATE_FLAVOR` and `MPI_WIN_MODEL` to the program's.
    pub window_out: fn(c_int, c_int) -> (c_int, c_int),
}

static FLAVOR: OnceLock<Flavor> = OnceLock::new();

/// Sets the ABI with which the program was linked. The first call, before any other call of the engine, decides.
pub fn set(flavor: Flavor) {
    let _ = FLAVOR.set(flavor);
}

/// Returns a handle as the program sees it.
#[must_use]
pub fn to_user(kind: Kind, handle: c_int) -> usize {
    FLAVOR.get().map_or(handle as u32 as usize, |flavor| (flavor.to_user)(kind, handle))
}

/// Returns the engine's code of a code of the program.
#[must_use]
pub fn code_in(code: c_int) -> c_int {
    FLAVOR.get().map_or(code, |flavor| (flavor.code_in)(code))
}

/// Returns a code as the program sees it.
#[must_use]
pub fn code_out(code: c_int) -> c_int {
    FLAVOR.get().map_or(code, |flavor| (flavor.code_out)(code))
}

/// Returns `MPI_BUFFER_AUTOMATIC` as the program sees it.
#[must_use]
pub fn automatic() -> usize {
    FLAVOR.get().map_or(BUFFER_AUTOMATIC as usize, |flavor| flavor.automatic)
}

/// Returns a rank, or a number that stands for ranks, as the program sees it.
pub(crate) fn rank_out(rank: c_int) -> c_int {
    FLAVOR.get().map_or(rank, |flavor| (flavor.rank_out)(rank))
}

/// Returns the values of a window's attributes `MPI_WIN_CREATE_FLAVOR` and `MPI_WIN_MODEL` as the program sees them.
pub(crate) fn window_out(flavor: c_int, model: c_int) -> (c_int, c_int) {
    FLAVOR.get().map_or((flavor, model), |own| (own.window_out)(flavor, model))
}

/// Calls `call` with a status of the program's ABI, and converts the status back afterwards.
pub fn with_status<T>(status: &mut Status, call: impl FnOnce(*mut std::ffi::c_void) -> T) -> T {
    match FLAVOR.get().and_then(|flavor| flavor.status) {
        None => call((&raw mut *status).cast()),
        Some((out, back)) => {
            let mut place = [0; 8];
            out(status, &mut place);
            let result = call(place.as_mut_ptr().cast());
            back(&place, status);
            result
        }
    }
}
