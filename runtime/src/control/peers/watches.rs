//! Watching other members while they form a new group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::rounds::RoundKey;
use super::{PeerMessage, Task};
use crate::control::regroup::Absence;
use crate::control::wire::encode;
use crate::job::limits::AGREEMENT_BEAT;

/// Members that this one watches for a caller.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) ranks: Vec<u32>,
    pub(super) later: RoundKey,
    pub(super) silent_after: Duration,
    pub(super) since: Instant,
    pub(super) alarm: Option<oneshot::Sender<Absence>>,
}

impl Watch {
    /// Excuses the members if this process was itself stopped or busy: `late` after the last look was due, their
    /// answers are still unread.
    fn excuse(&mut self, now: Instant, late: Duration) {
        if late > self.silent_after / 2 {
            self.since = now;
        }
    }

    /// Returns a member that has been silent for too long.
    fn silent(&self, now: Instant, last_heard: &BTreeMap<u32, Instant>) -> Option<u32> {
        let heard = |rank: &u32| last_heard.get(rank).copied().unwrap_or(self.since).max(self.since);
        let is_silent = |rank: &u32| now.saturating_duration_since(heard(rank)) > self.silent_after;
        self.ranks.iter().copied().find(is_silent)
    }
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
        let late = now.saturating_duration_since(self.next_ping);
        watches.retain_mut(|watch| {
            watch.excuse(now, late);
            let gone = watch.ranks.iter().find_map(|rank| Some((*rank, self.gone.get(rank)?.clone())));
            let silent = || Some((watch.silent(now, &self.last_heard)?, "it does not answer".to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_counts_unless_this_process_was_away_meanwhile() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(1));
        let later = RoundKey { communicator: 1, number: 1 };
        let mut watch = Watch { ranks: vec![1, 2], later, silent_after: limit, since: begun, alarm: None };
        let mut heard = BTreeMap::from([(2, begun + limit)]);
        let soon = begun + limit * 3 / 2;
        watch.excuse(soon, AGREEMENT_BEAT);
        assert_eq!(watch.silent(soon, &heard), Some(1), "it has never answered");
        heard.insert(1, begun + limit);
        assert_eq!(watch.silent(soon, &heard), None);
        // This process was stopped for longer than the limit. The others' answers are still unread.
        let awake = soon + 3 * limit;
        watch.excuse(awake, 3 * limit);
        assert_eq!(watch.silent(awake, &heard), None);
        heard.insert(2, awake);
        let end = awake + limit * 3 / 2;
        watch.excuse(end, AGREEMENT_BEAT);
        assert_eq!(watch.silent(end, &heard), Some(1), "it has not answered since");
    }
}
