//! Direct exchange: every block travels directly from its owner to its destinations, a few blocks at a time.
//!
//! All-to-all, all-gather, gather, scatter, broadcast, reduce-scatter, and two-shot all-reduce (reduce-scatter, then
//! all-gather). It takes one wave of p-1 messages per rank, optimal volume, and no forwarding and so no scratch. It
//! suits large blocks and shared memory, and is the only algorithm for lengths that only two ranks know (the v-forms of
//! gather, scatter and all-to-all). `params.width` lanes throttle exchanges that do not reduce; those that do post all
//! sends at once and receive in ascending rank order, which is the order of the sum.

use std::iter::StepBy;
use std::ops::Range;

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::generators::copy_own;
use crate::group::{Group, Span};
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space, StepRef};
use crate::task::Task;

pub(crate) struct Direct;

impl Generator for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn source(&self) -> &'static str {
        "pairwise exchange; two-shot kernels on GPUs"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::Reduce | Collective::Scan | Collective::ExScan | Collective::Barrier => {
                Err(format!("direct exchange does not support {}", task.collective))
            }
            _ => Ok(()),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let p = task.world_size;
        let cut = match task.collective {
            Collective::AllReduce => Cut::Vector { parts: p },
            Collective::Broadcast => Cut::Vector { parts: 1 },
            _ => Cut::PerRank,
        };
        let mut b = PlanBuilder::new(task, Algorithm::Direct, rank, cut);
        b.lane(0);
        let group = Group::world(p, rank);
        match task.collective {
            Collective::AllReduce if p == 1 => copy_own(&mut b, task, 0, 1),
            Collective::AllReduce => {
                reduce_scatter_core(&mut b, task, &group, Span::BLOCKS, task.own());
                all_gather_core(&mut b, &group, Span::BLOCKS);
            }
            Collective::AllGather => all_gather(&mut b, task, rank),
            Collective::ReduceScatter => reduce_scatter(&mut b, task, rank),
            Collective::Broadcast => broadcast(&mut b, task, rank),
            Collective::Gather => gather(&mut b, task, rank),
            Collective::Scatter => scatter(&mut b, task, rank),
            _ if task.out_of_place() => all_to_all(&mut b, task, rank),
            _ => all_to_all_in_place(&mut b, task, rank),
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let others = task.world_size - 1;
        match task.collective {
            Collective::AllReduce => {
                let share = bytes / f64::from(task.world_size);
                bill.wave(others, share, true, f64::INFINITY);
                bill.wave(others, share, false, f64::INFINITY);
            }
            Collective::ReduceScatter => bill.wave(others, bytes, true, f64::INFINITY),
            Collective::Broadcast | Collective::Gather | Collective::Scatter => bill.fan(bytes, false),
            _ => {
                bill.wave(others, bytes, false, f64::from(task.params.width.max(1)));
                bill.copy(bytes);
            }
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            // Needed in place; ranks need not agree on whether they are in place.
            Collective::AllToAll => f64::from(task.world_size),
            _ => 1.0,
        }
    }

    fn serves_irregular(&self, _: Collective) -> bool {
        true
    }

    fn takes_turns(&self, task: &Task) -> bool {
        task.collective == Collective::AllToAll
    }
}

/// Returns the lanes for `exchanges` exchanges: lane w takes every width-th.
fn lanes(task: &Task, exchanges: u32) -> impl Iterator<Item = StepBy<Range<u32>>> + use<> {
    let width = u32::from(task.params.width.max(1)).min(exchanges);
    (0..width).map(move |lane| (lane..exchanges).step_by(width as usize))
}

fn all_to_all(b: &mut PlanBuilder, task: &Task, rank: u32) {
    b.copy(Blocks::one(Space::Input, rank), Blocks::one(Space::Output, rank));
    for lane in lanes(task, task.world_size - 1) {
        b.lane(0);
        for distance in lane.map(|exchange| exchange + 1) {
            let (to, from) = partners(task, rank, distance);
            b.send(to, Blocks::one(Space::Input, to));
            b.recv(from, Blocks::one(Space::Output, from));
        }
    }
}

/// Returns the ranks that a rank sends to and receives from in one exchange. Ranks exchange in pairs if every rank has
/// a partner: then no rank waits for a rank that waits for a third one.
fn partners(task: &Task, rank: u32, distance: u32) -> (u32, u32) {
    if task.world_size.is_power_of_two() {
        (rank ^ distance, rank ^ distance)
    } else {
        (task.ahead(rank, distance), task.behind(rank, distance))
    }
}

/// In place, the exchanges are those of [`all_to_all`] in the same order, since other ranks may not be in place. The
/// data to send is first copied to scratch, one block per peer, since blocks may differ in length.
fn all_to_all_in_place(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let p = task.world_size;
    let block = |peer| Blocks::one(Space::Output, peer);
    let asides: Vec<Blocks> = (0..p).map(|peer| b.scratch(Like::Output(peer))).collect();
    let swaps = p.is_power_of_two();
    if !swaps {
        // A block that arrives overwrites the block for another rank.
        for peer in (0..p).filter(|peer| *peer != rank) {
            b.copy(block(peer), asides[peer as usize]);
        }
    }
    for (index, lane) in lanes(task, p - 1).enumerate() {
        if index > 0 {
            b.lane(0);
        }
        if index > 0 && !swaps {
            b.after(StepRef { lane: 0, step: (p - 2) as u16 });
        }
        for distance in lane.map(|exchange| exchange + 1) {
            let (to, from) = partners(task, rank, distance);
            let aside = asides[to as usize];
            if swaps {
                b.copy(block(to), aside);
            }
            b.send(to, aside);
            b.recv(from, block(from));
        }
    }
}

fn all_gather(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let (own, place) = (Blocks::one(Space::Input, 0), Blocks::one(Space::Output, rank));
    let source = if task.out_of_place() { own } else { place };
    if task.out_of_place() {
        b.copy(own, place);
    }
    for lane in lanes(task, task.world_size - 1) {
        b.lane(0);
        for distance in lane.map(|exchange| exchange + 1) {
            let from = task.behind(rank, distance);
            b.send(task.ahead(rank, distance), source);
            b.recv(from, Blocks::one(Space::Output, from));
        }
    }
}

/// Sums the members' contributions in ascending order, with `own` in its place, into `output`.
///
/// The sum lies in `partial` until `own` has been added. `partial` is not called if `own` comes first or second, or if
/// the output may hold the sum.
pub(crate) fn sum_ascending(
    b: &mut PlanBuilder,
    group: &Group,
    own: Blocks,
    output: Blocks,
    partial: impl FnOnce(&mut PlanBuilder) -> Blocks,
) {
    let me = group.me();
    let mut sum = own;
    match me {
        0 => {}
        1 => {
            b.recv_reduce(group.rank(0), own, output);
            sum = output;
        }
        _ => {
            let early = partial(b);
            b.recv(group.rank(0), early);
            for member in 1..me {
                b.recv_reduce(group.rank(member), early, early);
            }
            b.reduce(early, own, output);
            sum = output;
        }
    }
    for member in me + 1..group.len() {
        b.recv_reduce(group.rank(member), sum, output);
        sum = output;
    }
    if sum != output {
        b.copy(sum, output);
    }
}

/// Returns the blocks of a space that belong to a member, if there are any.
pub(crate) type Pieces<'a> = &'a dyn Fn(Space, u32) -> Option<Blocks>;

/// Leaves the reduction of piece `me` of all members' `own` in the output.
pub(crate) fn reduce_scatter_core(b: &mut PlanBuilder, task: &Task, group: &Group, span: Span, own: Space) {
    reduce_pieces(b, task, group, &|space, member| Some(span.piece(space, member)), own);
}

/// Leaves the reduction of piece `me` of all members' `own` in the output, with pieces of any lengths.
pub(crate) fn reduce_pieces(b: &mut PlanBuilder, task: &Task, group: &Group, pieces: Pieces<'_>, own: Space) {
    for distance in 1..group.len() {
        let to = group.ahead(distance);
        if let Some(piece) = pieces(own, to) {
            b.send(group.rank(to), piece);
        }
    }
    let (Some(mine), Some(output)) = (pieces(own, group.me()), pieces(Space::Output, group.me())) else {
        return;
    };
    sum_ascending(b, group, mine, output, |b| {
        if own == Space::Output {
            let first = b.scratch_like_own(task, output.first).first;
            for block in output.first + 1..output.end() {
                b.scratch_like_own(task, block);
            }
            Blocks::range(Space::Scratch, first, output.count)
        } else {
            output
        }
    });
}

/// Distributes piece `me` of each member's output to all members.
pub(crate) fn all_gather_core(b: &mut PlanBuilder, group: &Group, span: Span) {
    gather_pieces(b, group, &|space, member| Some(span.piece(space, member)));
}

/// Distributes piece `me` of each member's output to all members, with pieces of any lengths.
pub(crate) fn gather_pieces(b: &mut PlanBuilder, group: &Group, pieces: Pieces<'_>) {
    if let Some(mine) = pieces(Space::Output, group.me()) {
        for distance in 1..group.len() {
            b.send(group.rank(group.ahead(distance)), mine);
        }
    }
    for distance in 1..group.len() {
        let from = group.behind(distance);
        if let Some(piece) = pieces(Space::Output, from) {
            b.recv(group.rank(from), piece);
        }
    }
}

fn reduce_scatter(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let group = Group::world(task.world_size, rank);
    for distance in 1..task.world_size {
        let to = task.ahead(rank, distance);
        b.send(to, Blocks::one(Space::Input, to));
    }
    // The sums have a lane of their own, so that they need not wait for the posting of the sends.
    b.lane(0);
    let output = Blocks::one(Space::Output, 0);
    let own = if task.out_of_place() { Blocks::one(Space::Input, rank) } else { output };
    sum_ascending(b, &group, own, output, |b| {
        if task.out_of_place() { output } else { b.scratch(Like::Output(0)) }
    });
}

fn broadcast(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let output = Blocks::one(Space::Output, 0);
    if rank != task.root {
        b.recv(task.root, output);
        return;
    }
    let source = task.own_blocks(0, 1);
    for distance in 1..task.world_size {
        b.send(task.ahead(rank, distance), source);
    }
    if source != output {
        b.copy(source, output);
    }
}

fn gather(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let own = Blocks::one(Space::Input, 0);
    if rank != task.root {
        b.send(task.root, own);
        return;
    }
    if task.out_of_place() {
        b.copy(own, Blocks::one(Space::Output, rank));
    }
    for lane in lanes(task, task.world_size - 1) {
        b.lane(0);
        for from in lane.map(|exchange| task.ahead(rank, exchange + 1)) {
            b.recv(from, Blocks::one(Space::Output, from));
        }
    }
}

fn scatter(b: &mut PlanBuilder, task: &Task, rank: u32) {
    let output = Blocks::one(Space::Output, 0);
    if rank != task.root {
        b.recv(task.root, output);
        return;
    }
    for distance in 1..task.world_size {
        let to = task.ahead(rank, distance);
        b.send(to, Blocks::one(Space::Input, to));
    }
    if task.out_of_place() {
        b.copy(Blocks::one(Space::Input, rank), output);
    }
}
