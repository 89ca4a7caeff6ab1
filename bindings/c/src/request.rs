//! Handles of collectives in progress.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use kolo_rs::{RawCall, Work};

use crate::abi::UNSET;
use crate::comm::Comm;
use crate::guard::{LastError, Outcome, guard, place, take, usage};

/// What a `koloRequest_t` points to.
#[derive(Debug)]
pub(crate) struct Request {
    work: Work<()>,
    last_error: Arc<LastError>,
}

/// Starts a call and gives out its handle.
///
/// # Safety
/// The buffers of the call stay as `Communicator::start_raw` asks, which the header asks of C; `request` is null or valid.
pub(crate) unsafe fn start(comm: &Comm, call: &RawCall, request: *mut *mut Request) -> Outcome {
    // SAFETY: the caller's promise.
    let request = unsafe { place("request", request) }?;
    request.write(std::ptr::null_mut());
    // SAFETY: the caller's promise.
    let work = unsafe { comm.communicator.start_raw(call) }?;
    request.write(Box::into_raw(Box::new(Request { work, last_error: Arc::clone(&comm.last_error) })));
    Ok(())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloTest(request: *const Request, done: *mut c_int) -> c_int {
    // SAFETY: the header's promise.
    let request = unsafe { request.as_ref() };
    guard("koloTest", request.map(|request| &*request.last_error), || {
        // SAFETY: the header's promise.
        let done = unsafe { place("done", done) }?;
        let request = request.ok_or_else(|| usage("the request is NULL; was it already waited for?"))?;
        done.write(c_int::from(request.work.is_done()));
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloWait(request: *mut *mut Request, timeout_ms: i64) -> c_int {
    let mut last_error = None;
    // SAFETY: the header's promise.
    let taken = unsafe { take("request", request) };
    if let Ok(Some(request)) = &taken {
        last_error = Some(Arc::clone(&request.last_error));
    }
    guard("koloWait", last_error.as_deref(), || {
        let Some(request) = taken? else { return Ok(()) };
        if timeout_ms == UNSET {
            return Ok(request.work.wait()?);
        }
        let limit = u64::try_from(timeout_ms).map(Duration::from_millis);
        // A wrong time-out must not leave C without the handle and with buffers in use.
        let Ok(limit) = limit else {
            request.work.wait()?;
            return Err(usage(format!("timeout_ms is {timeout_ms}; use KOLO_UNSET or 0 and more")));
        };
        Ok(request.work.wait_within(limit)?)
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloRequestFree(request: *mut *mut Request) -> c_int {
    guard("koloRequestFree", None, || {
        // SAFETY: the header's promise.
        drop(unsafe { take("request", request) }?);
        Ok(())
    })
}
