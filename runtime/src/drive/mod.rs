//! Driving: the one loop in which threads wait, and what they do when a wait goes wrong.
//!
//! [`until`] knows neither threads nor clocks nor communicators: a [`Waiter`] moves things on, tells the time and rests, and
//! [`Patience`] decides from the time when to look for failures, to ask the peers, and to give up. So its unit tests run in
//! virtual time.

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
pub(crate) use driver::wait_for;
pub(crate) use fail::{abort, check_usable, fail, revoke, standing_error};
pub(crate) use helper::{call_helper, wake_tasks};
#[cfg(test)]
pub(crate) use lent::injected;
pub(crate) use lent::lend;
pub(crate) use patience::Patience;
pub(crate) use run::{Ticket, end, run, run_within, start, start_and_wait};
pub(crate) use timed_out::time_out;

use crate::wait::{Next, Pacer};

/// Result of one look at a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Over.
    Done,
    /// Will never end.
    Failed,
    /// Waits for others.
    Waits {
        /// Whether anything moved.
        moved: bool,
    },
    /// This thread has more work on it, and needs no other for that.
    Works,
    /// Waits for another thread of this rank, which drives.
    Behind,
}

/// News of the communicator itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A peer was lost that is not waited for: the others may get along without it.
    Lost,
    /// The peer that is waited for was lost, or another that needed it has given up: what they had sent before may still be
    /// enough.
    Doomed,
    /// The peer that is waited for was lost, and what it had sent before is in memory already.
    Hopeless,
    /// Aborted for another reason.
    Aborted,
}

/// Reason for giving up a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Failed,
    /// The time limit is over.
    Deadline(Duration),
}

/// Result of asking the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    None,
    /// A peer that is waited for has left.
    HasLeft,
}

/// A waiting thread's surroundings: the work it moves on, the news it hears, the peers it asks, and its rest.
pub(crate) trait Waiter {
    type Error;

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Moves on what is waited for, and whatever else is outstanding.
    fn step(&mut self) -> Result<Step, Self::Error>;

    fn news(&mut self) -> Option<News> {
        None
    }

    /// Passes the time until the next step.
    fn rest(&mut self, next: Next, pacer: &mut Pacer);

    /// The error of a wait that is given up.
    fn end(&mut self, why: End) -> Self::Error;

    /// Nothing has moved for some time: checks that the awaited peers are there.
    fn look_for_peers(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Nothing has moved for some time: asks those that are waited for what they do. If one of them has left, that is only a
    /// suspicion at first, since what it sent before may still come.
    fn ask(&mut self, _suspected: bool) -> Result<Suspicion, Self::Error> {
        Ok(Suspicion::None)
    }

    /// Whether what a peer sent may still come although it left so long ago.
    fn is_outrun(&mut self, _left_for: Duration) -> bool {
        false
    }
}

/// The loop: drives until the wait is over.
///
/// # Errors
/// Those of the waiter, once the wait is over for another reason.
pub(crate) fn until<W: Waiter>(waiter: &mut W, patience: &mut Patience) -> Result<(), W::Error> {
    loop {
        let next = match waiter.step()? {
            Step::Done => return Ok(()),
            Step::Failed => return Err(waiter.end(End::Failed)),
            // Others' parts of the same operation will not come then.
            Step::Works if waiter.news().is_some() => return Err(waiter.end(End::Failed)),
            Step::Works => patience.works(waiter.now()),
            Step::Behind => patience.stands_behind(waiter.now()),
            Step::Waits { moved } => patience.pace(moved, || waiter.now()),
        };
        if next.is_a_while() {
            patience.check(waiter)?;
        }
        waiter.rest(next, patience.pacer());
    }
}
