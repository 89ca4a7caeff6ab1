//! Bruck's all-to-all for small blocks, and his all-gather.
//!
//! Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems" (1997). All-to-all: a block that must travel distance d goes by the powers of two in
//! d; round k moves all blocks with bit k set, p/2 of them, packed, to rank me + 2^k. That takes ceil(log2 p)
//! rounds and messages instead of p-1, for (log2 p)/2 times the volume, which suits blocks of a few hundred
//! bytes. Blocks pass through other ranks, so all must have the same length. All-gather: the number of blocks
//! held doubles each round. Each block is received where it belongs, so that no rotation is needed at the end.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::generators::{circulant, copy_own};
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::rounds::ceil_log2;
use crate::task::Task;

pub(crate) struct Bruck;

impl Generator for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn source(&self) -> &'static str {
        "Bruck, Ho, Kipnis, Upfal, Weathersby 1997"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllToAll | Collective::AllGather => Ok(()),
            other => Err(format!("Bruck's exchange does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let mut b = PlanBuilder::new(task, Algorithm::Bruck, rank, Cut::PerRank);
        b.lane(0);
        match task.collective {
            Collective::AllGather => all_gather(&mut b, task, rank),
            _ => all_to_all(&mut b, task, rank),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let p = task.world_size;
        if task.collective == Collective::AllGather {
            return circulant::phase_cost(bill, p, bytes, false, None);
        }
        let moved = bytes * f64::from(p / 2);
        bill.copy(2.0 * bytes * f64::from(p));
        for round in 0..ceil_log2(p) {
            bill.copy(2.0 * moved);
            bill.exchange(Pattern::Circle, bill.circle(1 << round), 1.0, moved, false);
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::AllToAll => 2.0 * f64::from(task.world_size),
            _ => 1.0,
        }
    }
}

/// Returns `count` blocks from `first` on, modulo `p`: one or two ranges.
fn around(space: Space, first: u32, count: u32, p: u32) -> impl Iterator<Item = Blocks> {
    let before = count.min(p - first);
    let after = (before < count).then(|| Blocks::range(space, 0, count - before));
    [Some(Blocks::range(space, first, before)), after].into_iter().flatten()
}

fn all_gather(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let p = task.world_size;
    if task.out_of_place() {
        b.copy(Blocks::one(Space::Input, 0), Blocks::one(Space::Output, rank));
    }
    let mut held = 1;
    while held < p {
        let count = held.min(p - held);
        let (to, from) = (task.behind(rank, held), task.ahead(rank, held));
        for range in around(Space::Output, rank, count, p) {
            b.send(to, range);
        }
        for range in around(Space::Output, from, count, p) {
            b.recv(from, range);
        }
        held += count;
    }
}

fn all_to_all(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let p = task.world_size;
    let own = task.own();
    if p == 1 {
        copy_own(b, task, 0, 1);
        return;
    }
    if task.out_of_place() {
        b.copy(Blocks::one(own, rank), Blocks::one(Space::Output, rank));
    }
    // Staged block i - 1 has i ranks to go to its destination.
    let like = |b: &mut PlanBuilder, count: u32| b.scratch_range((0..count).map(|_| Like::Output(0))).first;
    let staged = like(b, p - 1);
    let (packed, arrived) = (like(b, p / 2), like(b, p / 2));
    let mut next = staged;
    for range in around(own, task.ahead(rank, 1), p - 1, p) {
        b.copy(range, Blocks::range(Space::Scratch, next, range.count));
        next += range.count;
    }
    for round in 0..ceil_log2(p) {
        let bit = 1 << round;
        // Runs of staged blocks with this bit, and their places in the message.
        let mut runs = Vec::new();
        let mut total = 0;
        for first in (bit..p).step_by(2 * bit as usize) {
            let count = bit.min(p - first);
            runs.push((first, total, count));
            total += count;
        }
        for (first, at, count) in &runs {
            b.copy(
                Blocks::range(Space::Scratch, staged + first - 1, *count),
                Blocks::range(Space::Scratch, packed + at, *count),
            );
        }
        b.send(task.ahead(rank, bit), Blocks::range(Space::Scratch, packed, total));
        b.recv(task.behind(rank, bit), Blocks::range(Space::Scratch, arrived, total));
        for (first, at, count) in runs {
            b.copy(
                Blocks::range(Space::Scratch, arrived + at, count),
                Blocks::range(Space::Scratch, staged + first - 1, count),
            );
        }
    }
    for index in 1..p {
        let from = task.behind(rank, index);
        b.copy(Blocks::one(Space::Scratch, staged + index - 1), Blocks::one(Space::Output, from));
    }
}
