//! Two-level algorithm in which one rank of each host uses the network, with shared memory within hosts.
//!
//! All-reduce: all ranks publish, the leader of each host reduces, and the leaders exchange by recursive doubling and
//! publish the result. That takes two rounds inside and log2 M rounds between hosts, with whole vectors, so it suits
//! short messages. Broadcast, reduce and barrier work likewise, with the root as the leader of its host. All-gather and
//! reduce-scatter are as in [`super::rails`] with one rail; gather, scatter and all-to-all as in [`super::relay`].
//! Hosts may have any numbers of ranks.

use super::on_hosts;
use super::rails::{self, Rails};
use super::relay;
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::{Generator, StagedSegments};
use crate::generators::leader::{self, Levels};
use crate::generators::{binomial, dissemination, recursive_doubling};
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, Payload};
use crate::task::Task;

pub(crate) struct LeaderStaged;

impl Generator for LeaderStaged {
    fn name(&self) -> &'static str {
        "leader_staged"
    }

    fn source(&self) -> &'static str {
        "one leader per host, and shared memory within hosts, as MVAPICH does"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        let hosts = on_hosts(task)?;
        if relay::serves(task.collective) {
            Rails::one(&hosts).support(task.collective)?;
            return relay::supports(task, &hosts);
        }
        if is_on_a_rail(task) {
            return Rails::one(&hosts).support(task.collective);
        }
        leader::supports(task)
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let levels = Levels::of(task, rank);
        let per_rank = task.collective.has_block_per_rank();
        let cut = if per_rank { Cut::PerRank } else { Cut::Vector { parts: 1 } };
        let mut b = PlanBuilder::new(task, Algorithm::LeaderStaged, rank, cut);
        b.lane(0);
        let rail = Rails::one(&levels.hosts);
        match task.collective {
            Collective::AllGather => rails::all_gather(&mut b, task, rank, &rail),
            Collective::ReduceScatter => rails::reduce_scatter(&mut b, rank, &rail),
            Collective::Gather => relay::gather(&mut b, task, rank, &levels),
            Collective::Scatter => relay::scatter(&mut b, task, rank, &levels),
            Collective::AllToAll => relay::all_to_all(&mut b, task, rank, &levels),
            _ => whole_vectors(&mut b, task, rank, levels),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        if is_on_a_rail(task) {
            return rails::cost(task, 1, bytes, bill);
        }
        if relay::serves(task.collective) {
            return relay::cost(task, bytes, bill);
        }
        let bytes = if task.collective == Collective::Barrier { 0.0 } else { bytes };
        if task.collective != Collective::Broadcast {
            bill.publish(bill.local, bytes);
            bill.meet(bill.local - 1);
            bill.fold(1, bill.local, bytes);
        }
        leader::exchange_between_hosts(task, bytes, bill);
        if task.collective != Collective::Reduce {
            bill.publish(1, bytes);
            bill.meet(1);
            bill.take(bill.local - 1, bytes);
        }
    }

    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        let hosts = on_hosts(task).ok()?;
        let blocks = match task.collective {
            collective if relay::serves(collective) => relay::most_published(task, &hosts),
            _ if is_on_a_rail(task) => rails::most_published(task, &Rails::one(&hosts)),
            _ => 1,
        };
        super::hierarchical::segments(task, blocks)
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::ReduceScatter => f64::from(task.world_size),
            collective if relay::serves(collective) => relay::scratch(task),
            _ => 0.0,
        }
    }

    fn window(&self) -> Option<u32> {
        Some(super::hierarchical::WINDOW)
    }
}

/// Plans all-reduce, broadcast, reduce and barrier.
fn whole_vectors(b: &mut PlanBuilder, task: &Task, rank: u32, levels: Levels) {
    let Levels { hosts, local, leader, root, leaders } = levels;
    if local.len() > 1 {
        b.stage(hosts.host(hosts.index_of(rank)), Space::Output);
    }
    let host = Host { members: local.len(), leader, is_leader: leaders.is_some() };
    let (own, output) = (task.own_blocks(0, 1), Blocks::one(Space::Output, 0));
    match (task.collective, leaders) {
        (Collective::AllReduce, leaders) => {
            let sum = host.reduce(b, own, output);
            if let Some(leaders) = leaders {
                recursive_doubling::all_reduce_core(b, task, &leaders, sum);
            }
            host.spread(b, Some(output));
        }
        (Collective::Broadcast, leaders) => {
            let source = (rank == task.root && task.out_of_place()).then_some(own);
            if let Some(leaders) = leaders {
                binomial::broadcast_core(b, &leaders, root, source, output);
            }
            host.spread(b, Some(output));
        }
        (Collective::Reduce, None) => {
            host.reduce(b, own, output);
        }
        (Collective::Reduce, Some(leaders)) => {
            let place = if rank == task.root { output } else { b.scratch_like_own(task, 0) };
            let sum = host.reduce(b, own, place);
            binomial::reduce_core(b, &leaders, root, sum, Some(place));
        }
        (_, leaders) => {
            host.gather(b);
            if let Some(leaders) = leaders {
                dissemination::core(b, &leaders);
            }
            host.spread(b, None);
        }
    }
}

const fn is_on_a_rail(task: &Task) -> bool {
    matches!(task.collective, Collective::AllGather | Collective::ReduceScatter)
}

/// The ranks of one host as one of them sees them.
struct Host {
    members: u32,
    /// Number of the leader among them.
    leader: u32,
    is_leader: bool,
}

impl Host {
    /// Lets the leader reduce all contributions into `place`. Returns the place of the sum.
    fn reduce(&self, b: &mut PlanBuilder, own: Blocks, place: Blocks) -> Blocks {
        if self.members == 1 {
            return own;
        }
        // On a host other than the root's, the leader is its first rank.
        let reads_back = self.leader >= 2;
        let payload = |member: u16| {
            let gives = u32::from(member) != self.leader || reads_back;
            if gives { Payload::run(0, 1) } else { Payload::PRESENCE }
        };
        let own_is_left = own != place || !reads_back;
        let gives = !self.is_leader || reads_back;
        let hole = self.is_leader && gives && own_is_left;
        b.publish(payload, [gives.then_some(own), None], (0, u32::from(hole)));
        if self.is_leader {
            b.await_members(Members::All);
            b.fold(Members::All, (0, 1), own_is_left.then_some(own), place);
        }
        place
    }

    /// Lets the leader wait for all ranks of the host.
    fn gather(&self, b: &mut PlanBuilder) {
        if self.members > 1 {
            b.publish(|_| Payload::PRESENCE, [None; 2], (0, 0));
            if self.is_leader {
                b.await_members(Members::All);
            }
        }
    }

    /// Lets all ranks take the leader's result `what`, or only wait for the leader.
    fn spread(&self, b: &mut PlanBuilder, what: Option<Blocks>) {
        if self.members == 1 {
            return;
        }
        let payload = |member: u16| {
            let gives = u32::from(member) == self.leader && what.is_some();
            if gives { Payload::run(0, 1) } else { Payload::PRESENCE }
        };
        b.publish(payload, [what.filter(|_| self.is_leader), None], (0, 0));
        if self.is_leader {
            return;
        }
        let leader = self.leader as u16;
        b.await_members(Members::One(leader));
        if let Some(what) = what {
            b.copy(Blocks::one(Space::Stage(leader), 0), what);
        }
    }
}
