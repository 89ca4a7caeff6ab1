//! The one error type of the public API. Programs act on its fields; people read its text.

pub mod codes;
mod peers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use peers::{AwaitedRank, PeerCall, PeerState};

/// Advice at the end of [`Error::Timeout`]'s text. A binding that sets its limits in another way replaces it with its
/// own.
pub const TIMEOUT_REMEDY: &str =
    "Raise the limit (KOLO_TIMEOUT, or that of the step) if the ranks are merely slow";

/// Advice in the remedy of [`Error::Join`] if ranks are missing. Bindings may replace it, like [`TIMEOUT_REMEDY`].
pub const JOIN_REMEDY: &str = "raise the limit with KOLO_JOIN_TIMEOUT if the ranks are merely slow";

/// Context of an error: the rank, the operation and its number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ErrorContext {
    /// Rank of the caller in the communicator concerned; `None` if it has no rank yet.
    pub rank: Option<u32>,
    /// The call with its characteristics: "all_reduce(1048576 x f32, sum)". Empty outside operations.
    pub operation: String,
    /// Sequence number of the operation in its communicator, counted from 1; `None` outside operations.
    pub sequence: Option<u64>,
}

/// Cause of a peer's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossCause {
    /// Its connection closed without a goodbye. The process was killed, crashed or exited in the middle of the job.
    Closed,
    /// Its connection was open, but nothing arrived from it for this long. The host is down, the network between is
    /// cut, or the process is stopped.
    Silent(Duration),
    /// It dropped its communicator or exited in good order while this rank still needed it.
    Left,
    /// One of its threads panicked.
    Panicked,
    /// It sent something that the control plane's protocol does not allow. Another program or version sent it, or it
    /// was corrupted.
    Protocol,
}

/// Reason why ranks did not come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JoinFailure {
    /// Ranks did not arrive in time.
    Absent,
    /// Rank 0 could not be reached.
    Unreachable,
    /// Listening at a port failed.
    Port,
    /// World sizes, jobs, secrets or settings differ.
    Disagreement,
    /// The file, store or multicast group at which ranks meet does not work.
    Rendezvous,
    /// None of the permitted transports reaches a rank.
    NoTransport,
    /// A rank sent something that this version does not understand.
    Version,
    /// Another rank was lost while the survivors were coming together.
    Survivors,
    /// The control plane was shut down meanwhile.
    Interrupted,
    /// None of the members that the invitation names answers.
    Invitation,
}

/// A rank's reason for aborting a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbortReason {
    /// The program asked for it: [`Communicator::abort`](crate::Communicator::abort), or
    /// [`Work::abort`](crate::Work::abort).
    Requested,
    /// Other ranks made calls that do not match. This rank's call was not one of them.
    Mismatch,
    /// The deadline of a call on that rank passed.
    Timeout,
    /// A connection between two living ranks broke, or an adapter failed.
    Transport,
    /// World rank 0, which runs the control plane and is not a member of this communicator, is lost.
    CoordinatorLost,
    /// The communicator was dropped while one of its operations was in progress.
    Dropped,
    /// A rank called [`Communicator::revoke`](crate::Communicator::revoke), so that the survivors meet in
    /// [`Communicator::shrink`](crate::Communicator::shrink).
    Revoked,
    /// This rank did not answer for longer than [`Config::silent_after`](crate::Config::silent_after), and the other
    /// members have gone on without it. It cannot return to this group.
    Fenced,
    /// This rank and those that it reaches are too few to go on. The others may be alive behind a network that is cut,
    /// and only one side may go on.
    Minority,
}

/// Every error of the library. The text ends with a stable code in brackets: see [`Error::code`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid, such as a root out of range or a buffer of the wrong length. Nothing was sent, and the
    /// communicator is unchanged.
    Usage {
        /// Rank and operation.
        context: ErrorContext,
        /// The problem, and the valid values.
        problem: String,
    },
    /// A setting is missing or invalid.
    Configuration {
        /// The setting: "MASTER_ADDR", "--transport".
        setting: String,
        /// The value that was found, or the statement that there was none.
        problem: String,
        /// The setting to change.
        remedy: String,
    },
    /// The ranks could not find each other, or disagreed on their ranks or the world size.
    Join {
        /// Rank of the caller, where known.
        rank: Option<u32>,
        /// The kind of failure.
        kind: JoinFailure,
        /// Description, with addresses and the missing ranks.
        problem: String,
        /// Things to check.
        remedy: String,
    },
    /// Two ranks made different calls at the same point. Both sides report it, and the communicator is aborted.
    Mismatch {
        /// Rank and operation.
        context: ErrorContext,
        /// The rank that made a different call.
        peer: u32,
        /// The peer's call.
        theirs: PeerCall,
    },
    /// A peer's process ended or its connection broke. The communicator is aborted.
    PeerLost {
        /// Rank and operation.
        context: ErrorContext,
        /// The rank that is lost.
        peer: u32,
        /// Cause of the loss.
        cause: LossCause,
        /// The cause in words, with process, host and address where known.
        detail: String,
    },
    /// The deadline passed. The communicator is aborted.
    Timeout {
        /// Rank and operation.
        context: ErrorContext,
        /// The deadline that was set.
        after: Duration,
        /// The ranks that this one was waiting for, with the known facts about each.
        waiting_for: Vec<AwaitedRank>,
    },
    /// The communicator was aborted earlier, by this rank or another one.
    Aborted {
        /// Rank and operation.
        context: ErrorContext,
        /// The rank that aborted.
        by: u32,
        /// The kind of reason.
        kind: AbortReason,
        /// The reason in words.
        reason: String,
    },
    /// The combination is not supported, and retrying does not help.
    Unsupported {
        /// Rank and operation.
        context: ErrorContext,
        /// The call, the reason, and an alternative.
        problem: String,
    },
    /// A transport failed, and no rank is known to be lost. The communicator is aborted, unless the call was local
    /// ([`Communicator::register`](crate::Communicator::register)).
    Transport {
        /// Rank and operation.
        context: ErrorContext,
        /// The transport's own error.
        source: Box<kolo_transport::Error>,
    },
    /// A system call failed.
    System {
        /// Activity of Kolo at that time.
        doing: String,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the communicator is beyond use: every later call on it fails too, on every rank. The exceptions are
    /// [`Communicator::revoke`](crate::Communicator::revoke), [`Communicator::agree`](crate::Communicator::agree), and
    /// the calls that make a new communicator of the surviving ranks:
    /// [`Communicator::shrink`](crate::Communicator::shrink), [`Communicator::grow`](crate::Communicator::grow) and
    /// [`Communicator::replace`](crate::Communicator::replace). Alternatively, start a new job, or make a new
    /// communicator without the rank at fault.
    ///
    /// False for errors that are detected before anything is sent: the call had no effect, and the next one may
    /// succeed. One exception is a failed [`Communicator::register`](crate::Communicator::register): it returns a fatal
    /// [`Error::Transport`], yet leaves the communicator as it was, and
    /// [`Communicator::error`](crate::Communicator::error) is `None`.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        match self {
            Self::Mismatch { .. }
            | Self::PeerLost { .. }
            | Self::Timeout { .. }
            | Self::Aborted { .. }
            | Self::Transport { .. } => true,
            Self::Usage { .. }
            | Self::Unsupported { .. }
            | Self::Configuration { .. }
            | Self::Join { .. }
            | Self::System { .. } => false,
        }
    }

    /// Makes an [`Error::System`].
    #[must_use]
    pub fn system(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::System { doing: doing.into(), source: Arc::new(source) }
    }

    /// Makes an [`Error::Configuration`].
    #[must_use]
    pub fn configuration(
        setting: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Configuration { setting: setting.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl ErrorContext {
    /// Makes the context of an operation that has no number.
    pub(crate) fn unnumbered(rank: impl Into<Option<u32>>, operation: impl Into<String>) -> Self {
        Self { rank: rank.into(), operation: operation.into(), sequence: None }
    }
}

impl fmt::Display for ErrorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank}")?,
            None => write!(f, "a newcomer")?,
        }
        if !self.operation.is_empty() {
            write!(f, ", {}", self.operation)?;
        }
        if let Some(number) = self.sequence {
            write!(f, ", operation #{number}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f)?;
        write!(f, " [{}]", self.code())
    }
}

impl Error {
    /// Writes the text without the code.
    fn tell(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage { context, problem } => write!(f, "{context}: {problem}"),
            Self::Configuration { setting, problem, remedy } => write!(f, "{setting}: {problem}. {remedy}"),
            Self::Join { rank, problem, remedy, .. } => {
                if let Some(rank) = rank {
                    write!(f, "rank {rank} could not join: ")?;
                } else {
                    write!(f, "could not join: ")?;
                }
                write!(f, "{problem}. {remedy}")
            }
            Self::Mismatch { context, peer, theirs } => write!(
                f,
                "{context}: rank {peer} called {theirs} at this point. All ranks of a communicator must make the \
                 same calls in the same order, with equal lengths, types, operators and roots"
            ),
            Self::PeerLost { context, peer, detail, .. } => write!(
                f,
                "{context}: rank {peer} is lost ({detail}). See that rank's own output for the reason; the \
                 communicator can no longer be used"
            ),
            Self::Timeout { context, after, waiting_for } => {
                write!(f, "{context}: not finished after {:.1} s; waiting for ", after.as_secs_f64())?;
                for (i, awaited) in waiting_for.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{awaited}")?;
                }
                if waiting_for.is_empty() {
                    write!(f, "no particular rank")?;
                }
                // No limit is long enough for data that does not get through.
                let cut_off = |awaited: &AwaitedRank| matches!(awaited.state, PeerState::CutOff { .. });
                if waiting_for.first().is_some_and(cut_off) {
                    Ok(())
                } else {
                    write!(f, ". {TIMEOUT_REMEDY}")
                }
            }
            Self::Aborted { context, by, reason, .. } => {
                write!(f, "{context}: the communicator was aborted by rank {by}: {reason}")
            }
            Self::Unsupported { context, problem } => write!(f, "{context}: {problem}"),
            Self::Transport { context, source } => write!(f, "{context}: {source}"),
            Self::System { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Transport { source, .. } => Some(&**source),
            Self::System { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_without_a_number_is_a_newcomer_and_a_call_without_one_has_none() {
        assert_eq!(ErrorContext::unnumbered(None, "fetch").to_string(), "a newcomer, fetch");
        let call = ErrorContext { rank: Some(2), operation: "barrier".to_owned(), sequence: Some(4) };
        assert_eq!(call.to_string(), "rank 2, barrier, operation #4");
    }
}
