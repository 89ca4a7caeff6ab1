//! Cooperation of a job's members without the coordinator: they reach agreements, and watch each other while they form
//! a new group.
//!
//! Per job and process, one task owns the connections to other members and the open agreements (`rounds`, state
//! machines of [`kolo_membership`]). A connection is opened when there is a message to send, and opened again when it
//! ends. Only a refusal by the system, or another process at its port, proves that the member has ended, and only at an
//! address that is known to lead to its host (`evidence`).

pub(super) mod acceptor;
mod attempts;
mod connection;
pub(super) mod detours;
mod dissemination;
pub(super) mod evidence;
mod in_process;
pub(super) mod listener;
pub(super) mod missing;
mod reconnects;
pub(super) mod rounds;
pub(super) mod snapshots;
pub(super) mod waiting_list;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kolo_membership::{Decision, Message, State, Vote};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::abort::AbortCause;
use super::coordinator::BoxedStream;
use super::member::Shared;
use super::regroup::Absence;
use super::runtime::ControlRuntime;
use super::wire::encode;
use crate::job::limits::{ABORT_ECHO, AGREEMENT_BEAT};
use crate::join::JoinSpec;
use acceptor::{Opening, Scope};
use connection::Connection;
use detours::Detours;
use dissemination::Abort;
use evidence::{Seen, localities};
use listener::{ConnectError, Listener, ListenerAddress, Locality};
use missing::{Missing, Silent};
use reconnects::Reconnects;
use rounds::{Receipt, RoundKey, Rounds};
use watches::Watch;

/// Most frames that wait for a connection to a member. Frames beyond them are lost, and are sent again later.
const UNSENT_MAX: usize = 64;

/// A message between members.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PeerMessage {
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
    Stranded { silent: Vec<Silent> },
    /// This member's deadline passed.
    Late(Missing),
}

/// An event for the task.
pub(super) enum Event {
    /// Another member has connected.
    Accepted {
        rank: u32,
        stream: BoxedStream,
    },
    Connected {
        rank: u32,
        outcome: Result<BoxedStream, ConnectError>,
    },
    /// An attempt has ended to replace a connection whose other end acknowledges nothing.
    Reconnected {
        rank: u32,
        outcome: Result<BoxedStream, ConnectError>,
    },
    Received {
        rank: u32,
        message: PeerMessage,
    },
    Ended {
        rank: u32,
        connection: u64,
    },
    Vote {
        key: RoundKey,
        members: Arc<[u32]>,
        vote: Vote,
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
        alarm: oneshot::Sender<Absence>,
    },
    Abort(Abort),
    /// An abort that the coordinator has been asked to tell.
    AbortUnlessEchoed(Abort),
    /// A member asks for a connection to a rank that it does not reach.
    Detour {
        to: u32,
        stream: BoxedStream,
    },
    /// A sender that is dropped once every rank that was told of an abort has answered or is gone.
    AwaitDelivery(std::sync::mpsc::SyncSender<()>),
}

type Reply = std::sync::mpsc::Sender<Agreed>;

/// A handle to the task. The task ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Peers {
    events: mpsc::UnboundedSender<Event>,
    listeners: Arc<[ListenerAddress]>,
}

impl Peers {
    /// Returns the listeners of all ranks.
    pub(super) fn listeners(&self) -> &[ListenerAddress] {
        &self.listeners
    }

    /// Starts the task. From now on, connections from other members are accepted.
    pub(super) fn start(
        runtime: &ControlRuntime,
        spec: &JoinSpec,
        shared: &Arc<Shared>,
        listener: Arc<Listener>,
        listeners: Arc<[ListenerAddress]>,
        seen: &[Option<Seen>],
    ) -> Self {
        let (events, inbox) = mpsc::unbounded_channel();
        listener.move_in(shared.cookie, &events);
        let task = Task {
            localities: localities(shared, &listeners, seen),
            rounds: Rounds::new(shared.rank, Instant::now()),
            shared: shared.clone(),
            listener,
            listeners: listeners.clone(),
            spec: spec.clone(),
            events: events.downgrade(),
            inbox,
            connections: BTreeMap::new(),
            next_connection: 0,
            connecting: BTreeMap::new(),
            failures: BTreeMap::new(),
            unsent: BTreeMap::new(),
            last_heard: BTreeMap::new(),
            gone: BTreeMap::new(),
            watches: Vec::new(),
            next_ping: Instant::now(),
            reconnects: Reconnects::new(Instant::now()),
            awaiting_ack: BTreeSet::new(),
            delivery_waiters: Vec::new(),
            unechoed: Vec::new(),
        };
        runtime.spawn(task.run());
        Self { events, listeners }
    }

    /// Returns the listener of a rank.
    pub(super) fn listener(&self, rank: u32) -> Option<ListenerAddress> {
        self.listeners.get(rank as usize).cloned()
    }

    /// Agrees with the members of a communicator. All members vote in the same rounds in the same order.
    /// Blocks until the deadline at most. With `grace`, the members then wait no longer for those that have not come,
    /// and the call blocks for that much longer.
    pub(super) fn agree(
        &self,
        key: RoundKey,
        members: &Arc<[u32]>,
        vote: Vote,
        silent_after: Duration,
        deadline: Instant,
        grace: Option<Duration>,
    ) -> Agreed {
        let lost = || Agreed::Late(Missing::default());
        let (reply, outcome) = std::sync::mpsc::channel();
        let _ = self.events.send(Event::Vote { key, members: members.clone(), vote, silent_after, reply });
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

    /// Watches members. The result reports one that is gone or silent, or that has come to agreement `later`, which
    /// shows that it has given up the present one.
    pub(super) fn watch(
        &self,
        ranks: Vec<u32>,
        later: RoundKey,
        silent_after: Duration,
    ) -> oneshot::Receiver<Absence> {
        let (alarm, alarmed) = oneshot::channel();
        let _ = self.events.send(Event::Watch { ranks, later, silent_after, alarm });
        alarmed
    }

    /// Tells members that a communicator is aborted. They pass it on: see [`dissemination`].
    pub(super) fn abort(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        let _ = self.events.send(Event::Abort(Abort { members: members.clone(), communicator, cause }));
    }

    /// Tells members that a communicator is aborted, unless the coordinator soon shows that it has told them.
    pub(super) fn abort_unless_echoed(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        let abort = Abort { members: members.clone(), communicator, cause };
        let _ = self.events.send(Event::AbortUnlessEchoed(abort));
    }

    /// Blocks until the ranks that this one tells of aborts have heard of them, are gone, or do not answer; at most for
    /// `patience`. Aborts that still wait for the coordinator's echo are told at once.
    pub(super) fn wait_until_delivered(&self, patience: Duration) {
        let (told, all) = std::sync::mpsc::sync_channel(1);
        let _ = self.events.send(Event::AwaitDelivery(told));
        // Nothing is ever sent here. The other end is dropped.
        let _ = all.recv_timeout(patience);
    }
}

struct Task {
    localities: Vec<Locality>,
    rounds: Rounds,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    listeners: Arc<[ListenerAddress]>,
    spec: JoinSpec,
    events: mpsc::WeakUnboundedSender<Event>,
    inbox: mpsc::UnboundedReceiver<Event>,
    /// Connections to each rank, the newest first. There are two if both have connected at the same time, or if one was
    /// replaced.
    connections: BTreeMap<u32, Vec<Connection>>,
    next_connection: u64,
    /// Members to which an attempt to connect is under way (`None`), or the time before which it is not repeated.
    connecting: BTreeMap<u32, Option<Instant>>,
    /// Number of failed attempts in a row.
    failures: BTreeMap<u32, u32>,
    unsent: BTreeMap<u32, Vec<Bytes>>,
    last_heard: BTreeMap<u32, Instant>,
    gone: BTreeMap<u32, String>,
    watches: Vec<Watch>,
    next_ping: Instant,
    reconnects: Reconnects,
    /// Ranks that were told of an abort and have not answered.
    awaiting_ack: BTreeSet<u32>,
    delivery_waiters: Vec<std::sync::mpsc::SyncSender<()>>,
    /// Aborts that the coordinator should tell, each with the time until which it may.
    unechoed: Vec<(Instant, Abort)>,
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
            self.advance();
        }
        for connection in self.connections.values().flatten() {
            connection.end();
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let ping = (!self.watches.is_empty()).then_some(self.next_ping);
        let connect = self.connecting.values().copied().flatten().min();
        let rounds = self.rounds.next_wakeup();
        // A member that waits for an answer also checks its connections.
        let reconnect = rounds.or(ping).and(self.reconnects.due());
        let unechoed = self.unechoed.iter().map(|(due, _)| *due).min();
        [rounds, ping, connect, reconnect, unechoed].into_iter().flatten().min()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { rank, stream }
                if (rank as usize) < self.listeners.len() && rank != self.shared.rank =>
            {
                self.adopt(rank, stream);
            }
            Event::Accepted { .. } => {}
            Event::Connected { rank, outcome } => self.connect_ended(rank, outcome),
            Event::Reconnected { rank, outcome } => self.reconnect_ended(rank, outcome),
            Event::Received { rank, message } => {
                self.last_heard.insert(rank, Instant::now());
                self.rounds.note_reached(rank);
                self.receive(rank, message);
            }
            Event::Ended { rank, connection } => {
                let connections = self.connections.entry(rank).or_default();
                connections.retain(|other| other.number != connection);
                if connections.is_empty() {
                    self.awaiting_ack.remove(&rank);
                }
                // Another attempt to connect shows whether the member has ended.
                if connections.is_empty() && self.needs(rank) {
                    self.connect(rank);
                }
            }
            Event::Vote { key, members, vote, silent_after, reply } => {
                let known_gone: BTreeSet<u32> = self.gone.keys().copied().collect();
                let suspects = self.shared.silent();
                self.rounds.vote(key, members, vote, silent_after, reply, (&known_gone, &suspects));
            }
            Event::WaitNoLonger { key } => self.rounds.wait_no_longer(key),
            Event::GiveUp { key } => self.rounds.give_up(key),
            Event::Watch { ranks, later, silent_after, alarm } => {
                let (since, alarm) = (Instant::now(), Some(alarm));
                self.next_ping = since;
                self.watches.push(Watch { ranks, later, silent_after, since, alarm });
            }
            Event::Detour { to, stream } => self.serve_detour(to, stream),
            Event::Abort(abort) => self.disseminate(abort),
            Event::AbortUnlessEchoed(abort) => self.unechoed.push((Instant::now() + ABORT_ECHO, abort)),
            Event::AwaitDelivery(told) => {
                self.delivery_waiters.push(told);
                self.disseminate_unechoed(None);
            }
        }
    }

    fn connect_ended(&mut self, rank: u32, outcome: Result<BoxedStream, ConnectError>) {
        match outcome {
            Ok(stream) => {
                self.connecting.remove(&rank);
                self.failures.remove(&rank);
                self.rounds.note_reached(rank);
                self.adopt(rank, stream);
            }
            Err(ConnectError::Gone(text)) => self.gone(rank, text),
            Err(ConnectError::LeftBehind(told)) => {
                // This must come before `gone`: a member that counts as gone would help to make a quorum.
                self.left_behind(rank, |communicator| told.is_of(communicator));
                self.gone(rank, ConnectError::LeftBehind(told).text());
            }
            Err(ConnectError::Left(decided)) => {
                // The decisions too come before `gone`, after which this member might decide otherwise.
                let known_gone: BTreeSet<u32> = self.gone.keys().copied().collect();
                for (key, decision) in decided.clone() {
                    let members = self.shared.members_of(key.communicator);
                    self.rounds.receive(rank, key, Message::Decided(decision), members, &known_gone);
                }
                self.gone(rank, ConnectError::Left(decided).text());
            }
            Err(
                error @ (ConnectError::Silent(_) | ConnectError::Refused(_) | ConnectError::Misfit { .. }),
            ) => {
                let text = error.text();
                tracing::debug!(rank = self.shared.rank, silent = rank, text, "no connection to a member");
                self.rounds.note_unreachable(rank, text);
                self.awaiting_ack.remove(&rank);
                let failures = self.failures.entry(rank).or_default();
                *failures += 1;
                let pause = listener::pause_after(*failures);
                if pause == AGREEMENT_BEAT {
                    self.unsent.remove(&rank);
                }
                self.connecting.insert(rank, Some(Instant::now() + pause));
            }
        }
    }

    /// Whether this member waits for an answer of the rank.
    fn needs(&self, rank: u32) -> bool {
        self.rounds.needs(rank) || self.watches.iter().any(|watch| watch.ranks.contains(&rank))
    }

    fn gone(&mut self, rank: u32, text: String) {
        self.connecting.remove(&rank);
        self.failures.remove(&rank);
        self.unsent.remove(&rank);
        self.awaiting_ack.remove(&rank);
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

    fn receive(&mut self, rank: u32, message: PeerMessage) {
        match message {
            PeerMessage::Round { key, message } => {
                self.note_given_up(rank, key);
                let members = self.shared.members_of(key.communicator);
                let known_gone: BTreeSet<u32> = self.gone.keys().copied().collect();
                match self.rounds.receive(rank, key, message, members, &known_gone) {
                    Receipt::Taken => {}
                    Receipt::Closed => self.send(rank, encode(&PeerMessage::Closed { key })),
                    Receipt::LeftBehind => {
                        self.send(rank, encode(&PeerMessage::LeftBehind { communicator: key.communicator }));
                    }
                }
            }
            PeerMessage::LeftBehind { communicator } => self.left_behind(rank, |id| id == communicator),
            PeerMessage::Closed { key } => self.rounds.closed(rank, key),
            PeerMessage::Abort { communicator, cause } => {
                if let Some(members) = self.shared.aborted_by_member(communicator, cause.clone()) {
                    self.disseminate(Abort { members, communicator, cause });
                }
            }
            PeerMessage::Ping => self.send(rank, encode(&PeerMessage::Pong)),
            PeerMessage::Pong => {
                self.awaiting_ack.remove(&rank);
            }
        }
    }

    /// Runs after every event: lets time pass, and sends the messages that follow.
    fn advance(&mut self) {
        let now = Instant::now();
        self.rounds.tick();
        for (rank, key, message) in self.rounds.take_messages() {
            self.send(rank, encode(&PeerMessage::Round { key, message }));
        }
        for decided in self.rounds.take_decided() {
            self.listener.decide(self.shared.cookie, decided);
        }
        self.rounds.forget_closed(|communicator| self.shared.members_of(communicator).is_some());
        for (communicator, ranks) in self.rounds.take_left_behind() {
            let members = self.shared.members_of(communicator);
            let has_all = members.is_some_and(|members| members.len() == self.listeners.len());
            let scope = if has_all { Scope::Job } else { Scope::Some };
            self.listener.leave_behind(self.shared.cookie, &ranks, communicator, scope);
            self.awaiting_ack.retain(|rank| !ranks.contains(rank));
            if scope == Scope::Job {
                let silent = ranks.into_iter().filter(|rank| !self.gone.contains_key(rank));
                self.shared.leave_behind(silent);
            }
        }
        for (key, state) in self.rounds.take_ends() {
            if let State::Decided(decision) = state
                && let Some(by) = decision.members.iter().next()
            {
                // This was decided without this rank, which was taken for silent.
                self.fence(key.communicator, by);
            }
        }
        self.rounds.reply();
        let due: Vec<u32> = self
            .connecting
            .iter()
            .filter(|(_, at)| at.is_some_and(|at| at <= now))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in due {
            self.connecting.remove(&rank);
            if self.needs(rank) {
                self.connect(rank);
            }
        }
        self.disseminate_unechoed(Some(now));
        self.reconnect_slow(now);
        self.keep_watch(now);
        if self.awaiting_ack.is_empty() {
            self.delivery_waiters.clear();
        }
    }

    fn send(&mut self, rank: u32, frame: Bytes) {
        if self.gone.contains_key(&rank) {
            return;
        }
        if let Some(connection) =
            self.connections.get_mut(&rank).and_then(|connections| connections.first_mut())
        {
            return connection.send(frame);
        }
        let unsent = self.unsent.entry(rank).or_default();
        if unsent.len() < UNSENT_MAX {
            unsent.push(frame);
        }
        self.connect(rank);
    }

    fn connect(&mut self, rank: u32) {
        let (Some(events), Some(at)) = (self.events.upgrade(), self.listeners.get(rank as usize)) else {
            return;
        };
        if self.connecting.contains_key(&rank) || self.gone.contains_key(&rank) {
            return;
        }
        self.connecting.insert(rank, None);
        let patience = self.rounds.longest_silence();
        let connecting = self.connecting_to(rank, at.clone(), patience, self.detours_to(rank));
        tokio::spawn(async move {
            let outcome = connecting.await;
            let _ = events.send(Event::Connected { rank, outcome });
        });
    }

    /// Connects to a rank at the given listener, perhaps by a third member.
    fn connecting_to(
        &self,
        rank: u32,
        at: ListenerAddress,
        patience: Duration,
        detours: Option<Detours>,
    ) -> impl Future<Output = Result<BoxedStream, ConnectError>> + use<> {
        let (listener, locality) = (self.listener.clone(), self.localities[rank as usize]);
        let credentials = at.credentials(&self.spec);
        let opening = Opening::Connect { cookie: self.shared.cookie, from: self.shared.rank };
        async move {
            let reaching = listener.reach(&at, locality, credentials, &opening, patience, detours.as_ref());
            reaching.await.map(|reached| reached.stream)
        }
    }

    /// Adds a new connection to a rank. The new connection also sends the frames that other connections may not have
    /// delivered. Connections that it replaces end.
    fn adopt(&mut self, rank: u32, stream: BoxedStream) {
        let Some(events) = self.events.upgrade() else { return };
        let number = self.next_connection;
        self.next_connection += 1;
        let mut connection = Connection::new(rank, number, stream, &events);
        let connections = self.connections.entry(rank).or_default();
        let unacknowledged =
            connections.first().map(|connection| connection.unacknowledged().to_vec()).unwrap_or_default();
        for frame in unacknowledged.into_iter().chain(self.unsent.remove(&rank).unwrap_or_default()) {
            connection.send(frame);
        }
        connection::put_first(connections, connection);
    }
}
