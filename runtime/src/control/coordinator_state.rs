//! The coordinator's state machine: the ranks that are present, the open all-gathers, and the messages to send. It has neither sockets nor
//! a clock.
//!
//! Facts come in through the methods, with the time where it matters. [`CoordinatorState::take_actions`] returns the frames to send and
//! the connections to close. Frames to one connection keep their order.
//!
//! A rank goes from Absent to Present, and then to Departed (after a goodbye) or Lost (closed without a goodbye, or silent for too long).
//! While the job is gathering, a closed connection only makes the rank absent again. The phases are Gathering -> Running -> Lingering
//! (rank 0 has left) -> Closing -> done, or Gathering -> Closing when time runs out.

mod delivery;
mod misfits;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use misfits::Misfits;

use super::OnSilence;
use super::abort::{AbortCause, AbortKind, Loss};
use super::board::Account;
use super::coordinator_gathers::{Contribution, Gathers};
use super::coordinator_ranks::{
    CoordinatorSettings, Phase, Present, RankState, describe, objection, standing,
};
use super::forwarding::InFlight;
use super::peers::evidence::Seen;
use super::peers::listener::ListenerAddress;
use super::ranks;
use super::wire::{FromCoordinator, Hello, Refusal, ToCoordinator, clip, encode, remember};
use crate::error::{JOIN_REMEDY, JoinFailure, LossCause};
use crate::job::Cookie;
use crate::job::limits::{CLOSING_TIMEOUT, MAX_NAME_BYTES};

/// Number of a connection, given by the coordinator's driver.
pub(crate) type ConnectionId = u64;

/// Work for the driver.
#[derive(Debug)]
pub(crate) enum Action {
    Send {
        connection: ConnectionId,
        frame: Bytes,
    },
    /// Send the queued frames, then end the connection.
    Close {
        connection: ConnectionId,
    },
    /// Watch whether the connection's host is alive. `listener_port` is the port of its listener.
    Watch {
        connection: ConnectionId,
        limit: Duration,
        listener_port: Option<u16>,
    },
    /// All ranks have joined. Drop the publication by which they find the coordinator.
    Gathered,
}

/// State of the coordinator, without its sockets.
#[derive(Debug)]
pub(crate) struct CoordinatorState {
    settings: CoordinatorSettings,
    phase: Phase,
    states: Vec<RankState>,
    ranks: HashMap<ConnectionId, u32>,
    gathers: Gathers,
    /// Messages that ranks are passing on to each other.
    in_flight: Vec<InFlight>,
    /// Ranks that did not get a message from other ranks.
    unreached: BTreeSet<u32>,
    aborted: VecDeque<(u64, bool)>,
    newly_departed: Vec<u32>,
    /// Ranks whose goodbyes rank 0 does not wait for, since the others have gone on without them.
    left_behind: Vec<u32>,
    misfits: Misfits,
    /// Connections of strangers that were rejected, as counted by the driver.
    rejected: u64,
    next_tick: Instant,
    /// Time before which no rank's silence can reach the limit. Heartbeats arrive between ticks, and each rank's silence must be noticed
    /// in time.
    next_judgement: Instant,
    actions: Vec<Action>,
    beat: Bytes,
}

impl CoordinatorState {
    pub(crate) fn new(settings: CoordinatorSettings, now: Instant) -> Self {
        let states = (0..settings.world_size).map(|_| RankState::Absent { last: None }).collect();
        Self {
            phase: Phase::Gathering { deadline: now + settings.timeout },
            states,
            ranks: HashMap::new(),
            gathers: Gathers::default(),
            in_flight: Vec::new(),
            unreached: BTreeSet::new(),
            aborted: VecDeque::new(),
            newly_departed: Vec::new(),
            left_behind: Vec::new(),
            misfits: Misfits::default(),
            rejected: 0,
            next_tick: now + settings.liveness.heartbeat,
            next_judgement: now + settings.liveness.dead_after,
            actions: Vec::new(),
            beat: encode(&FromCoordinator::Heartbeat),
            settings,
        }
    }

    /// Returns the actions that are due, in order. Departures are announced here, so that many at once make one message.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        if !self.newly_departed.is_empty() {
            let ranks = std::mem::take(&mut self.newly_departed);
            self.tell_all(&FromCoordinator::Departed { ranks });
        }
        std::mem::take(&mut self.actions)
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. }) && self.ranks.is_empty()
    }

    /// Returns the time at which [`CoordinatorState::tick`] must be called.
    pub(crate) fn next_wakeup(&self) -> Instant {
        let tick = self.next_tick.min(self.next_judgement);
        match self.phase {
            Phase::Gathering { deadline } => deadline.min(tick),
            Phase::Running => tick,
            Phase::Lingering { until } | Phase::Closing { until } => until.min(tick),
        }
    }

    /// Notes a lack on rank 0's side, for the error message if the job does not gather.
    pub(crate) fn note_lack(&mut self, note: String) {
        self.misfits.note(note);
    }

    /// Notes a process that was turned away before it had proven anything. Strangers may come by the thousand, so most are logged for
    /// debugging only.
    pub(crate) fn turned_away(&mut self, ip: IpAddr, problem: &str, remedy: &str) {
        if self.misfits.note_stranger(ip, problem) {
            tracing::warn!(%ip, problem, remedy, "a process was turned away");
        } else {
            tracing::debug!(%ip, problem, "a process was turned away");
        }
    }

    /// Returns the job's cookie.
    pub(crate) fn cookie(&self) -> Cookie {
        self.settings.cookie
    }

    pub(crate) const fn world_size(&self) -> u32 {
        self.settings.world_size
    }

    /// Returns the heartbeat frame for ranks.
    pub(crate) fn beat(&self) -> Bytes {
        self.beat.clone()
    }

    /// Sets the number of connections rejected so far.
    pub(crate) fn count_rejected(&mut self, rejected: u64) {
        self.rejected = rejected;
    }

    /// Handles a rank's introduction over a connection with the ends `seen`.
    pub(crate) fn hello(
        &mut self,
        connection: ConnectionId,
        seen: Option<Seen>,
        hello: Hello,
        on_silence: OnSilence,
        now: Instant,
    ) {
        let who = describe(&hello.peer);
        if let Some(refusal) = objection(&self.settings, &mut self.states, self.phase, &hello, now) {
            let may_come_again = match self.states.get(hello.peer.rank as usize) {
                Some(RankState::Present(present)) => present.is_contested(self.settings.liveness.heartbeat),
                Some(RankState::Departed) => true,
                _ => false,
            };
            if may_come_again {
                tracing::debug!(who, problem = refusal.problem, "a process is to try again");
            } else {
                tracing::warn!(who, problem = refusal.problem, "a process was refused");
            }
            if !refusal.retry {
                self.misfits.note(format!("{who}: {}", refusal.problem));
            }
            self.send(connection, &FromCoordinator::Refused(refusal));
            self.actions.push(Action::Close { connection });
            return;
        }
        let mut peer = hello.peer;
        peer.hostname = clip(peer.hostname, MAX_NAME_BYTES);
        peer.version = clip(peer.version, MAX_NAME_BYTES);
        let (rank, listener) = (peer.rank, hello.listener.map(ListenerAddress::bounded));
        self.states[rank as usize] =
            RankState::Present(Present::new(connection, peer, listener, seen, on_silence, now));
        self.ranks.insert(connection, rank);
        tracing::debug!(rank, who, "a rank joined");
        self.welcome_if_complete(now);
        if matches!(self.phase, Phase::Gathering { .. }) {
            let waiting = self.waiting();
            self.send(connection, &waiting);
        }
    }

    /// Begins the job once all ranks are there and no two processes claim the same one.
    fn welcome_if_complete(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Gathering { .. }) || !self.missing().is_empty() {
            return;
        }
        self.phase = Phase::Running;
        self.states.iter_mut().filter_map(RankState::present_mut).for_each(|present| present.begin(now));
        self.actions.push(Action::Gathered);
        let present = || self.states.iter().filter_map(RankState::present);
        let welcome = FromCoordinator::Welcome {
            cookie: self.settings.cookie,
            peers: present().map(|present| present.peer.clone()).collect(),
            listeners: present().map(|present| present.listener.clone()).collect(),
            seen: present().map(|present| present.seen).collect(),
        };
        self.send_to_all_of(None, (0..self.settings.world_size).collect(), encode(&welcome));
    }

    /// Handles a message from a rank. An error means that the connection must be ended as broken.
    pub(crate) fn message(
        &mut self,
        connection: ConnectionId,
        message: ToCoordinator,
        now: Instant,
    ) -> Result<(), String> {
        let Some(&rank) = self.ranks.get(&connection) else {
            return Ok(()); // refused or gone; further messages from it do not matter
        };
        let RankState::Present(present) = &mut self.states[rank as usize] else { return Ok(()) };
        present.heard = now;
        present.suspected = false;
        match message {
            ToCoordinator::Heartbeat => Ok(()),
            ToCoordinator::Hello(_) => Err("a second hello".into()),
            _ if matches!(self.phase, Phase::Gathering { .. }) => Err("a message before the welcome".into()),
            ToCoordinator::AllGather { key, members, blob } => {
                self.contribute(rank, Contribution { key, members, blob });
                Ok(())
            }
            ToCoordinator::Withdraw { key } => {
                let deliveries = self.gathers.withdraw(rank, key);
                self.deliver(deliveries);
                Ok(())
            }
            ToCoordinator::Abort { communicator, members, cause } => {
                self.abort(communicator, &members, cause);
                Ok(())
            }
            ToCoordinator::Ask { ticket, target, communicator } => {
                match self.connection_of(target) {
                    Some(to) => self.send(to, &FromCoordinator::Asked { ticket, asker: rank, communicator }),
                    None => {
                        let account = Account::Unknown;
                        self.send(connection, &FromCoordinator::Answered { ticket, account });
                    }
                }
                Ok(())
            }
            ToCoordinator::Answer { ticket, asker, account } => {
                self.answer(asker, ticket, account);
                Ok(())
            }
            ToCoordinator::Received { key } => {
                for in_flight in self.in_flight.iter_mut().filter(|in_flight| in_flight.key == key) {
                    in_flight.waiting.remove(&rank);
                    in_flight.left = in_flight.patience;
                }
                Ok(())
            }
            ToCoordinator::Watch { limit_ms } => {
                let listener_port = (present.on_silence == OnSilence::Fail)
                    .then(|| present.listener.as_ref().and_then(ListenerAddress::port));
                self.watch(connection, limit_ms, listener_port);
                Ok(())
            }
            ToCoordinator::Goodbye => {
                self.send(connection, &FromCoordinator::Goodbye);
                self.depart(rank, connection);
                Ok(())
            }
            ToCoordinator::Dying { loss } => {
                self.lose(rank, loss);
                self.actions.push(Action::Close { connection });
                Ok(())
            }
        }
    }

    /// Watches the host of a rank. `listener_port` is `Some` only if the rank's silence counts as a failure.
    fn watch(&mut self, connection: ConnectionId, limit_ms: u32, listener_port: Option<Option<u16>>) {
        if let Some(listener_port) =
            listener_port.filter(|_| self.settings.liveness.watches_hosts && limit_ms > 0)
        {
            let limit = Duration::from_millis(limit_ms.into());
            self.actions.push(Action::Watch { connection, limit, listener_port });
        }
    }

    /// Handles the end of a connection.
    pub(crate) fn closed(&mut self, connection: ConnectionId, loss: Loss) {
        let Some(rank) = self.ranks.remove(&connection) else { return };
        if let RankState::Present(_) = &self.states[rank as usize] {
            self.lose(rank, loss);
        }
    }

    /// Starts the departure of rank 0: the coordinator stays until everybody but `left_behind` has left, at most for
    /// `patience`.
    pub(crate) fn linger(&mut self, patience: Duration, left_behind: Vec<u32>, now: Instant) {
        self.left_behind = left_behind;
        match self.phase {
            Phase::Running if patience > Duration::ZERO && self.anybody_here() => {
                self.phase = Phase::Lingering { until: now + patience };
            }
            Phase::Closing { .. } => {}
            Phase::Gathering { .. } => self.give_up(now, "rank 0 gave up".into()),
            Phase::Running | Phase::Lingering { .. } => self.close(now),
        }
    }

    /// Handles the passing of time.
    pub(crate) fn tick(&mut self, now: Instant) {
        match self.phase {
            Phase::Gathering { deadline } if now >= deadline => {
                self.give_up(now, format!("after {:.1} s", self.settings.timeout.as_secs_f64()));
            }
            Phase::Lingering { until } if now >= until => self.close(now),
            Phase::Closing { until } if now >= until => self.ranks.clear(),
            _ => {}
        }
        let due = self.next_tick.min(self.next_judgement);
        if now < due {
            return;
        }
        let late = now - due;
        if late > self.settings.liveness.heartbeat {
            // This process was itself stopped, so messages that the others sent meanwhile are still unread.
            let heartbeat = self.settings.liveness.heartbeat;
            for present in self.states.iter_mut().filter_map(RankState::present_mut) {
                present.excuse(heartbeat, now);
            }
        }
        self.judge(now);
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + self.settings.liveness.heartbeat;
        self.welcome_if_complete(now);
        self.resend_overdue();
        if matches!(self.phase, Phase::Gathering { .. }) {
            let waiting = self.waiting();
            self.tell_all(&waiting);
        } else {
            let frame = self.beat();
            let to: Vec<_> = self
                .states
                .iter()
                .filter_map(RankState::present)
                .filter(|t| t.on_silence == OnSilence::Fail)
                .map(|t| t.connection)
                .collect();
            for connection in to {
                self.actions.push(Action::Send { connection, frame: frame.clone() });
            }
        }
    }

    fn judge(&mut self, now: Instant) {
        let liveness = self.settings.liveness;
        let (mut dead, mut oldest) = (Vec::new(), now);
        for (rank, state) in self.states.iter_mut().enumerate() {
            let RankState::Present(present) = state else { continue };
            let silent = now.saturating_duration_since(present.heard);
            if present.on_silence == OnSilence::Ignore {
                continue;
            }
            if silent >= present.longest_silence(&liveness) {
                dead.push((rank as u32, present.connection, silent));
                continue;
            }
            oldest = oldest.min(present.heard);
            if silent >= liveness.suspect_after && !present.suspected {
                present.suspected = true;
                tracing::warn!(
                    rank,
                    who = describe(&present.peer),
                    "silent for {:.0} s; given up after {:.0} s",
                    silent.as_secs_f64(),
                    liveness.dead_after.as_secs_f64()
                );
            }
        }
        self.next_judgement = oldest + liveness.dead_after;
        for (rank, connection, silent) in dead {
            self.ranks.remove(&connection);
            let text = format!("silent for {:.1} s", silent.as_secs_f64());
            self.lose(rank, Loss::new(LossCause::Silent(silent), text));
            self.actions.push(Action::Close { connection });
        }
    }

    fn send_frame(&mut self, rank: u32, frame: Bytes) {
        if let Some(connection) = self.connection_of(rank) {
            self.actions.push(Action::Send { connection, frame });
        }
    }

    fn contribute(&mut self, rank: u32, contribution: Contribution) {
        let communicator = contribution.key.communicator;
        if self.aborted.iter().any(|(aborted, _)| *aborted == communicator) {
            return; // the word is on its way to this member
        }
        let states = &self.states;
        let standing = |rank: u32| standing(states, rank);
        let deliveries = self.gathers.contribute(rank, contribution, self.settings.world_size, &standing);
        self.deliver(deliveries);
    }

    fn abort(&mut self, communicator: u64, members: &[u32], cause: AbortCause) {
        let word = (communicator, cause.kind == AbortKind::Revoked);
        if self.aborted.contains(&word) {
            return; // the first abort of this kind is on its way to everybody
        }
        remember(&mut self.aborted, word);
        self.gathers.forget(communicator);
        let frame = encode(&FromCoordinator::Aborted { communicator, cause });
        // The sender is told too. Without this echo, it would tell the others itself.
        for member in members {
            self.send_frame(*member, frame.clone());
        }
    }

    fn answer(&mut self, asker: u32, ticket: u64, account: Account) {
        if let Some(connection) = self.connection_of(asker) {
            self.send(connection, &FromCoordinator::Answered { ticket, account });
        }
    }

    fn depart(&mut self, rank: u32, connection: ConnectionId) {
        self.states[rank as usize] = RankState::Departed;
        self.newly_departed.push(rank);
        self.actions.push(Action::Close { connection });
        self.settle_all();
        self.maybe_close();
    }

    fn lose(&mut self, rank: u32, loss: Loss) {
        let state = &mut self.states[rank as usize];
        let who = state.peer().map(describe).unwrap_or_default();
        if matches!(self.phase, Phase::Gathering { .. }) {
            tracing::debug!(rank, who, %loss, "a rank went away while the job was gathering");
            *state = RankState::Absent { last: Some(format!("{who} joined, but then: {loss}")) };
            return;
        }
        tracing::warn!(rank, who, %loss, "a rank is lost");
        let loss = loss.of(&who);
        *state = RankState::Lost { loss: loss.clone() };
        self.tell_all(&FromCoordinator::Lost { rank, loss });
        self.settle_all();
        self.maybe_close();
    }

    fn settle_all(&mut self) {
        let states = &self.states;
        let deliveries = self.gathers.settle_all(&|rank| standing(states, rank));
        self.deliver(deliveries);
    }

    fn maybe_close(&mut self) {
        if matches!(self.phase, Phase::Lingering { .. }) && !self.anybody_here() {
            // Ranks that were left behind are told, in case they go on.
            self.close(self.next_tick);
        }
    }

    /// Whether a rank is here that may still need the coordinator.
    fn anybody_here(&self) -> bool {
        let is_here = |(rank, state): (u32, &RankState)| {
            matches!(state, RankState::Present(_)) && !self.left_behind.contains(&rank)
        };
        (0..).zip(&self.states).any(is_here)
    }

    fn give_up(&mut self, now: Instant, when: String) {
        let missing = self.missing();
        let here = self.states.len() - missing.len();
        let mut problem = format!(
            "{when} only {here} of {} ranks had joined; missing: {}",
            self.states.len(),
            self.missing_text()
        );
        if let Some(notes) = self.misfits.text() {
            problem += &format!("; turned away: {notes}");
        }
        if self.rejected > 0 {
            problem += &format!("; {}", rejected_text(self.rejected));
        }
        let remedy = format!(
            "Check whether these processes were started, what they printed, and whether their hosts can \
             reach rank 0 ({}); {JOIN_REMEDY}",
            self.settings.source
        );
        let problem = clip(problem, usize::MAX);
        self.tell_all(&FromCoordinator::Refused(Refusal {
            kind: JoinFailure::Absent,
            problem,
            remedy,
            retry: false,
        }));
        self.end_all(now);
    }

    fn close(&mut self, now: Instant) {
        self.send_all_directly();
        self.tell_all(&FromCoordinator::Closing);
        self.end_all(now);
    }

    fn end_all(&mut self, now: Instant) {
        self.phase = Phase::Closing { until: now + CLOSING_TIMEOUT };
        let connections: Vec<_> =
            self.states.iter().filter_map(RankState::present).map(|t| t.connection).collect();
        self.actions.extend(connections.into_iter().map(|connection| Action::Close { connection }));
        for state in &mut self.states {
            if matches!(state, RankState::Present(_)) {
                *state = RankState::Departed;
            }
        }
    }

    fn waiting(&self) -> FromCoordinator {
        FromCoordinator::Waiting { missing: self.missing_text(), rejected: self.rejected }
    }

    /// Returns the ranks for which no process is there, or two are.
    fn missing(&self) -> Vec<u32> {
        let heartbeat = self.settings.liveness.heartbeat;
        let is_settled =
            |state: &RankState| state.present().is_some_and(|present| !present.is_contested(heartbeat));
        (0..).zip(&self.states).filter(|(_, state)| !is_settled(state)).map(|(rank, _)| rank).collect()
    }

    fn missing_text(&self) -> String {
        let missing = self.missing();
        let mut text = ranks::named(&missing);
        let known = missing.iter().filter_map(|rank| match &self.states[*rank as usize] {
            RankState::Absent { last } => last.as_ref().map(|last| format!(" (rank {rank}: {last})")),
            _ => Some(format!(" (rank {rank}: two processes claim it)")),
        });
        text.extend(known.take(4));
        clip(text, usize::MAX)
    }

    fn connection_of(&self, rank: u32) -> Option<ConnectionId> {
        self.states.get(rank as usize).and_then(RankState::present).map(|present| present.connection)
    }

    fn send(&mut self, connection: ConnectionId, message: &FromCoordinator) {
        self.actions.push(Action::Send { connection, frame: encode(message) });
    }

    fn tell_all(&mut self, message: &FromCoordinator) {
        let frame = encode(message);
        let connections: Vec<_> =
            self.states.iter().filter_map(RankState::present).map(|t| t.connection).collect();
        for connection in connections {
            self.actions.push(Action::Send { connection, frame: frame.clone() });
        }
    }
}

/// Describes rejected connections in errors of joining.
pub(crate) fn rejected_text(count: u64) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} connection{s} rejected at rank 0's port (silent, garbage, or without the job's keys)")
}

#[cfg(test)]
#[path = "coordinator_state_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "join_simulation_tests.rs"]
mod join_simulation;
