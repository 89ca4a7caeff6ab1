//! Driving: the one loop in which threads wait, and the actions when a wait goes wrong.
//!
//! [`until`] knows neither threads nor clocks nor communicators. A [`Waiter`] makes progress, tells the time and rests,
//! and [`Patience`] decides from the time when to look for failures, to ask the peers, and to give up. The loop's unit
//! tests therefore run in virtual time.

mod asking;
mod close;
mod driver;
mod exchange;
mod fail;
mod helper;
mod lent;
mod orphans;
mod patience;
mod run;
mod symmetric;
#[cfg(test)]
mod tests;
mod timed_out;

use std::time::{Duration, Instant};

pub(crate) use close::close;
#[cfg(test)]
pub(crate) use driver::{armed, ask_for};
pub(crate) use driver::{wait_for, wait_for_all};
pub(crate) use fail::{abort, check_usable, fail, give_up_after, known_error, revoke, standing_error};
#[cfg(test)]
pub(crate) use helper::refused;
pub(crate) use helper::{call_helper, ends_unhelped, must_end, wake_tasks};
#[cfg(test)]
pub(crate) use lent::injected;
pub(crate) use lent::lend;
pub(crate) use patience::Patience;
pub(crate) use run::{Ticket, run, run_within, start, start_and_wait};
pub(crate) use timed_out::time_out;

use crate::failure::Suspicion;
use crate::wait::{Next, Pacer};

/// Result of one step towards a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The goal is reached.
    Done,
    /// The goal will never be reached.
    Failed,
    /// The goal needs other ranks.
    Waits {
        /// Whether anything has moved.
        moved: bool,
    },
    /// This thread has more work on the goal, and needs nobody else for it.
    Works,
    /// Another thread of this rank drives; this one waits for it.
    Behind,
}

/// News about the communicator itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A peer was lost that this wait does not need, so the other peers may manage without it.
    Lost,
    /// A peer that this wait needs was lost, or another peer that needed it has given up. Data sent before that may
    /// still be enough.
    Doomed,
    /// A peer that this wait needs was lost, and the data it had sent before is already in memory.
    Hopeless,
    /// The communicator was aborted for another reason.
    Aborted,
}

/// Reason for giving up a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Failed,
    /// The time limit has passed.
    Deadline(Duration),
}

/// Surroundings of a waiting thread: the work that it advances, the news that it hears, the peers that it asks, and its
/// rest.
pub(crate) trait Waiter {
    type Error;

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Advances the awaited work, and everything else that is outstanding.
    fn step(&mut self) -> Result<Step, Self::Error>;

    fn news(&mut self) -> Option<News> {
        None
    }

    /// Passes the time until the next step.
    fn rest(&mut self, next: Next, pacer: &mut Pacer);

    /// Returns the error of a wait that is given up.
    fn end(&mut self, why: End) -> Self::Error;

    /// Checks that the awaited peers are there. Called when nothing has moved for some time.
    fn look_for_peers(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Asks the awaited peers what they do. Called when nothing has moved for some time. A first reason to expect nothing
    /// more is only a suspicion, since data sent before may still arrive. `suspected` is the suspicion that has lasted for
    /// long enough: finding it again ends the wait.
    fn ask(&mut self, _suspected: Option<Suspicion>) -> Result<Option<Suspicion>, Self::Error> {
        Ok(None)
    }

    /// Returns whether data from an awaited peer may still arrive although there has been this suspicion `for_so_long`.
    fn is_outrun(&mut self, _suspicion: Suspicion, _for_so_long: Duration) -> bool {
        false
    }
}

/// Drives until the wait is over.
///
/// # Errors
/// Those of the waiter, if the wait ends for another reason.
pub(crate) fn until<W: Waiter>(waiter: &mut W, patience: &mut Patience) -> Result<(), W::Error> {
    loop {
        let mut next = match waiter.step()? {
            Step::Done => {
                patience.moved();
                return Ok(());
            }
            Step::Failed => return Err(waiter.end(End::Failed)),
            // After such news, the other ranks will not do their parts of the operation.
            Step::Works if waiter.news().is_some() => return Err(waiter.end(End::Failed)),
            Step::Works => patience.works(waiter.now()),
            Step::Behind => patience.stands_behind(waiter.now()),
            Step::Waits { moved } => patience.pace(moved, || waiter.now()),
        };
        if next.is_a_while() {
            next = patience.check(waiter, next)?;
        }
        waiter.rest(next, patience.pacer());
    }
}
