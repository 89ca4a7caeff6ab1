//! Lengths of the messages of one segment.

use crate::layout::Layout;
use crate::plan::{Action, Blocks, Plan, Space, StepRef};

use super::violation::{Place, Violation};
use super::wiring::{Wiring, steps};

/// The length under which a signal is recorded: signals are always transmitted.
const SIGNAL: usize = usize::MAX;

/// Lengths that the steps of all ranks move in one segment, and the index at which each lane begins.
#[derive(Debug)]
pub(crate) struct Lengths {
    /// First lane of each rank, in a numbering over all ranks.
    pub(super) first_lane: Vec<usize>,
    /// First step of each lane.
    first_step: Vec<usize>,
    pub(super) lens: Vec<usize>,
}

impl Lengths {
    pub(crate) fn new(plans: &[Plan], layouts: &[Layout], segment: usize) -> Self {
        let (mut first_lane, mut first_step, mut lens) = (vec![0], vec![0], Vec::new());
        for (plan, layout) in plans.iter().zip(layouts) {
            for lane in &plan.lanes {
                lens.extend(lane.iter().map(|step| match step.action {
                    Action::Signal { .. }
                    | Action::WaitSignal { .. }
                    | Action::Publish { .. }
                    | Action::Await { .. } => SIGNAL,
                    Action::Send { src, .. } => layout.len(src, segment),
                    Action::Recv { dst, .. }
                    | Action::RecvReduce { dst, .. }
                    | Action::Copy { dst, .. }
                    | Action::Reduce { dst, .. }
                    | Action::Fold { dst, .. } => layout.len(dst, segment),
                    Action::Spread { at, count, .. } => {
                        layout.len(Blocks::range(Space::Output, at, count), segment)
                    }
                }));
                first_step.push(lens.len());
            }
            first_lane.push(first_step.len() - 1);
        }
        Self { first_lane, first_step, lens }
    }

    fn sent<'a>(&'a self, plans: &'a [Plan], rank: usize) -> impl Iterator<Item = usize> + 'a {
        let start = self.first_step[self.first_lane[rank]];
        let lens = &self.lens[start..self.first_step[self.first_lane[rank + 1]]];
        steps(&plans[rank])
            .zip(lens)
            .filter(|((_, action), len)| action.sends_to().is_some() && **len > 0)
            .map(|(_, len)| if *len == SIGNAL { 0 } else { *len })
    }

    pub(crate) fn messages(&self, plans: &[Plan]) -> u64 {
        (0..plans.len()).map(|rank| self.sent(plans, rank).count() as u64).sum()
    }

    pub(crate) fn elements(&self, plans: &[Plan]) -> u64 {
        (0..plans.len()).map(|rank| self.sent(plans, rank).sum::<usize>() as u64).sum()
    }

    pub(crate) fn elements_per_rank(&self, plans: &[Plan]) -> u64 {
        (0..plans.len()).map(|rank| self.sent(plans, rank).sum::<usize>() as u64).max().unwrap_or(0)
    }

    /// Checks that the i-th message into a channel is as long as the i-th out of it, messages of no bytes
    /// included: only then do both ends skip the same ones.
    pub(crate) fn agree(&self, plans: &[Plan], wiring: &Wiring) -> Result<(), Violation> {
        // The messages of each channel are adjacent, in order.
        let mut counts = vec![0; wiring.len() + 1];
        let sends = |number: usize, action: &Action| {
            action.sends_to().is_some().then(|| wiring.of_step(number)).flatten()
        };
        let all = || plans.iter().flat_map(|plan| steps(plan).map(move |(at, action)| (plan, at, action)));
        for (number, (_, _, action)) in all().enumerate() {
            if let Some(channel) = sends(number, action) {
                counts[channel + 1] += 1;
            }
        }
        for channel in 0..wiring.len() {
            counts[channel + 1] += counts[channel];
        }
        let mut sent = vec![(0, 0_u32, StepRef { lane: 0, step: 0 }); counts[wiring.len()]];
        let mut next = counts.clone();
        for (number, (plan, at, action)) in all().enumerate() {
            if let Some(channel) = sends(number, action) {
                sent[next[channel]] = (self.lens[number], plan.rank, at);
                next[channel] += 1;
            }
        }
        let mut next = counts;
        for (number, (plan, at, action)) in all().enumerate() {
            let (Some(channel), true) = (wiring.of_step(number), action.receives_from().is_some()) else {
                continue;
            };
            // The counts are known to be equal.
            let (expected, sender, sender_at) = sent[next[channel]];
            next[channel] += 1;
            if self.lens[number] != expected {
                return Err(Violation::Lengths {
                    at: Place::of(plan, at),
                    sender: Place::of(&plans[sender as usize], sender_at),
                });
            }
        }
        Ok(())
    }

    /// Returns the number of a step in an order over all ranks; `lane` is numbered over all ranks, too.
    pub(super) fn index(&self, lane: usize, step: u16) -> usize {
        self.first_step[lane] + usize::from(step)
    }
}

/// Checks that each payload is as long as all members of its stage expect, block by block. Returns the number of
/// elements that all ranks copy.
pub(crate) fn published(plans: &[Plan], layouts: &[Layout], segment: usize) -> Result<u64, Violation> {
    let (mut copied, mut left_out) = (0, 0);
    for (plan, layout) in plans.iter().zip(layouts) {
        let Some(stage) = &plan.stage else { continue };
        let me = stage.member(plan.rank).unwrap_or_default();
        // Members whose layout has the same shape need no check.
        let others: Vec<&Layout> = stage.members.iter().map(|rank| &layouts[*rank as usize]).collect();
        let others = others.into_iter().filter(|other| other.shape() != layout.shape());
        let all: Vec<&Layout> = std::iter::once(layout).chain(others).collect();
        let publishes = steps(plan).filter(|(_, action)| matches!(action, Action::Publish { .. }));
        for ((at, action), round) in publishes.zip(stage.rounds.iter()) {
            let place = |at| Place::of(plan, at);
            let Action::Publish { except, .. } = action else { continue };
            left_out += except.map_or(0, |hole| layout.len(hole, segment));
            let runs = round[me].runs.iter().flatten().zip(action.reads().into_iter().flatten());
            for (run, src) in runs {
                for index in 0..run.count {
                    let (name, block) = (run.first + index, src.first + index);
                    let size = layout.size(src.space, block, segment);
                    if all.iter().any(|layout| layout.size(stage.like, name, segment) != size) {
                        return Err(Violation::Lengths { at: place(at), sender: place(at) });
                    }
                    copied += size.len;
                }
            }
        }
    }
    Ok((copied - left_out) as u64)
}
