//! The coordinator's input and output: sockets, tasks and the clock around [`CoordinatorState`].
//!
//! One driver task owns the state. Each connection has one task that reads and one that writes. Each connection in the
//! handshake has one task, limited in time (from its first byte to its last) and in number ([`PendingConnections`]),
//! and it cannot hold up anything else. When no descriptors are left, a connection in the handshake is closed to make
//! room for the next one.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kolo_transport::{Unshared, tcp::RelayCall};
use tokio::io::{AsyncWriteExt, BufReader, BufWriter, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::OnSilence;
use super::abort::Loss;
use super::coordinator_ranks::CoordinatorSettings;
use super::coordinator_state::{Action, ConnectionId, CoordinatorState};
use super::handshake::{Credentials, Rejection, greet_after, read_magic, read_start, too_many};
use super::host_monitor::{self, HostMonitor, HostMonitors};
use super::incoming::{Accepted, Incoming, accept, try_accept};
use super::peers::evidence::Seen;
use super::pending::{PendingConnections, ProgressCell};
use super::relay::{Relay, read_call};
pub(crate) use super::stream::BoxedStream;
use super::stream::{self, TcpHandle};
use super::wire::{Hello, ToCoordinator, decode, invalid, read_frame};
use crate::error::LossCause;
use crate::job::Cookie;
use crate::job::limits::{
    ACCEPT_PAUSE, ACCEPTS_AT_ONCE, CLOSING_TIMEOUT, HANDSHAKE_TIMEOUT, MAX_FRAME_TO_COORDINATOR,
    MAX_HANDSHAKES, MAX_HELLO_FRAME, MAX_QUEUE_BYTES, SPARE_HANDSHAKES,
};

/// Buffer of an in-memory pipe, in each direction. A usual message fits.
const PIPE_BYTES: usize = 16 << 10;

/// Most messages that wait for the driver, over all connections. If the queue is full, senders wait.
const QUEUED_EVENTS: usize = 1024;

enum Event {
    /// A connection that need not prove its keys: a rank of this process, or a survivor that came through the listener.
    Proven {
        stream: BoxedStream,
        on_silence: OnSilence,
    },
    Greeted {
        stream: BoxedStream,
        hello: Hello,
        on_silence: OnSilence,
    },
    Misfit {
        ip: IpAddr,
        problem: String,
        remedy: String,
    },
    Message {
        connection: ConnectionId,
        message: ToCoordinator,
    },
    Closed {
        connection: ConnectionId,
        loss: Loss,
    },
    Publish {
        published: Box<dyn Send>,
    },
    Linger {
        patience: Duration,
        left_behind: Vec<u32>,
        done: Box<dyn Send>,
    },
}

/// Counters of a coordinator, which other threads may read.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorCounters {
    /// Connections that were rejected because they were not ranks of this job: garbage, silence, other versions or
    /// secrets.
    pub(crate) rejected: AtomicU64,
    /// Bytes of frames sent to ranks, and of complete frames received from them.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

/// A handle to a running coordinator.
#[derive(Clone)]
pub(crate) struct Coordinator {
    events: mpsc::Sender<Event>,
    pub(crate) counters: Arc<CoordinatorCounters>,
    /// Address of the listener, as reached from its own host.
    pub(crate) at: Option<SocketAddr>,
}

impl Coordinator {
    /// Starts a coordinator on the current tokio runtime. It drops `published` when all ranks have joined.
    pub(crate) fn start(
        settings: CoordinatorSettings,
        credentials: Credentials,
        incoming: Option<Incoming>,
        published: Option<Box<dyn Send>>,
    ) -> Self {
        let (events, inbox) = mpsc::channel(QUEUED_EVENTS);
        let counters = incoming.as_ref().map_or_else(Arc::default, Incoming::counters);
        let at = incoming.as_ref().and_then(Incoming::at);
        let most_handshakes = MAX_HANDSHAKES.min(settings.world_size as usize + SPARE_HANDSHAKES);
        let driver = Driver {
            state: CoordinatorState::new(settings, Instant::now()),
            credentials,
            incoming,
            accept_after: None,
            spare: spare_descriptor(),
            published,
            inbox,
            events: events.downgrade(),
            connections: HashMap::new(),
            next_connection: 0,
            handshakes: JoinSet::new(),
            pending: PendingConnections::new(most_handshakes),
            closing: JoinSet::new(),
            readers: JoinSet::new(),
            writers: JoinSet::new(),
            relay: Arc::default(),
            host_monitors: HostMonitors::default(),
            lingerers: Vec::new(),
            counters: counters.clone(),
        };
        tokio::spawn(driver.run());
        Self { events, counters, at }
    }

    /// Connects a rank of this process.
    pub(crate) async fn attach(&self) -> io::Result<BoxedStream> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let gone = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "rank 0 has closed its coordinator");
        self.events
            .send(Event::Proven { stream: Box::new(far), on_silence: OnSilence::Ignore })
            .await
            .map_err(gone)?;
        Ok(Box::new(near))
    }

    /// Hands `published` to the coordinator, which drops it when all ranks have joined.
    pub(crate) async fn publish(&self, published: Box<dyn Send>) {
        let _ = self.events.send(Event::Publish { published }).await;
    }

    /// Takes a rank that has already proven its keys.
    pub(crate) async fn serve(&self, stream: BoxedStream, on_silence: OnSilence) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "the coordinator has closed");
        self.events.send(Event::Proven { stream, on_silence }).await.map_err(gone)
    }

    /// Lets rank 0 leave. `left_behind` are ranks that nobody waits for. `done` is dropped when the coordinator has
    /// ended.
    pub(crate) async fn linger(self, patience: Duration, left_behind: Vec<u32>, done: Box<dyn Send>) {
        let _ = self.events.send(Event::Linger { patience, left_behind, done }).await;
    }
}

struct Connection {
    queue: mpsc::UnboundedSender<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
    reader: AbortHandle,
    writer: AbortHandle,
    tcp: Option<TcpHandle>,
}

struct Driver {
    state: CoordinatorState,
    credentials: Credentials,
    incoming: Option<Incoming>,
    /// Time before which no connection is accepted, set when descriptors ran out.
    accept_after: Option<tokio::time::Instant>,
    /// Spare descriptor. It is closed for a moment when no others are left, so that the next caller in the backlog can
    /// be accepted, told and dropped.
    spare: Option<std::fs::File>,
    published: Option<Box<dyn Send>>,
    inbox: mpsc::Receiver<Event>,
    /// Weak, so that no sender is left once rank 0's handle and all connections are gone.
    events: mpsc::WeakSender<Event>,
    connections: HashMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    handshakes: JoinSet<()>,
    pending: PendingConnections,
    closing: JoinSet<()>,
    readers: JoinSet<()>,
    writers: JoinSet<()>,
    relay: Arc<Relay>,
    host_monitors: HostMonitors,
    /// Dropped when the driver ends, which notifies the threads that wait for it.
    lingerers: Vec<Box<dyn Send>>,
    counters: Arc<CoordinatorCounters>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            self.state.count_rejected(self.counters.rejected.load(Ordering::Relaxed));
            self.act();
            if self.state.is_done() {
                break;
            }
            let wakeup = tokio::time::Instant::from_std(self.state.next_wakeup());
            tokio::select! {
                event = self.inbox.recv() => match event {
                    Some(event) => {
                        self.handle(event);
                        // Events that have arrived together are answered together.
                        for _ in 0..QUEUED_EVENTS {
                            let Ok(event) = self.inbox.try_recv() else { break };
                            self.handle(event);
                        }
                    }
                    None => break,
                },
                accepted = accept(self.incoming.as_mut(), self.accept_after) => {
                    self.take_all(accepted).await;
                    // Connections just accepted, and those closed in their favour, get their turn before the next ones.
                    tokio::task::yield_now().await;
                    while let Some(ended) = self.handshakes.try_join_next_with_id() {
                        self.handshake_ended(ended);
                    }
                }
                () = tokio::time::sleep_until(wakeup) => self.state.tick(Instant::now()),
                () = when(self.host_monitors.due()) => self.check_hosts(),
                Some(ended) = self.handshakes.join_next_with_id() => self.handshake_ended(ended),
                Some(_) = self.closing.join_next() => {}
                Some(_) = self.readers.join_next() => {}
                Some(_) = self.writers.join_next() => {}
            }
        }
        self.act();
        drop(self.incoming.take());
        // Queued messages are still sent. The time limit keeps a rank that does not read from holding this up.
        self.connections.clear();
        let flush = async { while self.writers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CLOSING_TIMEOUT, flush).await;
    }

    fn handle(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Proven { stream, on_silence } => self.await_hello(stream, on_silence),
            Event::Greeted { stream, hello, on_silence } => {
                let seen = Seen::on(&stream, hello.ends);
                let connection = self.adopt(stream);
                self.state.hello(connection, seen, hello, on_silence, now);
            }
            Event::Publish { published } => self.published = Some(published),
            Event::Misfit { ip, problem, remedy } => self.state.turned_away(ip, &problem, &remedy),
            Event::Message { connection, message } => {
                if let Err(problem) = self.state.message(connection, message, now) {
                    let text = format!("broke the protocol: {problem}");
                    self.drop_connection(connection, Loss::new(LossCause::Protocol, text));
                }
            }
            Event::Closed { connection, loss } => self.drop_connection(connection, loss),
            Event::Linger { patience, left_behind, done } => {
                self.lingerers.push(done);
                self.state.linger(patience, left_behind, now);
            }
        }
    }

    fn act(&mut self) {
        loop {
            let actions = self.state.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Send { connection, frame } => self.send(connection, frame),
                    Action::Close { connection } => self.close(connection),
                    Action::Watch { connection, limit, listener_port } => {
                        self.watch(connection, limit, listener_port)
                    }
                    Action::Gathered => drop(self.published.take()),
                }
            }
        }
    }

    fn send(&mut self, connection: ConnectionId, frame: Bytes) {
        let Some(to) = self.connections.get(&connection) else { return };
        let queued = to.queued_bytes.fetch_add(frame.len(), Ordering::Relaxed) + frame.len();
        if queued > MAX_QUEUE_BYTES {
            let text = "it does not read the data sent to it";
            self.drop_connection(connection, Loss::new(LossCause::Protocol, text));
        } else {
            self.counters.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
            // If the writer has ended, the reader reports it.
            let _ = to.queue.send(frame);
        }
    }

    /// Closes a connection once its writer has finished. The reader goes on until the other side closes, for a limited
    /// time.
    fn close(&mut self, connection: ConnectionId) {
        self.host_monitors.forget(connection);
        let Some(Connection { reader, writer, queue, .. }) = self.connections.remove(&connection) else {
            return;
        };
        drop(queue);
        self.closing.spawn(async move {
            tokio::time::sleep(CLOSING_TIMEOUT).await;
            reader.abort();
            writer.abort();
        });
    }

    fn watch(&mut self, connection: ConnectionId, limit: Duration, listener_port: Option<u16>) {
        if let Some(tcp) = self.connections.get(&connection).and_then(|connection| connection.tcp.clone()) {
            let monitor =
                HostMonitor::new(tcp, listener_port, limit, self.state.world_size(), Instant::now());
            self.host_monitors.watch(connection, monitor);
        }
    }

    fn check_hosts(&mut self) {
        let checked = self.host_monitors.check(Instant::now());
        for (connection, silence) in checked.silent {
            let loss = Loss::new(LossCause::Silent(silence), host_monitor::text(silence));
            self.drop_connection(connection, loss);
        }
        for connection in checked.due {
            self.send(connection, self.state.beat());
        }
    }

    fn drop_connection(&mut self, connection: ConnectionId, loss: Loss) {
        self.host_monitors.forget(connection);
        if let Some(Connection { reader, writer, .. }) = self.connections.remove(&connection) {
            reader.abort();
            writer.abort();
        }
        self.state.closed(connection, loss);
    }

    fn adopt(&mut self, stream: BoxedStream) -> ConnectionId {
        let connection = self.next_connection;
        self.next_connection += 1;
        let tcp = stream.tcp_handle();
        let (read, write) = tokio::io::split(stream);
        let (queue, frames) = mpsc::unbounded_channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let unwritten = queued_bytes.clone();
        let written = move |bytes| {
            unwritten.fetch_sub(bytes, Ordering::Relaxed);
        };
        let writer = self.writers.spawn(write_frames(write, frames, written));
        let reader = match self.events.upgrade() {
            Some(events) => {
                self.readers.spawn(read_messages(connection, read, events, self.counters.clone()))
            }
            None => self.readers.spawn(async {}),
        };
        self.connections.insert(connection, Connection { queue, queued_bytes, reader, writer, tcp });
        connection
    }

    fn handshake_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        self.pending.leave(ended.map_or_else(|error| error.id(), |(task, ())| task));
    }

    /// Accepts a connection and others that wait at the port, at most so many that other connections do not suffer.
    async fn take_all(&mut self, first: io::Result<Accepted>) {
        let mut accepted = first;
        for _ in 0..ACCEPTS_AT_ONCE {
            match accepted {
                Ok(caller) => self.greet(caller),
                Err(error) => return self.cannot_accept(&error).await,
            }
            let Some(Poll::Ready(next)) = try_accept(self.incoming.as_mut()).await else { return };
            accepted = next;
        }
        if let Ok(caller) = accepted {
            self.greet(caller);
        }
    }

    /// Handles a failure to accept, most likely for lack of descriptors. That passes, so it must neither stop the
    /// coordinator nor become a busy loop.
    async fn cannot_accept(&mut self, error: &io::Error) {
        tracing::debug!(%error, "accepting a connection failed");
        self.accept_after = Some(tokio::time::Instant::now() + ACCEPT_PAUSE);
        if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            return;
        }
        // The note is made even if a connection in the handshake is closed below: that one may be a rank, which tries
        // again and is closed again.
        self.state.note_lack(format!(
            "rank 0 had no file descriptors left for some connections ({error}; raise the limit with ulimit \
             -n)"
        ));
        if self.pending.make_room(self.counters.rejected.load(Ordering::Relaxed)) {
            return; // its descriptor becomes free within the pause
        }
        // Callers that wait at the port are dropped, not left waiting. A rank connects again.
        if self.spare.take().is_some() {
            drop(try_accept(self.incoming.as_mut()).await);
        }
        self.spare = spare_descriptor();
    }

    fn greet(&mut self, caller: Accepted) {
        let origin = caller.origin;
        let _ = caller.stream.set_nodelay(true);
        if self.pending.is_full() {
            self.pending.make_room(self.counters.rejected.load(Ordering::Relaxed));
        }
        let Some(events) = self.events.upgrade() else { return };
        let (credentials, counters) = (self.credentials.clone(), self.counters.clone());
        let (evict, evicted) = oneshot::channel();
        let progress = ProgressCell::default();
        let standing = progress.clone();
        let (relay, cookie) = (self.relay.clone(), self.state.cookie());
        let task = self.handshakes.spawn(async move {
            let greeting = introduce(caller, &credentials, cookie, &progress, evicted);
            let rejection = match tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting).await {
                Ok(Ok(Introduced::Rank(stream, hello))) => {
                    let (hello, on_silence) = (*hello, OnSilence::Fail);
                    let _ = events.send(Event::Greeted { stream, hello, on_silence }).await;
                    return;
                }
                Ok(Ok(Introduced::ToRelay(stream, call))) => {
                    tokio::spawn(relay.serve(call, stream));
                    return;
                }
                Ok(Err(rejection)) => rejection,
                Err(_) => Rejection::Foreign(format!("silent for {} s", HANDSHAKE_TIMEOUT.as_secs())),
            };
            counters.rejected.fetch_add(1, Ordering::Relaxed);
            match rejection {
                Rejection::Foreign(problem) | Rejection::OtherJob(problem) => {
                    tracing::debug!(%origin, problem, "a connection was rejected")
                }
                Rejection::Misfit { problem, remedy } => {
                    let _ = events.send(Event::Misfit { ip: origin.ip(), problem, remedy }).await;
                }
            }
        });
        self.pending.enter(task.id(), origin.ip(), standing, evict);
    }

    fn await_hello(&mut self, mut stream: BoxedStream, on_silence: OnSilence) {
        let Some(events) = self.events.upgrade() else { return };
        self.closing.spawn(async move {
            if let Ok(Ok(hello)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, read_hello(&mut stream)).await {
                let _ = events.send(Event::Greeted { stream, hello, on_silence }).await;
            }
        });
    }
}

async fn when(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn spare_descriptor() -> Option<std::fs::File> {
    std::fs::File::open("/dev/null").ok()
}

/// A caller that has introduced itself.
enum Introduced {
    Rank(BoxedStream, Box<Hello>),
    /// One end of a pair of ranks that meet at the relay.
    ToRelay(Unshared<TcpStream>, RelayCall),
}

/// Performs the handshake and reads the first frame.
async fn introduce(
    Accepted { mut stream, start, .. }: Accepted,
    credentials: &Credentials,
    cookie: Cookie,
    progress: &ProgressCell,
    mut evicted: oneshot::Receiver<u64>,
) -> Result<Introduced, Rejection> {
    let made_room = || Rejection::Foreign("it made room for another".into());
    let greet = async {
        let start = match start {
            Some(start) => start,
            None => {
                let magic = read_magic(&mut *stream).await?;
                if RelayCall::is_begun_by(&magic) {
                    let call = read_call(&mut stream, magic, &[cookie]).await;
                    let call = call.map_err(|e| Rejection::io("reading a call for the relay", &e))?;
                    let of_another = || Rejection::Foreign("a call for another job's relay".into());
                    return call.map(Err).ok_or_else(of_another);
                }
                read_start(magic, &mut *stream).await?
            }
        };
        greet_after(start, &mut *stream, credentials, |reached| progress.set(reached)).await.map(Ok)
    };
    let greeted = tokio::select! {
        biased;
        greeted = greet => Ok(greeted?),
        rejected = &mut evicted => Err(rejected),
    };
    let keys = match greeted {
        Ok(Ok(keys)) => keys,
        Ok(Err(call)) => return Ok(Introduced::ToRelay(stream, call)),
        Err(rejected) => {
            if progress.is_silent() {
                reject(&mut stream, rejected.unwrap_or_default());
            }
            return Err(made_room());
        }
    };
    let mut stream = stream::boxed(stream, keys.as_ref());
    let hello = tokio::select! {
        biased;
        hello = read_hello(&mut stream) => hello,
        _ = evicted => return Err(made_room()),
    };
    let hello = hello.map_err(|e| Rejection::io("waiting for the hello", &e))?;
    Ok(Introduced::Rank(stream, Box::new(hello)))
}

/// Tells a connection why it is closed in favour of another. A rank or an endpoint tries again.
pub(super) fn reject(stream: &mut TcpStream, rejected: u64) {
    if let Some(answer) = too_many(rejected) {
        // Bytes left unread would turn the answer into a reset.
        let _ = stream.try_read(&mut [0; 256]);
        let _ = stream.try_write(&answer);
    }
}

async fn read_hello(stream: &mut BoxedStream) -> io::Result<Hello> {
    match read_frame(stream, MAX_HELLO_FRAME).await?.map(|frame| decode(&frame)).transpose()? {
        Some(ToCoordinator::Hello(hello)) => Ok(hello),
        Some(_) => Err(invalid("something other than a hello".into())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn read_messages(
    connection: ConnectionId,
    read: ReadHalf<BoxedStream>,
    events: mpsc::Sender<Event>,
    counters: Arc<CoordinatorCounters>,
) {
    let mut reader = BufReader::new(read);
    let closed = |text: String| Loss::new(LossCause::Closed, text);
    let loss = loop {
        let message = match read_frame(&mut reader, MAX_FRAME_TO_COORDINATOR).await {
            Ok(Some(payload)) => {
                counters.received_bytes.fetch_add(payload.len() as u64 + 4, Ordering::Relaxed);
                decode(&payload)
            }
            Ok(None) => break closed("its connection was closed without a goodbye".to_owned()),
            Err(error) => Err(error),
        };
        match message {
            Ok(message) => {
                if events.send(Event::Message { connection, message }).await.is_err() {
                    return;
                }
            }
            Err(error) => break closed(format!("its connection broke: {error}")),
        }
    };
    let _ = events.send(Event::Closed { connection, loss }).await;
}

/// Writes frames until the queue is closed, then shuts this direction down. Calls `written` with each frame's length.
pub(crate) async fn write_frames(
    write: WriteHalf<BoxedStream>,
    mut frames: mpsc::UnboundedReceiver<Bytes>,
    written: impl Fn(usize),
) {
    let mut writer = BufWriter::new(write);
    while let Some(frame) = frames.recv().await {
        let mut next = Some(frame);
        while let Some(frame) = next {
            if writer.write_all(&frame).await.is_err() {
                return;
            }
            written(frame.len());
            next = frames.try_recv().ok();
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}
