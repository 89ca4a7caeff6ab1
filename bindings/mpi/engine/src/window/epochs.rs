//! Synchronisation of windows: fences, exposure and access epochs, and locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::Arc;

use super::handle_messages::{awaited, refusal};
use super::wire::{Kind, Message};
use super::{Operation, Window, lookup};
use crate::args::put;
use crate::collective::{algorithms, schedule};
use crate::constants::*;
use crate::error::{Class, Outcome, fail};
use crate::group;
use crate::net;

/// This rank's open epochs, which say which targets it may access.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    fence: bool,
    all_locked: bool,
    locked: BTreeSet<u32>,
    /// Targets of the access epoch that has been started, and origins of the exposure epoch that has been posted.
    started: Option<Vec<u32>>,
    posted: Option<Vec<u32>>,
    /// For each target, how many operations have been sent to it, and how many of those are known to be done.
    sent: BTreeMap<u32, (u64, u64)>,
}

/// The epochs that may be open when another one begins.
#[derive(Clone, Copy, PartialEq)]
enum Overlap {
    None,
    /// Locks of other targets.
    Locks,
}

const NO_SUCCEED: c_int = 16384;

impl Window {
    /// Checks that a target may be accessed.
    pub(super) fn access(&self, target: u32) -> Outcome {
        let epochs = self.epochs();
        let started = epochs.started.as_ref().is_some_and(|targets| targets.contains(&target));
        if !epochs.fence && !epochs.all_locked && !started && !epochs.locked.contains(&target) {
            return fail(
                Class::RmaSync,
                format!(
                    "rank {target} is accessed outside of an epoch: call MPI_Win_fence, MPI_Win_start or MPI_Win_lock first"
                ),
            );
        }
        Ok(())
    }

    /// Counts an operation that has been sent to a target. A flush of another thread that has been sent before does not cover it.
    pub(super) fn has_told(&self, target: u32) {
        self.epochs().sent.entry(target).or_default().0 += 1;
    }

    pub(super) fn tell(&self, target: u32, message: &Message<'_>) -> Outcome {
        net::net()?.send_to_window(self.world(target), message.encode());
        Ok(())
    }

    /// Sends a request to a target; returns the operation that the answer completes.
    fn ask(&self, target: u32, kind: Kind, op: c_int) -> Outcome<Arc<Operation>> {
        let operation = Operation::new(None);
        let message = Message { op, ..Message::plain(kind, self.number(), awaited(&operation)) };
        self.tell(target, &message)?;
        Ok(operation)
    }

    /// Takes the lock of a target, or asks for it.
    fn begin_access(&self, target: u32, kind: c_int) -> Outcome<Option<Arc<Operation>>> {
        match self.near(target) {
            Some(near) => near.acquire(kind == LOCK_EXCLUSIVE).map(|()| None),
            None => self.ask(target, Kind::Lock, kind).map(Some),
        }
    }

    /// Releases the lock of a target, or asks it to do so: it handles the message after all earlier ones of this rank.
    fn end_access(&self, target: u32) -> Outcome<Option<(u32, Arc<Operation>)>> {
        match self.near(target) {
            Some(near) => {
                near.release();
                Ok(None)
            }
            None => self.ask(target, Kind::Unlock, 0).map(|asked| Some((target, asked))),
        }
    }

    /// Waits until all operations on the given targets are done.
    fn flush(&self, of: impl Fn(u32) -> bool) -> Outcome {
        let open = |(target, (sent, done)): (&u32, &(u64, u64))| {
            (sent > done && of(*target)).then_some((*target, *sent))
        };
        let targets: Vec<(u32, u64)> = self.epochs().sent.iter().filter_map(open).collect();
        let mut asked = Vec::new();
        for (target, _) in &targets {
            asked.push((*target, self.ask(*target, Kind::Flush, 0)?));
        }
        let outcome = self.end(asked);
        let mut epochs = self.epochs();
        for (target, sent) in targets {
            epochs.sent.entry(target).and_modify(|(_, done)| *done = sent.max(*done));
        }
        outcome
    }

    /// Waits for the answers of targets that all earlier operations are done. Returns the first failure of these operations.
    fn end(&self, asked: Vec<(u32, Arc<Operation>)>) -> Outcome {
        let mut outcome = Ok(());
        for (target, operation) in asked {
            outcome = outcome.and(operation.wait());
            if self.locks().failures.remove(&target) {
                outcome = outcome.and(Err(refusal()));
            }
        }
        outcome
    }

    pub(super) fn barrier(&self) -> Outcome {
        let mut s = schedule::Schedule::new(&self.comm);
        algorithms::barrier(&mut s);
        schedule::complete(s)
    }

    fn members(&self, group: c_int) -> Outcome<Vec<u32>> {
        let group = group::lookup(group)?;
        let place =
            |member: &u32| self.comm.members.iter().position(|other| other == member).map(|at| at as u32);
        match group.iter().map(place).collect() {
            Some(members) => Ok(members),
            None => fail(Class::Group, "the group has ranks that are not in the window"),
        }
    }

    /// Checks that no epoch is open, for the end of the window. A fence leaves none that must be ended.
    pub(super) fn is_idle(&self) -> Outcome {
        let epochs = self.epochs();
        let remedy = match () {
            () if epochs.started.is_some() => "MPI_Win_complete",
            () if epochs.posted.is_some() => "MPI_Win_wait",
            () if epochs.all_locked => "MPI_Win_unlock_all",
            () if !epochs.locked.is_empty() => "MPI_Win_unlock",
            () => return Ok(()),
        };
        fail(Class::RmaSync, format!("the window has an open epoch: call {remedy} first"))
    }

    /// Checks that no access epoch is open that overlaps with the next one. Locks of several targets may overlap.
    fn may_access(&self, next: &str, overlap: Overlap) -> Outcome {
        let epochs = self.epochs();
        if epochs.started.is_some() {
            return fail(Class::RmaSync, format!("{next} after MPI_Win_start: call MPI_Win_complete first"));
        }
        if epochs.all_locked || overlap == Overlap::None && !epochs.locked.is_empty() {
            return fail(Class::RmaSync, format!("{next} while the window is locked: unlock it first"));
        }
        Ok(())
    }

    fn is_locked(&self, target: u32) -> Outcome {
        let epochs = self.epochs();
        if epochs.all_locked || epochs.locked.contains(&target) {
            return Ok(());
        }
        fail(Class::RmaSync, format!("rank {target} of the window is not locked"))
    }

    /// Returns whether all origins of the exposure have ended their accesses; then consumes their messages.
    fn is_complete(&self) -> Outcome<bool> {
        let Some(origins) = self.epochs().posted.clone() else {
            return fail(Class::RmaSync, "no exposure has begun: call MPI_Win_post first");
        };
        let mut locks = self.locks();
        if !origins.iter().all(|origin| locks.completes[*origin as usize] > 0) {
            return Ok(false);
        }
        origins.iter().for_each(|origin| locks.completes[*origin as usize] -= 1);
        drop(locks);
        self.epochs().posted = None;
        Ok(true)
    }
}

fn rank(window: &Window, rank: c_int) -> Outcome<Option<u32>> {
    match u32::try_from(rank) {
        Ok(rank) if rank < window.comm.size() => Ok(Some(rank)),
        _ if rank == PROC_NULL => Ok(None),
        _ => fail(Class::Rank, format!("rank {rank} is out of range for a window of {}", window.comm.size())),
    }
}

pub unsafe fn win_fence(assertion: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    {
        let epochs = window.epochs();
        if epochs.all_locked
            || !epochs.locked.is_empty()
            || epochs.started.is_some()
            || epochs.posted.is_some()
        {
            return fail(Class::RmaSync, "a fence inside an epoch of another kind");
        }
    }
    // The other ranks wait for this one, whatever has become of its operations.
    let outcome = window.flush(|_| true);
    window.barrier()?;
    window.epochs().fence = assertion & NO_SUCCEED == 0;
    outcome
}

pub unsafe fn win_start(group: c_int, _assertion: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    let targets = window.members(group)?;
    window.may_access("an access is started", Overlap::None)?;
    let all_have_posted = || {
        let mut locks = window.locks();
        let all = targets.iter().all(|target| locks.posts[*target as usize] > 0);
        if all {
            targets.iter().for_each(|target| locks.posts[*target as usize] -= 1);
        }
        all
    };
    net::wait_until(all_have_posted)?;
    let mut epochs = window.epochs();
    epochs.fence = false;
    epochs.started = Some(targets);
    Ok(())
}

pub unsafe fn win_complete(window: c_int) -> Outcome {
    let window = lookup(window)?;
    let Some(targets) = window.epochs().started.clone() else {
        return fail(Class::RmaSync, "no access has been started: call MPI_Win_start first");
    };
    let outcome = window.flush(|target| targets.contains(&target));
    for target in &targets {
        window.tell(*target, &Message::plain(Kind::Complete, window.number(), 0))?;
    }
    window.epochs().started = None;
    outcome
}

pub unsafe fn win_post(group: c_int, _assertion: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    let origins = window.members(group)?;
    {
        let mut epochs = window.epochs();
        if epochs.posted.is_some() {
            return fail(Class::RmaSync, "an exposure has already begun");
        }
        epochs.fence = false;
        epochs.posted = Some(origins.clone());
    }
    origins
        .iter()
        .try_for_each(|origin| window.tell(*origin, &Message::plain(Kind::Post, window.number(), 0)))
}

pub unsafe fn win_wait(window: c_int) -> Outcome {
    let window = lookup(window)?;
    let mut outcome = window.is_complete()?;
    net::wait_until(|| {
        outcome = outcome || window.is_complete().unwrap_or(true);
        outcome
    })
}

pub unsafe fn win_test(window: c_int, flag: *mut c_int) -> Outcome {
    let window = lookup(window)?;
    let looked = net::look();
    let complete = window.is_complete()?;
    if !complete {
        looked?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(flag, complete.into()) }
}

pub unsafe fn win_lock(kind: c_int, target: c_int, _assertion: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    if kind != LOCK_EXCLUSIVE && kind != LOCK_SHARED {
        return fail(Class::Locktype, format!("unknown lock type {kind}"));
    }
    let Some(target) = rank(&window, target)? else { return Ok(()) };
    window.may_access("a rank is locked", Overlap::Locks)?;
    if window.epochs().locked.contains(&target) {
        return fail(Class::RmaSync, format!("rank {target} of the window is already locked"));
    }
    window.begin_access(target, kind)?.map_or(Ok(()), |asked| asked.wait())?;
    let mut epochs = window.epochs();
    epochs.fence = false;
    epochs.locked.insert(target);
    Ok(())
}

pub unsafe fn win_unlock(target: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    let Some(target) = rank(&window, target)? else { return Ok(()) };
    if !window.epochs().locked.contains(&target) {
        return fail(Class::RmaSync, format!("rank {target} of the window is not locked"));
    }
    let outcome = window.end(window.end_access(target)?.into_iter().collect());
    let mut epochs = window.epochs();
    epochs.locked.remove(&target);
    epochs.sent.remove(&target);
    outcome
}

pub unsafe fn win_lock_all(_assertion: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    window.may_access("all ranks are locked", Overlap::None)?;
    let mut asked = Vec::new();
    for target in 0..window.comm.size() {
        asked.extend(window.begin_access(target, LOCK_SHARED)?);
    }
    asked.into_iter().try_for_each(|operation| operation.wait())?;
    let mut epochs = window.epochs();
    epochs.fence = false;
    epochs.all_locked = true;
    Ok(())
}

pub unsafe fn win_unlock_all(window: c_int) -> Outcome {
    let window = lookup(window)?;
    if !window.epochs().all_locked {
        return fail(Class::RmaSync, "the window is not locked: call MPI_Win_lock_all first");
    }
    let mut asked = Vec::new();
    for target in 0..window.comm.size() {
        asked.extend(window.end_access(target)?);
    }
    let outcome = window.end(asked);
    let mut epochs = window.epochs();
    epochs.all_locked = false;
    epochs.sent.clear();
    outcome
}

pub unsafe fn win_flush(target: c_int, window: c_int) -> Outcome {
    let window = lookup(window)?;
    let Some(target) = rank(&window, target)? else { return Ok(()) };
    window.is_locked(target)?;
    window.flush(|other| other == target)
}

pub unsafe fn win_flush_all(window: c_int) -> Outcome {
    let window = lookup(window)?;
    if !window.epochs().all_locked && window.epochs().locked.is_empty() {
        return fail(Class::RmaSync, "the window is not locked");
    }
    window.flush(|_| true)
}

pub unsafe fn win_flush_local(target: c_int, window: c_int) -> Outcome {
    // SAFETY: the caller's promise. A full flush is needed, since the buffer of a get is filled only by the target's answer.
    unsafe { win_flush(target, window) }
}

pub unsafe fn win_flush_local_all(window: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { win_flush_all(window) }
}

pub unsafe fn win_sync(window: c_int) -> Outcome {
    lookup(window)?;
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    net::poll_once();
    Ok(())
}
