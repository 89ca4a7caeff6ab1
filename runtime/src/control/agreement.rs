//! Agreements among the members of a communicator, without the coordinator.

use std::time::{Duration, Instant};

use kolo_membership::{Decision, Vote};

use super::Membership;
use super::peers::Agreed;
use super::peers::missing::{Missing, Silent};
use super::peers::rounds::RoundKey;
use crate::job::limits::STRANDED_SILENCES;

/// Longest time for a decision on a busy host, in addition to silences.
const DECIDING: Duration = Duration::from_secs(2);

/// The call that an agreement is for. The values are flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Agreement on the user's own flags.
    Agree = 1,
    /// Agreement on the survivors.
    Shrink = 2,
    /// Agreement on whether the survivors have met.
    Confirm = 4,
    /// Agreement on the survivors, before newcomers join them.
    Grow = 8,
    /// Agreement on whether all members, old and new, are there.
    Enter = 16,
}

/// How long to wait for living members that have not called, and what to do then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// This member gives up at this time.
    GivingUp(Instant),
    /// All members decide at this time, as if the late ones had called with no flag set. Late members get that decision
    /// when they call.
    Deciding(Instant),
}

impl Until {
    pub(crate) const fn deadline(self) -> Instant {
        match self {
            Self::GivingUp(deadline) | Self::Deciding(deadline) => deadline,
        }
    }

    /// Whether all members are to decide without the late ones by now.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Deciding(deadline) if Instant::now() >= deadline)
    }
}

/// Reason why a member did not take part in a decision.
#[derive(Clone, Debug)]
pub(crate) enum Disagreement {
    /// The others have gone on without this member. `by` is one of them.
    Fenced { by: u32 },
    /// Not enough members answer for a quorum.
    Minority { silent: Vec<Silent> },
    /// The deadline passed.
    Timeout(Missing),
    /// The deadline passed, and the others may have decided, so this member must not go on as before.
    Unheard(Missing),
    /// The members made calls that do not match.
    Mismatch,
    /// This rank has no listener through which to reach the others.
    NoListener,
}

impl Membership {
    /// Agrees with the living members. Blocks until all of them have called it, or for as long as `until` says. If the
    /// others decide then and some do not answer, it blocks for a few more silences.
    pub(crate) fn agree(
        &self,
        purpose: Purpose,
        flags: u64,
        silent_after: Duration,
        until: Until,
    ) -> Result<Decision, Disagreement> {
        let shared = self.control().shared();
        let number = self.next_round();
        let mut vote = Vote { kinds: purpose as u8, flags, seed: [0; 32] };
        // Without randomness, others might guess the name of a regrouping, but they still could not enter without the
        // key of its listener.
        let _ = getrandom::fill(&mut vote.seed);
        let own = self.members().iter().position(|rank| *rank == shared.rank).unwrap_or_default() as u32;
        if self.members().len() == 1 {
            let members = std::iter::once(own).collect();
            return Ok(Decision { members, flags, kinds: vote.kinds, seed: vote.seed });
        }
        if let Some(by) = shared.fenced_by(self.communicator()) {
            return Err(Disagreement::Fenced { by });
        }
        let Some(peers) = &self.control().inner.peers else { return Err(Disagreement::NoListener) };
        let key = RoundKey { communicator: self.communicator(), number };
        let grace = match until {
            Until::GivingUp(_) => None,
            Until::Deciding(_) => Some(silent_after * (STRANDED_SILENCES + 1) + DECIDING),
        };
        match peers.agree(key, self.members(), vote, silent_after, until.deadline(), grace) {
            Agreed::Decided(decision) if !decision.members.contains(own) => {
                let by = decision.members.iter().next().unwrap_or_default();
                Err(Disagreement::Fenced { by })
            }
            Agreed::Decided(decision) if decision.kinds != purpose as u8 => Err(Disagreement::Mismatch),
            Agreed::Decided(decision) => Ok(decision),
            Agreed::LeftBehind { by } => Err(Disagreement::Fenced { by }),
            Agreed::Stranded { silent } => Err(Disagreement::Minority { silent }),
            Agreed::Late(missing) => Err(Disagreement::Timeout(missing)),
        }
    }
}
