//! State shared by the handles of one communicator.
//!
//! # Threads
//! All state that changes is in [`Core`], behind one mutex. A blocking call takes the mutex, starts its operation and
//! drives the engine until the operation is done, without handing over to another thread. The helper thread exists only
//! once something asynchronous was started, and drives only while no other thread does. A driver releases the mutex
//! between steps when another thread asks for it, and while it sleeps. A blocking call that waits for its turn at the
//! exchange behind another thread's call sleeps without the mutex until that call is over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use kolo_transport::{Process, Unpoisoned};

use super::attendance::Attendance;
use super::core::Core;
use super::guard::CoreGuard;
use super::lineage::Lineage;
use super::time_limit::TimeLimit;
use crate::affinity::Assigned;
use crate::call::{Member, Waited};
use crate::config::{Config, Elastic, Transports};
use crate::control::{Control, Departure, Membership, WaitingList};
use crate::engine::Route;
use crate::error::{Error, ErrorContext, Result};
use crate::failure::Cause;
use crate::gpu::Gpus;
use crate::job::deadline_after;
use crate::network::{Between, Table};
use crate::wait::{self, Policy};

/// State of a communicator, which its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: Group,
    pub(crate) config: Config,
    pub(crate) policy: Policy,
    pub(crate) world: Arc<World>,
    pub(crate) membership: Membership,
    pub(crate) gpus: Gpus,
    pub(super) core: Contended,
    pub(crate) attendance: Attendance,
    pub(crate) fault: Fault,
    pub(crate) time_limit: TimeLimit,
    /// The communicators that were split off this one.
    pub(super) children: Mutex<Vec<Weak<Self>>>,
    /// Waiting list of newcomers.
    pub(super) waiting_list: OnceLock<Arc<WaitingList>>,
    /// The process that made the communicator.
    pub(super) process: Process,
}

/// The members of a communicator, and the route to each.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: u64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// World ranks of the members.
    pub(crate) members: Arc<[u32]>,
    /// Host index of each member.
    pub(crate) hosts: Arc<[u32]>,
    pub(crate) routes: Vec<Route>,
    /// How adapters treat buffers, if any peer is reached through them.
    pub(crate) adapters: Option<Adapters>,
}

/// Treatment of buffers by RDMA adapters, in words.
#[derive(Debug)]
pub(crate) struct Adapters {
    pub(crate) registrations: String,
    pub(crate) fork: String,
}

impl Group {
    /// Returns this rank as a member.
    #[inline]
    pub(crate) const fn member(&self) -> Member {
        Member { rank: self.rank, world_size: self.size }
    }

    /// Returns the route to a peer.
    pub(crate) fn route(&self, peer: u32) -> Option<&Route> {
        self.routes.iter().find(|route| route.peer == peer)
    }
}

/// The control plane and everything else that a communicator shares with those split off from it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) control: Control,
    /// Number of communicators that have not been dropped.
    communicators: AtomicUsize,
    /// Processor to which this rank returns, if ranks share processors. Communicators that are split off keep the same
    /// one.
    pub(super) processor: OnceLock<Option<Assigned>>,
    /// The network as measured with these transports, if it was measured.
    network: OnceLock<(Table, Transports)>,
    /// Peers that this rank has met at a relay, in this world or the one before. It looks for them there first.
    relayed: Mutex<BTreeSet<u32>>,
    /// Origin of this world, if it was made from another one.
    lineage: Option<Lineage>,
    /// The launcher's settings for members that come and go.
    pub(crate) elastic: Elastic,
}

impl World {
    pub(crate) const fn new(control: Control, elastic: Elastic) -> Self {
        Self {
            control,
            elastic,
            communicators: AtomicUsize::new(0),
            processor: OnceLock::new(),
            network: OnceLock::new(),
            relayed: Mutex::new(BTreeSet::new()),
            lineage: None,
        }
    }

    /// Makes the world of members that have come together again.
    pub(super) fn changed(
        control: Control,
        lineage: Lineage,
        elastic: Elastic,
        processor: OnceLock<Option<Assigned>>,
        network: Option<(Table, Transports)>,
        relayed: BTreeSet<u32>,
    ) -> Self {
        let network = network.map_or_else(OnceLock::new, OnceLock::from);
        let (communicators, lineage) = (AtomicUsize::new(0), Some(lineage));
        Self { control, communicators, processor, network, relayed: Mutex::new(relayed), lineage, elastic }
    }

    /// Returns those of `ranks` that this rank has met at a relay, by their places in `ranks`.
    pub(super) fn relayed_of(&self, ranks: &[u32]) -> Vec<u32> {
        let relayed = self.relayed.lock().unpoisoned();
        ranks.iter().zip(0..).filter(|(rank, _)| relayed.contains(rank)).map(|(_, place)| place).collect()
    }

    /// Returns the measurements for a world of some of the ranks.
    pub(super) fn network_of(&self, ranks: &[u32]) -> Option<(Table, Transports)> {
        let (table, by) = self.network.get()?;
        Some((table.of(ranks)?, by.clone()))
    }

    /// Returns whether the network was measured.
    pub(crate) fn knows_network(&self) -> bool {
        self.network.get().is_some()
    }

    /// Counts a new communicator.
    pub(crate) fn entered(&self) {
        self.communicators.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a communicator was dropped. The last one says goodbye, even if handles of operations remain: otherwise
    /// the coordinator would report this rank as lost when the process ends. After an abrupt departure, rank 0 does not
    /// wait for the others' goodbyes.
    pub(crate) fn left(&self, departure: Departure) {
        if self.communicators.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A rank that leaves because of a panic is lost, and tells the others so.
            self.control.leave_or_die(departure);
        }
    }

    /// Returns the number of changes of the group since its ranks joined.
    pub(crate) fn epoch(&self) -> u64 {
        self.lineage.as_ref().map_or(0, |lineage| lineage.epoch)
    }

    /// Returns the origin of this world, if it was made from another one.
    pub(super) fn lineage(&self) -> Option<&Lineage> {
        self.lineage.as_ref()
    }

    /// Returns, for each rank of this world, its rank in the communicator from which this world was made; `None` if
    /// there was none.
    pub(crate) fn ranks_before(&self) -> Option<&[Option<u32>]> {
        self.lineage.as_ref().map(|lineage| &lineage.ranks_before[..])
    }

    /// Keeps measurements for communicators that are split off.
    pub(crate) fn learn(&self, table: Table, transports: Transports) {
        let _ = self.network.set((table, transports));
    }

    /// Returns the network between the hosts of some ranks, if it was measured with these transports.
    pub(super) fn network(&self, ranks: &[u32], transports: &Transports) -> Option<(Between, Duration)> {
        let (table, _) = self.network.get().filter(|(_, by)| by == transports)?;
        Some((table.between(ranks)?, table.took))
    }
}

/// The reason why the communicator cannot be used any more, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    cause: Mutex<Option<Cause>>,
    /// When a call first saw that a member was lost.
    pub(crate) loss_seen: OnceLock<Instant>,
}

impl Fault {
    /// Returns the first cause.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.lock().unpoisoned().clone()
    }

    /// Notes a cause, unless there is one already.
    pub(crate) fn note(&self, cause: &Cause) {
        self.cause.lock().unpoisoned().get_or_insert_with(|| cause.clone());
    }
}

/// The core, and the number of threads that wait for it.
#[derive(Debug)]
pub(super) struct Contended {
    core: Mutex<Core>,
    wanting: AtomicU32,
}

impl Contended {
    pub(super) const fn new(core: Core) -> Self {
        Self { core: Mutex::new(core), wanting: AtomicU32::new(0) }
    }
}

/// Yields within which a thread that was woken for the core should have taken it.
const YIELDS_MAX: u32 = 8;

impl Shared {
    fn children(&self) -> MutexGuard<'_, Vec<Weak<Self>>> {
        self.children.lock().unpoisoned()
    }

    /// Takes in a communicator that was split off this one. It has this one's time limit from now on.
    pub(crate) fn take_in(&self, child: &Arc<Self>) {
        let mut children = self.children();
        children.retain(|known| known.strong_count() > 0);
        children.push(Arc::downgrade(child));
        child.time_limit.set_outer(self.time_limit.in_force());
    }

    /// Sets the time limit for calls that begin to wait from now on, here and on the communicators split off this one.
    pub(crate) fn limit_calls(&self, until: Option<Instant>) {
        self.time_limit.set(until);
        self.pass_limit_on();
    }

    fn pass_limit_on(&self) {
        for child in self.children().iter().filter_map(Weak::upgrade) {
            child.time_limit.set_outer(self.time_limit.in_force());
            child.pass_limit_on();
        }
    }

    /// Returns the deadline of a call that waits for the other ranks for `patience` at most, within the time limit.
    pub(crate) fn deadline_after(&self, patience: Duration) -> Instant {
        deadline_after(self.time_limit.within(patience.into()).left)
    }

    /// Returns the waiting list of newcomers at this rank's listener, if it has one.
    pub(crate) fn waiting_list(&self) -> Option<&Arc<WaitingList>> {
        self.waiting_list.get()
    }

    /// Lets newcomers know the listeners of this communicator's members from now on.
    pub(crate) fn publish_members(&self) {
        if let Some(waiting_list) = self.waiting_list.get() {
            waiting_list.set_members(self.world.control.member_addresses(&self.group.members));
        }
    }

    /// Returns whether all members have the communicator without further confirmation. Members that come together again
    /// confirm it.
    pub(crate) fn is_complete(&self) -> bool {
        self.group.id != super::WORLD || self.world.lineage.is_none()
    }

    /// Returns the waiting list. A rank without a listener, because it was alone, opens one.
    pub(crate) fn open_waiting_list(&self) -> Result<Option<&Arc<WaitingList>>> {
        if self.waiting_list.get().is_none() {
            self.world.control.open_listener()?;
            if let Some(waiting_list) = super::growth::open_waiting_list(self) {
                let _ = self.waiting_list.set(waiting_list);
            }
            self.publish_members();
        }
        Ok(self.waiting_list.get())
    }

    /// Keeps the ranks met at a relay for later communicators.
    pub(crate) fn note_relayed(&self) {
        let relayed = self.look(|core| core.engine.links().relayed());
        let relayed = relayed.into_iter().map(|rank| self.group.members[rank as usize]);
        self.world.relayed.lock().unpoisoned().extend(relayed);
    }

    /// Takes the core. A driver that holds it gives way.
    #[inline]
    pub(crate) fn core(&self) -> CoreGuard<'_> {
        match self.core.core.try_lock() {
            Ok(core) => CoreGuard::new(core),
            // A thread panicked while it held the core, and has left the communicator unusable: see `drive::lend`.
            Err(TryLockError::Poisoned(core)) => CoreGuard::new(core.into_inner()),
            Err(TryLockError::WouldBlock) => self.core_in_use(),
        }
    }

    #[cold]
    fn core_in_use(&self) -> CoreGuard<'_> {
        self.core.wanting.fetch_add(1, Ordering::Relaxed);
        let core = self.core.core.lock().unpoisoned();
        self.core.wanting.fetch_sub(1, Ordering::Relaxed);
        CoreGuard::new(core)
    }

    /// Returns whether another thread wants the core.
    pub(crate) fn is_wanted(&self) -> bool {
        self.core.wanting.load(Ordering::Relaxed) > 0
    }

    /// Lets another thread take the core. Otherwise the thread that has just released the lock would take it again
    /// before the other wakes up.
    pub(crate) fn give_way<'a>(&'a self, core: CoreGuard<'a>) -> CoreGuard<'a> {
        drop(core);
        for _ in 0..YIELDS_MAX {
            wait::yield_now();
            if !self.is_wanted() {
                break;
            }
        }
        self.core()
    }

    /// Returns whether nothing has happened that might make the communicator unusable.
    #[inline]
    pub(crate) fn is_well(&self, core: &Core) -> bool {
        !core.closed && core.engine.failure().is_none() && !self.membership.abort_flag().is_raised()
    }

    pub(crate) fn context(&self, waited: Waited) -> ErrorContext {
        let rank = Some(self.group.rank);
        ErrorContext { rank, operation: waited.to_string(), sequence: waited.number() }
    }

    /// Returns whether this is the process that made the communicator: see [`forked`](super::forked).
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Fails in a child made by `fork`.
    #[inline]
    pub(crate) fn check_process(&self, called: impl FnOnce() -> Waited) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(self.forked(called())) }
    }

    #[cold]
    fn forked(&self, called: Waited) -> Error {
        let problem = "this communicator was made before a fork and cannot be used in the child; make a new one there, or \
                       start the child with exec";
        Error::Usage { context: self.context(called), problem: problem.to_owned() }
    }

    /// Answers a question that has no error. In a child, where another thread may have held the core, the answer is
    /// that of a communicator on which nothing was called.
    pub(crate) fn look<R: Default>(&self, question: impl FnOnce(&Core) -> R) -> R {
        if self.is_ours() { question(&self.core()) } else { R::default() }
    }
}
