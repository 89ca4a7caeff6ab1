//! Static check that no step touches a block while another step may be writing it.
//!
//! Happens-before within a rank follows from lane order, `after` and fences, without a run. A `Send` goes on
//! reading after its lane has moved on, until a fence of its lane, so a later write needs a fence in between.
//! Knowledge from other ranks' messages does not count: each plan must be safe by itself.

use crate::memory::Memory;
use crate::plan::{Action, Blocks, Plan, Space, StepRef};

use super::violation::{Place, Violation};

#[derive(Clone, Copy)]
struct Access {
    cell: (Space, u32),
    at: StepRef,
    write: bool,
    send: bool,
}

/// For every step and every lane of its plan: how many of the lane's steps have completed before the step
/// begins, and for how many of them the sends have finished reading.
struct Known {
    lanes: usize,
    offsets: Vec<usize>,
    completed: Vec<u16>,
    read_out: Vec<u16>,
}

pub(crate) fn check(plan: &Plan) -> Result<(), Violation> {
    let memory = Memory::of(plan);
    let mut accesses = collect(plan, &memory);
    accesses.sort_unstable_by_key(|access| (access.cell, access.at.lane, access.at.step));
    let known = Known::new(plan);
    for cell in accesses.chunk_by(|a, b| a.cell == b.cell) {
        let lanes: Vec<OfLane> = cell.chunk_by(|a, b| a.at.lane == b.at.lane).map(OfLane::new).collect();
        for write in cell.iter().filter(|access| access.write) {
            for lane in &lanes {
                if let Some(other) = lane.first_not_before(write, &known)
                    && !known.before(write, other)
                {
                    return Err(Violation::Hazard {
                        writer: Place::of(plan, write.at),
                        other: Place::of(plan, other.at),
                        block: Blocks::one(write.cell.0, write.cell.1).to_string(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// The accesses of one lane to a cell, in the order of their steps.
struct OfLane {
    lane: u16,
    sends: Vec<Access>,
    others: Vec<Access>,
}

impl OfLane {
    fn new(accesses: &[Access]) -> Self {
        let (sends, others) = accesses.iter().partition(|access| access.send);
        Self { lane: accesses[0].at.lane, sends, others }
    }

    /// Returns the first access that may not be over when `write` begins. If the write is over when that access begins,
    /// then so it is when any later one of the lane begins. Otherwise the two may overlap.
    fn first_not_before(&self, write: &Access, known: &Known) -> Option<&Access> {
        let first = |accesses: &'_ [Access]| accesses.partition_point(|access| known.before(access, write));
        let send = self.sends.get(first(&self.sends));
        // Within a lane, only a send may still be active after its step.
        let other = self.others.get(first(&self.others)).filter(|_| self.lane != write.at.lane);
        [send, other].into_iter().flatten().min_by_key(|access| access.at.step)
    }
}

fn collect(plan: &Plan, memory: &Memory) -> Vec<Access> {
    let mut accesses = Vec::new();
    for (at, action) in super::wiring::steps(plan) {
        let send = matches!(action, Action::Send { .. });
        let reads = action.reads().into_iter().flatten().map(|blocks| (blocks, false));
        let writes = action.writes().into_iter().map(|blocks| (blocks, true));
        for (blocks, write) in reads.chain(writes) {
            // Input that nothing can write needs no order; accesses to stages and windows are checked
            // elsewhere.
            if blocks.space.is_shared() || (!write && !memory.may_be_written(blocks.space)) {
                continue;
            }
            let physical = memory.physical(blocks);
            accesses.extend((physical.first..physical.end()).map(|block| Access {
                cell: (physical.space, block),
                at,
                write,
                send,
            }));
        }
    }
    accesses
}

impl Known {
    fn new(plan: &Plan) -> Self {
        let lanes = plan.lanes.len();
        let mut offsets = vec![0];
        for lane in &plan.lanes {
            offsets.push(offsets[offsets.len() - 1] + lane.len());
        }
        let size = offsets[lanes] * lanes;
        let mut known = Self { lanes, offsets, completed: vec![0; size], read_out: vec![0; size] };
        // Lanes may wait for each other in both directions, so this repeats until no lane makes progress. A
        // cycle of waits leaves the rest without knowledge; the run reports it as a deadlock.
        let mut done = vec![0; lanes];
        let mut progress = true;
        while progress {
            progress = false;
            for lane in 0..lanes {
                while done[lane] < plan.lanes[lane].len() {
                    let step = &plan.lanes[lane][done[lane]];
                    if step
                        .after
                        .is_some_and(|after| done[usize::from(after.lane)] <= usize::from(after.step))
                    {
                        break;
                    }
                    known.learn(lane, done[lane], step.after, step.fence);
                    done[lane] += 1;
                    progress = true;
                }
            }
        }
        known
    }

    fn row(&self, lane: usize, step: usize) -> usize {
        (self.offsets[lane] + step) * self.lanes
    }

    fn learn(&mut self, lane: usize, step: usize, after: Option<StepRef>, fence: bool) {
        let row = self.row(lane, step);
        if step > 0 {
            let previous = row - self.lanes;
            self.completed.copy_within(previous..row, row);
            self.read_out.copy_within(previous..row, row);
        }
        self.completed[row + lane] = step as u16;
        if let Some(after) = after {
            let other = self.row(usize::from(after.lane), usize::from(after.step));
            for index in 0..self.lanes {
                self.completed[row + index] = self.completed[row + index].max(self.completed[other + index]);
                self.read_out[row + index] = self.read_out[row + index].max(self.read_out[other + index]);
            }
            let of_lane = &mut self.completed[row + usize::from(after.lane)];
            *of_lane = (*of_lane).max(after.step + 1);
        }
        if fence {
            self.read_out[row + lane] = step as u16;
        }
    }

    fn before(&self, first: &Access, second: &Access) -> bool {
        let row = self.row(usize::from(second.at.lane), usize::from(second.at.step));
        let lane = usize::from(first.at.lane);
        self.completed[row + lane] > first.at.step
            && (!first.send || self.read_out[row + lane] > first.at.step)
    }
}
