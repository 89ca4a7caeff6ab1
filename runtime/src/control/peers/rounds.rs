//! The agreements of one job in one process: one for each communicator and round. Members are named by world rank.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_membership::{Agreement, Message, Settings, State, Vote};
use serde::{Deserialize, Serialize};

use super::acceptor::Decided;
use super::missing::{Missing, Silent};
use super::{Agreed, Reply};
use crate::job::limits::{AGREEMENT_BEAT, MAX_REMEMBERED, STRANDED_SILENCES};

/// Silence that a member tolerates if it was asked before its own program has called.
const USUAL_SILENCE: Duration = Duration::from_secs(1);

/// Identifies one agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct RoundKey {
    pub(crate) communicator: u64,
    /// Number of the agreement in its communicator.
    pub(crate) number: u64,
}

#[derive(Debug)]
struct Round {
    members: Arc<[u32]>,
    agreement: Agreement,
    /// Where to send the result if the program has called and waits.
    reply: Option<Reply>,
    /// Whether the program has been told how it ended, or will not ask.
    is_told: bool,
}

/// All agreements.
#[derive(Debug)]
pub(super) struct Rounds {
    me: u32,
    started: Instant,
    /// Agreements that are not decided. Only these are visited at every event.
    rounds: BTreeMap<RoundKey, Round>,
    /// Decided agreements, kept for members that ask late.
    over: BTreeMap<RoundKey, Round>,
    /// Their keys, in the order of the decisions.
    order: VecDeque<RoundKey>,
    /// Number of the last decided agreement of each communicator, also of those whose decisions are forgotten.
    last: BTreeMap<u64, u64>,
    /// Number of entries from which on [`Rounds::forget_closed`] looks for those of closed communicators.
    sweep_from: usize,
    /// Agreements that may have messages to send.
    touched: BTreeSet<RoundKey>,
    ends: Vec<(RoundKey, State)>,
    /// Ranks without which agreements of a communicator were decided.
    left_behind: BTreeMap<u64, BTreeSet<u32>>,
    /// Communicators whose members have gone on without this one, each with the place of one of these members.
    fenced: BTreeMap<u64, u32>,
    /// Ranks left behind that the listener must remember beyond the communicator's life.
    news: Vec<(u64, Vec<u32>)>,
    /// Decisions that the listener must remember.
    decided: Vec<Decided>,
    /// Outcomes for waiting programs.
    replies: Vec<(Reply, Agreed)>,
    /// Why the last attempts to connect to members failed, by world rank.
    unreachable: BTreeMap<u32, String>,
    longest_silence: Duration,
}

/// Outcome of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receipt {
    Taken,
    /// This member is no longer in such a communicator.
    Closed,
    /// The members have gone on without the sender.
    LeftBehind,
}

impl Round {
    /// Whether this member is working for a decision: its program waits, or it has voted by proxy.
    fn is_at_work(&self) -> bool {
        self.reply.is_some()
            || (self.agreement.has_voted_by_proxy() && self.agreement.next_wakeup().is_some())
    }
}

impl Rounds {
    pub(super) fn new(me: u32, now: Instant) -> Self {
        Self {
            me,
            started: now,
            rounds: BTreeMap::new(),
            over: BTreeMap::new(),
            order: VecDeque::new(),
            last: BTreeMap::new(),
            sweep_from: 2 * MAX_REMEMBERED,
            touched: BTreeSet::new(),
            ends: Vec::new(),
            left_behind: BTreeMap::new(),
            fenced: BTreeMap::new(),
            news: Vec::new(),
            decided: Vec::new(),
            replies: Vec::new(),
            unreachable: BTreeMap::new(),
            longest_silence: USUAL_SILENCE,
        }
    }

    fn clock(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records why there is no connection to a member.
    pub(super) fn note_unreachable(&mut self, rank: u32, why: String) {
        self.unreachable.insert(rank, why);
    }

    /// Records that a member could be reached.
    pub(super) fn note_reached(&mut self, rank: u32) {
        self.unreachable.remove(&rank);
    }

    /// Returns the longest silence that any member tolerates.
    pub(super) const fn longest_silence(&self) -> Duration {
        self.longest_silence
    }

    /// Returns the agreement, and begins it if it is new. Returns `None` if this member is not in it, or has forgotten how
    /// it was decided: it must not take part in another decision then.
    fn open(
        &mut self,
        key: RoundKey,
        members: Arc<[u32]>,
        silent_after: Duration,
        known_gone: &BTreeSet<u32>,
    ) -> Option<&mut Round> {
        let now = self.clock();
        let me = place(&members, self.me)?;
        if self.over.contains_key(&key) {
            self.touched.insert(key);
            return self.over.get_mut(&key);
        }
        let is_forgotten = self.last.get(&key.communicator).is_some_and(|last| key.number <= *last);
        if is_forgotten && !self.rounds.contains_key(&key) {
            // Not a warning, since a member that asks repeats it at every beat.
            tracing::debug!(
                rank = self.me,
                ?key,
                "the outcome of this agreement is forgotten, so nobody is told"
            );
            return None;
        }
        self.touched.insert(key);
        let round = self.rounds.entry(key).or_insert_with(|| {
            let settings = Settings {
                members: members.len() as u32,
                me,
                beat: AGREEMENT_BEAT.min(silent_after / 4),
                silent_after,
                stranded_after: silent_after * STRANDED_SILENCES,
            };
            let mut agreement = Agreement::new(settings, now);
            for gone in known_gone.iter().filter_map(|rank| place(&members, *rank)) {
                agreement.gone(gone, now);
            }
            Round { members, agreement, reply: None, is_told: false }
        });
        Some(round)
    }

    /// Keeps a decided round.
    fn keep(&mut self, key: RoundKey) {
        self.make_room();
        if let Some(round) = self.rounds.remove(&key) {
            self.over.insert(key, round);
            self.order.push_back(key);
            let last = self.last.entry(key.communicator).or_default();
            *last = key.number.max(*last);
        }
    }

    /// Drops the oldest decided rounds if there are too many, if possible not the last one of a communicator: a member
    /// that has not heard of a decision has not voted in the next one. Rounds that were decided on behalf of a late
    /// program stay, because it will ask how they ended, once for each call that it has missed.
    fn make_room(&mut self) {
        while self.over.len() >= MAX_REMEMBERED {
            let may_go = |key: &RoundKey| {
                let round = &self.over[key];
                round.is_told || !round.agreement.has_voted_by_proxy()
            };
            let is_last = |key: &RoundKey| self.last.get(&key.communicator) == Some(&key.number);
            let oldest = self.order.iter().position(|key| may_go(key) && !is_last(key));
            let oldest = oldest.or_else(|| self.order.iter().position(may_go));
            let Some(key) = oldest.and_then(|at| self.order.remove(at)) else { return };
            self.over.remove(&key);
        }
    }

    /// Forgets the agreements of communicators that are not open any more, once there are many. Nobody opens an agreement
    /// there, takes part in one that is open, or will ask how one has ended.
    pub(super) fn forget_closed(&mut self, is_open: impl Fn(u64) -> bool) {
        if self.entries() < self.sweep_from {
            return;
        }
        self.last.retain(|communicator, _| is_open(*communicator));
        self.rounds.retain(|key, round| round.reply.is_some() || is_open(key.communicator));
        for (key, round) in &mut self.over {
            round.is_told |= !is_open(key.communicator);
        }
        self.make_room();
        self.sweep_from = 2 * MAX_REMEMBERED.max(self.entries());
    }

    fn entries(&self) -> usize {
        self.last.len() + self.rounds.len() + self.over.len()
    }

    pub(super) fn vote(
        &mut self,
        key: RoundKey,
        members: Arc<[u32]>,
        vote: Vote,
        silent_after: Duration,
        reply: Reply,
        (known_gone, suspects): (&BTreeSet<u32>, &[u32]),
    ) {
        self.longest_silence = self.longest_silence.max(silent_after);
        let now = self.clock();
        if let Some(by) = self.fenced.get(&key.communicator) {
            let _ = reply.send(Agreed::LeftBehind { by: *by });
            return;
        }
        // Members that were left behind cannot come back, so they are suspects.
        let left_behind = self.left_behind.get(&key.communicator).cloned();
        if let Some(round) = self.open(key, members, silent_after, known_gone) {
            round.reply = Some(reply);
            round.agreement.set_silence(silent_after, silent_after * STRANDED_SILENCES);
            let suspects = suspects.iter().chain(left_behind.iter().flatten());
            for suspect in suspects.filter_map(|rank| place(&round.members, *rank)) {
                round.agreement.suspect(suspect, now);
            }
            round.agreement.vote(vote, now);
        }
    }

    /// Handles the deadline of this member's program: it no longer waits for other members' programs.
    pub(super) fn wait_no_longer(&mut self, key: RoundKey) {
        let now = self.clock();
        if let Some(round) = self.rounds.get_mut(&key).filter(|round| round.reply.is_some()) {
            round.agreement.wait_no_longer(now);
            self.touched.insert(key);
        }
    }

    pub(super) fn give_up(&mut self, key: RoundKey) {
        let now = self.clock();
        if let Some(round) = self.rounds.get_mut(&key)
            && let Some(reply) = round.reply.take()
        {
            let missing = match round.agreement.state(now) {
                State::Open { late, silent } => {
                    let collector = Some(round.agreement.proposer(now));
                    let silent = Silent::all(silent, &round.members, &self.unreachable);
                    let is_other = |member: &u32| round.members[*member as usize] != self.me;
                    Missing { late, silent, collector: collector.filter(is_other) }
                }
                _ => Missing::default(),
            };
            let _ = reply.send(Agreed::Late(missing));
        }
    }

    /// Handles a member's message. `members` are those of the communicator, if it is registered.
    pub(super) fn receive(
        &mut self,
        from: u32,
        key: RoundKey,
        message: Message,
        members: Option<Arc<[u32]>>,
        known_gone: &BTreeSet<u32>,
    ) -> Receipt {
        let now = self.clock();
        let is_out = self.left_behind.get(&key.communicator).is_some_and(|ranks| ranks.contains(&from));
        let known = self.over.get(&key).map(|round| round.members.clone());
        let is_over = known.is_some();
        if is_out && !is_over {
            // The sender takes part in a later agreement than the one that was decided without it.
            return Receipt::LeftBehind;
        }
        let members = members.filter(|_| is_over || !self.fenced.contains_key(&key.communicator));
        let Some(members) = members.or(known) else { return Receipt::Closed };
        let Some(place) = place(&members, from) else { return Receipt::Closed };
        if message.is_within(members.len() as u32)
            && let Some(round) = self.open(key, members, USUAL_SILENCE, known_gone)
        {
            round.agreement.receive(place, message, now);
        }
        Receipt::Taken
    }

    /// Records that the members of a communicator, one of them in place `by`, have gone on without this one. This
    /// member takes part in none of their agreements any more. [`Rounds::reply`] tells a program that waits for one.
    pub(super) fn fence(&mut self, communicator: u64, by: u32) {
        self.fenced.insert(communicator, by);
        self.rounds.retain(|key, round| {
            if key.communicator == communicator
                && let Some(reply) = round.reply.take()
            {
                self.replies.push((reply, Agreed::LeftBehind { by }));
            }
            key.communicator != communicator
        });
    }

    /// Records that a member is gone.
    pub(super) fn gone(&mut self, rank: u32) {
        let now = self.clock();
        for (key, round) in &mut self.rounds {
            if let Some(place) = place(&round.members, rank) {
                round.agreement.gone(place, now);
                self.touched.insert(*key);
            }
        }
    }

    /// Records that a member has dropped the communicator.
    pub(super) fn closed(&mut self, rank: u32, key: RoundKey) {
        let now = self.clock();
        if let Some(round) = self.rounds.get_mut(&key)
            && let Some(place) = place(&round.members, rank)
        {
            round.agreement.gone(place, now);
            self.touched.insert(key);
        }
    }

    /// Whether an open agreement includes this member.
    pub(super) fn needs(&self, rank: u32) -> bool {
        self.rounds.values().any(|round| round.is_at_work() && round.members.contains(&rank))
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let waiting = self.rounds.values().filter(|round| round.is_at_work());
        waiting.filter_map(|round| round.agreement.next_wakeup()).min().map(|due| self.started + due)
    }

    pub(super) fn tick(&mut self) {
        let now = self.clock();
        let waiting = self.rounds.iter_mut().filter(|(_, round)| round.is_at_work());
        for (key, round) in waiting {
            if round.agreement.next_wakeup().is_some_and(|due| due <= now) {
                round.agreement.tick(now);
                self.touched.insert(*key);
            }
        }
    }

    /// Returns the messages to send, each with its world rank.
    pub(super) fn take_messages(&mut self) -> Vec<(u32, RoundKey, Message)> {
        let now = self.clock();
        let mut messages = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let is_over = self.over.contains_key(&key);
            let rounds = if is_over { &mut self.over } else { &mut self.rounds };
            let Some(round) = rounds.get_mut(&key) else { continue };
            for (to, message) in round.agreement.take_messages() {
                messages.push((round.members[to as usize], key, message));
            }
            let state = round.agreement.state(now);
            if matches!(state, State::Open { .. }) {
                continue;
            }
            if let Some(reply) = round.reply.take() {
                round.is_told = true;
                let agreed = match state.clone() {
                    State::Decided(decision) => Agreed::Decided(decision),
                    _ => {
                        let silent = round.agreement.silent(now);
                        Agreed::Stranded { silent: Silent::all(silent, &round.members, &self.unreachable) }
                    }
                };
                self.replies.push((reply, agreed));
            }
            if let (State::Decided(decision), Some(me), false) =
                (&state, place(&round.members, self.me), is_over)
            {
                let out =
                    (0..).zip(round.members.iter()).filter(|(place, _)| !decision.members.contains(*place));
                let out: Vec<u32> = out.map(|(_, rank)| *rank).collect();
                self.decided.push((key, decision.clone()));
                if !decision.members.contains(me) {
                    self.ends.push((key, state.clone()));
                } else if !out.is_empty() {
                    self.left_behind.entry(key.communicator).or_default().extend(&out);
                    self.news.push((key.communicator, out));
                }
            }
            if !is_over && matches!(state, State::Decided(_)) {
                self.keep(key);
            }
        }
        messages
    }

    /// Tells waiting programs how their agreements ended. A program may then leave the job at once, so this comes after
    /// everything else that follows from the decisions.
    pub(super) fn reply(&mut self) {
        for (reply, agreed) in self.replies.drain(..) {
            let _ = reply.send(agreed);
        }
    }

    /// Returns the ranks without which agreements were decided since the last call, by communicator.
    pub(super) fn take_left_behind(&mut self) -> Vec<(u64, Vec<u32>)> {
        std::mem::take(&mut self.news)
    }

    /// Returns the agreements that were decided since the last call.
    pub(super) fn take_decided(&mut self) -> Vec<Decided> {
        std::mem::take(&mut self.decided)
    }

    /// Returns agreements that were decided without this member.
    pub(super) fn take_ends(&mut self) -> Vec<(RoundKey, State)> {
        std::mem::take(&mut self.ends)
    }
}

fn place(members: &[u32], rank: u32) -> Option<u32> {
    members.iter().position(|member| *member == rank).map(|place| place as u32)
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
