//! Decides who drives the engine: threads for themselves, or else the helper thread, whose work is in `drive`.
//!
//! # No work is forgotten
//! A thread that leaves work behind says so ([`Attendance::leave_work`], or the end of an [`Attended`]) and then looks
//! whether the helper sleeps. The helper says that it sleeps and then looks whether there is work that nobody does
//! ([`Attendance::rest`]). All these steps are in one order, so at least one of the two sees the other's step. A wake-up is
//! sent under the lock under which the helper looks. `models` runs this in every order.

use std::thread::JoinHandle;

#[cfg(kolo_model)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(kolo_model)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(kolo_model))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(kolo_model))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use kolo_transport::Unpoisoned;

/// Separates a store from a load in the one order. Loom treats sequentially consistent accesses as weaker ones, but not
/// fences.
#[inline(always)]
fn in_one_order() {
    #[cfg(kolo_model)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Shared state of the helper thread and of threads that drive for themselves.
#[derive(Debug)]
pub(crate) struct Attendance {
    /// Number of threads that drive the engine for themselves.
    drivers: AtomicUsize,
    /// Whether an operation was started that the helper has not yet seen done.
    pending: AtomicBool,
    /// Whether the helper sleeps, is about to sleep, or has not begun.
    asleep: AtomicBool,
    /// Whether the communicator is being dropped.
    leaving: AtomicBool,
    /// Whether the system has refused the helper's thread, so that waiting and polling threads do all the work.
    refused: AtomicBool,
    // The helper never takes the core while it holds this lock, since others take the lock while they hold the core.
    helper: Mutex<Helper>,
    wake: Condvar,
}

/// The helper thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) stop: bool,
}

impl Default for Attendance {
    fn default() -> Self {
        Self {
            drivers: AtomicUsize::new(0),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            helper: Mutex::default(),
            wake: Condvar::new(),
        }
    }
}

impl Attendance {
    pub(crate) fn helper(&self) -> MutexGuard<'_, Helper> {
        self.helper.lock().unpoisoned()
    }

    /// Leaves work for which possibly no thread waits. If the helper sleeps or has not begun, `start` starts one if
    /// needed, and says whether there is one. Returns whether there is a helper.
    pub(crate) fn leave_work(&self, start: impl FnOnce(&mut Helper) -> bool) -> bool {
        self.pending.store(true, Ordering::SeqCst);
        in_one_order();
        if !self.asleep.load(Ordering::SeqCst) {
            return true;
        }
        let mut helper = self.helper();
        let is_there = start(&mut helper);
        self.wake.notify_one();
        is_there
    }

    /// Notes whether the system has refused the helper's thread. Returns whether that was so before.
    pub(crate) fn note_refused(&self, is_refused: bool) -> bool {
        self.refused.swap(is_refused, Ordering::Relaxed)
    }

    /// Returns whether the system has refused the helper's thread.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that the driver has found nothing left to do. A thread that starts something more holds the core, and says
    /// so afterwards.
    pub(crate) fn nothing_left(&self) {
        self.pending.store(false, Ordering::SeqCst);
    }

    /// Returns whether any thread drives for itself.
    pub(crate) fn is_driven(&self) -> bool {
        self.drivers.load(Ordering::Acquire) > 0
    }

    /// Returns whether the helper is to stand back.
    pub(crate) fn is_relieved(&self) -> bool {
        self.drivers.load(Ordering::Relaxed) > 0 || self.leaving.load(Ordering::Relaxed)
    }

    /// Returns whether there is work that no thread attends to.
    pub(crate) fn is_unattended(&self) -> bool {
        self.pending.load(Ordering::SeqCst) && self.drivers.load(Ordering::SeqCst) == 0
    }

    /// Notes that the helper has begun.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Lets the helper sleep for `time`, whether or not there is work.
    #[cfg(not(kolo_model))]
    pub(crate) fn nap<'a>(&self, helper: MutexGuard<'a, Helper>, time: Duration) -> MutexGuard<'a, Helper> {
        self.wake.wait_timeout(helper, time).unpoisoned().0
    }

    /// In loom's models, a nap may be over at once.
    #[cfg(kolo_model)]
    pub(crate) fn nap<'a>(&self, helper: MutexGuard<'a, Helper>, _: Duration) -> MutexGuard<'a, Helper> {
        helper
    }

    /// Lets the helper sleep until there is unattended work or it must stop.
    pub(crate) fn rest<'a>(&self, mut helper: MutexGuard<'a, Helper>) -> MutexGuard<'a, Helper> {
        self.asleep.store(true, Ordering::SeqCst);
        in_one_order();
        while !helper.stop && !self.is_unattended() {
            helper = self.wake.wait(helper).unpoisoned();
        }
        self.asleep.store(false, Ordering::SeqCst);
        helper
    }

    /// Tells the helper to end. Returns its thread, to be joined.
    pub(crate) fn dismiss(&self) -> Option<JoinHandle<()>> {
        self.leaving.store(true, Ordering::Relaxed);
        let mut helper = self.helper();
        helper.stop = true;
        self.wake.notify_one();
        helper.thread.take()
    }
}

/// Guard that counts a thread as driving for itself, so that the helper stands back.
#[derive(Debug)]
pub(crate) struct Attended<'a>(&'a Attendance);

impl<'a> Attended<'a> {
    pub(crate) fn new(attendance: &'a Attendance) -> Self {
        attendance.drivers.fetch_add(1, Ordering::SeqCst);
        Self(attendance)
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        let Self(attendance) = self;
        if attendance.drivers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        in_one_order();
        if attendance.pending.load(Ordering::SeqCst) && attendance.asleep.load(Ordering::SeqCst) {
            // The helper goes on with what is left.
            let _helper = attendance.helper();
            attendance.wake.notify_one();
        }
    }
}

#[cfg(all(test, kolo_model))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A communicator whose outstanding work is a number.
    #[derive(Default)]
    struct Modelled {
        attendance: Attendance,
        left: Mutex<u32>,
        done: Condvar,
    }

    impl Modelled {
        /// Does one step of a driver. Returns whether nothing is left.
        fn step(&self) -> bool {
            let mut left = self.left.lock().expect("no panic");
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.attendance.nothing_left();
                self.done.notify_all();
            }
            *left == 0
        }

        /// A helper thread, as in `drive::helper`.
        fn help(&self) {
            self.attendance.awake();
            let mut helper = self.attendance.helper();
            while !helper.stop {
                if self.attendance.is_unattended() {
                    drop(helper);
                    while !self.step() && !self.attendance.is_relieved() {}
                    helper = self.attendance.helper();
                } else {
                    helper = self.attendance.rest(helper);
                }
            }
        }

        fn start(&self, steps: u32) {
            *self.left.lock().expect("no panic") += steps;
            assert!(self.attendance.leave_work(|_| true));
        }

        fn wait_until_done(&self) {
            let mut left = self.left.lock().expect("no panic");
            while *left > 0 {
                left = self.done.wait(left).expect("no panic");
            }
        }
    }

    /// Work is started while the helper falls asleep. Meanwhile another thread drives for itself and stops before the
    /// work is done. The helper then does the rest.
    #[test]
    fn the_helper_ends_what_nobody_waits_for() {
        loom::model(|| {
            let shared = Arc::new(Modelled::default());
            let helper = thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.help()
            });
            shared.start(2);
            {
                let _attended = Attended::new(&shared.attendance);
                shared.step();
            }
            shared.wait_until_done();
            drop(shared.attendance.dismiss());
            helper.join().expect("no panic");
        });
    }

    #[test]
    fn work_of_two_threads_is_done() {
        loom::model(|| {
            let shared = Arc::new(Modelled::default());
            let [helper, other] =
                [Modelled::help as fn(&Modelled), |shared: &Modelled| shared.start(1)].map(|body| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || body(&shared))
                });
            shared.start(1);
            other.join().expect("no panic");
            shared.wait_until_done();
            drop(shared.attendance.dismiss());
            helper.join().expect("no panic");
        });
    }
}
