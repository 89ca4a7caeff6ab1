//! Failures of a program's rank: wrong results, and errors of calls.

use std::fmt;
use std::sync::Arc;

/// World ranks of the members of a communicator, by rank.
pub(super) type Members = Arc<[u32]>;

/// The end of a rank's part in a program, or of one of its steps.
#[derive(Debug)]
pub(super) enum Failure {
    /// A result is wrong.
    Wrong(String),
    /// A call has failed.
    Call(Box<CallError>),
    /// This rank has left, as the program says.
    Left,
    /// A thread has panicked.
    Panicked,
}

/// An error of a call.
#[derive(Debug)]
pub(super) struct CallError {
    pub(super) error: kolo::Error,
    /// Members of the communicator whose ranks the error names, once known.
    pub(super) members: Option<Members>,
    during: String,
}

pub(super) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Adds what this rank was doing.
    pub(super) fn during(mut self, what: &dyn fmt::Display) -> Self {
        match &mut self {
            Self::Wrong(text) => *text = format!("{what}: {text}"),
            Self::Call(call) => call.during = format!("{what}: {}", call.during),
            Self::Left | Self::Panicked => {}
        }
        self
    }

    /// Says whose ranks an error names, unless that is known.
    pub(super) fn among(mut self, members: &Members) -> Self {
        if let Self::Call(call) = &mut self {
            call.members.get_or_insert_with(|| Arc::clone(members));
        }
        self
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Wrong(text)
    }
}

impl From<kolo::Error> for Failure {
    fn from(error: kolo::Error) -> Self {
        Self::Call(Box::new(CallError { error, members: None, during: String::new() }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) => f.write_str(text),
            Self::Call(call) => write!(f, "{}{} (members {:?})", call.during, call.error, call.members),
            Self::Left => f.write_str("left"),
            Self::Panicked => f.write_str("a panic"),
        }
    }
}
