//! Status board: the state of a rank, which its control thread can read while its main thread computes or hangs.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};

use super::recent::{Recent, Start};
use crate::call::CallLabel;

/// A member's answer to the question what it is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Sequence number of the operation started last; 0 before the first.
    pub started: u64,
    /// Sequence number of the operation finished last.
    pub finished: u64,
    /// Signature of the operation started last.
    pub signature: u64,
    /// The operation started last: "all_reduce(1024 x f32, sum)".
    #[serde(deserialize_with = "super::wire::foreign")]
    pub description: String,
    /// The send, receive or group of them in which the rank has been waiting for long, or the collective, if others were
    /// started after it.
    #[serde(deserialize_with = "super::wire::foreign_if_any")]
    pub waits_in: Option<String>,
    /// The operations started last, oldest first. They let ranks that are some calls apart compare their calls.
    pub recent: Vec<Past>,
    /// Milliseconds for which at least no operation was started or finished, in steps of the heartbeat interval.
    pub unchanged_ms: u64,
    /// Ranks that do not acknowledge this rank's data, as noticed during a wait.
    pub unheard_by: Vec<u32>,
}

/// A rank's account of itself in a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Account {
    /// It is a member and tells what it is doing.
    Here(Status),
    /// It has dropped the communicator.
    Dropped,
    /// It is gone, or does not know the communicator.
    Unknown,
}

/// An operation that a rank has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Its number in the communicator.
    pub sequence: u64,
    /// Signature that distinguishes the call from others.
    pub signature: u64,
    /// The call in words.
    #[serde(deserialize_with = "super::wire::foreign")]
    pub description: String,
}

impl From<Start> for Past {
    fn from(Start { sequence, label }: Start) -> Self {
        Self { sequence, signature: label.signature(), description: label.to_string() }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (0, Some(operation)) = (self.started, &self.waits_in) {
            write!(f, "waits in {operation}")?;
        } else if self.started == 0 {
            f.write_str("has not called anything yet")?;
        } else if self.finished >= self.started {
            write!(f, "finished #{} {}", self.started, self.description)?;
        } else {
            write!(f, "is in #{} {}", self.started, self.description)?;
        }
        if let Some(operation) = self.waits_in.as_ref().filter(|_| self.started > 0) {
            write!(f, ", and waits in {operation}")?;
        }
        if self.unchanged_ms >= 1000 {
            write!(f, ", unchanged for {} s", self.unchanged_ms / 1000)?;
        }
        Ok(())
    }
}

/// One rank's status in one communicator. Its executor writes it, and its control thread reads it.
///
/// Each call costs only a few plain stores here. Rare facts are behind locks.
#[derive(Debug, Default)]
pub struct StatusBoard {
    finished: AtomicU64,
    recent: Recent,
    waits_in: Mutex<Option<String>>,
    unheard_by: Mutex<Vec<u32>>,
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    started: u64,
    finished: u64,
    since: Instant,
}

impl StatusBoard {
    /// Records that an operation starts. Only the executor calls this, from one thread at a time.
    #[inline]
    pub fn start(&self, sequence: u64, label: CallLabel) {
        self.recent.push(Start { sequence, label });
    }

    /// Records that an operation is finished.
    #[inline]
    pub fn finish(&self, sequence: u64) {
        // Only the executor writes, under its own lock, so no read-modify-write is needed. Calls may finish out of
        // order.
        if sequence > self.finished.load(Ordering::Relaxed) {
            self.finished.store(sequence, Ordering::Relaxed);
        }
    }

    /// Records in which operation a thread has been waiting for long, or that it no longer does. Not called while
    /// messages flow.
    pub fn waits_in(&self, operation: Option<String>) {
        *self.waits_in.lock().unpoisoned() = operation;
    }

    /// Records which ranks do not acknowledge this rank's data. Called during long waits.
    pub fn unheard_by(&self, ranks: Vec<u32>) {
        *self.unheard_by.lock().unpoisoned() = ranks;
    }

    /// Returns the sequence number of the operation started last.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.recent.last().map_or(0, |start| start.sequence)
    }

    /// Returns the sequence number of the operation finished last.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Returns the whole status, for other ranks.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status_at(Instant::now())
    }

    pub(crate) fn status_at(&self, now: Instant) -> Status {
        let finished = self.finished();
        let recent: Vec<Past> = self.recent.all().into_iter().map(Past::from).collect();
        let last = recent.last();
        Status {
            started: last.map_or(0, |last| last.sequence),
            finished,
            signature: last.map_or(0, |last| last.signature),
            description: last.map_or_else(String::new, |last| last.description.clone()),
            waits_in: self.waits_in.lock().unpoisoned().clone(),
            recent,
            unchanged_ms: u64::try_from(self.observe(now).as_millis()).unwrap_or(u64::MAX),
            unheard_by: self.unheard_by.lock().unpoisoned().clone(),
        }
    }

    /// Returns how long the state has not changed. The control thread calls this with each heartbeat, so the executor
    /// needs no clock.
    pub(crate) fn observe(&self, now: Instant) -> Duration {
        let (started, finished) = (self.started(), self.finished());
        let mut seen = self.seen.lock().unpoisoned();
        match &*seen {
            Some(last) if last.started == started && last.finished == finished => {
                now.saturating_duration_since(last.since)
            }
            _ => {
                *seen = Some(Seen { started, finished, since: now });
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kolo_collectives::plan::Collective;

    use super::*;
    use crate::call::Summary;
    use crate::types::DataType;

    #[test]
    fn a_board_tells_what_runs_and_for_how_long() {
        let board = StatusBoard::default();
        let now = Instant::now();
        assert_eq!(board.status_at(now).to_string(), "has not called anything yet");
        let call = Summary {
            collective: Collective::Broadcast,
            count: Some(7),
            data_type: DataType::F32,
            op: None,
            root: Some(2),
            shards: None,
            asynchronous: false,
        };
        board.start(5, call.label());
        let _ = board.observe(now);
        let later = board.status_at(now + Duration::from_secs(4));
        assert_eq!(later.to_string(), "is in #5 broadcast(7 x f32, root 2), unchanged for 4 s");
        assert_eq!((later.signature, later.started, later.finished), (call.signature(), 5, 0));
        board.finish(5);
        assert_eq!(board.status_at(now).to_string(), "finished #5 broadcast(7 x f32, root 2)");
        board.waits_in(Some("recv #3 from rank 1".to_owned()));
        let text = board.status_at(now).to_string();
        assert_eq!(text, "finished #5 broadcast(7 x f32, root 2), and waits in recv #3 from rank 1");
        board.waits_in(None);
        assert!(!board.status_at(now).to_string().contains("recv"));
    }
}
