//! Blocks of an operation's memories on each rank, and which of them are the same bytes.
//!
//! This module defines [`Placement::InPlace`] for plans, block by block, for both the builder and the checker. In the
//! runtime, the compiled exchange and the check of a call apply the same rule to pointers.

use crate::plan::{Blocks, Collective, Cut, Placement, Plan, Space};
use crate::shards;

/// The caller's buffers as one rank sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The operation.
    pub collective: Collective,
    /// The rank whose memory it is.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// The root, where there is one.
    pub root: u32,
    /// Whether input and output share memory.
    pub placement: Placement,
    /// How the buffers are cut.
    pub cut: Cut,
}

impl Memory {
    /// Returns the memories that `plan` works on.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            collective: plan.collective,
            rank: plan.rank,
            world_size: plan.world_size,
            root: plan.root,
            placement: plan.placement,
            cut: plan.cut,
        }
    }

    /// Returns the number of blocks in the caller's input; 0 if this rank has no input.
    #[must_use]
    pub fn input_blocks(&self) -> u32 {
        use Collective as C;
        let in_place = self.placement == Placement::InPlace;
        if let Cut::Shards { parts, .. } = self.cut {
            return parts * self.own_shards().len() as u32;
        }
        match self.collective {
            C::AllReduce | C::Reduce | C::Scan | C::ExScan if !in_place => self.parts(),
            C::Broadcast if !in_place && self.is_root() => self.parts(),
            C::AllGather if !in_place => 1,
            C::AllToAll if !in_place => self.world_size,
            C::ReduceScatter => self.world_size,
            C::Gather => 1,
            C::Scatter if self.is_root() => self.world_size,
            _ => 0,
        }
    }

    /// Returns the number of blocks in the caller's output; 0 if this rank has no output. A non-root rank of an
    /// in-place reduce keeps its contribution there, and finds it unchanged afterwards.
    #[must_use]
    pub fn output_blocks(&self) -> u32 {
        use Collective as C;
        match self.collective {
            C::AllReduce | C::Scan | C::ExScan | C::Broadcast => self.parts(),
            C::Reduce if self.is_root() || self.placement == Placement::InPlace => self.parts(),
            C::AllGather | C::AllToAll => self.world_size,
            C::ReduceScatter | C::Scatter => 1,
            C::Gather if self.is_root() => self.world_size,
            _ => 0,
        }
    }

    /// Returns whether this rank contributes data.
    #[must_use]
    pub const fn contributes(&self) -> bool {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => self.rank == self.root,
            Collective::Barrier => false,
            _ => true,
        }
    }

    /// Returns the number of blocks of a contribution, wherever it lies.
    #[must_use]
    pub fn contribution_blocks(&self) -> u32 {
        match self.collective {
            Collective::AllGather | Collective::Gather => 1,
            collective if collective.has_block_per_rank() => self.world_size,
            _ if matches!(self.cut, Cut::Shards { .. }) => self.input_blocks(),
            _ => self.parts(),
        }
    }

    /// Returns the number of the rank or shard whose vector an input block belongs to, and the part of that vector.
    pub(crate) fn contributed(&self, block: u32) -> (u32, u32) {
        match self.cut {
            Cut::Shards { parts, .. } => (self.own_shards().start + block / parts, block % parts),
            _ => (self.rank, block),
        }
    }

    /// Returns the number of vectors that are reduced: one per rank, or the shards.
    pub(crate) fn contributions(&self) -> u32 {
        if let Cut::Shards { shards, .. } = self.cut { shards } else { self.world_size }
    }

    fn own_shards(&self) -> std::ops::Range<u32> {
        if let Cut::Shards { shards, .. } = self.cut {
            shards::of_rank(shards, self.rank, self.world_size)
        } else {
            0..0
        }
    }

    /// Returns where blocks of this rank's contribution lie before the operation, by their numbers in an input. A
    /// window onto the rank's input shows these blocks.
    #[must_use]
    pub fn contribution(&self, first: u32, count: u32) -> Blocks {
        use Collective as C;
        let (space, first) = match (self.placement, self.collective) {
            (Placement::InPlace, C::AllGather) => (Space::Output, self.rank + first),
            (Placement::OutOfPlace, _) | (_, C::ReduceScatter | C::Scatter | C::Gather) => {
                (Space::Input, first)
            }
            (Placement::InPlace, _) => (Space::Output, first),
        };
        self.physical(Blocks::range(space, first, count))
    }

    /// Returns whether an output block holds data of this rank before the operation.
    #[must_use]
    pub fn starts_in_output(&self, block: u32) -> bool {
        use Collective as C;
        self.placement == Placement::InPlace
            && match self.collective {
                C::AllReduce | C::Reduce | C::Scan | C::ExScan | C::AllToAll => true,
                C::Broadcast => self.is_root(),
                C::AllGather => block == self.rank,
                C::Gather => self.is_root() && block == self.rank,
                C::ReduceScatter | C::Scatter | C::Barrier => false,
            }
    }

    /// Returns the canonical name of `blocks` where the same bytes have two names: the one in the longer buffer.
    #[must_use]
    pub fn physical(&self, blocks: Blocks) -> Blocks {
        use Collective as C;
        if self.placement == Placement::OutOfPlace {
            return blocks;
        }
        match (self.collective, blocks.space) {
            (C::ReduceScatter, Space::Output) => Blocks { space: Space::Input, first: self.rank, count: 1 },
            (C::Scatter, Space::Output) if self.is_root() => {
                Blocks { space: Space::Input, first: self.rank, count: 1 }
            }
            (C::Gather, Space::Input) if self.is_root() => {
                Blocks { space: Space::Output, first: self.rank, count: 1 }
            }
            _ => blocks,
        }
    }

    /// Returns whether a plan may ever write into the memory of `space`, so that a read from there may conflict.
    #[must_use]
    pub fn may_be_written(&self, space: Space) -> bool {
        space != Space::Input || self.placement == Placement::InPlace
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    fn parts(&self) -> u32 {
        match self.cut {
            Cut::Vector { parts } | Cut::Shards { parts, .. } => parts,
            Cut::PerRank => 1,
        }
    }
}

impl Blocks {
    /// Block `block` of `space`.
    #[must_use]
    pub const fn one(space: Space, block: u32) -> Self {
        Self { space, first: block, count: 1 }
    }

    /// `count` blocks of `space`, from `first` on.
    #[must_use]
    pub const fn range(space: Space, first: u32, count: u32) -> Self {
        Self { space, first, count }
    }

    /// One past the last block.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.first + self.count
    }

    /// Returns whether both name a common block. Names only are compared: see [`Memory::physical`] for aliases.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.space == other.space && self.first < other.end() && other.first < self.end()
    }
}
