//! Runs one segment of all plans, lane by lane, under the requested credits and schedule.

use std::collections::VecDeque;

use crate::layout::{Layout, Size};
use crate::plan::{Action, Blocks, Collective, Plan, Space, StepRef};
use crate::select::Order;

use super::Options;
use super::heard::Heard;
use super::lengths::Lengths;
use super::schedule::{Ready, Schedule};
use super::stage::Groups;
use super::stage_run::Stages;
use super::value::{Cells, Expressions, Value};
use super::violation::{Place, Violation};
use super::wiring::Wiring;

/// The number of messages that a channel takes before the receiver has posted their receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// This many messages. With 0, a send completes only when the matching receive has been posted.
    PerChannel(u32),
    /// Any number of messages.
    Unlimited,
    /// One message per channel, where all channels from one rank to another share an in-order stream: a message
    /// without a credit holds up all messages behind it.
    SharedStream,
}

/// Sizes and values of a message's blocks that are not empty.
pub(super) type Payload = Vec<(Size, Value)>;

#[derive(Debug)]
struct Message {
    channel: usize,
    lane: usize,
    step: u16,
    payload: Payload,
    heard: Heard,
}

#[derive(Debug)]
pub(super) struct LaneState {
    rank: usize,
    /// Number of the lane within its plan.
    lane: u16,
    next: u16,
    /// Sends whose sources have not been read yet.
    outstanding: u32,
    queued: bool,
    /// For barriers: the ranks known to have called.
    pub(super) heard: Heard,
}

#[derive(Debug, Default)]
struct ChannelState {
    /// Messages that have taken a credit.
    arrived: VecDeque<Message>,
    /// The lane whose next step waits for this channel.
    waiting: Option<usize>,
}

enum Outcome {
    Went,
    Stuck,
}

/// The facts that are the same in all runs of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) plans: &'a [Plan],
    pub(crate) layouts: &'a [Layout],
    pub(crate) segment: usize,
    pub(crate) wiring: &'a Wiring,
    pub(crate) lengths: &'a Lengths,
    pub(crate) groups: &'a Groups,
}

/// One run of a segment.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(super) facts: Facts<'a>,
    credits: Credits,
    schedule: Schedule,
    pub(super) order: Order,
    limit: usize,
    pub(super) lanes: Vec<LaneState>,
    channels: Vec<ChannelState>,
    /// Messages that are posted but have no credit, by stream.
    streams: Vec<VecDeque<Message>>,
    stream_of: Vec<usize>,
    /// Lanes that wait for another lane of their rank.
    dependents: Vec<Vec<usize>>,
    ready: Ready,
    pub(super) stages: Vec<Stages>,
    /// Values in memory, by rank; empty if values are not followed.
    pub(super) cells: Vec<Cells>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(facts: Facts<'a>, (credits, schedule): (Credits, Schedule), options: &Options) -> Self {
        let Facts { plans, wiring, groups, .. } = facts;
        let listens = options.values && plans.first().is_some_and(|p| p.collective == Collective::Barrier);
        let lanes = plans.iter().enumerate().flat_map(|(rank, plan)| {
            (0..plan.lanes.len()).map(move |lane| LaneState {
                rank,
                lane: lane as u16,
                next: 0,
                outstanding: 0,
                queued: false,
                heard: if listens { Heard::only(plan.rank, plans.len()) } else { Heard::default() },
            })
        });
        let (limit, stream_of) = match credits {
            Credits::PerChannel(count) => (count as usize, (0..wiring.len()).collect()),
            Credits::Unlimited => (usize::MAX, (0..wiring.len()).collect()),
            Credits::SharedStream => (1, wiring.pairs()),
        };
        Self {
            facts,
            credits,
            schedule,
            order: options.order,
            limit,
            lanes: lanes.collect(),
            channels: (0..wiring.len()).map(|_| ChannelState::default()).collect(),
            streams: (0..wiring.len()).map(|_| VecDeque::new()).collect(),
            stream_of,
            dependents: vec![Vec::new(); plans.len()],
            ready: Ready::new(schedule),
            stages: Stages::of_all(groups, options.stage_depth),
            cells: if options.values { plans.iter().map(Cells::new).collect() } else { Vec::new() },
        }
    }

    /// Runs to the end and judges the outcome.
    pub(crate) fn finish(mut self, expressions: &mut Expressions) -> Result<(), Violation> {
        let until_stuck = matches!(self.schedule, Schedule::LowestRank | Schedule::HighestRank);
        for lane in 0..self.lanes.len() {
            self.wake(lane);
        }
        while let Some(lane) = self.ready.pop() {
            self.lanes[lane].queued = false;
            while let Outcome::Went = self.step(lane)? {
                if !until_stuck {
                    self.wake(lane);
                    break;
                }
            }
        }
        let stuck: Vec<&LaneState> =
            self.lanes.iter().filter(|lane| usize::from(lane.next) < self.body(lane).len()).collect();
        if let Some(first) = stuck.first() {
            let at = StepRef { lane: first.lane, step: first.next };
            return Err(Violation::Deadlock {
                at: Place::of(&self.facts.plans[first.rank], at),
                stuck: stuck.len(),
                credits: self.credits,
                schedule: self.schedule,
            });
        }
        if self.cells.is_empty() { Ok(()) } else { self.judge(expressions) }
    }

    fn body(&self, lane: &LaneState) -> &'a [crate::plan::Step] {
        &self.facts.plans[lane.rank].lanes[usize::from(lane.lane)]
    }

    fn channel(&self, lane: usize, step: u16) -> usize {
        self.facts.wiring.of_step(self.facts.lengths.index(lane, step)).expect("the step sends or receives")
    }

    pub(super) fn wake(&mut self, lane: usize) {
        if !self.lanes[lane].queued {
            self.lanes[lane].queued = true;
            self.ready.push(lane);
        }
    }

    /// Runs the next step of a lane, if it can go on.
    fn step(&mut self, lane: usize) -> Result<Outcome, Violation> {
        let state = &self.lanes[lane];
        let (rank, next) = (state.rank, state.next);
        let Some(step) = self.body(state).get(usize::from(next)) else { return Ok(Outcome::Stuck) };
        if let Some(after) = step.after {
            let other = self.facts.lengths.first_lane[rank] + usize::from(after.lane);
            if self.lanes[other].next <= after.step {
                self.dependents[rank].push(lane);
                return Ok(Outcome::Stuck);
            }
            let heard = self.lanes[other].heard.clone();
            self.lanes[lane].heard.add(&heard);
        }
        if step.fence && self.lanes[lane].outstanding > 0 {
            return Ok(Outcome::Stuck);
        }
        let len = self.facts.lengths.lens[self.facts.lengths.index(lane, next)];
        if len > 0 && !self.act(lane, rank, next, &step.action)? {
            return Ok(Outcome::Stuck);
        }
        self.lanes[lane].next += 1;
        for dependent in std::mem::take(&mut self.dependents[rank]) {
            self.wake(dependent);
        }
        Ok(Outcome::Went)
    }

    /// Performs a step; returns `false` if it has to wait for a message.
    fn act(&mut self, lane: usize, rank: usize, step: u16, action: &Action) -> Result<bool, Violation> {
        let (plans, at) = (self.facts.plans, StepRef { lane: self.lanes[lane].lane, step });
        let place = || Place::of(&plans[rank], at);
        match *action {
            Action::Send { .. } | Action::Signal { .. } => {
                let channel = self.channel(lane, step);
                self.lanes[lane].outstanding += 1;
                let stream = self.stream_of[channel];
                let heard = self.lanes[lane].heard.clone();
                self.streams[stream].push_back(Message { channel, lane, step, payload: Vec::new(), heard });
                self.pump(stream)?;
            }
            Action::Recv { .. } | Action::RecvReduce { .. } | Action::WaitSignal { .. } => {
                let channel = self.channel(lane, step);
                if self.channels[channel].arrived.is_empty() {
                    self.channels[channel].waiting = Some(lane);
                    self.pump(self.stream_of[channel])?;
                }
                let Some(message) = self.channels[channel].arrived.pop_front() else { return Ok(false) };
                self.channels[channel].waiting = None;
                self.pump(self.stream_of[channel])?;
                self.lanes[lane].heard.add(&message.heard);
                if !self.cells.is_empty() {
                    self.take(rank, lane, step, action, message)?;
                }
            }
            Action::Copy { src, dst } if !self.cells.is_empty() => {
                let values = self.read(rank, src).ok_or_else(|| Violation::Undefined { at: place() })?;
                if !self.write(rank, dst, &values) {
                    return Err(Violation::Lengths { at: place(), sender: place() });
                }
            }
            Action::Reduce { a, b, dst } if !self.cells.is_empty() => {
                let undefined = || Violation::Undefined { at: place() };
                let left = self.read(rank, a).ok_or_else(undefined)?;
                let right = self.read(rank, b).ok_or_else(undefined)?;
                let sum = combine(&left, &right);
                if !sum.is_some_and(|sum| self.write(rank, dst, &sum)) {
                    return Err(Violation::Lengths { at: place(), sender: place() });
                }
            }
            Action::Fold { of, first, count, own, dst } if !self.cells.is_empty() => {
                let sum = self.fold(rank, of, (first, count), own, &place)?;
                if !sum.is_some_and(|sum| self.write(rank, dst, &sum)) {
                    return Err(Violation::Lengths { at: place(), sender: place() });
                }
            }
            Action::Spread { of, first, count, to, at } if !self.cells.is_empty() => {
                self.spread(rank, of, (first, count), (to, at), &place)?;
            }
            Action::Copy { .. } | Action::Reduce { .. } | Action::Fold { .. } | Action::Spread { .. } => {}
            Action::Publish { .. } => return self.publish(rank, lane, action, &place),
            Action::Await { of } => {
                let (group, member) = self.member(rank);
                if !self.stages[group].have_published(of, member, lane) {
                    return Ok(false);
                }
                self.stages[group].hear(of, member, &mut self.lanes[lane].heard);
            }
        }
        Ok(true)
    }

    /// Delivers a message to the step that receives it.
    fn take(
        &mut self,
        rank: usize,
        lane: usize,
        step: u16,
        action: &Action,
        message: Message,
    ) -> Result<(), Violation> {
        let at = || place_of(self.facts.plans, rank, &self.lanes[lane], step);
        let landed = match *action {
            Action::Recv { dst, .. } => {
                self.fits(rank, dst, &message.payload).then_some((dst, message.payload))
            }
            Action::RecvReduce { with, dst, .. } => {
                let own = self.read(rank, with).ok_or_else(|| Violation::Undefined { at: at() })?;
                combine(&own, &message.payload).filter(|sum| self.fits(rank, dst, sum)).map(|sum| (dst, sum))
            }
            _ => return Ok(()),
        };
        let Some((dst, values)) = landed else {
            let from = &self.lanes[message.lane];
            return Err(Violation::Lengths {
                at: at(),
                sender: place_of(self.facts.plans, from.rank, from, message.step),
            });
        };
        self.write(rank, dst, &values);
        Ok(())
    }

    /// Delivers messages that have a credit, or that a lane waits for.
    fn pump(&mut self, stream: usize) -> Result<(), Violation> {
        while let Some(head) = self.streams[stream].front() {
            let channel = &self.channels[head.channel];
            let wanted = channel.waiting.is_some() && channel.arrived.is_empty();
            if channel.arrived.len() >= self.limit && !wanted {
                break;
            }
            let mut message = self.streams[stream].pop_front().expect("looked at above");
            // The source is read as late as possible, so that a write that should have waited for the read is
            // found.
            let from = &self.lanes[message.lane];
            let (rank, step) = (from.rank, message.step);
            if let (false, Action::Send { src, .. }) =
                (self.cells.is_empty(), self.body(from)[usize::from(step)].action)
            {
                message.payload = self.read(rank, src).ok_or_else(|| Violation::Undefined {
                    at: place_of(self.facts.plans, rank, from, step),
                })?;
            }
            let sender = message.lane;
            self.lanes[sender].outstanding -= 1;
            if self.lanes[sender].outstanding == 0 {
                self.wake(sender);
            }
            let channel = &mut self.channels[message.channel];
            let waiting = channel.waiting;
            channel.arrived.push_back(message);
            if let Some(receiver) = waiting {
                self.wake(receiver);
            }
        }
        Ok(())
    }

    /// Returns sizes and values of the blocks that are not empty; `None` if one of them was never written.
    pub(super) fn read(&self, rank: usize, blocks: Blocks) -> Option<Payload> {
        let mut payload = Vec::with_capacity(blocks.count as usize);
        for block in blocks.first..blocks.end() {
            let size = self.facts.layouts[rank].size(blocks.space, block, self.facts.segment);
            if size.len > 0 {
                let value = match blocks.space {
                    Space::Stage(owner) => {
                        let (group, me) = self.member(rank);
                        self.stages[group].read(me, usize::from(owner), block)?
                    }
                    Space::Window(owner) => {
                        let (group, _) = self.member(rank);
                        let owner = self.facts.groups.members[group].get(usize::from(owner))?;
                        self.cells[*owner as usize].contributed(block)?
                    }
                    space => self.cells[rank].read(space, block)?,
                };
                payload.push((size, value));
            }
        }
        Some(payload)
    }

    fn fits(&self, rank: usize, blocks: Blocks, payload: &Payload) -> bool {
        let sizes = (blocks.first..blocks.end())
            .map(|block| self.facts.layouts[rank].size(blocks.space, block, self.facts.segment))
            .filter(|size| size.len > 0);
        sizes.eq(payload.iter().map(|(size, _)| *size))
    }

    /// Writes the blocks that are not empty. Returns `false`, and writes nothing, if the lengths differ.
    pub(super) fn write(&mut self, rank: usize, blocks: Blocks, payload: &Payload) -> bool {
        if !self.fits(rank, blocks, payload) {
            return false;
        }
        let (layout, cells) = (&self.facts.layouts[rank], &mut self.cells[rank]);
        let blocks_with_elements = (blocks.first..blocks.end())
            .filter(|block| layout.block(blocks.space, *block, self.facts.segment).len > 0);
        for (block, (_, value)) in blocks_with_elements.zip(payload) {
            cells.write(blocks.space, block, *value);
        }
        true
    }
}

fn place_of(plans: &[Plan], rank: usize, lane: &LaneState, step: u16) -> Place {
    Place::of(&plans[rank], StepRef { lane: lane.lane, step })
}

pub(super) fn combine(left: &Payload, right: &Payload) -> Option<Payload> {
    let same = left.len() == right.len() && left.iter().zip(right).all(|(a, b)| a.0 == b.0);
    same.then(|| left.iter().zip(right).map(|(a, b)| (a.0, a.1.plus(b.1))).collect())
}
