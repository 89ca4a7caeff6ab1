//! The helper thread: makes progress on asynchronous operations for which no thread waits.
//!
//! It starts with the first asynchronous call, and stands back while another thread drives the engine for itself.
//!
//! Waking a sleeping thread costs a system call and, where ranks share processors, a turn of another thread, which is
//! more than most short operations. After some work the helper therefore naps for a while and looks for more by itself.
//! Only then does it sleep until it is called.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::driver::{Fault, Goal, drive};
use super::{Patience, Step, fail, lend, time_out};
use crate::call::Waited;
use crate::communicator::{Core, CoreGuard, Shared};
use crate::engine::Id;
use crate::wait::Pacer;

/// Interval between two looks of a napping helper: the delay of an operation that is started meanwhile.
const NAP: Duration = Duration::from_micros(200);

/// Time for which a helper naps after the last work, before it sleeps.
const NAPS_MAX: Duration = Duration::from_millis(10);

const HELPING: Waited = Waited::Other("progress of asynchronous operations");

/// Makes sure that a helper thread runs and will notice new work. Returns whether there is one, since the system may
/// refuse a thread.
pub(crate) fn call_helper(shared: &Arc<Shared>) -> bool {
    shared.attendance.leave_work(|helper| {
        if helper.thread.is_none() && !helper.stop {
            let spawned = spawn(shared);
            // Each poll of a task tries again.
            let is_known = shared.attendance.note_refused(spawned.is_err());
            if let (Err(error), false) = (&spawned, is_known) {
                tracing::warn!(%error, "no helper thread: asynchronous operations progress in wait");
            }
            helper.thread = spawned.ok();
        }
        // The thread that closes the communicator wakes all tasks at its end.
        helper.thread.is_some() || helper.stop
    })
}

fn spawn(shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    #[cfg(test)]
    if refused::is() {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    let own = Arc::clone(shared);
    let name = format!("kolo-helper-{}", shared.group.rank);
    std::thread::Builder::new().name(name).spawn(move || help_to_the_end(&own))
}

/// Returns whether the task that awaits an operation should wait in its own thread: there is no helper thread, and the
/// operation is over, its time has run out, or something has happened that ends it.
pub(crate) fn ends_unhelped(shared: &Shared, id: Id) -> bool {
    if !shared.attendance.is_refused() {
        return false;
    }
    let core = shared.core();
    if core.engine.is_done(id) || must_end(shared, &core, id) {
        return true;
    }
    let Some((late, waited, limit)) = core.awaited.overdue() else { return false };
    let peers = core.waiting_for(late);
    drop(core);
    drop(time_out(shared, waited, limit, &peers));
    true
}

/// Returns whether something has happened that ends operations, or this one, which is not done: a failure, an abort, or
/// the departure of a rank that it needs.
pub(crate) fn must_end(shared: &Shared, core: &Core, id: Id) -> bool {
    if shared.membership.abort_flag().is_raised() || core.engine.failure().is_some() {
        return true;
    }
    let (peers, has_left) = (core.waiting_for(id), |peer: &u32| shared.membership.departed(*peer));
    let is_enough = core.engine.is_from_any(id);
    !peers.is_empty() && if is_enough { peers.iter().all(has_left) } else { peers.iter().any(has_left) }
}

/// Ends the helper thread.
pub(super) fn stop(shared: &Shared) {
    let thread = shared.attendance.dismiss();
    // The last handle may be dropped on the helper thread itself, which must not wait for its own end.
    if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
        let _ = thread.join();
    }
}

/// Helps until nothing is left to help with, and then lets the tasks find out why.
fn help_to_the_end(shared: &Shared) {
    let helped = catch_unwind(AssertUnwindSafe(|| lend(shared, || help(shared))));
    // After a failure or a panic, no operation will finish any more, and the tasks get the error.
    wake_all_tasks(shared);
    if let Err(panic) = helped {
        resume_unwind(panic);
    }
}

fn help(shared: &Shared) {
    let attendance = &shared.attendance;
    let mut worked = Instant::now();
    attendance.awake();
    let mut helper = attendance.helper();
    while !helper.stop {
        if attendance.is_unattended() {
            drop(helper);
            if !drive_unattended(shared) {
                // After a failure there is nothing to drive until the communicator is dropped.
                return;
            }
            worked = Instant::now();
            helper = attendance.helper();
        } else if worked.elapsed() < NAPS_MAX {
            helper = attendance.nap(helper, NAP);
        } else {
            helper = attendance.rest(helper);
        }
    }
}

/// Drives until another thread does, or until nothing is left. Returns false after a failure, which the waiting thread
/// will find out.
fn drive_unattended(shared: &Shared) -> bool {
    let mut patience = Patience::new(Duration::MAX.into(), Pacer::beside_computation(shared.policy));
    let core = shared.core();
    let (first, waited) = core.awaited.first().unzip();
    let driven = drive(shared, core, Help { shared, first }, waited.unwrap_or(HELPING), &mut patience);
    let Ok(core) = driven else { return false };
    if core.engine.failure().is_some() {
        drop(core);
        // Perhaps no thread here waits for a long time, but the other ranks must know.
        drop(fail(shared, HELPING));
        return false;
    }
    wake_tasks(core);
    true
}

/// Releases the core and wakes the tasks whose operations are over.
pub(crate) fn wake_tasks(mut core: CoreGuard<'_>) {
    let tasks = core.awaited.take_to_wake();
    drop(core);
    wake_each(tasks);
}

/// Wakes all tasks, since no operation will finish any more.
pub(super) fn wake_all_tasks(shared: &Shared) {
    let tasks = shared.core().awaited.take_all();
    wake_each(tasks);
}

/// Wakes all of these tasks, even if an executor's waker panics. The first panic then goes on.
fn wake_each(tasks: Vec<Waker>) {
    let mut panicked = None;
    for task in tasks {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task.wake())) {
            panicked.get_or_insert(panic);
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

/// The goal of the helper thread: nothing is left, another thread drives, or tasks await something else.
struct Help<'a> {
    shared: &'a Shared,
    /// The first operation that a task awaits. The helper looks for its peers as a waiting thread would.
    first: Option<Id>,
}

impl Goal for Help<'_> {
    fn step(&mut self, core: &mut Core) -> Result<Step, Fault> {
        let moved = core.progress();
        let attendance = &self.shared.attendance;
        if core.engine.outstanding() == 0 {
            attendance.nothing_left();
            return Ok(Step::Done);
        }
        if core.awaited.has_to_wake() {
            return Ok(Step::Done);
        }
        let is_first = core.awaited.first().map(|(id, _)| id) == self.first;
        // Losses and aborts are left to the driver, which still waits for data that was sent before them.
        let has_failed = core.engine.failure().is_some();
        let stop = core.closed || has_failed || attendance.is_relieved() || !is_first;
        Ok(if stop { Step::Done } else { Step::Waits { moved } })
    }

    fn waiting_for(&self, core: &Core) -> Vec<u32> {
        // Before its task is woken, the operation may already be over.
        self.first.filter(|id| !core.engine.is_done(*id)).map_or_else(Vec::new, |id| core.waiting_for(id))
    }

    fn is_from_any(&self, core: &Core) -> bool {
        self.first.is_some_and(|id| core.engine.is_from_any(id))
    }
}

#[cfg(test)]
pub(crate) mod refused {
    //! A system that starts no more threads.

    use std::cell::Cell;

    thread_local! {
        static IS_REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets this thread start no helpers any more.
    pub(crate) fn from_now_on() {
        IS_REFUSED.set(true);
    }

    pub(super) fn is() -> bool {
        IS_REFUSED.get()
    }
}
