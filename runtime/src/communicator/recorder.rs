//! The flight recorder: keeps the last collectives of a communicator for the diagnosis of failures.

use std::fmt;
use std::time::Duration;

use crate::call::Summary;
use crate::gpu::GpuPath;
use crate::ticks::{Tick, Ticks};

/// Number of operations remembered: a few training steps of a large model, in well under 100 KiB.
const LENGTH: usize = 512;

/// One operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Record {
    /// Number of the operation in the communicator, from 1.
    pub sequence: u64,
    /// The call.
    pub summary: Summary,
    /// Start, as the time since the communicator was made.
    pub started: Duration,
    /// Duration; `None` while it runs.
    pub took: Option<Duration>,
    /// Path of a call on GPU memory.
    pub gpu: Option<GpuPath>,
}

/// A record in its stored form.
#[derive(Clone, Copy, Debug)]
struct Entry {
    sequence: u64,
    summary: Summary,
    started: Tick,
    ended: Option<Tick>,
    gpu: Option<GpuPath>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    ticks: Ticks,
    entries: Vec<Entry>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { ticks: Ticks::start(), entries: Vec::with_capacity(LENGTH) }
    }

    #[inline]
    pub(crate) fn begin(&mut self, sequence: u64, summary: Summary, gpu: Option<GpuPath>) {
        let entry = Entry { sequence, summary, started: self.ticks.now(), ended: None, gpu };
        match self.entries.get_mut(slot(sequence)) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }

    #[inline]
    pub(crate) fn end(&mut self, sequence: u64) {
        let now = self.ticks.now();
        if let Some(entry) = self.entries.get_mut(slot(sequence))
            && entry.sequence == sequence
        {
            entry.ended = Some(now);
        }
    }

    /// Returns the call with this number, if it is still remembered.
    pub(crate) fn find(&self, sequence: u64) -> Option<Summary> {
        let entry = self.entries.get(slot(sequence.max(1)))?;
        (entry.sequence == sequence).then_some(entry.summary)
    }

    /// Returns number and call of all remembered operations, in no order.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (u64, Summary)> {
        self.entries.iter().map(|entry| (entry.sequence, entry.summary))
    }

    /// Returns the records, oldest first.
    pub(crate) fn records(&self) -> Vec<Record> {
        let scale = self.ticks.scale();
        let record = |entry: &Entry| Record {
            sequence: entry.sequence,
            summary: entry.summary,
            started: scale.since_start(entry.started),
            took: entry.ended.map(|ended| scale.between(entry.started, ended)),
            gpu: entry.gpu,
        };
        let mut records: Vec<Record> = self.entries.iter().map(record).collect();
        records.sort_unstable_by_key(|record| record.sequence);
        records
    }
}

/// Returns the slot of an operation's record. Numbers begin at 1.
fn slot(sequence: u64) -> usize {
    (sequence as usize - 1) % LENGTH
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} at {:.6} s: {}", self.sequence, self.started.as_secs_f64(), self.summary)?;
        match self.took {
            Some(took) => write!(f, ", {:.1} us", took.as_secs_f64() * 1e6)?,
            None => f.write_str(", not finished")?,
        }
        self.gpu.map_or(Ok(()), |path| write!(f, "; {path}"))
    }
}
