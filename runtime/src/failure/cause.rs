//! The cause of a communicator's failure, as a value.

use std::fmt;
use std::time::Duration;

use super::called_by;
use crate::control::{AbortCause, AbortKind, Loss};
use crate::error::{AbortReason, AwaitedRank, Error, ErrorContext, PeerCall};

/// Most ranks that a report to the other ranks names, which keeps its text to a few lines.
const NAMED_MAX: usize = 8;

/// The cause of a communicator's failure.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The ranks made different calls.
    Mismatch { peer: u32, theirs: PeerCall, ours: String, sequence: Option<u64> },
    /// A peer is gone.
    PeerLost { peer: u32, cause: Loss },
    /// A deadline passed on this rank.
    Timeout { after: Duration, waiting_for: Vec<AwaitedRank>, operation: String, number: Option<u64> },
    /// A rank aborted.
    Aborted { by: u32, kind: AbortReason, reason: String },
    /// Other ranks made different calls as operation `sequence`.
    MismatchOfOthers { by: u32, reason: String, sequence: u64 },
    /// A transport failed.
    Transport(kolo_transport::Error),
}

impl Cause {
    /// Returns the cause that a fatal error of the control plane names.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        Some(match error.clone() {
            Error::PeerLost { peer, cause, detail, .. } => {
                Self::PeerLost { peer, cause: Loss::new(cause, detail) }
            }
            Error::Timeout { context, after, waiting_for } => {
                let ErrorContext { operation, sequence: number, .. } = context;
                Self::Timeout { after, waiting_for, operation, number }
            }
            Error::Aborted { by, kind, reason, .. } => Self::Aborted { by, kind, reason },
            Error::Transport { source, .. } => Self::Transport(*source),
            Error::Mismatch { context, peer, theirs } => {
                Self::Mismatch { peer, theirs, ours: context.operation, sequence: context.sequence }
            }
            _ => return None,
        })
    }

    /// Returns the error for a call that meets this cause.
    pub(crate) fn error(self, context: ErrorContext, rank: u32) -> Error {
        match self {
            // The call that does not match may be earlier than the call that meets the error.
            Self::Mismatch { peer, theirs, ours, sequence: sequence @ Some(_) } => {
                let context = ErrorContext { rank: Some(rank), operation: ours, sequence };
                Error::Mismatch { context, peer, theirs }
            }
            Self::Mismatch { peer, theirs, .. } => Error::Mismatch { context, peer, theirs },
            Self::PeerLost { peer, cause } => cause.error(context, peer),
            Self::Timeout { after, waiting_for, operation, number } => {
                // Messages and other calls have no number.
                if number == context.sequence && operation == context.operation {
                    return Error::Timeout { context, after, waiting_for };
                }
                let number = number.map_or_else(String::new, |number| format!(", operation #{number},"));
                let reason = format!("{operation}{number} did not finish in time");
                Error::Aborted { context, by: rank, kind: AbortReason::Timeout, reason }
            }
            Self::Aborted { by, kind, reason } => Error::Aborted { context, by, kind, reason },
            Self::MismatchOfOthers { by, reason, sequence } => {
                let mut reason = format!("in operation #{sequence}, {reason}");
                if context.sequence.is_some_and(|ours| ours < sequence) {
                    reason.push_str(
                        "; this call came earlier and matched, but a mismatch ends the communicator for all \
                         ranks",
                    );
                }
                Error::Aborted { context, by, kind: AbortReason::Mismatch, reason }
            }
            Self::Transport(source) => Error::Transport { context, source: Box::new(source) },
        }
    }

    /// Returns the report to the other ranks.
    pub(crate) fn report(&self, rank: u32) -> AbortCause {
        match self {
            Self::Mismatch { peer, theirs, ours, sequence } => AbortCause::new(
                rank,
                AbortKind::Mismatch,
                format!("{}{ours}, rank {peer} called {theirs}", called_by(rank)),
            )
            .during(ours, *sequence),
            Self::PeerLost { peer, cause } => AbortCause::lost(*peer, cause),
            Self::Timeout { operation, number, .. } => {
                let cause = AbortCause::new(rank, AbortKind::Timeout, self.to_string());
                cause.during(operation, *number)
            }
            Self::Aborted { by, kind: AbortReason::Revoked, reason } => {
                AbortCause::new(*by, AbortKind::Revoked, reason)
            }
            Self::Aborted { by, kind: AbortReason::CoordinatorLost, reason } => {
                AbortCause::new(*by, AbortKind::CoordinatorLost, reason)
            }
            Self::Aborted { by, reason, .. } | Self::MismatchOfOthers { by, reason, .. } => {
                AbortCause::new(*by, AbortKind::User, reason)
            }
            Self::Transport(error) => AbortCause::new(rank, AbortKind::Transport, error.to_string()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { peer, theirs, ours, .. } => {
                write!(f, "called {ours} while rank {peer} called {theirs}")
            }
            Self::PeerLost { peer, cause } => write!(f, "rank {peer} is lost ({cause})"),
            Self::Timeout { after, waiting_for, .. } => {
                let ranks: Vec<String> =
                    waiting_for.iter().take(NAMED_MAX).map(AwaitedRank::to_string).collect();
                write!(f, "not finished after {:.1} s; waiting for {}", after.as_secs_f64(), ranks.join(", "))
            }
            Self::Aborted { reason, .. } | Self::MismatchOfOthers { reason, .. } => f.write_str(reason),
            Self::Transport(error) => write!(f, "{error}"),
        }
    }
}
