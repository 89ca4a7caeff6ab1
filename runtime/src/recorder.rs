//! The flight recorder: the last collectives of a communicator, for when something goes wrong.

use std::fmt;
use std::time::{Duration, Instant};

use crate::call::Summary;

/// Operations remembered: a few training steps of a large model, in well under 100 KiB.
const LENGTH: usize = 512;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Its number in the communicator, from 1.
    pub sequence: u64,
    /// What was called.
    pub summary: Summary,
    /// When, since the communicator was made.
    pub started: Duration,
    /// How long it took; `None` while it runs.
    pub took: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    epoch: Instant,
    records: Vec<Record>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), records: Vec::with_capacity(LENGTH) }
    }

    pub(crate) fn begin(&mut self, sequence: u64, summary: Summary) {
        let record = Record { sequence, summary, started: self.epoch.elapsed(), took: None };
        let slot = (sequence as usize - 1) % LENGTH;
        if slot < self.records.len() {
            self.records[slot] = record;
        } else {
            self.records.push(record);
        }
    }

    pub(crate) fn end(&mut self, sequence: u64) {
        let now = self.epoch.elapsed();
        if let Some(record) = self.records.get_mut((sequence as usize - 1) % LENGTH)
            && record.sequence == sequence
        {
            record.took = Some(now.saturating_sub(record.started));
        }
    }

    /// The operation of a number, if it is still remembered.
    pub(crate) fn find(&self, sequence: u64) -> Option<&Record> {
        let slot = (sequence.checked_sub(1)? as usize) % LENGTH;
        self.records.get(slot).filter(|record| record.sequence == sequence)
    }

    /// The records, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// The records, oldest first.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records = self.records.clone();
        records.sort_unstable_by_key(|record| record.sequence);
        records
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} at {:.6} s: {}", self.sequence, self.started.as_secs_f64(), self.summary)?;
        match self.took {
            Some(took) => write!(f, ", {:.1} us", took.as_secs_f64() * 1e6),
            None => f.write_str(", not finished"),
        }
    }
}
