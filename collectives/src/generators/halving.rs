//! Recursive halving and doubling: all-reduce, reduce-scatter and all-gather by exchanges between ranks that differ in
//! one bit.
//!
//! The all-reduce is that of Rabenseifner, "Optimization of collective reduction operations" (2004), but with the
//! distance doubling while the vector halves: in round k, ranks that differ in bit k exchange halves of the blocks that
//! they still share, and the exchanges are then undone in reverse order. It takes 2 log2 p rounds and 2 n (p-1)/p
//! bytes. The nearest partners add first, so every element is summed along the balanced binary tree over the ranks:
//! canonical order. If p is not a power of two, the first ranks form pairs beforehand, which costs two rounds and n
//! bytes each way on those ranks. If ranks are contiguous on hosts, the large exchanges stay within a host.
//!
//! Reduce-scatter and all-gather are those of Thakur, Rabenseifner and Gropp (2005), for powers of two. The distance
//! halves with the blocks, so that the blocks of a round are always adjacent and each round is a single message each
//! way.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::generators::copy_own;
use crate::plan::{Blocks, Collective, Cut, Like, Placement, Plan, Space};
use crate::rounds::{Fold, ceil_log2, floor_log2};
use crate::task::Task;

pub(crate) struct Halving;

impl Generator for Halving {
    fn name(&self) -> &'static str {
        "halving"
    }

    fn source(&self) -> &'static str {
        "Rabenseifner 2004, with distance doubling"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce => Ok(()),
            Collective::ReduceScatter | Collective::AllGather if task.world_size.is_power_of_two() => Ok(()),
            Collective::ReduceScatter | Collective::AllGather => Err(format!(
                "halving of blocks per rank needs a power-of-two number of ranks, not {}",
                task.world_size
            )),
            other => Err(format!("halving does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let p = task.world_size;
        let cut = match task.collective {
            Collective::AllReduce => Cut::Vector { parts: 1 << floor_log2(p) },
            _ => Cut::PerRank,
        };
        let mut b = PlanBuilder::new(task, Algorithm::Halving, rank, cut);
        b.lane(0);
        match task.collective {
            _ if p == 1 => copy_own(&mut b, task, 0, 1),
            Collective::AllReduce => all_reduce(&mut b, task, rank),
            Collective::ReduceScatter => reduce_scatter(&mut b, task, rank),
            _ => all_gather(&mut b, task, rank),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let reduces = match task.collective {
            Collective::AllReduce => {
                bill.doubling(bytes, bytes / 2.0, true);
                bill.doubling(0.0, bytes / 2.0, false);
                return;
            }
            other => other.reduces(),
        };
        for round in 0..ceil_log2(task.world_size) {
            let blocks = f64::from(1_u32 << round);
            bill.exchange(Pattern::Pairs, bill.partner(1 << round), 1.0, bytes * blocks, reduces);
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::ReduceScatter => f64::from(task.world_size) / 2.0,
            _ => 0.0,
        }
    }

    fn is_canonical(&self, task: &Task) -> bool {
        task.collective == Collective::AllReduce
    }
}

fn all_reduce(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let p = task.world_size;
    let rounds = floor_log2(p);
    let parts = 1 << rounds;
    let (own, output) = (task.own_blocks(0, parts), Blocks::range(Space::Output, 0, parts));
    let (index, extra) = match Fold::of(rank, p) {
        Fold::Extra { partner } => {
            b.send(partner, own);
            b.recv(partner, output);
            return;
        }
        Fold::Active { index, extra } => (index, extra),
    };
    let mut sum = own.space;
    if let Some(extra) = extra {
        b.recv_reduce(extra, own, output);
        sum = Space::Output;
    }
    // Blocks first..first + size are those that this rank still reduces. Only ranks that differ in bit k have the same
    // ones.
    let (mut first, mut size) = (0, parts);
    let mut shared = Vec::with_capacity(rounds as usize);
    for round in 0..rounds {
        size /= 2;
        let (keep, give) =
            if index >> round & 1 == 0 { (first, first + size) } else { (first + size, first) };
        let peer = Fold::rank_of(index ^ (1 << round), p);
        b.send(peer, Blocks::range(sum, give, size));
        b.recv_reduce(peer, Blocks::range(sum, keep, size), Blocks::range(Space::Output, keep, size));
        shared.push((peer, keep, give, size));
        (first, sum) = (keep, Space::Output);
    }
    for (peer, keep, give, size) in shared.into_iter().rev() {
        b.send(peer, Blocks::range(Space::Output, keep, size));
        b.recv(peer, Blocks::range(Space::Output, give, size));
    }
    if let Some(extra) = extra {
        b.send(extra, output);
    }
}

/// Partial sums of the blocks that this rank still reduces lie in scratch, in the order of the blocks.
fn reduce_scatter(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let output = Blocks::one(Space::Output, 0);
    let mut size = task.world_size / 2;
    // Block 0 of the current range is block `first` of the world.
    let mut first = 0;
    let mut at_hand = Blocks::range(Space::Input, 0, task.world_size);
    while size > 0 {
        let peer = rank ^ size;
        let (keep, give) = if rank & size == 0 { (0, size) } else { (size, 0) };
        let part = |offset: u32| Blocks::range(at_hand.space, at_hand.first + offset, size);
        b.send(peer, part(give));
        first += keep;
        let sum = if size > 1 && at_hand.space == Space::Input {
            b.scratch_range((first..first + size).map(Like::Input))
        } else if size > 1 {
            part(keep)
        } else {
            output
        };
        // In place, this rank's block of the input is the output.
        let own = task.placement == Placement::InPlace && at_hand.space == Space::Input && size == 1;
        b.recv_reduce(peer, if own { output } else { part(keep) }, sum);
        at_hand = sum;
        size /= 2;
    }
}

fn all_gather(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let own = Blocks::one(Space::Output, rank);
    let mut size = 1;
    while size < task.world_size {
        let peer = rank ^ size;
        let first = rank & !(size - 1);
        if size == 1 && task.out_of_place() {
            // The block is sent from where it lies, so that the copy is off the critical path.
            let input = Blocks::one(Space::Input, 0);
            b.send(peer, input);
            b.copy(input, own);
        } else {
            b.send(peer, Blocks::range(Space::Output, first, size));
        }
        b.recv(peer, Blocks::range(Space::Output, first ^ size, size));
        size *= 2;
    }
}
