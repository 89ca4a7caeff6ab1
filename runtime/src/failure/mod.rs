//! Finds the cause of a failure from the evidence, and the error that callers get: values and pure functions. `drive`
//! gathers the evidence, and acts on the cause.

mod cause;
mod diagnosis;
mod last_word;
#[cfg(test)]
mod tests;

pub(crate) use cause::Cause;
pub(crate) use diagnosis::{
    Carrier, Diagnosis, Evidence, Judgement, Presence, Question, Suspicion, WrongMessage, adopt, diagnose,
    judge,
};
pub(crate) use last_word::LastWord;

use crate::control::{AbortCause, AbortKind};

/// Returns whether a cause is the loss of a peer. Data that the peer had sent before may then still arrive.
pub(crate) fn is_loss(cause: &AbortCause) -> bool {
    cause.kind == AbortKind::PeerLost
}

fn called_by(rank: u32) -> String {
    format!("rank {rank} called ")
}
