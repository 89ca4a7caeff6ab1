//! The one error of the public API: fields, not strings, so that a caller can act on them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What [`Error::Timeout`] advises, at the end of its text. A door whose limits are set in another way puts its own here.
pub const TIMEOUT_REMEDY: &str = "Raise the limit with KOLO_TIMEOUT if the ranks are merely slow";

/// What [`Error::Join`] advises where ranks are missing, in its remedy. As [`TIMEOUT_REMEDY`].
pub const JOIN_REMEDY: &str = "a longer limit is set with KOLO_JOIN_TIMEOUT";

/// Where an error happened: which rank, in which operation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Context {
    /// Rank of the caller in the communicator concerned.
    pub rank: u32,
    /// The call, with what tells it apart: "all_reduce(1048576 x f32, sum)". Empty outside operations.
    pub operation: String,
    /// Sequence number of the operation in its communicator, counted from 1; 0 outside operations.
    pub sequence: u64,
}

/// Everything that can go wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that makes no sense: a root out of range, buffers of the wrong length.
    /// Nothing was sent; the communicator is as it was.
    Usage {
        /// Where.
        context: Context,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A setting is missing or wrong.
    Configuration {
        /// The setting: "MASTER_ADDR", "--transport".
        setting: String,
        /// What was found, or that nothing was.
        problem: String,
        /// What to set.
        remedy: String,
    },
    /// The ranks could not find each other, or did not agree on who is who.
    Join {
        /// Rank of the caller, where known.
        rank: Option<u32>,
        /// What happened, with addresses and the ranks that are missing.
        problem: String,
        /// What to check.
        remedy: String,
    },
    /// The ranks called different things at the same point. Reported on both sides; the communicator is aborted.
    Mismatch {
        /// Where.
        context: Context,
        /// The rank that called something else.
        peer: u32,
        /// What the peer called, where known.
        theirs: String,
    },
    /// A peer's process ended or its connection broke. The communicator is aborted.
    PeerLost {
        /// Where.
        context: Context,
        /// Who is gone.
        peer: u32,
        /// How that was noticed.
        cause: String,
    },
    /// The deadline passed. The communicator is aborted.
    Timeout {
        /// Where.
        context: Context,
        /// The deadline that was set.
        after: Duration,
        /// The ranks that this one was waiting for, with what is known of each.
        waiting_for: Vec<(u32, String)>,
    },
    /// The communicator was aborted earlier, by this rank or another.
    Aborted {
        /// Where.
        context: Context,
        /// The rank that aborted.
        by: u32,
        /// Its reason.
        reason: String,
    },
    /// The combination is not supported, for a reason that waiting does not cure.
    Unsupported {
        /// Where.
        context: Context,
        /// What, why, and what to use instead.
        problem: String,
    },
    /// A transport failed in another way.
    Transport {
        /// Where.
        context: Context,
        /// Its own words.
        source: Box<kolo_transport::Error>,
    },
    /// The operating system refused.
    System {
        /// What was being done.
        doing: String,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The operating system refused.
    #[must_use]
    pub fn system(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::System { doing: doing.into(), source: Arc::new(source) }
    }

    /// A setting is missing or wrong.
    #[must_use]
    pub fn configuration(
        setting: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Configuration { setting: setting.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if !self.operation.is_empty() {
            write!(f, ", {}", self.operation)?;
        }
        if self.sequence != 0 {
            write!(f, ", operation #{}", self.sequence)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage { context, problem } => write!(f, "{context}: {problem}"),
            Self::Configuration { setting, problem, remedy } => write!(f, "{setting}: {problem}. {remedy}"),
            Self::Join { rank, problem, remedy } => {
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
            Self::PeerLost { context, peer, cause } => write!(
                f,
                "{context}: rank {peer} is lost ({cause}). Look at its own output for the reason; the \
                 communicator cannot be used any more"
            ),
            Self::Timeout { context, after, waiting_for } => {
                write!(f, "{context}: not finished after {:.1} s; waiting for ", after.as_secs_f64())?;
                for (i, (rank, what)) in waiting_for.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}rank {rank} ({what})")?;
                }
                if waiting_for.is_empty() {
                    write!(f, "no particular rank")?;
                }
                write!(f, ". {TIMEOUT_REMEDY}")
            }
            Self::Aborted { context, by, reason } => {
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
