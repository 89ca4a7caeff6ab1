//! Input of a generator. It holds facts that are the same on all ranks, so that all ranks choose and build alike.

use std::sync::Arc;

use serde::Serialize;

use crate::plan::{Blocks, Collective, Placement, Space};
use crate::window::Symmetric;

/// A collective to be planned; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The operation.
    pub collective: Collective,
    /// Number of ranks, at least one.
    pub world_size: u32,
    /// The root, where the collective has one, else 0.
    pub root: u32,
    /// Whether input and output share memory.
    pub placement: Placement,
    /// Parameters of the algorithm.
    pub params: Params,
    /// Host index of each rank, where known; the hierarchical algorithms need it. Without it, costs are those of a
    /// single host.
    pub hosts: Option<Arc<[u32]>>,
    /// Whether the ranks of each host share memory that plans may use: see [`crate::stage`].
    pub stages: bool,
    /// Channels to a peer that the transports offer for the call: see [`Algorithm::channels`](crate::Algorithm::channels).
    pub channels: u16,
    /// Speed of each rank's link relative to the others; set where speeds differ much and each host has one rank.
    pub speeds: Option<Arc<[u32]>>,
    /// The buffers that all ranks of a host can reach: see [`crate::window`].
    pub symmetric: Symmetric,
    /// Number of shards, if the task is an all-reduce over shards instead of one vector per rank: see
    /// [`crate::shards`].
    pub shards: Option<u32>,
}

/// Parameters of the generators. Each generator uses those that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Params {
    /// Independent rings that share the vector, at least 1; ignored for collectives with a block per rank.
    pub channels: u16,
    /// Pieces into which a pipelined broadcast or reduce cuts one segment, at least 1.
    pub parts: u32,
    /// Exchanges that a direct algorithm keeps in flight, at least 1.
    pub width: u16,
}

impl Default for Params {
    fn default() -> Self {
        // Eight exchanges in flight hide one latency behind seven transfers, and stay far below the incast that posting
        // all at once would cause. A single link needs no more than one ring and eight blocks.
        Self { channels: 1, parts: 8, width: 8 }
    }
}

impl Task {
    /// Returns a task with default parameters: out of place, root 0, hosts unknown, no shared memory, channels
    /// without limit.
    #[must_use]
    pub fn new(collective: Collective, world_size: u32) -> Self {
        Self {
            collective,
            world_size,
            root: 0,
            placement: Placement::OutOfPlace,
            params: Params::default(),
            hosts: None,
            stages: false,
            channels: u16::MAX,
            speeds: None,
            symmetric: Symmetric::Nothing,
            shards: None,
        }
    }

    /// Returns the same task, in place.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.placement = Placement::InPlace;
        self
    }

    /// Returns the same task with another root.
    #[must_use]
    pub fn with_root(mut self, root: u32) -> Self {
        self.root = root;
        self
    }

    /// Returns the same task with other parameters.
    #[must_use]
    pub fn with_params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    /// Returns the same task on known hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: impl Into<Arc<[u32]>>) -> Self {
        self.hosts = Some(hosts.into());
        self
    }

    /// Returns the same task where the ranks of each host share memory.
    #[must_use]
    pub fn with_stages(mut self) -> Self {
        self.stages = true;
        self
    }

    /// Returns the same task with this many channels to a peer.
    #[must_use]
    pub fn with_channels(mut self, channels: u16) -> Self {
        self.channels = channels;
        self
    }

    /// Returns the same task on hosts of one rank each, with links of these relative speeds.
    #[must_use]
    pub fn with_speeds(mut self, speeds: impl Into<Arc<[u32]>>) -> Self {
        self.speeds = Some(speeds.into());
        self
    }

    /// Returns the same task with these buffers symmetric.
    #[must_use]
    pub fn with_symmetric(mut self, symmetric: Symmetric) -> Self {
        self.symmetric = symmetric;
        self
    }

    /// Returns the same task over this many shards.
    #[must_use]
    pub fn with_shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Returns the space that holds a rank's own contribution before the operation, for collectives whose input and
    /// output have the same blocks.
    #[must_use]
    pub(crate) fn own(&self) -> Space {
        match self.placement {
            Placement::OutOfPlace => Space::Input,
            Placement::InPlace => Space::Output,
        }
    }

    /// Returns `count` blocks of the rank's own contribution.
    pub(crate) fn own_blocks(&self, first: u32, count: u32) -> Blocks {
        Blocks::range(self.own(), first, count)
    }

    /// Returns the rank `distance` places after `rank`, modulo the world size.
    pub(crate) fn ahead(&self, rank: u32, distance: u32) -> u32 {
        ((u64::from(rank) + u64::from(distance)) % u64::from(self.world_size)) as u32
    }

    /// Returns the rank `distance` places before `rank`, modulo the world size.
    pub(crate) fn behind(&self, rank: u32, distance: u32) -> u32 {
        self.ahead(rank, self.world_size - distance % self.world_size)
    }

    /// Returns the number of hosts; 1 where the hosts are not known.
    pub(crate) fn host_count(&self) -> u32 {
        self.hosts.as_ref().map_or(1, |hosts| {
            let mut names = hosts.to_vec();
            names.sort_unstable();
            names.dedup();
            names.len().max(1) as u32
        })
    }

    /// Returns whether the ranks are known to be on several hosts.
    pub(crate) fn has_several_hosts(&self) -> bool {
        self.hosts.as_ref().is_some_and(|hosts| hosts.iter().any(|host| *host != hosts[0]))
    }

    /// Returns whether input and output are distinct.
    pub(crate) fn out_of_place(&self) -> bool {
        self.placement == Placement::OutOfPlace
    }
}
