//! Requests: operations in progress, and waiting for them.

mod many;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use kolo_transport::Unpoisoned;

pub use many::*;

use crate::args::{put, slice};
use crate::collective::schedule::Started;
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::error::{Class, Fail, Object, Outcome, fail};
use crate::flavor;
use crate::handle::{Few, Held, Table};
use crate::net::{self, Completion, Finished};
use crate::partitioned::Partitioned;
use crate::window::{self, Window};

/// The operation that a request stands for.
#[derive(Clone, Debug)]
pub(crate) enum Active {
    /// A send.
    Send(Arc<Completion>),
    /// A receive, with its context.
    Recv(Arc<Completion>, u32),
    /// A send and a receive.
    Both(Arc<Completion>, Arc<Completion>),
    /// A flush of the messages of an attached buffer.
    Flush(Arc<[Arc<Completion>]>),
    /// A collective.
    Collective(Arc<Started>),
    /// An operation that is already complete.
    Over(Status),
    /// A generalized request, whose operation is the program's.
    General(Arc<General>),
    /// A partitioned message.
    Partitioned(Arc<Partitioned>),
    /// An operation on a window.
    Window(Arc<window::Operation>, Arc<Window>),
}

/// The result of a request.
#[derive(Debug)]
struct Ended {
    status: Status,
    error: Option<Fail>,
}

type Start = Box<dyn FnMut() -> Outcome<Active> + Send>;

/// A request.
#[derive(Clone)]
pub(crate) enum Request {
    /// An operation that is started once.
    Once(Active, Held<Comm>),
    /// An operation that may be started any number of times.
    Persistent(Arc<Persistent>),
}

pub(crate) struct Persistent {
    comm: Arc<Comm>,
    inner: Mutex<Inner>,
}

struct Inner {
    active: Option<Active>,
    start: Start,
}

static REQUESTS: Table<Request> = Table::new(0xb);

/// The common request of all sends that are complete when their calls return. It is not in the table.
const SENT: c_int = 0x6c00_0001;

/// A generalized request: the program's functions, by address.
#[derive(Debug)]
pub struct General {
    query: usize,
    free: usize,
    cancel: usize,
    extra: usize,
    /// [`COMPLETE`] and [`FREED`]. The second of the two calls releases the program's state.
    ended: AtomicU8,
}

/// The program has completed the operation.
const COMPLETE: u8 = 1;
/// The program has freed the request.
const FREED: u8 = 2;

/// Makes a request of an operation.
pub(crate) fn register(active: Active, comm: impl Into<Held<Comm>>) -> c_int {
    REQUESTS.insert(Request::Once(active, comm.into()))
}

/// Makes a request of a send; returns the common request if the send is already complete.
pub(crate) fn register_send(done: Option<Arc<Completion>>, comm: &Held<Comm>) -> c_int {
    done.map_or(SENT, |done| register(Active::Send(done), comm))
}

/// Makes a persistent request.
pub(crate) fn persistent(start: impl FnMut() -> Outcome<Active> + Send + 'static, comm: &Arc<Comm>) -> c_int {
    let inner = Mutex::new(Inner { active: None, start: Box::new(start) });
    REQUESTS.insert(Request::Persistent(Arc::new(Persistent { comm: Arc::clone(comm), inner })))
}

fn found(handle: c_int, request: Option<Request>) -> Outcome<Request> {
    match request {
        Some(request) => Ok(request),
        None if handle == SENT => Ok(Request::Once(Active::Over(Status::EMPTY), comm::own()?)),
        None => fail(Class::Request, format!("{handle:#x} is not a request")),
    }
}

fn lookup(handle: c_int) -> Outcome<Request> {
    crate::world::check_running()?;
    found(handle, REQUESTS.get(handle))
}

/// Returns the request of a handle; `None` for the null request.
fn given(handle: c_int) -> Outcome<Option<Request>> {
    if handle == REQUEST_NULL { Ok(None) } else { lookup(handle).map(Some) }
}

/// Returns the requests of several handles.
fn all_given(handles: &[c_int]) -> Outcome<Few<Option<Request>>> {
    crate::world::check_running()?;
    let each = |handle, request| {
        if handle == REQUEST_NULL { Ok(None) } else { found(handle, request).map(Some) }
    };
    REQUESTS.get_all(handles, each)
}

/// Returns the status of a receive.
pub(crate) fn received(finished: &Finished, comm: &Comm) -> Status {
    let mut status = Status::EMPTY;
    if finished.cancelled {
        status.set_cancelled(true);
    } else if finished.source == u32::MAX {
        status.source = PROC_NULL;
    } else {
        (status.source, status.tag) = (comm.rank_of(finished.source) as c_int, finished.tag);
        status.set_bytes(finished.bytes as i64);
    }
    status
}

impl Request {
    /// Calls `look` with the active operation, if any, and the communicator.
    fn with<R>(&self, look: impl FnOnce(Option<&Active>, &Comm) -> R) -> R {
        match self {
            Self::Once(active, comm) => look(Some(active), comm),
            Self::Persistent(this) => look(this.inner().active.as_ref(), &this.comm),
        }
    }

    fn active(&self) -> Option<Active> {
        self.with(|active, _| active.cloned())
    }

    fn is_active(&self) -> bool {
        self.with(|active, _| active.is_some())
    }

    /// Returns whether the request is complete or inactive.
    fn is_over(&self) -> bool {
        self.with(|active, _| active.is_none_or(Active::is_over))
    }

    /// Returns the result if the request is complete; for an inactive one, an empty result.
    fn ended(&self) -> Option<Ended> {
        let mut ended = match self {
            Self::Once(active, comm) => active.ended(comm)?,
            // Called without the lock, since it may call a function of the program.
            Self::Persistent(this) => match self.active() {
                Some(active) => active.ended(&this.comm)?,
                None => return Some(Ended { status: Status::EMPTY, error: None }),
            },
        };
        ended.error = ended.error.map(|error| self.blame(error));
        Some(ended)
    }

    /// Makes a failure go to the error handler of the object on which the request was made. Generalized requests, and sends that were
    /// complete at once, have none.
    fn blame(&self, failure: Fail) -> Fail {
        match self {
            Self::Once(Active::General(_) | Active::Over(_), _) => failure,
            Self::Once(Active::Window(_, window), _) => failure.on(Object::Win(Arc::clone(window))),
            Self::Once(_, comm) => comm::on(comm, failure),
            Self::Persistent(this) => comm::on(&this.comm, failure),
        }
    }

    fn start(&self) -> Outcome {
        let Self::Persistent(request) = self else {
            return fail(Class::Request, "the request is not persistent");
        };
        let mut inner = request.inner();
        if inner.active.is_some() {
            return fail(Class::Request, "the request is already active");
        }
        let active = (inner.start)()?;
        inner.active = Some(active);
        Ok(())
    }

    fn cancel(&self) -> Outcome {
        match self.active() {
            Some(Active::Recv(done, context)) => {
                net::net()?.cancel_recv(context, &done);
                Ok(())
            }
            Some(Active::Send(done)) => {
                net::net()?.cancel_send(&done);
                Ok(())
            }
            Some(Active::General(general)) => general.cancelled(),
            Some(Active::Collective(_) | Active::Partitioned(_) | Active::Window(..)) => fail(
                Class::Request,
                "only messages and generalized requests can be cancelled, not this operation",
            ),
            // All other operations go on, which the standard permits.
            _ => Ok(()),
        }
    }

    /// Fails if the request cannot be freed now.
    fn check_free(&self) -> Outcome {
        match self.active() {
            Some(Active::Partitioned(partitioned)) if !partitioned.is_over() => fail(
                Class::Request,
                "a partitioned message cannot be freed while it is under way: wait for it first",
            ),
            _ => Ok(()),
        }
    }
}

impl Persistent {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unpoisoned()
    }
}

impl Active {
    fn is_over(&self) -> bool {
        match self {
            Self::Send(done) | Self::Recv(done, _) => done.is_done(),
            Self::Both(one, other) => one.is_done() && other.is_done(),
            Self::Flush(sends) => sends.iter().all(|done| done.is_done()),
            Self::Collective(started) => started.outcome().is_some(),
            Self::Over(_) => true,
            Self::General(general) => general.is_complete(),
            Self::Partitioned(partitioned) => partitioned.is_over(),
            Self::Window(operation, _) => operation.is_over(),
        }
    }

    /// Gives the operation up, since a wait for it has failed, and adds its messages to those that the caller must give up.
    fn give_up(&self, why: &Fail, messages: &mut Vec<Arc<Completion>>) {
        match self {
            Self::Send(done) | Self::Recv(done, _) => messages.push(Arc::clone(done)),
            Self::Both(send, recv) => messages.extend([send, recv].map(Arc::clone)),
            Self::Flush(sends) => messages.extend(sends.iter().map(Arc::clone)),
            Self::Collective(started) => messages.extend(started.give_up(why)),
            Self::Partitioned(partitioned) => messages.extend(partitioned.give_up(why)),
            Self::Window(operation, _) => operation.give_up(why),
            Self::Over(_) | Self::General(_) => {}
        }
    }

    fn ended(&self, comm: &Comm) -> Option<Ended> {
        let of = |finished: &Finished, status| Ended { status, error: finished.error.clone() };
        Some(match self {
            Self::Send(done) => {
                let finished = done.get()?;
                let mut status = Status::EMPTY;
                status.set_cancelled(finished.cancelled);
                of(finished, status)
            }
            Self::Recv(done, _) => {
                let finished = done.get()?;
                of(finished, received(finished, comm))
            }
            Self::Both(send, recv) => {
                let (send, recv) = (send.get()?, recv.get()?);
                let error = recv.error.clone().or_else(|| send.error.clone());
                Ended { status: received(recv, comm), error }
            }
            Self::Flush(sends) => {
                let ended: Option<Vec<_>> = sends.iter().map(|done| done.get()).collect();
                Ended { status: Status::EMPTY, error: ended?.into_iter().find_map(|send| send.error.clone()) }
            }
            Self::Collective(started) => Ended { status: Status::EMPTY, error: started.outcome()?.err() },
            Self::Over(status) => Ended { status: *status, error: None },
            Self::General(general) => {
                if !general.is_complete() {
                    return None;
                }
                general.query()
            }
            Self::Partitioned(partitioned) => {
                let (status, error) = partitioned.ended(comm)?;
                Ended { status, error }
            }
            Self::Window(operation, _) => {
                if !operation.is_over() {
                    return None;
                }
                Ended { status: Status::EMPTY, error: operation.error() }
            }
        })
    }
}

impl General {
    fn is_complete(&self) -> bool {
        self.ended.load(Ordering::Acquire) & COMPLETE != 0
    }

    fn query(&self) -> Ended {
        type Query = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
        // SAFETY: the address is that of a function of this type, or null.
        let query = unsafe { std::mem::transmute::<usize, Option<Query>>(self.query) };
        let mut status = Status::EMPTY;
        let code = query.map_or(SUCCESS, |query| {
            flavor::with_status(&mut status, |place| {
                // SAFETY: calls the program's function with the standard's arguments; the status is in the program's ABI.
                unsafe { query(self.extra as *mut c_void, place) }
            })
        });
        let code = flavor::code_in(code);
        Ended { status, error: (code != SUCCESS).then(|| Fail::code(code)) }
    }

    fn release(&self) -> Outcome {
        type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the address is that of a function of this type, or null.
        let free = unsafe { std::mem::transmute::<usize, Option<Free>>(self.free) };
        // SAFETY: calls the program's function with the standard's arguments.
        let code = free.map_or(SUCCESS, |free| unsafe { free(self.extra as *mut c_void) });
        if code == SUCCESS { Ok(()) } else { Err(Fail::code(flavor::code_in(code))) }
    }

    fn cancelled(&self) -> Outcome {
        type Cancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        // SAFETY: the address is that of a function of this type, or null.
        let cancel = unsafe { std::mem::transmute::<usize, Option<Cancel>>(self.cancel) };
        let complete = self.is_complete().into();
        // SAFETY: calls the program's function with the standard's arguments.
        let code = cancel.map_or(SUCCESS, |cancel| unsafe { cancel(self.extra as *mut c_void, complete) });
        if code == SUCCESS { Ok(()) } else { Err(Fail::code(flavor::code_in(code))) }
    }
}

/// Retires a completed request; makes a persistent one inactive. Returns whether its handle must be removed, and an error of the
/// program's free function.
fn retire(request: &Request) -> (bool, Option<Fail>) {
    match request {
        Request::Once(Active::General(general), _) => (true, general.release().err()),
        Request::Once(..) => (true, None),
        Request::Persistent(this) => {
            this.inner().active = None;
            (false, None)
        }
    }
}

/// Writes the status of a call with a single status.
///
/// # Safety
/// `into` is valid for writing, or null, or `MPI_STATUS_IGNORE`.
pub(crate) unsafe fn set_status(into: *mut Status, status: Status) {
    if into != STATUS_IGNORE && !into.is_null() {
        // SAFETY: the caller's promise. The error field of a single status stays as it is.
        unsafe {
            let error = (*into).error;
            *into = Status { error, ..status };
        }
    }
}

/// Writes the empty status, which also says that there is no error.
unsafe fn set_empty(into: *mut Status) {
    if into != STATUS_IGNORE && !into.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *into = Status::EMPTY };
    }
}

/// Writes the status of a request that is complete, or the empty status for one that is inactive or null.
///
/// # Safety
/// As for [`set_status`].
unsafe fn set_ended(into: *mut Status, request: Option<&Request>, status: Status) {
    // SAFETY: the caller's promise.
    unsafe {
        match request {
            Some(request) if request.is_active() => set_status(into, status),
            _ => set_empty(into),
        }
    }
}

/// Ends a completed request, except for its handle. Returns whether the handle must be removed, and the outcome.
unsafe fn close(request: &Request, status: *mut Status) -> (bool, Outcome) {
    let Some(ended) = request.ended() else { return (false, fail(Class::Intern, "a request is not over")) };
    // SAFETY: the caller's promise.
    unsafe { set_ended(status, Some(request), ended.status) };
    let (forget, released) = retire(request);
    (forget, ended.error.or(released).map_or(Ok(()), Err))
}

unsafe fn end(request: &Request, handle: *mut c_int, status: *mut Status) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let (forget, outcome) = close(request, status);
        if forget {
            REQUESTS.remove(*handle);
            *handle = REQUEST_NULL;
        }
        outcome
    }
}

pub unsafe fn wait(handle: *mut c_int, status: *mut Status) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        let Some(request) = given(*handle)? else {
            set_empty(status);
            return Ok(());
        };
        settle(net::wait_until(|| request.is_over()), std::iter::once(&request))?;
        end(&request, handle, status)
    }
}

/// Gives up the operations of requests if the wait for them has failed: nothing touches their memory after this. The requests then end
/// with the error.
///
/// # Errors
/// That of the wait, if one of them is a generalized request: only the program can end that one.
fn settle<'a>(waited: Outcome, requests: impl Iterator<Item = &'a Request> + Clone) -> Outcome {
    let Err(why) = waited else { return Ok(()) };
    let mut messages = Vec::new();
    requests.clone().filter_map(Request::active).for_each(|active| active.give_up(&why, &mut messages));
    net::forsake(&messages, &why);
    let mut requests = requests;
    if requests.all(Request::is_over) { Ok(()) } else { Err(why) }
}

pub unsafe fn test(handle: *mut c_int, flag: *mut c_int, status: *mut Status) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        let Some(request) = given(*handle)? else {
            set_empty(status);
            return put(flag, 1);
        };
        if !request.is_over() {
            settle(net::look(), std::iter::once(&request))?;
        }
        let over = request.is_over();
        put(flag, over.into())?;
        if over { end(&request, handle, status) } else { Ok(()) }
    }
}

pub unsafe fn request_free(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        let request = lookup(*handle)?;
        request.check_free().map_err(|failure| request.blame(failure))?;
        let freed = std::mem::replace(&mut *handle, REQUEST_NULL);
        if let Some(Active::General(general)) = request.active() {
            if general.ended.fetch_or(FREED, Ordering::AcqRel) & COMPLETE == 0 {
                // The handle stays, since the program still completes the operation by it.
                return Ok(());
            }
            REQUESTS.remove(freed);
            return general.release();
        }
        REQUESTS.remove(freed);
        Ok(())
    }
}

pub unsafe fn request_get_status(handle: c_int, flag: *mut c_int, status: *mut Status) -> Outcome {
    let request = given(handle)?;
    let ended = match &request {
        None => Some(Ended { status: Status::EMPTY, error: None }),
        Some(request) => {
            if !request.is_over() {
                net::look().map_err(|failure| request.blame(failure))?;
            }
            request.ended()
        }
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(flag, ended.is_some().into())?;
        if let Some(ended) = ended {
            set_ended(status, request.as_ref(), ended.status);
        }
    }
    Ok(())
}

pub unsafe fn cancel(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let request = lookup(unsafe { *handle })?;
    request.cancel().map_err(|failure| request.blame(failure))
}

pub unsafe fn start(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let request = lookup(unsafe { *handle })?;
    request.start().map_err(|failure| request.blame(failure))
}

pub unsafe fn startall(count: c_int, handles: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        for at in 0..slice(handles, count)?.len() {
            start(handles.wrapping_add(at))?;
        }
    }
    Ok(())
}

pub unsafe fn grequest_start(
    query: *const c_void,
    free: *const c_void,
    cancel: *const c_void,
    extra: *mut c_void,
    handle: *mut c_int,
) -> Outcome {
    let own = comm::own()?;
    let general = General {
        query: query as usize,
        free: free as usize,
        cancel: cancel as usize,
        extra: extra as usize,
        ended: AtomicU8::new(0),
    };
    // SAFETY: the caller's promise.
    unsafe { put(handle, register(Active::General(Arc::new(general)), &own)) }
}

pub unsafe fn grequest_complete(handle: c_int) -> Outcome {
    match lookup(handle)?.active() {
        Some(Active::General(general)) => {
            if general.ended.fetch_or(COMPLETE, Ordering::AcqRel) & FREED == 0 {
                return Ok(());
            }
            REQUESTS.remove(handle);
            general.release()
        }
        _ => fail(Class::Request, "this is not a generalized request"),
    }
}

/// Returns the partitioned operation of a request.
pub(crate) fn partitioned(handle: c_int) -> Outcome<Arc<Partitioned>> {
    let request = lookup(handle)?;
    match request.active() {
        Some(Active::Partitioned(partitioned)) => Ok(partitioned),
        _ => {
            let failure = Fail::new(Class::Request, "the request is not partitioned, or not active");
            Err(request.blame(failure))
        }
    }
}
