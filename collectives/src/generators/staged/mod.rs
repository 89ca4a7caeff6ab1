//! Collectives inside one host, over memory that its ranks share: each rank publishes its contribution, waits for the
//! data that it needs, and copies or reduces it from there. A byte is copied in once, however many ranks need it, and
//! there are no messages. The two algorithms for several hosts use messages between hosts only.

mod all_to_all;
mod hierarchical;
mod leader;
mod one_shot;
mod rails;
mod relay;
mod simple;
mod two_shot;

pub(crate) use hierarchical::HierarchicalStaged;
pub(crate) use leader::LeaderStaged;
pub(crate) use one_shot::StagedOneShot;
pub(crate) use simple::Staged;
pub(crate) use two_shot::StagedTwoShot;

use crate::generator::StagedSegments;
use crate::hosts::Hosts;
use crate::plan::{Blocks, Collective, Space};
use crate::stage::{PAYLOAD_BYTES_MAX, Payload};
use crate::task::Task;

/// Checks that all ranks share memory; the error tells users why not.
pub(super) fn on_one_host(task: &Task) -> Result<(), String> {
    if !task.stages {
        return Err("the ranks of a host share no memory".to_owned());
    }
    if task.has_several_hosts() {
        return Err("ranks of several hosts share no memory".to_owned());
    }
    Ok(())
}

/// Returns the hosts, if the ranks of each share memory; the error tells users why not.
fn on_hosts(task: &Task) -> Result<Hosts, String> {
    if !task.stages {
        return Err("the ranks of a host share no memory".to_owned());
    }
    Hosts::of(task)
}

/// Returns all ranks.
pub(super) fn world(task: &Task) -> Vec<u32> {
    (0..task.world_size).collect()
}

/// Returns a payload of all blocks but the one that a member keeps for itself.
fn others(member: u16, blocks: u32) -> Payload {
    let member = u32::from(member);
    Payload::run(0, member).and(member + 1, blocks - member - 1)
}

/// Returns a payload of a member's blocks for the others of its host, whose `count` ranks begin with `first`.
fn near(member: u16, (first, count): (u32, u32)) -> Payload {
    let moved = others(member, count).runs.into_iter().flatten();
    moved.fold(Payload::PRESENCE, |payload, run| payload.and(first + run.first, run.count))
}

/// Returns the blocks of `space` with the numbers under which they are published.
fn named(payload: &Payload, space: Space) -> [Option<Blocks>; 2] {
    payload.runs.map(|run| run.map(|run| Blocks::range(space, run.first, run.count)))
}

/// Whether a fold may read a rank's own contribution where the result goes. The fold writes there before it reads the
/// third member's contribution.
fn may_read_own(task: &Task, rank: u32) -> bool {
    task.out_of_place() || rank < 2
}

/// Returns the limits on segments of plans in which a rank publishes `blocks` blocks in a round.
fn segments(task: &Task, blocks: u32) -> Option<StagedSegments> {
    let of = |bytes| bytes / u64::from(blocks.max(1));
    let best = payload_bytes(task.collective, task.world_size);
    Some(StagedSegments { best: of(best), most: of(PAYLOAD_BYTES_MAX as u64) })
}

/// Returns the most bytes that a rank publishes in one round of a long call.
///
/// Two ranks usually have a processor each. Where one gives and the other takes, short rounds let one copy in while the
/// other copies out. Where both give, both copy in and then both copy out, and each round costs them a wait for each
/// other. More ranks share processors, and a long round costs fewer of their turns; but two rounds of all ranks should
/// stay in the third-level cache, and so should the result of an all-gather: see docs/measurements.md, "Parts and
/// rounds".
pub(super) fn payload_bytes(collective: Collective, members: u32) -> u64 {
    use Collective as C;
    const SHORT: usize = 64 << 10;
    let all_give = matches!(collective, C::AllReduce | C::AllGather | C::ReduceScatter | C::AllToAll);
    let bytes = match members {
        0..=2 if collective == C::AllToAll => 512 << 10,
        0..=2 if all_give => 256 << 10,
        0..=2 => SHORT,
        8..=26 if collective == C::AllGather => 320 << 10,
        _ => PAYLOAD_BYTES_MAX.min((8 << 20) / members as usize).max(SHORT),
    };
    bytes as u64
}
