//! A connection to another member.

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

/// A connection to one member. Tasks of its own read and write it.
pub(super) struct Connection {
    pub(super) number: u64,
    queue: mpsc::UnboundedSender<Bytes>,
    reader: AbortHandle,
    /// Handle to the TCP connection, if the member is on another host; and the frames that the member's kernel may not
    /// have yet.
    tcp: Option<stream::TcpHandle>,
    in_flight: Vec<Bytes>,
    /// Time since which such frames have been outstanding.
    since: Instant,
}

impl Connection {
    /// Makes a connection. Messages from the rank go to `events`, and so does the end of the connection.
    pub(super) fn new(
        rank: u32,
        number: u64,
        stream: BoxedStream,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let tcp = stream.tcp_handle();
        let (read, write) = tokio::io::split(stream);
        let (queue, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_frames(write, frames, |_| ()));
        let reader = tokio::spawn(read_frames(rank, number, read, events)).abort_handle();
        Self { number, queue, reader, tcp, in_flight: Vec::new(), since: Instant::now() }
    }

    pub(super) fn send(&mut self, frame: Bytes) {
        if let Some(tcp) = &self.tcp {
            // After a short cut, the kernel resends what was lost, and the less there is, the sooner. Repeated frames
            // would only add to it.
            if tcp.acknowledged().is_none_or(|answered| answered.all) {
                self.in_flight.clear();
                self.since = Instant::now();
            } else if self.in_flight.contains(&frame) {
                return;
            }
            if self.in_flight.len() < UNSENT_MAX {
                self.in_flight.push(frame.clone());
            }
        }
        let _ = self.queue.send(frame);
    }

    /// Whether the connection leads to another host, so that a network cut can make it slow.
    pub(super) const fn crosses_hosts(&self) -> bool {
        self.tcp.is_some()
    }

    /// Whether the other end's kernel has not acknowledged outstanding frames for at least `silence`.
    pub(super) fn is_stuck(&self, silence: Duration, now: Instant) -> bool {
        let is_long = !self.in_flight.is_empty() && now.saturating_duration_since(self.since) >= silence;
        let answered = self.tcp.as_ref().filter(|_| is_long).and_then(stream::TcpHandle::acknowledged);
        answered.is_some_and(|answered| !answered.all && answered.ago >= silence)
    }

    /// Returns sent frames that may not have arrived.
    pub(super) fn unacknowledged(&self) -> &[Bytes] {
        let answered = self.tcp.as_ref().and_then(stream::TcpHandle::acknowledged);
        if answered.is_some_and(|answered| answered.all) { &[] } else { &self.in_flight }
    }

    pub(super) fn end(&self) {
        self.reader.abort();
    }
}

async fn read_frames(
    rank: u32,
    connection: u64,
    read: ReadHalf<BoxedStream>,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut reader = BufReader::new(read);
    // Weak, so that a connection does not keep its owner alive.
    let events = events.downgrade();
    while let Ok(Some(frame)) = read_frame(&mut reader, MAX_FRAME_BETWEEN_MEMBERS).await {
        let (Ok(message), Some(events)) = (decode(&frame), events.upgrade()) else { break };
        let _ = events.send(Event::Received { rank, message });
    }
    if let Some(events) = events.upgrade() {
        let _ = events.send(Event::Ended { rank, connection });
    }
}
