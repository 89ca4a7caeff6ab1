//! All-reduce over shards, along the tree that depends on the shards alone: see [`crate::shards`].
//!
//! Each rank reduces its *pieces*, the largest subtrees of its own shards, and sends them to the ranks that
//! sum them. In the one-shot algorithm all ranks receive whole pieces; in the two-shot algorithm each rank
//! receives its slice of every piece, and then sends the sum of that slice to all. On its way up, a piece
//! meets the other half of its parent at the same node whatever the number of ranks; the order in which the
//! two arrive does not change the bits. With c pieces per rank on average, a rank sends (p-1) c n bytes in
//! one shot and (c + 1) n (p-1)/p in two; if every run is a single piece, that is as much as the direct
//! exchange of vectors, the minimum.

use std::collections::BTreeMap;

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::rounds::ceil_log2;
use crate::shards::{MAX_RANKS, MAX_SHARDS, Node, Tree, of_rank};
use crate::task::Task;

pub(crate) struct ShardsOneShot;
pub(crate) struct ShardsTwoShot;

impl Generator for ShardsOneShot {
    fn name(&self) -> &'static str {
        "shards_one_shot"
    }

    fn source(&self) -> &'static str {
        "one-shot exchange of the largest subtrees of each rank's shards"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        supports(task)
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        plan(task, Algorithm::ShardsOneShot, rank)
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let pieces = Pieces::of(task);
        bill.reduce(pieces.additions * bytes);
        bill.wave(task.world_size - 1, pieces.mean * bytes, true, f64::INFINITY);
        // A piece that has to wait for its other half is stored as it arrives, and reduced later.
        bill.copy(bytes * pieces.mean * f64::from(task.world_size - 1));
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        let pieces = Pieces::of(task);
        pieces.most + f64::from(ceil_log2(pieces.shards_most as u32 + 1)) + waiting(task, pieces.mean)
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }

    fn takes_shards(&self) -> bool {
        true
    }
}

impl Generator for ShardsTwoShot {
    fn name(&self) -> &'static str {
        "shards_two_shot"
    }

    fn source(&self) -> &'static str {
        "two-shot direct exchange of the largest subtrees of each rank's shards"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        supports(task)
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        plan(task, Algorithm::ShardsTwoShot, rank)
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let pieces = Pieces::of(task);
        let slice = bytes / f64::from(task.world_size);
        bill.reduce(pieces.additions * bytes);
        bill.wave(task.world_size - 1, pieces.mean * slice, true, f64::INFINITY);
        bill.wave(task.world_size - 1, slice, false, f64::INFINITY);
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        let pieces = Pieces::of(task);
        let slices = waiting(task, pieces.mean) / f64::from(task.world_size);
        pieces.most + f64::from(ceil_log2(pieces.shards_most as u32 + 1)) + slices
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }

    fn takes_shards(&self) -> bool {
        true
    }
}

fn supports(task: &Task) -> Result<(), String> {
    let shards = task.shards.unwrap_or(0);
    if task.collective != Collective::AllReduce {
        Err(format!("shards do not support {}", task.collective))
    } else if !task.out_of_place() {
        Err("shards are reduced out of place".to_owned())
    } else if !(1..=MAX_SHARDS).contains(&shards) {
        Err(format!("there are 1 to {MAX_SHARDS} shards, not {shards}"))
    } else if task.world_size > MAX_RANKS {
        Err(format!("shards are for at most {MAX_RANKS} ranks, not {}", task.world_size))
    } else {
        Ok(())
    }
}

/// Statistics on how the shards fall into pieces.
struct Pieces {
    mean: f64,
    most: f64,
    shards_most: f64,
    /// Additions that a rank makes among its own shards, on the rank that makes the most.
    additions: f64,
}

impl Pieces {
    fn of(task: &Task) -> Self {
        let (shards, ranks) = (task.shards.unwrap_or(1), task.world_size);
        let tree = Tree::over(shards);
        let (mut sum, mut most) = (0, 0);
        for rank in 0..ranks {
            let pieces = tree.pieces(&of_rank(shards, rank, ranks)).len();
            sum += pieces;
            most = most.max(pieces);
        }
        Self {
            mean: sum as f64 / f64::from(ranks),
            most: most as f64,
            shards_most: f64::from(shards.div_ceil(ranks)),
            additions: f64::from(shards.div_ceil(ranks) - 1),
        }
    }
}

/// Returns the number of blocks in which pieces wait for their other halves: the worst case, in which all
/// wait. Mostly only a few do.
fn waiting(task: &Task, pieces: f64) -> f64 {
    pieces * f64::from(task.world_size)
}

fn plan(task: &Task, algorithm: Algorithm, rank: u32) -> Plan {
    let shards = task.shards.unwrap_or(1);
    let p = task.world_size;
    let is_two_shot = algorithm == Algorithm::ShardsTwoShot;
    let parts = if is_two_shot { p } else { 1 };
    let mut b = PlanBuilder::new(task, algorithm, rank, Cut::Shards { parts, shards });
    b.lane(0);
    let tree = Tree::over(shards);
    let pieces_of = |rank: u32| tree.pieces(&of_rank(shards, rank, p));
    // Returns the part of a piece that goes to a rank.
    let part = |of: Blocks, to: u32| if is_two_shot { Blocks::one(of.space, of.first + to) } else { of };
    let mine = if is_two_shot { rank } else { 0 };
    let first = of_rank(shards, rank, p).start;
    let mut own = Own { b: &mut b, tree, first, parts, free: Vec::new() };
    let mut folded = Vec::new();
    for piece in pieces_of(rank) {
        let result = (p == 1).then_some(Blocks::range(Space::Output, 0, parts));
        let at = own.fold(piece, result);
        for distance in 1..p {
            let to = task.ahead(rank, distance);
            own.b.send(to, part(at, to));
        }
        folded.push((piece, at));
    }
    let output = Blocks::one(Space::Output, mine);
    let mut sum = Sum { b: &mut b, root: tree.root(), output, waiting: BTreeMap::new(), free: Vec::new() };
    for (piece, at) in folded {
        // In the two-shot algorithm, this rank's own part is not sent.
        let is_free = is_two_shot && at.space == Space::Scratch;
        sum.climb(piece, Term { blocks: part(at, rank), is_free });
    }
    for distance in 1..p {
        let from = task.behind(rank, distance);
        for piece in pieces_of(from) {
            sum.receive(from, piece);
        }
    }
    if is_two_shot {
        for distance in 1..p {
            b.send(task.ahead(rank, distance), output);
        }
        for distance in 1..p {
            let from = task.behind(rank, distance);
            b.recv(from, Blocks::one(Space::Output, from));
        }
    }
    b.finish()
}

/// Reduction of a rank's own shards.
struct Own<'b> {
    b: &'b mut PlanBuilder,
    tree: Tree,
    /// The first of its shards.
    first: u32,
    parts: u32,
    free: Vec<Blocks>,
}

impl Own<'_> {
    /// Reduces the shards below `node`, into `result` if given, and returns the place of the sum.
    fn fold(&mut self, node: Node, result: Option<Blocks>) -> Blocks {
        let shards = self.tree.shards(node);
        if shards.len() == 1 {
            let input = Blocks::range(Space::Input, (shards.start - self.first) * self.parts, self.parts);
            let Some(result) = result else { return input };
            self.b.copy(input, result);
            return result;
        }
        let [left, right] = Tree::halves(node).map(|half| self.fold(half, None));
        let slots = [left, right].into_iter().filter(|blocks| blocks.space == Space::Scratch);
        self.free.extend(slots);
        let parts = self.parts;
        let dst = result.or_else(|| self.free.pop());
        let dst = dst.unwrap_or_else(|| self.b.scratch_range((0..parts).map(Like::Output)));
        self.b.reduce(left, right, dst);
        dst
    }
}

/// The value of a node of the tree.
#[derive(Clone, Copy)]
struct Term {
    blocks: Blocks,
    /// Whether its memory may be overwritten.
    is_free: bool,
}

/// Reduction of the pieces of all ranks, in the order in which they arrive.
struct Sum<'b> {
    b: &'b mut PlanBuilder,
    root: Node,
    output: Blocks,
    /// Values whose other halves have not arrived yet.
    waiting: BTreeMap<Node, Term>,
    free: Vec<Blocks>,
}

impl Sum<'_> {
    /// Receives a piece from its rank.
    fn receive(&mut self, from: u32, piece: Node) {
        if piece == self.root {
            return self.b.recv(from, self.output);
        }
        let (sibling, parent) = Tree::up(piece);
        if let Some(with) = self.waiting.remove(&sibling) {
            let dst = self.place(parent, &[with]);
            self.b.recv_reduce(from, with.blocks, dst);
            self.climb(parent, Term { blocks: dst, is_free: true });
        } else {
            let blocks = self.slot();
            self.b.recv(from, blocks);
            self.waiting.insert(piece, Term { blocks, is_free: true });
        }
    }

    /// Adds a value to its other half, that sum to its own other half, and so on while these are present.
    fn climb(&mut self, mut node: Node, mut term: Term) {
        while node != self.root {
            let (sibling, parent) = Tree::up(node);
            let Some(other) = self.waiting.remove(&sibling) else {
                self.waiting.insert(node, term);
                return;
            };
            let dst = self.place(parent, &[term, other]);
            self.b.reduce(term.blocks, other.blocks, dst);
            (node, term) = (parent, Term { blocks: dst, is_free: true });
        }
        if term.blocks != self.output {
            self.b.copy(term.blocks, self.output);
        }
    }

    /// Returns the place for the sum of `terms`, and frees the memory that they leave.
    fn place(&mut self, node: Node, terms: &[Term]) -> Blocks {
        self.free.extend(terms.iter().filter(|term| term.is_free).map(|term| term.blocks));
        if node == self.root { self.output } else { self.slot() }
    }

    fn slot(&mut self) -> Blocks {
        self.free.pop().unwrap_or_else(|| self.b.scratch(Like::Output(self.output.first)))
    }
}
