//! Descriptions of awaited operations, for error texts.

use std::fmt;

use super::summary::Summary;
use crate::types::DataType;

/// The awaited operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waited {
    /// A collective, with its number from 1, if it has one yet.
    Call(Summary, Option<u64>),
    /// A send, a receive or a group of them.
    Message(&'static str, Message),
    Other(&'static str),
}

/// The facts that distinguish sends, receives and groups of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// Number among the messages of this rank, from 1. Ranks need not agree on it.
    pub(crate) number: u64,
    /// The message, if it is not a group.
    pub(crate) single: Option<Single>,
}

/// One send or receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single {
    /// Peer; `None` for a receive from any source.
    pub(crate) peer: Option<u32>,
    pub(crate) bytes: usize,
    pub(crate) data_type: DataType,
    pub(crate) tag: u32,
}

impl Waited {
    /// Returns a collective that has no number yet.
    pub(crate) const fn unnumbered(summary: Summary) -> Self {
        Self::Call(summary, None)
    }

    /// Returns the number of the collective, if the operation is one.
    #[inline]
    pub(crate) const fn number(&self) -> Option<u64> {
        if let Self::Call(_, number) = self { *number } else { None }
    }

    /// Returns the collective, if the operation is one.
    #[inline]
    pub(crate) const fn summary(&self) -> Option<&Summary> {
        if let Self::Call(summary, _) = self { Some(summary) } else { None }
    }

    /// Returns whether the operation is a send, a receive or a group of them.
    pub(crate) const fn is_message(&self) -> bool {
        matches!(self, Self::Message(..))
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, Message { number, single }) = match *self {
            Self::Call(summary, _) => return summary.fmt(f),
            Self::Other(label) => return f.write_str(label),
            Self::Message(label, message) => (label, message),
        };
        write!(f, "{label} #{number}")?;
        let Some(Single { peer, bytes, data_type, tag }) = single else { return Ok(()) };
        let way = if label == "send" { "to" } else { "from" };
        write!(f, " of {bytes} bytes of {data_type} {way} ")?;
        match peer {
            Some(peer) => write!(f, "rank {peer}"),
            None => f.write_str("any rank"),
        }?;
        if tag == 0 { Ok(()) } else { write!(f, " with tag {tag}") }
    }
}
