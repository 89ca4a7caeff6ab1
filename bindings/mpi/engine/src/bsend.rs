//! Buffers for buffered sends. The library copies messages to its own memory; an attached buffer limits how much it may use.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use kolo_transport::Unpoisoned;

use crate::args::put;
use crate::comm;
use crate::comm::Comm;
use crate::constants::{BSEND_OVERHEAD, BUFFER_AUTOMATIC};
use crate::error::{Class, Outcome, fail};
use crate::flavor;
use crate::handle::Held;
use crate::net::{self, Completion};
use crate::request::{self, Active};
use crate::session;

#[derive(Debug, Default)]
struct State {
    /// Address and size.
    attached: Option<(usize, i64)>,
    /// Messages under way, with their sizes.
    pending: Vec<(Arc<Completion>, i64)>,
}

/// The buffer of a communicator, or of the process.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<State>);

static OF_PROCESS: Buffers = Buffers(Mutex::new(State { attached: None, pending: Vec::new() }));

impl Buffers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unpoisoned()
    }

    fn is_attached(&self) -> bool {
        self.state().attached.is_some()
    }

    /// Takes room for a message. The room is in use until `done` completes.
    fn take(&self, bytes: usize, done: &Arc<Completion>) -> Outcome {
        let mut taken = self.take_now(bytes, done);
        // Earlier messages may have arrived, which this process learns only when it advances them.
        while taken.is_err() && net::poll_once() {
            taken = self.take_now(bytes, done);
        }
        taken
    }

    fn take_now(&self, bytes: usize, done: &Arc<Completion>) -> Outcome {
        let mut state = self.state();
        state.pending.retain(|(done, _)| !done.is_done());
        let Some((address, size)) = state.attached else {
            return fail(Class::Buffer, "no buffer is attached");
        };
        let needed = bytes as i64 + i64::from(BSEND_OVERHEAD);
        let used: i64 = state.pending.iter().map(|(_, bytes)| bytes).sum();
        if address != BUFFER_AUTOMATIC as usize && used + needed > size {
            return fail(
                Class::Buffer,
                format!(
                    "a message needs {needed} bytes of the attached buffer of {size} bytes, of which {used} \
                     are in use"
                ),
            );
        }
        state.pending.push((Arc::clone(done), needed));
        Ok(())
    }

    fn attach(&self, buffer: *mut c_void, size: i64) -> Outcome {
        if size < 0 {
            return fail(Class::Arg, format!("a buffer cannot have {size} bytes"));
        }
        let mut state = self.state();
        if state.attached.is_some() {
            return fail(Class::Buffer, "a buffer is already attached");
        }
        state.attached = Some((buffer as usize, size));
        Ok(())
    }

    fn flush(&self) -> Outcome {
        net::wait_until(|| self.state().pending.iter().all(|(done, _)| done.is_done()))
    }

    /// Starts a flush of the messages that are in the buffer now.
    unsafe fn iflush(&self, comm: impl Into<Held<Comm>>, into: *mut c_int) -> Outcome {
        let pending = self
            .state()
            .pending
            .iter()
            .map(|(done, _)| Arc::clone(done))
            .filter(|done| !done.is_done())
            .collect();
        // SAFETY: the caller's promise: a place for a handle.
        unsafe { put(into, request::register(Active::Flush(pending), comm)) }
    }

    unsafe fn detach(&self, address: *mut c_void, size: *mut i64) -> Outcome {
        self.flush()?;
        let Some((attached, bytes)) = self.state().attached.take() else {
            return fail(Class::Buffer, "no buffer is attached");
        };
        self.state().pending.clear();
        let (attached, bytes) =
            if attached == BUFFER_AUTOMATIC as usize { (flavor::automatic(), 0) } else { (attached, bytes) };
        // SAFETY: the caller's promise: places for an address and a number.
        unsafe {
            put(address.cast(), attached)?;
            put(size, bytes)
        }
    }
}

/// Takes room for a message in the communicator's buffer, or else the process's, or else the first session's that has one, since a
/// communicator does not record its session.
pub(crate) fn take(comm: &Comm, bytes: usize, done: &Arc<Completion>) -> Outcome {
    if comm.buffers.is_attached() {
        return comm.buffers.take(bytes, done);
    }
    if !OF_PROCESS.is_attached()
        && let Some(session) = session::all().iter().find(|session| session.buffers.is_attached())
    {
        return session.buffers.take(bytes, done);
    }
    OF_PROCESS.take(bytes, done)
}

pub unsafe fn buffer_attach(buffer: *mut c_void, size: i64) -> Outcome {
    crate::world::check_running()?;
    OF_PROCESS.attach(buffer, size)
}

pub unsafe fn buffer_detach(address: *mut c_void, size: *mut i64) -> Outcome {
    crate::world::check_running()?;
    // SAFETY: the caller's promise.
    unsafe { OF_PROCESS.detach(address, size) }
}

pub unsafe fn buffer_flush() -> Outcome {
    OF_PROCESS.flush()
}

pub unsafe fn buffer_iflush(into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { OF_PROCESS.iflush(&comm::own()?, into) }
}

pub unsafe fn comm_attach_buffer(comm: c_int, buffer: *mut c_void, size: i64) -> Outcome {
    comm::lookup(comm)?.buffers.attach(buffer, size)
}

pub unsafe fn comm_detach_buffer(comm: c_int, address: *mut c_void, size: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { comm::lookup(comm)?.buffers.detach(address, size) }
}

pub unsafe fn comm_flush_buffer(comm: c_int) -> Outcome {
    comm::lookup(comm)?.buffers.flush()
}

pub unsafe fn comm_iflush_buffer(comm: c_int, into: *mut c_int) -> Outcome {
    let comm = comm::lookup(comm)?;
    // SAFETY: the caller's promise.
    unsafe { comm.buffers.iflush(&comm, into) }
}

pub unsafe fn session_attach_buffer(of: c_int, buffer: *mut c_void, size: i64) -> Outcome {
    session::lookup(of)?.buffers.attach(buffer, size)
}

pub unsafe fn session_detach_buffer(of: c_int, address: *mut c_void, size: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { session::lookup(of)?.buffers.detach(address, size) }
}

pub unsafe fn session_flush_buffer(of: c_int) -> Outcome {
    session::lookup(of)?.buffers.flush()
}

pub unsafe fn session_iflush_buffer(of: c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { session::lookup(of)?.buffers.iflush(&comm::own()?, into) }
}
