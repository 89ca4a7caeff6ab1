//! From the known facts of a failure to its cause, and to the callers' error: values and pure functions. Code that gathers the evidence,
//! and acts on the cause, is in `drive`.

mod cause;
mod diagnosis;
mod last_word;
#[cfg(test)]
mod tests;

pub(crate) use cause::Cause;
pub(crate) use diagnosis::{
    Carrier, Diagnosis, Evidence, Judgement, Meeting, Presence, Question, adopt, diagnose, judge,
};
pub(crate) use last_word::LastWord;

use crate::control::{AbortCause, AbortKind};

/// Whether a cause is the loss of a peer: what it had sent before may still arrive.
pub(crate) fn is_loss(cause: &AbortCause) -> bool {
    cause.kind == AbortKind::PeerLost
}

fn called_by(rank: u32) -> String {
    format!("rank {rank} called ")
}
