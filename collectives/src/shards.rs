//! Reductions over shards, whose results depend neither on the number of ranks nor on their identity.
//!
//! A job cuts its work into N *shards*, for its whole life. Each rank has a run of consecutive shards and contributes a
//! vector for each of them; the result is the reduction of all N vectors along the canonical tree over the *shards*
//! ([`Expression::canonical`](crate::check::Expression::canonical)). The ranks only divide the tree among themselves:
//! rank r of p has the shards [`of_rank`]`(N, r, p)` and reduces the largest subtrees that are all its own, its
//! *pieces*; the nodes above the pieces are computed where pieces of several ranks meet. No addition depends on p, so
//! neither do the bits.
//!
//! A run whose ends do not suit the tree falls into several pieces, at most two of each size, and the rank sends all of
//! them. If N is p times a power of two, every run is one piece, and the tree above the pieces is the canonical one
//! over the ranks.

use std::ops::Range;

use crate::rounds::floor_log2;

/// The most shards. A lane has at most 65,536 steps, and a rank with all shards takes one step for each.
pub const MAX_SHARDS: u32 = 1 << 14;

/// The most ranks for a plan over shards: each rank takes steps for the pieces of all others.
pub const MAX_RANKS: u32 = 1024;

/// Returns the shards of `rank`, if `ranks` ranks have `shards` shards. Runs differ in length by one at most; if there
/// are more ranks than shards, some runs are empty.
#[must_use]
pub fn of_rank(shards: u32, rank: u32, ranks: u32) -> Range<u32> {
    let start = |rank: u32| (u64::from(rank) * u64::from(shards) / u64::from(ranks)) as u32;
    start(rank)..start(rank + 1)
}

/// Returns whether every run is one piece, so that the tree above the pieces is the canonical one over the ranks.
#[must_use]
pub fn are_aligned(shards: u32, ranks: u32) -> bool {
    shards.is_multiple_of(ranks) && (shards / ranks).is_power_of_two()
}

/// The canonical tree over a number of shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    shards: u32,
    /// Number of shards beyond a power of two. Twice as many shards are paired at the start.
    extras: u32,
}

/// A subtree, as a half-open range of half leaves. A leaf that is a pair of shards has one shard in each half; any
/// other leaf has its shard in the first half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    low: u32,
    high: u32,
}

impl Tree {
    pub(crate) fn over(shards: u32) -> Self {
        Self { shards, extras: shards - (1 << floor_log2(shards)) }
    }

    /// Returns the node above all shards.
    pub(crate) fn root(self) -> Node {
        Node { low: 0, high: 2 << floor_log2(self.shards) }
    }

    /// Returns the shards below a node.
    pub(crate) fn shards(self, node: Node) -> Range<u32> {
        let at = |half: u32| if half <= 2 * self.extras { half } else { self.extras + half.div_ceil(2) };
        at(node.low)..at(node.high)
    }

    /// Returns the two halves of a node of more than one shard.
    pub(crate) fn halves(node: Node) -> [Node; 2] {
        let middle = node.low.midpoint(node.high);
        [Node { low: node.low, high: middle }, Node { low: middle, high: node.high }]
    }

    /// Returns the sibling of a node, and their parent.
    pub(crate) fn up(node: Node) -> (Node, Node) {
        let width = node.high - node.low;
        let low = node.low & !(2 * width - 1);
        let sibling = node.low ^ width;
        (Node { low: sibling, high: sibling + width }, Node { low, high: low + 2 * width })
    }

    /// Returns the pieces of a run, in the order of its shards.
    pub(crate) fn pieces(self, run: &Range<u32>) -> Vec<Node> {
        let mut pieces = Vec::new();
        let mut open = vec![self.root()];
        while let Some(node) = open.pop() {
            let shards = self.shards(node);
            if run.start <= shards.start && shards.end <= run.end {
                pieces.push(node);
            } else if shards.start < run.end && run.start < shards.end {
                let [left, right] = Self::halves(node);
                open.extend([right, left]);
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Expression;

    fn expression(tree: Tree, node: Node) -> Expression {
        let shards = tree.shards(node);
        if shards.len() == 1 {
            return Expression::leaf(shards.start);
        }
        let [left, right] = Tree::halves(node);
        assert_eq!(Tree::up(left), (right, node));
        assert_eq!(Tree::up(right), (left, node));
        expression(tree, left).plus(expression(tree, right))
    }

    #[test]
    fn the_tree_is_the_canonical_one() {
        for shards in 1..=200 {
            let tree = Tree::over(shards);
            assert_eq!(expression(tree, tree.root()), Expression::canonical(shards), "{shards}");
        }
    }

    #[test]
    fn pieces_are_the_run_and_as_large_as_can_be() {
        for shards in 1..=70 {
            let tree = Tree::over(shards);
            for ranks in 1..=70 {
                let mut next = 0;
                for rank in 0..ranks {
                    let run = of_rank(shards, rank, ranks);
                    let pieces = tree.pieces(&run);
                    for piece in &pieces {
                        let below = tree.shards(*piece);
                        assert_eq!(below.start, next);
                        next = below.end;
                        if *piece != tree.root() {
                            let above = tree.shards(Tree::up(*piece).1);
                            assert!(above.start < run.start || run.end < above.end, "{shards} {ranks}");
                        }
                    }
                    assert_eq!(next, run.end);
                    let bound = 2 * u32::BITS - 2 * (run.len() as u32).leading_zeros();
                    assert!(pieces.len() as u32 <= bound, "{run:?}: {pieces:?}");
                }
                assert_eq!(next, shards);
            }
        }
    }

    #[test]
    fn aligned_runs_are_one_piece_each_below_the_tree_over_the_ranks() {
        for ranks in 1..=33 {
            for doublings in 0..4 {
                let shards = ranks << doublings;
                assert!(are_aligned(shards, ranks));
                let tree = Tree::over(shards);
                let above = Tree::over(ranks);
                let mut open = vec![(tree.root(), above.root())];
                while let Some((node, rank)) = open.pop() {
                    let ranks_below = above.shards(rank);
                    let run = of_rank(shards, ranks_below.start, ranks).start
                        ..of_rank(shards, ranks_below.end - 1, ranks).end;
                    assert_eq!(tree.shards(node), run);
                    if ranks_below.len() > 1 {
                        open.extend(std::iter::zip(Tree::halves(node), Tree::halves(rank)));
                    }
                }
            }
        }
        assert!(!are_aligned(64, 3) && !are_aligned(6, 2) && !are_aligned(2, 4));
    }
}
