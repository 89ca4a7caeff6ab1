//! The input of a generator: rank-invariant facts only, so that all ranks choose and build alike.

use std::sync::Arc;

use serde::Serialize;

use crate::plan::{Blocks, Collective, Placement, Space};
use crate::window::Symmetric;

/// One collective to be planned. The same on all ranks.
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
    /// Host index of each rank, where known; the hierarchical forms need it. Costs are those of a single host
    /// where it is not.
    pub hosts: Option<Arc<[u32]>>,
    /// Whether the ranks of each host share memory that plans may use: see [`crate::stage`].
    pub stages: bool,
    /// How fast the link of each rank is, relative to the others; where they differ much, and hosts have one rank each.
    pub speeds: Option<Arc<[u32]>>,
    /// Which buffers all ranks of a host reach: see [`crate::window`].
    pub symmetric: Symmetric,
    /// Of an all-reduce that reduces so many shards instead of a vector of each rank: see [`crate::shards`].
    pub shards: Option<u32>,
}

/// Knobs of the generators. Each generator uses those that mean something to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Params {
    /// Independent rings that share the vector (or, for blocks per rank, ignored), at least 1.
    pub channels: u16,
    /// Blocks that a pipelined broadcast or reduce cuts one segment into, at least 1.
    pub parts: u32,
    /// Exchanges that a direct form keeps in flight, at least 1.
    pub width: u16,
}

impl Default for Params {
    fn default() -> Self {
        // Eight exchanges in flight hide one latency behind seven transfers, and stay far below the incast of
        // posting all of them. A single link can use one ring and eight blocks.
        Self { channels: 1, parts: 8, width: 8 }
    }
}

impl Task {
    /// A task with default parameters, out of place, root 0, hosts unknown, no memory shared.
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
            speeds: None,
            symmetric: Symmetric::Nothing,
            shards: None,
        }
    }

    /// The same task, in place.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.placement = Placement::InPlace;
        self
    }

    /// The same task with another root.
    #[must_use]
    pub fn with_root(mut self, root: u32) -> Self {
        self.root = root;
        self
    }

    /// The same task with other parameters.
    #[must_use]
    pub fn with_params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    /// The same task, on known hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: impl Into<Arc<[u32]>>) -> Self {
        self.hosts = Some(hosts.into());
        self
    }

    /// The same task, where the ranks of each host share memory.
    #[must_use]
    pub fn with_stages(mut self) -> Self {
        self.stages = true;
        self
    }

    /// The same task, on hosts of one rank each, whose links are so fast in proportion.
    #[must_use]
    pub fn with_speeds(mut self, speeds: impl Into<Arc<[u32]>>) -> Self {
        self.speeds = Some(speeds.into());
        self
    }

    /// The same task, on such buffers.
    #[must_use]
    pub fn with_symmetric(mut self, symmetric: Symmetric) -> Self {
        self.symmetric = symmetric;
        self
    }

    /// The same task, of so many shards.
    #[must_use]
    pub fn with_shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// The memory that holds a rank's own contribution before the operation, for collectives whose input and
    /// output have the same blocks.
    #[must_use]
    pub(crate) fn own(&self) -> Space {
        match self.placement {
            Placement::OutOfPlace => Space::Input,
            Placement::InPlace => Space::Output,
        }
    }

    /// `count` blocks of the own contribution.
    pub(crate) fn own_blocks(&self, first: u32, count: u32) -> Blocks {
        Blocks::range(self.own(), first, count)
    }

    /// The rank `distance` places after `rank`, round the circle.
    pub(crate) fn ahead(&self, rank: u32, distance: u32) -> u32 {
        ((u64::from(rank) + u64::from(distance)) % u64::from(self.world_size)) as u32
    }

    /// The rank `distance` places before `rank`, round the circle.
    pub(crate) fn behind(&self, rank: u32, distance: u32) -> u32 {
        self.ahead(rank, self.world_size - distance % self.world_size)
    }

    /// Hosts of the ranks; one where that is not known.
    pub(crate) fn host_count(&self) -> u32 {
        self.hosts.as_ref().map_or(1, |hosts| {
            let mut names = hosts.to_vec();
            names.sort_unstable();
            names.dedup();
            names.len().max(1) as u32
        })
    }

    /// Whether ranks are known to be on different hosts.
    pub(crate) fn has_several_hosts(&self) -> bool {
        self.hosts.as_ref().is_some_and(|hosts| hosts.iter().any(|host| *host != hosts[0]))
    }

    /// Whether input and output are distinct.
    pub(crate) fn out_of_place(&self) -> bool {
        self.placement == Placement::OutOfPlace
    }
}
