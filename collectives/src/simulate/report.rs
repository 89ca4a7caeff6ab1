//! Report of a simulation after its last event.

use crate::layout::Layout;
use crate::plan::{Action, StepRef};

use super::engine::Engine;
use super::state::Record;
use super::{CriticalStep, Stuck, Timing};

impl Engine<'_> {
    /// Reports how far each rank has come, and what it waits for.
    pub(super) fn report(self) -> Timing {
        let mut stuck = Vec::new();
        let mut finished = Vec::with_capacity(self.ranks.len());
        for (rank, state) in self.ranks.iter().enumerate() {
            let dead = state.dies.is_finite();
            let mut through = state.calls == 0 || state.segments == 0;
            for (slot, instance) in state.instances.iter().enumerate() {
                if instance.unfinished == 0 {
                    continue;
                }
                through = false;
                for (lane, position) in instance.lanes.iter().enumerate().filter(|_| !dead) {
                    if let Some(compiled) = self.programs[rank][lane].get(usize::from(position.next)) {
                        stuck.push(Stuck {
                            rank: rank as u32,
                            segment: instance.segment,
                            step: StepRef { lane: lane as u16, step: position.next },
                            peer: self.awaited(rank, slot, &compiled.step.action),
                        });
                    }
                }
            }
            finished.push(through.then_some(state.finished));
        }
        let last = (0..self.ranks.len())
            .filter(|rank| finished[*rank].is_some())
            .max_by(|a, b| self.ranks[*a].finished.total_cmp(&self.ranks[*b].finished));
        let mut critical_path = Vec::new();
        let mut record = last.and_then(|rank| self.ranks[rank].last_record);
        while let Some(index) = record {
            let Record { rank, segment, step, at, cause } = self.records[index as usize];
            critical_path.push(CriticalStep { rank, segment: segment as usize, step, at_seconds: at });
            record = cause;
        }
        critical_path.reverse();
        let in_flight = |layout: &Layout| layout.segments().min(self.window);
        let scratch = self.layouts.iter().map(|layout| layout.scratch_elements() * in_flight(layout)).max();
        Timing {
            seconds: last.map_or(0.0, |rank| self.ranks[rank].finished),
            finished,
            critical_path,
            intra: self.intra,
            inter: self.inter,
            connections: 0,
            scratch_bytes: scratch.unwrap_or(0) * self.cluster.element_bytes,
            stuck,
        }
    }

    /// Returns the rank that a step waits for.
    fn awaited(&self, rank: usize, slot: usize, action: &Action) -> Option<u32> {
        match action {
            Action::Await { of } => self.stages.missing(*of, rank, slot),
            _ => action.receives_from().map(|from| from.peer),
        }
    }
}
