//! Gather, scatter and all-to-all through leaders: one message from host to host, with all blocks of the sending host's
//! ranks for the receiving host.
//!
//! Gather: all ranks of a host publish, and its leader sends their blocks to the root. Scatter: the root sends each
//! leader the blocks of its host, and the leader publishes them. All-to-all: all ranks publish; the leaders sort the
//! blocks for another host by destination, exchange them, and give each rank its run. Leaders copy everything that
//! crosses the network, so these algorithms suit short messages.

use super::{named, near, others};
use crate::builder::{LANE_STEPS_MAX, PlanBuilder};
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::generators::leader::Levels;
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Like, Space};
use crate::stage::{Members, Payload};
use crate::task::Task;

/// Whether this module serves the collective.
pub(super) const fn serves(collective: Collective) -> bool {
    matches!(collective, Collective::Gather | Collective::Scatter | Collective::AllToAll)
}

/// Checks that the steps of every leader fit into its lane; the error tells users why not.
pub(super) fn supports(task: &Task, hosts: &Hosts) -> Result<(), String> {
    if task.collective != Collective::AllToAll {
        return Ok(());
    }
    let most = (0..hosts.count()).map(|host| steps(task, hosts, host)).max().unwrap_or(0);
    if most > LANE_STEPS_MAX {
        return Err(format!("a leader would take {most} steps, more than {LANE_STEPS_MAX}"));
    }
    Ok(())
}

/// Returns the number of steps that the leader of a host takes in an all-to-all, at most: it copies every block that
/// leaves the host by itself.
fn steps(task: &Task, hosts: &Hosts, host: u32) -> u32 {
    let count = run(hosts, host).1;
    // It publishes, awaits the others, copies the blocks of its own host, and sends one message to each other host. A
    // message that arrives takes a step, and one for each rank.
    count * (task.world_size - count) + 2 + count + (hosts.count() - 1) * (2 + count)
}

/// Returns the consecutive ranks of a host: the first one and their number.
fn run(hosts: &Hosts, host: u32) -> (u32, u32) {
    let ranks = hosts.host(host);
    (ranks[0], ranks.len() as u32)
}

fn blocks(space: Space, (first, count): (u32, u32)) -> Blocks {
    Blocks::range(space, first, count)
}

pub(super) fn gather(b: &mut PlanBuilder, task: &Task, rank: u32, levels: &Levels) {
    let (hosts, local) = (&levels.hosts, &levels.local);
    let home = hosts.index_of(rank);
    let is_root = rank == task.root;
    let input = Blocks::one(Space::Input, 0);
    let gives = |member: u32| member != levels.leader;
    if local.len() > 1 {
        b.stage(hosts.host(home), Space::Output);
        let payload = |member: u16| match gives(member.into()) {
            true => Payload::run(local.rank(member.into()), 1),
            false => Payload::PRESENCE,
        };
        b.publish(payload, [gives(local.me()).then_some(input), None], (0, 0));
    }
    if levels.leaders.is_none() {
        return;
    }
    let (first, count) = run(hosts, home);
    // The root receives blocks in place; other ranks pack them.
    let place = |b: &mut PlanBuilder| match is_root {
        true => blocks(Space::Output, (first, count)),
        false => b.scratch_range((0..count).map(|_| Like::Input(0))),
    };
    let side_by_side = if is_root || count > 1 { place(b) } else { input };
    let at = |member: u32| Blocks::one(side_by_side.space, side_by_side.first + member);
    if count > 1 {
        if !is_root || task.out_of_place() {
            b.copy(input, at(levels.leader));
        }
        b.await_members(Members::All);
        for member in (0..count).filter(|member| gives(*member)) {
            b.copy(Blocks::one(Space::Stage(member as u16), first + member), at(member));
        }
    } else if is_root && task.out_of_place() {
        b.copy(input, at(0));
    }
    if !is_root {
        b.send(task.root, side_by_side);
        return;
    }
    for (host, leader) in (0..).zip(hosts.leaders(task.root)) {
        if host != home {
            b.recv(leader, blocks(Space::Output, run(hosts, host)));
        }
    }
}

pub(super) fn scatter(b: &mut PlanBuilder, task: &Task, rank: u32, levels: &Levels) {
    let (hosts, local) = (&levels.hosts, &levels.local);
    let home = hosts.index_of(rank);
    let (first, count) = run(hosts, home);
    let output = Blocks::one(Space::Output, 0);
    let mut source = None;
    if rank == task.root {
        for (host, leader) in (0..).zip(hosts.leaders(task.root)) {
            if host != home {
                b.send(leader, blocks(Space::Input, run(hosts, host)));
            }
        }
        source = Some(blocks(Space::Input, (first, count)));
        if task.out_of_place() {
            b.copy(Blocks::one(Space::Input, rank), output);
        }
    } else if levels.leaders.is_some() {
        let arrives = if count == 1 { output } else { b.scratch_range((0..count).map(|_| Like::Output(0))) };
        b.recv(task.root, arrives);
        source = (count > 1).then_some(arrives);
        if let Some(run) = source {
            b.copy(Blocks::one(run.space, run.first + levels.leader), output);
        }
    }
    if count == 1 {
        return;
    }
    b.stage(hosts.host(home), Space::Input);
    // The leader is the first rank of its host, or the root.
    let own = first + levels.leader;
    let payload = |member: u16| match u32::from(member) == levels.leader {
        true => Payload::run(first, own - first).and(own + 1, first + count - own - 1),
        false => Payload::PRESENCE,
    };
    let given = payload(local.me() as u16);
    let src = match source {
        Some(source) => given.runs.map(|run| {
            run.map(|run| Blocks::range(source.space, source.first + run.first - first, run.count))
        }),
        None => [None; 2],
    };
    b.publish(payload, src, (0, 0));
    if source.is_none() {
        b.await_members(Members::One(levels.leader as u16));
        b.copy(Blocks::one(Space::Stage(levels.leader as u16), rank), output);
    }
}

pub(super) fn all_to_all(b: &mut PlanBuilder, task: &Task, rank: u32, levels: &Levels) {
    let (hosts, local) = (&levels.hosts, &levels.local);
    let (home, me) = (hosts.index_of(rank), local.me());
    let (first, count) = run(hosts, home);
    if count > 1 {
        b.stage(hosts.host(home), Space::Output);
        let payload = |member: u16| {
            let moved = others((first + u32::from(member)) as u16, task.world_size);
            // No other rank reads a leader's blocks for other hosts.
            if u32::from(member) == levels.leader { near(member, (first, count)) } else { moved }
        };
        let mine = payload(me as u16);
        b.publish(payload, named(&mine, task.own()), (0, 0));
    }
    if task.out_of_place() {
        b.copy(Blocks::one(Space::Input, rank), Blocks::one(Space::Output, rank));
    }
    let stage = |member: u32, block| Blocks::one(Space::Stage(member as u16), block);
    if count > 1 {
        b.await_members(Members::All);
    }
    let leaders = hosts.leaders(task.root);
    let away = |distance: u32| (home + distance) % hosts.count();
    if levels.leaders.is_some() {
        for distance in 1..hosts.count() {
            let host = away(distance);
            let (theirs, many) = run(hosts, host);
            let sorted = b.scratch_range((0..many * count).map(|_| Like::Output(0)));
            let places = (0..many).flat_map(|to| (0..count).map(move |from| (theirs + to, from)));
            for (place, (block, from)) in (sorted.first..).zip(places) {
                let src = if from == me { Blocks::one(task.own(), block) } else { stage(from, block) };
                b.copy(src, Blocks::one(Space::Scratch, place));
            }
            b.send(leaders[host as usize], sorted);
        }
    }
    for member in (0..count).filter(|member| *member != me) {
        b.copy(stage(member, rank), Blocks::one(Space::Output, first + member));
    }
    for distance in (1..hosts.count()).rev() {
        let host = away(distance);
        let whole = blocks(Space::Output, run(hosts, host));
        if levels.leaders.is_none() {
            b.recv(local.rank(levels.leader), whole);
            continue;
        }
        if count == 1 {
            b.recv(leaders[host as usize], whole);
            continue;
        }
        let arrived = b.scratch_range((0..whole.count * count).map(|_| Like::Output(0)));
        b.recv(leaders[host as usize], arrived);
        for member in 0..count {
            let theirs = Blocks::range(Space::Scratch, arrived.first + member * whole.count, whole.count);
            if member == me { b.copy(theirs, whole) } else { b.send(local.rank(member), theirs) }
        }
    }
}

/// Enters the cost of blocks of `bytes`.
pub(super) fn cost(task: &Task, bytes: f64, bill: &mut Bill) {
    let (local, hosts) = (bill.local, bill.hosts);
    let (near, far) = (f64::from(local - 1), f64::from(hosts - 1));
    // Bytes of one host for another.
    let theirs = f64::from(local) * bytes;
    let between = bill.one_per_host();
    match task.collective {
        Collective::Gather => {
            bill.publish(local - 1, bytes);
            bill.meet(local - 1);
            bill.take(1, theirs);
            bill.exchange(Pattern::Fan, between, far, far * theirs, false);
        }
        Collective::Scatter => {
            bill.exchange(Pattern::Fan, between, far, far * theirs, false);
            bill.publish(1, near * bytes);
            bill.meet(1);
            bill.take(local - 1, bytes);
        }
        _ => {
            bill.publish(local, f64::from(task.world_size - 1) * bytes);
            bill.meet(local - 1);
            let crosses = far * f64::from(local) * theirs;
            bill.take(1, crosses);
            bill.take(local, near * bytes);
            bill.exchange(Pattern::Pairs, between, far, crosses, false);
            bill.exchange(Pattern::Fan, Reach::Host, far * near, far * near * theirs, false);
        }
    }
}

/// Returns the blocks of scratch that the leader with the most ranks needs.
pub(super) fn scratch(task: &Task) -> f64 {
    let (world, hosts) = (f64::from(task.world_size), f64::from(task.host_count()));
    let local = (world / hosts).ceil();
    if task.collective == Collective::AllToAll { 2.0 * world * local } else { local }
}

/// Returns the most blocks that a rank publishes.
pub(super) fn most_published(task: &Task, hosts: &Hosts) -> u32 {
    match task.collective {
        Collective::Gather => 1,
        Collective::Scatter => (0..hosts.count()).map(|host| run(hosts, host).1).max().unwrap_or(1),
        _ => task.world_size,
    }
}
