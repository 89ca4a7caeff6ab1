//! Groups of ranks that run one phase of an algorithm, and the parts of the vector they work on.
//!
//! The cores of the generators are written in terms of [`Group`] and [`Span`], so that the hierarchical
//! algorithms can run them among the ranks of a host or among the hosts.

use crate::plan::{Blocks, Space};

/// Ranks that communicate with each other, numbered 0..len; `me` is one of them.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// World ranks of the members; `None` for the whole world.
    ranks: Option<Vec<u32>>,
    len: u32,
    me: u32,
}

impl Group {
    pub(crate) fn world(len: u32, me: u32) -> Self {
        Self { ranks: None, len, me }
    }

    /// Makes the group of `ranks`, seen from world rank `rank`, which must be a member.
    pub(crate) fn of(ranks: Vec<u32>, rank: u32) -> Self {
        let me = ranks.iter().position(|member| *member == rank).expect("a member of its own group");
        Self { len: ranks.len() as u32, me: me as u32, ranks: Some(ranks) }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns this rank's number in the group.
    pub(crate) fn me(&self) -> u32 {
        self.me
    }

    /// Returns the world rank of member `index`.
    pub(crate) fn rank(&self, index: u32) -> u32 {
        self.ranks.as_ref().map_or(index, |ranks| ranks[index as usize])
    }

    /// Returns the number `distance` places after mine, modulo the length.
    pub(crate) fn ahead(&self, distance: u32) -> u32 {
        ((u64::from(self.me) + u64::from(distance)) % u64::from(self.len)) as u32
    }

    /// Returns the number `distance` places before mine, modulo the length; `distance` is at most the length.
    pub(crate) fn behind(&self, distance: u32) -> u32 {
        self.ahead(self.len - distance)
    }
}

/// A vector cut into pieces for a group: piece i is `stride` consecutive blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) base: u32,
    pub(crate) stride: u32,
}

impl Span {
    /// Piece i is block i.
    pub(crate) const BLOCKS: Self = Self { base: 0, stride: 1 };

    pub(crate) fn piece(self, space: Space, index: u32) -> Blocks {
        self.pieces(space, index, 1)
    }

    pub(crate) fn pieces(self, space: Space, first: u32, count: u32) -> Blocks {
        Blocks::range(space, self.base + first * self.stride, count * self.stride)
    }
}
