//! Quorums, and members that give up because they reach none.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Agreement;
use crate::message::Message;
use crate::set::Set;

impl Agreement {
    pub(super) fn is_quorum(&self, answers: &BTreeMap<u32, Set>) -> bool {
        let (members, me) = (self.settings.members as usize, self.settings.me);
        #[cfg(test)]
        if self.flaw == Some(crate::simulator::Flaw::AnyHalf) && 2 * answers.len() >= members {
            return true;
        }
        if 2 * answers.len() > members || (2 * answers.len() == members && answers.contains_key(&0)) {
            return true;
        }
        let has_taken_over = |other: u32| answers.get(&other).is_some_and(|gone| gone.includes(&self.gone));
        (0..self.settings.members)
            .all(|other| other == me || self.gone.contains(other) || has_taken_over(other))
    }

    /// Tracks how long no quorum has been in reach, and gives up after too long.
    pub(super) fn judge(&mut self, now: Duration) {
        if self.reaches_quorum(|other| !self.is_silent(other, now)) {
            self.alone_since = None;
            return;
        }
        let since = *self.alone_since.get_or_insert(now);
        if now - since >= self.settings.stranded_after {
            self.stranded = true;
            for other in self.others().collect::<Vec<_>>() {
                self.out.push((other, Message::Stranded));
            }
        }
    }

    /// Records that a member has given up. A member that has left the decision to it gives up too, unless it hears
    /// a quorum itself.
    pub(super) fn gave_up(&mut self, from: u32, now: Duration) {
        let has_proposed = self.proposer(now) == from;
        self.given_up.insert(from);
        let is_heard = |other: u32| {
            let heard = self.heard.get(&other);
            heard.is_some_and(|heard| now.saturating_sub(*heard) <= self.settings.silent_after)
        };
        self.stranded |= self.own.is_some() && has_proposed && !self.reaches_quorum(is_heard);
    }

    /// Whether this member and the others that `answers` names would be a quorum.
    fn reaches_quorum(&self, answers: impl Fn(u32) -> bool) -> bool {
        let here: BTreeMap<u32, Set> = std::iter::once(self.settings.me)
            .chain(self.others().filter(|other| answers(*other)))
            .map(|other| (other, self.gone.clone()))
            .collect();
        self.is_quorum(&here)
    }
}
