//! The steps of a segment's lanes, which are either posted or done at once.

use std::ops::Range;

use kolo_collectives::plan::{Action, Blocks, Channel as PlanChannel, Space, Step, StepRef};
use kolo_collectives::stage::Members;
use kolo_transport::{Channel, Consumer, Error, ErrorKind, OnMisfit, Piece, Posted, Sink, Token};

use super::super::Io;
use super::super::links::Links;
use super::super::local::{self, Reducer};
use super::super::token::{Kind, Name};
use super::instance::Instance;
use super::staged::{Staged, member_of};
use super::waiting::source;
use super::{Bound, Operation, Position};
use crate::call::AdapterAccess;

/// State of a step after it was run.
enum StepState {
    /// The step is over.
    Done,
    /// A completion will end the step.
    Pending,
    /// The step must be run again when the stage has the awaited round.
    Waits,
}

impl From<Posted> for StepState {
    fn from(posted: Posted) -> Self {
        match posted {
            Posted::Done => Self::Done,
            Posted::Pending => Self::Pending,
        }
    }
}

impl Operation {
    /// Advances all lanes as far as possible. Returns whether the segment is done.
    pub(super) fn run_lanes(&mut self, index: u16, io: &mut Io) -> Result<bool, Error> {
        let lanes = self.instances[index as usize].lanes.len();
        loop {
            let (mut moved, mut done) = (false, true);
            for lane in 0..lanes {
                let before = self.instances[index as usize].lanes[lane].cursor;
                done &= self.run_lane(index, lane, io)?;
                moved |= self.instances[index as usize].lanes[lane].cursor != before;
            }
            // A lane that moved may have unblocked another one; a single lane has no other.
            if done || !moved || lanes == 1 {
                return Ok(done);
            }
        }
    }

    /// Advances one lane as far as possible. Returns whether it is done, sends included.
    fn run_lane(&mut self, index: u16, lane: usize, io: &mut Io) -> Result<bool, Error> {
        let (bound, instance) = (&self.bound, &mut self.instances[index as usize]);
        let steps = &bound.binding.plan.lanes[lane];
        let sub_channel = bound.sub_channel(instance.segment);
        let mut run = LaneRun { bound, instance, links: &mut io.links, index, lane, sub_channel };
        loop {
            let Some(step) = steps.get(run.instance.lanes[lane].cursor as usize) else {
                return Ok(run.instance.lanes[lane].sends_pending == 0);
            };
            if !run.may_run(step) {
                return Ok(false);
            }
            if let Action::Copy { src, dst } = step.action
                && bound.gpus.access != AdapterAccess::Staged
                && !(src.space == Space::Scratch && dst.space == Space::Scratch)
            {
                let (src, dst) = (run.place(src)?, run.place(dst)?);
                let parts = local::parts(&run.instance.pieces[src], &run.instance.pieces[dst]);
                return self.start_step(index, lane, parts, &mut io.copies).map(|()| false);
            }
            let state = run.run(&step.action)?;
            self.unflushed |= source(&step.action).is_some();
            match state {
                StepState::Done => run.instance.lanes[lane].cursor += 1,
                StepState::Pending => {
                    run.instance.lanes[lane].receiving = true;
                    return Ok(false);
                }
                StepState::Waits => return Ok(false),
            }
        }
    }
}

/// A lane of a segment, with everything that its steps need.
struct LaneRun<'a> {
    bound: &'a Bound,
    instance: &'a mut Instance,
    links: &'a mut Links,
    /// Number of the instance.
    index: u16,
    lane: usize,
    sub_channel: u16,
}

impl LaneRun<'_> {
    /// Returns whether nothing holds a step back.
    fn may_run(&self, step: &Step) -> bool {
        let lanes = &self.instance.lanes;
        let state = &lanes[self.lane];
        let is_held = state.receiving || (step.fence && state.sends_pending > 0);
        let comes_after = |after: StepRef| lanes[after.lane as usize].cursor <= u32::from(after.step);
        !is_held && !step.after.is_some_and(comes_after)
    }

    fn run(&mut self, action: &Action) -> Result<StepState, Error> {
        match *action {
            Action::Send { to, src } => self.send(to, src),
            Action::Signal { to } => self.post_send(to, 0..0),
            Action::Recv { from, dst } => self.recv(from, dst),
            Action::WaitSignal { from } => self.post_recv(from, 0..0),
            Action::RecvReduce { from, with, dst } => self.recv_reduce(from, with, dst),
            Action::Copy { src, dst } => self.copy(src, dst),
            Action::Reduce { a, b, dst } => self.reduce(a, b, dst),
            Action::Publish { src, except } => self.publish(src, except),
            Action::Await { of } => self.await_members(of),
            Action::Fold { of, first, count, own, dst } => self.fold(of, (first, count), own, dst),
            // Such plans were refused when they were bound.
            Action::Spread { .. } => unreachable!("plans with windows are run by `symmetric`"),
        }
    }

    /// Appends the pieces of blocks to the instance's pieces. Returns their range there.
    fn place(&mut self, blocks: Blocks) -> Result<Range<usize>, Error> {
        let from = self.instance.pieces.len();
        match member_of(blocks) {
            None => self.bound.place(blocks, self.instance),
            Some(member) => {
                let shown = self.staged()?.shown(member, blocks.first, blocks.count)?;
                self.instance.pieces.extend((shown.len > 0).then_some(shown));
            }
        }
        Ok(from..self.instance.pieces.len())
    }

    fn channel(&self, on: PlanChannel) -> Channel {
        let first = self.bound.position.channel_base + on.index * self.bound.window;
        Channel { peer: on.peer, index: first + self.sub_channel }
    }

    fn token(&self, kind: Kind) -> Token {
        let Position { slot, generation, .. } = self.bound.position;
        Name { slot, generation, instance: self.index as u8, lane: self.lane as u16, kind }.token()
    }

    fn send(&mut self, to: PlanChannel, src: Blocks) -> Result<StepState, Error> {
        let src = self.place(src)?;
        if src.is_empty() { Ok(StepState::Done) } else { self.post_send(to, src) }
    }

    fn post_send(&mut self, to: PlanChannel, src: Range<usize>) -> Result<StepState, Error> {
        let (channel, token) = (self.channel(to), self.token(Kind::Send));
        let src = &self.instance.pieces[src];
        // SAFETY: rule 1 keeps the pieces, `begin` the buffers, rule 3 the scratch, and the stage keeps its payloads
        // until the next publication. The plan's fences keep all of them unwritten (proved by the checker).
        let posted =
            unsafe { self.links.endpoint(channel.peer)?.post_send(channel, self.bound.tag, src, token) }?;
        self.instance.lanes[self.lane].sends_pending += u32::from(posted == Posted::Pending);
        Ok(StepState::Done)
    }

    fn recv(&mut self, from: PlanChannel, dst: Blocks) -> Result<StepState, Error> {
        let dst = self.place(dst)?;
        if dst.is_empty() { Ok(StepState::Done) } else { self.post_recv(from, dst) }
    }

    fn post_recv(&mut self, from: PlanChannel, dst: Range<usize>) -> Result<StepState, Error> {
        let (channel, token) = (self.channel(from), self.token(Kind::Recv));
        let sink = Sink::Place(&self.instance.pieces[dst]);
        // SAFETY: as for sends; nothing else touches the destination (proved by the checker).
        Ok(unsafe {
            self.links.endpoint(channel.peer)?.post_recv(channel, self.bound.tag, sink, OnMisfit::Fail, token)
        }?
        .into())
    }

    fn recv_reduce(&mut self, from: PlanChannel, with: Blocks, dst: Blocks) -> Result<StepState, Error> {
        let (with, dst) = (self.place(with)?, self.place(dst)?);
        let (channel, token) = (self.channel(from), self.token(Kind::Recv));
        let pieces = &self.instance.pieces;
        let (with, dst) = (&pieces[with], &pieces[dst]);
        let len = dst.iter().map(|piece| piece.len).sum();
        if len == 0 {
            return Ok(StepState::Done);
        }
        let Bound { arithmetic, binding, .. } = self.bound;
        let reducer = Reducer::new(arithmetic.combine, binding.element_bytes, with, dst);
        let context: *mut Reducer = self.instance.lanes[self.lane].reducer.get().cast();
        // SAFETY: rule 2: no receive of this lane is posted, so nothing else uses the reducer.
        unsafe { context.write(reducer) };
        let consumer = Consumer { call: Reducer::consume, context: context.cast() };
        let sink = Sink::Consume { len, consumer };
        // SAFETY: rules 1 and 2, and `begin`.
        Ok(unsafe {
            self.links.endpoint(channel.peer)?.post_recv(channel, self.bound.tag, sink, OnMisfit::Fail, token)
        }?
        .into())
    }

    fn copy(&mut self, src: Blocks, dst: Blocks) -> Result<StepState, Error> {
        let streams = self.bound.streams && dst.space == Space::Output;
        let (src, dst) = (self.place(src)?, self.place(dst)?);
        let (src, dst) = (&self.instance.pieces[src], &self.instance.pieces[dst]);
        // SAFETY: valid by `begin`; the checker proves that they do not overlap.
        unsafe {
            if streams {
                local::copy_past_caches(src, dst);
            } else {
                local::copy(src, dst);
            }
        }
        Ok(StepState::Done)
    }

    fn reduce(&mut self, a: Blocks, b: Blocks, dst: Blocks) -> Result<StepState, Error> {
        let (a, b, dst) = (self.place(a)?, self.place(b)?, self.place(dst)?);
        let pieces = &self.instance.pieces;
        let (combine, size) = (self.bound.arithmetic.combine, self.bound.binding.element_bytes);
        // SAFETY: as for copies; by the definition of the step, the blocks are equal or do not overlap.
        unsafe { local::reduce(combine, size, &pieces[a], &pieces[b], &pieces[dst]) };
        Ok(StepState::Done)
    }

    fn publish(&mut self, src: [Option<Blocks>; 2], except: Option<Blocks>) -> Result<StepState, Error> {
        // SAFETY: the sources are valid by `begin`.
        let published = unsafe { self.staged()?.publish(src, except) }?;
        Ok(if published { StepState::Done } else { StepState::Waits })
    }

    fn await_members(&mut self, of: Members) -> Result<StepState, Error> {
        Ok(if self.staged()?.await_members(of)? { StepState::Done } else { StepState::Waits })
    }

    fn fold(
        &mut self,
        of: Members,
        blocks: (u32, u32),
        own: Option<Blocks>,
        dst: Blocks,
    ) -> Result<StepState, Error> {
        let own = own.map(|own| self.place(own)).transpose()?;
        let dst = self.place(dst)?;
        let whole = |range: Range<usize>| match self.instance.pieces[range] {
            [] => Ok(None),
            [piece] => Ok(Some(piece)),
            _ => Err(Error::new(ErrorKind::Usage, "engine", None, "a fold of blocks that lie apart")),
        };
        let (own, dst): (Option<Piece>, _) = (own.map(whole).transpose()?.flatten(), whole(dst)?);
        let Some(dst) = dst else { return Ok(StepState::Done) };
        let own = own.map(|own| own.ptr.cast_const());
        // SAFETY: the blocks are valid by `begin`, and each is in one piece.
        unsafe { self.staged()?.fold(of, blocks, own, dst) }?;
        Ok(StepState::Done)
    }

    /// Returns the segment as its steps on the stage need it.
    fn staged(&mut self) -> Result<Staged<'_>, Error> {
        let Some(stage) = self.links.stage_mut() else {
            return Err(Error::new(ErrorKind::Usage, "engine", None, "no stage, but a plan that uses it"));
        };
        let area = self.bound.position.area_base + self.sub_channel;
        Ok(Staged { bound: self.bound, stage, area, instance: self.instance })
    }
}
