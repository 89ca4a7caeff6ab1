//! A line: a connection to another member.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{BufReader, ReadHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::{Event, UNSENT_MAX};
use crate::control::coordinator::{BoxedStream, write_frames};
use crate::control::stream;
use crate::control::wire::{decode, read_frame};
use crate::job::limits::MAX_FRAME_BETWEEN_MEMBERS;

/// A line to one member. Tasks of its own read and write it.
pub(super) struct Line {
    pub(super) number: u64,
    queue: mpsc::UnboundedSender<Bytes>,
    reader: AbortHandle,
    /// Handle to the TCP connection, if the member is on another host; and the frames that the member's kernel may not
    /// have yet.
    beneath: Option<stream::Line>,
    underway: Vec<Bytes>,
    /// Time since which such frames have been outstanding.
    since: Instant,
}

impl Line {
    /// Makes a line. Messages from the rank go to `events`, and so does the end of the line.
    pub(super) fn new(
        rank: u32,
        number: u64,
        stream: BoxedStream,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let beneath = stream.line();
        let (read, write) = tokio::io::split(stream);
        let (queue, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_frames(write, frames, |_| ()));
        let reader = tokio::spawn(read_frames(rank, number, read, events)).abort_handle();
        Self { number, queue, reader, beneath, underway: Vec::new(), since: Instant::now() }
    }

    pub(super) fn send(&mut self, frame: Bytes) {
        if let Some(beneath) = &self.beneath {
            // After a short cut, the kernel resends what was lost, and the less there is, the sooner. Repeated frames
            // would only add to it.
            if beneath.answered().is_none_or(|answered| answered.all) {
                self.underway.clear();
                self.since = Instant::now();
            } else if self.underway.contains(&frame) {
                return;
            }
            if self.underway.len() < UNSENT_MAX {
                self.underway.push(frame.clone());
            }
        }
        let _ = self.queue.send(frame);
    }

    /// Whether the line leads to another host, so that a network cut can make it slow.
    pub(super) const fn leads_to_another_host(&self) -> bool {
        self.beneath.is_some()
    }

    /// Whether the other end's kernel has not acknowledged outstanding frames for at least `silence`.
    pub(super) fn is_stuck(&self, silence: Duration, now: Instant) -> bool {
        let is_long = !self.underway.is_empty() && now.saturating_duration_since(self.since) >= silence;
        let answered = self.beneath.as_ref().filter(|_| is_long).and_then(stream::Line::answered);
        answered.is_some_and(|answered| !answered.all && answered.ago >= silence)
    }

    /// Returns sent frames that may not have arrived.
    pub(super) fn unheard(&self) -> &[Bytes] {
        let answered = self.beneath.as_ref().and_then(stream::Line::answered);
        if answered.is_some_and(|answered| answered.all) { &[] } else { &self.underway }
    }

    pub(super) fn end(&self) {
        self.reader.abort();
    }
}

async fn read_frames(
    rank: u32,
    line: u64,
    read: ReadHalf<BoxedStream>,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut reader = BufReader::new(read);
    // Weak, so that a line does not keep its owner alive.
    let events = events.downgrade();
    while let Ok(Some(frame)) = read_frame(&mut reader, MAX_FRAME_BETWEEN_MEMBERS).await {
        let (Ok(said), Some(events)) = (decode(&frame), events.upgrade()) else { break };
        let _ = events.send(Event::Said { rank, said });
    }
    if let Some(events) = events.upgrade() {
        let _ = events.send(Event::Ended { rank, line });
    }
}
