//! The porter of a process, which accepts connections at its door and hands each to the service that it wants.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use kolo_transport::tcp::{HELLO_MAGIC_BYTES, HELLO_START_BYTES, Port, RelayCall};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::Event;
use super::door::Tag;
use super::lobby::{GroupId, Lobby};
use super::snapshots::Desk;
use crate::control::connect::Heard;
use crate::control::coordinator::{BoxedStream, Coordinator, CoordinatorCounters, turn_away};
use crate::control::entry::{CALLERS_MAX, Caller, Entry};
use crate::control::handshake::{Credentials, Start, greet_after, is_knock, read_magic, read_start};
use crate::control::line;
use crate::control::pending::{Footing, PendingConnections};
use crate::control::relay::Relay;
use crate::control::wire::{decode, encode, invalid, read_frame};
use crate::job::Cookie;
use crate::job::limits::{
    ACCEPT_PAUSE, HANDSHAKE_TIMEOUT, MAX_FRAME_FROM_COORDINATOR, MAX_HELLO_FRAME, MAX_LEFT_BEHIND,
    MAX_REMEMBERED, PASS_TIMEOUT,
};

/// First frame on a new connection. It says what the caller wants.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum Opening {
    /// A member of the job with this cookie opens a line.
    Line { cookie: Cookie, from: u32 },
    /// A survivor, or a newcomer that was called, joins the coordinator with this tag.
    Join { tag: Tag },
    /// A newcomer wants to become a member of this group, and waits.
    Wait { group: GroupId },
    /// A member of the job passes on a message of the coordinator.
    Pass,
    /// A newcomer fetches the state of this group.
    State { group: GroupId },
}

/// Answer to the first frame.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum Answer {
    Taken,
    /// The job or group has no members here any more.
    Unknown,
    /// The same, and before that, this member has gone on without the caller.
    LeftBehind(LeftBehind),
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

    fn add(&mut self, communicator: u64, everywhere: bool) {
        self.everywhere |= everywhere;
        if !self.communicators.contains(&communicator) && self.communicators.len() < MAX_LEFT_BEHIND {
            self.communicators.push(communicator);
        }
    }
}

/// The services of a process that are reached through its door.
#[derive(Default)]
pub(super) struct Residents {
    pub(super) worlds: HashMap<Cookie, mpsc::WeakUnboundedSender<Event>>,
    pub(super) coordinators: HashMap<Tag, Coordinator>,
    /// Meetings that are over. A latecomer to one of them is told so.
    pub(super) over: VecDeque<Tag>,
    /// Members left behind, by job and rank. They are told so even after this process has left the job. Otherwise a
    /// member that knocks would take the door's owner for one that has left, and if all owners counted as gone, it
    /// could form a quorum of one.
    pub(super) left_behind: VecDeque<((Cookie, u32), LeftBehind)>,
    pub(super) lobbies: HashMap<GroupId, Weak<Lobby>>,
    pub(super) desks: HashMap<GroupId, Weak<Desk>>,
    /// Queue for messages that ranks pass on.
    pub(super) passed: Option<mpsc::Sender<Heard>>,
    /// Queue for ranks that join, if they join at this port too.
    joins: Option<mpsc::Sender<Caller>>,
}

impl Residents {
    /// Lets ranks join at this port from now on. `at` is the port's address.
    pub(super) fn let_join(&mut self, at: SocketAddr, counters: Arc<CoordinatorCounters>) -> Entry {
        let (callers, entry) = mpsc::channel(CALLERS_MAX);
        self.joins = Some(callers);
        Entry::Shared { at, callers: entry, counters }
    }

    fn left_behind(&self, cookie: Cookie, rank: u32) -> Option<&LeftBehind> {
        self.left_behind.iter().find(|(who, _)| *who == (cookie, rank)).map(|(_, told)| told)
    }

    /// Records that the members of a communicator have gone on without this rank.
    pub(super) fn leave_behind(&mut self, cookie: Cookie, rank: u32, communicator: u64, everywhere: bool) {
        let place = self.left_behind.iter().position(|(who, _)| *who == (cookie, rank));
        let mut entry = place.and_then(|place| self.left_behind.remove(place));
        let (_, told) = entry.get_or_insert_with(|| ((cookie, rank), LeftBehind::default()));
        told.add(communicator, everywhere);
        self.left_behind.extend(entry);
        while self.left_behind.len() > MAX_REMEMBERED {
            self.left_behind.pop_front();
        }
    }
}

/// Time when this process last lacked a descriptor for a line to another member.
#[derive(Debug, Default)]
pub(super) struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    fn note(&self, error: &io::Error) {
        if is_shortage(error) {
            let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(Instant::now());
            if last.is_none() {
                tracing::warn!(%error, "could not connect to another member; raise this rank's limit on open \
                                        files (ulimit -n)");
            }
        }
    }

    /// Notes a failed knock of which only the error text is left, if descriptors were lacking.
    pub(super) fn note_text(&self, why: &str) {
        let shortages = [libc::EMFILE, libc::ENFILE].map(io::Error::from_raw_os_error);
        if let Some(error) = shortages.iter().find(|error| why.contains(&error.to_string())) {
            self.note(error);
        }
    }

    /// Whether the process has lacked descriptors since the given time, or has none now. In the latter case it cannot
    /// knock either.
    pub(super) fn was_since(&self, since: Instant) -> bool {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.is_some_and(|noted| noted >= since)
            || std::fs::File::open("/dev/null").is_err_and(|e| is_shortage(&e))
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

pub(super) type Registry = Arc<watch::Sender<Residents>>;

/// Everything that is reached at one port of a process.
#[derive(Clone)]
pub(super) struct House {
    pub(super) credentials: Credentials,
    pub(super) residents: Registry,
    /// The endpoints of the process's communicators.
    pub(super) endpoints: Arc<Port>,
    pub(super) relay: Arc<Relay>,
    /// The coordinator's counters, if ranks join here.
    pub(super) counters: Arc<CoordinatorCounters>,
    /// Times when descriptors for callers were lacking.
    pub(super) shortage: Arc<Shortage>,
}

/// Serves the port. Strangers cannot keep members out: see [`PendingConnections`].
pub(super) async fn serve(listener: TcpListener, most_handshakes: usize, house: House) {
    let mut callers = JoinSet::new();
    let mut pending = PendingConnections::new(most_handshakes);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, origin)) => {
                    house.endpoints.is_fed();
                    if pending.is_full() {
                        pending.make_room(house.rejected());
                    }
                    let (give_up, given_up) = oneshot::channel();
                    let footing = Footing::default();
                    let (standing, house) = (footing.clone(), house.clone());
                    let task = callers.spawn(async move {
                        let caller = Caller { stream, origin, start: None };
                        let greeting = house.greet(caller, &footing, given_up);
                        match tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting).await {
                            Ok(Some(Greeted::Knocked(stream))) => receive(stream, house.residents, true).await,
                            Ok(Some(Greeted::HandedOn)) => {}
                            Ok(None) | Err(_) => drop(house.counters.rejected.fetch_add(1, Ordering::Relaxed)),
                        }
                    });
                    pending.enter(task.id(), origin.ip(), standing, give_up);
                    // The new task gets its turn before the next connection is accepted.
                    tokio::task::yield_now().await;
                }
                // Most likely descriptors ran out, which passes.
                Err(error) => {
                    house.endpoints.starves(&error);
                    pending.make_room(house.rejected());
                    house.shortage.note(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = callers.join_next_with_id() => {
                pending.leave(ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
        }
    }
}

impl House {
    fn rejected(&self) -> u64 {
        self.counters.rejected.load(Ordering::Relaxed)
    }

    /// Hands a connection to the service that its first bytes name: an endpoint, the relay, or the coordinator. A
    /// caller that knocks and proves its keys is returned instead. Returns `None` for a stranger, or for a connection
    /// that made room for another.
    async fn greet(
        &self,
        caller: Caller,
        footing: &Footing,
        given_up: oneshot::Receiver<u64>,
    ) -> Option<Greeted> {
        let Caller { mut stream, origin, .. } = caller;
        let _ = stream.set_nodelay(true);
        let start = tokio::select! {
            biased;
            start = read_beginning(&mut stream) => start?,
            turned_away = given_up => {
                turn_away(&mut stream, turned_away.unwrap_or_default());
                return None;
            }
        };
        let start = match start {
            Beginning::Hello(magic) => {
                self.hand_over(stream, origin, magic).await.ok()?;
                return Some(Greeted::HandedOn);
            }
            Beginning::Relay(magic) => {
                let cookies = self.residents.borrow().worlds.keys().copied().collect();
                tokio::spawn(self.relay.clone().serve(stream, magic, cookies));
                return Some(Greeted::HandedOn);
            }
            Beginning::Kolo(start) => start,
        };
        let joins = self.residents.borrow().joins.clone();
        if let Some(joins) = joins.filter(|_| !is_knock(&start)) {
            let _ = joins.try_send(Caller { stream, origin, start: Some(start) });
            return Some(Greeted::HandedOn);
        }
        let progress = |progress| footing.set(progress);
        let keys = greet_after(start, &mut stream, &self.credentials, progress).await.ok()?;
        Some(Greeted::Knocked(line::stream(stream, keys.as_ref())))
    }

    /// Reads the hello of a connection between endpoints, and hands the connection to the endpoint.
    async fn hand_over(
        &self,
        mut stream: TcpStream,
        origin: SocketAddr,
        magic: [u8; HELLO_MAGIC_BYTES],
    ) -> io::Result<()> {
        let mut start = [0; HELLO_START_BYTES];
        start[..HELLO_MAGIC_BYTES].copy_from_slice(&magic);
        stream.read_exact(&mut start[HELLO_MAGIC_BYTES..]).await?;
        let mut hello = vec![0; Port::hello_bytes(&start)];
        hello[..HELLO_START_BYTES].copy_from_slice(&start);
        stream.read_exact(&mut hello[HELLO_START_BYTES..]).await?;
        self.endpoints.hand(stream.into_std()?, origin, &hello);
        Ok(())
    }
}

/// Kind of caller, by its first bytes.
enum Beginning {
    Hello([u8; HELLO_MAGIC_BYTES]),
    Relay([u8; HELLO_MAGIC_BYTES]),
    Kolo(Start),
}

/// Outcome of greeting a caller.
enum Greeted {
    HandedOn,
    Knocked(BoxedStream),
}

async fn read_beginning(stream: &mut TcpStream) -> Option<Beginning> {
    let magic = read_magic(stream).await.ok()?;
    Some(if Port::is_hello(&magic) {
        Beginning::Hello(magic)
    } else if RelayCall::is_begun_by(&magic) {
        Beginning::Relay(magic)
    } else {
        Beginning::Kolo(read_start(magic, stream).await.ok()?)
    })
}

/// Reads a caller's first frame and hands the connection to the service that it names.
pub(super) async fn receive(stream: BoxedStream, residents: Registry, judged: bool) {
    let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, show_in(stream, residents, judged)).await;
}

async fn show_in(mut stream: BoxedStream, residents: Registry, judged: bool) -> io::Result<()> {
    let frame = read_frame(&mut stream, MAX_HELLO_FRAME).await?;
    let opening = decode(&frame.ok_or_else(|| invalid("nothing was said".into()))?)?;
    match opening {
        Opening::Line { cookie, from } => {
            let host = residents.borrow().worlds.get(&cookie).and_then(mpsc::WeakUnboundedSender::upgrade);
            let Some(host) = host else {
                let told = residents.borrow().left_behind(cookie, from).cloned();
                return answer(&mut stream, &told.map_or(Answer::Unknown, Answer::LeftBehind)).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            let _ = host.send(Event::Called { rank: from, stream });
        }
        Opening::Join { tag } => {
            // This rank may learn of the decision a little later than the caller.
            let mut news = residents.subscribe();
            let is_known = |all: &Residents| all.coordinators.contains_key(&tag) || all.over.contains(&tag);
            let arrival = news.wait_for(is_known).await;
            let coordinator = arrival.ok().and_then(|residents| residents.coordinators.get(&tag).cloned());
            let Some(coordinator) = coordinator else { return answer(&mut stream, &Answer::Unknown).await };
            answer(&mut stream, &Answer::Taken).await?;
            coordinator.seat(stream, judged).await?;
        }
        Opening::Wait { group } => {
            let lobby = residents.borrow().lobbies.get(&group).and_then(Weak::upgrade);
            let Some(lobby) = lobby.filter(|lobby| lobby.is_open()) else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            lobby.receive(stream).await?;
        }
        Opening::State { group } => {
            let desk = residents.borrow().desks.get(&group).and_then(Weak::upgrade);
            let Some(desk) = desk.filter(|desk| desk.has_room()) else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            // This task runs until the newcomer leaves or the desk is dropped.
            tokio::spawn(desk.receive(stream));
        }
        Opening::Pass => {
            let Some(passed) = residents.borrow().passed.clone() else {
                return answer(&mut stream, &Answer::Unknown).await;
            };
            answer(&mut stream, &Answer::Taken).await?;
            tokio::spawn(tokio::time::timeout(PASS_TIMEOUT, async move {
                if let Ok(Some(payload)) = read_frame(&mut stream, MAX_FRAME_FROM_COORDINATOR).await {
                    let _ = passed.send(Heard::PassedOn(payload)).await;
                }
            }));
        }
    }
    Ok(())
}

async fn answer(stream: &mut BoxedStream, answer: &Answer) -> io::Result<()> {
    stream.write_all(&encode(answer)).await?;
    stream.flush().await
}
