//! Cooperation of a job's members without the coordinator: they reach agreements, and watch each other while they form a new group.
//!
//! Per job and process, one task owns the connections ("lines") to other members and the open agreements (`rounds`, state machines of
//! [`kolo_membership`]). A line is opened when there is a message to send, and opened again when it ends. Only a refusal by the system
//! proves that the member has ended (`door`).

pub(super) mod door;
mod halls;
mod lines;
pub(super) mod lobby;
pub(super) mod porter;
mod relays;
mod renewals;
pub(super) mod rounds;
pub(super) mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kolo_membership::{Decision, Message, Part, Stand};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::abort::AbortCause;
use super::coordinator::BoxedStream;
use super::member::Shared;
use super::runtime::ControlRuntime;
use super::wire::encode;
use crate::job::limits::AGREEMENT_BEAT;
use crate::join::JoinSpec;
use door::{Door, DoorAddress, NoAnswer};
use lines::Line;
use porter::Opening;
use relays::relays;
use renewals::Renewals;
use rounds::{Heard, RoundKey, Rounds};

/// Most frames that wait for a line to a member. Frames beyond them are lost, and are sent again later.
const UNSENT_MAX: usize = 64;

/// A message between members.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Round {
        key: RoundKey,
        message: Message,
    },
    /// The sender is no longer a member of the communicator.
    Closed {
        key: RoundKey,
    },
    /// The members of the communicator have gone on without the receiver.
    LeftBehind {
        communicator: u64,
    },
    Abort {
        communicator: u64,
        cause: AbortCause,
    },
    Ping,
    Pong,
}

/// Outcome of an agreement for this member.
#[derive(Clone, Debug)]
pub(crate) enum Agreed {
    /// The decision. It names members by rank in the communicator.
    Decided(Decision),
    /// The others have gone on without this member. `by` is one of them.
    LeftBehind { by: u32 },
    /// Not enough members answer for a quorum.
    Stranded { silent: Vec<u32> },
    /// This member's deadline passed.
    Late { late: Vec<u32>, silent: Vec<u32> },
}

/// An event for the task.
pub(super) enum Event {
    /// Another member has connected.
    Called {
        rank: u32,
        stream: BoxedStream,
    },
    Knocked {
        rank: u32,
        outcome: Result<BoxedStream, NoAnswer>,
    },
    /// An attempt has ended to replace a line whose other end acknowledges nothing.
    Renewed {
        rank: u32,
        outcome: Result<BoxedStream, NoAnswer>,
    },
    Said {
        rank: u32,
        said: Said,
    },
    Ended {
        rank: u32,
        line: u64,
    },
    Bring {
        key: RoundKey,
        members: Arc<[u32]>,
        part: Part,
        silent_after: Duration,
        reply: Reply,
    },
    WaitNoLonger {
        key: RoundKey,
    },
    GiveUp {
        key: RoundKey,
    },
    Watch {
        ranks: Vec<u32>,
        later: RoundKey,
        silent_after: Duration,
        alarm: oneshot::Sender<(u32, String)>,
    },
    Abort {
        members: Arc<[u32]>,
        communicator: u64,
        cause: AbortCause,
    },
    /// A sender that is dropped once every rank that was told of an abort has answered or is gone.
    AwaitTold(std::sync::mpsc::SyncSender<()>),
}

type Reply = std::sync::mpsc::Sender<Agreed>;

/// A handle to the task. The task ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Peers {
    events: mpsc::UnboundedSender<Event>,
    /// Events that arrived before the task runs.
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Event>>>,
    doors: Arc<[DoorAddress]>,
}

impl Peers {
    /// Makes the handle. From now on, connections from other members are accepted.
    pub(super) fn new(shared: &Shared, door: &Door, doors: Arc<[DoorAddress]>) -> Self {
        let (events, inbox) = mpsc::unbounded_channel();
        door.move_in(shared.cookie, &events);
        Self { events, inbox: Mutex::new(Some(inbox)), doors }
    }

    /// Returns the door of a rank.
    pub(super) fn door(&self, rank: u32) -> Option<DoorAddress> {
        self.doors.get(rank as usize).cloned()
    }

    /// Starts the task on the first call. Later calls do nothing.
    pub(super) fn start(
        &self,
        runtime: &ControlRuntime,
        spec: &JoinSpec,
        shared: Arc<Shared>,
        door: Arc<Door>,
    ) {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(inbox) = inbox else { return };
        let task = Task {
            near: near(&shared),
            rounds: Rounds::new(shared.rank, Instant::now()),
            shared,
            door,
            doors: self.doors.clone(),
            spec: spec.clone(),
            events: self.events.downgrade(),
            inbox,
            lines: BTreeMap::new(),
            next_line: 0,
            knocking: BTreeMap::new(),
            setbacks: BTreeMap::new(),
            unsent: BTreeMap::new(),
            heard: BTreeMap::new(),
            gone: BTreeMap::new(),
            watches: Vec::new(),
            next_ping: Instant::now(),
            renewals: Renewals::new(Instant::now()),
            untold: BTreeSet::new(),
            await_told: Vec::new(),
        };
        runtime.spawn(task.run());
    }

    /// Agrees with the members of a communicator. All members bring their parts to the same rounds in the same order. Blocks until the
    /// deadline at most. With `grace`, the members then wait no longer for those that have not come, and the call blocks for that much
    /// longer.
    pub(super) fn agree(
        &self,
        key: RoundKey,
        members: &Arc<[u32]>,
        part: Part,
        silent_after: Duration,
        deadline: Instant,
        grace: Option<Duration>,
    ) -> Agreed {
        let lost = || Agreed::Late { late: Vec::new(), silent: Vec::new() };
        let (reply, outcome) = std::sync::mpsc::channel();
        let _ = self.events.send(Event::Bring { key, members: members.clone(), part, silent_after, reply });
        let mut agreed = outcome.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        if let (Err(std::sync::mpsc::RecvTimeoutError::Timeout), Some(grace)) = (&agreed, grace) {
            let _ = self.events.send(Event::WaitNoLonger { key });
            agreed = outcome.recv_timeout(grace);
        }
        match agreed {
            Ok(agreed) => agreed,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => lost(),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                let _ = self.events.send(Event::GiveUp { key });
                outcome.recv_timeout(Duration::from_secs(1)).unwrap_or_else(|_| lost())
            }
        }
    }

    /// Watches members. The result reports one that is gone or silent, or that has come to agreement `later`, which shows that it has
    /// given up the present one.
    pub(super) fn watch(
        &self,
        ranks: Vec<u32>,
        later: RoundKey,
        silent_after: Duration,
    ) -> oneshot::Receiver<(u32, String)> {
        let (alarm, alarmed) = oneshot::channel();
        let _ = self.events.send(Event::Watch { ranks, later, silent_after, alarm });
        alarmed
    }

    /// Tells members that a communicator is aborted. They pass it on: see [`relays`].
    pub(super) fn abort(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        let _ = self.events.send(Event::Abort { members: members.clone(), communicator, cause });
    }

    /// Blocks until the ranks that this one tells of aborts have heard of them, are gone, or do not answer; at most for `patience`.
    pub(super) fn wait_until_told(&self, patience: Duration) {
        let (told, all) = std::sync::mpsc::sync_channel(1);
        let _ = self.events.send(Event::AwaitTold(told));
        // Nothing is ever sent here. The other end is dropped.
        let _ = all.recv_timeout(patience);
    }
}

/// Returns which ranks are on this rank's host.
fn near(shared: &Shared) -> Vec<bool> {
    let own = shared.peers.get(shared.rank as usize).map(|peer| peer.host_key);
    shared.peers.iter().map(|peer| Some(peer.host_key) == own).collect()
}

struct Watch {
    ranks: Vec<u32>,
    later: RoundKey,
    silent_after: Duration,
    since: Instant,
    alarm: Option<oneshot::Sender<(u32, String)>>,
}

struct Task {
    near: Vec<bool>,
    rounds: Rounds,
    shared: Arc<Shared>,
    door: Arc<Door>,
    doors: Arc<[DoorAddress]>,
    spec: JoinSpec,
    events: mpsc::WeakUnboundedSender<Event>,
    inbox: mpsc::UnboundedReceiver<Event>,
    /// Lines to each rank, the newest first. There are two if both have connected at the same time.
    lines: BTreeMap<u32, Vec<Line>>,
    next_line: u64,
    /// Members to which an attempt to connect is under way (`None`), or the time before which it is not repeated.
    knocking: BTreeMap<u32, Option<Instant>>,
    /// Number of failed attempts in a row.
    setbacks: BTreeMap<u32, u32>,
    unsent: BTreeMap<u32, Vec<Bytes>>,
    heard: BTreeMap<u32, Instant>,
    gone: BTreeMap<u32, String>,
    watches: Vec<Watch>,
    next_ping: Instant,
    renewals: Renewals,
    /// Ranks that were told of an abort and have not answered.
    untold: BTreeSet<u32>,
    await_told: Vec<std::sync::mpsc::SyncSender<()>>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let wakeup = self.next_wakeup();
            let sleep = async {
                match wakeup {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.inbox.recv() => match event {
                    Some(event) => self.handle(event),
                    None => break,
                },
                () = sleep => {}
            }
            self.look();
        }
        for line in self.lines.values().flatten() {
            line.end();
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let ping = (!self.watches.is_empty()).then_some(self.next_ping);
        let knock = self.knocking.values().copied().flatten().min();
        let rounds = self.rounds.next_wakeup();
        // A member that waits for an answer also checks its lines.
        let renewal = rounds.or(ping).and(self.renewals.due());
        [rounds, ping, knock, renewal].into_iter().flatten().min()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Called { rank, stream }
                if (rank as usize) < self.doors.len() && rank != self.shared.rank =>
            {
                self.adopt(rank, stream);
            }
            Event::Called { .. } => {}
            Event::Knocked { rank, outcome } => self.knocked(rank, outcome),
            Event::Renewed { rank, outcome } => self.renewed(rank, outcome),
            Event::Said { rank, said } => {
                self.heard.insert(rank, Instant::now());
                self.hear(rank, said);
            }
            Event::Ended { rank, line } => {
                let lines = self.lines.entry(rank).or_default();
                lines.retain(|other| other.number != line);
                if lines.is_empty() {
                    self.untold.remove(&rank);
                }
                // Another attempt to connect shows whether the member has ended.
                if lines.is_empty() && self.needs(rank) {
                    self.knock(rank);
                }
            }
            Event::Bring { key, members, part, silent_after, reply } => {
                let known_gone: BTreeSet<u32> = self.gone.keys().copied().collect();
                let suspects = self.shared.silent();
                self.rounds.bring(key, members, part, silent_after, reply, (&known_gone, &suspects));
            }
            Event::WaitNoLonger { key } => self.rounds.wait_no_longer(key),
            Event::GiveUp { key } => self.rounds.give_up(key),
            Event::Watch { ranks, later, silent_after, alarm } => {
                let (since, alarm) = (Instant::now(), Some(alarm));
                self.next_ping = since;
                self.watches.push(Watch { ranks, later, silent_after, since, alarm });
            }
            Event::Abort { members, communicator, cause } => self.spread(&members, communicator, cause),
            Event::AwaitTold(told) => self.await_told.push(told),
        }
    }

    fn knocked(&mut self, rank: u32, outcome: Result<BoxedStream, NoAnswer>) {
        match outcome {
            Ok(stream) => {
                self.knocking.remove(&rank);
                self.setbacks.remove(&rank);
                self.adopt(rank, stream);
            }
            Err(NoAnswer::Gone(text)) => self.gone(rank, text),
            Err(NoAnswer::LeftBehind(told)) => {
                // This must come before `gone`: a member that counts as gone would help to make a quorum.
                self.left_behind(rank, |communicator| told.is_of(communicator));
                self.gone(rank, NoAnswer::LeftBehind(told).text());
            }
            Err(no @ (NoAnswer::Silent(_) | NoAnswer::Misfit { .. })) => {
                let text = no.text();
                tracing::debug!(rank = self.shared.rank, silent = rank, text, "no connection to a member");
                self.untold.remove(&rank);
                let setbacks = self.setbacks.entry(rank).or_default();
                *setbacks += 1;
                let pause = door::pause_after(*setbacks);
                if pause == AGREEMENT_BEAT {
                    self.unsent.remove(&rank);
                }
                self.knocking.insert(rank, Some(Instant::now() + pause));
            }
        }
    }

    /// Whether this member waits for an answer of the rank.
    fn needs(&self, rank: u32) -> bool {
        self.rounds.needs(rank) || self.watches.iter().any(|watch| watch.ranks.contains(&rank))
    }

    fn gone(&mut self, rank: u32, text: String) {
        self.knocking.remove(&rank);
        self.setbacks.remove(&rank);
        self.unsent.remove(&rank);
        self.untold.remove(&rank);
        tracing::info!(rank = self.shared.rank, gone = rank, text, "a member has gone");
        self.gone.insert(rank, text);
        self.rounds.gone(rank);
    }

    /// Handles the news that the members of these communicators, `by` among them, have gone on without this one.
    fn left_behind(&mut self, by: u32, is_of: impl Fn(u64) -> bool) {
        for (communicator, by) in self.shared.communicators_with(by).into_iter().filter(|(id, _)| is_of(*id))
        {
            self.fence(communicator, by);
        }
    }

    fn fence(&mut self, communicator: u64, by: u32) {
        self.rounds.fence(communicator, by);
        self.shared.fence(communicator, by);
    }

    fn spread(&mut self, members: &[u32], communicator: u64, cause: AbortCause) {
        let said = encode(&Said::Abort { communicator, cause });
        let silent = self.shared.silent();
        for rank in relays(members, self.shared.rank) {
            if self.gone.contains_key(&rank) {
                continue;
            }
            self.send(rank, said.clone());
            if silent.contains(&rank) {
                continue; // No answer is expected from this rank.
            }
            // Its answer confirms the earlier messages.
            self.send(rank, encode(&Said::Ping));
            self.untold.insert(rank);
        }
    }

    fn hear(&mut self, rank: u32, said: Said) {
        match said {
            Said::Round { key, message } => {
                self.note_given_up(rank, key);
                let members = self.shared.members_of(key.communicator);
                let known_gone: BTreeSet<u32> = self.gone.keys().copied().collect();
                match self.rounds.hear(rank, key, message, members, &known_gone) {
                    Heard::Taken => {}
                    Heard::Closed => self.send(rank, encode(&Said::Closed { key })),
                    Heard::LeftBehind => {
                        self.send(rank, encode(&Said::LeftBehind { communicator: key.communicator }));
                    }
                }
            }
            Said::LeftBehind { communicator } => self.left_behind(rank, |id| id == communicator),
            Said::Closed { key } => self.rounds.closed(rank, key),
            Said::Abort { communicator, cause } => {
                if let Some(members) = self.shared.aborted_by_member(communicator, cause.clone()) {
                    self.spread(&members, communicator, cause);
                }
            }
            Said::Ping => self.send(rank, encode(&Said::Pong)),
            Said::Pong => {
                self.untold.remove(&rank);
            }
        }
    }

    /// Reports a member that has given up. It may have taken another one for silent and gone on to the agreement that follows.
    fn note_given_up(&mut self, rank: u32, key: RoundKey) {
        for watch in &mut self.watches {
            let is_later = key.communicator == watch.later.communicator && key.number >= watch.later.number;
            if is_later
                && watch.ranks.contains(&rank)
                && let Some(alarm) = watch.alarm.take()
            {
                let _ = alarm.send((rank, "it has given up".to_owned()));
            }
        }
    }

    /// Runs after every event: lets time pass, and sends the messages that follow.
    fn look(&mut self) {
        let now = Instant::now();
        self.rounds.tick(now);
        for (rank, key, message) in self.rounds.take_messages() {
            self.send(rank, encode(&Said::Round { key, message }));
        }
        for (communicator, ranks) in self.rounds.take_left_behind() {
            let members = self.shared.members_of(communicator);
            let everywhere = members.is_some_and(|members| members.len() == self.doors.len());
            self.door.leave_behind(self.shared.cookie, &ranks, communicator, everywhere);
            self.untold.retain(|rank| !ranks.contains(rank));
        }
        for (key, stand) in self.rounds.take_ends() {
            if let Stand::Decided(decision) = stand
                && let Some(by) = decision.members.iter().next()
            {
                // This was decided without this rank, which was taken for silent.
                self.fence(key.communicator, by);
            }
        }
        let due: Vec<u32> = self
            .knocking
            .iter()
            .filter(|(_, at)| at.is_some_and(|at| at <= now))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in due {
            self.knocking.remove(&rank);
            if self.needs(rank) {
                self.knock(rank);
            }
        }
        self.renew(now);
        self.keep_watch(now);
        if self.untold.is_empty() {
            self.await_told.clear();
        }
    }

    fn keep_watch(&mut self, now: Instant) {
        let mut watches = std::mem::take(&mut self.watches);
        watches.retain_mut(|watch| {
            let heard = |rank: &u32| self.heard.get(rank).copied().unwrap_or(watch.since).max(watch.since);
            let gone = watch.ranks.iter().find_map(|rank| Some((*rank, self.gone.get(rank)?.clone())));
            let silent = || {
                let is_silent = |rank: &&u32| now.saturating_duration_since(heard(rank)) > watch.silent_after;
                watch.ranks.iter().find(is_silent).map(|rank| (*rank, "it does not answer".to_owned()))
            };
            let is_wanted = watch.alarm.as_ref().is_some_and(|alarm| !alarm.is_closed());
            match gone.or_else(silent) {
                Some(found) => {
                    let _ = watch.alarm.take().map(|alarm| alarm.send(found));
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
                self.send(rank, encode(&Said::Ping));
            }
        }
        self.watches = watches;
    }

    fn send(&mut self, rank: u32, frame: Bytes) {
        if self.gone.contains_key(&rank) {
            return;
        }
        if let Some(line) = self.lines.get_mut(&rank).and_then(|lines| lines.first_mut()) {
            return line.send(frame);
        }
        let unsent = self.unsent.entry(rank).or_default();
        if unsent.len() < UNSENT_MAX {
            unsent.push(frame);
        }
        self.knock(rank);
    }

    fn knock(&mut self, rank: u32) {
        let (Some(events), Some(at)) = (self.events.upgrade(), self.doors.get(rank as usize)) else { return };
        if self.knocking.contains_key(&rank) || self.gone.contains_key(&rank) {
            return;
        }
        self.knocking.insert(rank, None);
        let patience = self.rounds.longest_silence();
        let knocking = self.knock_with(rank, at.clone(), patience);
        tokio::spawn(async move {
            let outcome = knocking.await;
            let _ = events.send(Event::Knocked { rank, outcome });
        });
    }

    /// Connects to a rank at the given door.
    fn knock_with(
        &self,
        rank: u32,
        at: DoorAddress,
        patience: Duration,
    ) -> impl Future<Output = Result<BoxedStream, NoAnswer>> + use<> {
        let (door, near) = (self.door.clone(), self.near[rank as usize]);
        let credentials = at.credentials(&self.spec);
        let opening = Opening::Line { cookie: self.shared.cookie, from: self.shared.rank };
        async move { door.knock(&at, near, credentials, &opening, patience).await }
    }

    /// Adds a new line to a rank. The new line also sends the frames that other lines may not have delivered.
    fn adopt(&mut self, rank: u32, stream: BoxedStream) {
        let Some(events) = self.events.upgrade() else { return };
        let number = self.next_line;
        self.next_line += 1;
        let mut line = Line::new(rank, number, stream, events);
        let lines = self.lines.entry(rank).or_default();
        let unheard = lines.first().map(|line| line.unheard().to_vec()).unwrap_or_default();
        for frame in unheard.into_iter().chain(self.unsent.remove(&rank).unwrap_or_default()) {
            line.send(frame);
        }
        lines.insert(0, line);
    }
}
