//! From what the transports and the control plane report to the error a caller gets, the same on every rank.

use std::fmt;
use std::time::{Duration, Instant};

use kolo_transport::ErrorKind;

use super::shared::{Shared, Waited};
use crate::control::{AbortCause, AbortKind};
use crate::error::{Context, Error, Result};
use crate::wait;

/// Why a communicator cannot be used any more.
#[derive(Clone, Debug)]
pub(crate) enum Poison {
    /// The ranks called different things.
    Mismatch { peer: u32, theirs: String, ours: String, sequence: u64 },
    /// A peer is gone.
    PeerLost { peer: u32, cause: String },
    /// A deadline passed here.
    Timeout { after: Duration, waiting_for: Vec<(u32, String)>, operation: String, sequence: u64 },
    /// Somebody aborted.
    Aborted { by: u32, reason: String },
    /// A transport failed.
    Transport(kolo_transport::Error),
}

impl Poison {
    /// The error for a call that meets it.
    pub(crate) fn error(self, context: Context, rank: u32) -> Error {
        match self {
            Self::Mismatch { peer, theirs, .. } => Error::Mismatch { context, peer, theirs },
            Self::PeerLost { peer, cause } => Error::PeerLost { context, peer, cause },
            Self::Timeout { after, waiting_for, sequence, .. } if sequence == context.sequence => {
                Error::Timeout { context, after, waiting_for }
            }
            Self::Timeout { ref operation, sequence, .. } => {
                let reason = format!("{operation}, operation #{sequence}, did not finish in time");
                Error::Aborted { context, by: rank, reason }
            }
            Self::Aborted { by, reason } => Error::Aborted { context, by, reason },
            Self::Transport(source) => Error::Transport { context, source: Box::new(source) },
        }
    }

    /// What the other ranks are told.
    pub(crate) fn cause(&self, rank: u32) -> AbortCause {
        match self {
            Self::Mismatch { peer, theirs, ours, sequence } => AbortCause::new(
                rank,
                AbortKind::Mismatch,
                format!("rank {rank} called {ours}, rank {peer} called {theirs}"),
            )
            .during(ours, *sequence),
            Self::PeerLost { peer, cause } => AbortCause::new(*peer, AbortKind::PeerLost, cause),
            Self::Timeout { operation, sequence, .. } => {
                AbortCause::new(rank, AbortKind::Timeout, self.to_string()).during(operation, *sequence)
            }
            Self::Aborted { by, reason } => AbortCause::new(*by, AbortKind::User, reason),
            Self::Transport(error) => AbortCause::new(rank, AbortKind::User, error.to_string()),
        }
    }

    fn of(cause: &AbortCause) -> Self {
        match cause.kind {
            AbortKind::PeerLost | AbortKind::HubLost => {
                Self::PeerLost { peer: cause.by, cause: cause.reason.clone() }
            }
            AbortKind::Mismatch => Self::Mismatch {
                peer: cause.by,
                theirs: cause.operation.clone(),
                ours: String::new(),
                sequence: cause.sequence,
            },
            AbortKind::Timeout | AbortKind::User => {
                Self::Aborted { by: cause.by, reason: cause.reason.clone() }
            }
        }
    }
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { peer, theirs, ours, .. } => {
                write!(f, "called {ours} while rank {peer} called {theirs}")
            }
            Self::PeerLost { peer, cause } => write!(f, "rank {peer} is lost ({cause})"),
            Self::Timeout { after, waiting_for, .. } => {
                let ranks: Vec<String> = waiting_for.iter().map(|(rank, _)| rank.to_string()).collect();
                write!(f, "no end after {:.1} s, waiting for rank {}", after.as_secs_f64(), ranks.join(", "))
            }
            Self::Aborted { reason, .. } => f.write_str(reason),
            Self::Transport(error) => write!(f, "{error}"),
        }
    }
}

/// Whether a cause is the loss of a peer: what it had sent before may still arrive.
pub(crate) fn is_loss(cause: &AbortCause) -> bool {
    matches!(cause.kind, AbortKind::PeerLost | AbortKind::HubLost)
}

impl Shared {
    /// Finds out why the engine failed, or what the control plane reported.
    pub(crate) fn diagnose(&self, waited: Waited) -> Poison {
        if let Some(cause) = self.membership.abort_flag().cause() {
            return Poison::of(&cause);
        }
        let failure = self.core().engine.failure().cloned();
        let Some(failure) = failure else {
            return Poison::Aborted { by: self.rank, reason: "aborted".to_owned() };
        };
        match (failure.kind, failure.peer) {
            (ErrorKind::Mismatch { expected_len, len, .. }, Some(peer)) => {
                let ours = self.context(waited).operation;
                // The peer's control thread answers even while the peer waits; it may also have failed first.
                let theirs = match self.membership.ask(peer, Duration::from_millis(500)) {
                    Some(status) if status.started == waited.sequence || waited.sequence == 0 => {
                        status.description
                    }
                    Some(status) => format!("{} as operation #{}", status.description, status.started),
                    None => "something else".to_owned(),
                };
                let theirs = if theirs == ours || waited.sequence == 0 {
                    format!("{theirs} with a message of {len} bytes where {expected_len} were expected")
                } else {
                    theirs
                };
                Poison::Mismatch { peer, theirs, ours, sequence: waited.sequence }
            }
            (ErrorKind::PeerLost, Some(peer)) => {
                // The control plane knows more (it left, it was killed), and within moments.
                let deadline = Instant::now() + Duration::from_millis(300);
                while Instant::now() < deadline {
                    if let Some(cause) = self.membership.abort_flag().cause() {
                        return Poison::of(&cause);
                    }
                    wait::sleep(Duration::from_millis(1));
                }
                let cause = if self.membership.departed(peer) {
                    "it has dropped its communicator or exited, and is not in this call".to_owned()
                } else {
                    failure.to_string()
                };
                Poison::PeerLost { peer, cause }
            }
            _ => Poison::Transport(failure),
        }
    }

    /// A deadline has passed.
    pub(crate) fn time_out(&self, waited: Waited, after: Duration, peers: &[u32]) -> Error {
        let mut waiting_for: Vec<(u32, String)> = self
            .ask(peers)
            .into_iter()
            .map(|(peer, status)| {
                let text = match status {
                    Some(status) => status.to_string(),
                    None if self.membership.departed(peer) => "it has left".to_owned(),
                    None => "no answer from it".to_owned(),
                };
                (peer, text)
            })
            .collect();
        for peer in peers.iter().skip(waiting_for.len()) {
            waiting_for.push((*peer, "not asked".to_owned()));
        }
        let context = self.context(waited);
        self.poison_with(Poison::Timeout {
            after,
            waiting_for,
            operation: context.operation,
            sequence: context.sequence,
        });
        self.fail(waited)
    }

    /// Nothing has moved for some time: asks the peers, and fails if one of them is somewhere else for good.
    pub(crate) fn examine(&self, waited: Waited, peers: &[u32]) -> Result<()> {
        for (peer, status) in self.ask(peers) {
            if self.membership.departed(peer) {
                let cause = "it has dropped its communicator or exited, and is not in this call".to_owned();
                self.poison_with(Poison::PeerLost { peer, cause });
                return Err(self.fail(waited));
            }
            let (Some(status), Some(ours)) = (status, waited.summary) else { continue };
            if status.started == waited.sequence && status.signature != ours.signature() {
                self.poison_with(Poison::Mismatch {
                    peer,
                    theirs: status.description,
                    ours: ours.to_string(),
                    sequence: waited.sequence,
                });
                return Err(self.fail(waited));
            }
        }
        Ok(())
    }

    /// Gives up on purpose.
    pub(crate) fn abort(&self, reason: &str) {
        self.poison_with(Poison::Aborted { by: self.rank, reason: reason.to_owned() });
    }
}
