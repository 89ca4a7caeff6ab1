//! Two-level algorithm in which all ranks of a host use the network: split rails.
//!
//! As UCC's split rail and DPML (Bayatpour et al., 2017). All-reduce: a direct reduce-scatter within each host;
//! then the ranks at the same position on all hosts (a *rail*) all-reduce their share with the circulant
//! exchange, all rails at once; then a direct all-gather within each host. A host moves 2 n (M-1)/M bytes over
//! its network link in 2 log2 M rounds, which is the minimum, spread over all its ranks; n (L-1)/L bytes per rank
//! and phase stay inside. All-gather: among the ranks of a rail, then within the host. Reduce-scatter: within the
//! host, where each rank takes the blocks of its rail, then among the ranks of the rail. All hosts must have the
//! same number of ranks.

use super::{circulant, direct};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::generator::Generator;
use crate::group::{Group, Span};
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::task::Task;

pub(crate) struct Hierarchical;

impl Generator for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn source(&self) -> &'static str {
        "split rails and multiple leaders, as UCC and DPML do"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => {}
            other => return Err(format!("split rails do not support {other}")),
        }
        match Hosts::of(task)?.even() {
            Some(_) => Ok(()),
            None => Err("hosts have different numbers of ranks".to_owned()),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let hosts = Hosts::of(task).expect("supported");
        let (local, rail) = (hosts.local(rank), hosts.rail(rank));
        match task.collective {
            Collective::AllReduce => {
                let cut = Cut::Vector { parts: task.world_size };
                let mut b = PlanBuilder::new(task, Algorithm::Hierarchical, rank, cut);
                b.lane(0);
                let within = Span { base: 0, stride: rail.len() };
                let between = Span { base: local.me() * rail.len(), stride: 1 };
                direct::reduce_scatter_core(&mut b, task, &local, within, task.own());
                circulant::reduce_scatter_core(&mut b, &rail, between, Space::Output);
                circulant::all_gather_core(&mut b, &rail, between, None);
                direct::all_gather_core(&mut b, &local, within);
                b.finish()
            }
            Collective::ReduceScatter => reduce_scatter(task, rank, &hosts, &local, &rail),
            _ => all_gather(task, rank, &hosts, &local, &rail),
        }
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let (hosts, local) = (bill.hosts, bill.local);
        match task.collective {
            Collective::AllReduce => {
                let slice = bytes / f64::from(local);
                bill.local_wave(local - 1, slice, true);
                let piece = slice / f64::from(hosts);
                circulant::phase_cost(bill, hosts, piece, true, Some(1.0));
                circulant::phase_cost(bill, hosts, piece, false, Some(1.0));
                bill.local_wave(local - 1, slice, false);
            }
            Collective::ReduceScatter => {
                bill.local_wave((local - 1) * hosts, bytes, true);
                for _ in 0..hosts - 1 {
                    bill.exchange(Pattern::Pairs, Reach::Network(1.0), 1.0, bytes, true);
                }
            }
            _ => {
                for _ in 0..hosts - 1 {
                    bill.exchange(Pattern::Pairs, Reach::Network(1.0), 1.0, bytes, false);
                }
                bill.local_wave((local - 1) * hosts, bytes, false);
            }
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            // One block per host; a host has at least two ranks.
            Collective::ReduceScatter => f64::from(task.world_size) / 2.0,
            _ => 1.0,
        }
    }
}

fn all_gather(task: &Task, rank: u32, hosts: &Hosts, local: &Group, rail: &Group) -> Plan {
    let mut b = PlanBuilder::new(task, Algorithm::Hierarchical, rank, Cut::PerRank);
    b.lane(0);
    let block = |owner| Blocks::one(Space::Output, owner);
    if task.out_of_place() {
        b.copy(Blocks::one(Space::Input, 0), block(rank));
    }
    // The blocks of a rail need not be adjacent: a ring moves them one by one anyway.
    let (next, previous) = (rail.rank(rail.ahead(1)), rail.rank(rail.behind(1)));
    for round in 0..rail.len() - 1 {
        b.send(next, block(rail.rank(rail.behind(round))));
        b.recv(previous, block(rail.rank(rail.behind(round + 1))));
    }
    for distance in 1..local.len() {
        let to = local.rank(local.ahead(distance));
        for member in 0..rail.len() {
            b.send(to, block(rail.rank(member)));
        }
    }
    for distance in 1..local.len() {
        let from = local.rank(local.behind(distance));
        let its_rail = hosts.rail(from);
        for member in 0..its_rail.len() {
            b.recv(from, block(its_rail.rank(member)));
        }
    }
    b.finish()
}

fn reduce_scatter(task: &Task, rank: u32, hosts: &Hosts, local: &Group, rail: &Group) -> Plan {
    let mut b = PlanBuilder::new(task, Algorithm::Hierarchical, rank, Cut::PerRank);
    b.lane(0);
    for distance in 1..local.len() {
        let to = local.rank(local.ahead(distance));
        let its_rail = hosts.rail(to);
        for member in 0..rail.len() {
            b.send(to, Blocks::one(Space::Input, its_rail.rank(member)));
        }
    }
    // The contributions of this host to each rank of the rail.
    let sums = b.scratch_range((0..rail.len()).map(|member| Like::Input(rail.rank(member))));
    for member in 0..rail.len() {
        let sum = Blocks::one(Space::Scratch, sums.first + member);
        let own = Blocks::one(Space::Input, rail.rank(member));
        direct::sum_ascending(&mut b, local, own, sum, |_| sum);
    }
    for distance in 1..rail.len() {
        let to = rail.ahead(distance);
        b.send(rail.rank(to), Blocks::one(Space::Scratch, sums.first + to));
    }
    let output = Blocks::one(Space::Output, 0);
    direct::sum_ascending(&mut b, rail, Blocks::one(Space::Scratch, sums.first + rail.me()), output, |_| {
        output
    });
    b.finish()
}
