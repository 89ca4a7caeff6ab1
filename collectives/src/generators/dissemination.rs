//! Dissemination barrier: ceil(log2 p) rounds for any p, no data.
//!
//! Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988). In round k, each rank
//! signals rank me + 2^k and waits for rank me - 2^k. After round k, a rank has heard, directly or not, from
//! the 2^(k+1) - 1 ranks before it.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::group::Group;
use crate::plan::{Collective, Cut, Plan};
use crate::rounds::ceil_log2;
use crate::task::Task;

pub(crate) struct Dissemination;

impl Generator for Dissemination {
    fn name(&self) -> &'static str {
        "dissemination"
    }

    fn source(&self) -> &'static str {
        "Hensgen, Finkel, Manber 1988"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::Barrier => Ok(()),
            other => Err(format!("dissemination is a barrier, not {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let mut b = PlanBuilder::new(task, Algorithm::Dissemination, rank, Cut::Vector { parts: 1 });
        b.lane(0);
        core(&mut b, &Group::world(task.world_size, rank));
        b.finish()
    }

    fn cost(&self, task: &Task, _: f64, bill: &mut Bill) {
        for round in 0..ceil_log2(task.world_size) {
            bill.exchange(Pattern::Circle, bill.circle(1 << round), 1.0, 0.0, false);
        }
    }
}

/// A barrier among the members of a group.
pub(crate) fn core(b: &mut PlanBuilder, group: &Group) {
    for round in 0..ceil_log2(group.len()) {
        b.signal(group.rank(group.ahead(1 << round)));
        b.wait_signal(group.rank(group.behind(1 << round)));
    }
}
