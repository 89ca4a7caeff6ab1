//! The public API: communicators, collectives, messages, groups and symmetric buffers.

#[cfg(feature = "ndarray")]
mod arrays;
#[cfg(test)]
mod at_once_tests;
mod batch;
mod builder;
mod cluster;
mod collectives;
#[cfg(test)]
mod counts_tests;
mod elastic;
#[cfg(test)]
mod elastic_tests;
#[cfg(test)]
mod floats_tests;
mod gpu;
mod grow;
#[cfg(test)]
mod helper_tests;
mod irregular;
#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod lent_tests;
mod messages;
mod network;
#[cfg(test)]
mod owner_tests;
#[cfg(feature = "bytemuck")]
mod plain;
mod point_to_point;
mod probe;
mod raw;
mod registration;
mod scope;
mod scope_messages;
mod shards;
#[cfg(test)]
mod single_tests;
mod stable;
mod start;
mod start_messages;
pub mod state;
mod subset;
mod survivors;
mod symmetric;
mod typed;
mod work;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "ndarray")]
pub use arrays::DenseArray;
pub use batch::Batch;
pub use builder::CommunicatorBuilder;
pub use cluster::Cluster;
pub use elastic::Agreement;
pub use messages::RawMessage;
#[cfg(feature = "bytemuck")]
pub use plain::Plain;
pub use probe::WaitingMessage;
pub use registration::{RegisteredBuffer, Registration, RegistrationStatus};
pub use scope::Scope;
pub use stable::StableBuffer;
pub use survivors::{Change, Survivors};
pub use symmetric::SymmetricBuffer;
pub use work::{SecondWait, Work};

use kolo_collectives::model::Model;
use kolo_transport::{Rail, TcpOptions};

use crate::call::{Member, RawCall, Waited};
use crate::communicator::{Core, Making, Record, Shared, WORLD, leak_in_child, on_gpus, tcp_options};
use crate::config::Config;
use crate::control::PeerInfo;
use crate::dispatch::Explanation;
use crate::drive;
use crate::engine::Route;
use crate::error::{Error, Result};
use crate::network::{paced_in_words, rails_in_words};
use crate::wait::Policy;

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order. Several threads may use a communicator, if the
/// program makes sure that this order is the same on all ranks. Blocking and asynchronous collectives do not match each
/// other; blocking and asynchronous messages do.
///
/// A collective blocks until this rank's part is done: its output is complete, and its input may be changed. Its
/// return says nothing about the other ranks, except for [`Communicator::barrier`].
///
/// # Errors of calls
/// [`crate::Error::Usage`] and [`crate::Error::Unsupported`] mean that lengths, root or operator are not valid. They
/// are returned before anything is sent, and the communicator stays usable. After every other error
/// ([`crate::Error::Mismatch`], [`crate::Error::PeerLost`], [`crate::Error::Timeout`], [`crate::Error::Aborted`],
/// [`crate::Error::Transport`]) no rank can use the communicator any more. [`crate::Error::is_fatal`] tells the two
/// kinds apart.
///
/// # Dropping
/// Dropping a communicator waits until all sent data has left, and tells the other ranks. World rank 0, which passes on
/// the goodbyes, also waits for those of the other ranks when it drops its last communicator. Each waits for at most 5
/// seconds in all.
///
/// # Fork
/// A communicator belongs to the process that made it. In a child made by `fork`, calls on the communicator, and on
/// objects made from it, fail with [`crate::Error::Usage`] and do nothing. Questions that have no error, such as
/// [`Communicator::rank`] and [`Communicator::summary`], are answered. [`Communicator::abort`] does nothing there, and
/// dropping has no effect and returns at once. The parent and the other ranks go on. The child may make
/// communicators of its own. See [`Communicator::check_process`].
#[derive(Debug)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
}

/// Longest time for which dropping a communicator waits: for asynchronous operations, for data to leave, and on rank 0
/// for the others' goodbyes.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

impl Communicator {
    /// Makes a communicator. Every member calls it. Blocks until all have, at most until the deadline.
    fn make(making: Making) -> Result<Self> {
        let deadline = making.deadline;
        let communicator = Self { shared: Arc::new(making.connect()?) };
        communicator.shared.world.entered();
        if communicator.shared.is_complete() {
            communicator.publish_members();
        }
        if communicator.shared.group.id == WORLD && !communicator.shared.world.knows_network() {
            communicator.learn_network(deadline)?;
        }
        tracing::info!("{}", communicator.summary());
        Ok(communicator)
    }

    /// Joins the other ranks as the environment says: `KOLO_*`; `RANK`, `MASTER_ADDR` and so on, as torchrun sets
    /// them; or the variables of Open MPI, MPICH, Cray PALS or Slurm. Blocks until all ranks have joined.
    ///
    /// # Errors
    /// [`crate::Error::Configuration`] or [`crate::Error::Join`], with the reason and a remedy.
    pub fn from_env() -> Result<Self> {
        Self::builder().connect()
    }

    /// Returns a builder, for joining with explicit settings.
    #[must_use]
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Returns the rank of this process (or thread).
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.group.rank
    }

    pub(crate) fn member(&self) -> Member {
        self.shared.group.member()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.shared.group.size
    }

    /// Returns this rank's number among the ranks of its host.
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        let host = self.shared.group.hosts[self.rank() as usize];
        self.shared.group.hosts[..self.rank() as usize].iter().filter(|h| **h == host).count() as u32
    }

    /// Returns the host index of each rank. Ranks with the same index share memory.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.shared.group.hosts
    }

    /// Returns the route to each other rank, with the reason for it.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.shared.group.routes
    }

    /// Returns the job's cookie and the communicator's number within the job, which together identify it.
    fn identity(&self) -> (crate::job::Cookie, u64) {
        (self.shared.world.control.job_cookie(), self.shared.group.id)
    }

    /// Returns process, host and version of each rank.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        let all = self.shared.world.control.peer_info();
        self.shared.group.members.iter().map(|rank| all[*rank as usize].clone()).collect()
    }

    /// See [`Control::coordinator_bytes`](crate::internal::control::Control::coordinator_bytes).
    #[doc(hidden)]
    #[must_use]
    pub fn coordinator_bytes(&self) -> Option<(u64, u64)> {
        self.shared.world.control.coordinator_bytes()
    }

    /// Returns the options of further TCP endpoints between the members. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn tcp_options(&self) -> TcpOptions {
        let shared = &self.shared;
        shared.note_relayed();
        tcp_options(&shared.world, &shared.config, &shared.group.members)
    }

    /// Returns how threads of this rank wait. For Kolo's own bindings.
    #[doc(hidden)]
    #[doc(hidden)]
    #[must_use]
    pub fn waiting_policy(&self) -> Policy {
        self.shared.policy
    }

    /// Returns the settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the constants by which algorithms are chosen: built-in ones or those of `KOLO_PROFILE`, with the
    /// network as it was measured. They are the same on all ranks.
    #[doc(hidden)]
    #[must_use]
    pub fn model(&self) -> Model {
        self.shared.look(|core| *core.planner.model())
    }

    /// Describes the network between the hosts: their number, round trip, rate, which host is slow, and the source of
    /// these figures (measured when the ranks joined, a profile, or the built-in constants). Says so if the profile
    /// is of other hosts. Where hosts have several network interfaces, also gives the share of long messages that
    /// each has carried so far; where this rank has paced long messages to several hosts, how often and at which rate.
    /// Returns `None` on a single host.
    #[must_use]
    pub fn network(&self) -> Option<String> {
        self.shared.look(|core| describe_network(core, self.shared.group.size))
    }

    /// Returns the paths that long messages to a rank have taken, with the rate and the bytes of each, where there is
    /// a choice: over TCP, if both hosts have several network interfaces. Empty otherwise, and for the rank itself.
    /// Never blocks.
    #[must_use]
    pub fn rails(&self, peer: u32) -> Vec<Rail> {
        self.shared.look(|core| core.engine.links().rails(peer))
    }

    /// Returns the ranks that this one has reached so far through rank 0's process, because neither end could dial the
    /// other; or, if one of the two is rank 0, through that of another rank. Connections are made on first use, so the
    /// list may grow. Every byte to these ranks crosses that process's link twice.
    #[must_use]
    pub fn relayed(&self) -> Vec<u32> {
        self.shared.look(|core| core.engine.links().relayed())
    }

    /// Describes in one line which ranks each transport reaches and why, and how long buffers stay registered.
    #[must_use]
    pub fn summary(&self) -> String {
        let shared = &self.shared;
        let mut out = format!("rank {} of {}", shared.group.rank, shared.group.size);
        let mut transports: Vec<&str> = shared.group.routes.iter().map(|r| r.transport).collect();
        transports.sort_unstable();
        transports.dedup();
        for transport in transports {
            let routes: Vec<&Route> =
                shared.group.routes.iter().filter(|r| r.transport == transport).collect();
            let _ = write!(out, "; {transport} to {} rank(s) ({})", routes.len(), routes[0].how);
            if let Some((other, why)) = routes[0].declined.first() {
                let _ = write!(out, ", not {other}: {why}");
            }
        }
        let mut relays = std::collections::BTreeMap::<u32, u32>::new();
        for peer in self.relayed() {
            let (by, _) = shared.world.control.relay_to(shared.group.members[peer as usize]);
            *relays.entry(by).or_default() += 1;
        }
        for (by, count) in relays {
            let _ = write!(
                out,
                "; relayed by rank {by} to {count} rank(s), since neither end could dial the other: every byte crosses \
                 rank {by}'s link twice"
            );
        }
        if let Some(network) = self.network() {
            let _ = write!(out, "; network: {network}");
        }
        for plans in self.shared.look(|core| core.planner.describe_files()) {
            let _ = write!(out, "; {plans}");
        }
        if let Some(policy) = self.registration_policy() {
            let _ = write!(out, "; buffer registrations are {policy}");
        }
        out
    }

    /// Returns records of the last 512 collectives at most, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Record> {
        self.shared.look(|core| core.calls.recorder.records())
    }

    /// Returns the bytes of staging memory that operations hold now, without that of the transports.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.shared.look(|core| core.engine.staging_bytes())
    }

    /// Explains as text which algorithm is chosen for a call, which ones are not, and why.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] or [`crate::Error::Unsupported`] as the call itself.
    pub fn explain(&self, call: &RawCall) -> Result<String> {
        self.check_process()?;
        let call = self.checked(call)?;
        let core = self.shared.core();
        let memory = on_gpus::foreseen(&self.shared, &core, &call);
        let memory = memory.map_or_else(String::new, |path| format!("\n  memory: {path}"));
        let symmetric = core.symmetric.describe(&call).map_or_else(String::new, |words| words + "\n");
        let way = core.explain(&call)?;
        let constants = match (&way, &self.config().profile) {
            (Explanation::Exchange(_), _) => String::new(),
            (Explanation::Plan(_) | Explanation::File(..), profile) => {
                let from = profile.as_ref().map_or_else(
                    || "built-in".to_owned(),
                    |loaded| format!("profile {} ({})", loaded.path.display(), loaded.profile.digest()),
                );
                let network = describe_network(&core, self.shared.group.size);
                let network = network.map_or_else(String::new, |words| format!("; network: {words}"));
                format!("\n  constants: {from}{network}")
            }
        };
        let unused: String =
            core.planner.files_unused(&call).iter().map(|reason| format!("\n  {reason}")).collect();
        Ok(format!("{symmetric}{way}{constants}{unused}{memory}"))
    }

    /// Names what carries out a blocking call: an algorithm, `exchange` for the exchange inside a host, or `plan` for
    /// a plan of `KOLO_PLAN`.
    ///
    /// # Errors
    /// See [`Communicator::explain`].
    pub fn way(&self, call: &RawCall) -> Result<&'static str> {
        self.check_process()?;
        let call = self.checked(call)?;
        Ok(self.shared.core().explain(&call)?.name())
    }

    /// Fails in a child made by `fork`, as every call on the communicator does there, since it belongs to the process
    /// that made it. Never blocks, and costs as much as reading a word.
    ///
    /// # Errors
    /// [`Error::Usage`] in a child of the process that made the communicator.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.shared.check_process(|| Waited::Other(""))
    }

    /// Returns the error that the next call would give, if the communicator has failed. For programs that want to
    /// hear of a failure elsewhere while they are not inside a call. Makes no progress on operations. Returns at
    /// once while all is well. If a transport has failed and no call has found out why, it asks the other ranks, for
    /// four seconds at most.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        drive::standing_error(&self.shared)
    }

    /// Aborts the communicator: every call in progress on any rank, and every later one, fails with `reason`. Returns
    /// at once.
    pub fn abort(&self, reason: &str) {
        drive::abort(&self.shared, reason);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !leak_in_child(&self.shared) {
            // After a panic, started operations are not waited for, so that the other ranks hear of it at once.
            let limit = if std::thread::panicking() { Duration::ZERO } else { CLOSE_LIMIT };
            let departure = drive::close(&self.shared, limit);
            self.shared.world.left(departure);
        }
    }
}

/// Describes the network between the hosts, the share of each interface of a host, and the pacing of long messages.
fn describe_network(core: &Core, size: u32) -> Option<String> {
    let network = core.planner.describe_network()?;
    let rails: Vec<Vec<Rail>> = (0..size).map(|peer| core.engine.links().rails(peer)).collect();
    let known = [Some(network), rails_in_words(&rails), core.engine.links().paced().map(paced_in_words)];
    Some(known.into_iter().flatten().collect::<Vec<_>>().join("; "))
}
