//! All-to-all on several hosts: blocks for ranks of the same host go through shared memory, while the others go
//! directly to their destinations.

use super::near;
use crate::builder::PlanBuilder;
use crate::hosts::Hosts;
use crate::plan::{Blocks, Like, Space, StepRef};
use crate::stage::Members;
use crate::task::Task;

pub(super) fn plan(b: &mut PlanBuilder, task: &Task, rank: u32, hosts: &Hosts) {
    let (local, home) = (hosts.local(rank), hosts.index_of(rank));
    let is_near = |peer: u32| hosts.index_of(peer) == home;
    let block = |space, peer| Blocks::one(space, peer);
    // In place, a block that arrives overwrites the block for another rank.
    let mut aside = vec![None; task.world_size as usize];
    if !task.out_of_place() {
        for peer in (0..task.world_size).filter(|peer| !is_near(*peer)) {
            let place = b.scratch(Like::Output(peer));
            b.copy(block(Space::Output, peer), place);
            aside[peer as usize] = Some(place);
        }
    }
    let set_aside = aside.iter().flatten().count();
    let exchanges: Vec<u32> = (1..task.world_size)
        .filter(|distance| !is_near(task.ahead(rank, *distance)) || !is_near(task.behind(rank, *distance)))
        .collect();
    let width = usize::from(task.params.width.max(1));
    for lane in 0..width.min(exchanges.len()) {
        if lane > 0 {
            b.lane(0);
            if set_aside > 0 {
                b.after(StepRef { lane: 0, step: set_aside as u16 - 1 });
            }
        }
        for distance in exchanges.iter().skip(lane).step_by(width) {
            let (to, from) = (task.ahead(rank, *distance), task.behind(rank, *distance));
            if !is_near(to) {
                b.send(to, aside[to as usize].unwrap_or(block(Space::Input, to)));
            }
            if !is_near(from) {
                b.recv(from, block(Space::Output, from));
            }
        }
    }
    if local.len() == 1 && !task.out_of_place() {
        return;
    }
    b.lane(0);
    if local.len() > 1 {
        b.stage(hosts.host(home), Space::Output);
        let payload = |member: u16| near(member, (local.rank(0), local.len()));
        let mine = payload(local.me() as u16);
        b.publish(payload, super::named(&mine, task.own()), (0, 0));
    }
    if task.out_of_place() {
        b.copy(block(Space::Input, rank), block(Space::Output, rank));
    }
    if local.len() > 1 {
        b.await_members(Members::All);
        for member in (0..local.len()).filter(|member| *member != local.me()) {
            b.copy(block(Space::Stage(member as u16), rank), block(Space::Output, local.rank(member)));
        }
    }
}
