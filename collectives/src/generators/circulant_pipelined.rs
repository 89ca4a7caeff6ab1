//! Circulant pipelined broadcast, and its reverse as reduce: round-optimal for every p and number of blocks.
//!
//! Träff (2023), see [`circulant_schedule`](super::circulant_schedule). `params.parts` blocks take parts - 1 +
//! ceil(log2 p) rounds; each rank sends and receives one block per round, so a long vector moves at the full bandwidth
//! of a link. With a single block the schedule is a binomial tree. The reduce runs the rounds backwards with sends and
//! receives exchanged, and adds each block that arrives to the one in its place.

use super::circulant_schedule::{receives, sends, skips};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generators::copy_own;
use crate::model::Model;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::rounds::{ceil_log2, halvings};
use crate::task::Task;

/// One round of one rank: the peer and the block of its send, and those of its receive.
#[derive(Clone, Copy, Debug)]
struct Round {
    send: Option<(u32, u32)>,
    recv: Option<(u32, u32)>,
}

pub(crate) fn plan(task: &Task, rank: u32) -> Plan {
    let parts = task.params.parts.max(1);
    let mut b = PlanBuilder::new(task, Algorithm::Circulant, rank, Cut::Vector { parts });
    b.lane(0);
    let rounds = rounds(task, rank, parts);
    match task.collective {
        _ if task.world_size == 1 => copy_own(&mut b, task, 0, parts),
        Collective::Broadcast => broadcast(&mut b, task, rank, parts, &rounds),
        _ => reduce(&mut b, task, rank, parts, &rounds),
    }
    b.finish()
}

pub(crate) fn cost(task: &Task, bytes: f64, bill: &mut Bill) {
    let parts = task.params.parts.max(1);
    let reduces = task.collective == Collective::Reduce;
    if task.world_size == 2 {
        // Two ranks need no rounds: all blocks go one after the other.
        return bill.exchange(Pattern::Pairs, bill.circle(1), f64::from(parts), bytes, reduces);
    }
    let rounds = ceil_log2(task.world_size);
    let skips = halvings(task.world_size);
    // Between hosts its connections, unlike those of a chain, are idle in most rounds.
    let pattern = if bill.hosts == 1 { Pattern::Pipeline } else { Pattern::Circle };
    for round in (0..parts - 1 + rounds).rev() {
        let reach = bill.circle(skips[(round % rounds) as usize + 1]);
        bill.exchange(pattern, reach, 1.0, bytes / f64::from(parts), reduces);
    }
}

/// Returns the number of blocks. The time of parts - 1 + q rounds, alpha + (n / parts) beta each, is least at parts =
/// sqrt((q - 1) n beta / alpha). The result is rounded up to a power of two, so that few plans serve all sizes.
pub(crate) fn parts(task: &Task, bytes: u64, model: &Model) -> u32 {
    if task.world_size < 3 {
        return task.params.parts;
    }
    let (class, shared) = if task.has_several_hosts() {
        (&model.inter, 1.0)
    } else {
        (&model.intra, model.oversubscription.max(1.0))
    };
    let fixed = model.latency_seconds(class) + 2.0 * class.overhead_seconds * model.oversubscription.max(1.0);
    let rounds = f64::from(ceil_log2(task.world_size) - 1);
    let best = (rounds * bytes as f64 * shared / class.bytes_per_second / fixed).sqrt();
    // More than 64 rounds in a segment do not pay for their steps.
    (best.clamp(1.0, 64.0) as u32).next_power_of_two()
}

fn rounds(task: &Task, rank: u32, parts: u32) -> Vec<Round> {
    let p = task.world_size;
    if p == 1 {
        return Vec::new();
    }
    let skips = skips(p);
    let q = skips.len() - 1;
    let relative = (rank + p - task.root) % p;
    let (received, sent) = (receives(relative, &skips), sends(relative, p, &skips));
    let needed = parts as usize - 1 + q;
    // All phases have q rounds. The first phase begins with rounds in which no block would move.
    let idle = needed.next_multiple_of(q) - needed;
    let block = |relative_block: i64, round: usize| {
        let block = relative_block + (round / q * q) as i64 - idle as i64;
        // In the last phase, block numbers after the last one stand for the last one.
        (block >= 0).then(|| (block as u32).min(parts - 1))
    };
    (idle..idle + needed)
        .map(|round| {
            let k = round % q;
            let (to, from) = ((relative + skips[k]) % p, (relative + p - skips[k]) % p);
            let world = |relative: u32| (relative + task.root) % p;
            Round {
                send: block(sent[k], round).filter(|_| to != 0).map(|block| (world(to), block)),
                recv: block(received[k], round).filter(|_| relative != 0).map(|block| (world(from), block)),
            }
        })
        .collect()
}

fn broadcast(b: &mut PlanBuilder, task: &Task, rank: u32, parts: u32, rounds: &[Round]) {
    let root = rank == task.root;
    let space = if root { task.own() } else { Space::Output };
    for round in rounds {
        if let Some((peer, block)) = round.send {
            b.send(peer, Blocks::one(space, block));
        }
        if let Some((peer, block)) = round.recv {
            b.recv(peer, Blocks::one(Space::Output, block));
        }
    }
    if root {
        copy_own(b, task, 0, parts);
    }
}

fn reduce(b: &mut PlanBuilder, task: &Task, rank: u32, parts: u32, rounds: &[Round]) {
    // Place of each block's sum; at first it is the rank's own contribution.
    let mut sums: Vec<Blocks> = (0..parts).map(|block| task.own_blocks(block, 1)).collect();
    let mut added = vec![false; parts as usize];
    for round in rounds.iter().rev() {
        if let Some((peer, block)) = round.recv {
            b.send(peer, sums[block as usize]);
        }
        if let Some((peer, block)) = round.send {
            let (at, sum) = (block as usize, sums[block as usize]);
            if !added[at] {
                added[at] = true;
                sums[at] = if rank == task.root {
                    Blocks::one(Space::Output, block)
                } else {
                    b.scratch_like_own(task, block)
                };
            }
            b.recv_reduce(peer, sum, sums[at]);
        }
    }
}
