//! Point-to-point messages.

mod probe;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub use probe::*;

use crate::args::{count, put};
use crate::bsend;
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::datatype::{self, Type};
use crate::error::{Class, Outcome, fail};
use crate::handle::Held;
use crate::net::{self, Awaited, Completion, Elements, Recv, Sink, Source};
use crate::request::{self, Active, set_status};
use crate::staging::Staging;
use crate::world;

/// The mode of a send, which says when it completes.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// The send completes when its memory may be used again.
    Standard,
    /// The send completes when a receive has matched it.
    Synchronous,
    /// The send copies the message and completes at once.
    Buffered,
}

/// The checked arguments of a send or a receive. `peer` is `None` for `MPI_PROC_NULL`.
#[derive(Clone)]
struct Place {
    comm: Held<Comm>,
    at: usize,
    count: usize,
    of: Held<Type>,
    peer: Option<Peer>,
    tag: Option<i32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Peer {
    /// World rank.
    Rank(u32),
    Any,
}

/// Whether `MPI_ANY_SOURCE` and `MPI_ANY_TAG` are permitted.
#[derive(Clone, Copy, PartialEq)]
enum Wildcards {
    Accepted,
    Refused,
}

fn peer(comm: &Comm, rank: c_int, wildcards: Wildcards) -> Outcome<Option<Peer>> {
    if let Ok(at) = usize::try_from(rank)
        && let Some(member) = comm.peers.get(at)
    {
        return Ok(Some(Peer::Rank(*member)));
    }
    match rank {
        PROC_NULL => Ok(None),
        ANY_SOURCE if wildcards == Wildcards::Accepted => Ok(Some(Peer::Any)),
        _ => fail(
            Class::Rank,
            format!("rank {rank} is out of range for a communicator of {}", comm.peers.len()),
        ),
    }
}

fn tag(tag: c_int, wildcards: Wildcards) -> Outcome<Option<i32>> {
    match tag {
        0..=TAG_MAX => Ok(Some(tag)),
        ANY_TAG if wildcards == Wildcards::Accepted => Ok(None),
        _ => fail(Class::Tag, format!("the tag is {tag}, but tags are 0 to {TAG_MAX}")),
    }
}

impl Place {
    fn send_of(at: *const c_void, n: i64, of: c_int, to: c_int, tag: c_int, comm: c_int) -> Outcome<Self> {
        Self::on(comm::held(comm)?, at, n, of, to, tag, Wildcards::Refused)
    }

    fn recv_of(at: *const c_void, n: i64, of: c_int, from: c_int, tag: c_int, comm: c_int) -> Outcome<Self> {
        Self::on(comm::held(comm)?, at, n, of, from, tag, Wildcards::Accepted)
    }

    /// Makes a place on a communicator that may have been freed.
    fn on(
        comm: Held<Comm>,
        at: *const c_void,
        n: i64,
        of: c_int,
        rank: c_int,
        number: c_int,
        wildcards: Wildcards,
    ) -> Outcome<Self> {
        let count = count(n)?;
        let peer = peer(&comm, rank, wildcards)?;
        // Programs leave out the type of no elements.
        let is_typeless = count == 0 && of == DATATYPE_NULL;
        let of = datatype::held(if is_typeless { BYTE } else { of })?;
        let tag = tag(number, wildcards)?;
        of.check_address(at, count)?;
        Ok(Self { comm, at: at as usize, count, of, peer, tag })
    }

    fn address(&self) -> *mut u8 {
        self.at as *mut u8
    }

    fn flat(&self) -> *mut u8 {
        self.address().wrapping_offset(self.of.true_lower as isize)
    }

    fn bytes(&self) -> usize {
        self.count * self.of.size()
    }

    fn copied(&self) -> Source {
        let mut bytes = Staging::new(self.bytes());
        // SAFETY: reads the program's elements, and there is room for their bytes.
        unsafe { self.of.pack_to(self.address(), self.count, bytes.ptr()) };
        Source::Staged(bytes)
    }

    fn elements(&self) -> Elements {
        Elements { ptr: self.address(), count: self.count, of: Arc::clone(&self.of) }
    }

    fn data(&self) -> Source {
        if self.of.is_flat() {
            Source::Lent(self.flat(), self.bytes())
        } else {
            Source::Elements(self.elements(), self.bytes())
        }
    }

    /// Sends. Returns `None` for `MPI_PROC_NULL`.
    fn send(&self, mode: Mode) -> Outcome<Option<Arc<Completion>>> {
        let Some(Peer::Rank(to)) = self.peer else { return Ok(None) };
        let done = Completion::new();
        let data = if mode == Mode::Buffered { self.copied() } else { self.data() };
        if mode == Mode::Buffered {
            bsend::take(&self.comm, data.len(), &done)?;
        }
        let asks = mode == Mode::Synchronous;
        net::net()?.send(to, self.comm.context(0), self.tag.unwrap_or(0), data, asks, &done);
        Ok(if mode == Mode::Buffered { None } else { Some(done) })
    }

    fn sink(&self) -> Sink {
        match self.of.is_flat() {
            true => Sink::Flat { ptr: self.flat(), room: self.bytes() },
            false => Sink::Typed(self.elements()),
        }
    }

    fn source(&self) -> Option<u32> {
        match self.peer {
            Some(Peer::Rank(rank)) => Some(rank),
            _ => None,
        }
    }

    /// Posts a receive. Returns `None` for `MPI_PROC_NULL`.
    fn recv(&self) -> Outcome<Option<Arc<Completion>>> {
        if self.peer.is_none() {
            return Ok(None);
        }
        let done = Completion::new();
        let recv = Recv { source: self.source(), tag: self.tag, sink: self.sink(), done: Arc::clone(&done) };
        net::net()?.recv(self.comm.context(0), recv);
        Ok(Some(done))
    }
}

impl Place {
    /// Sends, for a caller that waits at once. Returns `None` if the send is already complete.
    fn send_awaited(&self, mode: Mode) -> Outcome<Option<Arc<Completion>>> {
        match self.peer {
            Some(Peer::Rank(to)) if mode != Mode::Buffered => {
                let asks = mode == Mode::Synchronous;
                let (context, tag) = (self.comm.context(0), self.tag.unwrap_or(0));
                net::net()?.send_awaited(to, context, tag, self.data(), asks)
            }
            _ => self.send(mode),
        }
    }

    /// Posts a receive, for a caller that waits at once. Returns `None` for `MPI_PROC_NULL`.
    fn recv_awaited(&self) -> Outcome<Option<Awaited>> {
        if self.peer.is_none() {
            return Ok(None);
        }
        let (context, source) = (self.comm.context(0), self.source());
        Ok(Some(net::net()?.recv_awaited(context, source, self.tag, self.sink())))
    }
}

/// Waits for a receive.
unsafe fn received(awaited: Option<Awaited>, comm: &Comm, status: *mut Status) -> Outcome {
    let Some(awaited) = awaited else {
        // SAFETY: the caller's promise.
        unsafe { set_status(status, FROM_NOBODY) };
        return Ok(());
    };
    if let Awaited::Over(finished) = &awaited
        && finished.error.is_none()
    {
        // SAFETY: the caller's promise.
        unsafe { set_status(status, request::received(finished, comm)) };
        return Ok(());
    }
    let finished = net::wait_for_receive(awaited)?;
    // SAFETY: the caller's promise.
    unsafe { set_status(status, request::received(&finished, comm)) };
    finished.error.map_or(Ok(()), Err)
}

/// Status of a receive from `MPI_PROC_NULL`.
const FROM_NOBODY: Status = Status { source: PROC_NULL, ..Status::EMPTY };

/// Waits for a message.
unsafe fn finish(done: &Arc<Completion>, comm: &Comm, status: *mut Status) -> Outcome {
    net::wait_for(done)?;
    let Some(finished) = done.get() else { return fail(Class::Intern, "a message has no end") };
    // SAFETY: the caller's promise.
    unsafe { set_status(status, request::received(finished, comm)) };
    finished.error.clone().map_or(Ok(()), Err)
}

unsafe fn blocking(place: &Place, mode: Mode) -> Outcome {
    match place.send_awaited(mode)? {
        // SAFETY: there is no status to write.
        Some(done) => unsafe { finish(&done, &place.comm, STATUS_IGNORE) },
        None => Ok(()),
    }
}

fn sending(place: &Place, mode: Mode) -> Outcome<Active> {
    Ok(place.send(mode)?.map_or(Active::Over(Status::EMPTY), Active::Send))
}

fn receiving(place: &Place) -> Outcome<Active> {
    let context = place.comm.context(0);
    Ok(place.recv()?.map_or(Active::Over(FROM_NOBODY), |done| Active::Recv(done, context)))
}

macro_rules! sends {
    ($mode:expr, $blocking:ident, $started:ident, $persistent:ident) => {
        pub unsafe fn $blocking(
            buf: *const c_void,
            n: i64,
            of: c_int,
            to: c_int,
            tag: c_int,
            comm: c_int,
        ) -> Outcome {
            let place = Place::send_of(buf, n, of, to, tag, comm)?;
            // SAFETY: the caller's promise.
            unsafe { blocking(&place, $mode) }
        }

        pub unsafe fn $started(
            buf: *const c_void,
            n: i64,
            of: c_int,
            to: c_int,
            tag: c_int,
            comm: c_int,
            into: *mut c_int,
        ) -> Outcome {
            let place = Place::send_of(buf, n, of, to, tag, comm)?;
            let request = match place.peer {
                Some(_) => request::register_send(place.send_awaited($mode)?, &place.comm),
                None => request::register(Active::Over(Status::EMPTY), &place.comm),
            };
            // SAFETY: the caller's promise.
            unsafe { put(into, request) }
        }

        pub unsafe fn $persistent(
            buf: *const c_void,
            n: i64,
            of: c_int,
            to: c_int,
            tag: c_int,
            comm: c_int,
            into: *mut c_int,
        ) -> Outcome {
            let place = Place::send_of(buf, n, of, to, tag, comm)?;
            let comm = Arc::clone(&place.comm);
            // SAFETY: the caller's promise.
            unsafe { put(into, request::persistent(move || sending(&place, $mode), &comm)) }
        }
    };
}

sends!(Mode::Standard, send, isend, send_init);
sends!(Mode::Standard, rsend, irsend, rsend_init);
sends!(Mode::Synchronous, ssend, issend, ssend_init);
sends!(Mode::Buffered, bsend, ibsend, bsend_init);

pub unsafe fn recv(
    buf: *mut c_void,
    n: i64,
    of: c_int,
    from: c_int,
    tag: c_int,
    comm: c_int,
    status: *mut Status,
) -> Outcome {
    let place = Place::recv_of(buf, n, of, from, tag, comm)?;
    // SAFETY: the caller's promise.
    unsafe { received(place.recv_awaited()?, &place.comm, status) }
}

pub unsafe fn irecv(
    buf: *mut c_void,
    n: i64,
    of: c_int,
    from: c_int,
    tag: c_int,
    comm: c_int,
    into: *mut c_int,
) -> Outcome {
    let place = Place::recv_of(buf, n, of, from, tag, comm)?;
    // SAFETY: the caller's promise.
    unsafe { put(into, request::register(receiving(&place)?, &place.comm)) }
}

pub unsafe fn recv_init(
    buf: *mut c_void,
    n: i64,
    of: c_int,
    from: c_int,
    tag: c_int,
    comm: c_int,
    into: *mut c_int,
) -> Outcome {
    let place = Place::recv_of(buf, n, of, from, tag, comm)?;
    let comm = Arc::clone(&place.comm);
    // SAFETY: the caller's promise.
    unsafe { put(into, request::persistent(move || receiving(&place), &comm)) }
}

/// Returns a send and a receive as one operation. If the receive succeeds, the send's error is reported.
fn both(receive: Active, send: Option<Arc<Completion>>) -> Active {
    match (receive, send) {
        (Active::Recv(recv, _), Some(send)) => Active::Both(send, recv),
        (Active::Over(_), Some(send)) => {
            // Nothing is received, and the status must say so.
            let nothing = Completion::new();
            nothing.never_came();
            Active::Both(send, nothing)
        }
        (receive, _) => receive,
    }
}

unsafe fn exchanged(send: &Place, recv: &Place, status: *mut Status) -> Outcome {
    // The send comes first, since the peer waits for it. For a message to this rank itself, posting the receive first saves a copy.
    let is_home = send.peer == Some(Peer::Rank(world::rank()));
    let early = if is_home { Some(recv.recv_awaited()?) } else { None };
    let sent = send.send_awaited(Mode::Standard);
    let awaited = early.map_or_else(|| recv.recv_awaited(), Ok)?;
    // SAFETY: the caller's promise.
    unsafe {
        let outcome = received(awaited, &recv.comm, status);
        let sent = sent?;
        let sent = sent.map_or(Ok(()), |done| finish(&done, &send.comm, STATUS_IGNORE));
        outcome.and(sent)
    }
}

pub unsafe fn sendrecv(
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    to: c_int,
    sendtag: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    from: c_int,
    recvtag: c_int,
    comm: c_int,
    status: *mut Status,
) -> Outcome {
    let send = Place::send_of(sendbuf, sendcount, sendtype, to, sendtag, comm)?;
    let recv = Place::recv_of(recvbuf, recvcount, recvtype, from, recvtag, comm)?;
    // SAFETY: the caller's promise.
    unsafe { exchanged(&send, &recv, status) }
}

pub unsafe fn isendrecv(
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    to: c_int,
    sendtag: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    from: c_int,
    recvtag: c_int,
    comm: c_int,
    into: *mut c_int,
) -> Outcome {
    let send = Place::send_of(sendbuf, sendcount, sendtype, to, sendtag, comm)?;
    let recv = Place::recv_of(recvbuf, recvcount, recvtype, from, recvtag, comm)?;
    // SAFETY: the caller's promise.
    unsafe { put(into, request::register(both(receiving(&recv)?, send.send(Mode::Standard)?), &send.comm)) }
}

/// Sends a copy, so that a receive may write to the same memory.
fn send_copy(place: &Place) -> Outcome<Option<Arc<Completion>>> {
    let Some(Peer::Rank(to)) = place.peer else { return Ok(None) };
    let (done, data) = (Completion::new(), place.copied());
    net::net()?.send(to, place.comm.context(0), place.tag.unwrap_or(0), data, false, &done);
    Ok(Some(done))
}

pub unsafe fn sendrecv_replace(
    buf: *mut c_void,
    n: i64,
    of: c_int,
    to: c_int,
    sendtag: c_int,
    from: c_int,
    recvtag: c_int,
    comm: c_int,
    status: *mut Status,
) -> Outcome {
    let send = Place::send_of(buf, n, of, to, sendtag, comm)?;
    let recv = Place::recv_of(buf, n, of, from, recvtag, comm)?;
    let sent = send_copy(&send)?;
    let awaited = recv.recv_awaited()?;
    // SAFETY: the caller's promise.
    unsafe {
        let outcome = received(awaited, &recv.comm, status);
        let sent = sent.map_or(Ok(()), |done| finish(&done, &send.comm, STATUS_IGNORE));
        outcome.and(sent)
    }
}

pub unsafe fn isendrecv_replace(
    buf: *mut c_void,
    n: i64,
    of: c_int,
    to: c_int,
    sendtag: c_int,
    from: c_int,
    recvtag: c_int,
    comm: c_int,
    into: *mut c_int,
) -> Outcome {
    let send = Place::send_of(buf, n, of, to, sendtag, comm)?;
    let recv = Place::recv_of(buf, n, of, from, recvtag, comm)?;
    let sent = send_copy(&send)?;
    let active = both(receiving(&recv)?, sent);
    // SAFETY: the caller's promise.
    unsafe { put(into, request::register(active, &send.comm)) }
}
