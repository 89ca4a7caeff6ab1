//! What a thread waits for, for error texts.

use std::fmt;

use crate::call::Summary;

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
    /// The other end and the bytes, if it is not a group.
    pub(crate) single: Option<(u32, usize)>,
}

impl Waited {
    pub(crate) const fn call(summary: Summary, sequence: u64) -> Self {
        Self { summary: Some(summary), sequence, label: "", message: None }
    }

    pub(crate) const fn transfer(label: &'static str, message: Message) -> Self {
        Self { summary: None, sequence: 0, label, message: Some(message) }
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
                let Some((peer, bytes)) = single else { return Ok(()) };
                let way = if self.label == "send" { "to" } else { "from" };
                write!(f, " of {bytes} bytes {way} rank {peer}")
            }
            (None, None) => f.write_str(self.label),
        }
    }
}
