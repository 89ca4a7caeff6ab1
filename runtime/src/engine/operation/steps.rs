//! The steps of a segment's lanes: posted, or done at once.

use kolo_collectives::plan::{Action, Blocks, Channel as PlanChannel, Space};
use kolo_transport::{Channel, Consumer, Error, Posted, Sink};

use super::super::copies::CopyLines;
use super::super::links::Links;
use super::super::local::{self, Reducer};
use super::super::token::{Kind, Name};
use super::Operation;
use super::waiting::source;
use crate::sides::Reach;

impl Operation {
    /// Advances all lanes as far as they go. Returns whether the segment is done.
    pub(super) fn run_lanes(
        &mut self,
        index: u16,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let lanes = self.instances[index as usize].lanes.len();
        loop {
            let (mut moved, mut done) = (false, true);
            for lane in 0..lanes {
                let before = self.instances[index as usize].lanes[lane].cursor;
                done &= self.run_lane(index, lane, links, copies)?;
                moved |= self.instances[index as usize].lanes[lane].cursor != before;
            }
            // A lane that moved may have let another one go on; with a single lane there is no other.
            if done || !moved || lanes == 1 {
                return Ok(done);
            }
        }
    }

    /// Advances one lane as far as it goes. Returns whether it is done, sends included.
    fn run_lane(
        &mut self,
        index: u16,
        lane: usize,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let Some(binding) = &self.binding else { return Ok(true) };
        let steps = &binding.plan.lanes[lane];
        let instance = &mut self.instances[index as usize];
        let (segment, scratch) = (instance.segment, instance.scratch.ptr());
        let sub_channel = (segment % self.window as usize) as u16;
        let name = |kind| {
            Name {
                slot: self.slot,
                generation: self.generation,
                instance: index as u8,
                lane: lane as u16,
                kind,
            }
            .token()
        };
        let channel = |on: PlanChannel| Channel {
            peer: on.peer,
            index: self.channel_base + on.index * self.window + sub_channel,
        };
        loop {
            let at = instance.lanes[lane].cursor as usize;
            let Some(step) = steps.get(at) else {
                return Ok(instance.lanes[lane].sends_pending == 0);
            };
            let state = &instance.lanes[lane];
            if state.receiving || (step.fence && state.sends_pending > 0) {
                return Ok(false);
            }
            if let Some(after) = step.after
                && instance.lanes[after.lane as usize].cursor <= u32::from(after.step)
            {
                return Ok(false);
            }
            let mut place = |blocks: Blocks| {
                let from = instance.pieces.len();
                binding.pieces(blocks, segment, self.buffers, scratch, &mut instance.pieces);
                from..instance.pieces.len()
            };
            let state = &mut instance.lanes[lane];
            let posted = match step.action {
                Action::Send { to, src } => {
                    let src = place(src);
                    let src = &instance.pieces[src];
                    if src.is_empty() {
                        Posted::Done
                    } else {
                        // SAFETY: rule 1 keeps the pieces, `start` the buffers, rule 3 the scratch; the plan's
                        // fences keep them unwritten (proved by the checker).
                        let posted =
                            unsafe { links.post_send(channel(to), self.tag, src, name(Kind::Send)) }?;
                        state.sends_pending += u32::from(posted == Posted::Pending);
                        Posted::Done
                    }
                }
                Action::Signal { to } => {
                    // SAFETY: there is no memory.
                    let posted = unsafe { links.post_send(channel(to), self.tag, &[], name(Kind::Send)) }?;
                    state.sends_pending += u32::from(posted == Posted::Pending);
                    Posted::Done
                }
                Action::Recv { from, dst } => {
                    let dst = place(dst);
                    let dst = &instance.pieces[dst];
                    if dst.is_empty() {
                        Posted::Done
                    } else {
                        // SAFETY: as for sends; nothing else touches the destination (proved by the checker).
                        unsafe {
                            links.post_recv(channel(from), self.tag, Sink::Place(dst), name(Kind::Recv))
                        }?
                    }
                }
                Action::WaitSignal { from } => {
                    // SAFETY: there is no memory.
                    unsafe { links.post_recv(channel(from), self.tag, Sink::Place(&[]), name(Kind::Recv)) }?
                }
                Action::RecvReduce { from, with, dst } => {
                    let (with, dst) = (place(with), place(dst));
                    let (with, dst) = (&instance.pieces[with], &instance.pieces[dst]);
                    let len = dst.iter().map(|piece| piece.len).sum();
                    if len == 0 {
                        Posted::Done
                    } else {
                        // SAFETY: rule 2: no receive of this lane is posted, so nobody else uses the reducer.
                        let reducer = unsafe { &mut *state.reducer.get() };
                        reducer.start(self.combine, binding.element_bytes, with, dst);
                        let consumer =
                            Consumer { call: Reducer::consume, context: state.reducer.get().cast() };
                        let sink = Sink::Consume { len, consumer };
                        // SAFETY: rules 1 and 2, and `start`.
                        unsafe { links.post_recv(channel(from), self.tag, sink, name(Kind::Recv)) }?
                    }
                }
                Action::Copy { src, dst } => {
                    let in_scratch = src.space == Space::Scratch && dst.space == Space::Scratch;
                    let (src, dst) = (place(src), place(dst));
                    if self.sides.reach != Reach::Staged && !in_scratch {
                        let parts = local::parts(&instance.pieces[src], &instance.pieces[dst]);
                        return self.start_step(index, lane, parts, copies).map(|()| false);
                    }
                    // SAFETY: valid by `start`; the checker proves that they do not overlap.
                    unsafe { local::copy(&instance.pieces[src], &instance.pieces[dst]) };
                    Posted::Done
                }
                Action::Reduce { a, b, dst } => {
                    let (a, b, dst) = (place(a), place(b), place(dst));
                    let pieces = &instance.pieces;
                    // SAFETY: as for copies; equal or no overlap by the definition of the step.
                    unsafe {
                        local::reduce(
                            self.combine,
                            binding.element_bytes,
                            &pieces[a],
                            &pieces[b],
                            &pieces[dst],
                        );
                    };
                    Posted::Done
                }
            };
            let state = &mut instance.lanes[lane];
            self.unflushed |= source(&step.action).is_some();
            match posted {
                Posted::Done => state.cursor += 1,
                Posted::Pending => {
                    state.receiving = true;
                    return Ok(false);
                }
            }
        }
    }
}
