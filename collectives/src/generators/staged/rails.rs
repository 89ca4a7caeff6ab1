//! All-gather and reduce-scatter over rails: the blocks that each rail moves, and the way they take.
//!
//! All-gather: every rank publishes its block, and each rail passes the blocks of its hosts round a ring of its own. A
//! rail publishes the blocks of another host as they arrive, while the next are on their way. Reduce-scatter: every
//! rank publishes its input; the rails reduce their host's contributions to each other host, send the sums there, and
//! add up those that arrive.

use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Like, Space, StepRef};
use crate::stage::{Members, Payload};
use crate::task::Task;

/// The number of rails, and the blocks that each has of every host.
pub(super) struct Rails<'a> {
    hosts: &'a Hosts,
    count: u32,
}

impl<'a> Rails<'a> {
    /// As many rails as every host has ranks for.
    pub(super) fn most(hosts: &'a Hosts) -> Self {
        Self { hosts, count: hosts.least() }
    }

    /// A single rail: the first rank of each host.
    pub(super) const fn one(hosts: &'a Hosts) -> Self {
        Self { hosts, count: 1 }
    }

    /// Returns the ranks of host `host` whose blocks rail `rail` moves.
    fn chunk(&self, host: u32, rail: u32) -> &'a [u32] {
        let ranks = self.hosts.host(host);
        let at = |rail: u32| (u64::from(rail) * ranks.len() as u64 / u64::from(self.count)) as usize;
        &ranks[at(rail)..at(rail + 1)]
    }

    /// Returns the first rank and the number of the ranks of host `host` whose blocks rail `rail` moves.
    fn run(&self, host: u32, rail: u32) -> (u32, u32) {
        let chunk = self.chunk(host, rail);
        (chunk[0], chunk.len() as u32)
    }

    /// Returns the most blocks of one rail and host.
    fn longest(&self) -> u32 {
        let of_host = |host| (0..self.count).map(move |rail| self.chunk(host, rail).len());
        (0..self.hosts.count()).flat_map(of_host).max().unwrap_or(1) as u32
    }

    /// Checks that blocks that are published together are adjacent; the error tells users why not.
    pub(super) fn support(&self, collective: Collective) -> Result<(), String> {
        let is_run = |ranks: &[u32]| ranks.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let together = (0..self.hosts.count()).all(|host| match collective {
            Collective::Gather | Collective::Scatter | Collective::AllToAll => is_run(self.hosts.host(host)),
            _ => (0..self.count).all(|rail| is_run(self.chunk(host, rail))),
        });
        if together { Ok(()) } else { Err("the ranks of a host are not consecutive".to_owned()) }
    }

    /// Returns the payloads of a host's members for `host`: each rail publishes its chunk.
    fn payload(&self, host: u32, member: u16) -> Payload {
        if u32::from(member) >= self.count {
            return Payload::PRESENCE;
        }
        let (first, count) = self.run(host, member.into());
        Payload::run(first, count)
    }
}

/// Enters the cost of blocks of `bytes`, with this many rails.
pub(super) fn cost(task: &Task, rails: u32, bytes: f64, bill: &mut Bill) {
    let (local, hosts) = (bill.local, bill.hosts);
    let share = f64::from(rails) / f64::from(local);
    // Bytes of one rail's share of a host's blocks.
    let chunk = bytes / share;
    if task.collective == Collective::AllGather {
        for host in 0..hosts {
            let (givers, given) = if host == 0 { (local, bytes) } else { (rails, chunk) };
            bill.publish(givers, given);
            bill.meet(local - 1);
            bill.take(local, f64::from(local) * bytes - given);
            if host > 0 {
                bill.exchange(Pattern::Pairs, Reach::Network(share), 1.0, chunk, false);
            }
        }
        return;
    }
    bill.publish(local, f64::from(task.world_size) * bytes);
    bill.meet(local - 1);
    bill.fold(rails, local, f64::from(hosts) * chunk);
    for _ in 1..hosts {
        bill.exchange(Pattern::Pairs, Reach::Network(share), 1.0, chunk, true);
    }
    if rails < local {
        bill.publish(rails, chunk);
        bill.meet(1);
        bill.take(local, bytes);
    }
}

/// Returns the most blocks that a rank publishes at once.
pub(super) fn most_published(task: &Task, rails: &Rails<'_>) -> u32 {
    if task.collective == Collective::AllGather { rails.longest() } else { task.world_size }
}

pub(super) fn all_gather(b: &mut PlanBuilder, task: &Task, rank: u32, rails: &Rails<'_>) {
    let hosts = rails.hosts;
    let (local, home, count) = (hosts.local(rank), hosts.index_of(rank), hosts.count());
    let me = local.me();
    let output = |(first, count)| Blocks::range(Space::Output, first, count);
    let (input, place) = (Blocks::one(Space::Input, 0), output((rank, 1)));
    let own = if task.out_of_place() { input } else { place };
    let behind = |distance: u32| (home + count - distance) % count;
    // Receives of the blocks of the other hosts, nearest host first.
    let mut arrivals = Vec::new();
    if me < rails.count {
        let rail = hosts.rail_at(me);
        let (next, previous) = (rail[((home + 1) % count) as usize], rail[behind(1) as usize]);
        let mine = rails.run(home, me);
        if mine == (rank, 1) {
            b.send(next, own);
        } else {
            // The send waits until the other lane has copied the blocks of the other ranks.
            let step = 1 + u16::from(task.out_of_place()) + local.len() as u16 - 1;
            b.after(StepRef { lane: 1, step });
            b.send(next, output(mine));
        }
        for distance in 1..count {
            let blocks = output(rails.run(behind(distance), me));
            b.recv(previous, blocks);
            arrivals.push(b.last());
            if distance + 1 < count {
                b.send(next, blocks);
            }
        }
        if local.len() > 1 || task.out_of_place() {
            b.lane(0);
        }
    }
    if local.len() == 1 {
        if task.out_of_place() {
            b.copy(input, place);
        }
        return;
    }
    b.stage(hosts.host(home), Space::Output);
    let stage = |member: u32, (first, count)| Blocks::range(Space::Stage(member as u16), first, count);
    b.publish(|member| Payload::run(local.rank(member.into()), 1), [Some(own), None], (0, 0));
    if task.out_of_place() {
        b.copy(input, place);
    }
    b.await_members(Members::All);
    for member in (0..local.len()).filter(|member| *member != me) {
        let block = (local.rank(member), 1);
        b.copy(stage(member, block), output(block));
    }
    for distance in 1..count {
        let host = behind(distance);
        let arrival = arrivals.get(distance as usize - 1);
        if let Some(arrival) = arrival {
            b.after(*arrival);
        }
        let src = arrival.map(|_| output(rails.run(host, me)));
        b.publish(|member| rails.payload(host, member), [src, None], (0, 0));
        if rails.count == 1 && me == 0 {
            continue;
        }
        b.await_members(Members::Below(rails.count as u16));
        for rail in (0..rails.count).filter(|rail| *rail != me) {
            let run = rails.run(host, rail);
            b.copy(stage(rail, run), output(run));
        }
    }
}

pub(super) fn reduce_scatter(b: &mut PlanBuilder, rank: u32, rails: &Rails<'_>) {
    let hosts = rails.hosts;
    let (local, home, count) = (hosts.local(rank), hosts.index_of(rank), hosts.count());
    let me = local.me();
    let world: u32 = (0..count).map(|host| hosts.host(host).len() as u32).sum();
    let (is_rail, is_shared) = (me < rails.count, local.len() > 1);
    let input = |(first, count)| Blocks::range(Space::Input, first, count);
    let output = Blocks::one(Space::Output, 0);
    if is_shared {
        b.stage(hosts.host(home), Space::Input);
        let hole = if is_rail { rails.run(home, me) } else { (0, 0) };
        b.publish(|_| Payload::run(0, world), [Some(input((0, world))), None], hole);
    }
    if is_rail {
        if is_shared {
            b.await_members(Members::All);
        }
        // Sums this host's contributions to the rail's blocks of another host, or of this one.
        let sum = |b: &mut PlanBuilder, host: u32| {
            let (first, count) = rails.run(host, me);
            if !is_shared {
                return input((first, count));
            }
            let sums = b.scratch_range((first..first + count).map(Like::Input));
            for at in 0..count {
                let sum = Blocks::one(Space::Scratch, sums.first + at);
                b.fold(Members::All, (first + at, 1), Some(input((first + at, 1))), sum);
            }
            sums
        };
        let rail = hosts.rail_at(me);
        for distance in 1..count {
            let host = (home + distance) % count;
            let blocks = sum(b, host);
            b.send(rail[host as usize], blocks);
        }
        let mine = sum(b, home);
        let is_own = rails.run(home, me) == (rank, 1);
        let mut total = mine;
        for distance in 1..count {
            let from = rail[((home + count - distance) % count) as usize];
            // The last addition writes the result to the output; earlier ones do so where the output is free.
            let dst = if is_own && (distance + 1 == count || !is_shared) { output } else { mine };
            b.recv_reduce(from, total, dst);
            total = dst;
        }
        if !is_own {
            hand_over(b, rank, rails, Some(total));
            return;
        }
    }
    if local.len() > rails.count {
        let total = is_rail.then_some(output);
        hand_over(b, rank, rails, total);
    }
}

/// On a host with more ranks than rails, the rails publish the results of its ranks, and each rank takes its block.
fn hand_over(b: &mut PlanBuilder, rank: u32, rails: &Rails<'_>, total: Option<Blocks>) {
    let hosts = rails.hosts;
    let (local, home) = (hosts.local(rank), hosts.index_of(rank));
    let owner = (0..rails.count).find(|rail| rails.chunk(home, *rail).contains(&rank)).expect("somebody");
    b.publish(|member| rails.payload(home, member), [total, None], (0, 0));
    let output = Blocks::one(Space::Output, 0);
    match total {
        Some(total) if owner == local.me() => {
            let at = rank - rails.run(home, owner).0;
            let mine = Blocks::one(total.space, total.first + at);
            if mine != output {
                b.copy(mine, output);
            }
        }
        _ => {
            b.await_members(Members::One(owner as u16));
            b.copy(Blocks::one(Space::Stage(owner as u16), rank), output);
        }
    }
}
