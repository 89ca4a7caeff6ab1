//! An error's knowledge of other ranks.

use std::fmt;

use crate::types::DataType;

/// A rank that a call waited for when its deadline passed. The text gives rank and detail: "rank 2 (finished #1 barrier())".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwaitedRank {
    /// The rank, in the communicator concerned.
    pub rank: u32,
    /// Its activity.
    pub state: PeerState,
    /// The same in words, with the operation's name and how the rank is reached.
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

/// A rank's activity when another rank's deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerState {
    /// It was in no call: it computes, or hangs elsewhere.
    Outside {
        /// Number of the operation that it finished last; 0 before the first.
        finished: u64,
    },
    /// It was waiting too.
    Waiting {
        /// Number of the operation that it started last; 0 in a send or receive before the first operation.
        started: u64,
    },
    /// Data between it and another rank is not acknowledged: look at the network between the two.
    CutOff {
        /// The other rank.
        other: u32,
    },
    /// It had not come to an exchange of the control plane, with which communicators and symmetric buffers are made.
    Late,
    /// It had left in good order.
    Left,
    /// It was asked and did not answer.
    Silent,
    /// It is the rank that waited: a message to oneself takes a send and a receive.
    Itself,
    /// The rank was not asked, or the question could not be carried.
    Unknown,
}

/// A peer's call where this rank's was different.
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
    /// The same call, with a message of another length.
    Length {
        /// The call.
        description: String,
        /// Bytes of the message that came.
        bytes: u64,
        /// Bytes that were expected.
        expected: u64,
    },
    /// Its call is not known.
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
