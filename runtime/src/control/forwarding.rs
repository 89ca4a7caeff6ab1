//! Forwarding of long messages from rank to rank: the coordinator sends the welcome and the blobs of an all-gather to
//! only a few ranks, and each passes them on to a few others through their listeners.
//!
//! The only purpose is to spare the coordinator bytes. Each rank reports that it has the message. If no report arrives
//! for a while, the coordinator itself sends the message to the ranks that lack it, whatever the reason: an unreachable
//! listener, or a rank that has died or left. Duplicates do no harm, since an all-gather ends only once. Members whose
//! listener others could not reach get later messages from the coordinator directly.
//!
//! The tree is that of a heap. A message's receivers have *places* from 0 on, in the order of their ranks (or of the
//! members of an all-gather). The coordinator sends to the first [`FAN_OUT`] places, and place p sends to the [`FAN_OUT`]
//! places from `FAN_OUT * (p + 1)` on.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kolo_transport::Unpoisoned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::handshake::Credentials;
use super::peers::acceptor::Opening;
use super::peers::listener::{ConnectError, ListenerAddress, Locality};
use super::wire::{FromCoordinator, PeerInfo, encode};
use crate::job::limits::{CONNECT_TIMEOUT, FORWARD_TIMEOUT};
use crate::join::{JoinSpec, Locator};

/// Number of receivers to which a rank passes a message on. All of them share the rank's network link, so few are best
/// for long messages.
pub(super) const FAN_OUT: usize = 4;

/// Most receivers to which the coordinator sends all messages itself.
const DIRECT_RANKS: usize = 32;

/// Longest message that the coordinator always sends itself. Sending it costs little compared with a connection to a
/// listener.
const DIRECT_BYTES: usize = 4 << 10;

/// Heartbeats without news after which the coordinator sends a message itself. A connection to a listener takes
/// milliseconds, or seconds where a thousand processes start on two CPUs.
const PATIENCE: u32 = 4;

/// Lowest rate, in bytes per second, at which a rank is expected to pass a message on.
const SLOW_BYTES_PER_SECOND: usize = 10 << 20;

/// Whether a message of this length for this many ranks is passed on.
pub(super) const fn is_worthwhile(bytes: usize, ranks: usize) -> bool {
    ranks > DIRECT_RANKS && bytes > DIRECT_BYTES
}

/// Returns the places to which a place passes a message on, among `count` places. `None` stands for the coordinator.
pub(super) fn next(place: Option<usize>, count: usize) -> Range<usize> {
    let first = place.map_or(0, |place| FAN_OUT * (place + 1));
    first.min(count)..(first + FAN_OUT).min(count)
}

/// Returns how many heartbeats may pass until one more rank reports a message of this length.
pub(super) fn patience(bytes: usize) -> u32 {
    let busy = u32::try_from(bytes * FAN_OUT / SLOW_BYTES_PER_SECOND).unwrap_or(u32::MAX);
    PATIENCE.saturating_add(busy)
}

/// Passes messages on for a rank.
#[derive(Debug)]
pub(super) struct Forwarder {
    spec: JoinSpec,
    /// The ranks' listeners, by rank. The entry is empty for a rank without a listener.
    listeners: Arc<[ListenerAddress]>,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    forwarded_bytes: AtomicU64,
    in_flight: Mutex<usize>,
    changed: Condvar,
}

/// Counts a message as being passed on, until it is dropped.
struct InFlightGuard(Arc<Progress>);

impl InFlightGuard {
    fn new(progress: &Arc<Progress>) -> Self {
        *progress.in_flight.lock().unpoisoned() += 1;
        Self(progress.clone())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        *self.0.in_flight.lock().unpoisoned() -= 1;
        self.0.changed.notify_all();
    }
}

impl Forwarder {
    pub(super) fn new(spec: &JoinSpec, listeners: Arc<[ListenerAddress]>) -> Self {
        Self { spec: spec.clone(), listeners, progress: Arc::default() }
    }

    /// Returns how many bytes this rank has passed on.
    pub(super) fn forwarded_bytes(&self) -> u64 {
        self.progress.forwarded_bytes.load(Ordering::Relaxed)
    }

    /// Waits until no message is being passed on, at most for `patience`.
    pub(super) fn wait(&self, patience: Duration) {
        let Progress { in_flight, changed, .. } = &*self.progress;
        let in_flight = in_flight.lock().unpoisoned();
        drop(changed.wait_timeout_while(in_flight, patience, |in_flight| *in_flight > 0));
    }

    /// Passes a message on to those of its receivers (ranks, in the order of their places) that follow this rank in the
    /// tree. Returns at once. The coordinator sends the message to members that cannot be reached.
    pub(super) fn forward(&self, message: &FromCoordinator, receivers: &[u32], peers: &[PeerInfo]) {
        let own = self.spec.rank;
        let place = receivers.iter().position(|rank| *rank == own);
        let places = next(place, receivers.len());
        if place.is_none() || places.is_empty() {
            return;
        }
        let frame = encode(message);
        for &rank in &receivers[places] {
            let host = |rank: u32| peers.get(rank as usize).map(|peer| peer.host_key);
            let Some(listener) = self.listeners.get(rank as usize).cloned() else { continue };
            let way = Way {
                credentials: listener.credentials(&self.spec),
                listener,
                locality: match self.spec.locator {
                    Locator::Local(_) => Locality::SameProcess,
                    _ if host(rank) == host(own) => Locality::SameHost,
                    _ => Locality::OtherHost,
                },
            };
            let (frame, in_flight) = (frame.clone(), InFlightGuard::new(&self.progress));
            tokio::spawn(async move {
                let sent = send(&way, &frame, &in_flight.0.forwarded_bytes);
                match tokio::time::timeout(FORWARD_TIMEOUT, sent).await {
                    Ok(Ok(())) => {}
                    Ok(Err(problem)) => tracing::debug!(rank, "a message could not be forwarded: {problem}"),
                    Err(_) => tracing::debug!(rank, "a message could not be forwarded in time"),
                }
            });
        }
    }
}

/// The way to another rank.
struct Way {
    listener: ListenerAddress,
    credentials: Credentials,
    locality: Locality,
}

async fn send(way: &Way, frame: &Bytes, forwarded_bytes: &AtomicU64) -> Result<(), String> {
    let Way { listener, credentials, locality } = way;
    let connect = listener.connect(*locality, credentials.clone(), &Opening::Forward, CONNECT_TIMEOUT);
    let mut stream = connect.await.map_err(ConnectError::text)?;
    let said = |error: io::Error| error.to_string();
    stream.write_all(frame).await.map_err(said)?;
    stream.flush().await.map_err(said)?;
    forwarded_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    // The other end closes once it has received everything.
    stream.read(&mut [0]).await.map_err(said)?;
    Ok(())
}

/// A message that ranks are passing on, with the coordinator's knowledge of who has it.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) key: Option<super::GatherKey>,
    /// The message itself, for ranks that do not get it from others.
    pub(super) frame: Bytes,
    /// All receivers, by their places.
    pub(super) receivers: Vec<u32>,
    /// Receivers that have not reported the message.
    pub(super) waiting: BTreeSet<u32>,
    /// Heartbeats without news after which the coordinator sends the message itself, and how many of them are left.
    pub(super) patience: u32,
    pub(super) left: u32,
}

impl InFlight {
    /// Returns receivers that lack the message although the rank that should pass it on to them has it.
    pub(super) fn unreached(&self) -> impl Iterator<Item = u32> {
        let has_it = |place: usize| !self.waiting.contains(&self.receivers[place]);
        let is_unreached =
            move |place: &usize| !has_it(*place) && (*place < FAN_OUT || has_it(*place / FAN_OUT - 1));
        (0..self.receivers.len()).filter(is_unreached).map(|place| self.receivers[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_it_once() {
        for count in [0, 1, 3, 4, 5, 33, 256, 1000, 4096] {
            let mut came = vec![0; count];
            for place in std::iter::once(None).chain((0..count).map(Some)) {
                let to = next(place, count);
                assert!(to.len() <= FAN_OUT);
                assert!(place.is_none_or(|place| to.start > place), "from the front to the back");
                assert!(to.clone().all(|to| (to >= FAN_OUT).then(|| to / FAN_OUT - 1) == place), "and back");
                to.for_each(|place| came[place] += 1);
            }
            assert!(came.iter().all(|times| *times == 1), "{count}: {came:?}");
        }
    }

    #[test]
    fn long_messages_have_more_time() {
        assert_eq!((patience(100 << 10), patience(5 << 20)), (PATIENCE, PATIENCE + 2));
        assert!(!is_worthwhile(1 << 20, 8) && !is_worthwhile(100, 4096) && is_worthwhile(100 << 10, 256));
    }
}
