//! Ring all-reduce, reduce-scatter and all-gather over any number of channels.
//!
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); made
//! common by NCCL and Gloo. Each rank communicates with two neighbours only. Reduce-scatter and all-gather
//! take p-1 rounds and move (p-1)/p of the vector each; all-reduce is one after the other. With several
//! channels, each ring works on a part of its own. A block is summed along the ring, beginning at its owner's
//! successor. The order thus depends on the block, so it is not canonical.

use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::group::{Group, Span};
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::task::Task;
use crate::{Algorithm, generators::copy_own};

pub(crate) struct Ring;

impl Generator for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn source(&self) -> &'static str {
        "Patarasuk, Yuan 2009; Gloo, NCCL"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => Ok(()),
            other => Err(format!("the ring does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let p = task.world_size;
        let group = Group::world(p, rank);
        match task.collective {
            Collective::AllReduce => {
                let channels = u32::from(self.channels(task));
                let cut = Cut::Vector { parts: channels * p };
                let mut b = PlanBuilder::new(task, Algorithm::Ring, rank, cut);
                for channel in 0..channels {
                    b.lane(channel as u16);
                    if p == 1 {
                        copy_own(&mut b, task, channel, 1);
                        continue;
                    }
                    let span = Span { base: channel * p, stride: 1 };
                    reduce_scatter_core(&mut b, &group, span, task.own());
                    all_gather_core(&mut b, &group, span, None);
                }
                b.finish()
            }
            Collective::ReduceScatter => reduce_scatter(task, rank),
            _ => {
                let mut b = PlanBuilder::new(task, Algorithm::Ring, rank, Cut::PerRank);
                b.lane(0);
                let input = task.out_of_place().then_some(Blocks::one(Space::Input, 0));
                all_gather_core(&mut b, &group, Span::BLOCKS, input);
                b.finish()
            }
        }
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let (p, reduces) = (task.world_size, task.collective == Collective::ReduceScatter);
        match task.collective {
            Collective::AllReduce => {
                let channels = f64::from(self.channels(task));
                let share = bytes / f64::from(p);
                phase_cost(bill, p - 1, channels, share, true);
                phase_cost(bill, p - 1, channels, share, false);
            }
            _ => phase_cost(bill, p - 1, 1.0, bytes, reduces),
        }
    }

    fn is_steady(&self) -> bool {
        true
    }

    fn channels(&self, task: &Task) -> u16 {
        if task.collective == Collective::AllReduce { task.params.channels.max(1) } else { 1 }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::ReduceScatter => f64::from(task.world_size),
            _ => 0.0,
        }
    }
}

fn phase_cost(bill: &mut Bill, rounds: u32, channels: f64, block: f64, reduces: bool) {
    let reach = bill.circle(1);
    for _ in 0..rounds {
        bill.exchange(Pattern::Neighbours, reach, channels, block, reduces);
    }
}

/// Leaves the reduction of piece `me` of all members' `own` in the output.
///
/// Round s passes on piece me-1-s and adds to piece me-2-s, so the last addition is to this rank's own piece.
/// No piece is sent after it was written twice, or written while it is sent, so no fence is needed.
pub(crate) fn reduce_scatter_core(b: &mut PlanBuilder, group: &Group, span: Span, own: Space) {
    let p = group.len();
    let (next, previous) = (group.rank(group.ahead(1)), group.rank(group.behind(1)));
    for round in 0..p - 1 {
        let from = if round == 0 { own } else { Space::Output };
        b.send(next, span.piece(from, group.behind(1 + round)));
        let piece = group.behind(2 + round);
        b.recv_reduce(previous, span.piece(own, piece), span.piece(Space::Output, piece));
    }
}

/// Distributes piece `me` of each member's output to all members. If `input` is given, the piece lies there
/// instead.
pub(crate) fn all_gather_core(b: &mut PlanBuilder, group: &Group, span: Span, input: Option<Blocks>) {
    let p = group.len();
    let (next, previous) = (group.rank(group.ahead(1)), group.rank(group.behind(1)));
    let own = span.piece(Space::Output, group.me());
    for round in 0..p - 1 {
        let piece = span.piece(Space::Output, group.behind(round));
        b.send(next, if round == 0 { input.unwrap_or(piece) } else { piece });
        b.recv(previous, span.piece(Space::Output, group.behind(round + 1)));
    }
    if let Some(input) = input {
        b.copy(input, own);
    }
}

fn reduce_scatter(task: &Task, rank: u32) -> Plan {
    let p = task.world_size;
    let mut b = PlanBuilder::new(task, Algorithm::Ring, rank, Cut::PerRank);
    b.lane(0);
    let output = Blocks::one(Space::Output, 0);
    if p == 1 {
        copy_own(&mut b, task, 0, 1);
        return b.finish();
    }
    let (next, previous) = (task.ahead(rank, 1), task.behind(rank, 1));
    // The partial sum of each block but this rank's own passes through a scratch block of its own: blocks
    // differ in length, and a block that is being sent must not be overwritten.
    let mut sending = Blocks::one(Space::Input, task.behind(rank, 1));
    for round in 0..p - 2 {
        b.send(next, sending);
        let block = task.behind(rank, 2 + round);
        sending = b.scratch(Like::Input(block));
        b.recv_reduce(previous, Blocks::one(Space::Input, block), sending);
    }
    b.send(next, sending);
    let own = if task.out_of_place() { Blocks::one(Space::Input, rank) } else { output };
    b.recv_reduce(previous, own, output);
    b.finish()
}
