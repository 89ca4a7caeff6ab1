//! Handles of started operations.
//!
//! Several threads may wait for one work, such as a user's thread and the one that completes futures. The first thread drives the
//! operation; the others sleep until the first tells them the outcome, or until their own time-out, which ends the operation.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kolo_rs::Error;
use kolo_rs::internal::{SecondWait, Unpoisoned};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::fork::OfProcess;
use crate::numbers::limit;

/// Keeps the buffers of an operation alive.
pub(crate) type Owner = Py<PyAny>;

/// A started operation. It makes progress even if no thread waits for it.
#[pyclass(frozen, module = "kolo._kolo", name = "Started")]
#[derive(Debug)]
pub(crate) struct Work {
    inner: OfProcess<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    over: Condvar,
    /// The number of threads that sleep on `over`; changed with the state locked. It saves the system call of waking no thread.
    sleepers: AtomicU32,
}

#[derive(Debug)]
enum State {
    /// No thread waits.
    Running(Progress),
    /// A thread waits, and will tell the others the outcome. They may end the operation.
    Attended(SecondWait),
    /// Nobody has the operation any more, or a thread is looking at it or fetching its outcome.
    Gone,
    /// The operation is complete: the source of a receive, or the error.
    Over(Result<Option<u32>, Error>),
}

/// The operation in progress.
#[derive(Debug)]
pub(crate) enum Progress {
    Plain(kolo_rs::Work<Owner>),
    Receive(kolo_rs::Work<(Owner, u32)>),
}

impl Progress {
    fn is_done(&self) -> bool {
        match self {
            Self::Plain(work) => work.is_done(),
            Self::Receive(work) => work.is_done(),
        }
    }

    fn second_wait(&self) -> SecondWait {
        match self {
            Self::Plain(work) => work.second_wait(),
            Self::Receive(work) => work.second_wait(),
        }
    }

    fn wait_within(self, limit: Duration) -> Result<(Owner, Option<u32>), Error> {
        match self {
            Self::Plain(work) => work.wait_within(limit).map(|owner| (owner, None)),
            Self::Receive(work) => work.wait_within(limit).map(|(owner, source)| (owner, Some(source))),
        }
    }
}

impl Work {
    pub(crate) fn new(progress: Progress) -> Self {
        Self { inner: OfProcess::new(Inner::new(State::Running(progress))) }
    }

    /// Moves the operation to a new work; this one is then complete.
    pub(crate) fn taken(&self) -> PyResult<Self> {
        let taken = std::mem::replace(&mut *self.inner.get()?.state(), State::Over(Ok(None)));
        Ok(Self { inner: OfProcess::new(Inner::new(taken)) })
    }
}

#[pymethods]
impl Work {
    /// Waits for the end, at most `seconds`; raises the same errors as the blocking form of the call. After the time-out, the communicator
    /// is aborted.
    /// Returns the source of a receive, else `None`.
    pub(crate) fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<u32>> {
        let inner = self.inner.get()?;
        let (outcome, owner) = py.detach(|| inner.wait(seconds));
        drop(owner);
        outcome.map_err(|error| exception(py, &error))
    }

    /// Returns whether the operation is complete, successfully or not. Makes a little progress.
    pub(crate) fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.inner.get()?;
        let (done, owner) = py.detach(|| inner.poll());
        drop(owner);
        Ok(done)
    }

    /// Ends the operation, as `wait` does, because the caller has polled it for `seconds`. Does nothing if the operation is over.
    fn time_out(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let inner = self.inner.get()?;
        py.detach(|| inner.time_out(limit(seconds)));
        Ok(())
    }

    /// Returns the exception with which the operation has failed, if it has.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let inner = self.inner.get()?;
        let state = inner.state();
        let State::Over(Err(error)) = &*state else { return Ok(None) };
        let error = error.clone();
        drop(state);
        Ok(Some(exception(py, &error).into_value(py).into_any()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // No thread may wait for the runtime's lock with the interpreter's lock held. A work made before a fork is left alone.
        if self.inner.get().is_ok_and(|inner| !matches!(*inner.state(), State::Over(_))) {
            Python::attach(|py| py.detach(|| self.inner.get().map(Inner::forget).ok()));
        }
    }
}

impl Inner {
    fn new(state: State) -> Self {
        Self { state: Mutex::new(state), over: Condvar::new(), sleepers: AtomicU32::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Waits; returns the outcome, and the owner, which may now be given back to Python.
    fn wait(&self, seconds: f64) -> (Result<Option<u32>, Error>, Option<Owner>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Running(work) => {
                *state = State::Attended(work.second_wait());
                drop(state);
                self.end(work.wait_within(limit(seconds)))
            }
            other => {
                *state = other;
                (self.wait_beside(state, limit(seconds)), None)
            }
        }
    }

    /// Waits while another thread drives the operation. Ends the operation if that takes too long.
    fn wait_beside<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
    ) -> Result<Option<u32>, Error> {
        let begun = Instant::now();
        let mut left = Some(limit);
        loop {
            match &*state {
                State::Over(outcome) => return outcome.clone(),
                State::Attended(second) if left.is_some_and(|left| left.is_zero()) => {
                    let second = second.clone();
                    drop(state);
                    second.time_out(limit);
                    // The other thread has an outcome now.
                    left = None;
                    state = self.state();
                    continue;
                }
                _ => {}
            }
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            let nap = left.unwrap_or(Duration::MAX);
            state = match self.over.wait_timeout(state, nap) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
            left = left.map(|_| limit.saturating_sub(begun.elapsed()));
        }
    }

    fn poll(&self) -> (bool, Option<Owner>) {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Running(work) if work.is_done() => {
                drop(state);
                // The operation is complete, so the wait only fetches the outcome.
                let (_, owner) = self.end(work.wait_within(Duration::ZERO));
                (true, owner)
            }
            other => {
                let over = matches!(other, State::Over(_));
                *state = other;
                (over, None)
            }
        }
    }

    fn time_out(&self, limit: Duration) {
        let second = match &*self.state() {
            State::Running(work) => Some(work.second_wait()),
            State::Attended(second) => Some(second.clone()),
            State::Gone | State::Over(_) => None,
        };
        if let Some(second) = second {
            second.time_out(limit);
        }
    }

    fn end(&self, ended: Result<(Owner, Option<u32>), Error>) -> (Result<Option<u32>, Error>, Option<Owner>) {
        let (outcome, owner) = match ended {
            Ok((owner, source)) => (Ok(source), Some(owner)),
            Err(error) => (Err(error), None),
        };
        let mut state = self.state();
        *state = State::Over(outcome.clone());
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.over.notify_all();
        }
        drop(state);
        (outcome, owner)
    }

    /// Drops an operation without waiting for it. The operation goes on, and frees its owner at its end.
    fn forget(&self) {
        let state = std::mem::replace(&mut *self.state(), State::Gone);
        drop(state);
    }
}
