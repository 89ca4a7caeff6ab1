//! Joining: a rank finds the coordinator, connects, introduces itself and waits for the other ranks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::coordinator::{BoxedStream, Coordinator};
use super::coordinator_state::rejected_text;
use super::dial::{Unopened, Whom, open};
use super::handshake::{Credentials, Rejection, VERSION};
use super::peers::evidence::Seen;
use super::peers::listener::{ConnectError, Listener, ListenerAddress};
use super::regroup::Regroup;
use super::stream::TcpHandle;
use super::wire::{
    FromCoordinator, Hello, PeerInfo, Refusal, ToCoordinator, clip, decode, encode, read_frame,
};
use super::{OnSilence, forwards};
use crate::error::{Error, JOIN_REMEDY, JoinFailure, Result};
use crate::job::limits::{
    CONNECT_TIMEOUT, HANDSHAKE_TIMEOUT, MAX_FRAME_FROM_COORDINATOR, MAX_NAME_BYTES, MAX_REMEMBERED,
    MAX_SOURCE_BYTES, RETRY_FIRST, RETRY_MOST,
};
use crate::job::{Cookie, Liveness, RendezvousKey};
use crate::join::{Advert, JoinSpec, Locator, Wanted, find, host_key, hostname};

/// Time between the starts of attempts on several addresses of one coordinator.
const STAGGER: Duration = Duration::from_millis(100);

/// Most publications that are remembered although they were not seen again.
const MAX_PUBLICATIONS: usize = 64;

/// Most frames that wait for the control task. Beyond that the connection is not read.
const FRAMES_MAX: usize = 4;

/// A message or event that reaches a rank.
#[derive(Debug)]
pub(crate) enum Received {
    /// A frame from the coordinator.
    Frame(Vec<u8>),
    /// A frame of the coordinator's that another rank has passed on.
    Forwarded(Vec<u8>),
    /// The connection to the coordinator has ended.
    Ended(io::Result<()>),
}

/// A connection after the welcome: all ranks have joined.
pub(crate) struct Connected {
    pub(crate) inbox: Inbox,
    pub(crate) writer: WriteHalf<BoxedStream>,
    pub(crate) cookie: Cookie,
    pub(crate) peers: Vec<PeerInfo>,
    pub(crate) listeners: Vec<Option<ListenerAddress>>,
    /// The ends of the ranks' connections to the coordinator.
    pub(super) seen: Vec<Option<Seen>>,
    /// The encoded welcome, if this rank is to pass it on.
    pub(crate) welcome: Option<Vec<u8>>,
    /// Messages that came before the welcome.
    pub(crate) early: Vec<FromCoordinator>,
    /// Whether silence on this connection counts as a failure.
    pub(crate) on_silence: OnSilence,
    /// Handle to the connection, if the coordinator is on another host.
    pub(crate) tcp: Option<TcpHandle>,
    /// Address at which the coordinator listens.
    pub(crate) coordinator_at: Option<SocketAddr>,
}

/// Messages to a rank, in order. The connection is read as long as this exists.
pub(crate) struct Inbox {
    received: mpsc::Receiver<Received>,
    reader: AbortHandle,
}

impl Inbox {
    /// Messages that other ranks pass on through the listener arrive here too. Survivors pass on none, and leave those
    /// at their listener to the control plane before, whose members may still use it. Their keys are those of this one.
    fn new(spec: &JoinSpec, stream: ReadHalf<BoxedStream>, listener: Option<&Listener>) -> Self {
        let (to, received) = mpsc::channel(FRAMES_MAX);
        if let Some(listener) = listener.filter(|_| forwards(spec)) {
            listener.take_forwarded(to.clone());
        }
        Self { received, reader: tokio::spawn(read_frames(stream, to)).abort_handle() }
    }

    pub(crate) async fn next(&mut self) -> Received {
        self.received.recv().await.unwrap_or(Received::Ended(Ok(())))
    }

    /// Returns the next frame before the welcome, and whether another rank has passed it on. Rank 0 sends a frame with
    /// every heartbeat. If it misses `beats` of them, its host may be gone without a word.
    async fn next_frame(&mut self, beat: Duration, beats: u32) -> Result<(Vec<u8>, bool), AttemptError> {
        // A time in which this process was itself stopped counts as one missed heartbeat.
        for _ in 0..beats {
            let Ok(received) = tokio::time::timeout(beat, self.next()).await else { continue };
            return match received {
                Received::Frame(frame) => Ok((frame, false)),
                Received::Forwarded(frame) => Ok((frame, true)),
                Received::Ended(Ok(())) => Err(AttemptError::Retry(
                    "rank 0 closed the connection while this rank was waiting for others".into(),
                )),
                Received::Ended(Err(error)) => Err(again("waiting for the other ranks", error)),
            };
        }
        Err(AttemptError::Retry(format!(
            "rank 0 was silent for {:.1} s while this rank was waiting for others",
            (beat * beats).as_secs_f64()
        )))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_frames(stream: ReadHalf<BoxedStream>, to: mpsc::Sender<Received>) {
    let mut reader = BufReader::new(stream);
    loop {
        let received = match read_frame(&mut reader, MAX_FRAME_FROM_COORDINATOR).await {
            Ok(Some(frame)) => Received::Frame(frame),
            Ok(None) => Received::Ended(Ok(())),
            Err(error) => Received::Ended(Err(error)),
        };
        let is_last = matches!(received, Received::Ended(_));
        if to.send(received).await.is_err() || is_last {
            return;
        }
    }
}

enum AttemptError {
    /// Another attempt may succeed.
    Retry(String),
    /// Another attempt cannot help.
    Fatal(Error),
}

fn again(doing: &str, error: io::Error) -> AttemptError {
    AttemptError::Retry(format!("{doing}: {error}"))
}

/// Becomes a member before the deadline. `coordinator` is the one in this process, on rank 0.
pub(crate) async fn become_member(
    spec: &JoinSpec,
    coordinator: Option<&Coordinator>,
    listener: Option<&Listener>,
    deadline: Instant,
) -> Result<Connected> {
    let mut search = Search::default();
    let mut pause = RETRY_FIRST;
    loop {
        search.attempts += 1;
        match tokio::time::timeout_at(deadline.into(), search.attempt(spec, coordinator, listener)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(AttemptError::Fatal(error))) => return Err(error),
            Ok(Err(AttemptError::Retry(cause))) => {
                tracing::debug!(rank = spec.rank, cause, "looking for rank 0");
                search.came_to(cause);
                search.missing = None;
            }
            Err(_) => return Err(search.out_of_time(spec)),
        }
        if Instant::now() + pause >= deadline {
            return Err(search.out_of_time(spec));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(RETRY_MOST);
    }
}

#[derive(Default)]
struct Search {
    tried: BTreeSet<SocketAddr>,
    attempts: u64,
    /// Outcome of the last attempt that ended.
    last: Option<String>,
    /// Outcome of the attempt before the last, where it differs. When rank 0 gives up, it removes its address, and the
    /// missing address explains less than the earlier reason.
    before: Option<String>,
    /// Address of the coordinator that the current attempt has reached.
    reached: Option<SocketAddr>,
    /// Number of the listener of the member by which it was reached, if this rank does not reach it itself.
    by: Option<u64>,
    /// Peer or place that the current attempt is waiting for.
    waits_for: String,
    /// Ranks that rank 0 still waits for; `Some` once this rank is accepted.
    missing: Option<String>,
    /// Connections that rank 0 has rejected, by its latest report.
    rejected: u64,
    /// Problem and remedy of the process that answered last, if it does not fit. It may not be rank 0.
    misfit: Option<(String, String)>,
    /// Publications that this rank has seen, in the order in which it tries them.
    queue: Vec<(Option<RendezvousKey>, Vec<SocketAddr>)>,
}

impl Search {
    fn came_to(&mut self, cause: String) {
        if self.last.as_ref() != Some(&cause) {
            self.before = self.last.replace(cause);
        }
    }

    async fn attempt(
        &mut self,
        spec: &JoinSpec,
        coordinator: Option<&Coordinator>,
        listener: Option<&Listener>,
    ) -> Result<Connected, AttemptError> {
        self.waits_for = spec.locator.to_string();
        // Survivors have no port besides their listeners.
        let own = || listener.and_then(Listener::own_address);
        self.reached = coordinator.and_then(|coordinator| coordinator.at.or_else(own));
        let stream = match (coordinator, &spec.locator) {
            (Some(coordinator), _) => attach(coordinator).await?,
            (None, Locator::Local(rendezvous)) => {
                let mut coordinators = rendezvous.coordinator.subscribe();
                let found = coordinators
                    .wait_for(Option::is_some)
                    .await
                    .ok()
                    .and_then(|coordinator| coordinator.clone());
                let found = found.and_then(|coordinator| coordinator.downcast::<Coordinator>().ok());
                let coordinator = found
                    .ok_or_else(|| AttemptError::Retry("rank 0 has not started its coordinator".into()))?;
                attach(&coordinator).await?
            }
            (None, Locator::Survivors(regroup)) => match Regroup::of(regroup) {
                Some(regroup) => {
                    let reached = regroup.connect(spec).await.map_err(|error| match error {
                        error @ (ConnectError::Silent(_)
                        | ConnectError::Refused(_)
                        | ConnectError::Misfit { .. }) => match regroup.is_out_of_reach() {
                            true => AttemptError::Fatal(out_of_reach(spec, &regroup.at, &error.text())),
                            false => AttemptError::Retry(error.text()),
                        },
                        error => AttemptError::Fatal(Error::Join {
                            rank: Some(spec.rank),
                            kind: JoinFailure::Survivors,
                            problem: format!("the lowest remaining rank has given up: {}", error.text()),
                            remedy: "Call shrink again".into(),
                        }),
                    })?;
                    (self.reached, self.by) = (reached.at, reached.by);
                    reached.stream
                }
                None => {
                    return Err(AttemptError::Retry(
                        "survivors meet by the listeners of their control plane".into(),
                    ));
                }
            },
            (None, _) => {
                // The first that answers is rank 0 but for rare cases, which the first attempt shows.
                let wanted = if self.queue.is_empty() { Wanted::First } else { Wanted::All };
                let adverts = find(spec, wanted).await.map_err(AttemptError::Retry)?;
                let nobody = || AttemptError::Retry("no address was found".into());
                let advert = self.choose(adverts).ok_or_else(nobody)?;
                self.tried.extend(&advert.candidates);
                self.waits_for = list(&advert.candidates);
                let (stream, address) = self.connect(spec, &advert).await?;
                (self.reached, self.misfit) = (Some(address), None);
                stream
            }
        };
        let on_silence = match &spec.locator {
            _ if coordinator.is_some() => OnSilence::Ignore,
            Locator::Local(_) => OnSilence::Ignore,
            Locator::Survivors(regroup) => Regroup::of(regroup).map_or(OnSilence::Ignore, |r| r.on_silence()),
            _ => OnSilence::Fail,
        };
        self.wait_for_welcome(spec, stream, listener, on_silence).await
    }

    /// Chooses the publication that has waited longest since it was first seen or last tried, so that strangers that answer
    /// faster than rank 0, or every time with another key, only delay this rank.
    fn choose(&mut self, mut adverts: Vec<Advert>) -> Option<Advert> {
        if self.queue.len() > MAX_PUBLICATIONS {
            self.queue.retain(|queued| adverts.iter().any(|advert| advert.place() == *queued));
        }
        for advert in &adverts {
            if !self.queue.contains(&advert.place()) {
                self.queue.push(advert.place());
            }
        }
        let at = self.queue.iter().position(|queued| adverts.iter().any(|one| one.place() == *queued))?;
        let chosen = self.queue.remove(at);
        let advert = adverts.iter().position(|advert| advert.place() == chosen)?;
        self.queue.push(chosen);
        Some(adverts.swap_remove(advert))
    }

    /// Tries all candidates, each a little after the one before. The first that answers as a fitting coordinator wins.
    async fn connect(
        &mut self,
        spec: &JoinSpec,
        advert: &Advert,
    ) -> Result<(BoxedStream, SocketAddr), AttemptError> {
        let mut attempts = JoinSet::new();
        let credentials = Credentials { secret: spec.secret.clone(), rendezvous: advert.key };
        for (i, &address) in advert.candidates.iter().enumerate() {
            let credentials = credentials.clone();
            let stagger = STAGGER * u32::try_from(i).unwrap_or(u32::MAX);
            attempts.spawn(async move {
                if !stagger.is_zero() {
                    tokio::time::sleep(stagger).await;
                }
                let patience = (CONNECT_TIMEOUT, HANDSHAKE_TIMEOUT);
                let opened = open(address, Whom::Coordinator, &credentials, patience).await;
                opened.map(|stream| (stream, address)).map_err(|unopened| (address, rejection(unopened)))
            });
        }
        let mut misfit = None;
        let mut causes = Vec::new();
        while let Some(outcome) = attempts.join_next().await {
            match outcome {
                Ok(Ok(reached)) => return Ok(reached),
                Ok(Err((address, Rejection::Foreign(cause) | Rejection::OtherJob(cause)))) => {
                    causes.push(format!("{address}: {cause}"));
                }
                Ok(Err((address, Rejection::Misfit { problem, remedy }))) => {
                    misfit = Some((format!("{problem} ({address})"), remedy));
                }
                Err(_) => {}
            }
        }
        if let Some((problem, remedy)) = misfit {
            return Err(self.met_misfit(spec, problem, remedy));
        }
        causes.truncate(4);
        Err(AttemptError::Retry(format!("{}: {}", advert.origin, causes.join("; "))))
    }

    /// Handles a process that does not fit. If the rendezvous led to it, it may be a stranger at a port that an earlier
    /// rank 0 has left, or one that answers in rank 0's place.
    fn met_misfit(&mut self, spec: &JoinSpec, problem: String, remedy: String) -> AttemptError {
        if spec.is_told_the_address() {
            let (rank, kind) = (Some(spec.rank), JoinFailure::Disagreement);
            return AttemptError::Fatal(Error::Join { rank, kind, problem, remedy });
        }
        let cause = problem.clone();
        let misfit = Some((problem, remedy));
        if self.misfit != misfit {
            tracing::warn!(rank = spec.rank, problem = cause, "looking for another rank 0");
            self.misfit = misfit;
        }
        AttemptError::Retry(cause)
    }

    async fn wait_for_welcome(
        &mut self,
        spec: &JoinSpec,
        mut stream: BoxedStream,
        listener: Option<&Listener>,
        on_silence: OnSilence,
    ) -> Result<Connected, AttemptError> {
        let hello = encode(&ToCoordinator::Hello(hello(spec, listener, stream.ends(), self.by)));
        stream.write_all(&hello).await.map_err(|e| again("introducing itself", e))?;
        stream.flush().await.map_err(|e| again("introducing itself", e))?;
        let tcp = stream.tcp_handle();
        let (read, mut writer) = tokio::io::split(stream);
        let mut inbox = Inbox::new(spec, read, listener);
        let Liveness { heartbeat, dead_after, .. } = spec.liveness;
        let beats = match on_silence {
            OnSilence::Fail => dead_after.div_duration_f64(heartbeat).ceil() as u32,
            OnSilence::Ignore => u32::MAX,
        };
        let beat = encode(&ToCoordinator::Heartbeat);
        let mut early = Vec::new();
        loop {
            let (frame, is_forwarded) = inbox.next_frame(heartbeat, beats).await?;
            let mut message = decode(&frame).map_err(|e| again("waiting for the other ranks", e))?;
            let mut welcome = None;
            if let FromCoordinator::Forward { key: None, message: inner } = message {
                message = decode(&inner).map_err(|e| again("waiting for the other ranks", e))?;
                welcome = Some(inner);
            } else if is_forwarded {
                continue;
            }
            // Heartbeats come if the job has begun and this rank's welcome is still on its way.
            if matches!(message, FromCoordinator::Waiting { .. } | FromCoordinator::Heartbeat) {
                // If the connection has ended, the inbox says so and may still hold the reason.
                let _ = writer.write_all(&beat).await;
                let _ = writer.flush().await;
            }
            match message {
                FromCoordinator::Waiting { missing, rejected } => {
                    (self.missing, self.rejected) = (Some(missing), rejected);
                }
                FromCoordinator::Welcome { cookie, peers, listeners, seen } => {
                    check_peers(&peers, spec.world_size)
                        .map_err(|problem| AttemptError::Retry(format!("rank 0's welcome: {problem}")))?;
                    return Ok(Connected {
                        inbox,
                        writer,
                        cookie,
                        peers,
                        listeners,
                        seen,
                        welcome,
                        early,
                        on_silence,
                        tcp,
                        coordinator_at: self.reached,
                    });
                }
                FromCoordinator::Refused(Refusal { problem, retry: true, .. }) => {
                    return Err(AttemptError::Retry(problem));
                }
                FromCoordinator::Refused(Refusal { kind, problem, remedy, retry: false }) => {
                    let rank = Some(spec.rank);
                    return Err(AttemptError::Fatal(Error::Join { rank, kind, problem, remedy }));
                }
                // Other ranks already have their welcome.
                other if early.len() < MAX_REMEMBERED => early.push(other),
                _ => {}
            }
        }
    }

    fn out_of_time(&self, spec: &JoinSpec) -> Error {
        let after = spec.timeout.as_secs_f64();
        let rejected = match self.rejected {
            0 => String::new(),
            count => format!("; {}", rejected_text(count)),
        };
        if let Some(missing) = &self.missing {
            return Error::Join {
                rank: Some(spec.rank),
                kind: JoinFailure::Absent,
                problem: format!("after {after:.1} s rank 0 still waits for {missing}{rejected}"),
                remedy: format!(
                    "Check whether these processes were started and what they printed ({}); {JOIN_REMEDY}",
                    spec.source
                ),
            };
        }
        if let Some((problem, remedy)) = &self.misfit {
            let problem =
                format!("{problem}, and {} led to no other process within {after:.1} s", spec.locator);
            let (rank, kind) = (Some(spec.rank), JoinFailure::Disagreement);
            return Error::Join { rank, kind, problem, remedy: format!("{remedy} ({})", spec.source) };
        }
        let tried = if self.tried.is_empty() {
            "no address was found".into()
        } else {
            format!("tried {}", list(&self.tried))
        };
        let mut last = self.last.clone().unwrap_or_else(|| format!("no answer yet from {}", self.waits_for));
        if let Some(before) = &self.before {
            let _ = write!(last, "; before that: {before}");
        }
        Error::Join {
            rank: Some(spec.rank),
            kind: JoinFailure::Unreachable,
            problem: format!(
                "rank 0 could not be reached at {} within {after:.1} s ({tried}; {} attempts; the last: \
                 {last})",
                spec.locator, self.attempts
            ),
            remedy: format!(
                "Check whether rank 0 is running, whether {} is right, and whether a firewall is in the way \
                 ({})",
                spec.locator, spec.source
            ),
        }
    }
}

/// Makes the first message of a rank over a connection to the coordinator with these ends.
fn hello(
    spec: &JoinSpec,
    listener: Option<&Listener>,
    ends: Option<[SocketAddr; 2]>,
    relayed_by: Option<u64>,
) -> Hello {
    Hello {
        peer: PeerInfo {
            rank: spec.rank,
            hostname: clip(hostname(), MAX_NAME_BYTES),
            pid: std::process::id(),
            local_rank: spec.local_rank,
            version: VERSION.into(),
            host_key: host_key(),
            relayed_by,
        },
        world_size: spec.world_size,
        job: clip(spec.job.clone(), MAX_NAME_BYTES),
        source: clip(spec.source.clone(), MAX_SOURCE_BYTES),
        listener: listener.map(|listener| listener.address_with(ends.map(|[own, _]| own.ip()))),
        ends,
    }
}

/// Makes the error of a newcomer that does not reach the new rank 0. The members do: only this process is the matter.
fn out_of_reach(spec: &JoinSpec, at: &ListenerAddress, why: &str) -> Error {
    let at = list(at.addresses());
    Error::Join {
        rank: Some(spec.rank),
        kind: JoinFailure::Unreachable,
        problem: format!("this newcomer was admitted, but does not reach the new rank 0 at {at}: {why}"),
        remedy:
            "Open the firewall between these two hosts for the port (KOLO_PORT_RANGE bounds the ports), or \
                 choose other interfaces with KOLO_SOCKET_IFNAME"
                .to_owned(),
    }
}

async fn attach(coordinator: &Coordinator) -> Result<BoxedStream, AttemptError> {
    coordinator.attach().await.map_err(|e| AttemptError::Retry(e.to_string()))
}

/// Checks that there is one entry per rank, in order, because all later code relies on it.
fn check_peers(peers: &[PeerInfo], world_size: u32) -> Result<(), String> {
    if peers.len() != world_size as usize {
        return Err(format!("it names {} ranks, but this process was told of {world_size}", peers.len()));
    }
    match peers.iter().zip(0..).find(|(peer, rank)| peer.rank != *rank) {
        Some((peer, rank)) => Err(format!("it names rank {} in place of rank {rank}", peer.rank)),
        None => Ok(()),
    }
}

/// Formats addresses, as many as fit in a text.
fn list<'a>(addresses: impl IntoIterator<Item = &'a SocketAddr>) -> String {
    addresses.into_iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn rejection(unopened: Unopened) -> Rejection {
    Rejection::Foreign(match unopened {
        Unopened::Rejected(rejection) => return rejection,
        Unopened::System(error) => return Rejection::io("connecting", &error),
        Unopened::Silent => format!("no answer within {:.1} s", CONNECT_TIMEOUT.as_secs_f64()),
        Unopened::Itself => "nothing is listening there (it connected to itself)".into(),
        Unopened::Mute => "something accepts connections there but does not answer as Kolo does".into(),
    })
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
