//! Double binary tree all-reduce.
//!
//! Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009); also
//! the tree of NCCL. There are two binary trees over the ranks, such that a leaf of one is an inner node of the
//! other. Each tree reduces and then broadcasts half of the vector: about 2 log2 p hops each way, and with many
//! segments in flight every rank sends and receives each byte at most twice. Each tree is one lane with a channel
//! of its own. Up and down share a lane: the way down overwrites blocks that the way up has sent, so it must be
//! fenced, and a fence acts within its lane. The two ways still overlap, in different segments in flight.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach, leaving};
use crate::generator::Generator;
use crate::generators::copy_own;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::rounds::floor_log2;
use crate::task::Task;

pub(crate) struct Tree;

impl Generator for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn source(&self) -> &'static str {
        "Sanders, Speck, Träff 2009; NCCL"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce => Ok(()),
            other => Err(format!("the double binary tree does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let p = task.world_size;
        let mut b = PlanBuilder::new(task, Algorithm::Tree, rank, Cut::Vector { parts: 2 });
        if p == 1 {
            b.lane(0);
            copy_own(&mut b, task, 0, 2);
            return b.finish();
        }
        for tree in [First, Second] {
            let index = tree as u16;
            b.lane(index);
            let (own, output) =
                (task.own_blocks(u32::from(index), 1), Blocks::one(Space::Output, u32::from(index)));
            let node = tree.node(rank, p);
            let children = || children(node, p).into_iter().flatten().map(|child| tree.rank(child, p));
            let mut sum = own;
            for child in children() {
                b.recv_reduce(child, sum, output);
                sum = output;
            }
            if let Some(parent) = parent(node, p) {
                let parent = tree.rank(parent, p);
                b.send(parent, sum);
                b.recv(parent, output);
            }
            for child in children() {
                b.send(child, output);
            }
        }
        b.finish()
    }

    /// Prices both trees, up and down, at once. A level moves half of the vector; where both children arrive at
    /// the same time, or are served one after the other, twice that: three quarters are typical. Over a segment,
    /// each rank passes on every byte twice.
    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let p = task.world_size;
        let one = bill.one_per_host();
        let (inner, outer, busiest) = match &bill.placement {
            Some(placement) => {
                let (inner, outer) = longest_way(placement, p);
                // Four edges carry two vectors.
                let edges = leaving(placement, [First, Second].into_iter().flat_map(|tree| edges(tree, p)));
                (inner, outer, Reach::Network(f64::from(edges) / 4.0 / f64::from(bill.local)))
            }
            None if bill.hosts == 1 => (floor_log2(p), 0, Reach::Host),
            None => (floor_log2(bill.local), floor_log2(bill.hosts), one),
        };
        let busy = bill.busy;
        for (reach, levels) in [(Reach::Host, inner), (one, outer)] {
            for _ in 0..levels {
                bill.exchange(Pattern::Pairs, reach, 1.5, 0.75 * bytes, true);
                bill.exchange(Pattern::Pairs, reach, 1.5, 0.75 * bytes, false);
            }
        }
        bill.busy = busy;
        let reach = if outer > 0 { busiest } else { Reach::Host };
        let full = if p > 2 { 2.0 } else { 1.0 };
        bill.transfer(reach, full, full * bytes);
        bill.work(reach, 2.0 * full, bytes, true);
    }

    fn channels(&self, _: &Task) -> u16 {
        2
    }

    fn scratch_factor(&self, _: &Task) -> f64 {
        0.0
    }

    fn window(&self) -> Option<u32> {
        Some(4)
    }
}

/// One of the two trees. The nodes 1..=p of a tree are numbered in order: left subtree, node, right subtree. Odd
/// nodes are leaves.
#[derive(Clone, Copy, Debug)]
enum Which {
    /// Rank r is node r + 1.
    First = 0,
    /// The parity of nodes is reversed: the tree is mirrored for an even p, and shifted by one for an odd p. (For
    /// an odd p, one rank is a leaf in both trees.)
    Second = 1,
}
use Which::{First, Second};

impl Which {
    fn node(self, rank: u32, p: u32) -> u32 {
        match self {
            First => rank + 1,
            Second if p.is_multiple_of(2) => p - rank,
            Second => (rank + 1) % p + 1,
        }
    }

    fn rank(self, node: u32, p: u32) -> u32 {
        match self {
            First => node - 1,
            Second if p.is_multiple_of(2) => p - node,
            Second => (node + p - 2) % p,
        }
    }
}

/// Returns the edges of a tree, as ranks of a child and its parent.
fn edges(tree: Which, p: u32) -> impl Iterator<Item = (u32, u32)> {
    (1..=p).filter_map(move |node| Some((tree.rank(node, p), tree.rank(parent(node, p)?, p))))
}

/// Returns the edges from a leaf to the root, within hosts and between them, for the leaf with the most of the latter.
fn longest_way(placement: &[u32], p: u32) -> (u32, u32) {
    let way = |tree: Which, node: u32| {
        let nodes = std::iter::successors(Some(node), |node| parent(*node, p));
        let hosts: Vec<u32> = nodes.map(|node| placement[tree.rank(node, p) as usize]).collect();
        let far = hosts.windows(2).filter(|ends| ends[0] != ends[1]).count() as u32;
        (far, hosts.len() as u32 - 1 - far)
    };
    let ways = [First, Second].into_iter().flat_map(|tree| (1..=p).map(move |node| way(tree, node)));
    let (far, near) = ways.max().unwrap_or_default();
    (near, far)
}

/// Returns the parent of a node. In the complete tree, it is the node with its lowest set bit cleared and the
/// next bit set. If that is beyond p, the next ancestor takes its place; the greatest power of two within p is
/// the root.
fn parent(node: u32, p: u32) -> Option<u32> {
    let root = 1 << p.ilog2();
    if node == root {
        return None;
    }
    let mut up = node;
    loop {
        let bit = up & up.wrapping_neg();
        up = (up - bit) | (bit << 1);
        if up <= p {
            return Some(up);
        }
    }
}

fn children(node: u32, p: u32) -> [Option<u32>; 2] {
    let half = (node & node.wrapping_neg()) / 2;
    if half == 0 {
        return [None, None];
    }
    // The existing part of the right subtree is attached by its highest node.
    let mut step = half;
    while step > 0 && node + step > p {
        step /= 2;
    }
    [Some(node - half), (step > 0).then_some(node + step)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for p in 1..300 {
            for node in 1..=p {
                for child in children(node, p).into_iter().flatten() {
                    assert_eq!(parent(child, p), Some(node), "p {p}");
                }
                if let Some(up) = parent(node, p) {
                    assert!(children(up, p).contains(&Some(node)), "p {p} node {node}");
                }
            }
        }
    }

    #[test]
    fn no_rank_is_inner_in_both_trees() {
        for p in 2..300 {
            let inner = |tree: Which, rank| children(tree.node(rank, p), p)[0].is_some();
            for rank in 0..p {
                assert_eq!(Second.rank(Second.node(rank, p), p), rank);
                assert!(!(inner(First, rank) && inner(Second, rank)), "p {p} rank {rank}");
            }
        }
    }
}
