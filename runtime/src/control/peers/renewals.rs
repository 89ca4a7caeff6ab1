//! Renewal of lines to other hosts that a network cut has made slow.
//!
//! A kernel resends data lost in a cut when a timer fires, up to some tenths of a second after the network works again.
//! A member that waits for the answer would take the other for silent in the meantime. It therefore opens a new line
//! earlier, as soon as the silence is in doubt.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::task::JoinHandle;

use super::door::NoAnswer;
use super::lines::Line;
use super::{Event, Task};
use crate::control::coordinator::BoxedStream;
use crate::control::vigil::doubt;

/// Attempts under way. Each sends one connection request within its time, and the first that is answered counts.
pub(super) struct Renewals {
    due: Instant,
    /// Whether there are lines to other hosts.
    leads_away: bool,
    attempts: BTreeMap<u32, Vec<JoinHandle<()>>>,
}

impl Renewals {
    pub(super) const fn new(now: Instant) -> Self {
        Self { due: now, leads_away: false, attempts: BTreeMap::new() }
    }

    /// Returns the time of the next check of the lines, or `None` without lines to other hosts.
    pub(super) fn due(&self) -> Option<Instant> {
        self.leads_away.then_some(self.due)
    }
}

impl Task {
    /// Starts new lines to members whose silence is in doubt.
    pub(super) fn renew(&mut self, now: Instant) {
        if now < self.renewals.due {
            return;
        }
        let (doubtful, again) = doubt(self.rounds.longest_silence());
        self.renewals.due = now + again;
        self.renewals.leads_away = self.lines.values().flatten().any(Line::leads_to_another_host);
        let newest = self.lines.iter().filter_map(|(rank, lines)| Some((*rank, lines.first()?)));
        let stuck: Vec<u32> =
            newest.filter(|(_, line)| line.is_stuck(doubtful, now)).map(|(rank, _)| rank).collect();
        for rank in stuck {
            if self.needs(rank) && !self.gone.contains_key(&rank) {
                self.knock_anew(rank);
            }
        }
    }

    fn knock_anew(&mut self, rank: u32) {
        let (Some(events), Some(at)) = (self.events.upgrade(), self.doors.get(rank as usize)) else { return };
        let knocking = self.knock_with(rank, at.clone(), self.rounds.longest_silence());
        let attempts = self.renewals.attempts.entry(rank).or_default();
        attempts.retain(|attempt| !attempt.is_finished());
        attempts.push(tokio::spawn(async move {
            let outcome = knocking.await;
            let _ = events.send(Event::Renewed { rank, outcome });
        }));
    }

    pub(super) fn renewed(&mut self, rank: u32, outcome: Result<BoxedStream, NoAnswer>) {
        if let Err(NoAnswer::Silent(_) | NoAnswer::Misfit { .. }) = outcome {
            return; // There is a line, and there are other attempts.
        }
        for attempt in self.renewals.attempts.remove(&rank).into_iter().flatten() {
            attempt.abort();
        }
        tracing::debug!(rank = self.shared.rank, to = rank, "replacing a connection that had become slow");
        self.knocked(rank, outcome);
    }
}
