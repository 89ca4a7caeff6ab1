//! Descriptions of awaited operations, for error texts.

use std::fmt;

use super::summary::Summary;
use crate::types::DataType;

/// The awaited operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    /// Number of the collective; 0 for other operations.
    pub(crate) sequence: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Call(Summary),
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
    #[inline]
    pub(crate) const fn call(summary: Summary, sequence: u64) -> Self {
        Self { sequence, what: What::Call(summary) }
    }

    pub(crate) const fn transfer(label: &'static str, message: Message) -> Self {
        Self { sequence: 0, what: What::Message(label, message) }
    }

    pub(crate) const fn other(label: &'static str) -> Self {
        Self { sequence: 0, what: What::Other(label) }
    }

    /// Returns the collective, if the operation is one.
    #[inline]
    pub(crate) const fn summary(&self) -> Option<&Summary> {
        if let What::Call(summary) = &self.what { Some(summary) } else { None }
    }

    /// Returns whether the operation is a send, a receive or a group of them.
    pub(crate) const fn is_message(&self) -> bool {
        matches!(self.what, What::Message(..))
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, Message { number, single }) = match self.what {
            What::Call(summary) => return summary.fmt(f),
            What::Other(label) => return f.write_str(label),
            What::Message(label, message) => (label, message),
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
