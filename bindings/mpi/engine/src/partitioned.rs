//! Partitioned messages: the partitions of a buffer become ready, travel and arrive one by one.
//!
//! Sends and receives match in the order in which they are initialized, not in that of their starts. So `MPI_Psend_init` sends the receiver
//! a [`Cut`], for which `MPI_Precv_init` posts a receive. The cut names the tags of the partitions, each of which is a message of its own.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use kolo_transport::Unpoisoned;

use crate::args::{count, put, slice};
use crate::collective::schedule::{Memory, Schedule, Started};
use crate::comm::{self, COLLECTIVES, Comm, PARTITIONED};
use crate::constants::{PROC_NULL, Status, TAG_MAX};
use crate::datatype::{self, Type};
use crate::error::{Class, Fail, Outcome, fail};
use crate::net::{self, Completion, Elements, Finished, Recv, Sink, Source};
use crate::request::{self, Active};

/// The tags of partitions lie in the upper half of the tags of collectives, of which schedules use the lower half.
const PARTITION_TAGS: c_int = (TAG_MAX >> 1) + 1;

/// The number of partitions for which this process has assigned tags.
static TAGGED: AtomicU32 = AtomicU32::new(0);

/// The sender's division of a message.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The number from which the tag of the first partition follows.
    first: u32,
    partitions: u32,
    /// Bytes of a partition.
    bytes: u64,
}

impl Cut {
    const LEN: usize = 16;

    fn encode(self) -> Vec<u8> {
        let mut bytes = self.first.to_le_bytes().to_vec();
        bytes.extend(self.partitions.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let long = bytes.get(8..16)?.try_into().ok().map(u64::from_le_bytes);
        // The sender's number of partitions is an `int`.
        let partitions = word(4).filter(|partitions| c_int::try_from(*partitions).is_ok());
        Some(Self { first: word(0)?, partitions: partitions?, bytes: long? })
    }

    fn tag(self, partition: u32) -> c_int {
        PARTITION_TAGS | (self.first.wrapping_add(partition) as c_int & (PARTITION_TAGS - 1))
    }
}

/// A partitioned send or receive that has been started.
#[derive(Debug)]
pub struct Partitioned {
    state: Mutex<State>,
    setup: Arc<Setup>,
}

/// The messages of the partitions: of a send, those that are ready; of a receive, all of them once the cut is known.
#[derive(Debug)]
struct State {
    messages: Vec<Option<Arc<Completion>>>,
    /// Partitions that are not ready yet.
    left: usize,
    /// The reason why the operation has been given up, if it has.
    given_up: Option<Fail>,
}

#[derive(Debug)]
struct Setup {
    comm: Arc<Comm>,
    at: usize,
    partitions: usize,
    /// Elements of a partition.
    each: usize,
    of: Arc<Type>,
    peer: Option<u32>,
    tag: c_int,
    end: End,
}

#[derive(Debug)]
enum End {
    Send(Cut),
    Receive(Receive),
}

#[derive(Debug, Default)]
struct Receive {
    cut: Mutex<Arriving>,
    /// The receive of the cut, which may fail.
    meeting: OnceLock<Arc<Started>>,
}

/// The cut of a receive: on its way, with the operation that has been started without it, or here.
#[derive(Debug, Default)]
struct Arriving {
    cut: Option<Cut>,
    waits: Option<Arc<Partitioned>>,
}

impl Receive {
    fn cut(&self) -> MutexGuard<'_, Arriving> {
        self.cut.lock().unpoisoned()
    }

    fn failure(&self) -> Option<Fail> {
        self.meeting.get()?.outcome()?.err()
    }
}

impl Setup {
    fn partition_bytes(&self) -> usize {
        self.each * self.of.size()
    }

    fn bytes(&self) -> usize {
        self.partitions * self.partition_bytes()
    }

    /// Returns the elements from `from` on.
    fn element(&self, from: usize) -> *mut u8 {
        (self.at as *mut u8).wrapping_offset((from as i64 * self.of.extent) as isize)
    }

    /// Returns a partition of a send.
    fn source(&self, partition: usize) -> Source {
        let from = self.element(partition * self.each);
        if self.of.is_flat() {
            return Source::Lent(from.wrapping_offset(self.of.true_lower as isize), self.partition_bytes());
        }
        let elements = Elements { ptr: from, count: self.each, of: Arc::clone(&self.of) };
        Source::Elements(elements, self.partition_bytes())
    }

    /// Returns the memory of a range of the message's bytes, as far as the receive has room.
    fn sink(&self, bytes: Range<usize>) -> Outcome<Sink> {
        let (from, to) = (bytes.start.min(self.bytes()), bytes.end.min(self.bytes()));
        let size = self.of.size().max(1);
        if self.of.is_flat() {
            let ptr = self.element(0).wrapping_offset(self.of.true_lower as isize).wrapping_add(from);
            return Ok(Sink::Flat { ptr, room: to - from });
        }
        if from.is_multiple_of(size) && to.is_multiple_of(size) {
            let (ptr, count) = (self.element(from / size), (to - from) / size);
            return Ok(Sink::Typed(Elements { ptr, count, of: Arc::clone(&self.of) }));
        }
        // The sender's partitions end inside elements.
        let of = datatype::bytes_of(&self.of, from..to)?;
        Ok(Sink::Typed(Elements { ptr: self.element(0), count: 1, of }))
    }

    /// Posts the receive of the sender's cut.
    fn meet(self: &Arc<Self>) -> Outcome {
        let (Some(peer), End::Receive(receive)) = (self.peer, &self.end) else { return Ok(()) };
        let whole = self.comm.whole();
        let Some(from) = whole.members.iter().position(|member| *member == peer) else {
            return fail(Class::Intern, "the sender is not in the communicator");
        };
        let mut s = Schedule::tagged(whole, self.comm.context(PARTITIONED), self.tag);
        let told = s.keep(Cut::LEN);
        s.recv(from as u32, told);
        s.fence();
        // The program may free the request before the cut arrives.
        let this = Arc::downgrade(self);
        s.run(move || this.upgrade().map_or(Ok(()), |this| this.cut_arrived(told)));
        let _ = receive.meeting.set(Started::start(s));
        Ok(())
    }

    fn cut_arrived(&self, told: Memory) -> Outcome {
        let End::Receive(receive) = &self.end else { return Ok(()) };
        // SAFETY: the schedule's message has arrived in this memory.
        let Some(cut) = Cut::decode(unsafe { told.bytes() }) else {
            return fail(Class::Intern, "a partitioned send announced itself in an unknown form");
        };
        let mut arriving = receive.cut();
        arriving.cut = Some(cut);
        arriving.waits.take().map_or(Ok(()), |operation| operation.post(cut))
    }
}

impl Partitioned {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    fn failure(&self) -> Option<Fail> {
        match &self.setup.end {
            End::Send(_) => None,
            End::Receive(receive) => receive.failure(),
        }
    }

    /// Returns whether the operation is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if self.setup.peer.is_none() || self.failure().is_some() {
            return true;
        }
        let state = self.state();
        let is_done =
            |message: &Option<Arc<Completion>>| message.as_ref().is_some_and(|message| message.is_done());
        state.given_up.is_some() || state.left == 0 && state.messages.iter().all(is_done)
    }

    /// Ends the operation, since a wait for it has failed. Returns its messages, which the caller must give up.
    pub fn give_up(&self, why: &Fail) -> Vec<Arc<Completion>> {
        if self.is_over() {
            return Vec::new();
        }
        if let End::Receive(receive) = &self.setup.end {
            receive.cut().waits = None;
        }
        let mut state = self.state();
        state.given_up = Some(why.clone());
        state.messages.iter().flatten().map(Arc::clone).collect()
    }

    /// Makes a failure go to the error handler of the communicator.
    fn blame(&self, failure: Fail) -> Fail {
        comm::on(&self.setup.comm, failure)
    }

    /// Returns the status and the error if the operation is complete.
    #[must_use]
    pub fn ended(&self, comm: &Comm) -> Option<(Status, Option<Fail>)> {
        let Some(peer) = self.setup.peer else {
            return Some((Status { source: PROC_NULL, ..Status::EMPTY }, None));
        };
        if !self.is_over() {
            return None;
        }
        let state = self.state();
        let ends = || state.messages.iter().flatten().filter_map(|message| message.get());
        let given_up = || state.given_up.clone();
        let error = self.failure().or_else(given_up).or_else(|| ends().find_map(|end| end.error.clone()));
        if matches!(self.setup.end, End::Send(_)) {
            return Some((Status::EMPTY, error));
        }
        let bytes = ends().map(|end| end.bytes).sum();
        let all = Finished { source: peer, tag: self.setup.tag, bytes, error: None, cancelled: false };
        Some((request::received(&all, comm), error))
    }

    fn start(setup: &Arc<Setup>) -> Outcome<Active> {
        let messages = match setup.end {
            End::Send(_) => vec![None; setup.partitions],
            End::Receive(_) => Vec::new(),
        };
        let left = if matches!(setup.end, End::Send(_)) { setup.partitions } else { 1 };
        let started = Arc::new(Self {
            state: Mutex::new(State { messages, left, given_up: None }),
            setup: Arc::clone(setup),
        });
        if let (Some(_), End::Receive(receive)) = (setup.peer, &setup.end) {
            let mut arriving = receive.cut();
            match arriving.cut {
                Some(cut) => started.post(cut)?,
                None => arriving.waits = Some(Arc::clone(&started)),
            }
        }
        Ok(Active::Partitioned(started))
    }

    /// Posts the receives of all partitions.
    fn post(&self, cut: Cut) -> Outcome {
        let Some(peer) = self.setup.peer else { return Ok(()) };
        let (context, len) = (self.setup.comm.context(COLLECTIVES), cut.bytes as usize);
        let mut messages = Vec::new();
        for partition in 0..cut.partitions {
            let from = (partition as usize).saturating_mul(len);
            let sink = self.setup.sink(from..from.saturating_add(len))?;
            let done = Completion::new();
            let (source, tag) = (Some(peer), Some(cut.tag(partition)));
            net::net()?.recv(context, Recv { source, tag, sink, done: Arc::clone(&done) });
            messages.push(Some(done));
        }
        *self.state() = State { messages, left: 0, given_up: None };
        Ok(())
    }

    fn ready(&self, partition: c_int) -> Outcome {
        let End::Send(cut) = self.setup.end else {
            return fail(Class::Request, "only partitions of a send can be marked ready");
        };
        let mut state = self.state();
        let Some(message) = usize::try_from(partition).ok().and_then(|at| state.messages.get_mut(at)) else {
            return fail(
                Class::Arg,
                format!("partition {partition} is out of range: there are {}", self.setup.partitions),
            );
        };
        if message.is_some() {
            return fail(Class::Arg, format!("partition {partition} is already ready"));
        }
        let done = Completion::new();
        *message = Some(Arc::clone(&done));
        state.left -= 1;
        drop(state);
        let Some(peer) = self.setup.peer else { return Ok(()) };
        let (context, data) = (self.setup.comm.context(COLLECTIVES), self.setup.source(partition as usize));
        net::net()?.send(peer, context, cut.tag(partition as u32), data, false, &done);
        Ok(())
    }

    /// Returns whether a partition of a receive is in place, after a look for new messages.
    fn arrived(&self, partition: c_int) -> Outcome<bool> {
        if matches!(self.setup.end, End::Send(_)) {
            return fail(Class::Request, "only partitions of a receive can arrive");
        }
        let Some(at) = usize::try_from(partition).ok().filter(|at| *at < self.setup.partitions) else {
            return fail(
                Class::Arg,
                format!("partition {partition} is out of range: there are {}", self.setup.partitions),
            );
        };
        let is_here = || self.is_over() || self.has(at);
        if !is_here() {
            net::look()?;
        }
        Ok(is_here())
    }

    /// Returns whether a partition of a receive is in place, as far as is known.
    fn has(&self, partition: usize) -> bool {
        let End::Receive(receive) = &self.setup.end else { return false };
        let Some(cut) = receive.cut().cut else { return false };
        let (setup, each, state) = (&self.setup, cut.bytes as usize, self.state());
        let own = setup.partition_bytes();
        let is_done =
            |message: &Option<Arc<Completion>>| message.as_ref().is_some_and(|message| message.is_done());
        if state.left > 0 {
            return false;
        }
        if cut.partitions as usize == setup.partitions && each == own {
            return state.messages.get(partition).is_some_and(is_done);
        }
        if own == 0 {
            // Empty partitions that the sender has cut differently arrive with the whole message.
            return false;
        }
        let (from, to) = (partition * own, (partition + 1) * own);
        let holds = |at: usize| {
            let start = at.saturating_mul(each);
            start < to && start.saturating_add(each) > from
        };
        let mut parts = state.messages.iter().enumerate().filter(|(at, _)| holds(*at));
        parts.all(|(_, message)| is_done(message))
    }
}

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
    if !(0..=TAG_MAX).contains(&tag) {
        return fail(Class::Tag, format!("the tag is {tag}, but tags are 0 to {TAG_MAX}"));
    }
    let Some(bytes) = each.checked_mul(of.size()).filter(|bytes| bytes.checked_mul(partitions).is_some())
    else {
        return fail(Class::Count, "the partitions are larger than the address space");
    };
    let end = if is_send {
        let first = TAGGED.fetch_add(partitions as u32, Ordering::Relaxed);
        End::Send(Cut { first, partitions: partitions as u32, bytes: bytes as u64 })
    } else {
        End::Receive(Receive::default())
    };
    let setup =
        Arc::new(Setup { comm: Arc::clone(&comm), at: buf as usize, partitions, each, of, peer, tag, end });
    match (peer, &setup.end) {
        (Some(peer), End::Send(cut)) => {
            let (context, told) = (comm.context(PARTITIONED), Source::Kept(cut.encode()));
            net::net()?.send(peer, context, tag, told, false, &Completion::new());
        }
        _ => setup.meet()?,
    }
    // SAFETY: the caller's promise.
    unsafe { put(into, request::persistent(move || Partitioned::start(&setup), &comm)) }
}

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
    let partitioned = request::partitioned(handle)?;
    partitioned.ready(partition).map_err(|failure| partitioned.blame(failure))
}

pub unsafe fn pready_range(low: c_int, high: c_int, handle: c_int) -> Outcome {
    let partitioned = request::partitioned(handle)?;
    let ready = (low..=high).try_for_each(|partition| partitioned.ready(partition));
    ready.map_err(|failure| partitioned.blame(failure))
}

pub unsafe fn pready_list(n: c_int, partitions: *const c_int, handle: c_int) -> Outcome {
    let partitioned = request::partitioned(handle)?;
    // SAFETY: the caller's promise.
    let partitions = unsafe { slice(partitions, n) };
    let ready = partitions.and_then(|all| all.iter().try_for_each(|partition| partitioned.ready(*partition)));
    ready.map_err(|failure| partitioned.blame(failure))
}

pub unsafe fn parrived(handle: c_int, partition: c_int, flag: *mut c_int) -> Outcome {
    let Ok(partitioned) = request::partitioned(handle) else {
        // The partitions of an inactive request count as arrived.
        // SAFETY: the caller's promise.
        return unsafe { put(flag, 1) };
    };
    let arrived = partitioned.arrived(partition).map_err(|failure| partitioned.blame(failure))?;
    // SAFETY: the caller's promise.
    unsafe { put(flag, arrived.into()) }
}
