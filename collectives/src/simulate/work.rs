//! The work of a step, before it competes for processors and buses.

use crate::model::Model;
use crate::plan::{Action, Blocks, Space};

use super::engine::Engine;
use super::state::{Compiled, Here};

/// The work of a step, in seconds.
pub(super) struct Work {
    /// Time on the processor.
    pub(super) seconds: f64,
    /// Time until the link of a sender may begin.
    pub(super) opening: f64,
    /// Time on the memory bus of the host, for data that moves to or from a stage.
    pub(super) on_bus: f64,
    /// Moment before which the step cannot be over, because its message is not complete.
    pub(super) last_byte: f64,
}

impl Engine<'_> {
    /// Returns the bytes that a step moves.
    pub(super) fn bytes(&self, rank: usize, action: &Action, segment: usize) -> f64 {
        let blocks = match *action {
            Action::Send { src, .. } => src,
            Action::Recv { dst, .. }
            | Action::RecvReduce { dst, .. }
            | Action::Copy { dst, .. }
            | Action::Reduce { dst, .. }
            | Action::Fold { dst, .. } => dst,
            Action::Spread { at, count, .. } => Blocks::range(Space::Output, at, count),
            Action::Publish { src, except } => {
                let elements = |blocks: &Blocks| self.layouts[rank].len(*blocks, segment);
                let all: usize = src.iter().flatten().map(elements).sum();
                let copied = all - except.as_ref().map_or(0, elements).min(all);
                return (copied * self.cluster.element_bytes) as f64;
            }
            Action::Signal { .. } | Action::WaitSignal { .. } | Action::Await { .. } => return 0.0,
        };
        (self.layouts[rank].len(blocks, segment) * self.cluster.element_bytes) as f64
    }

    /// Returns the work of a step, whose message, if it receives one, has `arrived` then.
    pub(super) fn work(
        &self,
        here: Here,
        number: u16,
        compiled: &Compiled,
        bytes: f64,
        arrived: f64,
    ) -> Work {
        let Here { rank, lane, .. } = here;
        let (model, slower) = (&self.cluster.model, self.slower);
        let class = |inter: bool| if inter { &model.inter } else { &model.intra };
        let memory =
            |rate: fn(&Model) -> f64| bytes * self.memory.seconds_per_byte((rank, lane, number), rate);
        let moved = |inter: bool| if inter { 0.0 } else { memory(|model| model.move_bytes_per_second) };
        let (mut seconds, mut opening, mut last_byte) = (0.0, 0.0, 0.0);
        // Number of times that a step moves its bytes to or from a stage.
        let mut staged = 0.0;
        match compiled.step.action {
            // Both ends skip messages of no bytes.
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } if bytes == 0.0 => {}
            Action::Send { .. } | Action::Signal { .. } => {
                let overhead = class(compiled.inter).overhead_seconds;
                opening = overhead * slower;
                seconds = overhead + moved(compiled.inter);
            }
            Action::Copy { src, .. } if src.space.is_shared() => staged = 1.0,
            Action::Copy { .. } => seconds = memory(|model| model.copy_bytes_per_second),
            Action::Reduce { .. } => seconds = memory(|model| model.reduce_bytes_per_second),
            Action::Publish { .. } => staged = 1.0,
            Action::Await { of } => {
                seconds = model.intra.overhead_seconds * self.stages.count(of, rank) as f64;
            }
            Action::Fold { of, .. } => {
                let others = self.stages.count(of, rank) as f64 - 1.0;
                seconds = others * memory(|model| model.reduce_bytes_per_second);
                staged = others.max(1.0);
            }
            Action::Spread { of, to, .. } => {
                let others = self.stages.count(of, rank) as f64 - 1.0;
                // The reduction itself, if there is one, writes the first of the results.
                let copies = self.stages.count(to, rank) as f64 - others.min(1.0);
                staged = others + copies;
                // A single pass, which reduces while it moves.
                let reduced = others * memory(|model| model.reduce_bytes_per_second);
                seconds = (reduced - staged * memory(|model| model.move_bytes_per_second)).max(0.0);
            }
            Action::Recv { .. } | Action::RecvReduce { .. } | Action::WaitSignal { .. } => {
                let from = compiled.step.action.receives_from().map_or(0, |from| from.peer);
                let inter =
                    self.plans.len() == 1 || self.cluster.host(from) != self.cluster.host(rank as u32);
                let overhead = class(inter).overhead_seconds;
                seconds = overhead + moved(inter);
                last_byte = arrived + overhead * slower;
                if matches!(compiled.step.action, Action::RecvReduce { .. }) {
                    seconds += memory(|model| model.reduce_bytes_per_second);
                }
            }
        }
        // A processor moves the bytes into and out of a stage, over the memory bus.
        seconds += staged * memory(|model| model.move_bytes_per_second);
        let on_bus = staged * memory(|model| model.memory_bytes_per_second);
        Work { seconds: seconds * slower, opening, on_bus, last_byte }
    }
}
