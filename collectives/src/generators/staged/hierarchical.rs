//! Two-level algorithm in which several ranks of each host use the network, with shared memory within hosts.
//!
//! As many ranks of each host as the smallest host has are *rails*: each rail moves its share of the data between
//! hosts, with the ranks at the same position on the other hosts. All-reduce: every rank publishes its vector; the
//! rails reduce their slices of it, all-reduce them with the circulant exchange, all slices at once, and publish them
//! again. Two hosts swap their slices instead. A host moves 2 n (M-1)/M bytes over its network link, the minimum;
//! inside, a byte is copied in once and read where it is needed. For all-gather, reduce-scatter and all-to-all see
//! [`super::rails`]. Hosts may have different numbers of ranks.

use super::rails::{self, Rails};
use super::{on_hosts, payload_bytes};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::generator::{Generator, StagedSegments};
use crate::generators::circulant;
use crate::group::{Group, Span};
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, PAYLOAD_BYTES_MAX, Payload};
use crate::task::Task;

/// Segments in flight: while one is on the network, ranks work on the other, even if they share processors.
pub(super) const WINDOW: u32 = 2;

pub(crate) struct HierarchicalStaged;

impl Generator for HierarchicalStaged {
    fn name(&self) -> &'static str {
        "hierarchical_staged"
    }

    fn source(&self) -> &'static str {
        "split rails, and shared memory within hosts, as DPML does"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        use Collective as C;
        match task.collective {
            C::AllReduce => on_hosts(task).map(|_| ()),
            C::AllGather | C::ReduceScatter | C::AllToAll => {
                let hosts = on_hosts(task)?;
                Rails::most(&hosts).support(task.collective)
            }
            other => Err(format!("split rails do not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let hosts = Hosts::of(task).expect("supported");
        let cut = match task.collective {
            Collective::AllReduce => Cut::Vector { parts: hosts.least() * pieces(&hosts) },
            _ => Cut::PerRank,
        };
        let mut b = PlanBuilder::new(task, Algorithm::HierarchicalStaged, rank, cut);
        b.lane(0);
        match task.collective {
            Collective::AllReduce => all_reduce(&mut b, task, rank, &hosts),
            Collective::AllGather => rails::all_gather(&mut b, task, rank, &Rails::most(&hosts)),
            Collective::ReduceScatter => rails::reduce_scatter(&mut b, rank, &Rails::most(&hosts)),
            _ => super::all_to_all::plan(&mut b, task, rank, &hosts),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let (local, hosts) = (bill.local, bill.hosts);
        let rails = Hosts::of(task).map_or(1, |hosts| hosts.least());
        let share = f64::from(rails) / f64::from(local);
        match task.collective {
            Collective::AllReduce => {
                let slice = bytes / f64::from(rails);
                bill.publish(local, bytes);
                bill.meet(local - 1);
                bill.fold(rails, local, slice);
                if hosts == 2 {
                    bill.exchange(Pattern::Pairs, Reach::Network(share), 1.0, slice, true);
                } else {
                    let piece = slice / f64::from(hosts);
                    circulant::phase_cost(bill, hosts, piece, true, Some(share));
                    circulant::phase_cost(bill, hosts, piece, false, Some(share));
                }
                bill.publish(rails, slice);
                bill.meet(rails - 1);
                bill.take(local, bytes - slice);
            }
            Collective::AllGather | Collective::ReduceScatter => rails::cost(task, rails, bytes, bill),
            _ => {
                let near = f64::from(local - 1);
                // The messages have lanes of their own, beside the one for the rank's own host.
                bill.beside(
                    |bill| {
                        bill.copy(bytes);
                        bill.publish(local, near * bytes);
                        bill.meet(local - 1);
                        bill.take(local, near * bytes);
                    },
                    |bill| bill.far_wave(task.world_size - local, bytes),
                );
            }
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            // Needed by an all-to-all in place; ranks need not agree on whether they are in place.
            Collective::ReduceScatter | Collective::AllToAll => f64::from(task.world_size),
            _ => 0.0,
        }
    }

    fn window(&self) -> Option<u32> {
        Some(WINDOW)
    }

    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        let most = |count: &dyn Fn(&Hosts) -> u32| Hosts::of(task).map_or(1, |hosts| count(&hosts));
        segments(
            task,
            match task.collective {
                Collective::AllReduce => 1,
                Collective::AllGather | Collective::ReduceScatter => {
                    most(&|hosts| rails::most_published(task, &Rails::most(hosts)))
                }
                _ => most(&|hosts| {
                    (0..hosts.count()).map(|host| hosts.host(host).len()).max().unwrap_or(1) as u32
                }),
            },
        )
    }
}

/// Returns the limits on segments of plans in which a rank publishes `blocks` blocks in a round.
pub(super) fn segments(task: &Task, blocks: u32) -> Option<StagedSegments> {
    let local = task.world_size.div_ceil(task.host_count());
    let of = |bytes: u64| bytes / u64::from(blocks.max(1));
    let best = payload_bytes(task.collective, local);
    Some(StagedSegments { best: of(best), most: of(PAYLOAD_BYTES_MAX as u64) })
}

/// Returns the number of pieces of a rail's slice. Two hosts swap whole slices in one round, which costs no more bytes
/// than two phases.
fn pieces(hosts: &Hosts) -> u32 {
    if hosts.count() == 2 { 1 } else { hosts.count() }
}

fn all_reduce(b: &mut PlanBuilder, task: &Task, rank: u32, hosts: &Hosts) {
    let (local, rails, pieces) = (hosts.local(rank), hosts.least(), pieces(hosts));
    let me = local.me();
    let slice = |member: u32| (member * pieces, pieces);
    let blocks = |space, (first, count)| Blocks::range(space, first, count);
    let is_rail = me < rails;
    let output = blocks(Space::Output, slice(me));
    let own = blocks(task.own(), slice(me));
    let swaps = pieces == 1 && is_rail;
    // A rank that swaps sends and receives whole slices at once, which must not be the same memory.
    let sum = match (swaps, local.len() == 1 && own != output) {
        (false, _) => output,
        (true, true) => own,
        (true, false) => b.scratch_like_own(task, me),
    };
    if local.len() == 1 {
        if own != sum {
            b.copy(own, sum);
        }
    } else {
        b.stage(hosts.host(hosts.index_of(rank)), Space::Output);
        let whole = (0, rails * pieces);
        let reads_own = is_rail && super::may_read_own(task, me);
        let hole = if reads_own { slice(me) } else { (0, 0) };
        let payload = |_| Payload::run(whole.0, whole.1);
        b.publish(payload, [Some(blocks(task.own(), whole)), None], hole);
        if is_rail {
            b.await_members(Members::All);
            let own = reads_own.then_some(own);
            b.fold(Members::All, slice(me), own, sum);
        }
    }
    if is_rail {
        let rail = Group::of(hosts.rail_at(me), rank);
        if swaps {
            let peer = rail.rank(rail.ahead(1));
            b.send(peer, sum);
            b.recv_reduce(peer, sum, output);
        } else {
            let between = Span { base: me * pieces, stride: 1 };
            circulant::reduce_scatter_core(b, &rail, between, Space::Output);
            circulant::all_gather_core(b, &rail, between, None);
        }
    }
    if local.len() == 1 {
        return;
    }
    let payload = |member: u16| {
        let (first, count) = slice(member.into());
        if u32::from(member) < rails { Payload::run(first, count) } else { Payload::PRESENCE }
    };
    b.publish(payload, [is_rail.then_some(output), None], (0, 0));
    if rails == 1 && is_rail {
        return;
    }
    b.await_members(Members::Below(rails as u16));
    for member in (0..rails).filter(|member| *member != me) {
        b.copy(blocks(Space::Stage(member as u16), slice(member)), blocks(Space::Output, slice(member)));
    }
}
