//! Collectives on symmetric buffers inside one host: ranks access each other's buffers directly, without intermediate
//! copies.
//!
//! If data only moves to the ranks that want it, each rank reads the blocks that it needs from the inputs of the
//! others. If all ranks want the same vector, they share the work: each rank reduces one slice of all inputs, or copies
//! one slice of the root's, into all outputs. A slice passes through the first-level cache of the one rank that handles
//! it. There are two rounds whatever the number of ranks: in the first, all ranks publish the location of their
//! buffers; the second ends the call.
//!
//! ```text
//! rank r:  publish, await all  | slice r of all inputs, reduced -> slice r of all outputs | publish, await all
//! ```
//! On GPUs, multicast objects do the same in the switch (NVLS).

use super::staged::{on_one_host, world};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::{Generator, StagedSegments};
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, Payload};
use crate::task::Task;
use crate::window::{Symmetric, Windows};

pub(crate) struct Window;

impl Generator for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn source(&self) -> &'static str {
        "symmetric memory, as in OpenSHMEM and NCCL, and shared windows of MPI"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        use Collective as C;
        match task.collective {
            C::Gather | C::Scan | C::ExScan | C::Barrier => {
                return Err(format!("symmetric buffers do not support {}", task.collective));
            }
            C::AllToAll if !task.out_of_place() => {
                return Err("on symmetric buffers, all_to_all is not supported in place".to_owned());
            }
            _ => on_one_host(task)?,
        }
        match (task.symmetric, task.collective) {
            (Symmetric::Nothing, _) | (Symmetric::Inputs, C::AllReduce | C::Reduce) => {
                Err("it serves blocking calls on symmetric buffers: give all ranks buffers made by Communicator::alloc"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        use Collective as C;
        let (p, root) = (task.world_size, Members::One(task.root as u16));
        let windows = windows(task);
        let cut = match windows.outputs {
            _ if task.collective.has_block_per_rank() => Cut::PerRank,
            Some(_) => Cut::Vector { parts: p },
            None => Cut::Vector { parts: 1 },
        };
        let mut b = PlanBuilder::new(task, Algorithm::Window, rank, cut);
        b.lane(0);
        if p == 1 {
            take(&mut b, task, (rank, rank), 0, 0);
            return b.finish();
        }
        b.stage(world(task), Space::Output);
        b.windows(windows);
        b.publish(|_| Payload::PRESENCE, [None; 2], (0, 0));
        b.await_members(Members::All);
        match (task.collective, windows.outputs) {
            (C::AllReduce | C::Reduce, Some(to)) => b.spread(Members::All, (rank, 1), to, rank),
            (C::Broadcast, Some(to)) => b.spread(root, (rank, 1), to, rank),
            (C::ReduceScatter, _) => b.spread(Members::All, (rank, 1), Members::One(rank as u16), 0),
            (C::Broadcast | C::Scatter, _) => {
                let block = if task.collective == C::Scatter { rank } else { 0 };
                take(&mut b, task, (rank, task.root), block, 0);
            }
            _ => {
                for member in (1..=p).map(|step| task.ahead(rank, step)) {
                    let block = if task.collective == C::AllToAll { rank } else { 0 };
                    take(&mut b, task, (rank, member), block, member);
                }
            }
        }
        b.publish(|_| Payload::PRESENCE, [None; 2], (0, 0));
        // A rank whose buffers no other rank touches may return them to its caller at once.
        if windows.shows_input(rank as usize, p as usize) || windows.shows_output(rank as usize, p as usize) {
            b.await_members(Members::All);
        }
        b.finish()
    }

    fn cost(&self, task: &Task, n: f64, bill: &mut Bill) {
        use Collective as C;
        let p = task.world_size;
        bill.meet(p - 1);
        match (task.collective, windows(task).outputs) {
            (C::AllReduce, _) => bill.spread(p, p, p, n / f64::from(p)),
            (C::Reduce, _) => bill.spread(p, p, 1, n / f64::from(p)),
            (C::ReduceScatter, _) => bill.spread(p, p, 1, n),
            (C::Broadcast, Some(_)) => bill.spread(p, 1, p - 1, n / f64::from(p)),
            (C::Broadcast | C::Scatter, _) => bill.take(p - 1, n),
            (C::AllToAll, _) => {
                bill.copy(n);
                bill.take(p, f64::from(p - 1) * n);
            }
            // A rank's own block does not count, as in the other algorithms.
            _ => bill.take(p, f64::from(p - 1) * n),
        }
        bill.meet(p - 1);
    }

    fn scratch_factor(&self, _: &Task) -> f64 {
        0.0
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }

    fn serves_irregular(&self, _: Collective) -> bool {
        false
    }

    fn window(&self) -> Option<u32> {
        Some(1)
    }

    /// Two rounds serve any length, and only the locations of buffers are published.
    fn staged_segments(&self, _: &Task) -> Option<StagedSegments> {
        Some(StagedSegments { best: u64::MAX, most: u64::MAX })
    }
}

/// Returns the members whose buffers others reach into.
pub(crate) fn windows(task: &Task) -> Windows {
    use Collective as C;
    let root = Some(Members::One(task.root as u16));
    let all = Some(Members::All);
    match task.collective {
        C::AllReduce => Windows { inputs: all, outputs: all },
        C::Reduce => Windows { inputs: all, outputs: root },
        C::Broadcast if task.symmetric == Symmetric::All => Windows { inputs: root, outputs: all },
        C::Broadcast | C::Scatter => Windows { inputs: root, outputs: None },
        _ => Windows { inputs: all, outputs: None },
    }
}

/// Copies a block of a member's input to an output block of `rank`, unless it lies there already.
fn take(b: &mut PlanBuilder, task: &Task, (rank, member): (u32, u32), from: u32, to: u32) {
    let to = Blocks::one(Space::Output, to);
    if member != rank {
        b.copy(Blocks::one(Space::Window(member as u16), from), to);
    } else if task.out_of_place() {
        b.copy(Blocks::one(Space::Input, from), to);
    }
}
