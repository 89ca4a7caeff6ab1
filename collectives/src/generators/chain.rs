//! Chain: scans, and pipelined broadcast and reduce, along the ranks in order.
//!
//! Each rank receives from the rank before it and sends to the one after it: p-1 hops, one message of n bytes per
//! rank and direction. When the executor keeps several segments in flight, all links of the chain are busy, which
//! suits long vectors on few ranks. A broadcast may also cut a segment into `params.parts`, which follow each other on
//! one connection. If ranks are consecutive on hosts, each byte enters and leaves a host once. A scan sums in ascending
//! rank order; a reduce begins at the far end. Where hosts differ in speed, the slowest are at the far end of broadcasts and
//! reduces, so that a host that sends slowly passes nothing on.

use std::cmp::Reverse;

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::generators::copy_own;
use crate::model::Model;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::task::Task;

/// Limits on the length of the parts of a broadcast between near hosts: see docs/measurements.md, "Broadcasts between hosts".
const PART_LEAST_BYTES: u64 = 8 << 10;
const PART_MOST_BYTES: u64 = 32 << 10;

/// Time of a part on the link. A shorter one takes longer to send and to receive than to pass on.
const PART_SECONDS: f64 = 140e-6;

/// Maximum number of parts of a segment. They are steps of the plan.
const PARTS_MOST: u64 = 128;

/// Longest segment of such a broadcast.
const PARTED_BYTES: u64 = PARTS_MOST * PART_MOST_BYTES;

pub(crate) struct Chain;

impl Generator for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn source(&self) -> &'static str {
        "pipelined chain"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::Scan | Collective::ExScan | Collective::Broadcast | Collective::Reduce => Ok(()),
            other => Err(format!("the chain does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let parts = parts_of(task);
        let mut b = PlanBuilder::new(task, Algorithm::Chain, rank, Cut::Vector { parts });
        b.lane(0);
        match task.collective {
            Collective::Scan => scan(&mut b, task, rank),
            Collective::ExScan => exclusive_scan(&mut b, task, rank),
            Collective::Reduce => reduce(&mut b, task, rank),
            _ => broadcast(&mut b, task, rank, parts),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let reduces = task.collective != Collective::Broadcast;
        let pattern = if reduces && bill.hosts == 1 { Pattern::Chain } else { Pattern::Pipeline };
        // Only two neighbours are active while the first part travels along the chain.
        let first = if pattern == Pattern::Chain {
            Pattern::OneWay(2.0 / f64::from(task.world_size))
        } else {
            pattern
        };
        let parts = f64::from(parts_of(task));
        let busy = bill.busy;
        for hop in 1..task.world_size {
            bill.busy = busy;
            let pattern = if hop + 1 < task.world_size { first } else { pattern };
            bill.exchange(pattern, bill.circle(1), 1.0, bytes / parts, reduces);
        }
        bill.repeat(busy, parts - 1.0);
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::ExScan => 2.0,
            _ => 1.0,
        }
    }

    fn window(&self) -> Option<u32> {
        Some(8)
    }

    /// Each segment in flight has a connection of its own. With one segment, a TCP connection is never idle: a rank
    /// sends the next segment while the kernel still holds the end of the last one. Adapters hold nothing back, and a
    /// rank receives one part at a time.
    fn segments_between_hosts(&self, task: &Task, model: &Model) -> Option<(u64, u32)> {
        let (segment, window) =
            if model.buffers_between_hosts() { (PARTED_BYTES, 1) } else { (PART_MOST_BYTES, 3) };
        (task.collective == Collective::Broadcast).then_some((segment, window))
    }

    fn parts(&self, task: &Task, bytes: u64, model: &Model) -> u32 {
        let is_parted = task.collective == Collective::Broadcast
            && task.has_several_hosts()
            && model.buffers_between_hosts()
            && !model.has_long_ways();
        let part = (PART_SECONDS * model.inter.bytes_per_second) as u64;
        let part = part.clamp(PART_LEAST_BYTES, PART_MOST_BYTES);
        // Powers of two, so that few plans serve all sizes.
        if is_parted { 1 << (bytes / part).clamp(1, PARTS_MOST).ilog2() } else { 1 }
    }

    fn hands_on(&self, task: &Task) -> bool {
        task.collective != Collective::Broadcast
    }
}

fn scan(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let (own, output) = (task.own_blocks(0, 1), Blocks::one(Space::Output, 0));
    let last = rank + 1 == task.world_size;
    if rank > 0 {
        b.recv_reduce(rank - 1, own, output);
    }
    if !last {
        b.send(rank + 1, if rank > 0 { output } else { own });
    }
    if rank == 0 && own != output {
        b.copy(own, output);
    }
}

fn exclusive_scan(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let (own, output) = (task.own_blocks(0, 1), Blocks::one(Space::Output, 0));
    let last = rank + 1 == task.world_size;
    match (rank, last) {
        (0, true) => {}
        (0, false) => b.send(1, own),
        (_, true) => b.recv(rank - 1, output),
        // The sum that arrives is this rank's result, and the sum with its own vector is sent on. In place, the
        // result must wait until that second sum has been computed.
        (_, false) => {
            let before = if own == output { b.scratch_like_own(task, 0) } else { output };
            let after = b.scratch_like_own(task, 0);
            b.recv(rank - 1, before);
            b.reduce(before, own, after);
            b.send(rank + 1, after);
            if before != output {
                b.copy(before, output);
            }
        }
    }
}

/// Returns the number of parts of a segment.
fn parts_of(task: &Task) -> u32 {
    if task.collective == Collective::Broadcast { task.params.parts.max(1) } else { 1 }
}

/// Neighbours of a rank in a chain that begins at the root.
struct Place {
    /// The rank before it, towards the root.
    before: Option<u32>,
    /// The rank after it.
    after: Option<u32>,
}

impl Place {
    fn of(task: &Task, rank: u32) -> Self {
        let distance = |rank: u32| task.ahead(rank, task.world_size - task.root);
        match task.speeds.as_deref().filter(|speeds| speeds.len() == task.world_size as usize) {
            None => Self {
                before: (rank != task.root).then(|| task.behind(rank, 1)),
                after: Some(task.ahead(rank, 1)).filter(|next| *next != task.root),
            },
            Some(speeds) => {
                let mut chain: Vec<u32> = (0..task.world_size).collect();
                chain.sort_by_key(|rank| {
                    (*rank != task.root, Reverse(speeds[*rank as usize]), distance(*rank))
                });
                let at = chain.iter().position(|other| *other == rank).unwrap_or_default();
                Self { before: at.checked_sub(1).map(|at| chain[at]), after: chain.get(at + 1).copied() }
            }
        }
    }
}

fn broadcast(b: &mut PlanBuilder, task: &Task, rank: u32, parts: u32) {
    let is_root = rank == task.root;
    let Place { before, after } = Place::of(task, rank);
    for part in 0..parts {
        let output = Blocks::one(Space::Output, part);
        if let Some(before) = before {
            b.recv(before, output);
        }
        if let Some(after) = after {
            b.send(after, if is_root { task.own_blocks(part, 1) } else { output });
        }
    }
    if is_root {
        copy_own(b, task, 0, parts);
    }
}

fn reduce(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let output = Blocks::one(Space::Output, 0);
    let Place { before, after } = Place::of(task, rank);
    let mut sum = task.own_blocks(0, 1);
    if let Some(after) = after {
        let dst = if before.is_none() { output } else { b.scratch_like_own(task, 0) };
        b.recv_reduce(after, sum, dst);
        sum = dst;
    }
    if let Some(before) = before {
        b.send(before, sum);
    } else if sum != output {
        b.copy(sum, output);
    }
}
