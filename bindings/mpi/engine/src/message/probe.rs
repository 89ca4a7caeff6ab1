//! Probes, and messages that matching probes take out of the queue.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use super::{FROM_NOBODY, Peer, Place, Wildcards, finish, peer, tag};
use crate::args::put;
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::handle::Table;
use crate::net::{self, Claimed, Completion, Found, Recv};
use crate::request::{self, Active, set_status};

/// A message that a matching probe has taken.
struct Message {
    comm: Arc<Comm>,
    claimed: Mutex<Option<Claimed>>,
}

static MESSAGES: Table<Arc<Message>> = Table::new(0xc);
/// The MPICH ABI has one null handle for requests and messages.
const MESSAGE_NULL: c_int = REQUEST_NULL;

/// The communicator, source and tag of a probe; `None` for `MPI_PROC_NULL`.
type Where = (Arc<Comm>, Option<(Option<u32>, Option<i32>)>);

fn looking(source: c_int, number: c_int, comm: c_int) -> Outcome<Where> {
    let comm = comm::lookup(comm)?;
    let peer = peer(&comm, source, Wildcards::Accepted)?;
    let tag = tag(number, Wildcards::Accepted)?;
    let wanted = peer.map(|peer| match peer {
        Peer::Rank(rank) => (Some(rank), tag),
        Peer::Any => (None, tag),
    });
    Ok((comm, wanted))
}

fn status_of(found: Found, comm: &Comm) -> Status {
    let mut status = Status { source: comm.rank_of(found.source) as c_int, tag: found.tag, ..Status::EMPTY };
    status.set_bytes(found.bytes as i64);
    status
}

pub unsafe fn probe(source: c_int, tag: c_int, comm: c_int, status: *mut Status) -> Outcome {
    let (comm, wanted) = looking(source, tag, comm)?;
    let mut found = FROM_NOBODY;
    if let Some((source, tag)) = wanted {
        let context = comm.context(0);
        let message = net::wait_to_find((context, source, tag), |net| net.probe(context, source, tag))?;
        found = status_of(message, &comm);
    }
    // SAFETY: the caller's promise.
    unsafe { set_status(status, found) };
    Ok(())
}

pub unsafe fn iprobe(
    source: c_int,
    tag: c_int,
    comm: c_int,
    flag: *mut c_int,
    status: *mut Status,
) -> Outcome {
    let (comm, wanted) = looking(source, tag, comm)?;
    let found = match wanted {
        None => Some(FROM_NOBODY),
        Some((source, tag)) => {
            let look = || -> Outcome<Option<Found>> { Ok(net::net()?.probe(comm.context(0), source, tag)) };
            let mut found = look()?;
            if found.is_none() {
                net::look()?;
                found = look()?;
            }
            found.map(|found| status_of(found, &comm))
        }
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(flag, found.is_some().into())?;
        if let Some(found) = found {
            set_status(status, found);
        }
    }
    Ok(())
}

unsafe fn claimed(comm: Arc<Comm>, claimed: Claimed, message: *mut c_int, status: *mut Status) -> Outcome {
    let found = status_of(claimed.found(), &comm);
    let handle = MESSAGES.insert(Arc::new(Message { comm, claimed: Mutex::new(Some(claimed)) }));
    // SAFETY: the caller's promise.
    unsafe {
        set_status(status, found);
        put(message, handle)
    }
}

pub unsafe fn mprobe(
    source: c_int,
    tag: c_int,
    comm: c_int,
    message: *mut c_int,
    status: *mut Status,
) -> Outcome {
    let (comm, wanted) = looking(source, tag, comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        let Some((source, tag)) = wanted else {
            set_status(status, FROM_NOBODY);
            return put(message, MESSAGE_NO_PROC);
        };
        let context = comm.context(0);
        let taken = net::wait_to_find((context, source, tag), |net| net.claim(context, source, tag))?;
        claimed(comm, taken, message, status)
    }
}

pub unsafe fn improbe(
    source: c_int,
    tag: c_int,
    comm: c_int,
    flag: *mut c_int,
    message: *mut c_int,
    status: *mut Status,
) -> Outcome {
    let (comm, wanted) = looking(source, tag, comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        let Some((source, tag)) = wanted else {
            set_status(status, FROM_NOBODY);
            put(flag, 1)?;
            return put(message, MESSAGE_NO_PROC);
        };
        let look = || -> Outcome<Option<Claimed>> { Ok(net::net()?.claim(comm.context(0), source, tag)) };
        let mut taken = look()?;
        if taken.is_none() {
            net::look()?;
            taken = look()?;
        }
        put(flag, taken.is_some().into())?;
        match taken {
            Some(taken) => claimed(Arc::clone(&comm), taken, message, status),
            None => put(message, MESSAGE_NULL),
        }
    }
}

/// Returns the message of a handle; `None` for `MPI_MESSAGE_NO_PROC`, which becomes the null handle.
unsafe fn given(handle: *mut c_int) -> Outcome<Option<Arc<Message>>> {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        if *handle == MESSAGE_NO_PROC {
            *handle = MESSAGE_NULL;
            return Ok(None);
        }
        match MESSAGES.get(*handle) {
            Some(message) => Ok(Some(message)),
            None => fail(Class::Request, format!("{:#x} is not a message", *handle)),
        }
    }
}

impl Message {
    /// Makes a failure go to the error handler of the communicator of the probe, which the program may have freed since.
    fn blame(&self, failure: Fail) -> Fail {
        comm::on(&self.comm, failure)
    }

    /// Receives the message.
    unsafe fn receive(
        &self,
        buf: *mut c_void,
        n: i64,
        of: c_int,
        handle: *mut c_int,
    ) -> Outcome<Arc<Completion>> {
        // SAFETY: the caller's promise; the front end has checked that the handle is not null.
        unsafe {
            let comm = (&self.comm).into();
            let place = Place::on(comm, buf.cast_const(), n, of, PROC_NULL, 0, Wildcards::Refused)?;
            let claimed = self.claimed.lock().unpoisoned().take();
            let Some(claimed) = claimed else {
                return fail(Class::Request, "the message has been received already");
            };
            MESSAGES.remove(*handle);
            *handle = MESSAGE_NULL;
            let done = Completion::new();
            let recv = Recv { source: None, tag: None, sink: place.sink(), done: Arc::clone(&done) };
            net::net()?.recv_claimed(claimed, recv);
            Ok(done)
        }
    }
}

pub unsafe fn mrecv(buf: *mut c_void, n: i64, of: c_int, handle: *mut c_int, status: *mut Status) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(message) = given(handle)? else {
            set_status(status, FROM_NOBODY);
            return Ok(());
        };
        let received = message.receive(buf, n, of, handle);
        let finished = received.and_then(|done| finish(&done, &message.comm, status));
        finished.map_err(|failure| message.blame(failure))
    }
}

pub unsafe fn imrecv(buf: *mut c_void, n: i64, of: c_int, handle: *mut c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(message) = given(handle)? else {
            return put(into, request::register(Active::Over(FROM_NOBODY), &comm::own()?));
        };
        let done = message.receive(buf, n, of, handle).map_err(|failure| message.blame(failure))?;
        put(into, request::register(Active::Recv(done, message.comm.context(0)), &message.comm))
    }
}
