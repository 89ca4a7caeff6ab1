//! One agreement, as one member sees it.

mod quorum;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::attempt::{Attempt, Phase};
use crate::message::{Ballot, Decision, Message, Vote};
use crate::set::Set;

/// Beats of silence of the proposer after which a member contacts all others that may propose in its place.
const TAKEOVER_BEATS: u32 = 2;

/// Most doublings of the pause after refused ballots.
const BACKOFF_MAX: u32 = 5;

/// Settings of an agreement. Times are those of the caller's clock, which may start at any point.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of members.
    pub members: u32,
    /// This member.
    pub me: u32,
    /// Interval at which unanswered messages are repeated.
    pub beat: Duration,
    /// Time after which a member counts as silent if it was asked and says nothing.
    pub silent_after: Duration,
    /// How long a proposer without a quorum continues.
    pub stranded_after: Duration,
}

/// State of an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not decided: the `late` members have not voted, and the `silent` ones do not answer.
    Open {
        /// Members that are alive and have not voted, as far as this member knows.
        late: Vec<u32>,
        /// Members that were asked and do not answer.
        silent: Vec<u32>,
    },
    /// Decided.
    Decided(Decision),
    /// No quorum can be reached. This side of a partition must stop.
    Stranded,
}

/// One member's side of an agreement. Facts come in through the methods, with the time; messages come out of [`Agreement::take_messages`].
#[derive(Debug)]
pub struct Agreement {
    settings: Settings,
    own: Option<Vote>,
    /// Whether this member has voted by proxy, because a caller's deadline had passed.
    voted_by_proxy: bool,
    /// Calls of the members that no longer wait for missing votes.
    overdue: Option<u8>,
    /// Votes that others have sent to this member.
    votes: BTreeMap<u32, Vote>,
    gone: Set,
    /// Members that have given up: they propose nothing and have no vote any more, but still answer ballots.
    given_up: Set,
    /// Time at which each member was last heard.
    heard: BTreeMap<u32, Duration>,
    /// Time since which an answer of each member is expected.
    asked: BTreeMap<u32, Duration>,
    promised: Ballot,
    accepted: Option<(Ballot, Decision)>,
    decided: Option<Decision>,
    stranded: bool,
    /// Time since which this proposer cannot reach a quorum.
    alone_since: Option<Duration>,
    attempt: Option<Attempt>,
    /// Highest round seen so far.
    round: u64,
    refusals: u32,
    not_before: Duration,
    next_beat: Duration,
    out: Vec<(u32, Message)>,
    #[cfg(test)]
    pub(crate) flaw: Option<crate::simulator::Flaw>,
}

impl Agreement {
    /// Makes a member that has neither voted nor heard anything.
    #[must_use]
    pub fn new(settings: Settings, now: Duration) -> Self {
        Self {
            settings,
            own: None,
            voted_by_proxy: false,
            overdue: None,
            votes: BTreeMap::new(),
            gone: Set::default(),
            given_up: Set::default(),
            heard: BTreeMap::new(),
            asked: BTreeMap::new(),
            promised: Ballot::default(),
            accepted: None,
            decided: None,
            stranded: false,
            alone_since: None,
            attempt: None,
            round: 0,
            refusals: 0,
            not_before: Duration::ZERO,
            next_beat: now,
            out: Vec::new(),
            #[cfg(test)]
            flaw: None,
        }
    }

    /// Votes, unless this member has voted by proxy. From now on [`Agreement::tick`] must be called.
    pub fn vote(&mut self, vote: Vote, now: Duration) {
        self.own.get_or_insert(vote);
        self.next_beat = now;
        self.tick(now);
    }

    /// Stops waiting for missing votes. This member has voted; for each living member that has not, a vote
    /// with no flag set is cast. So all members reach the same decision, including those that call later.
    pub fn wait_no_longer(&mut self, now: Duration) {
        if let Some(own) = self.own {
            self.overdue = Some(own.kinds);
            self.next_beat = now;
            self.tick(now);
        }
    }

    /// Whether this member has voted by proxy, so that it works for a decision without its caller.
    #[must_use]
    pub const fn has_voted_by_proxy(&self) -> bool {
        self.voted_by_proxy
    }

    /// Records that the system has reported the end of a member's process. The report must be true: see the crate's
    /// documentation. Earlier messages of that member that arrive from now on are ignored.
    pub fn gone(&mut self, member: u32, now: Duration) {
        if member != self.settings.me && self.gone.insert(member) {
            self.step(now);
        }
    }

    /// Sets other limits for silence, for a member that was asked before its program has called.
    pub const fn set_silence(&mut self, silent_after: Duration, stranded_after: Duration) {
        self.settings.silent_after = silent_after;
        self.settings.stranded_after = stranded_after;
    }

    /// Returns the members that were asked and do not answer.
    #[must_use]
    pub fn silent(&self, now: Duration) -> Vec<u32> {
        self.others().filter(|other| self.is_silent(*other, now)).collect()
    }

    /// Records that a member has already been silent for long, as others have noticed, so that this member does not
    /// wait for it again. If the suspect answers, it no longer counts as silent.
    pub fn suspect(&mut self, member: u32, now: Duration) {
        if member != self.settings.me && !self.heard.contains_key(&member) {
            let long_ago = now.saturating_sub(self.settings.silent_after + self.settings.beat);
            self.asked.insert(member, long_ago);
        }
    }

    /// Returns the messages to send, in order.
    pub fn take_messages(&mut self) -> Vec<(u32, Message)> {
        std::mem::take(&mut self.out)
    }

    /// Returns the state of the agreement.
    #[must_use]
    pub fn state(&self, now: Duration) -> State {
        if let Some(decided) = &self.decided {
            return State::Decided(decided.clone());
        }
        if self.stranded {
            return State::Stranded;
        }
        let (silent, awaited): (Vec<u32>, Vec<u32>) = self
            .others()
            .filter(|other| !self.has_no_more_to_say(*other))
            .partition(|other| self.is_silent(*other, now));
        let late = if self.proposer(now) == self.settings.me { awaited } else { Vec::new() };
        State::Open { late, silent }
    }

    /// Returns the time at which [`Agreement::tick`] is due, or `None` if there is nothing to repeat.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Duration> {
        (self.own.is_some() && self.decided.is_none() && !self.stranded).then_some(self.next_beat)
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Duration) {
        if self.next_wakeup().is_none_or(|due| now < due) {
            return;
        }
        // If this process was itself stopped or busy, messages from the others are still unread. That time is not their silence.
        let late = now.saturating_sub(self.next_beat);
        let excused = if late > self.settings.silent_after / 2 { now } else { late };
        for (other, since) in &mut self.asked {
            let last = self.heard.get(other).map_or(*since, |heard| (*since).max(*heard));
            *since = now.min(last + excused);
        }
        self.next_beat = now + self.settings.beat;
        let proposer = self.proposer(now);
        if proposer == self.settings.me {
            // A member that has voted and falls silent may by now vote to another member, which it
            // takes for the proposer.
            let quiet = |other: &u32| self.unanswered(*other, now) >= self.settings.beat * TAKEOVER_BEATS;
            let is_missing = |other: &u32| !self.has_no_more_to_say(*other) || quiet(other);
            let question = self.overdue.map_or(Message::Asked, |kinds| Message::Overdue { kinds });
            for other in self.others().filter(is_missing).collect::<Vec<_>>() {
                self.ask(other, question.clone(), now);
            }
            self.repeat(now);
            self.judge(now);
        } else {
            self.vote_to(proposer, now);
            self.out.extend(self.overdue.map(|kinds| (proposer, Message::Overdue { kinds })));
            let waited = self.unanswered(proposer, now);
            if waited >= self.settings.beat * TAKEOVER_BEATS {
                // Only a few are asked at first: if all members of a large group asked all others, answers would come too late.
                let beats = waited.div_duration_f64(self.settings.beat) as u32;
                let lower = self.others().filter(|other| *other < self.settings.me && *other != proposer);
                for other in lower.take(1 << beats.saturating_sub(TAKEOVER_BEATS).min(16)).collect::<Vec<_>>()
                {
                    self.ask(other, Message::Asked, now);
                }
            }
        }
        self.step(now);
    }

    /// Handles a message.
    pub fn receive(&mut self, from: u32, message: Message, now: Duration) {
        if from == self.settings.me || from >= self.settings.members {
            return;
        }
        if let Some(decided) = &self.decided {
            if !matches!(message, Message::Decided(_) | Message::Accepted { .. } | Message::Here) {
                let answer = Message::Decided(decided.clone());
                self.out.push((from, answer));
            }
            return;
        }
        if self.gone.contains(from) && !self.is_flawed_hearing() {
            return; // Rule 3 rests on this: see the crate's documentation.
        }
        // Only an answer proves that the sender hears this member too. Over a half-cut cable, requests still arrive.
        if !matches!(
            message,
            Message::Asked
                | Message::Overdue { .. }
                | Message::Prepare { .. }
                | Message::Accept { .. }
                | Message::Stranded
        ) {
            self.heard.insert(from, now);
        }
        match message {
            Message::Vote(_) | Message::Asked | Message::Overdue { .. } if self.stranded => {
                // Its caller has been told, so others must neither count its vote nor wait for its proposals.
                self.out.push((from, Message::Stranded));
            }
            Message::Vote(vote) => {
                self.votes.insert(from, vote);
                // This sign of life keeps other members from taking over while the votes of others are awaited.
                self.out.push((from, Message::Here));
            }
            Message::Asked => match self.own {
                Some(vote) => self.out.push((from, Message::Vote(vote))),
                None => self.out.push((from, Message::Here)),
            },
            Message::Overdue { kinds } => self.vote_by_proxy(from, kinds, now),
            Message::Here => {}
            Message::Prepare { ballot, gone } => self.prepare(from, ballot, &gone, now),
            Message::Accept { ballot, gone, value } => self.accept(from, ballot, &gone, value, now),
            Message::Promise { ballot, gone, accepted } => self.promised(from, ballot, gone, accepted),
            Message::Accepted { ballot, gone } => self.answered(from, ballot, Phase::Accept, gone),
            Message::Refused { promised } => self.refused(promised, now),
            Message::Decided(value) => self.decide(value),
            Message::Stranded => self.gave_up(from, now),
        }
        self.step(now);
    }

    /// Handles the deadline of a caller: votes for this member if it has not voted, and from now on tells the others too.
    fn vote_by_proxy(&mut self, from: u32, kinds: u8, now: Duration) {
        let is_news = self.overdue.replace(kinds).is_none();
        let own = *self.own.get_or_insert_with(|| {
            self.voted_by_proxy = true;
            Vote { kinds, flags: 0, seed: [0; 32] }
        });
        self.out.push((from, Message::Vote(own)));
        if is_news {
            self.next_beat = now;
            self.tick(now);
        }
    }

    /// Records the decision, and forgets what led to it: callers keep decided agreements for members that ask late.
    fn decide(&mut self, value: Decision) {
        self.decided = Some(value);
        (self.votes, self.heard, self.asked) = Default::default();
        (self.attempt, self.accepted) = (None, None);
    }

    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        let me = self.settings.me;
        (0..self.settings.members).filter(move |member| *member != me && !self.gone.contains(*member))
    }

    /// Returns how long an answer of a member has been due.
    fn unanswered(&self, member: u32, now: Duration) -> Duration {
        let Some(asked) = self.asked.get(&member) else { return Duration::ZERO };
        let heard = self.heard.get(&member).copied().unwrap_or_default();
        now.saturating_sub(heard.max(*asked))
    }

    fn is_silent(&self, member: u32, now: Duration) -> bool {
        self.unanswered(member, now) > self.settings.silent_after
    }

    /// Returns the lowest member that is neither gone nor silent, and has not given up: it collects the votes, so it alone knows who is late.
    #[must_use]
    pub fn proposer(&self, now: Duration) -> u32 {
        let me = self.settings.me;
        self.others()
            .filter(|other| !self.given_up.contains(*other))
            .find(|other| *other > me || !self.is_silent(*other, now))
            .map_or(me, |other| other.min(me))
    }

    fn ask(&mut self, member: u32, message: Message, now: Duration) {
        self.asked.entry(member).or_insert(now);
        self.out.push((member, message));
    }

    fn vote_to(&mut self, proposer: u32, now: Duration) {
        if let Some(vote) = self.own {
            self.ask(proposer, Message::Vote(vote), now);
        }
    }

    /// Continues as soon as nothing is awaited any more.
    fn step(&mut self, now: Duration) {
        if self.decided.is_some() || self.stranded || self.own.is_none() {
            return;
        }
        let proposer = self.proposer(now);
        if proposer != self.settings.me {
            // The proposer may have changed since the last beat.
            if !self.asked.contains_key(&proposer) {
                self.vote_to(proposer, now);
            }
            return;
        }
        if self.attempt.is_none() && now >= self.not_before && self.is_ready(now) {
            self.begin();
        }
        while self.advance() {}
    }

    /// Whether every member has voted, has given up, is gone, or is silent.
    fn is_ready(&self, now: Duration) -> bool {
        self.others().all(|other| self.has_no_more_to_say(other) || self.is_silent(other, now))
    }

    /// Whether a member has voted or given up.
    fn has_no_more_to_say(&self, member: u32) -> bool {
        self.votes.contains_key(&member) || self.given_up.contains(member)
    }

    /// Begins the first phase of a new ballot.
    fn begin(&mut self) {
        self.round += 1;
        let ballot = Ballot { round: self.round.max(self.promised.round + 1), by: self.settings.me };
        self.round = ballot.round;
        self.promised = ballot;
        let best = self.accepted.clone();
        let answers = BTreeMap::from([(self.settings.me, Set::default())]);
        self.attempt = Some(Attempt { ballot, value: None, answers, best });
        self.request_all();
    }

    /// Goes to the next phase once there is a quorum. Returns whether that may continue.
    fn advance(&mut self) -> bool {
        let Some(attempt) = &self.attempt else { return false };
        if !self.is_quorum(&attempt.answers) {
            return false;
        }
        let (ballot, best) = (attempt.ballot, attempt.best.clone());
        if let Some(value) = attempt.value.clone() {
            self.attempt = None;
            for other in self.others().collect::<Vec<_>>() {
                self.out.push((other, Message::Decided(value.clone())));
            }
            self.decide(value);
            return false;
        }
        let value = match best {
            Some((_, value)) if !self.is_flawed_choice() => value,
            _ => self.proposal(),
        };
        self.accepted = Some((ballot, value.clone()));
        let attempt = self.attempt.as_mut().expect("it was there");
        attempt.value = Some(value);
        attempt.answers = BTreeMap::from([(self.settings.me, Set::default())]);
        self.request_all();
        true
    }

    /// Makes this member's own choice of a value.
    fn proposal(&self) -> Decision {
        let own = self.own.expect("only a member that has voted proposes");
        let mut value = Decision {
            members: [self.settings.me].into_iter().collect(),
            flags: own.flags,
            kinds: own.kinds,
            seed: own.seed,
        };
        let is_out = |other: u32| self.gone.contains(other) || self.given_up.contains(other);
        for (other, vote) in self.votes.iter().filter(|(other, _)| !is_out(**other)) {
            value.members.insert(*other);
            value.flags &= vote.flags;
            value.kinds |= vote.kinds;
        }
        value
    }

    /// Sends the request to all members whose answer is missing or does not count by rule 3.
    fn request_all(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        let request = attempt.request(&self.gone);
        let lacks = |other: &u32| attempt.answers.get(other).is_none_or(|gone| !gone.includes(&self.gone));
        let to: Vec<u32> = self.others().filter(lacks).collect();
        self.out.extend(to.into_iter().map(|other| (other, request.clone())));
    }

    fn repeat(&mut self, now: Duration) {
        for other in self.others().collect::<Vec<_>>() {
            self.asked.entry(other).or_insert(now);
        }
        self.request_all();
    }

    /// Takes over the members that a proposer considers gone. Returns false if this member is one of them.
    fn take_over(&mut self, gone: &Set) -> bool {
        if gone.contains(self.settings.me) {
            return false;
        }
        #[cfg(test)]
        if self.flaw == Some(crate::simulator::Flaw::HearsTheDead) {
            return true;
        }
        self.gone.extend(gone);
        true
    }

    fn prepare(&mut self, from: u32, ballot: Ballot, gone: &Set, now: Duration) {
        if ballot.by != from || !self.may_join(from, ballot, now) || !self.take_over(gone) {
            return;
        }
        self.promised = ballot;
        let answer = Message::Promise { ballot, gone: self.holds(gone), accepted: self.accepted.clone() };
        #[cfg(test)]
        let answer = match answer {
            Message::Promise { ballot, gone, .. } if self.flaw == Some(crate::simulator::Flaw::Forgets) => {
                Message::Promise { ballot, gone, accepted: None }
            }
            answer => answer,
        };
        self.out.push((from, answer));
    }

    fn accept(&mut self, from: u32, ballot: Ballot, gone: &Set, value: Decision, now: Duration) {
        if ballot.by != from || !self.may_join(from, ballot, now) || !self.take_over(gone) {
            return;
        }
        self.promised = ballot;
        self.accepted = Some((ballot, value));
        let answer = Message::Accepted { ballot, gone: self.holds(gone) };
        self.out.push((from, answer));
    }

    /// Returns the members that this one considers gone, as it tells the proposer that has just sent `_told`.
    fn holds(&self, _told: &Set) -> Set {
        #[cfg(test)]
        if self.flaw == Some(crate::simulator::Flaw::HearsTheDead) {
            return _told.clone();
        }
        self.gone.clone()
    }

    /// Whether this member has not promised a later ballot.
    fn may_join(&mut self, from: u32, ballot: Ballot, now: Duration) -> bool {
        self.round = self.round.max(ballot.round);
        if ballot < self.promised {
            self.out.push((from, Message::Refused { promised: self.promised }));
            return false;
        }
        if self.attempt.as_ref().is_some_and(|attempt| attempt.ballot < ballot) {
            self.attempt = None;
            self.pause(now);
        }
        true
    }

    fn promised(&mut self, from: u32, ballot: Ballot, gone: Set, accepted: Option<(Ballot, Decision)>) {
        let Some(attempt) = self.attempt.as_mut().filter(|a| a.ballot == ballot && a.value.is_none()) else {
            return;
        };
        if accepted.as_ref().map(|(ballot, _)| *ballot) > attempt.best.as_ref().map(|(ballot, _)| *ballot) {
            attempt.best = accepted;
        }
        self.answered(from, ballot, Phase::Prepare, gone);
    }

    fn answered(&mut self, from: u32, ballot: Ballot, phase: Phase, gone: Set) {
        let is_of_phase = |a: &&mut Attempt| a.ballot == ballot && a.phase() == phase;
        let Some(attempt) = self.attempt.as_mut().filter(is_of_phase) else { return };
        let knows_more = !self.gone.includes(&gone);
        let knows_less = !gone.includes(&self.gone);
        attempt.answers.insert(from, gone.clone());
        if !gone.contains(self.settings.me) {
            self.gone.extend(&gone);
        }
        if knows_more || knows_less {
            self.request_all();
        }
    }

    fn refused(&mut self, promised: Ballot, now: Duration) {
        self.round = self.round.max(promised.round);
        if self.attempt.as_ref().is_some_and(|attempt| attempt.ballot < promised) {
            self.attempt = None;
            self.pause(now);
        }
    }

    /// Pauses so that two members that propose at the same time get out of each other's way. The higher one waits longer.
    fn pause(&mut self, now: Duration) {
        let place = 1 + self.settings.me.min(7);
        self.not_before = now + self.settings.beat * place * (1 << self.refusals.min(BACKOFF_MAX)) / 2;
        self.refusals += 1;
    }

    #[allow(clippy::unused_self)]
    const fn is_flawed_hearing(&self) -> bool {
        #[cfg(test)]
        if matches!(self.flaw, Some(crate::simulator::Flaw::HearsTheDead)) {
            return true;
        }
        false
    }

    #[allow(clippy::unused_self)]
    const fn is_flawed_choice(&self) -> bool {
        #[cfg(test)]
        if matches!(self.flaw, Some(crate::simulator::Flaw::OwnChoice)) {
            return true;
        }
        false
    }
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;
