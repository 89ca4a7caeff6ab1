//! Turns trees into plans: the sends and receives of each rank for each piece, in an order that is the same at both
//! ends of a channel.
//!
//! A piece is reduced up its tree, or broadcast down it, or both. Each edge has a level: on the way up, the height of
//! its lower end; on the way down, the depth of its upper end. A rank goes through the levels in order, and in each it
//! first sends, which never blocks, and then receives. The pieces that a rank receives at a level are sent at that
//! level, and a rank has received a piece before the level at which it sends it, so no rank waits forever. Both ends of
//! a channel order the pieces of a level by their numbers.

use crate::builder::PlanBuilder;
use crate::generator::Algorithm;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::task::Task;

use super::pack::Piece;

/// Makes the plans of all ranks.
pub(super) fn weave(task: &Task, pieces: &[Piece]) -> Vec<Plan> {
    let trees: Vec<Tree<'_>> = pieces.iter().map(Tree::of).collect();
    (0..task.world_size).map(|rank| Weaver::new(task, rank, &trees).plan()).collect()
}

/// A piece with the shape of its tree.
struct Tree<'a> {
    piece: &'a Piece,
    children: Vec<Vec<u32>>,
    height: Vec<usize>,
    depth: Vec<usize>,
}

impl<'a> Tree<'a> {
    fn of(piece: &'a Piece) -> Self {
        let ranks = piece.parent.len();
        let mut children = vec![Vec::new(); ranks];
        for (rank, parent) in (0..).zip(&piece.parent) {
            if let Some(parent) = parent {
                children[*parent as usize].push(rank);
            }
        }
        let (mut height, mut depth) = (vec![0; ranks], vec![0; ranks]);
        for (rank, depth) in depth.iter_mut().enumerate() {
            let (mut at, mut distance) = (rank, 0);
            while let Some(parent) = piece.parent[at] {
                at = parent as usize;
                distance += 1;
                height[at] = height[at].max(distance);
            }
            *depth = distance;
        }
        Self { piece, children, height, depth }
    }

    fn parent(&self, rank: u32) -> Option<u32> {
        self.piece.parent[rank as usize]
    }
}

struct Weaver<'a> {
    task: &'a Task,
    rank: u32,
    trees: &'a [Tree<'a>],
    b: PlanBuilder,
    /// Place of each piece's sum on its way up, once this rank has begun it.
    sums: Vec<Option<Blocks>>,
}

impl<'a> Weaver<'a> {
    fn new(task: &'a Task, rank: u32, trees: &'a [Tree<'a>]) -> Self {
        let cut = if task.collective.has_block_per_rank() {
            Cut::PerRank
        } else {
            let parts = trees.iter().map(|tree| tree.piece.first + tree.piece.count).max().unwrap_or(1);
            Cut::Vector { parts }
        };
        // The algorithm's name does not matter: sets of plans have their own.
        let b = PlanBuilder::new(task, Algorithm::Shares, rank, cut);
        Self { task, rank, trees, b, sums: vec![None; trees.len()] }
    }

    fn plan(mut self) -> Plan {
        self.b.lane(0);
        if self.task.collective == Collective::ReduceScatter {
            self.make_scratch();
        }
        if matches!(self.task.collective, Collective::AllReduce | Collective::ReduceScatter) {
            self.up();
        }
        if self.task.collective != Collective::ReduceScatter {
            self.copy_own();
            self.down();
        }
        self.b.finish()
    }

    /// Returns the place of this rank's contribution to a piece.
    fn own(&self, piece: &Piece) -> Blocks {
        match self.task.collective {
            Collective::ReduceScatter => Blocks::one(Space::Input, piece.first),
            Collective::AllGather if self.task.out_of_place() => Blocks::one(Space::Input, 0),
            _ => Blocks::range(self.task.own(), piece.first, piece.count),
        }
    }

    /// Returns the place of a whole piece in this rank's output.
    fn whole(&self, piece: &Piece) -> Blocks {
        Blocks::range(Space::Output, piece.first, piece.count)
    }

    /// Adds scratch for the sums of other ranks' blocks, which this rank has no output for.
    fn make_scratch(&mut self) {
        for (index, tree) in self.trees.iter().enumerate() {
            if tree.parent(self.rank).is_some() && !tree.children[self.rank as usize].is_empty() {
                self.sums[index] = Some(self.b.scratch(Like::Input(tree.piece.first)));
            }
        }
    }

    /// Returns the place where the sum of a piece is built.
    fn sum(&self, index: usize) -> Blocks {
        let piece = self.trees[index].piece;
        match self.task.collective {
            Collective::ReduceScatter => self.sums[index].unwrap_or(Blocks::one(Space::Output, 0)),
            _ => self.whole(piece),
        }
    }

    fn up(&mut self) {
        let levels = self.trees.iter().flat_map(|tree| tree.height.iter().copied()).max().unwrap_or(0);
        let mut begun = vec![false; self.trees.len()];
        for level in 0..levels {
            let mut sends: Vec<(u32, usize)> = Vec::new();
            let mut receives: Vec<(u32, usize)> = Vec::new();
            for (index, tree) in self.trees.iter().enumerate() {
                if let Some(parent) = tree.parent(self.rank)
                    && tree.height[self.rank as usize] == level
                {
                    sends.push((parent, index));
                }
                let children = &tree.children[self.rank as usize];
                let of_level = children.iter().filter(|child| tree.height[**child as usize] == level);
                receives.extend(of_level.map(|child| (*child, index)));
            }
            self.stagger(&mut sends, &mut receives);
            for (parent, index) in sends {
                let piece = self.trees[index].piece;
                let src = if begun[index] { self.sum(index) } else { self.own(piece) };
                self.b.send(parent, src);
            }
            for (child, index) in receives {
                let sum = self.sum(index);
                let with = if begun[index] { sum } else { self.own(self.trees[index].piece) };
                self.b.recv_reduce(child, with, sum);
                begun[index] = true;
            }
        }
    }

    /// Copies the root's own contribution to its output, from which it is distributed.
    fn copy_own(&mut self) {
        let spreads = matches!(self.task.collective, Collective::AllGather | Collective::Broadcast);
        for tree in self.trees.iter().filter(|tree| tree.parent(self.rank).is_none()) {
            if spreads && self.task.out_of_place() {
                let (own, whole) = (self.own(tree.piece), self.whole(tree.piece));
                self.b.copy(own, whole);
            }
        }
    }

    fn down(&mut self) {
        let levels = self.trees.iter().flat_map(|tree| tree.depth.iter().copied()).max().unwrap_or(0);
        for level in 0..levels {
            let mut sends: Vec<(u32, usize)> = Vec::new();
            let mut receives: Vec<(u32, usize)> = Vec::new();
            for (index, tree) in self.trees.iter().enumerate() {
                let depth = tree.depth[self.rank as usize];
                if depth == level {
                    sends.extend(tree.children[self.rank as usize].iter().map(|child| (*child, index)));
                }
                if let Some(parent) = tree.parent(self.rank)
                    && depth == level + 1
                {
                    receives.push((parent, index));
                }
            }
            self.stagger(&mut sends, &mut receives);
            for (child, index) in sends {
                let whole = self.whole(self.trees[index].piece);
                self.b.send(child, whole);
            }
            for (parent, index) in receives {
                let whole = self.whole(self.trees[index].piece);
                self.b.recv(parent, whole);
            }
        }
    }

    /// Lets ranks begin with different peers; the pieces of a channel keep their order.
    fn stagger(&self, sends: &mut [(u32, usize)], receives: &mut [(u32, usize)]) {
        let (rank, ranks) = (self.rank, self.task.world_size);
        sends.sort_by_key(|(to, index)| ((to + ranks - rank) % ranks, *index));
        receives.sort_by_key(|(from, index)| ((rank + ranks - from) % ranks, *index));
    }
}
