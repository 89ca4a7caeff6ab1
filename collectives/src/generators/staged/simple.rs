//! Collectives that only copy, and the barrier, in one round: each rank publishes the blocks that others want and takes
//! its own.
//!
//! Broadcast: the root publishes, and the others wait for it alone; a root that publishes one part after another can
//! therefore run ahead by as many rounds as stages hold. All-gather and gather: every rank publishes its block. Scatter
//! and all-to-all: a rank publishes the blocks for the others. A rank copies its own block after publishing and before
//! waiting: the block is still in its caches, and the time is free.

use super::{named, on_one_host, others, segments, world};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::{Bill, Busy};
use crate::generator::{Generator, StagedSegments};
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, Payload};
use crate::task::Task;

pub(crate) struct Staged;

impl Generator for Staged {
    fn name(&self) -> &'static str {
        "staged"
    }

    fn source(&self) -> &'static str {
        "flat exchange through shared memory, as MPI's collectives inside hosts do"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        use Collective as C;
        match task.collective {
            C::Broadcast | C::Gather | C::AllGather | C::Scatter | C::AllToAll | C::Barrier => {
                on_one_host(task)
            }
            other => Err(format!("the staged form only copies, and does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let per_rank = task.collective.has_block_per_rank();
        let cut = if per_rank { Cut::PerRank } else { Cut::Vector { parts: 1 } };
        let mut b = PlanBuilder::new(task, Algorithm::Staged, rank, cut);
        b.lane(0);
        let like = match task.collective {
            Collective::Scatter | Collective::AllToAll => Space::Input,
            _ => Space::Output,
        };
        let p = task.world_size;
        if p > 1 {
            b.stage(world(task), like);
            let own = payload(task, rank as u16);
            b.publish(|member| payload(task, member), source(task, &own), (0, 0));
        }
        if let Some((from, to)) = kept(task, rank) {
            b.copy(from, to);
        }
        let taker = match task.collective {
            Collective::Broadcast | Collective::Scatter => rank != task.root,
            Collective::Gather => rank == task.root,
            _ => true,
        };
        if !taker || p == 1 {
            return b.finish();
        }
        let from_root = matches!(task.collective, Collective::Broadcast | Collective::Scatter);
        b.await_members(if from_root { Members::One(task.root as u16) } else { Members::All });
        let stage = |member: u32, block| Blocks::one(Space::Stage(member as u16), block);
        match task.collective {
            Collective::Broadcast => b.copy(stage(task.root, 0), Blocks::one(Space::Output, 0)),
            Collective::Scatter => b.copy(stage(task.root, rank), Blocks::one(Space::Output, 0)),
            Collective::Barrier => {}
            _ => {
                for member in (0..p).filter(|member| *member != rank) {
                    let block = if task.collective == Collective::AllToAll { rank } else { member };
                    b.copy(stage(member, block), Blocks::one(Space::Output, member));
                }
            }
        }
        b.finish()
    }

    fn cost(&self, task: &Task, n: f64, bill: &mut Bill) {
        let p = task.world_size;
        let others = f64::from(p - 1) * n;
        match task.collective {
            // The root copies in the next segment while the others copy this one out, so the longer of the two counts.
            Collective::Broadcast => {
                bill.publish(1, n);
                bill.meet(1);
                bill.busy = Busy::default();
                bill.take(p - 1, n);
            }
            Collective::Scatter => {
                bill.publish(1, others);
                bill.meet(1);
                bill.take(p - 1, n);
            }
            Collective::Gather => {
                bill.publish(p - 1, n);
                bill.meet(p - 1);
                bill.take(1, others);
            }
            // A rank copies its own block while it would wait; the other algorithms do not count that either.
            Collective::AllGather => {
                bill.publish(p, n);
                bill.meet(p - 1);
                bill.take(p, others);
            }
            Collective::AllToAll => {
                bill.publish(p, others);
                bill.copy(n);
                bill.meet(p - 1);
                bill.take(p, others);
            }
            _ => bill.meet(p - 1),
        }
    }

    fn scratch_factor(&self, _: &Task) -> f64 {
        0.0
    }

    fn window(&self) -> Option<u32> {
        Some(1)
    }

    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        segments(
            task,
            match task.collective {
                Collective::Scatter | Collective::AllToAll => task.world_size.max(1) - 1,
                _ => 1,
            },
        )
    }
}

/// Returns the payload of a member.
fn payload(task: &Task, member: u16) -> Payload {
    let is_root = u32::from(member) == task.root;
    match task.collective {
        Collective::Broadcast if is_root => Payload::run(0, 1),
        Collective::Gather if !is_root => Payload::run(u32::from(member), 1),
        Collective::AllGather => Payload::run(u32::from(member), 1),
        Collective::Scatter if is_root => others(member, task.world_size),
        Collective::AllToAll => others(member, task.world_size),
        _ => Payload::PRESENCE,
    }
}

/// Returns the source of a rank's payload.
fn source(task: &Task, payload: &Payload) -> [Option<Blocks>; 2] {
    match task.collective {
        Collective::AllGather if task.out_of_place() => {
            named(&Payload::run(0, payload.blocks()), Space::Input)
        }
        Collective::Gather => named(&Payload::run(0, payload.blocks()), Space::Input),
        Collective::Scatter => named(payload, Space::Input),
        _ => named(payload, task.own()),
    }
}

/// Returns the source and destination of a rank's block for itself, unless it is in its place already.
fn kept(task: &Task, rank: u32) -> Option<(Blocks, Blocks)> {
    if !task.out_of_place() {
        return None;
    }
    let (from, to) = match task.collective {
        Collective::Broadcast if rank == task.root => (0, 0),
        Collective::Scatter if rank == task.root => (rank, 0),
        Collective::Gather if rank == task.root => (0, rank),
        Collective::AllGather => (0, rank),
        Collective::AllToAll => (rank, rank),
        _ => return None,
    };
    Some((Blocks::one(Space::Input, from), Blocks::one(Space::Output, to)))
}
