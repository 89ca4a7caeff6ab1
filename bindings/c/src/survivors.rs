//! The group of survivors behind a `koloSurvivors_t`, on which the entries in `newcomers.rs` work.

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use kolo_rs::state::{Part, State};
use kolo_rs::{Communicator, Error, ErrorContext, Survivors};

use crate::abi::result::{self, SUCCESS};
use crate::comm::{Comm, Whose};
use crate::guard::{Failure, LastError, Outcome, usage};

/// Target of a `koloSurvivors_t`, behind a lock.
pub(crate) struct Group {
    /// `None` only for a moment, while its settings change.
    survivors: Option<Survivors>,
    /// C's communicator of the current members.
    comm: Arc<Comm>,
}

impl Group {
    /// Takes over a communicator, with the requests and memory of its handle.
    pub(crate) fn new(comm: Comm) -> Outcome<Self> {
        let Comm { communicator: Whose::Own(communicator), last_error, lent } = comm else {
            return Err(usage("the communicator already belongs to a group"));
        };
        let communicator = Survivors::new(communicator);
        let handle = Comm { communicator: Whose::OfGroup(AtomicPtr::default()), last_error, lent };
        let group = Self { survivors: Some(communicator), comm: Arc::new(handle) };
        Ok(group)
    }

    /// Returns the communicator handle of the members, which is valid until the next call on the group.
    pub(crate) fn comm(&self) -> Outcome<*const Comm> {
        show(&self.comm, self.survivors.as_ref().ok_or_else(broken)?.comm());
        Ok(Arc::as_ptr(&self.comm))
    }

    pub(crate) fn last_error(&self) -> Arc<LastError> {
        Arc::clone(&self.comm.last_error)
    }

    pub(crate) fn set_up(&mut self, how: impl FnOnce(Survivors) -> Survivors) -> Outcome {
        self.survivors = Some(how(self.survivors.take().ok_or_else(broken)?));
        Ok(())
    }

    pub(crate) fn admit(&mut self) -> Outcome {
        Ok(self.survivors.as_mut().ok_or_else(broken)?.admit()?)
    }

    /// Offers the state to newcomers; returns whether a copy was made.
    pub(crate) fn offer(&self, state: &mut State, parts: &[Part<'_>]) -> Outcome<bool> {
        let survivors = self.survivors.as_ref().ok_or_else(broken)?;
        survivors.comm().check_process()?;
        Ok(state.offer(survivors, parts))
    }

    /// Runs a step, which returns a `koloResult_t`.
    pub(crate) fn run(
        &mut self,
        limit: Option<Duration>,
        mut step: impl FnMut(*const Comm) -> c_int,
    ) -> Outcome {
        let (survivors, handle) = (self.survivors.as_mut().ok_or_else(broken)?, &self.comm);
        // The step's last return value, and the error that stands for it.
        let (last, mut meant) = (Cell::new(SUCCESS), String::new());
        // Errors of the communicator before the step, which are not the step's.
        let before = Cell::new(0);
        let step = |comm: &Communicator| {
            show(handle, comm);
            before.set(handle.last_error.count());
            last.set(step(Arc::as_ptr(handle)));
            if last.get() == SUCCESS {
                return Ok(());
            }
            // A step that failed for a reason of its own is not repeated, even if its communicator has failed too.
            let error = if result::is_fatal(last.get()) { comm.error() } else { None };
            let error =
                error.unwrap_or_else(|| failed(comm, last.get(), handle.last_error.copy_after(before.get())));
            meant = error.to_string();
            Err(error)
        };
        let done = match limit {
            None => survivors.run(step),
            Some(limit) => survivors.run_within(limit, step),
        };
        done.map_err(|error| match last.get() {
            // If this rank's own step failed, the caller gets that step's result.
            code if code != SUCCESS && error.to_string() == meant => {
                let own = handle.last_error.copy_after(before.get()).filter(|failure| failure.code() == code);
                own.unwrap_or_else(|| Failure::from(error).with_code(code))
            }
            _ => error.into(),
        })
    }
}

fn show(handle: &Comm, members: &Communicator) {
    if let Whose::OfGroup(at) = &handle.communicator {
        at.store(std::ptr::from_ref(members).cast_mut(), Ordering::Release);
    }
}

/// Makes the error of a step that failed, but not because its communicator did; such a step is not repeated.
fn failed(comm: &Communicator, code: c_int, own: Option<Failure>) -> Error {
    let mut context = ErrorContext::default();
    (context.rank, context.operation) = (Some(comm.rank()), "step".to_owned());
    let mut problem = format!("it returned {code}");
    if let Some(own) = own {
        let _ = write!(problem, "; the last error of its communicator is '{}'", own.message());
    }
    Error::Usage { context, problem }
}

fn broken() -> Failure {
    usage("the group was broken by a bug in an earlier call")
}
