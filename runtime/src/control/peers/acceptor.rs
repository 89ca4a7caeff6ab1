//! The acceptor of a process, which accepts connections at its listener and hands each to the service that it wants.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use kolo_membership::Decision;
use kolo_transport::tcp::{HELLO_MAGIC_BYTES, HELLO_START_BYTES, Port, RelayCall};
use kolo_transport::{Unpoisoned, Unshared};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::Event;
use super::listener::RegroupId;
use super::rounds::RoundKey;
use super::snapshots::SnapshotServer;
use super::waiting_list::{GroupId, WaitingList};
use crate::control::OnSilence;
use crate::control::connect::Received;
use crate::control::coordinator::{BoxedStream, Coordinator, CoordinatorCounters, reject};
use crate::control::handshake::{Credentials, Start, greet_after, is_for_member, read_magic, read_start};
use crate::control::incoming::{ACCEPTED_MAX, Accepted, Incoming};
use crate::control::pending::{PendingConnections, ProgressCell};
use crate::control::relay::{Relay, read_call};
use crate::control::sealed::SessionKeys;
use crate::control::stream;
use crate::control::wire::{decode, encode, invalid, read_frame};
use crate::job::Cookie;
use crate::job::limits::{
    ACCEPT_PAUSE, FORWARD_TIMEOUT, HANDSHAKE_TIMEOUT, MAX_DECIDED, MAX_FRAME_FROM_COORDINATOR,
    MAX_HELLO_FRAME, MAX_LEFT_BEHIND, MAX_REMEMBERED,
};

/// First frame on a new connection. It says what the caller wants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum Opening {
    /// A member of the job with this cookie opens a connection.
    Connect { cookie: Cookie, from: u32 },
    /// A survivor, or a newcomer that was admitted, joins the coordinator with this id.
    Join { regroup_id: RegroupId },
    /// A newcomer wants to become a member of this group, and waits.
    Wait { group: GroupId },
    /// A member of the job passes on a message of the coordinator.
    Forward,
    /// A newcomer fetches the state of this group.
    State { group: GroupId },
    /// A member of the job with this cookie asks for a connection to the listener of a rank that it does not reach.
    Detour { cookie: Cookie, to: u32 },
}

/// Answer to the first frame.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum Answer {
    Taken,
    /// The job or group has no members here any more.
    Unknown,
    /// The job or group has no members here any more, and this member has gone on without the caller before.
    LeftBehind(LeftBehind),
    /// The job or group has no members here any more; its latest agreements were decided so.
    Left(Vec<Decided>),
}

/// An agreement and its decision.
pub(in crate::control) type Decided = (RoundKey, Decision);

/// Which ranks of the job a communicator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All of them, so that a rank that it goes on without is left behind in every communicator.
    Job,
    Some,
}

/// Communicators whose members have gone on without a rank that may not know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) struct LeftBehind {
    /// Whether one of these communicators had all ranks of the job, so that the rank is left behind in every
    /// communicator.
    everywhere: bool,
    communicators: Vec<u64>,
}

impl LeftBehind {
    /// Whether the rank was left behind in this communicator.
    pub(super) fn is_of(&self, communicator: u64) -> bool {
        self.everywhere || self.communicators.contains(&communicator)
    }

    fn add(&mut self, communicator: u64, scope: Scope) {
        self.everywhere |= scope == Scope::Job;
        if !self.communicators.contains(&communicator) && self.communicators.len() < MAX_LEFT_BEHIND {
            self.communicators.push(communicator);
        }
    }
}

/// The services of a process that are reached through its listener.
#[derive(Default)]
pub(super) struct Services {
    pub(super) worlds: HashMap<Cookie, mpsc::WeakUnboundedSender<Event>>,
    pub(super) coordinators: HashMap<RegroupId, Coordinator>,
    /// Regroupings that are over. A latecomer to one of them is told so.
    pub(super) over: VecDeque<RegroupId>,
    /// Members left behind, by job and rank. They are told so even after this process has left the job. Otherwise a
    /// member that connects would take the listener's owner for one that has left, and if all owners counted as gone,
    /// it could form a quorum of one.
    pub(super) left_behind: VecDeque<((Cookie, u32), LeftBehind)>,
    /// The latest decisions of each job. They are told even after this process has left the job. Otherwise a member that
    /// has not heard of one would take this one for a process that has ended, and could decide without it.
    decided: VecDeque<(Cookie, Vec<Decided>)>,
    pub(super) waiting_lists: HashMap<GroupId, Weak<WaitingList>>,
    pub(super) snapshot_servers: HashMap<GroupId, Weak<SnapshotServer>>,
    /// Queue for messages that ranks pass on.
    pub(super) forwarded: Option<mpsc::Sender<Received>>,
    /// Queue for ranks that join, if they join at this port too.
    joins: Option<mpsc::Sender<Accepted>>,
}

impl Services {
    /// Lets ranks join at this port from now on. `at` is the port's address.
    pub(super) fn accept_joins(&mut self, at: SocketAddr, counters: Arc<CoordinatorCounters>) -> Incoming {
        let (accepted, incoming) = mpsc::channel(ACCEPTED_MAX);
        self.joins = Some(accepted);
        Incoming::Shared { at, accepted: incoming, counters }
    }

    /// Returns the task of a job's members, if this process is one of them.
    fn world(&self, cookie: &Cookie) -> Option<mpsc::UnboundedSender<Event>> {
        self.worlds.get(cookie).and_then(mpsc::WeakUnboundedSender::upgrade)
    }

    /// Returns the answer to a member of a job that this process has left.
    fn last_words(&self, cookie: Cookie, to: u32) -> Answer {
        if let Some((_, told)) = self.left_behind.iter().find(|(who, _)| *who == (cookie, to)) {
            return Answer::LeftBehind(told.clone());
        }
        let decided = self.decided.iter().find(|(job, _)| *job == cookie);
        decided.map_or(Answer::Unknown, |(_, decided)| Answer::Left(decided.clone()))
    }

    /// Records how an agreement was decided.
    pub(super) fn decide(&mut self, cookie: Cookie, decided: Decided) {
        let place = self.decided.iter().position(|(job, _)| *job == cookie);
        let of_job = place.and_then(|place| self.decided.remove(place));
        let (_, mut all) = of_job.unwrap_or_default();
        all.push(decided);
        all.drain(..all.len().saturating_sub(MAX_DECIDED));
        self.decided.push_back((cookie, all));
        if self.decided.len() > MAX_REMEMBERED {
            self.decided.pop_front();
        }
    }

    /// Records that the members of a communicator have gone on without this rank.
    pub(super) fn leave_behind(&mut self, cookie: Cookie, rank: u32, communicator: u64, scope: Scope) {
        let place = self.left_behind.iter().position(|(who, _)| *who == (cookie, rank));
        let mut entry = place.and_then(|place| self.left_behind.remove(place));
        let (_, told) = entry.get_or_insert_with(|| ((cookie, rank), LeftBehind::default()));
        told.add(communicator, scope);
        self.left_behind.extend(entry);
        while self.left_behind.len() > MAX_REMEMBERED {
            self.left_behind.pop_front();
        }
    }
}

/// Time when this process last lacked a descriptor for a connection to another member.
#[derive(Debug, Default)]
pub(super) struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    fn note(&self, error: &io::Error) {
        if is_shortage(error) {
            let last = self.0.lock().unpoisoned().replace(Instant::now());
            if last.is_none() {
                tracing::warn!(%error, "could not connect to another member; raise this rank's limit on open \
                                        files (ulimit -n)");
            }
        }
    }

    /// Notes a failed attempt to connect of which only the error text is left, if descriptors were lacking.
    pub(super) fn note_text(&self, why: &str) {
        let shortages = [libc::EMFILE, libc::ENFILE].map(io::Error::from_raw_os_error);
        if let Some(error) = shortages.iter().find(|error| why.contains(&error.to_string())) {
            self.note(error);
        }
    }

    /// Whether the process has lacked descriptors since the given time, or has none now. In the latter case it cannot
    /// connect either.
    pub(super) fn was_since(&self, since: Instant) -> bool {
        let noted = *self.0.lock().unpoisoned();
        noted.is_some_and(|noted| noted >= since)
            || std::fs::File::open("/dev/null").is_err_and(|e| is_shortage(&e))
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

pub(super) type Registry = Arc<watch::Sender<Services>>;

/// Everything that is reached at one port of a process.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) credentials: Credentials,
    pub(super) services: Registry,
    /// The endpoints of the process's communicators.
    pub(super) endpoints: Arc<Port>,
    pub(super) relay: Arc<Relay>,
    /// The coordinator's counters, if ranks join here.
    pub(super) counters: Arc<CoordinatorCounters>,
    /// Times when descriptors for connections were lacking.
    pub(super) shortage: Arc<Shortage>,
}

/// Serves the port. Strangers cannot keep members out: see [`PendingConnections`].
pub(super) async fn serve(listener: Unshared<TcpListener>, most_handshakes: usize, acceptor: Acceptor) {
    let mut tasks = JoinSet::new();
    let mut pending = PendingConnections::new(most_handshakes);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, origin)) => {
                    acceptor.endpoints.is_fed();
                    if pending.is_full() {
                        pending.make_room(acceptor.rejected());
                    }
                    let (evict, evicted) = oneshot::channel();
                    let progress = ProgressCell::default();
                    let (standing, acceptor) = (progress.clone(), acceptor.clone());
                    let task = tasks.spawn(async move {
                        let caller = Accepted { stream: Unshared::new(stream), origin, start: None };
                        let greeting = acceptor.greet(caller, &progress, evicted);
                        match tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting).await {
                            Ok(Some(Greeted::Proven(stream))) => receive(stream, acceptor.services, OnSilence::Fail).await,
                            Ok(Some(Greeted::HandedOn)) => {}
                            Ok(None) | Err(_) => drop(acceptor.counters.rejected.fetch_add(1, Ordering::Relaxed)),
                        }
                    });
                    pending.enter(task.id(), origin.ip(), standing, evict);
                    // The new task gets its turn before the next connection is accepted.
                    tokio::task::yield_now().await;
                }
                // Most likely descriptors ran out, which passes.
                Err(error) => {
                    acceptor.endpoints.starves(&error);
                    pending.make_room(acceptor.rejected());
                    acceptor.shortage.note(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = tasks.join_next_with_id() => {
                pending.leave(ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
        }
    }
}

impl Acceptor {
    fn rejected(&self) -> u64 {
        self.counters.rejected.load(Ordering::Relaxed)
    }

    /// Hands a connection to the service that its first bytes name: an endpoint, the relay, or the coordinator. A
    /// caller that connects to the member and proves its keys is returned instead. Returns `None` for a stranger, or
    /// for a connection that made room for another.
    async fn greet(
        &self,
        caller: Accepted,
        progress: &ProgressCell,
        evicted: oneshot::Receiver<u64>,
    ) -> Option<Greeted> {
        let Accepted { mut stream, origin, .. } = caller;
        let _ = stream.set_nodelay(true);
        let wanted = tokio::select! {
            biased;
            wanted = self.read_wanted(&mut stream, progress) => wanted?,
            rejected = evicted => {
                // A caller that has had this member's greeting takes everything behind it for something else.
                if progress.is_silent() {
                    reject(&mut stream, rejected.unwrap_or_default());
                }
                return None;
            }
        };
        match wanted {
            Wanted::Endpoint(hello) => {
                self.endpoints.hand(stream.into_inner().into_std().ok()?, origin, &hello)
            }
            Wanted::Relay(call) => drop(tokio::spawn(self.relay.clone().serve(call, stream))),
            Wanted::Coordinator(start, joins) => {
                let _ = joins.try_send(Accepted { stream, origin, start: Some(start) });
            }
            Wanted::Member(keys) => {
                return Some(Greeted::Proven(stream::boxed(stream, keys.as_ref())));
            }
        }
        Some(Greeted::HandedOn)
    }

    /// Reads from a caller until it is known which service it wants. Returns `None` for a stranger.
    async fn read_wanted(&self, stream: &mut TcpStream, progress: &ProgressCell) -> Option<Wanted> {
        let magic = read_magic(stream).await.ok()?;
        if Port::is_hello(&magic) {
            return Some(Wanted::Endpoint(read_hello(stream, magic).await.ok()?));
        }
        if RelayCall::is_begun_by(&magic) {
            let cookies: Vec<Cookie> = self.services.borrow().worlds.keys().copied().collect();
            return Some(Wanted::Relay(read_call(stream, magic, &cookies).await.ok()??));
        }
        let start = read_start(magic, stream).await.ok()?;
        let joins = self.services.borrow().joins.clone();
        if let Some(joins) = joins.filter(|_| !is_for_member(&start)) {
            return Some(Wanted::Coordinator(start, joins));
        }
        let note = |reached| progress.set(reached);
        Some(Wanted::Member(greet_after(start, stream, &self.credentials, note).await.ok()?))
    }
}

/// The service that a caller wants, with all that the acceptor has read for it.
enum Wanted {
    /// An endpoint, with the caller's hello.
    Endpoint(Vec<u8>),
    Relay(RelayCall),
    Coordinator(Start, mpsc::Sender<Accepted>),
    /// The member itself, from a caller that has proven its keys.
    Member(Option<SessionKeys>),
}

/// Outcome of greeting a caller.
enum Greeted {
    HandedOn,
    Proven(BoxedStream),
}

/// Reads the rest of an endpoint's hello.
async fn read_hello(stream: &mut TcpStream, magic: [u8; HELLO_MAGIC_BYTES]) -> io::Result<Vec<u8>> {
    let mut start = [0; HELLO_START_BYTES];
    start[..HELLO_MAGIC_BYTES].copy_from_slice(&magic);
    stream.read_exact(&mut start[HELLO_MAGIC_BYTES..]).await?;
    let mut hello = vec![0; Port::hello_bytes(&start)];
    hello[..HELLO_START_BYTES].copy_from_slice(&start);
    stream.read_exact(&mut hello[HELLO_START_BYTES..]).await?;
    Ok(hello)
}

/// Reads a caller's first frame and hands the connection to the service that it names.
pub(super) async fn receive(stream: BoxedStream, services: Registry, on_silence: OnSilence) {
    let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, dispatch(stream, services, on_silence)).await;
}

async fn dispatch(mut stream: BoxedStream, services: Registry, on_silence: OnSilence) -> io::Result<()> {
    let frame = read_frame(&mut stream, MAX_HELLO_FRAME).await?;
    let opening = decode(&frame.ok_or_else(|| invalid("nothing was said".into()))?)?;
    match opening {
        Opening::Connect { cookie, from } => {
            let host = services.borrow().world(&cookie);
            let Some(host) = host else {
                let last_words = services.borrow().last_words(cookie, from);
                return answer(&mut stream, &last_words).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            let _ = host.send(Event::Accepted { rank: from, stream });
        }
        Opening::Join { regroup_id } => {
            // This rank may learn of the decision a little later than the caller.
            let mut news = services.subscribe();
            let is_known =
                |all: &Services| all.coordinators.contains_key(&regroup_id) || all.over.contains(&regroup_id);
            let arrival = news.wait_for(is_known).await;
            let coordinator =
                arrival.ok().and_then(|services| services.coordinators.get(&regroup_id).cloned());
            let Some(coordinator) = coordinator else { return answer(&mut stream, &Answer::Unknown).await };
            answer(&mut stream, &Answer::Taken).await?;
            coordinator.serve(stream, on_silence).await?;
        }
        Opening::Wait { group } => {
            let waiting_list = services.borrow().waiting_lists.get(&group).and_then(Weak::upgrade);
            let Some(waiting_list) = waiting_list.filter(|list| list.is_open()) else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            waiting_list.receive(stream).await?;
        }
        Opening::State { group } => {
            let snapshot_server = services.borrow().snapshot_servers.get(&group).and_then(Weak::upgrade);
            let Some(snapshot_server) = snapshot_server.filter(|server| server.has_room()) else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            // This task runs until the newcomer leaves or the snapshot server is dropped.
            tokio::spawn(snapshot_server.receive(stream));
        }
        Opening::Detour { cookie, to } => {
            let Some(host) = services.borrow().world(&cookie) else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            // It answers once the listener has let it connect.
            let _ = host.send(Event::Detour { to, stream });
        }
        Opening::Forward => {
            let Some(forwarded) = services.borrow().forwarded.clone() else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            tokio::spawn(tokio::time::timeout(FORWARD_TIMEOUT, async move {
                if let Ok(Some(payload)) = read_frame(&mut stream, MAX_FRAME_FROM_COORDINATOR).await {
                    let _ = forwarded.send(Received::Forwarded(payload)).await;
                }
            }));
        }
    }
    Ok(())
}

pub(super) async fn answer(stream: &mut BoxedStream, answer: &Answer) -> io::Result<()> {
    stream.write_all(&encode(answer)).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::control::handshake::{Rejection, greet_coordinator};

    /// A rank that joins reads the answer like that of any coordinator, and an endpoint dials again.
    #[tokio::test(flavor = "current_thread")]
    async fn a_caller_that_makes_room_is_told_so() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let acceptor = Acceptor {
            credentials: Credentials::default(),
            services: Registry::default(),
            endpoints: Port::new(at),
            relay: Arc::default(),
            counters: Arc::default(),
            shortage: Arc::default(),
        };
        let served = tokio::spawn(serve(Unshared::new(listener), 1, acceptor));
        let mut first = TcpStream::connect(at).await.unwrap();
        let _second = TcpStream::connect(at).await.unwrap();
        let mut heard = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(20), first.read_to_end(&mut heard));
        end.await.expect("it makes room").unwrap();
        assert!(Port::is_full(&heard), "{heard:?}");
        let (mut rank, mut member) = tokio::io::duplex(1024);
        member.write_all(&heard).await.unwrap();
        let told = greet_coordinator(&mut rank, &Credentials::default()).await.err();
        let is_told = |why: &str| why.contains("too many pending connections");
        assert!(matches!(&told, Some(Rejection::Foreign(why)) if is_told(why)), "{told:?}");
        served.abort();
    }
}
