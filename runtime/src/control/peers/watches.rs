//! Watching other members while they form a new group.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::rounds::RoundKey;
use super::{PeerMessage, Task};
use crate::control::regroup::Absence;
use crate::control::wire::encode;
use crate::job::limits::AGREEMENT_BEAT;

/// Members that this one watches for a caller.
pub(super) struct Watch {
    pub(super) ranks: Vec<u32>,
    pub(super) later: RoundKey,
    pub(super) silent_after: Duration,
    pub(super) since: Instant,
    pub(super) alarm: Option<oneshot::Sender<Absence>>,
}

impl Task {
    /// Reports a member that has given up. It may have taken another one for silent and gone on to the agreement that
    /// follows.
    pub(super) fn note_given_up(&mut self, rank: u32, key: RoundKey) {
        let place = self.shared.place_in(key.communicator, rank);
        for watch in &mut self.watches {
            let is_later = key.communicator == watch.later.communicator && key.number >= watch.later.number;
            if is_later
                && watch.ranks.contains(&rank)
                && let Some(alarm) = watch.alarm.take()
            {
                let _ = alarm.send(Absence { rank: place, why: "it has given up".to_owned() });
            }
        }
    }

    pub(super) fn keep_watch(&mut self, now: Instant) {
        let mut watches = std::mem::take(&mut self.watches);
        watches.retain_mut(|watch| {
            let heard =
                |rank: &u32| self.last_heard.get(rank).copied().unwrap_or(watch.since).max(watch.since);
            let gone = watch.ranks.iter().find_map(|rank| Some((*rank, self.gone.get(rank)?.clone())));
            let silent = || {
                let is_silent = |rank: &&u32| now.saturating_duration_since(heard(rank)) > watch.silent_after;
                watch.ranks.iter().find(is_silent).map(|rank| (*rank, "it does not answer".to_owned()))
            };
            let is_wanted = watch.alarm.as_ref().is_some_and(|alarm| !alarm.is_closed());
            match gone.or_else(silent) {
                Some((rank, why)) => {
                    let rank = self.shared.place_in(watch.later.communicator, rank);
                    let _ = watch.alarm.take().map(|alarm| alarm.send(Absence { rank, why }));
                    false
                }
                None => is_wanted,
            }
        });
        let is_due = now >= self.next_ping;
        if is_due && !watches.is_empty() {
            self.next_ping = now + AGREEMENT_BEAT;
            let ranks: BTreeSet<u32> = watches.iter().flat_map(|watch| watch.ranks.iter().copied()).collect();
            for rank in ranks {
                self.send(rank, encode(&PeerMessage::Ping));
            }
        }
        self.watches = watches;
    }
}
