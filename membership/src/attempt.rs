//! A ballot in progress.

use std::collections::BTreeMap;

use crate::message::{Ballot, Decision, Message};
use crate::set::Set;

/// Phase of a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prepare,
    Accept,
}

/// A ballot that this member proposes.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) ballot: Ballot,
    /// The value, once the ballot is in the second phase.
    pub(crate) value: Option<Decision>,
    /// Members that have answered in this phase, each with the members that it considers gone.
    pub(crate) answers: BTreeMap<u32, Set>,
    /// The decision accepted in the latest ballot, as far as the promises tell.
    pub(crate) best: Option<(Ballot, Decision)>,
}

impl Attempt {
    pub(crate) const fn phase(&self) -> Phase {
        match self.value {
            None => Phase::Prepare,
            Some(_) => Phase::Accept,
        }
    }

    /// Makes the request of this phase, for a proposer that considers these members gone.
    pub(crate) fn request(&self, gone: &Set) -> Message {
        let (ballot, gone) = (self.ballot, gone.clone());
        match &self.value {
            None => Message::Prepare { ballot, gone },
            Some(value) => Message::Accept { ballot, gone, value: value.clone() },
        }
    }
}
