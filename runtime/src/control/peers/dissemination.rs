//! Dissemination of messages to all members without a coordinator.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::{PeerMessage, Task};
use crate::control::abort::AbortCause;
use crate::control::wire::encode;

/// An abort of a communicator, to be told to its members.
pub(in crate::control) struct Abort {
    pub(super) members: Arc<[u32]>,
    pub(super) communicator: u64,
    pub(super) cause: AbortCause,
}

impl Task {
    pub(super) fn disseminate(&mut self, abort: Abort) {
        let Abort { members, communicator, cause } = abort;
        let abort = encode(&PeerMessage::Abort { communicator, cause });
        let mut silent = self.shared.silent();
        silent.extend(self.shared.left_behind());
        for rank in targets(&members, self.shared.rank) {
            if self.gone.contains_key(&rank) {
                continue;
            }
            self.send(rank, abort.clone());
            if silent.contains(&rank) {
                continue; // No answer is expected from this rank.
            }
            // Its answer confirms the earlier messages.
            self.send(rank, encode(&PeerMessage::Ping));
            self.awaiting_ack.insert(rank);
        }
    }

    /// Tells the members of aborts that the coordinator has not told in time, or not yet if `now` is `None`. Its process
    /// is stopped, or its host cut off.
    pub(super) fn disseminate_unechoed(&mut self, now: Option<Instant>) {
        let is_due = |due: Instant| now.is_none_or(|now| due <= now);
        for (_, abort) in self.unechoed.extract_if(.., |(due, _)| is_due(*due)).collect::<Vec<_>>() {
            if !self.shared.has_echo(abort.communicator, abort.cause.kind) {
                self.disseminate(abort);
            }
        }
    }
}

/// Returns the members to which this member passes on news for all, when it hears it first: those at distances of 1, 2,
/// 4 ... in both directions. News thus reaches all members in as many steps as their number has binary digits, even
/// past members that are gone, and no member contacts all others.
pub(super) fn targets(members: &[u32], own: u32) -> BTreeSet<u32> {
    let Some(place) = members.iter().position(|rank| *rank == own) else { return BTreeSet::new() };
    let count = members.len();
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < count);
    let places = distances.flat_map(|distance| [place + distance, place + count - distance]);
    places.map(|place| members[place % count]).filter(|rank| *rank != own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_reaches_all_in_few_steps_and_nobody_calls_many() {
        for count in 1..=130_u32 {
            let members: Vec<u32> = (0..count).map(|place| 3 * place + 1).collect();
            let digits = count.next_power_of_two().trailing_zeros() as usize;
            for first in [members[0], members[members.len() / 2], members[members.len() - 1]] {
                let (mut heard, mut news) = (BTreeSet::from([first]), vec![first]);
                let mut steps = 0;
                while heard.len() < members.len() {
                    steps += 1;
                    assert!(steps <= digits, "{count} members, from {first}");
                    let told: Vec<_> = news.iter().flat_map(|rank| targets(&members, *rank)).collect();
                    news = told.into_iter().filter(|rank| heard.insert(*rank)).collect();
                }
                assert!(
                    targets(&members, first).len() <= 2 * digits
                        && !targets(&members, first).contains(&first)
                );
            }
        }
        assert!(targets(&[1, 2, 3], 9).is_empty(), "who is no member tells nobody");
    }
}
