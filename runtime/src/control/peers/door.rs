//! A member's door: where the other members of its job reach it, when the coordinator is lost or was never asked.
//!
//! Every process has one port for it; threads of one process have a channel. It is knocked at only after something has gone wrong,
//! so a healthy job has no connections here. Each door draws a key, which the members tell each other while they make their first
//! communicator, and both ends prove that they know it: the handshake and the sealed stream are those of the coordinator.
//!
//! A door is there for as long as its process has a place in the job. The system refuses connections to the port of a process that has
//! ended, and that is the proof of its end ([`NoAnswer::Gone`]). A process that is stopped takes connections and is silent.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::Event;
use crate::control::coordinator::{BoxedStream, Coordinator};
use crate::control::handshake::{Credentials, greet_coordinator, greet_rank};
use crate::control::pending::{Footing, PendingConnections};
use crate::control::sealed::Sealed;
use crate::control::wire::{decode, encode, invalid, read_frame, remember};
use crate::error::{Error, Result};
use crate::job::limits::{
    ACCEPT_PAUSE, HANDSHAKE_TIMEOUT, MAX_DOOR_ADDRESSES, MAX_HELLO_FRAME, SPARE_HANDSHAKES,
};
use crate::job::{Cookie, RendezvousKey};
use crate::join::{Halls, JoinSpec, Locator, open_port};

/// Names a meeting of survivors.
pub(crate) type Tag = [u8; 32];

/// Buffer of an in-memory pipe, each way.
const PIPE_BYTES: usize = 16 << 10;

/// Between the starts of attempts on several addresses.
const STAGGER: Duration = Duration::from_millis(20);

/// What others need to knock.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct DoorAddress {
    id: u64,
    key: RendezvousKey,
    addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for DoorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoorAddress").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// First frame of whoever knocks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Opening {
    /// A member of the job with this cookie.
    Line { cookie: Cookie, from: u32 },
    /// A survivor that joins the coordinator with this tag.
    Join { tag: Tag },
}

/// The answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Taken,
    /// Nobody here belongs to that any more.
    Unknown,
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// The process has ended, or its place in the job has.
    Gone(String),
    /// Nothing answers, which may change.
    Silent(String),
}

/// Who lives behind a door.
#[derive(Default)]
struct Residents {
    worlds: HashMap<Cookie, mpsc::WeakUnboundedSender<Event>>,
    coordinators: HashMap<Tag, Coordinator>,
    /// Meetings that are over: who comes late to one is told so.
    over: VecDeque<Tag>,
}

type Registry = watch::Sender<Residents>;

/// This process's (or thread's) door. Closed when dropped.
pub(crate) struct Door {
    address: DoorAddress,
    residents: std::sync::Arc<Registry>,
    halls: Option<Halls>,
    /// Answers those who knock.
    porter: AbortHandle,
}

impl Door {
    /// Opens one on the current tokio runtime. The ranks of a job that is one thread alone need none.
    pub(crate) async fn open(spec: &JoinSpec) -> Result<Self> {
        let mut drawn = [0; 24];
        getrandom::fill(&mut drawn)
            .map_err(|e| Error::system("drawing the key of a door", io::Error::other(e.to_string())))?;
        let (id, key) = drawn.split_at(8);
        let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
        let key: RendezvousKey = key.try_into().expect("sixteen bytes");
        let residents = std::sync::Arc::new(Registry::default());
        if let Locator::Local(meeting) = &spec.locator {
            let (knock, knocks) = mpsc::unbounded_channel();
            meeting.halls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id, knock);
            let porter = tokio::spawn(serve_threads(knocks, residents.clone())).abort_handle();
            let address = DoorAddress { id, key, addresses: Vec::new() };
            return Ok(Self { address, residents, halls: Some(meeting.halls.clone()), porter });
        }
        let (listener, mut addresses) = open_port(spec).await?;
        addresses.truncate(MAX_DOOR_ADDRESSES);
        let credentials = Credentials { secret: spec.secret.clone(), rendezvous: Some(key) };
        let porter = tokio::spawn(serve(listener, credentials, residents.clone())).abort_handle();
        Ok(Self { address: DoorAddress { id, key, addresses }, residents, halls: None, porter })
    }

    /// Whether it is a thread's.
    pub(crate) const fn is_local(&self) -> bool {
        self.halls.is_some()
    }

    pub(crate) const fn address(&self) -> &DoorAddress {
        &self.address
    }

    /// Lines to members of this job are for `events` from now on.
    pub(super) fn move_in(&self, cookie: Cookie, events: &mpsc::UnboundedSender<Event>) {
        self.residents.send_modify(|residents| {
            residents.worlds.insert(cookie, events.downgrade());
        });
    }

    /// Survivors with this tag are for `coordinator`, until the result is dropped.
    pub(crate) fn receive(&self, tag: Tag, coordinator: &Coordinator) -> Box<dyn Send> {
        self.residents.send_modify(|residents| {
            residents.coordinators.insert(tag, coordinator.clone());
        });
        Box::new(Received { tag, residents: self.residents.clone() })
    }

    /// Knocks at another's door. `near`: it is on this host. Every step may take `patience`.
    pub(super) async fn knock(
        &self,
        at: &DoorAddress,
        near: bool,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, NoAnswer> {
        let mut stream: BoxedStream = match &self.halls {
            Some(halls) => Box::new(knock_in_hall(halls, at.id)?),
            None => knock_at_port(at, near, credentials, patience).await?,
        };
        let introduce = async {
            stream.write_all(&encode(opening)).await?;
            stream.flush().await?;
            match read_frame(&mut stream, MAX_HELLO_FRAME).await? {
                Some(frame) => decode::<Answer>(&frame),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        match tokio::time::timeout(patience.max(HANDSHAKE_TIMEOUT), introduce).await {
            Ok(Ok(Answer::Taken)) => Ok(stream),
            Ok(Ok(Answer::Unknown)) => Err(NoAnswer::Gone("it has left the job".into())),
            Ok(Err(error)) => Err(NoAnswer::Silent(format!("its door: {error}"))),
            Err(_) => Err(NoAnswer::Silent("its door does not answer".into())),
        }
    }

    /// The same to join the coordinator behind it.
    pub(crate) async fn join_at(
        &self,
        at: &DoorAddress,
        near: bool,
        credentials: Credentials,
        tag: Tag,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, NoAnswer> {
        self.knock(at, near, credentials, &Opening::Join { tag }, patience).await
    }
}

impl DoorAddress {
    /// The keys that open it.
    pub(in crate::control) fn credentials(&self, spec: &JoinSpec) -> Credentials {
        Credentials { secret: spec.secret.clone(), rendezvous: Some(self.key) }
    }

    /// Where to knock from this host: on its own host by loopback, since other addresses may be those of other hosts too.
    fn candidates(&self, near: bool) -> Vec<SocketAddr> {
        let far: Vec<SocketAddr> = self
            .addresses
            .iter()
            .filter(|a| !a.ip().is_loopback())
            .copied()
            .take(MAX_DOOR_ADDRESSES)
            .collect();
        match self.addresses.first() {
            Some(any) if near => vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), any.port())],
            _ if far.is_empty() => self.addresses.iter().copied().take(1).collect(),
            _ => far,
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(halls) = &self.halls {
            halls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.address.id);
        }
        self.porter.abort();
    }
}

struct Received {
    tag: Tag,
    residents: std::sync::Arc<Registry>,
}

impl Drop for Received {
    fn drop(&mut self) {
        self.residents.send_modify(|residents| {
            residents.coordinators.remove(&self.tag);
            remember(&mut residents.over, self.tag);
        });
    }
}

fn knock_in_hall(halls: &Halls, id: u64) -> std::result::Result<DuplexStream, NoAnswer> {
    let knock = halls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(&id).cloned();
    let gone = || NoAnswer::Gone("its thread has ended".to_owned());
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    knock.ok_or_else(gone)?.send(far).map_err(|_| gone())?;
    Ok(near)
}

/// Refused by every address that answers at all: gone. No answer from one of them: silent.
async fn knock_at_port(
    at: &DoorAddress,
    near: bool,
    credentials: Credentials,
    patience: Duration,
) -> std::result::Result<BoxedStream, NoAnswer> {
    let mut attempts = JoinSet::new();
    for (i, address) in at.candidates(near).into_iter().enumerate() {
        let credentials = credentials.clone();
        attempts.spawn(async move {
            tokio::time::sleep(STAGGER * i as u32).await;
            attempt(address, &credentials, patience).await
        });
    }
    let mut worst = None;
    while let Some(outcome) = attempts.join_next().await {
        match outcome {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(NoAnswer::Gone(text))) => worst = worst.or(Some(NoAnswer::Gone(text))),
            Ok(Err(silent)) => worst = Some(silent),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or_else(|| NoAnswer::Silent("it has no port for other members".into())))
}

async fn attempt(
    address: SocketAddr,
    credentials: &Credentials,
    patience: Duration,
) -> std::result::Result<BoxedStream, NoAnswer> {
    let silent = |what: &str| NoAnswer::Silent(format!("{address}: {what}"));
    let mut stream = match tokio::time::timeout(patience, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(NoAnswer::Gone(format!("{address} refuses connections: its process has ended")));
        }
        Ok(Err(error)) => return Err(silent(&error.to_string())),
        Err(_) => return Err(silent("no answer")),
    };
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // A port that nobody listens at can be chosen as our own.
        return Err(NoAnswer::Gone(format!("nobody listens at {address}: its process has ended")));
    }
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(patience, greet_coordinator(&mut stream, credentials)).await {
        Ok(Ok(Some(keys))) => Ok(Box::new(Sealed::new(stream, &keys))),
        Ok(Ok(None)) => Ok(Box::new(stream)),
        Ok(Err(rejection)) => Err(silent(&format!("{rejection:?}"))),
        Err(_) => Err(silent("it takes connections and says nothing")),
    }
}

async fn serve_threads(
    mut knocks: mpsc::UnboundedReceiver<DuplexStream>,
    residents: std::sync::Arc<Registry>,
) {
    let mut callers = JoinSet::new();
    while let Some(stream) = knocks.recv().await {
        callers.spawn(receive(Box::new(stream), residents.clone(), false));
        while callers.try_join_next().is_some() {}
    }
}

/// Strangers cannot keep members out: see [`PendingConnections`].
async fn serve(listener: TcpListener, credentials: Credentials, residents: std::sync::Arc<Registry>) {
    let mut callers = JoinSet::new();
    let mut pending = PendingConnections::new(SPARE_HANDSHAKES);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, origin)) => {
                    if pending.is_full() {
                        pending.make_room(0);
                    }
                    let (give_up, given_up) = oneshot::channel();
                    let footing = Footing::default();
                    let (standing, credentials) = (footing.clone(), credentials.clone());
                    let residents = residents.clone();
                    let task = callers.spawn(async move {
                        let greeting = greet(stream, &credentials, &footing);
                        let greeted = tokio::select! {
                            greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting) => greeted.ok().flatten(),
                            _ = given_up => None,
                        };
                        if let Some(stream) = greeted {
                            receive(stream, residents, true).await;
                        }
                    });
                    pending.enter(task.id(), origin.ip(), standing, give_up);
                }
                // Out of descriptors, most likely, which passes.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(ended) = callers.join_next_with_id() => {
                pending.leave(ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
        }
    }
}

async fn greet(mut stream: TcpStream, credentials: &Credentials, footing: &Footing) -> Option<BoxedStream> {
    let _ = stream.set_nodelay(true);
    let keys = greet_rank(&mut stream, credentials, |progress| footing.set(progress)).await.ok()?;
    Some(match keys {
        Some(keys) => Box::new(Sealed::new(stream, &keys)),
        None => Box::new(stream),
    })
}

/// Takes whoever has knocked to whom it wants to see.
async fn receive(stream: BoxedStream, residents: std::sync::Arc<Registry>, judged: bool) {
    let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, show_in(stream, residents, judged)).await;
}

async fn show_in(
    mut stream: BoxedStream,
    residents: std::sync::Arc<Registry>,
    judged: bool,
) -> io::Result<()> {
    let frame = read_frame(&mut stream, MAX_HELLO_FRAME).await?;
    let opening = decode(&frame.ok_or_else(|| invalid("nothing was said".into()))?)?;
    let taken = encode(&Answer::Taken);
    match opening {
        Opening::Line { cookie, from } => {
            let host = residents.borrow().worlds.get(&cookie).and_then(mpsc::WeakUnboundedSender::upgrade);
            let Some(host) = host else {
                stream.write_all(&encode(&Answer::Unknown)).await?;
                return stream.flush().await;
            };
            stream.write_all(&taken).await?;
            stream.flush().await?;
            let _ = host.send(Event::Called { rank: from, stream });
        }
        Opening::Join { tag } => {
            // This rank may hear of the decision a little later than the one that knocks.
            let mut news = residents.subscribe();
            let is_known = |all: &Residents| all.coordinators.contains_key(&tag) || all.over.contains(&tag);
            let arrival = news.wait_for(is_known).await;
            let coordinator = arrival.ok().and_then(|residents| residents.coordinators.get(&tag).cloned());
            let Some(coordinator) = coordinator else {
                stream.write_all(&encode(&Answer::Unknown)).await?;
                return stream.flush().await;
            };
            stream.write_all(&taken).await?;
            stream.flush().await?;
            coordinator.seat(stream, judged).await?;
        }
    }
    Ok(())
}
