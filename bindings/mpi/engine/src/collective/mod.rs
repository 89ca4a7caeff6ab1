//! Collectives. Blocking ones on predefined types use Kolo's collectives; all others are schedules of messages.

pub mod algorithms;
pub mod buffers;
mod fast;
mod inter;
mod neighbors;
mod packed;
mod reducing;
mod reductions;
pub mod schedule;
mod transfers;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub use neighbors::*;
pub use reductions::*;
pub use schedule::Schedule;
pub use transfers::*;

use crate::args::put;
use crate::comm::Comm;
use crate::constants::IN_PLACE;
use crate::error::{Class, Fail, Outcome, fail};
use crate::request::{self, Active};
use kolo_transport::Unpoisoned;
use schedule::{Memory, Started};

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// The call returns when the operation is complete.
    Blocking,
    /// The call returns a request.
    Start(*mut c_int),
    /// The call returns a persistent request, which may be started any number of times.
    Init(*mut c_int),
}

/// Runs, starts or prepares a schedule.
fn go(how: How, comm: &Arc<Comm>, build: impl FnOnce(&mut Schedule) -> Outcome) -> Outcome {
    let mut s = Schedule::new(comm.whole());
    if let Err(why) = build(&mut s) {
        s.refuse(&why);
        return Err(why);
    }
    // SAFETY: the front end has checked the place for the request.
    unsafe {
        match how {
            How::Blocking => schedule::complete(s),
            How::Start(into) => put(into, request::register(Active::Collective(Started::start(s)), comm)),
            How::Init(into) => {
                let started = Started::idle(s);
                let start = move || {
                    started.restart();
                    Ok(Active::Collective(Arc::clone(&started)))
                };
                put(into, request::persistent(start, comm))
            }
        }
    }
}

fn is_in_place(buf: *const c_void) -> bool {
    buf == IN_PLACE
}

fn root(comm: &Comm, rank: c_int) -> Outcome<u32> {
    match u32::try_from(rank) {
        Ok(root) if root < comm.size() => Ok(root),
        _ => fail(Class::Root, format!("root {rank} is out of range for a communicator of {}", comm.size())),
    }
}

/// Returns all ranks' bytes in the order of ranks; all have equally many. All ranks call it.
pub(crate) fn share(comm: &Arc<Comm>, own: &[u8]) -> Outcome<Vec<u8>> {
    let mut s = Schedule::new(comm);
    let all = s.keep(own.len() * comm.size() as usize);
    // SAFETY: the memory is the schedule's own, and begins with this rank's bytes.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), all.at, own.len()) };
    algorithms::all_gather_blocks(&mut s, all, own.len());
    let mut all = run_for(s, all)?;
    all.rotate_right(comm.rank as usize * own.len());
    Ok(all)
}

/// Returns all ranks' bytes in the order of ranks. Every rank knows the lengths. All ranks call it.
pub(crate) fn share_uneven(comm: &Arc<Comm>, own: &[u8], lengths: &[usize]) -> Outcome<Vec<u8>> {
    let mut s = Schedule::new(comm);
    let all = s.keep(lengths.iter().sum());
    let mut next = 0;
    let part = |len: &usize| {
        next += len;
        all.part(next - len, *len)
    };
    let parts: Vec<Memory> = lengths.iter().map(part).collect();
    let place = parts[comm.rank as usize];
    assert_eq!(own.len(), place.len, "a contribution has the length that was announced");
    // SAFETY: the memory is the schedule's own, and the lengths are equal. Test: `collectives`.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), place.at, own.len()) };
    algorithms::all_gather(&mut s, &parts);
    run_for(s, all)
}

/// Exchanges the outcomes of all ranks. Fails if any of them has failed. All ranks call it.
pub(crate) fn all_well<T>(comm: &Arc<Comm>, own: Outcome<T>) -> Outcome<T> {
    let class = own.as_ref().err().map_or(0, |failure| failure.class);
    let all = share(comm, &class.to_le_bytes())?;
    let own = own?;
    let classes = all.chunks_exact(4).map(|class| class.try_into().map_or(0, c_int::from_le_bytes));
    match classes.enumerate().find(|(_, class)| *class != 0) {
        None => Ok(own),
        Some((rank, class)) => {
            Err(Fail { class, text: format!("the call failed on rank {rank}").into(), object: None })
        }
    }
}

/// Returns `len` bytes of rank `from` on all ranks. All ranks call it.
pub(crate) fn tell(comm: &Arc<Comm>, own: &[u8], len: usize, from: u32) -> Outcome<Vec<u8>> {
    let mut s = Schedule::new(comm);
    let all = s.keep(len);
    if comm.rank == from {
        // SAFETY: the memory is the schedule's own; copies no more bytes than both have.
        unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), all.at, own.len().min(len)) };
    }
    algorithms::broadcast(&mut s, all, from);
    run_for(s, all)
}

/// Runs a schedule to its end; returns the contents of `all`, which is memory of the schedule.
fn run_for(mut s: Schedule, all: Memory) -> Outcome<Vec<u8>> {
    let result = Arc::new(std::sync::Mutex::new(Vec::new()));
    let out = Arc::clone(&result);
    s.run(move || {
        // SAFETY: all messages have arrived, so nothing writes the bytes.
        *out.lock().unpoisoned() = unsafe { all.bytes() }.to_vec();
        Ok(())
    });
    schedule::complete(s)?;
    let all = std::mem::take(&mut *result.lock().unpoisoned());
    Ok(all)
}
