//! Recursive doubling: all-reduce of whole vectors in log2 p rounds, barrier, and scans.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005). In round k,
//! ranks that differ in bit k exchange all that they have, and both reduce: log2 p rounds of n bytes each. If p is not
//! a power of two, the first ranks form pairs beforehand ([`Fold`]), which takes two more rounds. Each element is
//! summed along the balanced tree over the ranks, on all ranks and for all sizes: canonical order. The barrier is the
//! same without data, for powers of two. The scans are those of Hillis and Steele (1986), in ceil(log2 p) rounds.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::group::Group;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::rounds::{Fold, ceil_log2, floor_log2};
use crate::task::Task;

pub(crate) struct RecursiveDoubling;

impl Generator for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive_doubling"
    }

    fn source(&self) -> &'static str {
        "Thakur, Rabenseifner, Gropp 2005; scans: Hillis, Steele 1986"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce | Collective::Scan | Collective::ExScan => Ok(()),
            Collective::Barrier if task.world_size.is_power_of_two() => Ok(()),
            Collective::Barrier => Err(format!(
                "a barrier by doubling needs a power-of-two number of ranks, not {}",
                task.world_size
            )),
            other => Err(format!("recursive doubling does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let mut b = PlanBuilder::new(task, Algorithm::RecursiveDoubling, rank, Cut::Vector { parts: 1 });
        b.lane(0);
        match task.collective {
            Collective::AllReduce => {
                let group = Group::world(task.world_size, rank);
                all_reduce_core(&mut b, task, &group, task.own_blocks(0, 1));
            }
            Collective::Barrier => barrier(&mut b, task.world_size, rank),
            Collective::Scan => scan(&mut b, task, rank, 0, task.own_blocks(0, 1)),
            _ => exclusive_scan(&mut b, task, rank),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        match task.collective {
            Collective::AllReduce => bill.doubling(bytes, bytes, true),
            Collective::Barrier => bill.doubling(0.0, 0.0, false),
            _ => {
                for round in 0..ceil_log2(task.world_size) {
                    bill.exchange(Pattern::Circle, bill.circle(1 << round), 1.0, bytes, true);
                }
            }
        }
    }

    fn scratch_factor(&self, _: &Task) -> f64 {
        3.0
    }

    fn is_canonical(&self, task: &Task) -> bool {
        task.collective == Collective::AllReduce
    }
}

/// Reduces `own` of all members into the same blocks of the output. `own` lies in the input or in the output.
pub(crate) fn all_reduce_core(b: &mut PlanBuilder, task: &Task, group: &Group, own: Blocks) {
    let p = group.len();
    let output = Blocks { space: Space::Output, ..own };
    let spare = |b: &mut PlanBuilder| {
        let mut first = None;
        for block in own.first..own.end() {
            let scratch = b.scratch_like_own(task, block);
            first.get_or_insert(scratch.first);
        }
        Blocks::range(Space::Scratch, first.unwrap_or(0), own.count)
    };
    if p == 1 {
        if own != output {
            b.copy(own, output);
        }
        return;
    }
    let rounds = floor_log2(p);
    let (index, extra) = match Fold::of(group.me(), p) {
        Fold::Extra { partner } => {
            b.send(group.rank(partner), own);
            b.recv(group.rank(partner), output);
            return;
        }
        Fold::Active { index, extra } => (index, extra),
    };
    // A round never writes the blocks that it sends, or both ends would wait for each other before they receive. The
    // running sum therefore alternates between the output and scratch, so that the last round writes the output.
    let scratch = if rounds > 1 || own == output || extra.is_some() { Some(spare(b)) } else { None };
    let place = |left: u32| if left.is_multiple_of(2) { output } else { scratch.expect("allotted above") };
    let mut sum = own;
    if let Some(extra) = extra {
        let dst = place(rounds);
        b.recv_reduce(group.rank(extra), sum, dst);
        sum = dst;
    }
    for round in 0..rounds {
        let peer = group.rank(Fold::rank_of(index ^ (1 << round), p));
        let mut dst = place(rounds - 1 - round);
        if sum == dst {
            // Only the first round of an in-place call gets here. It takes a detour over a second scratch block, or
            // sends from a copy if no later round brings the sum back to the output.
            if rounds == 1 {
                let copy = place(1);
                b.copy(sum, copy);
                b.send(peer, copy);
                b.recv_reduce(peer, sum, dst);
                break;
            }
            dst = spare(b);
        }
        b.send(peer, sum);
        b.recv_reduce(peer, sum, dst);
        sum = dst;
    }
    if let Some(extra) = extra {
        b.send(group.rank(extra), output);
    }
}

/// Exchanges signals in pairs, so that no rank waits for a rank that waits for a third one.
fn barrier(b: &mut PlanBuilder, p: u32, rank: u32) {
    for round in 0..floor_log2(p) {
        let peer = rank ^ (1 << round);
        b.signal(peer);
        b.wait_signal(peer);
    }
}

/// Computes the inclusive scan of `own` among the ranks from `first` on, into the output.
fn scan(b: &mut PlanBuilder, task: &Task, rank: u32, first: u32, own: Blocks) {
    let output = Blocks::one(Space::Output, 0);
    let (members, me) = (task.world_size - first, rank - first);
    // Rank `me` receives in the rounds whose distance does not reach beyond the first member.
    let receives = if me == 0 { 0 } else { floor_log2(me) + 1 };
    let mut sum = own;
    let mut scratch = None;
    for round in 0..ceil_log2(members) {
        let distance = 1 << round;
        if me + distance < members {
            b.send(rank + distance, sum);
        }
        if round < receives {
            // Sums alternate between two places, so that nothing is overwritten while it is sent, and end in the
            // output.
            let to_output = (receives - 1 - round).is_multiple_of(2);
            let dst = if to_output && sum != output {
                output
            } else if to_output {
                b.scratch_like_own(task, 0)
            } else {
                *scratch.get_or_insert_with(|| b.scratch_like_own(task, 0))
            };
            b.recv_reduce(rank - distance, sum, dst);
            sum = dst;
        }
    }
    if sum != output {
        b.copy(sum, output);
    }
}

/// Each rank sends its vector to the next; the ranks from 1 on then scan the vectors that they have received.
fn exclusive_scan(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let own = task.own_blocks(0, 1);
    if rank + 1 < task.world_size {
        b.send(rank + 1, own);
    }
    if rank > 0 {
        let shifted = b.scratch_like_own(task, 0);
        b.recv(rank - 1, shifted);
        scan(b, task, rank, 1, shifted);
    }
}
