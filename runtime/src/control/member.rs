//! A rank's side of the control plane: the state shared between its threads and its control task.
//!
//! Only the control task reads and writes the connection. The rank's threads change [`Shared`] under its lock, send messages through a
//! queue, and wait on a condition variable with a deadline. Abort flags are raised after the lock is released, because their hooks are
//! foreign code.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kolo_transport::Unpoisoned;
use tokio::sync::{mpsc, watch};

use super::OnSilence;
use super::abort::{AbortCause, AbortFlag, AbortKind, Loss};
use super::board::{Account, StatusBoard};
use super::connect::{Connected, Inbox, Received};
use super::coordinator::write_frames;
use super::forwarding::Forwarder;
use super::host_monitor::{self, Check, HostMonitor};
use super::registered::Registered;
use super::stream::TcpHandle;
use super::wire::{
    FromCoordinator, GatherFailure, GatherKey, PeerInfo, ToCoordinator, decode, encode, remember,
};
use crate::error::LossCause;
use crate::job::Cookie;
use crate::job::limits::Liveness;

/// State shared by the rank's threads and its control task.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: u32,
    pub(crate) cookie: Cookie,
    pub(crate) peers: Vec<PeerInfo>,
    /// Address at which the coordinator listens.
    pub(crate) coordinator_at: Option<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
    queue: mpsc::UnboundedSender<Bytes>,
    /// Passes messages on to other ranks, if enabled.
    forwarder: Option<Forwarder>,
    /// Longest silence allowed to the coordinator's host, once that host is watched.
    watched: watch::Sender<Option<Duration>>,
}

/// State of the connection to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CoordinatorStanding {
    Open,
    /// Rank 0 has left. This is not an error.
    Closed,
    Lost(Loss),
    /// This rank has said goodbye. `answered` is true once the coordinator has answered.
    Left {
        answered: bool,
    },
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) coordinator: CoordinatorStanding,
    pub(crate) lost: BTreeMap<u32, Loss>,
    pub(crate) departed: BTreeSet<u32>,
    pub(crate) gathers: HashMap<GatherKey, OpenGather>,
    /// Whether a communicator was aborted that is no longer registered.
    aborted_before: bool,
    pub(crate) answers: HashMap<u64, Option<Account>>,
    pub(crate) next_ticket: u64,
    pub(super) communicators: HashMap<u64, Registered>,
    /// Aborts of communicators that this rank has not registered yet.
    early_aborts: VecDeque<(u64, AbortCause)>,
    /// Aborts that the coordinator has told this rank of, and whether each was a revocation.
    echoes: VecDeque<(u64, bool)>,
    /// Communicators that this rank has dropped, the last ones.
    dropped: VecDeque<u64>,
    /// Ranks that do not answer and without which the others have gone on. No rank waits for their goodbyes.
    left_behind: BTreeSet<u32>,
    /// Communicators whose other members have gone on without this rank, each with one of these members.
    fenced: HashMap<u64, u32>,
}

/// The reason given to a rank that the others have gone on without.
pub(crate) const FENCED: &str = "the other ranks heard nothing from this rank for too long and have gone on \
                                 without it (KOLO_SILENT_AFTER)";

/// An all-gather that a thread of this rank is waiting for.
#[derive(Debug)]
pub(crate) struct OpenGather {
    pub(crate) members: Arc<[u32]>,
    pub(crate) outcome: Option<GatherOutcome>,
}

/// Outcome of an all-gather.
pub(crate) type GatherOutcome = Result<Vec<Vec<u8>>, GatherFailure>;

pub(super) type Raise = (Arc<AbortFlag>, AbortCause);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Waits for a change of the state, until the given time at most.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Instant) -> MutexGuard<'a, State> {
        let left = until.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, left).unpoisoned().0
    }

    /// Queues a message. If the connection is gone, the message is lost, and the state says so.
    pub(crate) fn send(&self, message: &ToCoordinator) {
        let _ = self.queue.send(encode(message));
    }

    /// Makes both ends watch each other's host from now on.
    pub(crate) fn watch_hosts(&self, limit: Duration) {
        let is_news = self.watched.send_if_modified(|watched| watched.replace(limit).is_none());
        if is_news {
            let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
            self.send(&ToCoordinator::Watch { limit_ms });
        }
    }

    pub(crate) fn register(
        &self,
        communicator: u64,
        members: Arc<[u32]>,
        ancestors: Arc<[u64]>,
    ) -> (Arc<AbortFlag>, Arc<StatusBoard>) {
        let flag = Arc::new(AbortFlag::default());
        let board = Arc::new(StatusBoard::default());
        let registered = Registered::new(members, ancestors, &flag, &board);
        let mut state = self.lock();
        let early = state.early_aborts.iter().find(|(id, _)| *id == communicator).map(|(_, c)| c.clone());
        let cause = early.or_else(|| state.ended_above(&registered, self.rank)).or_else(|| {
            let lost = state.lost.iter().find_map(|(&rank, loss)| registered.loss_of(rank, loss));
            lost.or_else(|| match &state.coordinator {
                CoordinatorStanding::Lost(loss) => registered.coordinator_lost(self.rank, loss),
                _ => None,
            })
        });
        state.dropped.retain(|dropped| *dropped != communicator);
        state.communicators.insert(communicator, registered);
        drop(state);
        if let Some(cause) = cause {
            flag.raise(cause);
        }
        (flag, board)
    }

    pub(crate) fn unregister(&self, communicator: u64, flag: &Arc<AbortFlag>) {
        let mut state = self.lock();
        state.aborted_before |= flag.is_raised();
        if state.communicators.get(&communicator).is_some_and(|r| Arc::ptr_eq(&r.flag, flag)) {
            state.communicators.remove(&communicator);
        }
    }

    /// Lets other ranks know that this one has dropped a communicator.
    pub(crate) fn note_dropped(&self, communicator: u64) {
        remember(&mut self.lock().dropped, communicator);
    }

    fn account_in(&self, communicator: u64) -> Account {
        let state = self.lock();
        if state.dropped.contains(&communicator) {
            return Account::Dropped;
        }
        let board = state.communicators.get(&communicator).and_then(|r| r.board.upgrade());
        drop(state);
        board.map_or(Account::Unknown, |board| Account::Here(board.status()))
    }

    /// Returns the cause of a communicator's abort, whether it is registered or the abort came early.
    pub(crate) fn abort_cause(state: &State, communicator: u64) -> Option<AbortCause> {
        let flag = state.communicators.get(&communicator).and_then(|r| r.flag.cause());
        flag.or_else(|| {
            state.early_aborts.iter().find(|(id, _)| *id == communicator).map(|(_, cause)| cause.clone())
        })
    }

    /// Whether any communicator of this rank was aborted.
    pub(crate) fn anything_aborted(&self) -> bool {
        let state = self.lock();
        state.aborted_before
            || !state.lost.is_empty()
            || state.communicators.values().any(|r| r.flag.is_raised())
    }

    /// Wakes the waiting threads of this rank after one of them has aborted.
    pub(crate) fn wake(&self) {
        let _state = self.lock();
        self.changed.notify_all();
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State) -> Vec<Raise>) {
        let raise = change(&mut self.lock());
        for (flag, cause) in raise {
            flag.raise(cause);
        }
        self.wake();
    }

    /// Handles the end of the connection without a goodbye.
    fn coordinator_gone(&self, loss: &Loss) {
        self.change(|state| match state.coordinator {
            CoordinatorStanding::Open => {
                tracing::warn!(rank = self.rank, %loss, "rank 0 is lost");
                state.coordinator = CoordinatorStanding::Lost(loss.clone());
                let raise = |r: &Registered| r.coordinator_lost(self.rank, loss).map(|c| (r.flag.clone(), c));
                state.communicators.values().filter_map(raise).collect()
            }
            CoordinatorStanding::Left { .. } => {
                state.coordinator = CoordinatorStanding::Left { answered: true };
                Vec::new()
            }
            CoordinatorStanding::Closed | CoordinatorStanding::Lost(_) => Vec::new(),
        });
    }

    /// Handles a message. If it is the last one, returns how the connection ends.
    fn handle_last(&self, message: FromCoordinator) -> Option<Loss> {
        let is_last = matches!(message, FromCoordinator::Goodbye | FromCoordinator::Closing);
        self.handle(message);
        is_last.then(|| closed("the coordinator has closed"))
    }

    fn handle(&self, message: FromCoordinator) {
        match message {
            FromCoordinator::Gathered { key, blobs } => self.change(|state| {
                if let Some(open) = state.gathers.get_mut(&key) {
                    open.outcome = Some(Ok(blobs));
                }
                Vec::new()
            }),
            FromCoordinator::GatherFailed { key, failure } => self.change(|state| {
                if let Some(open) = state.gathers.get_mut(&key) {
                    open.outcome = Some(Err(failure));
                }
                Vec::new()
            }),
            FromCoordinator::Aborted { communicator, cause } => {
                // The coordinator tells all members.
                remember(&mut self.lock().echoes, (communicator, cause.kind == AbortKind::Revoked));
                let _ = self.aborted_by_member(communicator, cause);
            }
            FromCoordinator::Lost { rank, loss } => self.change(|state| {
                let raise = |r: &Registered| r.loss_of(rank, &loss).map(|c| (r.flag.clone(), c));
                let raised = state.communicators.values().filter_map(raise).collect();
                state.lost.insert(rank, loss.clone());
                raised
            }),
            FromCoordinator::Departed { ranks } => self.change(|state| {
                state.departed.extend(ranks);
                Vec::new()
            }),
            FromCoordinator::Asked { ticket, asker, communicator } => {
                let account = self.account_in(communicator);
                self.send(&ToCoordinator::Answer { ticket, asker, account });
            }
            FromCoordinator::Answered { ticket, account } => self.change(|state| {
                if let Some(slot) = state.answers.get_mut(&ticket) {
                    *slot = Some(account);
                }
                Vec::new()
            }),
            FromCoordinator::Goodbye => self.change(|state| {
                state.coordinator = CoordinatorStanding::Left { answered: true };
                Vec::new()
            }),
            FromCoordinator::Closing => self.change(|state| {
                if state.coordinator == CoordinatorStanding::Open {
                    state.coordinator = CoordinatorStanding::Closed;
                    state.departed.insert(0);
                }
                Vec::new()
            }),
            FromCoordinator::Forward { key, message } => self.receive_and_forward(key, message),
            FromCoordinator::Heartbeat
            | FromCoordinator::Waiting { .. }
            | FromCoordinator::Welcome { .. }
            | FromCoordinator::Refused(_) => {}
        }
    }

    /// Handles the blobs of an all-gather that this rank passes on to others.
    fn receive_and_forward(&self, key: Option<GatherKey>, message: Vec<u8>) {
        // A welcome that arrives again is not passed on again.
        let Some(awaited) = key else { return };
        let Ok(inner @ FromCoordinator::Gathered { key, .. }) = decode(&message) else { return };
        if key != awaited {
            return;
        }
        // The same blobs may also arrive directly from the coordinator.
        let open = |state: &State| {
            state.gathers.get(&key).filter(|open| open.outcome.is_none()).map(|open| open.members.clone())
        };
        let members = open(&self.lock());
        self.send(&ToCoordinator::Received { key: Some(key) });
        if let Some(members) = members {
            self.forward(Some(key), message, &members);
            self.handle(inner);
        }
    }

    fn forward(&self, key: Option<GatherKey>, message: Vec<u8>, receivers: &[u32]) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.forward(&FromCoordinator::Forward { key, message }, receivers, &self.peers);
        }
    }

    /// Returns how many bytes this rank has passed on to others.
    pub(crate) fn forwarded_bytes(&self) -> u64 {
        self.forwarder.as_ref().map_or(0, Forwarder::forwarded_bytes)
    }

    /// Waits until all messages to be passed on have been sent, at most for `patience`.
    pub(crate) fn wait_until_forwarded(&self, patience: Duration) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.wait(patience);
        }
    }

    /// Handles a member's abort of a communicator. Returns the communicator's members if this rank is one of them and the abort is news
    /// to it.
    pub(crate) fn aborted_by_member(&self, communicator: u64, cause: AbortCause) -> Option<Arc<[u32]>> {
        let mut told = None;
        self.change(|state| {
            let mut raised = state.end_below(communicator, self.rank, &cause);
            match state.communicators.get(&communicator) {
                Some(registered) => {
                    let is_given_up = registered.flag.note_given_up();
                    let is_revoked = cause.kind == AbortKind::Revoked && registered.flag.note_revoked();
                    told = (is_given_up || is_revoked).then(|| registered.members.clone());
                    raised.push((registered.flag.clone(), cause));
                }
                None => remember(&mut state.early_aborts, (communicator, cause)),
            }
            raised
        });
        told
    }

    /// Whether the coordinator has told its members of an abort of this kind, or of a revocation.
    pub(crate) fn has_echo(&self, communicator: u64, kind: AbortKind) -> bool {
        let state = self.lock();
        let mut echoes = state.echoes.iter().filter(|(id, _)| *id == communicator);
        echoes.any(|(_, is_revoked)| *is_revoked || kind != AbortKind::Revoked)
    }

    /// Returns the world ranks of a communicator's members, if it is registered and this rank has not left the job.
    pub(crate) fn members_of(&self, communicator: u64) -> Option<Arc<[u32]>> {
        let state = self.lock();
        if matches!(state.coordinator, CoordinatorStanding::Left { .. }) {
            return None; // Rank 0 may remain for some time so that the others can leave in good order.
        }
        state.communicators.get(&communicator).map(|registered| registered.members.clone())
    }

    /// Returns the rank in a communicator of one of its members.
    pub(crate) fn place_in(&self, communicator: u64, rank: u32) -> Option<u32> {
        self.lock().communicators.get(&communicator)?.index(rank)
    }

    /// Returns the communicators that this rank shares with another rank, each with the other's rank in it.
    pub(crate) fn communicators_with(&self, rank: u32) -> Vec<(u64, u32)> {
        let state = self.lock();
        state
            .communicators
            .iter()
            .filter_map(|(id, registered)| Some((*id, registered.index(rank)?)))
            .collect()
    }

    /// Returns the ranks that count as lost because of their silence. They are not known to have ended.
    pub(crate) fn silent(&self) -> Vec<u32> {
        let state = self.lock();
        let is_silent = |loss: &Loss| matches!(loss.cause, LossCause::Silent(_));
        let first = match &state.coordinator {
            CoordinatorStanding::Lost(loss) if is_silent(loss) => Some(0),
            _ => None,
        };
        let others = state.lost.iter().filter(|(_, loss)| is_silent(loss)).map(|(rank, _)| *rank);
        first.into_iter().chain(others).collect()
    }

    /// Records that the members of all ranks' communicator have gone on without these ranks.
    pub(crate) fn leave_behind(&self, ranks: impl Iterator<Item = u32>) {
        self.lock().left_behind.extend(ranks);
    }

    /// Returns the ranks that were left behind and have not said goodbye.
    pub(crate) fn left_behind(&self) -> Vec<u32> {
        let state = self.lock();
        state.left_behind.difference(&state.departed).copied().collect()
    }

    /// Records that the others have gone on without this rank. `by` is one of them.
    pub(crate) fn fence(&self, communicator: u64, by: u32) {
        tracing::warn!(rank = self.rank, "the other members have gone on without this rank");
        self.change(|state| {
            state.fenced.insert(communicator, by);
            let cause = AbortCause::new(by, AbortKind::Fenced, FENCED);
            let flag = state.communicators.get(&communicator).map(|registered| registered.flag.clone());
            flag.map(|flag| (flag, cause)).into_iter().collect()
        });
    }

    /// Returns one of the members that have gone on without this rank, if they have.
    pub(crate) fn fenced_by(&self, communicator: u64) -> Option<u32> {
        self.lock().fenced.get(&communicator).copied()
    }

    fn observe_boards(&self, now: Instant) {
        let state = self.lock();
        for board in state.communicators.values().filter_map(|r| r.board.upgrade()) {
            let _ = board.observe(now);
        }
    }
}

/// Starts the control task of a connected rank.
pub(crate) fn serve(
    rank: u32,
    mut connected: Connected,
    liveness: Liveness,
    forwarder: Option<Forwarder>,
) -> Arc<Shared> {
    let (queue, frames) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        rank,
        cookie: connected.cookie,
        peers: std::mem::take(&mut connected.peers),
        coordinator_at: connected.coordinator_at,
        state: Mutex::new(State {
            coordinator: CoordinatorStanding::Open,
            lost: BTreeMap::new(),
            departed: BTreeSet::new(),
            gathers: HashMap::new(),
            aborted_before: false,
            answers: HashMap::new(),
            next_ticket: 1,
            communicators: HashMap::new(),
            early_aborts: VecDeque::new(),
            echoes: VecDeque::new(),
            dropped: VecDeque::new(),
            left_behind: BTreeSet::new(),
            fenced: HashMap::new(),
        }),
        changed: Condvar::new(),
        queue,
        forwarder,
        watched: watch::Sender::new(None),
    });
    if let Some(message) = connected.welcome.take() {
        shared.send(&ToCoordinator::Received { key: None });
        let everybody: Vec<u32> = (0..shared.peers.len() as u32).collect();
        shared.forward(None, message, &everybody);
    }
    tokio::spawn(run(shared.clone(), connected, frames, liveness));
    shared
}

/// Handles messages from the coordinator and notes the time of each, until the coordinator is lost.
async fn listen(
    shared: &Shared,
    inbox: &mut Inbox,
    early: Vec<FromCoordinator>,
    beats: &Mutex<Instant>,
) -> Loss {
    for message in early {
        if let Some(loss) = shared.handle_last(message) {
            return loss;
        }
    }
    loop {
        let loss = match inbox.next().await {
            Received::Frame(payload) => match decode::<FromCoordinator>(&payload) {
                Ok(message) => {
                    *beats.lock().unpoisoned() = Instant::now();
                    shared.handle_last(message)
                }
                Err(error) => {
                    let text = format!("rank 0 broke the protocol: {error}");
                    Some(Loss::new(LossCause::Protocol, text))
                }
            },
            // Messages that other members pass on do not prove that the coordinator is alive.
            Received::Forwarded(payload) => match decode::<FromCoordinator>(&payload) {
                Ok(message @ FromCoordinator::Forward { .. }) => shared.handle_last(message),
                _ => None,
            },
            Received::Ended(Ok(())) => Some(closed("its connection was closed without a goodbye")),
            Received::Ended(Err(error)) => Some(closed(&format!("its connection broke: {error}"))),
        };
        if let Some(loss) = loss {
            return loss;
        }
    }
}

async fn run(
    shared: Arc<Shared>,
    connected: Connected,
    frames: mpsc::UnboundedReceiver<Bytes>,
    liveness: Liveness,
) {
    let Connected { mut inbox, writer, on_silence, early, tcp, .. } = connected;
    let fails = on_silence == OnSilence::Fail;
    let writing = tokio::spawn(write_frames(writer, frames, |_| ()));
    let beat = encode(&ToCoordinator::Heartbeat);
    let beats = Mutex::new(Instant::now());
    let reading = listen(&shared, &mut inbox, early, &beats);
    let beating = async {
        let mut due = Instant::now() + liveness.heartbeat;
        let mut suspected = false;
        loop {
            // Silence must be noticed when it reaches the limit, not at the next heartbeat.
            let silent_at = *beats.lock().unpoisoned() + liveness.dead_after;
            let wakeup = if fails { due.min(silent_at) } else { due };
            tokio::time::sleep_until(wakeup.into()).await;
            let now = Instant::now();
            let late = now.saturating_duration_since(wakeup);
            if now >= due {
                shared.observe_boards(now);
                due = now + liveness.heartbeat;
                if fails {
                    let _ = shared.queue.send(beat.clone());
                }
            }
            if !fails {
                continue;
            }
            let mut last = beats.lock().unpoisoned();
            if late > liveness.heartbeat {
                *last = now; // this process was itself stopped, so rank 0's messages are still unread
            }
            let silent = now.saturating_duration_since(*last);
            if silent >= liveness.dead_after {
                let text = format!("silent for {:.1} s", silent.as_secs_f64());
                return Loss::new(LossCause::Silent(silent), text);
            }
            if silent >= liveness.suspect_after && !suspected {
                tracing::warn!(
                    rank = shared.rank,
                    "rank 0 has been silent for {:.0} s",
                    silent.as_secs_f64()
                );
            }
            suspected = silent >= liveness.suspect_after;
        }
    };
    let loss = tokio::select! {
        loss = reading => loss,
        loss = beating => loss,
        loss = watching(&shared, tcp.filter(|_| fails), &beat) => loss,
    };
    writing.abort();
    shared.coordinator_gone(&loss);
}

/// Returns when the coordinator's host has been silent for too long. Starts once the host is watched.
async fn watching(shared: &Shared, tcp: Option<TcpHandle>, beat: &Bytes) -> Loss {
    let mut watched = shared.watched.subscribe();
    let limit = watched.wait_for(Option::is_some).await.ok().and_then(|limit| *limit);
    let (Some(limit), Some(tcp)) = (limit, tcp) else { return std::future::pending().await };
    let mut monitor = HostMonitor::new(tcp, None, limit, shared.peers.len() as u32, Instant::now());
    loop {
        tokio::time::sleep_until(monitor.due().into()).await;
        match monitor.check(Instant::now()) {
            Check::Heartbeat => drop(shared.queue.send(beat.clone())),
            Check::Wait => {}
            Check::Silent(silence) => {
                return Loss::new(LossCause::Silent(silence), host_monitor::text(silence));
            }
        }
    }
}

fn closed(text: &str) -> Loss {
    Loss::new(LossCause::Closed, text)
}

/// Waits until the coordinator has answered the goodbye, at most for `patience`.
pub(crate) fn wait_for_goodbye(shared: &Shared, patience: Duration) {
    let until = Instant::now() + patience;
    let mut state = shared.lock();
    while state.coordinator == (CoordinatorStanding::Left { answered: false }) && Instant::now() < until {
        state = shared.wait(state, until);
    }
}
