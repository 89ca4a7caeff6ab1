//! Binomial trees: broadcast, reduce, gather and scatter in ceil(log2 p) rounds.
//!
//! The classic tree (e.g. Chan, Heimlich, Purkayastha and van de Geijn, 2007). With v = (rank - root) mod p,
//! the parent of v is v with its lowest set bit cleared, so the subtree of v is v..v + lowest bit. Broadcast
//! and reduce move the whole vector over each edge; gather and scatter move the blocks of the subtree. A
//! reduce adds the children from the smallest subtree up: for root 0 and p = 2^k this is the balanced tree
//! over the ranks.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::group::Group;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::rounds::ceil_log2;
use crate::task::Task;

pub(crate) struct Binomial;

impl Generator for Binomial {
    fn name(&self) -> &'static str {
        "binomial"
    }

    fn source(&self) -> &'static str {
        "binomial trees; Chan, Heimlich, Purkayastha, van de Geijn 2007"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => Ok(()),
            other => Err(format!("the binomial tree does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let vector = Cut::Vector { parts: 1 };
        let cut = match task.collective {
            Collective::Broadcast | Collective::Reduce => vector,
            _ => Cut::PerRank,
        };
        let mut b = PlanBuilder::new(task, Algorithm::Binomial, rank, cut);
        b.lane(0);
        let group = Group::world(task.world_size, rank);
        let output = Blocks::one(Space::Output, 0);
        match task.collective {
            Collective::Broadcast => {
                let root_source =
                    (rank == task.root && task.out_of_place()).then_some(Blocks::one(Space::Input, 0));
                broadcast_core(&mut b, &group, task.root, root_source, output);
            }
            Collective::Reduce => {
                let own = task.own_blocks(0, 1);
                let sum = if rank == task.root {
                    Some(output)
                } else if Tree::of(&group, task.root).children().next().is_some() {
                    Some(b.scratch_like_own(task, 0))
                } else {
                    None
                };
                reduce_core(&mut b, &group, task.root, own, sum);
            }
            Collective::Gather => gather(&mut b, task, &group),
            _ => scatter(&mut b, task, &group),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let p = task.world_size;
        let rounds = ceil_log2(p);
        match task.collective {
            Collective::Broadcast | Collective::Reduce => {
                for round in 0..rounds {
                    let (pattern, reach) = (Pattern::OneWay(bill.branches(round)), bill.branch(1 << round));
                    bill.exchange(pattern, reach, 1.0, bytes, task.collective == Collective::Reduce);
                }
            }
            _ => {
                for round in 0..rounds {
                    let blocks = (1_u32 << round).min(p - (1 << round));
                    // The longer the messages of a round, the fewer they are.
                    let pattern = Pattern::OneWay(bill.branches(rounds - 1 - round));
                    bill.exchange(pattern, bill.branch(1 << round), 1.0, bytes * f64::from(blocks), false);
                }
                bill.copy(bytes);
            }
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::Gather | Collective::Scatter => f64::from(task.world_size) / 2.0,
            _ => 1.0,
        }
    }

    fn is_canonical(&self, task: &Task) -> bool {
        task.collective == Collective::Reduce && task.root == 0 && task.world_size.is_power_of_two()
    }
}

/// A member's place in the tree. Numbers are relative to the root.
struct Tree {
    len: u32,
    root: u32,
    v: u32,
}

impl Tree {
    fn of(group: &Group, root: u32) -> Self {
        let len = group.len();
        Self { len, root, v: (group.me() + len - root) % len }
    }

    /// Returns the member with relative number `v`.
    fn member(&self, v: u32) -> u32 {
        (v + self.root) % self.len
    }

    fn parent(&self) -> Option<u32> {
        (self.v > 0).then(|| self.v & (self.v - 1))
    }

    /// Returns the children, the smallest subtree first.
    fn children(&self) -> impl DoubleEndedIterator<Item = u32> {
        let bits = if self.v == 0 { ceil_log2(self.len) } else { self.v.trailing_zeros() };
        let (v, len) = (self.v, self.len);
        (0..bits).map(move |bit| v + (1 << bit)).filter(move |child| *child < len)
    }

    /// Returns the number of members in the subtree of `v`.
    fn size(&self, v: u32) -> u32 {
        if v == 0 { self.len } else { (1 << v.trailing_zeros()).min(self.len - v) }
    }
}

/// Broadcasts `root`'s `output`, or its `source` if given, to the `output` of all members.
pub(crate) fn broadcast_core(
    b: &mut PlanBuilder,
    group: &Group,
    root: u32,
    source: Option<Blocks>,
    output: Blocks,
) {
    let tree = Tree::of(group, root);
    if let Some(parent) = tree.parent() {
        b.recv(group.rank(tree.member(parent)), output);
    }
    for child in tree.children().rev() {
        b.send(group.rank(tree.member(child)), source.unwrap_or(output));
    }
    if let Some(source) = source {
        b.copy(source, output);
    }
}

/// Reduces the `own` of all members to `root`. Partial sums go to `sum`, which a leaf does not need.
pub(crate) fn reduce_core(b: &mut PlanBuilder, group: &Group, root: u32, own: Blocks, sum: Option<Blocks>) {
    let tree = Tree::of(group, root);
    let mut with = own;
    for child in tree.children() {
        let sum = sum.expect("inner members have a place for their sum");
        b.recv_reduce(group.rank(tree.member(child)), with, sum);
        with = sum;
    }
    if let Some(parent) = tree.parent() {
        b.send(group.rank(tree.member(parent)), with);
    } else if let Some(sum) = sum.filter(|sum| *sum != with) {
        b.copy(with, sum);
    }
}

/// Collects a signal from every member at `root`.
pub(crate) fn gather_signals(b: &mut PlanBuilder, group: &Group, root: u32) {
    let tree = Tree::of(group, root);
    for child in tree.children() {
        b.wait_signal(group.rank(tree.member(child)));
    }
    if let Some(parent) = tree.parent() {
        b.signal(group.rank(tree.member(parent)));
    }
}

/// Distributes a signal from `root` to every member.
pub(crate) fn spread_signals(b: &mut PlanBuilder, group: &Group, root: u32) {
    let tree = Tree::of(group, root);
    if let Some(parent) = tree.parent() {
        b.wait_signal(group.rank(tree.member(parent)));
    }
    for child in tree.children().rev() {
        b.signal(group.rank(tree.member(child)));
    }
}

/// Returns the blocks of the subtree of `v` at the root: two ranges if they wrap round the last rank. Other
/// ranks hold the blocks of a subtree in scratch, in relative order; they cut them at the same place, but only
/// in messages to and from the root.
fn at_root(task: &Task, tree: &Tree, space: Space, v: u32) -> impl Iterator<Item = Blocks> {
    let (first, size) = (tree.member(v), tree.size(v));
    let before = size.min(task.world_size - first);
    let after = (before < size).then(|| Blocks::range(space, 0, size - before));
    [Some(Blocks::range(space, first, before)), after].into_iter().flatten()
}

/// Returns the ranges in which this rank exchanges the blocks of its subtree with its `parent`; `all` is where
/// they lie.
fn to_parent(task: &Task, tree: &Tree, parent: u32, all: Blocks) -> Vec<Blocks> {
    if parent != 0 {
        return vec![all];
    }
    let mut first = all.first;
    at_root(task, tree, all.space, tree.v)
        .map(|range| {
            first += range.count;
            Blocks::range(all.space, first - range.count, range.count)
        })
        .collect()
}

fn gather(b: &mut PlanBuilder, task: &Task, group: &Group) {
    let tree = Tree::of(group, task.root);
    let input = Blocks::one(Space::Input, 0);
    let Some(parent) = tree.parent() else {
        for child in tree.children() {
            let ranges: Vec<Blocks> = at_root(task, &tree, Space::Output, child).collect();
            for range in ranges {
                b.recv(group.rank(tree.member(child)), range);
            }
        }
        if task.out_of_place() {
            b.copy(input, Blocks::one(Space::Output, task.root));
        }
        return;
    };
    let mut all = input;
    if tree.size(tree.v) > 1 {
        all = b.scratch_range((0..tree.size(tree.v)).map(|_| Like::Input(0)));
        b.copy(input, Blocks::one(Space::Scratch, all.first));
        for child in tree.children() {
            let place = Blocks::range(Space::Scratch, all.first + child - tree.v, tree.size(child));
            b.recv(group.rank(tree.member(child)), place);
        }
    }
    for range in to_parent(task, &tree, parent, all) {
        b.send(group.rank(tree.member(parent)), range);
    }
}

fn scatter(b: &mut PlanBuilder, task: &Task, group: &Group) {
    let tree = Tree::of(group, task.root);
    let output = Blocks::one(Space::Output, 0);
    let Some(parent) = tree.parent() else {
        for child in tree.children().rev() {
            let ranges: Vec<Blocks> = at_root(task, &tree, Space::Input, child).collect();
            for range in ranges {
                b.send(group.rank(tree.member(child)), range);
            }
        }
        if task.out_of_place() {
            b.copy(Blocks::one(Space::Input, task.root), output);
        }
        return;
    };
    let mut all = output;
    if tree.size(tree.v) > 1 {
        all = b.scratch_range((0..tree.size(tree.v)).map(|_| Like::Output(0)));
    }
    for range in to_parent(task, &tree, parent, all) {
        b.recv(group.rank(tree.member(parent)), range);
    }
    for child in tree.children().rev() {
        let place = Blocks::range(Space::Scratch, all.first + child - tree.v, tree.size(child));
        b.send(group.rank(tree.member(child)), place);
    }
    if all != output {
        b.copy(Blocks::one(Space::Scratch, all.first), output);
    }
}
