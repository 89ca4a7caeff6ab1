//! The engine's questions to the front end's ABI: handles and codes as callbacks see them.

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

/// Makes a status of the program's ABI.
pub type StatusOut = fn(&Status, &mut [c_int; 8]);
/// Takes one back.
pub type StatusIn = fn(&[c_int; 8], &mut Status);

/// An ABI.
#[derive(Clone, Copy, Debug)]
pub struct Flavor {
    /// A handle of the engine's as the program sees it. Of an ABI with narrower handles, the lower half counts.
    pub to_user: fn(Kind, c_int) -> usize,
    /// A handle of the program's.
    pub from_user: fn(Kind, usize) -> c_int,
    /// An error code of the engine's as the program sees it.
    pub code_out: fn(c_int) -> c_int,
    /// An error code of the program's.
    pub code_in: fn(c_int) -> c_int,
    /// Status of the engine to one of the program's, and back, where they differ.
    pub status: Option<(StatusOut, StatusIn)>,
    /// `MPI_BUFFER_AUTOMATIC` as the program sees it.
    pub automatic: usize,
}

static FLAVOR: OnceLock<Flavor> = OnceLock::new();

/// Says which ABI the program was linked with. Once, before anything else.
pub fn set(flavor: Flavor) {
    let _ = FLAVOR.set(flavor);
}

/// A handle as the program sees it.
#[must_use]
pub fn to_user(kind: Kind, handle: c_int) -> usize {
    FLAVOR.get().map_or(handle as u32 as usize, |flavor| (flavor.to_user)(kind, handle))
}

/// A code of the program's.
#[must_use]
pub fn code_in(code: c_int) -> c_int {
    FLAVOR.get().map_or(code, |flavor| (flavor.code_in)(code))
}

/// A code as the program sees it.
#[must_use]
pub fn code_out(code: c_int) -> c_int {
    FLAVOR.get().map_or(code, |flavor| (flavor.code_out)(code))
}

/// `MPI_BUFFER_AUTOMATIC` as the program sees it.
#[must_use]
pub fn automatic() -> usize {
    FLAVOR.get().map_or(BUFFER_AUTOMATIC as usize, |flavor| flavor.automatic)
}

/// Calls with a place for a status of the program's ABI, and takes what was put there.
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
