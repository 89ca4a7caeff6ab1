//! Halving and doubling in canonical order: large all-reduces whose bits do not depend on anything but p.
//!
//! Rabenseifner, "Optimization of collective reduction operations" (2004), but with the distance doubling while
//! the vector halves: in round k, ranks that differ in bit k exchange halves of what they still share, and the
//! exchanges are undone in reverse order. 2 log2 p rounds, 2 n (p-1)/p bytes. Nearest partners add first, so
//! every element is the balanced binary tree over the ranks: canonical order. When p is not a power of two the
//! first ranks pair up before, which costs two rounds and n bytes each way on those ranks. With ranks
//! contiguous on hosts the large exchanges stay within a host.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::generators::copy_own;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::rounds::{Fold, floor_log2};
use crate::task::Task;

pub(crate) fn supports(task: &Task) -> Result<(), String> {
    match task.collective {
        Collective::AllReduce => Ok(()),
        other => Err(format!("halving has no form for {other:?}")),
    }
}

pub(crate) fn plan(task: &Task, rank: u32) -> Plan {
    let p = task.world_size;
    let rounds = floor_log2(p);
    let parts = 1 << rounds;
    let mut b = PlanBuilder::new(task, Algorithm::Halving, rank, Cut::Vector { parts });
    b.lane(0);
    let (own, output) = (task.own_blocks(0, parts), Blocks::range(Space::Output, 0, parts));
    let (index, extra) = match Fold::of(rank, p) {
        Fold::Extra { partner } => {
            b.send(partner, own);
            b.recv(partner, output);
            return b.finish();
        }
        Fold::Active { index, extra } => (index, extra),
    };
    if p == 1 {
        copy_own(&mut b, task, 0, 1);
    }
    let mut sum = own.space;
    if let Some(extra) = extra {
        b.recv_reduce(extra, own, output);
        sum = Space::Output;
    }
    // Blocks first..first + size are those I still add up. Ranks that differ in bit k only agree on them.
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
    b.finish()
}
