//! Messages between members.

use serde::{Deserialize, Serialize};

use crate::set::Set;

/// A numbered attempt to get a value chosen. Later ballots are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Rounds count from 1; 0 is before all rounds.
    pub round: u64,
    /// The proposer. Thus no two members share a ballot.
    pub by: u32,
}

/// Bound on the rounds in messages from other processes, so that there is always a next round.
const ROUNDS_MAX: u64 = 1 << 62;

/// The vote of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vote {
    /// Its call, as one bit that the caller chooses.
    pub kinds: u8,
    /// Flags. The decision has those bits that all participants have set.
    pub flags: u64,
    /// Random seed. The decision has the seed of the member that proposed it.
    pub seed: [u8; 32],
}

/// The common decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// Members that took part. All others are out.
    pub members: Set,
    /// The bits that all of these members have set.
    pub flags: u64,
    /// The calls of these members, all bits together. There is more than one bit if they made different calls.
    pub kinds: u8,
    /// A random number that only the members know.
    pub seed: [u8; 32],
}

/// A message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// The sender's vote, sent to the member that it considers the proposer.
    Vote(Vote),
    /// Asks for the vote or, failing that, for a sign of life.
    Asked,
    /// Asks after a caller's deadline has passed: a receiver that has cast no vote must cast one with no flag set.
    Overdue {
        /// The call of that caller.
        kinds: u8,
    },
    /// Sign of life of a member that has not voted yet.
    Here,
    /// First phase: asks the receiver to take no part in earlier ballots.
    Prepare {
        /// The ballot.
        ballot: Ballot,
        /// Members that the proposer considers gone.
        gone: Set,
    },
    /// Answer to `Prepare`.
    Promise {
        /// The ballot that this answers.
        ballot: Ballot,
        /// Members that the acceptor now considers gone.
        gone: Set,
        /// The decision that the acceptor accepted last, with its ballot.
        accepted: Option<(Ballot, Decision)>,
    },
    /// Second phase: asks the receiver to accept this value.
    Accept {
        /// The ballot.
        ballot: Ballot,
        /// Members that the proposer considers gone.
        gone: Set,
        /// The value.
        value: Decision,
    },
    /// Answer to `Accept`.
    Accepted {
        /// The ballot that this answers.
        ballot: Ballot,
        /// Members that the acceptor now considers gone.
        gone: Set,
    },
    /// Answer to a ballot that is too early.
    Refused {
        /// The ballot that the acceptor has promised.
        promised: Ballot,
    },
    /// The value is chosen.
    Decided(Decision),
    /// The sender proposes, has not reached a quorum for long, and gives up.
    Stranded,
}

impl Message {
    /// Whether all members that it names are below `members`, and its ballots leave room for later ones. Checks
    /// messages from other processes.
    #[must_use]
    pub fn is_within(&self, members: u32) -> bool {
        let within = |set: &Set| set.highest().is_none_or(|highest| highest < members);
        let ballot_within = |ballot: &Ballot| ballot.by < members && ballot.round < ROUNDS_MAX;
        match self {
            Self::Vote(_) | Self::Asked | Self::Overdue { .. } | Self::Here | Self::Stranded => true,
            Self::Prepare { ballot, gone } | Self::Accepted { ballot, gone } => {
                ballot_within(ballot) && within(gone)
            }
            Self::Promise { ballot, gone, accepted } => {
                let value_within =
                    |(ballot, value): &(Ballot, Decision)| ballot_within(ballot) && within(&value.members);
                ballot_within(ballot) && within(gone) && accepted.as_ref().is_none_or(value_within)
            }
            Self::Accept { ballot, gone, value } => {
                ballot_within(ballot) && within(gone) && within(&value.members)
            }
            Self::Refused { promised } => ballot_within(promised),
            Self::Decided(value) => within(&value.members),
        }
    }
}
