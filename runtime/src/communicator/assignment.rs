//! Chooses the newcomers that become members, and their places: a pure function that all members compute alike.

use serde::{Deserialize, Serialize};

use crate::control::MemberAddress;
use crate::job::MAX_WORLD_SIZE;

/// The places that newcomers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Places {
    /// Places behind all others, until there are `most` ranks.
    Last { most: u32 },
    /// Slots that members have left free.
    Free,
    /// Free slots first, then places behind all others, until there are `most` ranks.
    FreeThenLast { most: u32 },
}

/// A newcomer at a member's listener, as the member knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) id: u64,
    pub(super) address: MemberAddress,
    pub(super) slot: Option<u32>,
    #[serde(deserialize_with = "crate::control::foreign")]
    pub(super) who: String,
}

/// Holder of a place in the new communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A member, by its place among those that live.
    Member(usize),
    /// The newcomer at place `at` in the list of member `host`.
    Newcomer { host: usize, at: usize },
}

/// Composition of the new communicator.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Slots with their holders, by slot and therefore by rank.
    pub(super) slots: Vec<(u32, Holder)>,
    /// Newcomers that cannot become members: the member at whose listener each waits, its place in that list, and the
    /// reason.
    pub(super) refused: Vec<(usize, usize, String)>,
}

/// Assigns places. `slots` are those of the members that live, of the `slot_count` that there were; `lists` are the
/// newcomers that wait, by member. Newcomers without a place keep waiting.
pub(super) fn assign(places: Places, slots: &[u32], slot_count: u32, lists: &[Vec<Listed>]) -> Assignment {
    let mut assignment = Assignment::default();
    let held = slots.iter().enumerate().map(|(member, slot)| (*slot, Holder::Member(member)));
    assignment.slots.extend(held);
    let all = || lists.iter().enumerate().flat_map(|(host, list)| (0..list.len()).map(move |at| (host, at)));
    let most = match places {
        Places::Last { most } | Places::FreeThenLast { most } => most.min(MAX_WORLD_SIZE) as usize,
        Places::Free => slot_count as usize,
    };
    let mut seen = Vec::new();
    let mut next = match places {
        Places::Last { .. } => slot_count,
        Places::Free | Places::FreeThenLast { .. } => 0,
    };
    // Newcomers that want a particular slot come first, and the others take the rest.
    let wants_one = |place: &(usize, usize)| lists[place.0][place.1].slot.is_some();
    for (host, at) in all().filter(wants_one).chain(all().filter(|place| !wants_one(place))) {
        let newcomer = &lists[host][at];
        if seen.contains(&newcomer.id) {
            continue;
        }
        seen.push(newcomer.id);
        let holder_of =
            |slot: u32| assignment.slots.iter().find(|(held, _)| *held == slot).map(|(_, h)| h.clone());
        let slot = match newcomer.slot {
            Some(slot) if slot >= MAX_WORLD_SIZE || (places == Places::Free && slot >= slot_count) => {
                let problem = format!("it asked for slot {slot}, but the group has only {slot_count}");
                assignment.refused.push((host, at, problem));
                continue;
            }
            Some(slot) => match holder_of(slot) {
                None => slot,
                // The member's slot may be about to become free.
                Some(Holder::Member(_)) => continue,
                Some(Holder::Newcomer { host: other_host, at: other }) => {
                    let other = &lists[other_host][other].who;
                    let problem =
                        format!("another newcomer has taken slot {slot}, which it asked for: {other}");
                    assignment.refused.push((host, at, problem));
                    continue;
                }
            },
            None => {
                while holder_of(next).is_some() {
                    next += 1;
                }
                next
            }
        };
        if assignment.slots.len() >= most || (places == Places::Free && slot >= slot_count) {
            continue;
        }
        assignment.slots.push((slot, Holder::Newcomer { host, at }));
    }
    assignment.slots.sort_by_key(|(slot, _)| *slot);
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ListenerAddress;

    fn newcomer(id: u64, slot: Option<u32>) -> Listed {
        let address = MemberAddress { listener: ListenerAddress::default(), host_key: 0 };
        Listed { id, address, slot, who: format!("process {id}") }
    }

    /// Returns the new ranks, with members as their places and newcomers as 100 plus their id, and the reasons of those
    /// refused.
    fn assigned(
        places: Places,
        slots: &[u32],
        count: u32,
        lists: &[Vec<Listed>],
    ) -> (Vec<(u32, u64)>, Vec<String>) {
        let assignment = assign(places, slots, count, lists);
        let name = |holder: &Holder| match holder {
            Holder::Member(member) => *member as u64,
            Holder::Newcomer { host, at } => 100 + lists[*host][*at].id,
        };
        let slots = assignment.slots.iter().map(|(slot, holder)| (*slot, name(holder))).collect();
        (slots, assignment.refused.into_iter().map(|(_, _, problem)| problem).collect())
    }

    const MOST: Places = Places::Last { most: u32::MAX };

    #[test]
    fn newcomers_go_last_in_the_order_of_listeners_and_arrival() {
        let lists = [vec![newcomer(5, None)], vec![newcomer(3, None), newcomer(4, None)]];
        let (slots, refused) = assigned(MOST, &[0, 2], 3, &lists);
        assert_eq!(slots, [(0, 0), (2, 1), (3, 105), (4, 103), (5, 104)]);
        assert!(refused.is_empty());
        let (slots, _) = assigned(Places::Last { most: 3 }, &[0, 2], 3, &lists);
        assert_eq!(slots, [(0, 0), (2, 1), (3, 105)], "no more than may be");
        let (slots, _) = assigned(Places::FreeThenLast { most: 4 }, &[0, 2], 3, &lists);
        assert_eq!(slots, [(0, 0), (1, 105), (2, 1), (3, 103)], "free slots first");
    }

    #[test]
    fn free_slots_are_taken_from_the_lowest_and_no_others() {
        let lists = [vec![], vec![newcomer(1, None), newcomer(2, None), newcomer(3, None)]];
        let (slots, refused) = assigned(Places::Free, &[1, 3], 4, &lists);
        assert_eq!(
            (slots, refused.len()),
            (vec![(0, 101), (1, 0), (2, 102), (3, 1)], 0),
            "the third waits on"
        );
    }

    #[test]
    fn of_two_newcomers_for_one_slot_the_second_is_refused() {
        let lists = [vec![newcomer(1, None), newcomer(2, Some(2))], vec![newcomer(3, Some(2))]];
        let (slots, refused) = assigned(Places::Free, &[0, 3], 4, &lists);
        assert_eq!(slots, [(0, 0), (1, 101), (2, 102), (3, 1)]);
        assert_eq!(refused, ["another newcomer has taken slot 2, which it asked for: process 2"]);
        let (slots, refused) = assigned(Places::Free, &[0, 3], 4, &[vec![newcomer(1, Some(3))], vec![]]);
        assert_eq!((slots, refused.len()), (vec![(0, 0), (3, 1)], 0), "a slot that is held may become free");
        let (_, refused) = assigned(Places::Free, &[0, 3], 4, &[vec![newcomer(1, Some(4))], vec![]]);
        assert_eq!(refused, ["it asked for slot 4, but the group has only 4"]);
    }

    #[test]
    fn one_that_is_on_two_lists_comes_once() {
        let lists = [vec![newcomer(1, None)], vec![newcomer(1, None)]];
        assert_eq!(assigned(MOST, &[0, 1], 2, &lists).0, [(0, 0), (1, 1), (2, 101)]);
    }
}
