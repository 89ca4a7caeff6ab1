//! Requests: handles of operations in progress.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use kolo_rs::{RawCall, Work};

use crate::abi::{ANY_SOURCE, UNSET};
use crate::comm::Comm;
use crate::guard::{LastError, Outcome, guard, place, take, usage};

/// Target of a `koloRequest_t`.
#[derive(Debug)]
pub(crate) struct Request {
    work: Progress,
    last_error: Arc<LastError>,
}

/// The operation in progress.
#[derive(Debug)]
pub(crate) enum Progress {
    /// A collective, a send or a group of messages.
    Plain(Work<()>),
    /// A receive, whose result is its source.
    Recv(Work<u32>),
}

impl Progress {
    fn is_done(&self) -> bool {
        match self {
            Self::Plain(work) => work.is_done(),
            Self::Recv(work) => work.is_done(),
        }
    }

    /// Waits; returns the source of a receive.
    fn wait(self, limit: Option<Duration>) -> Outcome<Option<u32>> {
        Ok(match (self, limit) {
            (Self::Plain(work), None) => work.wait().map(|()| None),
            (Self::Plain(work), Some(limit)) => work.wait_within(limit).map(|()| None),
            (Self::Recv(work), None) => work.wait().map(Some),
            (Self::Recv(work), Some(limit)) => work.wait_within(limit).map(Some),
        }?)
    }
}

/// Starts an operation and writes its handle.
///
/// # Safety
/// `request` is null or valid.
pub(crate) unsafe fn start(
    comm: &Comm,
    request: *mut *mut Request,
    begin: impl FnOnce() -> Outcome<Progress>,
) -> Outcome {
    // SAFETY: the caller's promise.
    let request = unsafe { place("request", request) }?;
    request.write(std::ptr::null_mut());
    let work = begin()?;
    request.write(Box::into_raw(Box::new(Request { work, last_error: Arc::clone(&comm.last_error) })));
    Ok(())
}

/// Starts a collective and writes its handle.
///
/// # Safety
/// The buffers of the call stay as `Communicator::start_raw` demands, as the header asks of C; `request` is null or valid.
pub(crate) unsafe fn start_call(comm: &Comm, call: &RawCall, request: *mut *mut Request) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { start(comm, request, || Ok(Progress::Plain(comm.communicator.start_raw(call)?))) }
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
    // SAFETY: the header's promise.
    unsafe { wait("koloWait", request, timeout_ms, |_| Ok(())) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloWaitSource(
    request: *mut *mut Request,
    timeout_ms: i64,
    source: *mut c_int,
) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        wait("koloWaitSource", request, timeout_ms, |from| {
            let from = from.and_then(|from| c_int::try_from(from).ok());
            place("source", source)?.write(from.unwrap_or(ANY_SOURCE));
            Ok(())
        })
    }
}

/// # Safety
/// `request` is null or points to null or to a request that nothing else uses.
unsafe fn wait(
    function: &str,
    request: *mut *mut Request,
    timeout_ms: i64,
    tell: impl FnOnce(Option<u32>) -> Outcome,
) -> c_int {
    let mut last_error = None;
    // SAFETY: the caller's promise.
    let taken = unsafe { take("request", request) };
    if let Ok(Some(request)) = &taken {
        last_error = Some(Arc::clone(&request.last_error));
    }
    guard(function, last_error.as_deref(), || {
        let Some(request) = taken? else { return Ok(()) };
        if timeout_ms == UNSET {
            return tell(request.work.wait(None)?);
        }
        let limit = u64::try_from(timeout_ms).map(Duration::from_millis);
        // The handle is gone, so a call with a wrong time-out still waits: otherwise C could not know when its buffers are free.
        let Ok(limit) = limit else {
            request.work.wait(None)?;
            return Err(usage(format!("timeout_ms is {timeout_ms}; use KOLO_UNSET, or 0 or more")));
        };
        tell(request.work.wait(Some(limit))?)
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
