//! Error handlers.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use crate::args::{put, put_text, text};
use crate::constants::*;
use crate::error::{self, Class, Fail, Object, Outcome, fail};
use crate::flavor::{self, Kind};
use crate::handle::Table;
use crate::{comm, file, session, window, world};

/// `void handler(handle *, int *code, ...)`.
type Function = unsafe extern "C" fn(*mut usize, *mut c_int, ...);

/// The reaction to an error.
#[derive(Clone, Debug, Default)]
pub enum Handler {
    /// End the job.
    #[default]
    Fatal,
    /// End the processes of the communicator; here, this ends the job too.
    Abort,
    /// Return the code.
    Return,
    /// Call the program's function.
    User(Arc<User>),
}

/// `void handler(handle, int code, void *state)`. Handles narrower than an address are in its lower half.
type Stateful = unsafe extern "C" fn(usize, c_int, *mut c_void);

/// An error handler that the program has made.
#[derive(Debug)]
pub struct User {
    callback: Option<Callback>,
    handle: Mutex<(c_int, usize)>,
}

#[derive(Debug)]
enum Callback {
    Plain(Function),
    Stateful(Stateful, State),
}

/// The state of a function of the program, as MPICH's bindings for Fortran give it. Dropping it calls the program's destructor.
#[derive(Debug)]
pub(crate) struct State {
    at: usize,
    destructor: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl State {
    /// # Safety
    /// `destructor` is null, or a `void (*)(void *)` that may be called once with `at`.
    pub(crate) unsafe fn new(at: *mut c_void, destructor: *const c_void) -> Self {
        // SAFETY: the caller's promise.
        let destructor = unsafe { std::mem::transmute::<*const c_void, Option<_>>(destructor) };
        Self { at: at as usize, destructor }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.at as *mut c_void
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(destructor) = self.destructor {
            // SAFETY: calls the program's function with its own state, once. Test: `older`.
            unsafe { destructor(self.address()) };
        }
    }
}

static HANDLERS: Table<Arc<User>> = Table::new(0x5);
/// The initial handler of files, and the handler of errors that occur before there is a file.
static OF_FILES: Mutex<Handler> = Mutex::new(Handler::Return);

/// Sets the handler of an object. The old one is dropped after the lock, since its destructor, a function of the program, may ask for
/// the object's handler.
pub(crate) fn replace(place: &Mutex<Handler>, handler: Handler) {
    let old = std::mem::replace(&mut *place.lock().unpoisoned(), handler);
    drop(old);
}

/// Returns the initial handler of files.
pub(crate) fn of_files() -> Handler {
    OF_FILES.lock().unpoisoned().clone()
}

pub(crate) fn given(handle: c_int) -> Outcome<Handler> {
    match handle {
        ERRORS_ARE_FATAL => Ok(Handler::Fatal),
        ERRORS_ABORT => Ok(Handler::Abort),
        ERRORS_RETURN => Ok(Handler::Return),
        _ => match HANDLERS.get(handle) {
            Some(user) => Ok(Handler::User(user)),
            None => fail(Class::Errhandler, format!("{handle:#x} is not an error handler")),
        },
    }
}

/// Returns the handle of a handler; for one that the program has made, adds a reference.
fn handle_of(handler: &Handler) -> c_int {
    match handler {
        Handler::Fatal => ERRORS_ARE_FATAL,
        Handler::Abort => ERRORS_ABORT,
        Handler::Return => ERRORS_RETURN,
        Handler::User(user) => {
            let mut handle = user.handle.lock().unpoisoned();
            if handle.1 == 0 {
                handle.0 = HANDLERS.insert(Arc::clone(user));
            }
            handle.1 += 1;
            handle.0
        }
    }
}

unsafe fn create(function: *const c_void, handler: *mut c_int) -> Outcome {
    // SAFETY: by the standard, the program passes such a function.
    let function = unsafe { std::mem::transmute::<*const c_void, Option<Function>>(function) };
    // SAFETY: the caller's promise.
    unsafe { register(function.map(Callback::Plain), handler) }
}

unsafe fn register(callback: Option<Callback>, handler: *mut c_int) -> Outcome {
    let user = User { callback, handle: Mutex::new((0, 0)) };
    // SAFETY: the caller's promise.
    unsafe { put(handler, handle_of(&Handler::User(Arc::new(user)))) }
}

/// Makes an error handler with a state, for objects of any kind.
pub unsafe fn create_errhandler_x(
    function: *const c_void,
    destructor: *const c_void,
    state: *mut c_void,
    handler: *mut c_int,
) -> Outcome {
    // SAFETY: by the contract of MPIX_*_create_errhandler_x, the program passes such a function, or null, which is `None`. Test:
    // `older`.
    let function = unsafe { std::mem::transmute::<*const c_void, Option<Stateful>>(function) };
    let Some(function) = function else { return fail(Class::Arg, "the function is NULL") };
    // SAFETY: the caller's promise.
    unsafe { register(Some(Callback::Stateful(function, State::new(state, destructor))), handler) }
}

/// The object that an error concerns.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    /// A communicator.
    Comm(c_int),
    /// A window.
    Win(c_int),
    /// A session.
    Session(c_int),
    /// A file, or the null handle for errors that occur before there is a file.
    File(c_int),
    /// An object in the making, with the handler that the call gives it.
    Given(Kind, c_int),
    /// The tools interface, whose errors go to no handler.
    Tools,
    /// No object: the error goes to the communicator of this process alone, or to that of all.
    Process,
}

/// Returns the handler of errors that concern no object, and the communicator that has it. By MPI-4, this is the communicator of this
/// process, and by earlier versions that of all, whose handler counts if the program has set only that one.
fn of_process() -> Outcome<(Handler, c_int)> {
    let own = comm::own()?.handler();
    match (&own, comm::held(COMM_WORLD)) {
        (Handler::Fatal, Ok(world)) => Ok((world.handler(), COMM_WORLD)),
        _ => Ok((own, COMM_SELF)),
    }
}

/// Returns whether the program goes on after errors that concern no object.
pub(crate) fn lets_go_on() -> bool {
    of_process().is_ok_and(|(handler, _)| matches!(handler, Handler::Return | Handler::User(_)))
}

/// A handler, and the kind and the handle of the object with which it is called.
type Addressed = (Handler, Kind, c_int);

/// Returns the handler of errors in this scope.
fn of_scope(scope: Scope) -> Addressed {
    let found = match scope {
        Scope::Comm(handle) => comm::held(handle).map(|comm| (comm.handler(), Kind::Comm, handle)),
        Scope::Win(handle) => window::lookup(handle).map(|win| (win.handler(), Kind::Win, handle)),
        Scope::Session(handle) => {
            session::lookup(handle).map(|session| (session.handler(), Kind::Session, handle))
        }
        Scope::File(handle) => {
            let handler = file::lookup(handle).map_or_else(|_| of_files(), |file| file.handler());
            Ok((handler, Kind::File, handle))
        }
        Scope::Given(Kind::Session, handle) => {
            given(handle).map(|handler| (handler, Kind::Session, SESSION_NULL))
        }
        Scope::Given(kind, handle) => given(handle).map(|handler| (handler, kind, COMM_NULL)),
        Scope::Tools | Scope::Process => process_addressed(),
    };
    found.or_else(|_| process_addressed()).unwrap_or((Handler::Return, Kind::Comm, COMM_SELF))
}

fn process_addressed() -> Outcome<Addressed> {
    of_process().map(|(handler, handle)| (handler, Kind::Comm, handle))
}

/// Returns the handler of an object's errors.
fn of_object(object: &Object) -> Addressed {
    match object {
        Object::Comm(comm) => (comm.handler(), Kind::Comm, comm.handle()),
        Object::Win(window) => (window.handler(), Kind::Win, window.handle()),
    }
}

/// Calls a handler with a code. Returns the code that the handler leaves, unless it ends the job.
fn invoke((handler, kind, handle): Addressed, code: c_int, call: &str) -> c_int {
    match handler {
        Handler::Return => code,
        Handler::Fatal | Handler::Abort => {
            let text = error::text_of(code).unwrap_or_default();
            world::abort(&format!("{call}: {text}"), flavor::code_out(code & 0xff).max(1));
        }
        Handler::User(user) => {
            let (mut handle, given) = (flavor::to_user(kind, handle), flavor::code_out(code));
            let mut left = given;
            match &user.callback {
                // SAFETY: calls the program's function with the standard's arguments.
                Some(Callback::Plain(function)) => unsafe { function(&raw mut handle, &raw mut left) },
                // SAFETY: calls the program's function with the arguments of its type.
                Some(Callback::Stateful(function, state)) => unsafe {
                    function(handle, given, state.address())
                },
                None => {}
            }
            // A handler may replace the code, also by success, as with other libraries.
            if left == given { code } else { flavor::code_in(left) }
        }
    }
}

/// Ends a call: calls the error handler if it has failed, and returns the code for the program.
#[inline]
pub fn finish(outcome: Outcome, scope: Scope, call: &str) -> c_int {
    match outcome {
        Ok(()) => SUCCESS,
        Err(failure) => failed(&failure, scope, call),
    }
}

#[cold]
fn failed(failure: &Fail, scope: Scope, call: &str) -> c_int {
    if matches!(scope, Scope::Tools) {
        return failure.class;
    }
    let code = error::encode(failure);
    // The first session may fail before anything runs.
    let is_given = matches!(scope, Scope::Given(..));
    match &failure.object {
        Some(object) if !is_given => invoke(of_object(object), code, call),
        _ if is_given || world::is_running() => invoke(of_scope(scope), code, call),
        _ => code,
    }
}

/// Fails a call with NULL for an argument that has to be an address.
///
/// # Errors
/// Always.
pub fn null(what: &str, scope: Scope) -> Outcome {
    match scope {
        Scope::Tools => Err(Fail::code(T_INVALID)),
        _ => fail(Class::Arg, format!("{what} is NULL")),
    }
}

/// Fails a call of a function that Kolo does not have.
///
/// # Errors
/// Always.
pub fn missing(name: &str, scope: Scope) -> Outcome {
    match scope {
        Scope::Tools => Err(Fail::code(T_NOT_SUPPORTED)),
        _ => {
            let text = format!("Kolo has no {name}: see docs/mpi.md for what is missing");
            fail(Class::UnsupportedOperation, text)
        }
    }
}

pub unsafe fn comm_create_errhandler(function: *const c_void, handler: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, handler) }
}

pub unsafe fn win_create_errhandler(function: *const c_void, handler: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, handler) }
}

pub unsafe fn session_create_errhandler(function: *const c_void, handler: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, handler) }
}

pub unsafe fn file_create_errhandler(function: *const c_void, handler: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, handler) }
}

pub unsafe fn errhandler_free(handler: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        if let Handler::User(user) = given(*handler)? {
            let mut handle = user.handle.lock().unpoisoned();
            handle.1 -= 1;
            if handle.1 == 0 {
                HANDLERS.remove(*handler);
            }
        }
        *handler = ERRHANDLER_NULL;
    }
    Ok(())
}

macro_rules! calls {
    ($lookup:path, $scope:expr, $set:ident, $get:ident, $call:ident) => {
        pub unsafe fn $set(object: c_int, handler: c_int) -> Outcome {
            $lookup(object)?.set_handler(given(handler)?);
            Ok(())
        }

        pub unsafe fn $get(object: c_int, handler: *mut c_int) -> Outcome {
            // SAFETY: the caller's promise.
            unsafe { put(handler, handle_of(&$lookup(object)?.handler())) }
        }

        pub unsafe fn $call(object: c_int, code: c_int) -> Outcome {
            $lookup(object)?;
            invoke(of_scope($scope(object)), code, "the program called the error handler itself");
            Ok(())
        }
    };
}

calls!(comm::lookup, Scope::Comm, comm_set_errhandler, comm_get_errhandler, comm_call_errhandler);
calls!(window::lookup, Scope::Win, win_set_errhandler, win_get_errhandler, win_call_errhandler);

calls!(
    session::lookup,
    Scope::Session,
    session_set_errhandler,
    session_get_errhandler,
    session_call_errhandler
);

pub unsafe fn file_set_errhandler(file: c_int, handler: c_int) -> Outcome {
    let handler = given(handler)?;
    match file {
        FILE_NULL => replace(&OF_FILES, handler),
        _ => file::lookup(file)?.set_handler(handler),
    }
    Ok(())
}

pub unsafe fn file_get_errhandler(file: c_int, handler: *mut c_int) -> Outcome {
    let found = if file == FILE_NULL { of_files() } else { file::lookup(file)?.handler() };
    // SAFETY: the caller's promise.
    unsafe { put(handler, handle_of(&found)) }
}

pub unsafe fn file_call_errhandler(file: c_int, code: c_int) -> Outcome {
    if file != FILE_NULL {
        file::lookup(file)?;
    }
    invoke(of_scope(Scope::File(file)), code, "the program called the error handler itself");
    Ok(())
}

pub unsafe fn error_class(code: c_int, class: *mut c_int) -> Outcome {
    match error::class_of(code) {
        // SAFETY: the caller's promise.
        Some(found) => unsafe { put(class, found) },
        None => fail(Class::Arg, format!("{code} is not an error code")),
    }
}

pub unsafe fn error_string(code: c_int, into: *mut c_char, length: *mut c_int) -> Outcome {
    match error::text_of(code) {
        // SAFETY: the caller's promise.
        Some(found) => unsafe { put_text(&found, into, MAX_ERROR_STRING as usize, length) },
        None => fail(Class::Arg, format!("{code} is not an error code")),
    }
}

pub unsafe fn add_error_class(class: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(class, error::add(None)?) }
}

pub unsafe fn add_error_code(class: c_int, code: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(code, error::add(Some(class))?) }
}

pub unsafe fn add_error_string(code: c_int, string: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    error::name(code, &unsafe { text(string) }?)
}

pub unsafe fn remove_error_class(class: c_int) -> Outcome {
    error::remove(class, true)
}

pub unsafe fn remove_error_code(code: c_int) -> Outcome {
    error::remove(code, false)
}

pub unsafe fn remove_error_string(code: c_int) -> Outcome {
    error::name(code, "")
}
