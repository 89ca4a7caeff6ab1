//! Loss of a rank in the course of a program, and what the others may hear of it.

use std::time::Duration;

use kolo::{AbortReason, Error};

use super::Program;
use super::failure::{CallError, Failure};
use crate::random::Random;

/// Way in which a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It drops its communicators and returns.
    Leaves,
    /// One of its threads panics.
    Panics,
    /// It aborts its communicators, and goes on.
    Aborts,
    /// Its process is killed, a moment later.
    IsKilled(Duration),
}

/// One rank's loss at a point of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// The rank.
    pub(super) rank: u32,
    /// The manner.
    pub(super) manner: Manner,
    /// The thread that leaves, before this step.
    thread: usize,
    step: usize,
}

/// Reason of a rank that aborts its communicators.
pub(super) const REASON: &str = "the program says so";

impl Loss {
    /// Draws the loss of a program of so many ranks, threads and steps, if it has one.
    pub(super) fn of(program: &Program, ranks: u32, threads: usize, steps: usize) -> Option<Self> {
        let mut random = Random::new(program.seed.wrapping_mul(17) ^ 0x1055);
        let rank = random.index(ranks as usize) as u32;
        let moment = Duration::from_micros(random.pick(&[0, 30, 300, 3000]) * random.below(10));
        let manner = match random.index(if program.processes { 8 } else { 4 }) {
            0 | 1 => Manner::Leaves,
            2 => Manner::Panics,
            3 => Manner::Aborts,
            _ => Manner::IsKilled(moment),
        };
        let (thread, step) = (random.index(threads), random.index(steps + 1));
        (program.losses > 0).then_some(Self { rank, manner, thread, step })
    }

    /// Returns whether a thread of a rank goes no further than this step.
    pub(super) const fn is_due(&self, rank: u32, thread: usize, step: usize) -> bool {
        rank == self.rank && thread == self.thread && step >= self.step
    }

    /// Returns whether the loss ends calls of these ranks for good.
    pub(super) fn ends(&self, members: &[u32]) -> bool {
        members.contains(&self.rank)
    }

    /// Returns whether the rank no longer takes part.
    pub(super) fn is_final(&self) -> bool {
        self.manner != Manner::Aborts
    }

    /// Returns whether the loss is the cause of a failure, and named as such.
    pub(super) fn explains(&self, failure: &Failure) -> bool {
        let Failure::Call(call) = failure else { return false };
        let CallError { error, members: Some(members), .. } = &**call else { return false };
        let is_it = |rank: u32| members.get(rank as usize) == Some(&self.rank);
        let is_member = members.contains(&self.rank);
        match error {
            Error::PeerLost { peer, .. } => self.is_final() && is_it(*peer),
            Error::Aborted { by, kind: AbortReason::Requested, reason, .. } => {
                self.manner == Manner::Aborts && (is_it(*by) || !is_member) && reason == REASON
            }
            // A member could not make its part, since the communicator above has failed.
            Error::Aborted { kind: AbortReason::Transport, reason, .. } => {
                self.is_final() && !is_member && reason.contains("that it is split off has failed")
            }
            // World rank 0 runs the control plane.
            Error::Aborted { kind: AbortReason::CoordinatorLost, .. } => {
                self.is_final() && self.rank == 0 && !is_member
            }
            _ => false,
        }
    }
}
