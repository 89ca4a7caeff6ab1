//! Partitioned messages: the parts of a buffer become ready one by one.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::args::{count, put, slice};
use crate::comm::{self, Comm, PARTITIONED};
use crate::constants::{PROC_NULL, Status};
use crate::datatype::{self, Type};
use crate::error::{Class, Fail, Outcome, fail};
use crate::net::{self, Completion, Recv, Sink, Source};
use crate::request::{self, Active};

/// A partitioned send or receive. The message is sent when all partitions are ready, so all partitions arrive together.
#[derive(Debug)]
pub struct Partitioned {
    state: Mutex<State>,
    done: Arc<Completion>,
    is_send: bool,
    setup: Arc<Setup>,
}

#[derive(Debug)]
struct State {
    ready: Vec<bool>,
    left: usize,
}

#[derive(Debug)]
struct Setup {
    comm: Arc<Comm>,
    at: usize,
    elements: usize,
    of: Arc<Type>,
    peer: Option<u32>,
    tag: c_int,
    partitions: usize,
}

impl Partitioned {
    /// Returns whether the operation is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.setup.peer.is_none() || self.done.is_done()
    }

    /// Returns the status and the error if the operation is complete.
    #[must_use]
    pub fn ended(&self, comm: &Comm) -> Option<(Status, Option<Fail>)> {
        if self.setup.peer.is_none() {
            return Some((Status { source: PROC_NULL, ..Status::EMPTY }, None));
        }
        let finished = self.done.get()?;
        let status = if self.is_send { Status::EMPTY } else { request::received(finished, comm) };
        Some((status, finished.error.clone()))
    }

    fn start(setup: &Arc<Setup>, is_send: bool) -> Outcome<Active> {
        let state = State { ready: vec![false; setup.partitions], left: setup.partitions };
        let done = Completion::new();
        if !is_send && let Some(peer) = setup.peer {
            let sink =
                Sink::Typed { ptr: setup.at as *mut u8, count: setup.elements, of: Arc::clone(&setup.of) };
            let recv = Recv { source: Some(peer), tag: Some(setup.tag), sink, done: Arc::clone(&done) };
            net::net()?.recv(setup.comm.context(PARTITIONED), recv);
        }
        let started = Self { state: Mutex::new(state), done, is_send, setup: Arc::clone(setup) };
        if is_send && setup.partitions == 0 {
            started.send()?;
        }
        Ok(Active::Partitioned(Arc::new(started)))
    }

    fn send(&self) -> Outcome {
        let Some(peer) = self.setup.peer else { return Ok(()) };
        let mut bytes = Vec::new();
        // SAFETY: reads the program's elements, all of which the program has marked as ready.
        unsafe { self.setup.of.pack(self.setup.at as *const u8, self.setup.elements, &mut bytes) };
        let context = self.setup.comm.context(PARTITIONED);
        net::net()?.send(peer, context, self.setup.tag, Source::Kept(bytes), false, &self.done);
        Ok(())
    }

    fn ready(&self, partition: c_int) -> Outcome {
        if !self.is_send {
            return fail(Class::Request, "only partitions of a send can be marked ready");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ready) = usize::try_from(partition).ok().and_then(|at| state.ready.get_mut(at)) else {
            return fail(
                Class::Arg,
                format!("partition {partition} is out of range: there are {}", self.setup.partitions),
            );
        };
        if std::mem::replace(ready, true) {
            return fail(Class::Arg, format!("partition {partition} is already ready"));
        }
        state.left -= 1;
        if state.left == 0 { self.send() } else { Ok(()) }
    }
}

#[allow(clippy::too_many_arguments, reason = "the standard's")]
unsafe fn make(
    is_send: bool,
    buf: *const c_void,
    partitions: c_int,
    n: i64,
    of: c_int,
    rank: c_int,
    tag: c_int,
    comm: c_int,
    into: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (partitions, each) = (count(partitions.into())?, count(n)?);
    let of = datatype::committed(of)?;
    let peer = match usize::try_from(rank).ok().and_then(|at| comm.peers.get(at)) {
        Some(member) => Some(*member),
        None if rank == PROC_NULL => None,
        None => {
            return fail(
                Class::Rank,
                format!("rank {rank} is out of range for a communicator of {}", comm.peers.len()),
            );
        }
    };
    if tag < 0 {
        return fail(Class::Tag, format!("the tag is {tag}"));
    }
    let elements = partitions * each;
    let setup = Setup { comm: Arc::clone(&comm), at: buf as usize, elements, of, peer, tag, partitions };
    let setup = Arc::new(setup);
    // SAFETY: the caller's promise.
    unsafe { put(into, request::persistent(move || Partitioned::start(&setup, is_send), &comm)) }
}

#[allow(clippy::too_many_arguments, reason = "the standard's")]
pub unsafe fn psend_init(
    buf: *const c_void,
    partitions: c_int,
    n: i64,
    of: c_int,
    to: c_int,
    tag: c_int,
    comm: c_int,
    _info: c_int,
    into: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { make(true, buf, partitions, n, of, to, tag, comm, into) }
}

#[allow(clippy::too_many_arguments, reason = "the standard's")]
pub unsafe fn precv_init(
    buf: *mut c_void,
    partitions: c_int,
    n: i64,
    of: c_int,
    from: c_int,
    tag: c_int,
    comm: c_int,
    _info: c_int,
    into: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { make(false, buf, partitions, n, of, from, tag, comm, into) }
}

pub unsafe fn pready(partition: c_int, handle: c_int) -> Outcome {
    request::partitioned(handle)?.ready(partition)
}

pub unsafe fn pready_range(low: c_int, high: c_int, handle: c_int) -> Outcome {
    let partitioned = request::partitioned(handle)?;
    (low..=high).try_for_each(|partition| partitioned.ready(partition))
}

pub unsafe fn pready_list(n: c_int, partitions: *const c_int, handle: c_int) -> Outcome {
    let partitioned = request::partitioned(handle)?;
    // SAFETY: the caller's promise.
    unsafe { slice(partitions, n)? }.iter().try_for_each(|partition| partitioned.ready(*partition))
}

pub unsafe fn parrived(handle: c_int, partition: c_int, flag: *mut c_int) -> Outcome {
    let Ok(partitioned) = request::partitioned(handle) else {
        // The partitions of an inactive request count as arrived.
        // SAFETY: the caller's promise.
        return unsafe { put(flag, 1) };
    };
    if partitioned.is_send {
        return fail(Class::Request, "only partitions of a receive can arrive");
    }
    if !(0..partitioned.setup.partitions as c_int).contains(&partition) {
        return fail(
            Class::Arg,
            format!("partition {partition} is out of range: there are {}", partitioned.setup.partitions),
        );
    }
    if !partitioned.is_over() && !net::poll_once() {
        net::nap();
    }
    // SAFETY: the caller's promise.
    unsafe { put(flag, partitioned.is_over().into()) }
}
