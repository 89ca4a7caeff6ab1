//! Messages among members.

use serde::{Deserialize, Serialize};

use crate::set::Set;

/// A numbered attempt to get a value chosen; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Rounds count from 1; 0 is before all.
    pub round: u64,
    /// The proposer: no two members share a ballot.
    pub by: u32,
}

/// Rounds of messages that other processes send stay below: then there is always a next one.
const ROUNDS_MAX: u64 = 1 << 62;

/// A member's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Its call, as one bit of its caller's choice.
    pub kinds: u8,
    /// The decision has the bits that all who took part have set.
    pub flags: u64,
    /// The decision has that of the member that proposed it.
    pub seed: [u8; 32],
}

/// The common decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// Members that took part; the others are out.
    pub members: Set,
    /// The bits that all of these have set.
    pub flags: u64,
    /// Their calls, all bits together: more than one if they called different things.
    pub kinds: u8,
    /// A number that nobody else knows.
    pub seed: [u8; 32],
}

/// From one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// The sender's part, to the member that it takes for the proposer.
    Part(Part),
    /// Asks for the part, or for a sign of life.
    Asked,
    /// The same when a caller's time is over: who has brought no part is to bring one with no flag set.
    Overdue {
        /// The caller's call.
        kinds: u8,
    },
    /// A sign of life of a member that has not brought its part yet.
    Here,
    /// First phase: take no part in earlier ballots.
    Prepare {
        /// Which ballot.
        ballot: Ballot,
        /// Members that the proposer holds for gone.
        gone: Set,
    },
    /// The answer.
    Promise {
        /// To which ballot.
        ballot: Ballot,
        /// Members that the acceptor holds for gone now.
        gone: Set,
        /// The decision it accepted last.
        accepted: Option<(Ballot, Decision)>,
    },
    /// Second phase: accept this value.
    Accept {
        /// Which ballot.
        ballot: Ballot,
        /// Members that the proposer holds for gone.
        gone: Set,
        /// The value.
        value: Decision,
    },
    /// The answer.
    Accepted {
        /// To which ballot.
        ballot: Ballot,
        /// Members that the acceptor holds for gone now.
        gone: Set,
    },
    /// The answer to a ballot that is too early.
    Refused {
        /// The ballot that the acceptor has promised.
        promised: Ballot,
    },
    /// The value is chosen.
    Decided(Decision),
    /// The sender, which proposes, has not reached a quorum for long and gives up.
    Stranded,
}

impl Message {
    /// Whether all members that it names exist, of so many, and its ballots leave room for later ones. For messages from other
    /// processes.
    #[must_use]
    pub fn is_within(&self, members: u32) -> bool {
        let within = |set: &Set| set.highest().is_none_or(|highest| highest < members);
        let ballot_within = |ballot: &Ballot| ballot.by < members && ballot.round < ROUNDS_MAX;
        match self {
            Self::Part(_) | Self::Asked | Self::Overdue { .. } | Self::Here | Self::Stranded => true,
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
