//! The last words of a rank whose deadline has passed: whom it waits for, and what is known of them.

use std::fmt::Write as _;
use std::time::Duration;

use super::failure::Poison;
use super::shared::{Core, PEERS_ASKED, Shared};
use super::waited::Waited;
use crate::control::Status;
use crate::error::Error;

/// How long a rank whose deadline has passed waits for answers: its last word should name the right one, on a busy machine
/// too.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(1);

/// Ranks that are asked at once for the one that holds up all others.
const SEARCHED_MAX: usize = 256;

/// Ranks that a status names as deaf, and pairs that an error names: a host that is cut off makes one pair with each other.
const PAIRS_MAX: usize = 4;

/// Two ranks of which the second does not acknowledge what the first sends.
type Cut = (u32, u32);

/// What world rank 0 does, which carries the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Answers,
    /// It does not even give a rank its own answer.
    Silent,
    /// It has left in good order.
    Gone,
}

impl Shared {
    /// A deadline has passed.
    pub(crate) fn time_out(&self, waited: Waited, after: Duration, peers: &[u32]) -> Error {
        let (asked, carrier) = self.ask_through(peers, LAST_ANSWER_MAX);
        // A rank inside an earlier operation waits for somebody itself.
        let holds_up = |status: &Option<Status>| {
            status
                .as_ref()
                .is_none_or(|status| status.started < waited.sequence && status.finished >= status.started)
        };
        let culprit_is_known = asked.iter().any(|(_, status)| holds_up(status));
        let unheard_by = self.note_unheard(&self.core());
        let mut cuts: Vec<Cut> = unheard_by.into_iter().map(|peer| (self.rank, peer)).collect();
        asked.iter().for_each(|(rank, status)| self.add_cuts(&mut cuts, *rank, status.as_ref()));
        let mut waiting_for: Vec<(u32, String)> = asked
            .iter()
            .map(|(peer, status)| (*peer, self.standing(*peer, status.as_ref(), carrier)))
            .collect();
        waiting_for.extend(peers.iter().skip(asked.len()).map(|peer| (*peer, "not asked".to_owned())));
        if carrier == Carrier::Silent {
            self.put_carrier_first(&mut waiting_for);
        } else if !culprit_is_known && cuts.is_empty() {
            // Those waited for are themselves waiting for somebody.
            let others = (0..self.world_size).filter(|rank| *rank != self.rank && !peers.contains(rank));
            let others: Vec<u32> = others.take(SEARCHED_MAX).collect();
            let answers = self.membership.ask_all(&others, LAST_ANSWER_MAX);
            let answers: Vec<_> = others.into_iter().zip(answers).collect();
            answers.iter().for_each(|(rank, status)| self.add_cuts(&mut cuts, *rank, status.as_ref()));
            let culprit = answers.iter().find(|(_, status)| !waited.is_message() && holds_up(status));
            waiting_for.extend(
                culprit.map(|(peer, status)| (*peer, self.standing(*peer, status.as_ref(), carrier))),
            );
        }
        if waited.is_message() {
            let core = self.core();
            for (peer, standing) in &mut waiting_for {
                let Some((tag, len, max)) = core.engine.stands_before(*peer) else { continue };
                let _ = write!(
                    standing,
                    "; before it stands a message of {len} bytes with tag {tag}, which nobody receives and for which \
                     KOLO_UNEXPECTED_BYTES={max} has no room"
                );
            }
        }
        self.put_cuts_first(&mut waiting_for, &cuts);
        if self.membership.abort_flag().is_raised() {
            return self.fail(waited);
        }
        let context = self.context(waited);
        self.poison_with(Poison::Timeout {
            after,
            waiting_for,
            operation: context.operation,
            sequence: context.sequence,
        });
        self.fail(waited)
    }

    /// Asks some peers what they are doing, and whether whoever carries the questions does so: this rank asks itself too.
    pub(super) fn ask_through(
        &self,
        peers: &[u32],
        patience: Duration,
    ) -> (Vec<(u32, Option<Status>)>, Carrier) {
        if self.world.control.is_closed() {
            return (peers.iter().map(|peer| (*peer, None)).collect(), Carrier::Gone);
        }
        let mut asked = peers[..peers.len().min(PEERS_ASKED)].to_vec();
        asked.push(self.rank);
        let mut answers: Vec<_> =
            asked.iter().copied().zip(self.membership.ask_all(&asked, patience)).collect();
        let carrier = match answers.pop() {
            Some((_, None)) if !self.membership.abort_flag().is_raised() => Carrier::Silent,
            _ => Carrier::Answers,
        };
        (answers, carrier)
    }

    /// What is known of a peer that was asked.
    fn standing(&self, peer: u32, status: Option<&Status>, carrier: Carrier) -> String {
        let over = || {
            let route = self.routes.iter().find(|route| route.peer == peer && !route.shares_memory());
            route.map_or_else(String::new, |route| {
                format!("; reached over {}, {}", route.transport, route.how)
            })
        };
        match (status, carrier) {
            // Another thread might still have come, so it is not known before.
            _ if peer == self.rank => {
                "itself: a message to oneself takes a send and a receive, one of them started before the other \
                 or made by another thread"
                    .to_owned()
            }
            // It waits too: perhaps what is sent does not arrive.
            (Some(status), _) if status.finished < status.started || status.waits_in.is_some() => {
                format!("{status}{}", over())
            }
            (Some(status), _) => status.to_string(),
            (None, _) if self.membership.departed(peer) => "it has left".to_owned(),
            (None, Carrier::Answers) => "no answer from it".to_owned(),
            (None, Carrier::Silent) => "not known, since rank 0 is silent".to_owned(),
            (None, Carrier::Gone) => {
                "not known, since rank 0 has left and nobody carries questions".to_owned()
            }
        }
    }

    /// Tells the board, and thus whoever asks, which peers do not acknowledge what this rank sends them.
    pub(super) fn note_unheard(&self, core: &Core) -> Vec<u32> {
        let peers = (0..self.world_size).filter(|peer| core.engine.is_unheard(*peer));
        let peers: Vec<u32> = peers.take(PAIRS_MAX).collect();
        self.membership.board().unheard_by(peers.clone());
        peers
    }

    /// Adds what a rank has answered to what is known of cuts. A pair is one pair, whichever of the two tells.
    fn add_cuts(&self, cuts: &mut Vec<Cut>, rank: u32, status: Option<&Status>) {
        for peer in status.map_or(&[][..], |status| &status.unheard_by).iter().copied().take(PAIRS_MAX) {
            let is_new = !cuts.contains(&(rank, peer)) && !cuts.contains(&(peer, rank));
            if is_new && peer < self.world_size && peer != rank {
                cuts.push((rank, peer));
            }
        }
    }

    /// Pairs between which nothing gets through hold up everybody, those that wait for a healthy rank too.
    fn put_cuts_first(&self, waiting_for: &mut Vec<(u32, String)>, cuts: &[Cut]) {
        for &(from, to) in cuts.iter().take(PAIRS_MAX) {
            let (rank, cut) = if to == self.rank {
                (from, format!("what it sends to rank {to} is not acknowledged"))
            } else {
                (to, format!("it does not acknowledge what rank {from} sends"))
            };
            let known = waiting_for.iter().position(|(named, _)| *named == rank);
            let rest = known.map_or_else(String::new, |at| format!("; {}", waiting_for.remove(at).1));
            waiting_for.insert(0, (rank, format!("{cut}: look at what lies between the two{rest}")));
        }
    }

    /// World rank 0 carries the questions and is silent: nothing tells that anybody else is late.
    fn put_carrier_first(&self, waiting_for: &mut Vec<(u32, String)>) {
        let Some(carrier) = self.members.iter().position(|member| *member == 0) else { return };
        let carrier = carrier as u32;
        waiting_for.retain(|(peer, _)| *peer != carrier);
        let text = "it is silent, and carries the questions to all others: look there first".to_owned();
        waiting_for.insert(0, (carrier, text));
    }
}
