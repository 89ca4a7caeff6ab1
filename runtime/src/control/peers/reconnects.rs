//! Replacement of connections to other hosts that a network cut has made slow.
//!
//! A kernel resends data lost in a cut when a timer fires, up to some tenths of a second after the network works again.
//! A member that waits for the answer would take the other for silent in the meantime. It therefore opens a new
//! connection earlier, as soon as the silence is suspicious.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::connection::Connection;
use super::listener::ConnectError;
use super::{Event, Task};
use crate::control::coordinator::BoxedStream;
use crate::control::host_monitor::suspicion;

/// Attempts under way. Each sends one connection request within its time, and the first that is answered counts.
pub(super) struct Reconnects {
    due: Instant,
    /// Whether there are connections to other hosts.
    crosses_hosts: bool,
    attempts: BTreeMap<u32, Vec<JoinHandle<()>>>,
    /// Times from which on other members may be asked again for a connection to a rank.
    detours_due: BTreeMap<u32, Instant>,
}

impl Reconnects {
    pub(super) const fn new(now: Instant) -> Self {
        Self { due: now, crosses_hosts: false, attempts: BTreeMap::new(), detours_due: BTreeMap::new() }
    }

    /// Returns the time of the next check of the connections, or `None` without connections to other hosts.
    pub(super) fn due(&self) -> Option<Instant> {
        self.crosses_hosts.then_some(self.due)
    }
}

impl Task {
    /// Starts new connections to members whose silence is suspicious.
    pub(super) fn reconnect_slow(&mut self, now: Instant) {
        if now < self.reconnects.due {
            return;
        }
        let (suspicious_after, again) = suspicion(self.rounds.longest_silence());
        self.reconnects.due = now + again;
        self.reconnects.crosses_hosts = self.connections.values().flatten().any(Connection::crosses_hosts);
        let newest =
            self.connections.iter().filter_map(|(rank, connections)| Some((*rank, connections.first()?)));
        let stuck: Vec<u32> = newest
            .filter(|(_, connection)| connection.is_stuck(suspicious_after, now))
            .map(|(rank, _)| rank)
            .collect();
        for rank in stuck {
            if self.needs(rank) && !self.gone.contains_key(&rank) {
                self.reconnect(rank);
            }
        }
    }

    fn reconnect(&mut self, rank: u32) {
        let (Some(events), Some(at)) = (self.events.upgrade(), self.listeners.get(rank as usize)) else {
            return;
        };
        let (now, patience) = (Instant::now(), self.rounds.longest_silence());
        let mut detours = None;
        if self.reconnects.detours_due.get(&rank).is_none_or(|due| now >= *due) {
            // The silence has lasted for long enough.
            detours = self.detours_to(rank).map(|detours| detours.asked_after(Duration::ZERO));
            self.reconnects.detours_due.insert(rank, now + patience);
        }
        let connecting = self.connecting_to(rank, at.clone(), patience, detours);
        let attempts = self.reconnects.attempts.entry(rank).or_default();
        attempts.retain(|attempt| !attempt.is_finished());
        attempts.push(tokio::spawn(async move {
            let outcome = connecting.await;
            let _ = events.send(Event::Reconnected { rank, outcome });
        }));
    }

    pub(super) fn reconnect_ended(&mut self, rank: u32, outcome: Result<BoxedStream, ConnectError>) {
        let outcome = match outcome {
            // There is a connection, and there are other attempts.
            Err(
                error @ (ConnectError::Silent(_) | ConnectError::Refused(_) | ConnectError::Misfit { .. }),
            ) => return self.rounds.note_unreachable(rank, error.text()),
            outcome => outcome,
        };
        for attempt in self.reconnects.attempts.remove(&rank).into_iter().flatten() {
            attempt.abort();
        }
        tracing::debug!(rank = self.shared.rank, to = rank, "replaced a slow connection");
        self.connect_ended(rank, outcome);
    }
}
