//! The control plane: a star around rank 0.
//!
//! Rank 0's process runs the coordinator. Every rank, including rank 0, keeps one connection to it: an in-memory pipe
//! within a process, otherwise TCP. Over this connection ranks join, gather small blobs, learn at once of lost and
//! departed peers, spread aborts, and ask each other for their state. It never carries a collective's data.
//!
//! One background thread per process ([`ControlRuntime`]) serves everything. It wakes once a second if nothing happens.
//! Calling threads block on a condition variable with a deadline.
//!
//! **Failure.** A connection that ends without a goodbye means a lost rank. The coordinator tells all ranks within
//! milliseconds, and each rank raises the [`AbortFlag`] of every communicator that contains the lost one. If rank 0 is
//! lost, each rank notices by itself and raises all its flags. A silent peer is first suspected, and later given up
//! ([`Liveness`]).
//!
//! **Leaving.** A goodbye is not a failure: the others see [`Membership::departed`]. Rank 0's goodbye waits for the
//! others' goodbyes (for at most [`Liveness::linger`], and not at all after an abort). The coordinator then sends a
//! closing notice and ends. Ranks that are still running go on without a control plane, and only their transports
//! notice failures from then on. The first cause that reaches a rank stays there, so ranks that abort at the same
//! moment may name different causes.
//!
//! | file | contents |
//! | --- | --- |
//! | `job::limits` | all limits and time constants |
//! | `wire`, `ranks` | messages; texts for lists of ranks |
//! | `handshake`, `sealed` | proof of keys, and the encrypted stream that follows |
//! | `stream`, `host_monitor`, `probe` | connections that know when the other end's kernel last answered; whether a host lives |
//! | `coordinator_state`, `coordinator_ranks`, `coordinator_gathers` | the coordinator without sockets |
//! | `coordinator`, `incoming`, `pending` | its sockets; connections that have not identified themselves |
//! | `connect`, `dial`, `member` | how a rank joins, and its end of the connection |
//! | `relay` | passes bytes between two ranks if neither can dial the other |
//! | `forwarding` | long messages of the coordinator that ranks pass on to each other |
//! | `peers` | connections among members, without the coordinator |
//! | `agreement`, `regroup` | agreements among members over these, and a new control plane for those that are left |
//! | `invitation`, `newcomer`, `fetcher` | how a newcomer reaches a group, becomes a member, and copies the members' state |
//! | `all_gather`, `membership`, `registered`, `abort`, `runtime` | the parts that ranks call |
//! | `board`, `recent` | the state that a rank shows to others: its calls, and what it waits for |

mod abort;
mod agreement;
mod all_gather;
mod board;
mod connect;
mod coordinator;
mod coordinator_gathers;
mod coordinator_ranks;
mod coordinator_state;
mod dial;
#[cfg(test)]
mod false_coordinator_tests;
mod fetcher;
mod forwarding;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod host_monitor;
mod incoming;
mod invitation;
mod member;
mod membership;
mod newcomer;
mod peers;
mod pending;
mod probe;
mod ranks;
mod recent;
mod registered;
mod regroup;
mod relay;
mod runtime;
mod sealed;
mod stream;
mod wire;

use std::fmt;
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

pub use abort::{AbortCause, AbortFlag, AbortKind, Loss};
pub use board::{Past, Status, StatusBoard};
pub use invitation::Invitation;
pub use membership::Membership;
pub use runtime::ControlRuntime;
pub use wire::{GatherKey, PeerInfo, Round};

pub(crate) use agreement::{Disagreement, Purpose, Until};
pub(crate) use coordinator::Coordinator;
pub(crate) use fetcher::{Fetcher, Job, News, Requests};
pub(crate) use newcomer::{Applicant, Offer, first_invitation};
pub(crate) use peers::listener::ListenerAddress;
pub(crate) use peers::missing::{Missing, Silent};
pub(crate) use peers::snapshots::{Hash, Snapshot, SnapshotServer};
pub(crate) use peers::waiting_list::{
    Admission, AdmittedNewcomer, GroupId, MemberAddress, Newcomer, WaitingList,
};
pub(crate) use regroup::{Absence, RegroupSpec};
pub(crate) use wire::foreign;

use kolo_transport::tcp::Port;
use kolo_transport::{Process, Unpoisoned};

use crate::error::{Error, JoinFailure, LossCause, Result};
use crate::job::limits::{
    ABORT_DELIVERY_TIMEOUT, CLOSING_TIMEOUT, GOODBYE_TIMEOUT, MAX_NAME_BYTES, MAX_SOURCE_BYTES,
};
pub use crate::job::limits::{MAX_BLOB_BYTES, MAX_GATHERED_BYTES, PROTOCOL};
pub use crate::job::{Cookie, JobSecret, Liveness, MAX_WORLD_SIZE};
use crate::job::{RendezvousKey, mac};
use crate::join::{self, JoinSpec, Locator};
use coordinator_ranks::CoordinatorSettings;
use forwarding::Forwarder;
use handshake::Credentials;
use hmac::Mac as _;
use incoming::Incoming;
use member::{CoordinatorStanding, Shared};
use peers::Peers;
use peers::evidence::Seen;
use peers::listener::Listener;
use regroup::Regroup;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;
use wire::ToCoordinator;

/// Time beyond the deadline that rank 0 waits for its coordinator's verdict, which falls at the deadline itself.
const VERDICT_GRACE: Duration = Duration::from_secs(2);

/// Longest time that a leaving rank waits until its messages have been passed on. After that, rank 0 sends them itself.
const FORWARDING_GRACE: Duration = Duration::from_secs(1);

/// A rank's place in a job. Cloning is cheap. When the last clone is dropped, it says goodbye (see [`Control::leave`])
/// or, in a panicking thread, tells the others that this rank is lost.
#[derive(Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

/// How a rank leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// All its operations have ended. Rank 0 waits for the others' goodbyes, for at most so long.
    Orderly { patience: Duration },
    /// Operations are still open. Rank 0 waits for nobody.
    Abrupt,
}

/// Meaning of silence on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSilence {
    /// The other end counts as lost.
    Fail,
    /// None, since both ends are threads of one process.
    Ignore,
}

struct Inner {
    shared: Arc<Shared>,
    spec: JoinSpec,
    runtime: ControlRuntime,
    coordinator: std::sync::Mutex<Option<Coordinator>>,
    /// Listener for the other members and for newcomers.
    listener: OnceLock<Arc<Listener>>,
    /// Connections to the other members' listeners, once these are known.
    peers: Option<Peers>,
    process: Process,
}

impl Control {
    /// Returns how long a rank may be silent before it counts as lost.
    pub(crate) fn dead_after(&self) -> Duration {
        self.inner.spec.liveness.dead_after
    }

    /// Makes hosts count as lost once they have not answered for `limit`, because the group goes on after a loss. Does
    /// nothing if KOLO_DEAD_AFTER is set. Acts on this rank only and does not block.
    pub(crate) fn watch_hosts(&self, limit: Duration) {
        if self.inner.spec.liveness.watches_hosts {
            self.inner.shared.watch_hosts(limit);
        }
    }

    /// Finds the other ranks. Blocks until all have joined, at most for `spec.timeout`.
    ///
    /// # Errors
    /// [`Error::Configuration`] for invalid numbers; [`Error::Join`] if rank 0 cannot be reached or cannot listen, if
    /// ranks are missing at the deadline, or if the processes do not fit together.
    pub fn join(spec: &JoinSpec, runtime: &ControlRuntime) -> Result<Self> {
        Self::join_watching(spec, runtime, Vec::new())
    }

    /// Joins as [`Control::join`] does, but fails once an alarm reports that a rank will not come.
    fn join_watching(spec: &JoinSpec, runtime: &ControlRuntime, alarms: Vec<Alarm>) -> Result<Self> {
        spec.check()?;
        let (report, outcome) = mpsc::sync_channel(1);
        let task = spec.clone();
        runtime.spawn(async move {
            let _ = report.send(join_all(&task, alarms).await);
        });
        let Joined { shared, coordinator, listener, listeners, seen } =
            outcome.recv().map_err(|_| Error::Join {
                rank: Some(spec.rank),
                kind: JoinFailure::Interrupted,
                problem: "the control thread ended while joining".into(),
                remedy: "Keep the ControlRuntime alive until join has returned".into(),
            })??;
        let peers = listener
            .as_ref()
            .map(|listener| Peers::start(runtime, spec, &shared, listener.clone(), listeners, &seen));
        let listener = listener.map_or_else(OnceLock::new, OnceLock::from);
        let (spec, runtime, process) = (spec.clone(), runtime.clone(), Process::current());
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                spec,
                runtime,
                coordinator: std::sync::Mutex::new(coordinator),
                listener,
                peers,
                process,
            }),
        })
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.spec.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.inner.spec.world_size
    }

    /// Returns a random number that identifies this job and is equal on all ranks.
    #[must_use]
    pub fn job_cookie(&self) -> Cookie {
        self.inner.shared.cookie
    }

    /// Returns the port at which this process's endpoints may listen.
    pub(crate) fn port(&self) -> Option<Arc<Port>> {
        self.inner.listener.get()?.port().cloned()
    }

    /// Returns facts about all ranks, by rank.
    #[must_use]
    pub fn peer_info(&self) -> &[PeerInfo] {
        &self.inner.shared.peers
    }

    /// Returns the settings with which this rank joined.
    #[must_use]
    pub fn spec(&self) -> &JoinSpec {
        &self.inner.spec
    }

    /// Returns how many connections rank 0's coordinator has rejected because they were not ranks of this job; `None`
    /// on other ranks.
    #[must_use]
    pub fn rejected_connections(&self) -> Option<u64> {
        let coordinator = self.inner.coordinator.lock().unpoisoned();
        coordinator
            .as_ref()
            .map(|coordinator| coordinator.counters.rejected.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Returns the address at which this rank has reached rank 0's coordinator. `None` in a cluster of threads.
    pub(crate) fn coordinator_at(&self) -> Option<std::net::SocketAddr> {
        self.inner.shared.coordinator_at
    }

    /// Returns how many bytes of the control plane rank 0 has sent to ranks and received from them, without handshakes;
    /// `None` on other ranks.
    #[must_use]
    pub fn coordinator_bytes(&self) -> Option<(u64, u64)> {
        let coordinator = self.inner.coordinator.lock().unpoisoned();
        let bytes = |of: &std::sync::atomic::AtomicU64| of.load(std::sync::atomic::Ordering::Relaxed);
        coordinator.as_ref().map(|coordinator| {
            let sent = bytes(&coordinator.counters.sent_bytes) + self.inner.shared.forwarded_bytes();
            (sent, bytes(&coordinator.counters.received_bytes))
        })
    }

    /// Whether this rank has left the job, rank 0 has closed the coordinator, or rank 0 is lost.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.shared.lock().coordinator != CoordinatorStanding::Open
    }

    /// Gathers one value from each of `members` (world ranks, which all members name in the same order), identified by a
    /// key that is used once. Returns the values in the order of the members. Blocks until the deadline at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the missing members, which then fails the all-gather for all who came; [`Error::PeerLost`]
    /// or [`Error::Aborted`] if a member is lost, has left, or aborts the communicator of the key; [`Error::Usage`] if
    /// the members disagree or the values are too long; [`Error::Join`] if a value cannot be read. Ranks in errors are
    /// positions in `members`.
    pub fn all_gather<T: Serialize + DeserializeOwned>(
        &self,
        key: GatherKey,
        members: &[u32],
        value: &T,
        deadline: Instant,
    ) -> Result<Vec<T>> {
        all_gather::all_gather(&self.inner.shared, key, members, value, deadline)
    }

    /// Registers a communicator, so that its losses and aborts are noticed from now on. `members` are world ranks in
    /// the order of their ranks in the communicator; this rank must be among them. Ids are unique within the job.
    #[must_use]
    pub fn register(&self, communicator: u64, members: Arc<[u32]>) -> Membership {
        self.register_below(communicator, members, Arc::default())
    }

    /// Registers a communicator that was split off others, whose revocation ends it too.
    pub(crate) fn register_below(
        &self,
        communicator: u64,
        members: Arc<[u32]>,
        ancestors: Arc<[u64]>,
    ) -> Membership {
        Membership::new(self.clone(), communicator, members, ancestors)
    }

    /// Says goodbye, so that the others see this rank as departed, not lost. Rank 0 waits for the others' goodbyes (see
    /// [`Liveness::linger`]). A second call does nothing.
    pub fn leave(&self) {
        self.inner.leave(Departure::Orderly { patience: Duration::MAX });
    }

    /// Says goodbye or, in a panicking thread, reports that this rank is lost and why. Rank 0 waits for the others'
    /// goodbyes only after an orderly departure.
    pub(crate) fn leave_or_die(&self, departure: Departure) {
        self.inner.leave_or_die(departure);
    }

    /// Returns the name of the group that begins with a communicator: see [`GroupId`].
    pub(crate) fn name_group(&self, communicator: u64) -> GroupId {
        let name = mac(&self.inner.shared.cookie, b"kolo group", &[&communicator.to_le_bytes()]);
        let name = name.finalize().into_bytes();
        std::array::from_fn(|i| name[i])
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }
}

impl Inner {
    fn leave(&self, departure: Departure) {
        if !self.process.is_current() {
            return; // A child made by `fork`: the membership is the parent's.
        }
        self.wait_for_abort_delivery();
        self.announce(&ToCoordinator::Goodbye);
        // A rank that was left behind says nothing any more.
        if !self.shared.left_behind().contains(&0) {
            self.wait_for_goodbye();
        }
        self.close_coordinator(match departure {
            Departure::Orderly { patience } if !self.shared.anything_aborted() => {
                patience.min(self.spec.liveness.linger)
            }
            Departure::Orderly { .. } | Departure::Abrupt => Duration::ZERO,
        });
    }

    fn leave_or_die(&self, departure: Departure) {
        if std::thread::panicking() && self.process.is_current() {
            let what = std::thread::current().name().unwrap_or("unnamed").to_owned();
            // This waits until the coordinator has the reason. Otherwise the end of the process would overtake it.
            let text = wire::clip(format!("its thread '{what}' panicked"), MAX_NAME_BYTES);
            self.announce(&ToCoordinator::Dying { loss: Loss::new(LossCause::Panicked, text) });
            self.wait_for_goodbye();
            self.close_coordinator(Duration::ZERO);
        } else {
            self.leave(departure);
        }
    }

    /// Tells the coordinator, once, that this rank goes.
    fn announce(&self, departure: &ToCoordinator) {
        if !self.runtime.is_current() && !self.shared.anything_aborted() {
            self.shared.wait_until_forwarded(FORWARDING_GRACE);
        }
        let mut state = self.shared.lock();
        if state.coordinator == CoordinatorStanding::Open {
            state.coordinator = CoordinatorStanding::Left { answered: false };
            drop(state);
            self.shared.send(departure);
        }
    }

    /// Without a coordinator, or if it was left behind, waits until the other members have heard that this rank has
    /// given up. Otherwise those that wait for it would report it as lost when its connections end.
    fn wait_for_abort_delivery(&self) {
        let standing = self.shared.lock().coordinator.clone();
        let is_on_its_own = match standing {
            CoordinatorStanding::Closed | CoordinatorStanding::Lost(_) => true,
            CoordinatorStanding::Open => self.shared.left_behind().contains(&0),
            CoordinatorStanding::Left { .. } => false,
        };
        if let Some(peers) = self.peers.as_ref().filter(|_| is_on_its_own && !self.runtime.is_current()) {
            peers.wait_until_delivered(ABORT_DELIVERY_TIMEOUT);
        }
    }

    fn wait_for_goodbye(&self) {
        if !self.runtime.is_current() {
            member::wait_for_goodbye(&self.shared, GOODBYE_TIMEOUT);
        }
    }

    fn close_coordinator(&self, patience: Duration) {
        let coordinator = self.coordinator.lock().unpoisoned().take();
        if let Some(coordinator) = coordinator {
            let (done, ended) = mpsc::channel::<()>();
            self.runtime.spawn(coordinator.linger(patience, self.shared.left_behind(), Box::new(done)));
            if self.runtime.is_current() {
                return;
            }
            // Nothing is ever sent here. The coordinator drops the other end when it has ended.
            let _ = ended.recv_timeout(patience + 3 * CLOSING_TIMEOUT);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave_or_die(Departure::Orderly { patience: Duration::MAX });
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("spec", &self.inner.spec).finish_non_exhaustive()
    }
}

/// Derives a number that only processes with the seed can know.
pub(crate) fn derive(seed: &[u8; 32], label: &[u8]) -> [u8; 32] {
    mac(seed, label, &[]).finalize().into_bytes().into()
}

/// Reports that a process will not come.
type Alarm = oneshot::Receiver<Absence>;

struct Joined {
    shared: Arc<Shared>,
    coordinator: Option<Coordinator>,
    listener: Option<Arc<Listener>>,
    /// The listeners of all ranks.
    listeners: Arc<[ListenerAddress]>,
    /// The ends of the ranks' connections to the coordinator.
    seen: Vec<Option<Seen>>,
}

/// Joins, on the control thread: rank 0 starts the coordinator, and all ranks open their listeners and become members.
async fn join_all(spec: &JoinSpec, mut alarms: Vec<Alarm>) -> Result<Joined> {
    let started = Instant::now();
    // An alarm whose sender was dropped never sounds.
    let alarmed = std::future::poll_fn(|context| {
        let sounds = |alarm: &mut Alarm| match Pin::new(alarm).poll(context) {
            Poll::Ready(Ok(told)) => Some(told),
            _ => None,
        };
        alarms.iter_mut().find_map(sounds).map_or(Poll::Pending, Poll::Ready)
    });
    let listener = open_listener(spec).await;
    let coordinator =
        if spec.rank == 0 { Some(start_coordinator(spec, listener.as_deref()).await?) } else { None };
    let (mut connected, coordinator) = if let Some(coordinator) = coordinator {
        let until = started + spec.timeout + VERDICT_GRACE;
        let welcome = connect::become_member(spec, Some(&coordinator), listener.as_deref(), until);
        match first_of(spec, started, welcome, alarmed).await {
            Ok(connected) => (connected, Some(coordinator)),
            Err(error) => {
                // The other ranks must hear the verdict before this process ends.
                let (done, ended) = oneshot::channel::<()>();
                coordinator.linger(Duration::ZERO, Vec::new(), Box::new(done)).await;
                let _ = tokio::time::timeout(2 * CLOSING_TIMEOUT, ended).await;
                return Err(error);
            }
        }
    } else {
        let welcome = connect::become_member(spec, None, listener.as_deref(), started + spec.timeout);
        (first_of(spec, started, welcome, alarmed).await?, None)
    };
    if let (Locator::Local(rendezvous), 0) = (&spec.locator, spec.rank) {
        rendezvous.coordinator.send_replace(None);
    }
    let listeners: Arc<[ListenerAddress]> =
        std::mem::take(&mut connected.listeners).into_iter().map(Option::unwrap_or_default).collect();
    let forwarder = forwards(spec).then(|| Forwarder::new(spec, listeners.clone()));
    Ok(Joined {
        seen: std::mem::take(&mut connected.seen),
        shared: member::serve(spec.rank, connected, spec.liveness, forwarder),
        coordinator,
        listener,
        listeners,
    })
}

/// Waits for the welcome, or for the news that a rank will not come.
async fn first_of<T>(
    spec: &JoinSpec,
    started: Instant,
    welcome: impl Future<Output = Result<T>>,
    alarmed: impl Future<Output = Absence>,
) -> Result<T> {
    let mut welcome = std::pin::pin!(welcome);
    let absence = tokio::select! {
        biased;
        joined = &mut welcome => return joined,
        absence = alarmed => absence,
    };
    // The other rank has most likely given up because its time was over. This rank's is over about now, and it may know
    // the reason.
    if started.elapsed() + VERDICT_GRACE >= spec.timeout
        && let Ok(joined) = tokio::time::timeout(2 * VERDICT_GRACE, welcome).await
    {
        return joined;
    }
    Err(Error::Join {
        rank: Some(spec.rank),
        kind: JoinFailure::Survivors,
        problem: absence.to_string(),
        remedy: "Call shrink or grow again".into(),
    })
}

/// Whether ranks pass on messages of the coordinator. Survivors do not: they keep their listeners, through which ranks
/// of an earlier control plane may still connect.
fn forwards(spec: &JoinSpec) -> bool {
    !matches!(spec.locator, Locator::Survivors(_))
}

/// Starts the coordinator. Ranks join at the listener's port, unless the launcher has named another one.
async fn start_coordinator(spec: &JoinSpec, listener: Option<&Listener>) -> Result<Coordinator> {
    let mut cookie = Cookie::default();
    getrandom::fill(&mut cookie)
        .map_err(|e| Error::system("drawing the job's cookie", std::io::Error::other(e.to_string())))?;
    let mut key = RendezvousKey::default();
    getrandom::fill(&mut key)
        .map_err(|e| Error::system("drawing the rendezvous' key", std::io::Error::other(e.to_string())))?;
    let shared = listener.filter(|_| spec.locator.publishes_key()).and_then(Listener::incoming);
    let (shared, addresses) = shared.map_or((None, None), |(incoming, at)| (Some(incoming), Some(at)));
    let anchor = join::bind(spec, &key, addresses).await?;
    let incoming = shared.or(anchor.listener.map(Incoming::Own));
    let credentials =
        Credentials { secret: spec.secret.clone(), rendezvous: spec.locator.publishes_key().then_some(key) };
    let settings = CoordinatorSettings {
        world_size: spec.world_size,
        cookie,
        job: wire::clip(spec.job.clone(), MAX_NAME_BYTES),
        source: wire::clip(spec.source.clone(), MAX_SOURCE_BYTES),
        timeout: spec.timeout,
        liveness: spec.liveness,
        forwards: forwards(spec),
    };
    let coordinator = Coordinator::start(settings, credentials, incoming, anchor.published);
    match &spec.locator {
        Locator::Local(rendezvous) => {
            rendezvous.coordinator.send_replace(Some(Arc::new(coordinator.clone())));
        }
        Locator::Survivors(regroup) => {
            if let Some(regroup) = Regroup::of(regroup) {
                coordinator.publish(regroup.receive(&coordinator)).await;
            }
        }
        _ => {}
    }
    Ok(coordinator)
}

/// Opens this rank's listener, or keeps the one that a survivor already has. A rank that cannot open a listener still
/// joins: only [`Communicator::shrink`](crate::Communicator::shrink) and similar calls need the listener, and they
/// report that it is missing.
async fn open_listener(spec: &JoinSpec) -> Option<Arc<Listener>> {
    if let Locator::Survivors(regroup) = &spec.locator {
        return Regroup::of(regroup).map(|regroup| regroup.listener.clone());
    }
    if spec.world_size == 1 {
        return None;
    }
    match Listener::open(spec).await {
        Ok(listener) => Some(Arc::new(listener)),
        Err(error) => {
            tracing::warn!(
                rank = spec.rank,
                %error,
                "could not open a port for the other members: this rank cannot shrink or agree"
            );
            None
        }
    }
}
