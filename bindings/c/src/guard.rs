//! The guard around every entry: it defers cancellation of the thread, catches panics, turns errors into codes, and keeps their messages.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard};

use kolo_rs::error::codes;
use kolo_rs::internal::Unpoisoned;
use kolo_rs::{AbortReason, Error};

use crate::abi::result;
use crate::cancel::Uncancelled;
use crate::comm::Comm;

/// An error on its way to C.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: c_int,
    /// The stable code at the end of the message.
    name: &'static str,
    message: String,
    /// The rank that the error is about.
    peer: Option<u32>,
}

impl Failure {
    /// Adds to the message which of several transfers has failed.
    pub(crate) fn in_part(mut self, number: usize) -> Self {
        self.message = format!("transfer {number}: {}", self.message);
        self
    }

    /// Replaces the `koloResult_t`.
    pub(crate) const fn with_code(mut self, code: c_int) -> Self {
        self.code = code;
        self
    }

    /// Returns the `koloResult_t`.
    pub(crate) const fn code(&self) -> c_int {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Makes the failure of a call that makes no sense.
pub(crate) fn usage(message: impl Into<String>) -> Failure {
    let message = format!("{} [{}]", message.into(), codes::OF_USAGE);
    Failure { code: result::USAGE, name: codes::OF_USAGE, message, peer: None }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, peer) = match &error {
            Error::Usage { .. } => (result::USAGE, None),
            Error::Configuration { .. } => (result::CONFIGURATION, None),
            Error::Join { .. } => (result::JOIN, None),
            Error::Mismatch { peer, .. } => (result::MISMATCH, Some(*peer)),
            Error::PeerLost { peer, .. } => (result::PEER_LOST, Some(*peer)),
            Error::Timeout { waiting_for, .. } => {
                (result::TIMEOUT, waiting_for.first().map(|awaited| awaited.rank))
            }
            Error::Aborted { by, kind, .. } => {
                let code = match kind {
                    AbortReason::Revoked => result::REVOKED,
                    AbortReason::Fenced => result::FENCED,
                    AbortReason::Minority => result::MINORITY,
                    _ => result::ABORTED,
                };
                (code, Some(*by))
            }
            Error::Unsupported { .. } => (result::UNSUPPORTED, None),
            Error::Transport { .. } => (result::TRANSPORT, None),
            Error::System { .. } => (result::SYSTEM, None),
            _ => (result::INTERNAL, None),
        };
        Self { code, name: error.code(), message: error.to_string(), peer }
    }
}

/// Keeps the last error of a communicator, and counts its errors.
#[derive(Debug, Default)]
pub(crate) struct LastError(Mutex<(u64, Option<Failure>)>);

impl LastError {
    fn lock(&self) -> MutexGuard<'_, (u64, Option<Failure>)> {
        self.0.lock().unpoisoned()
    }

    pub(crate) fn set(&self, failure: &Failure) {
        let (count, last) = &mut *self.lock();
        *count += 1;
        *last = Some(failure.clone());
    }

    /// Returns the number of errors so far.
    pub(crate) fn count(&self) -> u64 {
        self.lock().0
    }

    pub(crate) fn copy(&self) -> Option<Failure> {
        self.lock().1.clone()
    }

    /// Returns the last error, if it is not among the first `count`.
    pub(crate) fn copy_after(&self, count: u64) -> Option<Failure> {
        let (now, last) = &*self.lock();
        last.clone().filter(|_| *now > count)
    }
}

thread_local! {
    /// The last error of this thread.
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
    /// The text that `koloGetLastError` last returned to this thread.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Runs the body of an entry. Stores its error for the thread and, if there is one, for the communicator.
pub(crate) fn guard(function: &str, kept_by: Option<&LastError>, body: impl FnOnce() -> Outcome) -> c_int {
    let _whole = Uncancelled::new();
    guard_quick(function, kept_by, body)
}

/// As [`guard`], for a body with cancellation points only inside the runtime, which defers cancellation there by itself.
#[inline]
fn guard_quick(function: &str, kept_by: Option<&LastError>, body: impl FnOnce() -> Outcome) -> c_int {
    // State that a panic may leave inconsistent is behind the runtime's own locks, which treat poison as an error.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let message = format!("a bug in Kolo, please report it: {text} [{}]", codes::OF_DEFECT);
        Err(Failure { code: result::INTERNAL, name: codes::OF_DEFECT, message, peer: None })
    });
    let Err(mut failure) = outcome else { return result::SUCCESS };
    failure.message = format!("{function}: {}", failure.message);
    if let Some(kept_by) = kept_by {
        kept_by.set(&failure);
    }
    let code = failure.code;
    // A thread that is ending may have lost its thread-local storage; the code must then suffice.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(failure));
    code
}

/// Runs the body of an entry that works on a communicator.
///
/// # Safety
/// `comm` is null or a live communicator.
pub(crate) unsafe fn with_comm(
    function: &str,
    comm: *const Comm,
    body: impl FnOnce(&Comm) -> Outcome,
) -> c_int {
    // SAFETY: the caller's promise.
    let comm = unsafe { comm.as_ref() };
    guard(function, comm.map(|comm| &*comm.last_error), || body(comm.ok_or_else(no_communicator)?))
}

/// As [`with_comm`], for one blocking collective. Many such calls take less time than deferring cancellation would.
///
/// # Safety
/// As [`with_comm`].
pub(crate) unsafe fn with_comm_quick(
    function: &str,
    comm: *const Comm,
    body: impl FnOnce(&Comm) -> Outcome,
) -> c_int {
    // SAFETY: the caller's promise.
    let comm = unsafe { comm.as_ref() };
    guard_quick(function, comm.map(|comm| &*comm.last_error), || body(comm.ok_or_else(no_communicator)?))
}

#[cold]
fn no_communicator() -> Failure {
    usage("the communicator is NULL; was it made, and not destroyed?")
}

/// Returns the memory for a result, unless the pointer is null. C need not have initialized it.
///
/// # Safety
/// `place` is null or valid for writing, and nothing else uses it during the call.
pub(crate) unsafe fn place<'a, T>(what: &str, place: *mut T) -> Outcome<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller's promise; `MaybeUninit` may be uninitialized.
    unsafe { place.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| usage(format!("{what} is NULL")))
}

/// Takes a handle out of C's variable, which becomes null; returns `None` if it was null already.
///
/// # Safety
/// `variable` is null or points to null or to a handle made by `Box::into_raw`, which nothing else uses.
pub(crate) unsafe fn take<T>(what: &str, variable: *mut *mut T) -> Outcome<Option<Box<T>>> {
    // SAFETY: the caller's promise: the variable is initialized.
    let variable = unsafe { variable.as_mut() }.ok_or_else(|| usage(format!("{what} is NULL")))?;
    let handle = std::mem::replace(variable, std::ptr::null_mut());
    // SAFETY: the handle is not null, so it is a box; C's variable no longer points to it.
    Ok((!handle.is_null()).then(|| unsafe { Box::from_raw(handle) }))
}

/// # Safety
/// As [`with_comm`].
unsafe fn last(comm: *const Comm) -> Option<Failure> {
    // SAFETY: the caller's promise.
    match unsafe { comm.as_ref() } {
        Some(comm) => comm.last_error.copy(),
        None => LAST.try_with(|last| last.borrow().clone()).ok().flatten(),
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGetLastError(comm: *const Comm) -> *const c_char {
    let _whole = Uncancelled::new();
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the header's promise.
        let text = unsafe { last(comm) }.map(|failure| failure.message).unwrap_or_default();
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        let given = GIVEN.try_with(|given| {
            *given.borrow_mut() = text;
            given.borrow().as_ptr()
        });
        given.unwrap_or(c"".as_ptr())
    }))
    .unwrap_or(c"".as_ptr())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGetLastErrorPeer(comm: *const Comm) -> c_int {
    let _whole = Uncancelled::new();
    // SAFETY: the header's promise.
    catch_unwind(AssertUnwindSafe(|| unsafe { last(comm) }.and_then(|failure| failure.peer)))
        .ok()
        .flatten()
        .and_then(|peer| c_int::try_from(peer).ok())
        .unwrap_or(-1)
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGetLastErrorCode(comm: *const Comm) -> *const c_char {
    /// All codes as C strings.
    static CODES: LazyLock<Vec<CString>> =
        LazyLock::new(|| codes::ALL.iter().filter_map(|row| CString::new(row.code).ok()).collect());
    let _whole = Uncancelled::new();
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the header's promise.
        let name = unsafe { last(comm) }.map(|failure| failure.name)?;
        CODES.iter().find(|code| code.as_bytes() == name.as_bytes()).map(|code| code.as_ptr())
    }))
    .ok()
    .flatten()
    .unwrap_or(c"".as_ptr())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
extern "C" fn koloGetErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        result::SUCCESS => c"success",
        result::USAGE => c"invalid argument or use; see koloGetLastError",
        result::CONFIGURATION => c"a setting is missing or wrong",
        result::JOIN => c"the ranks could not join",
        result::MISMATCH => c"the ranks made different calls",
        result::PEER_LOST => c"peer lost",
        result::TIMEOUT => c"timed out",
        result::ABORTED => c"aborted",
        result::UNSUPPORTED => c"not supported",
        result::TRANSPORT => c"a transport failed",
        result::SYSTEM => c"the operating system reported an error",
        result::INTERNAL => c"a bug in Kolo",
        result::REVOKED => c"revoked",
        result::FENCED => c"the others have gone on without this rank",
        result::MINORITY => c"too few ranks answer",
        _ => c"not a koloResult_t",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: null is allowed, and the text is this thread's until the next call.
        let text = unsafe { CStr::from_ptr(koloGetLastError(std::ptr::null())) };
        text.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_result() {
        let kept = LastError::default();
        let code = guard("koloTest", Some(&kept), || panic!("the {} is on fire", "printer"));
        assert_eq!(code, result::INTERNAL);
        assert!(message().contains("koloTest: a bug in Kolo, please report it: the printer is on fire"));
        assert_eq!(kept.copy().unwrap().message, message());
    }

    #[test]
    fn success_leaves_the_last_message_alone() {
        assert_eq!(message(), "");
        assert_eq!(guard("koloTest", None, || Err(usage("no\0pe"))), result::USAGE);
        assert_eq!(guard("koloTest", None, || Ok(())), result::SUCCESS);
        assert_eq!(message(), "koloTest: no pe [K0101]");
        // SAFETY: as above; codes are never freed.
        let code = unsafe { CStr::from_ptr(koloGetLastErrorCode(std::ptr::null())) };
        assert_eq!(code, c"K0101");
    }
}
