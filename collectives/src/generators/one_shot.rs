//! One-shot: each rank that wants a result gets all contributions and reduces them by itself.
//!
//! This is the algorithm of one-shot kernels on GPUs and of flat shared-memory collectives: one wave of p-1 messages of
//! the whole vector, so (p-1) n bytes per rank, but a single latency. It serves all-reduce, reduce (to any root),
//! reduce-scatter and the scans, in which a rank gets contributions only from the ranks before it. Contributions are
//! received in rank order and added along the canonical tree
//! ([`Expression::canonical`](crate::check::Expression::canonical)): the balanced binary tree over the ranks, in which
//! ranks beyond a power of two are paired first. Each contribution is added as soon as its neighbours in the tree are
//! there, so log2 p scratch vectors suffice. A scan's tree is that over the ranks whose contributions it adds.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::rounds::{Fold, ceil_log2, floor_log2};
use crate::task::Task;

pub(crate) struct OneShot;

impl Generator for OneShot {
    fn name(&self) -> &'static str {
        "one_shot"
    }

    fn source(&self) -> &'static str {
        "flat exchange with ordered local reduction, as one-shot kernels on GPUs do"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        use Collective as C;
        match task.collective {
            C::AllReduce | C::Reduce | C::ReduceScatter | C::Scan | C::ExScan => Ok(()),
            other => Err(format!("one-shot reduces, and does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let scatter = task.collective == Collective::ReduceScatter;
        let cut = if scatter { Cut::PerRank } else { Cut::Vector { parts: 1 } };
        let mut b = PlanBuilder::new(task, Algorithm::OneShot, rank, cut);
        b.lane(0);
        let output = Blocks::one(Space::Output, 0);
        for distance in 1..task.world_size {
            let to = task.ahead(rank, distance);
            match task.collective {
                Collective::ReduceScatter => b.send(to, Blocks::one(Space::Input, to)),
                Collective::AllReduce => b.send(to, task.own_blocks(0, 1)),
                Collective::Reduce if to == task.root => b.send(to, task.own_blocks(0, 1)),
                Collective::Scan | Collective::ExScan if to > rank => b.send(to, task.own_blocks(0, 1)),
                _ => {}
            }
        }
        // The sum is that of the contributions of the first ranks.
        let summed = match task.collective {
            Collective::Reduce if rank != task.root => 0,
            Collective::Scan => rank + 1,
            Collective::ExScan => rank,
            _ => task.world_size,
        };
        if summed == 0 {
            return b.finish();
        }
        let (own, like) = match (scatter, task.out_of_place()) {
            (true, true) => (Blocks::one(Space::Input, rank), Like::Output(0)),
            (false, true) => (Blocks::one(Space::Input, 0), Like::Output(0)),
            (_, false) => (output, Like::Output(0)),
        };
        // An in-place all-reduce must not write blocks that it is still sending, and a receive that waited for the
        // sends would wait for peers that wait likewise. The sum is therefore built in scratch. In a scan, only later
        // ranks wait for this one.
        let aside = task.collective == Collective::AllReduce && !task.out_of_place();
        let mut tree = Tree { b: &mut b, me: rank, p: summed, own, like, free: Vec::new() };
        let sum = tree.sum(0, 1 << floor_log2(summed));
        let result = tree.place(sum, (!aside).then_some(output));
        if result != output {
            b.copy(result, output);
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let others = task.world_size - 1;
        if task.collective == Collective::Reduce {
            return bill.fan(bytes, true);
        }
        bill.wave(others, bytes, true, f64::INFINITY);
        // The order is fixed, so contributions are stored as they arrive and reduced later.
        bill.copy(bytes * f64::from(others));
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        f64::from(ceil_log2(task.world_size)).max(1.0)
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }
}

/// A subtree's sum, whose last addition may be pending.
#[derive(Clone, Copy)]
enum Sum {
    /// This rank's own contribution.
    Own,
    /// The contribution of the named rank, which has not been received yet.
    Peer(u32),
    /// Two sums still to be added, by the caller, who knows the place of the result.
    Pending { left: Term, right: Term },
}

#[derive(Clone, Copy)]
enum Term {
    Own,
    Peer(u32),
    Scratch(Blocks),
}

struct Tree<'b> {
    b: &'b mut PlanBuilder,
    me: u32,
    /// Number of ranks whose contributions are added.
    p: u32,
    own: Blocks,
    like: Like,
    free: Vec<Blocks>,
}

impl Tree<'_> {
    /// Makes the sum of the leaves `low..high` of the canonical tree, except for its last addition.
    fn sum(&mut self, low: u32, high: u32) -> Sum {
        if high - low == 1 {
            let rank = Fold::rank_of(low, self.p);
            let leaf = |rank| if rank == self.me { Term::Own } else { Term::Peer(rank) };
            return match (Fold::of(rank, self.p), leaf(rank)) {
                (Fold::Active { extra: Some(extra), .. }, left) => Sum::Pending { left, right: leaf(extra) },
                (_, Term::Own) => Sum::Own,
                _ => Sum::Peer(rank),
            };
        }
        let middle = low.midpoint(high);
        let left = self.sum(low, middle);
        let left = self.term(left);
        let right = self.sum(middle, high);
        let right = self.term(right);
        Sum::Pending { left, right }
    }

    /// Does the last addition, into scratch.
    fn term(&mut self, sum: Sum) -> Term {
        match sum {
            Sum::Own => Term::Own,
            Sum::Peer(rank) => Term::Peer(rank),
            Sum::Pending { .. } => Term::Scratch(self.place(sum, None)),
        }
    }

    /// Does the last addition, into `dst` or into scratch, and returns the place of the sum.
    fn place(&mut self, sum: Sum, dst: Option<Blocks>) -> Blocks {
        let (left, right) = match sum {
            Sum::Own => return self.own,
            // The only contribution to an exclusive scan.
            Sum::Peer(rank) => {
                let dst = dst.unwrap_or_else(|| self.b.scratch(self.like));
                self.b.recv(rank, dst);
                return dst;
            }
            Sum::Pending { left, right } => (left, right),
        };
        let spare = |term| if let Term::Scratch(blocks) = term { Some(blocks) } else { None };
        let slot =
            spare(left).or(spare(right)).or_else(|| if dst.is_none() { self.free.pop() } else { None });
        let dst = match (dst, slot) {
            (Some(dst), _) => dst,
            (None, Some(slot)) => slot,
            (None, None) => self.b.scratch(self.like),
        };
        let own = self.own;
        let local = |term| match term {
            Term::Own => Some(own),
            Term::Scratch(blocks) => Some(blocks),
            Term::Peer(_) => None,
        };
        match (left, right) {
            (Term::Peer(first), Term::Peer(second)) => {
                self.b.recv(first, dst);
                self.b.recv_reduce(second, dst, dst);
            }
            (Term::Peer(peer), other) | (other, Term::Peer(peer)) => {
                let with = local(other).expect("not a peer");
                self.b.recv_reduce(peer, with, dst);
            }
            (left, right) => {
                let (a, b) = (local(left).expect("not a peer"), local(right).expect("not a peer"));
                self.b.reduce(a, b, dst);
            }
        }
        self.free.extend([spare(left), spare(right)].into_iter().flatten().filter(|slot| *slot != dst));
        dst
    }
}
