//! Two-level algorithm in which one rank of each host uses the network.
//!
//! As Open MPI's HAN. All-reduce: a binomial reduce to the leader of each host, recursive doubling among the
//! leaders, and a binomial broadcast within each host. That takes 2 log2 L rounds inside and log2 M between
//! hosts, with whole vectors, so it suits short messages and hosts with unequal numbers of ranks. Broadcast,
//! reduce and barrier work likewise, with the root as the leader of its host. On hosts of 2^k consecutive
//! ranks the all-reduce is in canonical order.

use super::{binomial, dissemination, recursive_doubling};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::generator::Generator;
use crate::group::Group;
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::rounds::ceil_log2;
use crate::task::Task;

pub(crate) struct Leader;

impl Generator for Leader {
    fn name(&self) -> &'static str {
        "leader"
    }

    fn source(&self) -> &'static str {
        "one leader per host, as Open MPI's HAN does"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        supports(task)
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let Levels { local, leader, root, leaders, .. } = Levels::of(task, rank);
        let mut b = PlanBuilder::new(task, Algorithm::Leader, rank, Cut::Vector { parts: 1 });
        b.lane(0);
        let (own, output) = (task.own_blocks(0, 1), Blocks::one(Space::Output, 0));
        match task.collective {
            Collective::AllReduce => {
                let sum = if leaders.is_some() { output } else { b.scratch_like_own(task, 0) };
                binomial::reduce_core(&mut b, &local, leader, own, Some(sum));
                if let Some(leaders) = &leaders {
                    recursive_doubling::all_reduce_core(&mut b, task, leaders, output);
                }
                binomial::broadcast_core(&mut b, &local, leader, None, output);
            }
            Collective::Broadcast => {
                let source = (rank == task.root && task.out_of_place()).then_some(own);
                if let Some(leaders) = &leaders {
                    binomial::broadcast_core(&mut b, leaders, root, source, output);
                }
                binomial::broadcast_core(&mut b, &local, leader, None, output);
            }
            Collective::Reduce => {
                let sum = if rank == task.root { output } else { b.scratch_like_own(task, 0) };
                match &leaders {
                    None => binomial::reduce_core(&mut b, &local, leader, own, Some(sum)),
                    Some(leaders) => {
                        let mine = if local.len() > 1 {
                            binomial::reduce_core(&mut b, &local, leader, own, Some(sum));
                            sum
                        } else {
                            own
                        };
                        binomial::reduce_core(&mut b, leaders, root, mine, Some(sum));
                    }
                }
            }
            _ => {
                binomial::gather_signals(&mut b, &local, leader);
                if let Some(leaders) = &leaders {
                    dissemination::core(&mut b, leaders);
                }
                binomial::spread_signals(&mut b, &local, leader);
            }
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let reduces = task.collective.reduces();
        let both = matches!(task.collective, Collective::AllReduce | Collective::Barrier);
        let bytes = if task.collective == Collective::Barrier { 0.0 } else { bytes };
        for _ in 0..ceil_log2(bill.local) {
            bill.exchange(Pattern::Pairs, Reach::Host, 1.0, bytes, reduces);
            if both {
                bill.exchange(Pattern::Pairs, Reach::Host, 1.0, bytes, false);
            }
        }
        exchange_between_hosts(task, bytes, bill);
    }
}

/// Checks that the collective has a form with leaders, and that there are several hosts of which one has
/// several ranks.
pub(super) fn supports(task: &Task) -> Result<(), String> {
    match task.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::Barrier => {
            Hosts::of(task).map(|_| ())
        }
        other => Err(format!("the leader form does not support {other}")),
    }
}

/// Both levels as one rank sees them.
pub(super) struct Levels {
    pub(super) hosts: Hosts,
    /// The ranks of this host.
    pub(super) local: Group,
    /// Number in `local` of this host's leader.
    pub(super) leader: u32,
    /// Number of the root among the leaders; 0 if there is no root.
    pub(super) root: u32,
    /// All leaders, if this rank is one of them.
    pub(super) leaders: Option<Group>,
}

impl Levels {
    pub(super) fn of(task: &Task, rank: u32) -> Self {
        let hosts = Hosts::of(task).expect("supported");
        let local = hosts.local(rank);
        let leaders = hosts.leaders(task.root);
        let leads = |member: &u32| leaders.contains(&local.rank(*member));
        let leader = (0..local.len()).find(leads).expect("one per host");
        let root = leaders.iter().position(|rank| *rank == task.root).unwrap_or(0) as u32;
        let leaders = (local.me() == leader).then(|| Group::of(leaders, rank));
        Self { hosts, local, leader, root, leaders }
    }
}

/// Enters the cost of the rounds between the leaders.
pub(super) fn exchange_between_hosts(task: &Task, bytes: f64, bill: &mut Bill) {
    let is_all_reduce = task.collective == Collective::AllReduce;
    let folds = is_all_reduce && !bill.hosts.is_power_of_two();
    let bytes = if is_all_reduce { bytes * bill.interleaving(bytes) } else { bytes };
    for _ in 0..ceil_log2(bill.hosts) + u32::from(folds) {
        bill.exchange(Pattern::Pairs, bill.one_per_host(), 1.0, bytes, task.collective.reduces());
    }
}
