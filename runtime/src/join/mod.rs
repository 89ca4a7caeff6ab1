//! Rendezvous: how the ranks of a job find each other.
//!
//! A [`JoinSpec`] holds the rank, the world size, and the place where rank 0 can be found (a [`Locator`]). It comes
//! from the environment that a launcher set ([`JoinSpec::from_env`]), from a URL ([`JoinSpec::parse_url`]), or from
//! code.
//!
//! A locator yields only a hint: a rank tries the address, and both ends must prove that they know the key that rank 0
//! drew and published beside it. A file left behind by an earlier job therefore costs one failed attempt. If only the
//! job's ranks can read rank 0's publication (a file, a store, a board, a unique id), no other process can take a rank.
//! A plain address (`tcp://`) has no such key, and a multicast group tells the key to every process that asks. For
//! these two, only a job secret keeps other processes out, and rank 0 warns once if there is none.

mod addresses;
mod board;
mod env;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod launcher;
mod locate;
mod multicast;
mod nodelist;
mod pmi;
mod store;
mod unique_id;
mod url;

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
pub use crate::job::DEFAULT_JOIN_TIMEOUT;
use crate::job::{JobSecret, Liveness, MAX_WORLD_SIZE, MOST_PATIENCE};

pub use addresses::own_addresses;
pub(crate) use addresses::{address_towards, host_key, hostname};
pub use board::Board;
pub use env::{process_environment, rank_from_env};
pub use launcher::{Launched, launched};
pub(crate) use locate::{Advert, bind, find, open_port};
pub(crate) use multicast::Wanted;
pub use unique_id::{Reservation, UNIQUE_ID_BYTES, UniqueId};

/// The rank of this process, and the way to reach the others.
#[derive(Clone, Debug)]
pub struct JoinSpec {
    /// This rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Rank among the ranks of this host, where known.
    pub local_rank: Option<u32>,
    /// Place where rank 0 is found.
    pub locator: Locator,
    /// Longest wait for all ranks. [`CommunicatorBuilder`](crate::CommunicatorBuilder) puts
    /// [`Config::join_timeout`](crate::Config::join_timeout) here.
    pub timeout: Duration,
    /// Description of the variables or arguments that these values came from, for messages.
    pub source: String,
    /// Name of the job, where known. It separates jobs that meet at one port. An empty name matches any.
    pub job: String,
    /// Whether all ranks are known to be on this host. If so, rank 0 listens on loopback only, unless the locator names
    /// an address itself.
    pub one_host: bool,
    /// Secret that all processes of the job know. Without one, if the locator is an address ([`Locator::Tcp`],
    /// [`Locator::Multicast`]), any process that reaches the port can take a free rank.
    pub secret: Option<JobSecret>,
    /// Ports at which rank 0 may listen if the locator names none; the system chooses if not set.
    pub ports: Option<RangeInclusive<u16>>,
    /// Time limits for deciding that a silent peer is lost.
    pub liveness: Liveness,
}

/// Place where rank 0 is found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Locator {
    /// Rank 0 listens at this port of this host; the others connect.
    Tcp {
        /// Name or address of rank 0's host.
        host: String,
        /// Port.
        port: u16,
    },
    /// Rank 0 writes its address into a file that all ranks see.
    File {
        /// The file. Its folder must exist.
        path: PathBuf,
    },
    /// Ranks ask a multicast group for rank 0.
    Multicast {
        /// The group, 224.0.0.0 to 239.255.255.255.
        group: Ipv4Addr,
        /// UDP port of the group.
        port: u16,
        /// Name of the job, which distinguishes it from other jobs in the group.
        job: String,
        /// Address of the interface to use; all interfaces if `None`.
        interface: Option<Ipv4Addr>,
    },
    /// Rank 0 writes its address into a PyTorch TCPStore that another process, such as torchrun's agent, serves.
    Store {
        /// Host of the store.
        host: String,
        /// Port of the store.
        port: u16,
        /// Prefix of the keys, unique for this start of the job.
        prefix: String,
    },
    /// Rank 0 publishes its address through a key-value store that the program provides.
    Board(Arc<dyn Board>),
    /// The ranks are threads of one process: see [`JoinSpec::local`].
    #[doc(hidden)]
    Local(LocalRendezvous),
    /// The ranks are the survivors of another communicator. [`Communicator::shrink`](crate::Communicator::shrink) makes
    /// this locator.
    #[doc(hidden)]
    Survivors(SurvivorRendezvous),
}

impl JoinSpec {
    /// Makes a spec with default settings.
    #[must_use]
    pub fn new(rank: u32, world_size: u32, locator: Locator, source: impl Into<String>) -> Self {
        Self {
            rank,
            world_size,
            local_rank: None,
            locator,
            timeout: DEFAULT_JOIN_TIMEOUT,
            source: source.into(),
            job: String::new(),
            one_host: false,
            secret: None,
            ports: None,
            liveness: Liveness::default(),
        }
    }

    /// Makes one spec for each rank of an in-process cluster.
    #[must_use]
    pub fn local(world_size: u32) -> Vec<Self> {
        let rendezvous = LocalRendezvous::default();
        (0..world_size)
            .map(|rank| Self {
                local_rank: Some(rank),
                ..Self::new(rank, world_size, Locator::Local(rendezvous.clone()), "threads of one process")
            })
            .collect()
    }

    /// Checks rank, world size and time limits.
    ///
    /// # Errors
    /// [`Error::Configuration`] if they do not fit together.
    pub fn check(&self) -> Result<()> {
        let most = MAX_WORLD_SIZE;
        let wrong = |problem: String, remedy: &str| {
            Err(Error::configuration(format!("rank and world size ({})", self.source), problem, remedy))
        };
        if self.world_size == 0 {
            return wrong("the world size is 0".into(), "A job has at least one rank");
        }
        if self.world_size > most {
            return wrong(
                format!("the world size is {}; at most {most} are supported", self.world_size),
                "Start fewer ranks, for example one per accelerator instead of one per core",
            );
        }
        let Liveness { heartbeat, dead_after, linger, .. } = self.liveness;
        if heartbeat < Duration::from_millis(1)
            || dead_after <= heartbeat
            || [heartbeat, dead_after, linger, self.timeout].iter().any(|time| *time > MOST_PATIENCE)
        {
            return Err(Error::configuration(
                format!("time limits ({})", self.source),
                format!("heartbeat {heartbeat:?}, dead after {dead_after:?}, joining {:?}", self.timeout),
                "Use a heartbeat of at least 1 ms, dead-after beyond it, and at most ten years",
            ));
        }
        if self.rank >= self.world_size {
            return wrong(
                format!("rank {} does not exist in a job of {} ranks", self.rank, self.world_size),
                "Number the ranks from 0 to world size - 1",
            );
        }
        Ok(())
    }

    /// Whether this rank was told rank 0's address. It finds other addresses itself, in a publication that may be an
    /// earlier rank 0's or a stranger's. The port in a unique id, whose secret was drawn for it, is not rank 0's before
    /// rank 0 listens.
    pub(crate) fn is_told_the_address(&self) -> bool {
        let is_of_an_id = self.secret.as_ref().is_some_and(|secret| secret.for_newcomers().is_some());
        matches!(self.locator, Locator::Tcp { .. }) && !is_of_an_id
    }
}

impl Locator {
    /// Whether rank 0 listens at a port of its own choice and publishes its address with a key.
    pub(crate) fn publishes_key(&self) -> bool {
        !matches!(self, Self::Tcp { .. } | Self::Local(_) | Self::Survivors(_))
    }

    /// Whether processes outside the job can learn all that is needed to join without a secret.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Tcp { .. } | Self::Multicast { .. })
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::File { path } => write!(f, "file://{}", path.display()),
            Self::Multicast { group, port, job, .. } => write!(f, "multicast://{group}:{port}/{job}"),
            Self::Store { host, port, prefix } => write!(f, "the TCPStore at {host}:{port} (key {prefix})"),
            Self::Board(board) => f.write_str(&board.name()),
            Self::Local(_) => f.write_str("within this process"),
            Self::Survivors(_) => f.write_str("the lowest rank that is left"),
        }
    }
}

/// Rendezvous for the threads of an in-process cluster.
#[derive(Clone)]
pub struct LocalRendezvous {
    /// Rank 0's coordinator, once it runs. Its type is known to the control plane only.
    pub(crate) coordinator: Arc<tokio::sync::watch::Sender<Option<Arc<dyn std::any::Any + Send + Sync>>>>,
}

impl Default for LocalRendezvous {
    fn default() -> Self {
        Self { coordinator: Arc::new(tokio::sync::watch::Sender::new(None)) }
    }
}

impl fmt::Debug for LocalRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalRendezvous")
    }
}

/// Rendezvous for survivors of a communicator; opaque, since only the control plane knows its contents.
#[derive(Clone)]
pub struct SurvivorRendezvous(pub(crate) Arc<dyn std::any::Any + Send + Sync>);

impl fmt::Debug for SurvivorRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SurvivorRendezvous")
    }
}
