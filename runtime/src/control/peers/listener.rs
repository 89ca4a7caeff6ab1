//! A member's listener: the port at which the other members of its job reach it without the coordinator.
//!
//! Every process has one port for this; threads of one process have a channel instead. Except to pass on long messages
//! of the coordinator (`forwarding`), members connect to a listener only after something has gone wrong. Each listener
//! draws a key, which the members tell each other while they make their first communicator, and both ends prove that
//! they know it. The handshake and the sealed stream are those of the coordinator.
//!
//! A listener exists for as long as its process has a place in the job. The system refuses connections to the port of a
//! process that has ended, and this refusal proves its end ([`ConnectError::Gone`]) if it comes from the process's own
//! host (`evidence`). So does the answer of a process with another key, such as a rank that was started again and has the
//! same port. A stopped process accepts connections and stays silent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_transport::tcp::Port;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Event;
use super::acceptor::{self, Acceptor, Answer, Decided, LeftBehind, Opening, Registry, Scope, Shortage};
use super::attempts::connect_to_port;
use super::detours::Detours;
use super::in_process;
use super::snapshots::SnapshotServer;
use super::waiting_list::{GroupId, WaitingList};
use crate::control::connect::Received;
use crate::control::coordinator::{BoxedStream, Coordinator, CoordinatorCounters};
use crate::control::handshake::Credentials;
use crate::control::incoming::Incoming;
use crate::control::wire::{decode, encode, read_frame, remember};
use crate::error::{Error, Result};
use crate::job::limits::{
    AGREEMENT_BEAT, HANDSHAKE_TIMEOUT, MAX_HANDSHAKES, MAX_HELLO_FRAME, MAX_LISTENER_ADDRESSES,
    SPARE_HANDSHAKES,
};
use crate::job::{Cookie, RendezvousKey};
use crate::join::{JoinSpec, Locator, open_port};

/// Identifies a regrouping of survivors.
pub(crate) type RegroupId = [u8; 32];

/// Pause before the second attempt at a listener that has not answered. Later pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Address and key of a listener.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenerAddress {
    /// Random number of the listener. It is unique, even across restarts of one process.
    pub(super) id: u64,
    key: RendezvousKey,
    pub(super) addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for ListenerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerAddress").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Reason why there is no connection.
#[derive(Clone, Debug)]
pub(crate) enum ConnectError {
    /// The process has ended, or it has left the job.
    Gone(String),
    /// The member has left the job, and has gone on without this rank before.
    LeftBehind(LeftBehind),
    /// The member has left the job, whose latest agreements were decided so.
    Left(Vec<Decided>),
    /// Nothing but refusals and other processes. They may be another host's, which has the same addresses.
    Refused(String),
    /// No answer, which may change.
    Silent(String),
    /// The other end is Kolo, but with another version or other keys.
    Misfit { problem: String, remedy: String },
}

impl ConnectError {
    /// Returns the reason in words.
    pub(in crate::control) fn text(self) -> String {
        match self {
            Self::Gone(text)
            | Self::Refused(text)
            | Self::Silent(text)
            | Self::Misfit { problem: text, .. } => text,
            Self::LeftBehind(_) => "it has gone on without this rank".to_owned(),
            Self::Left(_) => "it has left the job".to_owned(),
        }
    }
}

/// A connection to a listener.
pub(in crate::control) struct Reached {
    pub(in crate::control) stream: BoxedStream,
    /// The address that has answered. `None` within a process.
    pub(in crate::control) at: Option<SocketAddr>,
    /// Number of the listener whose process passes on the bytes, if this process does not reach the other itself.
    pub(in crate::control) by: Option<u64>,
}

/// Where a listener is, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum Locality {
    /// It belongs to a thread of this process.
    SameProcess,
    /// Its host has the same key as this one.
    SameHost,
    OtherHost,
    /// This address is known to lead to its host; loopback if that is this host.
    Proven(IpAddr),
}

impl Locality {
    /// Compares the keys of two hosts.
    pub(in crate::control) fn of_hosts(own: u64, other: u64) -> Self {
        if own == other { Self::SameHost } else { Self::OtherHost }
    }
}

/// The listener of this process or thread. It is closed when dropped.
pub(crate) struct Listener {
    address: ListenerAddress,
    services: Registry,
    is_local: bool,
    /// Port of the listener, which the endpoints of this process share.
    port: Option<OpenPort>,
    /// Task that answers incoming connections.
    acceptor: AbortHandle,
    shortage: Arc<Shortage>,
}

struct OpenPort {
    port: Arc<Port>,
    /// All addresses that lead to the port.
    addresses: Vec<SocketAddr>,
    counters: Arc<CoordinatorCounters>,
}

impl Listener {
    /// Opens a listener on the current tokio runtime, of the kind that the ranks of this job have.
    pub(crate) async fn open(spec: &JoinSpec) -> Result<Self> {
        match spec.locator {
            Locator::Local(_) => Self::open_for_threads(),
            _ => Self::open_port(spec).await,
        }
    }

    /// Opens a listener for threads of this process.
    pub(in crate::control) fn open_for_threads() -> Result<Self> {
        let (id, key) = draw()?;
        let services = Registry::default();
        let acceptor = tokio::spawn(in_process::serve(in_process::open(id), services.clone())).abort_handle();
        let address = ListenerAddress { id, key, addresses: Vec::new() };
        Ok(Self { address, services, is_local: true, port: None, acceptor, shortage: Arc::default() })
    }

    /// Opens a listener for other processes.
    pub(in crate::control) async fn open_port(spec: &JoinSpec) -> Result<Self> {
        let (id, key) = draw()?;
        let services = Registry::default();
        let (listener, addresses) = open_port(spec).await?;
        let at = listener.local_addr().map_err(|e| Error::system("asking for the port", e))?;
        let shortage = Arc::new(Shortage::default());
        let acceptor = Acceptor {
            credentials: Credentials { secret: spec.secret.clone(), rendezvous: Some(key) },
            services: services.clone(),
            endpoints: Port::new(at),
            relay: Arc::default(),
            counters: Arc::default(),
            shortage: shortage.clone(),
        };
        // Every rank may dial at once, on several channels. A stranger's connection costs no more than a rank's.
        let most = MAX_HANDSHAKES.min(4 * spec.world_size as usize + SPARE_HANDSHAKES);
        let port = Some(OpenPort {
            port: acceptor.endpoints.clone(),
            addresses: addresses.clone(),
            counters: acceptor.counters.clone(),
        });
        let acceptor = tokio::spawn(acceptor::serve(listener, most, acceptor)).abort_handle();
        let address = ListenerAddress { id, key, addresses }.bounded();
        Ok(Self { address, services, is_local: false, port, acceptor, shortage })
    }

    /// Returns the port at which the endpoints of this process may listen too. `None` for a thread's listener.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.port.as_ref().map(|open| &open.port)
    }

    /// Returns the address at which this process itself reaches the port.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        let port = self.port.as_ref()?.port.at().port();
        Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
    }

    /// Returns the connections of joining ranks, with the addresses at which they reach it. `None` for a thread's
    /// listener.
    pub(crate) fn incoming(&self) -> Option<(Incoming, Vec<SocketAddr>)> {
        let OpenPort { port, addresses, counters } = self.port.as_ref()?;
        let mut incoming = None;
        self.services
            .send_modify(|services| incoming = Some(services.accept_joins(port.at(), counters.clone())));
        Some((incoming?, addresses.clone()))
    }

    /// Whether this process has lacked descriptors for connections to other members at some time since `since`.
    pub(in crate::control) fn lacked_descriptors(&self, since: Instant) -> bool {
        !self.is_local && self.shortage.was_since(since)
    }

    /// Whether the listener is a thread's.
    pub(crate) const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns where another listener is. All members' listeners are of one kind.
    fn locality(&self, of_host: Locality) -> Locality {
        if self.is_local { Locality::SameProcess } else { of_host }
    }

    pub(crate) const fn address(&self) -> &ListenerAddress {
        &self.address
    }

    /// Returns the listener's address with `own` in front, if the listener has it: other ranks most likely reach it there too.
    pub(in crate::control) fn address_with(&self, own: Option<IpAddr>) -> ListenerAddress {
        let mut address = self.address.clone();
        let own = own.filter(|own| !own.is_loopback());
        let mut all = self.port.iter().flat_map(|open| &open.addresses);
        if let Some(&first) = all.find(|at| Some(at.ip()) == own) {
            address.addresses.retain(|at| *at != first);
            address.addresses.insert(0, first);
        }
        address.bounded()
    }

    /// Sends connections from members of this job to `events` from now on.
    pub(super) fn move_in(&self, cookie: Cookie, events: &mpsc::UnboundedSender<Event>) {
        self.services.send_modify(|services| {
            // The control planes of communicators that this process has dropped.
            services.worlds.retain(|_, events| events.strong_count() > 0);
            services.worlds.insert(cookie, events.downgrade());
        });
    }

    /// Records that the members of a communicator have gone on without these ranks of the job, which will be told so.
    pub(super) fn leave_behind(&self, cookie: Cookie, ranks: &[u32], communicator: u64, scope: Scope) {
        self.services.send_modify(|services| {
            ranks.iter().for_each(|rank| services.leave_behind(cookie, *rank, communicator, scope));
        });
    }

    /// Records how an agreement of this job was decided, for members that ask after this process has left the job.
    pub(super) fn decide(&self, cookie: Cookie, decided: Decided) {
        self.services.send_modify(|services| services.decide(cookie, decided));
    }

    /// Sends messages that members pass on to `to` from now on.
    pub(in crate::control) fn take_forwarded(&self, to: mpsc::Sender<Received>) {
        self.services.send_modify(|services| services.forwarded = Some(to));
    }

    /// Returns the waiting list in which newcomers wait for this group, and makes it if there is none. Newcomers are
    /// let in as long as the waiting list exists.
    pub(in crate::control) fn waiting_list(
        &self,
        group: GroupId,
        make: impl FnOnce() -> WaitingList,
    ) -> Arc<WaitingList> {
        let mut found = None;
        self.services.send_modify(|services| {
            services.waiting_lists.retain(|_, waiting_list| waiting_list.strong_count() > 0);
            let waiting_list = services.waiting_lists.get(&group).and_then(std::sync::Weak::upgrade);
            let waiting_list = waiting_list.unwrap_or_else(|| Arc::new(make()));
            services.waiting_lists.insert(group, Arc::downgrade(&waiting_list));
            found = Some(waiting_list);
        });
        found.expect("it was set above")
    }

    /// Returns the snapshot server from which newcomers fetch the state of this group, and makes it if there is none.
    pub(in crate::control) fn open_snapshot_server(&self, group: GroupId) -> Arc<SnapshotServer> {
        let snapshot_server = self.snapshot_server(group).unwrap_or_default();
        self.services.send_modify(|services| {
            services.snapshot_servers.retain(|_, snapshot_server| snapshot_server.strong_count() > 0);
            services.snapshot_servers.insert(group, Arc::downgrade(&snapshot_server));
        });
        snapshot_server
    }

    /// Returns the snapshot server of this group, if there is one.
    pub(in crate::control) fn snapshot_server(&self, group: GroupId) -> Option<Arc<SnapshotServer>> {
        self.services.borrow().snapshot_servers.get(&group).and_then(std::sync::Weak::upgrade)
    }

    /// Hands survivors with this id to `coordinator`, until the result is dropped.
    pub(crate) fn receive(&self, regroup_id: RegroupId, coordinator: &Coordinator) -> Box<dyn Send> {
        self.services.send_modify(|services| {
            services.coordinators.insert(regroup_id, coordinator.clone());
        });
        Box::new(RegisteredCoordinator { regroup_id, services: self.services.clone() })
    }

    /// Connects to another member's listener. Every step may take `patience`.
    pub(in crate::control) async fn connect(
        &self,
        at: &ListenerAddress,
        locality: Locality,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, ConnectError> {
        self.reach(at, locality, credentials, opening, patience, None).await.map(|reached| reached.stream)
    }

    /// Connects, perhaps by a third member, and also tells how.
    pub(in crate::control) async fn reach(
        &self,
        at: &ListenerAddress,
        locality: Locality,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
        detours: Option<&Detours>,
    ) -> std::result::Result<Reached, ConnectError> {
        let reached = at.reach(self.locality(locality), credentials, opening, patience, detours).await;
        if let Err(ConnectError::Silent(why)) = &reached {
            self.shortage.note_text(why);
        }
        reached
    }
}

impl ListenerAddress {
    /// Returns an address of the usual length, for tests.
    #[cfg(test)]
    pub(in crate::control) fn sample(rank: u32) -> Self {
        let addresses =
            [rank, rank + (1 << 20)].map(|at| SocketAddr::from(((10 << 24 | at).to_be_bytes(), 40_000)));
        Self { id: u64::MAX - u64::from(rank), key: [7; 16], addresses: addresses.into() }
    }

    /// Connects to a listener as [`Listener::connect`] does.
    pub(in crate::control) async fn connect(
        &self,
        locality: Locality,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, ConnectError> {
        self.reach(locality, credentials, opening, patience, None).await.map(|reached| reached.stream)
    }

    /// Connects, perhaps by a third member, and also tells how.
    async fn reach(
        &self,
        locality: Locality,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
        detours: Option<&Detours>,
    ) -> std::result::Result<Reached, ConnectError> {
        if locality == Locality::SameProcess {
            let stream = introduce(Box::new(in_process::connect(self.id)?), opening, patience).await?;
            return Ok(Reached { stream, at: None, by: None });
        }
        let direct = async {
            let (stream, at) = connect_to_port(self, locality, credentials, patience).await?;
            Ok(Reached { stream, at: Some(at), by: None })
        };
        let reached = match detours {
            Some(detours) => detours.or_by_others(direct, patience).await?,
            None => direct.await?,
        };
        let stream = introduce(reached.stream, opening, patience).await?;
        Ok(Reached { stream, ..reached })
    }

    /// Returns the random number of the listener.
    pub(in crate::control) const fn id(&self) -> u64 {
        self.id
    }

    /// Whether both are addresses of one listener.
    pub(in crate::control) fn is_of(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Returns the addresses of the listener, the one first that most likely leads there. A thread's has none.
    pub(in crate::control) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the port, if other processes can connect to this listener.
    pub(in crate::control) fn port(&self) -> Option<u16> {
        self.addresses.first().map(SocketAddr::port)
    }

    /// Whether other processes can connect to this listener.
    pub(in crate::control) fn has_port(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Whether the listener can be reached on its own host only.
    pub(in crate::control) fn is_on_one_host(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }

    /// Drops addresses beyond the number that is kept.
    pub(in crate::control) fn bounded(mut self) -> Self {
        self.addresses.truncate(MAX_LISTENER_ADDRESSES);
        self
    }

    /// Returns the keys that open the listener.
    pub(in crate::control) fn credentials(&self, spec: &JoinSpec) -> Credentials {
        Credentials { secret: spec.secret.clone(), rendezvous: Some(self.key) }
    }
}

/// Tells the other end of a connection what it is for, and returns the connection if it is taken.
pub(super) async fn introduce(
    mut stream: BoxedStream,
    opening: &Opening,
    patience: Duration,
) -> std::result::Result<BoxedStream, ConnectError> {
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
        Ok(Ok(Answer::LeftBehind(told))) => Err(ConnectError::LeftBehind(told)),
        Ok(Ok(Answer::Left(decided))) => Err(ConnectError::Left(decided)),
        Ok(Ok(Answer::Unknown)) => Err(ConnectError::Gone("it has left the job".into())),
        Ok(Err(error)) => Err(ConnectError::Silent(format!("its listener: {error}"))),
        Err(_) => Err(ConnectError::Silent("its listener does not answer".into())),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_local {
            in_process::close(self.address.id);
        }
        self.acceptor.abort();
    }
}

/// Returns the pause before the next attempt at a listener, after this many failures in a row. It is short at first: an
/// ending process closes its sockets one after another, so its listener may still accept and drop a connection after
/// the connection to it has ended, and refuse the next one.
pub(super) fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(AGREEMENT_BEAT)
}

struct RegisteredCoordinator {
    regroup_id: RegroupId,
    services: Registry,
}

impl Drop for RegisteredCoordinator {
    fn drop(&mut self) {
        self.services.send_modify(|services| {
            services.coordinators.remove(&self.regroup_id);
            remember(&mut services.over, self.regroup_id);
        });
    }
}

/// Draws the number and the key of a listener.
fn draw() -> Result<(u64, RendezvousKey)> {
    let mut drawn = [0; 24];
    getrandom::fill(&mut drawn)
        .map_err(|e| Error::system("drawing the key of a listener", io::Error::other(e.to_string())))?;
    let (id, key) = drawn.split_at(8);
    let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
    Ok((id, key.try_into().expect("sixteen bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::limits::MAX_REMEMBERED;

    #[tokio::test(flavor = "current_thread")]
    async fn a_listener_remembers_whom_its_members_have_gone_on_without() {
        let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
        let mut spec = JoinSpec::new(0, 1, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        let connect = |cookie: Cookie, from: u32| {
            let (own, at, credentials) = (&own, listener.address(), listener.address().credentials(&spec));
            async move {
                let opening = Opening::Connect { cookie, from };
                own.connect(at, Locality::SameHost, credentials, &opening, Duration::from_secs(20))
                    .await
                    .err()
            }
        };
        let (this, other): (Cookie, Cookie) = ([7; 16], [8; 16]);
        // These jobs have no members here any more, so a member that asks takes this one for gone.
        assert!(matches!(connect(this, 1).await, Some(ConnectError::Gone(_))));
        listener.leave_behind(this, &[1, 2], 5, Scope::Some);
        let told = |answer| match answer {
            Some(ConnectError::LeftBehind(told)) => told,
            Some(other) => panic!("{}", other.text()),
            None => panic!("nobody is there"),
        };
        for rank in [1, 2] {
            let told: LeftBehind = told(connect(this, rank).await);
            assert!(told.is_of(5) && !told.is_of(6), "{told:?}");
        }
        // Neither another rank nor the same rank of another job is told.
        assert!(matches!(connect(this, 3).await, Some(ConnectError::Gone(_))));
        assert!(matches!(connect(other, 1).await, Some(ConnectError::Gone(_))));
        // A communicator of all ranks counts for every communicator.
        listener.leave_behind(this, &[1], 9, Scope::Job);
        assert!(told(connect(this, 1).await).is_of(6) && !told(connect(this, 2).await).is_of(6));
        // The oldest entries are forgotten, so that the list does not grow.
        let many: Vec<u32> = (10..10 + MAX_REMEMBERED as u32).collect();
        listener.leave_behind(this, &many, 5, Scope::Some);
        assert!(matches!(connect(this, 2).await, Some(ConnectError::Gone(_))));
        assert!(told(connect(this, 10).await).is_of(5));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_listener_forgets_the_control_planes_that_have_ended() {
        let listener = Listener::open_for_threads().unwrap();
        let (kept, _inbox) = mpsc::unbounded_channel();
        listener.move_in([0; 16], &kept);
        for job in 1..100 {
            let (events, _inbox) = mpsc::unbounded_channel();
            listener.move_in([job; 16], &events);
        }
        let worlds = &listener.services.borrow().worlds;
        assert!(worlds.len() <= 2 && worlds.contains_key(&[0; 16]), "{} control planes", worlds.len());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_address_by_which_a_rank_reached_the_coordinator_comes_first() {
        let spec = JoinSpec::new(0, 2, Locator::Local(Default::default()), "a test");
        let mut listener = Listener::open_port(&spec).await.unwrap();
        let all: Vec<SocketAddr> = (1..=20).map(|last| ([10, 0, 0, last], 7).into()).collect();
        listener.port.as_mut().unwrap().addresses = all.clone();
        listener.address.addresses = all.clone();
        listener.address = listener.address.clone().bounded();
        let told = |own: SocketAddr| listener.address_with(Some(own.ip())).addresses;
        assert_eq!(told(all[0]), all[..MAX_LISTENER_ADDRESSES]);
        assert_eq!((told(all[19])[0], told(all[19]).len()), (all[19], MAX_LISTENER_ADDRESSES));
        assert_eq!(told(([192, 0, 2, 1], 7).into()), all[..MAX_LISTENER_ADDRESSES], "behind a NAT");
    }

    /// With a narrow KOLO_PORT_RANGE, a rank that is started again has the port of the one that has died.
    #[tokio::test(flavor = "current_thread")]
    async fn a_port_that_another_process_has_now_proves_the_end_of_the_one_before() {
        let mut spec = JoinSpec::new(0, 2, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        let (now, own) =
            (Listener::open_port(&spec).await.unwrap(), Listener::open_port(&spec).await.unwrap());
        let before = ListenerAddress { id: 5, key: [5; 16], ..now.address().clone() };
        let opening = Opening::Connect { cookie: [7; 16], from: 1 };
        let proven = Locality::Proven(Ipv4Addr::LOCALHOST.into());
        for locality in [proven, Locality::SameHost, Locality::OtherHost] {
            let credentials = before.credentials(&spec);
            let error =
                own.connect(&before, locality, credentials, &opening, Duration::from_secs(20)).await.err();
            match error {
                Some(ConnectError::Gone(text)) if locality == proven => {
                    assert!(text.contains("another process has"), "{text}")
                }
                Some(ConnectError::Refused(_)) if locality != proven => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_listener_that_drops_a_connection_is_tried_again_at_once_and_a_silent_one_at_every_beat() {
        let pauses: Vec<Duration> = (1..=40).map(pause_after).collect();
        assert_eq!(pauses[..3], [1, 2, 4].map(Duration::from_millis));
        assert!(pauses.is_sorted() && pauses[7..].iter().all(|pause| *pause == AGREEMENT_BEAT));
    }
}
