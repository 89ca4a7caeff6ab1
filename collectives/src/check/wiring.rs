//! Static checks of the plans: indices are in range, each end of a channel has one owner, and counts are
//! equal.

use crate::memory::Memory;
use crate::plan::{Action, Blocks, Channel, Cut, Like, Plan, Space, StepRef};

use super::violation::{Place, Violation};

/// All directed channels, numbered densely in the order of their senders.
#[derive(Debug)]
pub(crate) struct Wiring {
    /// (receiver, index) of each channel, sorted within its sender.
    channels: Vec<(u32, u16)>,
    /// Index of the first channel of each sender, and the end.
    offsets: Vec<usize>,
    /// The channel of each step, counted over all ranks in order; [`NONE`] for local steps.
    of_steps: Vec<u32>,
}

/// Marks a step without a channel.
const NONE: u32 = u32::MAX;

impl Wiring {
    pub(crate) fn new(plans: &[Plan]) -> Result<Self, Violation> {
        for (rank, plan) in plans.iter().enumerate() {
            let first = &plans[0];
            let same = plan.rank as usize == rank
                && plan.world_size as usize == plans.len()
                && (plan.collective, plan.root, plan.cut) == (first.collective, first.root, first.cut);
            if !same {
                return Err(Violation::Mismatched { rank: rank as u32 });
            }
            validate(plan)?;
        }
        let mut wiring = Self::number(plans);
        wiring.attach(plans)?;
        wiring.owners(plans)?;
        Ok(wiring)
    }

    fn number(plans: &[Plan]) -> Self {
        let mut channels = Vec::new();
        let mut offsets = vec![0];
        for plan in plans {
            let start = channels.len();
            channels.extend(
                steps(plan)
                    .filter_map(|(_, action)| action.sends_to())
                    .map(|channel| (channel.peer, channel.index)),
            );
            channels[start..].sort_unstable();
            let mut kept = start;
            for index in start..channels.len() {
                if kept == start || channels[kept - 1] != channels[index] {
                    channels[kept] = channels[index];
                    kept += 1;
                }
            }
            channels.truncate(kept);
            offsets.push(channels.len());
        }
        Self { channels, offsets, of_steps: Vec::new() }
    }

    /// Returns the number of directed channels.
    pub(crate) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Returns the channel that step `number`, counted over all ranks, sends to or receives from.
    pub(crate) fn of_step(&self, number: usize) -> Option<usize> {
        Some(self.of_steps[number]).filter(|channel| *channel != NONE).map(|channel| channel as usize)
    }

    /// Returns the channel from `sender` to `receiver`, if anything is sent there.
    fn find(&self, sender: u32, receiver: u32, index: u16) -> Option<usize> {
        let start = self.offsets[sender as usize];
        let own = &self.channels[start..self.offsets[sender as usize + 1]];
        own.binary_search(&(receiver, index)).ok().map(|at| start + at)
    }

    fn attach(&mut self, plans: &[Plan]) -> Result<(), Violation> {
        let mut of_steps = Vec::new();
        for plan in plans {
            for (_, action) in steps(plan) {
                let channel = match (action.sends_to(), action.receives_from()) {
                    (Some(to), _) => self.find(plan.rank, to.peer, to.index),
                    (None, Some(from)) => {
                        let Channel { peer, index } = from;
                        let found = self.find(peer, plan.rank, index);
                        if found.is_none() {
                            let to = plan.rank;
                            return Err(Violation::Unmatched { from: peer, to, index, sent: 0, received: 1 });
                        }
                        found
                    }
                    (None, None) => None,
                };
                of_steps.push(channel.map_or(NONE, |channel| channel as u32));
            }
        }
        self.of_steps = of_steps;
        Ok(())
    }

    /// Numbers the directed pairs of ranks: channels of one pair share a number.
    pub(crate) fn pairs(&self) -> Vec<usize> {
        let mut pairs = Vec::with_capacity(self.len());
        let mut next = 0;
        for rank in 0..self.offsets.len() - 1 {
            let own = self.offsets[rank]..self.offsets[rank + 1];
            for at in own.clone() {
                if at == own.start || self.channels[at - 1].0 != self.channels[at].0 {
                    next += 1;
                }
                pairs.push(next - 1);
            }
        }
        pairs
    }

    /// Returns the most peers that any rank communicates with.
    pub(crate) fn connections(&self, plans: &[Plan]) -> u32 {
        let peers = |plan: &Plan| {
            let mut peers: Vec<u32> = steps(plan)
                .filter_map(|(_, action)| action.sends_to().or(action.receives_from()))
                .map(|channel| channel.peer)
                .collect();
            peers.sort_unstable();
            peers.dedup();
            peers.len() as u32
        };
        plans.iter().map(peers).max().unwrap_or(0)
    }

    fn owners(&self, plans: &[Plan]) -> Result<(), Violation> {
        // Lane and message count of each channel, at the sender and at the receiver.
        let mut ends = [vec![(0, 0_u32); self.len()], vec![(0, 0_u32); self.len()]];
        let all = plans.iter().flat_map(|plan| steps(plan).map(move |(at, action)| (plan, at, action)));
        for (number, (plan, at, action)) in all.enumerate() {
            let Some(channel) = self.of_step(number) else { continue };
            let (lane, count) = &mut ends[usize::from(action.sends_to().is_none())][channel];
            if *count > 0 && *lane != at.lane {
                return Err(Violation::SharedChannel { at: Place::of(plan, at), other_lane: *lane });
            }
            *lane = at.lane;
            *count += 1;
        }
        for (number, ((_, sent), (_, received))) in ends[0].iter().zip(&ends[1]).enumerate() {
            if sent != received {
                let from = self.offsets.partition_point(|start| *start <= number) - 1;
                let (to, index) = self.channels[number];
                return Err(Violation::Unmatched {
                    from: from as u32,
                    to,
                    index,
                    sent: *sent,
                    received: *received,
                });
            }
        }
        Ok(())
    }
}

/// Returns all steps of a plan with their places.
pub(crate) fn steps(plan: &Plan) -> impl Iterator<Item = (StepRef, &Action)> {
    plan.lanes.iter().enumerate().flat_map(|(lane, steps)| {
        steps
            .iter()
            .enumerate()
            .map(move |(step, body)| (StepRef { lane: lane as u16, step: step as u16 }, &body.action))
    })
}

fn validate(plan: &Plan) -> Result<(), Violation> {
    let memory = Memory::of(plan);
    let nowhere = StepRef { lane: 0, step: 0 };
    for like in &plan.scratch {
        let fits = match *like {
            Like::Input(block) => block < memory.input_blocks(),
            Like::Output(block) => block < memory.output_blocks(),
        };
        if !fits {
            return Err(Violation::Index { at: Place::of(plan, nowhere), what: "scratch" });
        }
    }
    for (at, action) in steps(plan) {
        let fails = |what| Err(Violation::Index { at: Place::of(plan, at), what });
        let fits = |blocks: Blocks| {
            let available = match blocks.space {
                Space::Input => memory.input_blocks(),
                Space::Output => memory.output_blocks(),
                Space::Scratch => plan.scratch.len() as u32,
                // Checked with the rounds: see `stage`.
                Space::Stage(_) => u32::MAX,
                Space::Window(_) => memory.contribution_blocks(),
            };
            let is_one_vector = match (plan.cut, blocks.space) {
                (Cut::Shards { parts, .. }, Space::Input) => blocks.first % parts + blocks.count <= parts,
                _ => true,
            };
            blocks.count > 0
                && blocks.first.checked_add(blocks.count).is_some_and(|end| end <= available)
                && is_one_vector
        };
        if !action.reads().into_iter().chain([action.writes()]).flatten().all(fits) {
            return fails("block");
        }
        if let Some(Channel { peer, index }) = action.sends_to().or(action.receives_from()) {
            if peer >= plan.world_size || peer == plan.rank {
                return fails("peer");
            }
            if index >= plan.channels {
                return fails("channel");
            }
        }
        if let Some(after) = plan.lanes[usize::from(at.lane)][usize::from(at.step)].after {
            let lane = plan.lanes.get(usize::from(after.lane));
            if after.lane == at.lane || lane.is_none_or(|lane| usize::from(after.step) >= lane.len()) {
                return fails("dependency");
            }
        }
        if action.writes().is_some_and(|dst| !matches!(dst.space, Space::Output | Space::Scratch)) {
            return Err(Violation::WritesInput { at: Place::of(plan, at) });
        }
        if !operands_agree(&memory, action) {
            return Err(Violation::Operands { at: Place::of(plan, at) });
        }
    }
    Ok(())
}

/// Returns whether the target of a step is one of its operands, or overlaps none of them.
fn operands_agree(memory: &Memory, action: &Action) -> bool {
    let Some(dst) = action.writes() else { return true };
    let dst = memory.physical(dst);
    let reads = action.reads().into_iter().flatten().map(|src| memory.physical(src));
    match action {
        Action::Copy { .. } => reads.into_iter().all(|src| !src.overlaps(&dst)),
        _ => reads.into_iter().all(|src| src == dst || !src.overlaps(&dst)),
    }
}
