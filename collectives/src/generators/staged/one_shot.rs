//! Reductions in one round: each rank publishes its contribution, and a rank that wants a result reduces the
//! contributions it needs.
//!
//! All-reduce: every rank reduces everything, for short vectors. Reduce: only the root reduces. Scans: each rank
//! reduces the contributions of the ranks before it. Reduce-scatter: each rank reduces its own block, of any length.
//! The order is that of the ranks, or the canonical tree.

use super::{may_read_own, named, on_one_host, segments, world};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::{Generator, StagedSegments};
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, Payload};
use crate::task::Task;

pub(crate) struct StagedOneShot;

impl Generator for StagedOneShot {
    fn name(&self) -> &'static str {
        "staged_one_shot"
    }

    fn source(&self) -> &'static str {
        "flat exchange through shared memory with ordered local reduction"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        use Collective as C;
        match task.collective {
            C::AllReduce | C::Reduce | C::ReduceScatter | C::Scan | C::ExScan => on_one_host(task),
            other => Err(format!("the staged one-shot form reduces, and does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let scatter = task.collective == Collective::ReduceScatter;
        let cut = if scatter { Cut::PerRank } else { Cut::Vector { parts: 1 } };
        let mut b = PlanBuilder::new(task, Algorithm::StagedOneShot, rank, cut);
        b.lane(0);
        let (space, block) = if scatter { (Space::Input, rank) } else { (task.own(), 0) };
        let (own, output) = (Blocks::one(space, block), Blocks::one(Space::Output, 0));
        if task.world_size == 1 {
            if task.out_of_place() && task.collective != Collective::ExScan {
                b.copy(own, output);
            }
            return b.finish();
        }
        b.stage(world(task), if scatter { Space::Input } else { Space::Output });
        let own = may_read_own(task, rank).then_some(own);
        // No other rank needs the last rank's contribution to a scan, or the root's to a reduction.
        let hole = match task.collective {
            Collective::ReduceScatter => (rank, 1),
            Collective::Reduce if rank == task.root => (0, 1),
            Collective::Scan if rank == task.world_size - 1 => (0, 1),
            _ => (0, 0),
        };
        let payload = |member: u16| payload(task, u32::from(member));
        let mine = payload(rank as u16);
        let hole = if own.is_some() && mine != Payload::PRESENCE { hole } else { (0, 0) };
        b.publish(payload, named(&mine, space), hole);
        let of = match task.collective {
            Collective::Reduce if rank != task.root => return b.finish(),
            Collective::ExScan if rank == 0 => return b.finish(),
            Collective::Scan if rank == 0 => {
                if task.out_of_place() {
                    b.copy(Blocks::one(space, 0), output);
                }
                return b.finish();
            }
            Collective::Scan => Members::Below(rank as u16 + 1),
            Collective::ExScan => Members::Below(rank as u16),
            _ => Members::All,
        };
        let own = own.filter(|_| task.collective != Collective::ExScan);
        b.await_members(of);
        b.fold(of, (block, 1), own, output);
        b.finish()
    }

    fn cost(&self, task: &Task, n: f64, bill: &mut Bill) {
        let p = task.world_size;
        let blocks = if task.collective == Collective::ReduceScatter { p - 1 } else { 1 };
        let takers = if task.collective == Collective::Reduce { 1 } else { p };
        bill.publish(p, f64::from(blocks) * n);
        bill.meet(p - 1);
        bill.fold(takers, p, n);
    }

    fn scratch_factor(&self, _: &Task) -> f64 {
        0.0
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }

    fn window(&self) -> Option<u32> {
        Some(1)
    }

    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        segments(task, if task.collective == Collective::ReduceScatter { task.world_size } else { 1 })
    }
}

/// Returns the payload of a member. It is the same wherever the member's buffers lie.
fn payload(task: &Task, member: u32) -> Payload {
    match task.collective {
        Collective::ReduceScatter => Payload::run(0, task.world_size),
        // Only the member itself needs its contribution in these two cases, and may always read it where it lies.
        Collective::Reduce if member == task.root && member < 2 => Payload::PRESENCE,
        Collective::ExScan if member == task.world_size - 1 => Payload::PRESENCE,
        _ => Payload::run(0, 1),
    }
}
