//! The facts about other ranks that an error carries.

use std::fmt;

use crate::types::DataType;

/// A rank that a call was still waiting for when its deadline passed. Its text has rank and detail: "rank 2 (finished
/// #1 barrier())".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwaitedRank {
    /// Its number in the communicator concerned.
    pub rank: u32,
    /// Activity of the rank.
    pub state: PeerState,
    /// The state in words, with the operation's name and the transport to the rank.
    pub detail: String,
}

impl AwaitedRank {
    pub(crate) const fn new(rank: u32, state: PeerState, detail: String) -> Self {
        Self { rank, state, detail }
    }
}

impl fmt::Display for AwaitedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.detail)
    }
}

/// Activity of a rank at the time when another rank's deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerState {
    /// It was in no call: it is computing, or hangs elsewhere.
    Outside {
        /// Number of the operation that it finished last; 0 before the first.
        finished: u64,
    },
    /// It was waiting too.
    Waiting {
        /// Number of the operation that it started last; 0 in a send or receive before the first operation.
        started: u64,
    },
    /// Data between it and another rank is not acknowledged. The network between the two needs attention.
    CutOff {
        /// The other rank.
        other: u32,
    },
    /// It had not arrived at an exchange of the control plane, by which communicators and symmetric buffers are made.
    Late,
    /// It had left in good order.
    Left,
    /// It was asked and did not answer.
    Silent,
    /// It is the waiting rank itself: a message to oneself needs both a send and a receive.
    Itself,
    /// It was not asked, or the question could not be delivered.
    Unknown,
}

/// A peer's call that differs from this rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerCall {
    /// An operation.
    Operation {
        /// The call: "all_reduce(1024 x f32, sum)".
        description: String,
        /// Its number in the communicator, where that is known to differ from this rank's.
        sequence: Option<u64>,
    },
    /// A point-to-point send.
    Send {
        /// Bytes of the message.
        bytes: u64,
        /// Type of its elements.
        data_type: DataType,
        /// Its tag.
        tag: u32,
    },
    /// The same call, but with a message of another length.
    Length {
        /// The call.
        description: String,
        /// Length of the message that arrived, in bytes.
        bytes: u64,
        /// Length that was expected, in bytes.
        expected: u64,
    },
    /// A call that is not known.
    Unknown {
        /// The known facts, in words.
        detail: String,
    },
}

impl fmt::Display for PeerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation { description, sequence: None } | Self::Unknown { detail: description } => {
                f.write_str(description)
            }
            Self::Operation { description, sequence: Some(sequence) } => {
                write!(f, "{description} as operation #{sequence}")
            }
            Self::Send { bytes, data_type, tag: 0 } => write!(f, "send of {bytes} bytes of {data_type}"),
            Self::Send { bytes, data_type, tag } => {
                write!(f, "send of {bytes} bytes of {data_type} with tag {tag}")
            }
            Self::Length { description, bytes, expected } => {
                write!(f, "{description} with a message of {bytes} bytes where {expected} were expected")
            }
        }
    }
}
