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

/// Most connections to one member that are kept: both may have connected at the same time.
const CONNECTIONS_MAX: usize = 2;

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
        events: &mpsc::UnboundedSender<Event>,
    ) -> Self {
        let tcp = stream.tcp_handle();
        let (read, write) = tokio::io::split(stream);
        let (queue, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_frames(write, frames, |_| ()));
        let reader = tokio::spawn(read_frames(rank, number, read, events.downgrade())).abort_handle();
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

/// Adds the newest connection to a member. This end sends no more over those that it replaces, so the other end closes
/// them too. Messages that the other end has sent by then are still read.
pub(super) fn put_first(connections: &mut Vec<Connection>, newest: Connection) {
    connections.insert(0, newest);
    connections.truncate(CONNECTIONS_MAX);
}

/// Reads messages for the owner of the connection, which it does not keep alive.
async fn read_frames(
    rank: u32,
    connection: u64,
    read: ReadHalf<BoxedStream>,
    events: mpsc::WeakUnboundedSender<Event>,
) {
    let mut reader = BufReader::new(read);
    while let Ok(Some(frame)) = read_frame(&mut reader, MAX_FRAME_BETWEEN_MEMBERS).await {
        let (Ok(message), Some(events)) = (decode(&frame), events.upgrade()) else { break };
        let _ = events.send(Event::Received { rank, message });
    }
    if let Some(events) = events.upgrade() {
        let _ = events.send(Event::Ended { rank, connection });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::control::peers::PeerMessage;
    use crate::control::wire::encode;

    #[tokio::test(flavor = "current_thread")]
    async fn a_replaced_connection_is_read_to_its_end_and_closed() {
        let (events, mut inbox) = mpsc::unbounded_channel();
        let (mut connections, mut far) = (Vec::new(), Vec::new());
        for number in 0..5 {
            let (near, end) = tokio::io::duplex(1 << 12);
            put_first(&mut connections, Connection::new(7, number, Box::new(near), &events));
            far.push(end);
        }
        assert_eq!(connections.iter().map(|connection| connection.number).collect::<Vec<_>>(), [4, 3]);
        // The other end may have sent something before it noticed.
        let mut first = far.remove(0);
        assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "this end sends no more");
        first.write_all(&encode(&PeerMessage::Ping)).await.unwrap();
        drop(first);
        let received = inbox.recv().await;
        assert!(matches!(received, Some(Event::Received { rank: 7, message: PeerMessage::Ping })));
        assert!(matches!(inbox.recv().await, Some(Event::Ended { rank: 7, connection: 0 })));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_does_not_keep_its_owner_alive() {
        let (events, mut inbox) = mpsc::unbounded_channel();
        let (near, _far) = tokio::io::duplex(1 << 12);
        let _connection = Connection::new(7, 0, Box::new(near), &events);
        // The reader has begun to read.
        tokio::task::yield_now().await;
        drop(events);
        let next = tokio::time::timeout(Duration::from_secs(20), inbox.recv()).await;
        assert!(next.expect("no sender is left").is_none());
    }
}
