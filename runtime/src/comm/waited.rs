//! What a thread waits for, for error texts.

use std::fmt;

use crate::call::Summary;
use crate::types::DataType;

/// What is being waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    pub(crate) summary: Option<Summary>,
    pub(crate) sequence: u64,
    /// What it is, if it is not a collective.
    label: &'static str,
    message: Option<Message>,
}

/// What tells one send, receive or group of them from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// Its number among those of this rank, from 1; ranks need not agree on it.
    pub(crate) number: u64,
    /// What it is, if it is not a group.
    pub(crate) single: Option<Single>,
}

/// One send or receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single {
    /// The other end; `None` for a receive from any source.
    pub(crate) peer: Option<u32>,
    pub(crate) bytes: usize,
    pub(crate) data_type: DataType,
    pub(crate) tag: u32,
}

impl Waited {
    pub(crate) const fn call(summary: Summary, sequence: u64) -> Self {
        Self { summary: Some(summary), sequence, label: "", message: None }
    }

    pub(crate) const fn transfer(label: &'static str, message: Message) -> Self {
        Self { summary: None, sequence: 0, label, message: Some(message) }
    }

    /// Whether it is a send, a receive or a group of them.
    pub(crate) const fn is_message(&self) -> bool {
        self.message.is_some()
    }

    /// Whether one of several ranks is enough for it to end.
    pub(crate) const fn is_from_any(&self) -> bool {
        matches!(self.message, Some(Message { single: Some(Single { peer: None, .. }), .. }))
    }

    pub(crate) const fn other(label: &'static str) -> Self {
        Self { summary: None, sequence: 0, label, message: None }
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.summary, self.message) {
            (Some(summary), _) => summary.fmt(f),
            (None, Some(Message { number, single })) => {
                write!(f, "{} #{number}", self.label)?;
                let Some(Single { peer, bytes, data_type, tag }) = single else { return Ok(()) };
                let way = if self.label == "send" { "to" } else { "from" };
                write!(f, " of {bytes} bytes of {data_type} {way} ")?;
                match peer {
                    Some(peer) => write!(f, "rank {peer}"),
                    None => f.write_str("any rank"),
                }?;
                if tag == 0 { Ok(()) } else { write!(f, " with tag {tag}") }
            }
            (None, None) => f.write_str(self.label),
        }
    }
}
