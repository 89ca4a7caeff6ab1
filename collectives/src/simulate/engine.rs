//! The event loop of the simulator.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::check::stage::Groups;
use crate::layout::Layout;
use crate::model::{LinkClass, Model};
use crate::plan::{Action, Plan, Step, StepRef};

use super::memory::Memory;
use super::processor::{Claim, Processor};
use super::stages::{Ready, Stages};
use super::state::{
    Arrival, Compiled, Departure, Event, Here, Host, Instance, Lane, Message, Rank, Record, Span, Timed,
};
use super::work::Work;
use super::{Cluster, Timing, Traffic};

/// Returns the channel of a step, in a dense numbering; steps are counted over all ranks.
type Channels<'a> = &'a dyn Fn(usize, &Action) -> Option<usize>;

pub(super) struct Engine<'a> {
    pub(super) plans: &'a [Plan],
    pub(super) layouts: &'a [Layout],
    pub(super) cluster: &'a Cluster,
    pub(super) window: usize,
    pub(super) programs: Vec<Vec<Vec<Compiled>>>,
    pub(super) ranks: Vec<Rank>,
    pub(super) memory: Memory,
    pub(super) stages: Stages,
    processors: Vec<Processor>,
    processors_per_host: u32,
    /// Factor by which work takes longer because of ranks that are not simulated.
    pub(super) slower: f64,
    hosts: Vec<Host>,
    /// Messages, and the lane that waits for one, by slot and channel.
    queues: Vec<Vec<VecDeque<Message>>>,
    waiting: Vec<Vec<Option<(u32, u16)>>>,
    pub(super) records: Vec<Record>,
    events: BinaryHeap<Reverse<Timed>>,
    order: u64,
    pub(super) intra: Traffic,
    pub(super) inter: Traffic,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        plans: &'a [Plan],
        layouts: &'a [Layout],
        cluster: &'a Cluster,
        channels: usize,
        channel_of: Channels<'_>,
        groups: Groups,
    ) -> Self {
        let window = cluster.window.max(1);
        let symmetric = plans.len() == 1;
        let mut number = 0;
        let mut compile = |rank: usize, step: &Step| {
            let peer = step.action.sends_to().map_or(0, |to| to.peer);
            // A single simulated rank sends to itself, as if to another host.
            let inter = symmetric || cluster.host(peer) != cluster.host(rank as u32);
            let channel = channel_of(number, &step.action).map_or(u32::MAX, |channel| channel as u32);
            number += 1;
            Compiled { step: *step, channel, peer: if symmetric { 0 } else { peer }, inter }
        };
        let mut programs = Vec::with_capacity(plans.len());
        for (rank, plan) in plans.iter().enumerate() {
            let mut lanes = Vec::with_capacity(plan.lanes.len());
            for lane in &plan.lanes {
                lanes.push(lane.iter().map(|step| compile(rank, step)).collect());
            }
            programs.push(lanes);
        }
        let (processors_per_host, slower) = sharing(cluster);
        let each = (0..).zip(plans.iter().zip(layouts));
        let ranks =
            each.map(|(rank, (plan, layout))| Rank::new(rank, plan, layout, cluster, processors_per_host));
        let hosts = cluster.hosts.max(1) as usize;
        let shared_by = |number: u32| (cluster.ranks_per_host - number).div_ceil(processors_per_host);
        let of_host = (0..processors_per_host).map(|number| Processor::new(shared_by(number) as usize));
        let of_host: Vec<_> = of_host.collect();
        Self {
            plans,
            layouts,
            cluster,
            window,
            programs,
            ranks: ranks.collect(),
            memory: Memory::new(plans, layouts, cluster),
            stages: Stages::new(groups, window),
            processors: vec![of_host; hosts].concat(),
            processors_per_host,
            slower,
            hosts: vec![Host { out: 0.0, inward: 0.0, memory: 0.0 }; hosts],
            queues: vec![vec![VecDeque::new(); channels]; window],
            waiting: vec![vec![None; channels]; window],
            records: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            intra: Traffic::default(),
            inter: Traffic::default(),
        }
    }

    pub(super) fn run(mut self) -> Timing {
        for rank in 0..self.ranks.len() {
            let late = self.cluster.stragglers.iter().filter(|late| late.rank as usize == rank);
            let late = late.map(|late| late.delay_seconds).fold(0.0, f64::max);
            let start = self.cluster.model.call_seconds + late;
            self.ranks[rank].finished = start;
            self.begin_call(rank, start);
        }
        while let Some(Reverse(Timed { at, event, .. })) = self.events.pop() {
            match event {
                Event::Lane(here) => self.wake(here, at),
                Event::Turn { processor } => self.turn(processor, at),
                Event::Depart(departure) => self.depart(departure, at),
                Event::Arrive(arrival) => self.land(arrival, at),
            }
        }
        self.report()
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.order += 1;
        let last = if matches!(event, Event::Turn { .. }) { 1 << 63 } else { 0 };
        self.events.push(Reverse(Timed { at, order: last | self.order, event }));
    }

    /// Lets a lane go on if it can, in the turn of its rank.
    fn wake(&mut self, here: Here, at: f64) {
        let Rank { processor, place, .. } = self.ranks[here.rank];
        let switch = self.cluster.model.switch_seconds;
        match self.processors[processor].claim(place, (here.slot, here.lane), at, switch) {
            Claim::Now => self.advance(here, at),
            Claim::At(later) => self.schedule(later, Event::Lane(here)),
            Claim::Queued(None) => {}
            Claim::Queued(Some(free)) => self.schedule(free, Event::Turn { processor: processor as u32 }),
        }
    }

    fn turn(&mut self, processor: u32, at: f64) {
        let switch = self.cluster.model.switch_seconds;
        let (place, lanes, free, again) = self.processors[processor as usize].turn(at, switch);
        let per_host = self.processors_per_host;
        let first = processor / per_host * self.cluster.ranks_per_host + processor % per_host;
        let rank = (first + place as u32 * per_host) as usize;
        for (slot, lane) in lanes {
            self.schedule(free, Event::Lane(Here { rank, slot, lane }));
        }
        if let Some(again) = again {
            self.schedule(again, Event::Turn { processor });
        }
    }

    /// Starts a rank's next call.
    fn begin_call(&mut self, rank: usize, at: f64) {
        let state = &mut self.ranks[rank];
        state.calls -= 1;
        state.instances.clear();
        for slot in 0..self.window {
            self.begin(rank, slot, at);
        }
    }

    /// Ends a segment; the rank goes on with its next one.
    fn go_on(&mut self, rank: usize, slot: usize, at: f64) {
        self.ranks[rank].under_way -= 1;
        self.begin(rank, slot, at);
        let state = &self.ranks[rank];
        if state.under_way == 0 && state.calls > 0 {
            let processor = &mut self.processors[state.processor];
            processor.free = processor.free.max(at) + self.cluster.model.call_seconds * self.slower;
            let at = processor.free;
            self.begin_call(rank, at);
        }
    }

    /// Starts the next segment of a slot: on all ranks, slot i runs segments i, i + window, ...
    fn begin(&mut self, rank: usize, slot: usize, at: f64) {
        let lanes = self.programs[rank].len();
        let state = &mut self.ranks[rank];
        let segment = state.instances.get(slot).map_or(slot, |previous| previous.segment + self.window);
        if segment >= state.segments {
            return;
        }
        let tracked = state.has_after;
        let lane = |lane: usize| Lane {
            done: if tracked {
                vec![(f64::INFINITY, 0); self.programs[rank][lane].len()]
            } else {
                Vec::new()
            },
            last: state.last_record,
            ..Lane::default()
        };
        let instance = Instance { segment, lanes: (0..lanes).map(lane).collect(), unfinished: lanes };
        if slot < state.instances.len() {
            state.instances[slot] = instance;
        } else {
            state.instances.push(instance);
        }
        state.under_way += 1;
        let further = f64::from(self.plans[rank].channels.saturating_sub(1));
        let more = further * self.cluster.model.channel_seconds * self.slower;
        let at = if more > 0.0 {
            let processor = &mut self.processors[state.processor];
            processor.free = processor.free.max(at) + more;
            processor.free
        } else {
            at
        };
        for lane in 0..lanes {
            self.schedule(at, Event::Lane(Here { rank, slot: slot as u16, lane: lane as u16 }));
        }
    }

    /// Ends a lane whose steps are all done, as soon as its sends have been read.
    fn end_lane(&mut self, here: Here, at: f64) {
        let Here { rank, slot, lane } = here;
        let instance = &mut self.ranks[rank].instances[usize::from(slot)];
        let Lane { read_out, last, .. } = instance.lanes[usize::from(lane)];
        if read_out > at {
            return self.schedule(read_out, Event::Lane(here));
        }
        instance.unfinished -= 1;
        let all = instance.unfinished == 0;
        let state = &mut self.ranks[rank];
        if at >= state.finished {
            state.finished = at;
            state.last_record = last;
        }
        if all {
            self.go_on(rank, usize::from(slot), at);
        }
    }

    /// Runs the next step of a lane, if the step can begin at time `at`.
    fn advance(&mut self, here: Here, at: f64) {
        let Here { rank, slot, lane } = here;
        if at >= self.ranks[rank].dies {
            return;
        }
        let instance = &self.ranks[rank].instances[usize::from(slot)];
        let (segment, number) = (instance.segment, instance.lanes[usize::from(lane)].next);
        let program = &self.programs[rank][usize::from(lane)];
        let Some(compiled) = program.get(usize::from(number)).copied() else {
            return self.end_lane(here, at);
        };
        let Some(mut cause) = self.may_begin(here, &compiled, at) else { return };
        let bytes = self.bytes(rank, &compiled.step.action, segment);
        let receives = match compiled.step.action {
            Action::Recv { .. } | Action::RecvReduce { .. } => bytes > 0.0,
            Action::WaitSignal { .. } => true,
            _ => false,
        };
        let mut arrived = 0.0;
        if receives {
            let Some(message) = self.take_message(here, compiled.channel as usize, at) else { return };
            cause = self.later(cause, message.arrived, Some(message.record));
            arrived = message.arrived;
        }
        let work = self.work(here, number, &compiled, bytes, arrived);
        let span = self.occupy(rank, &work, at, &mut cause);
        self.end_step(here, &compiled, bytes, span, cause);
    }

    /// Returns the record of the step for which this one has waited last, if any. `None` if it cannot begin yet: its
    /// lane is woken later.
    fn may_begin(&mut self, here: Here, compiled: &Compiled, at: f64) -> Option<Option<u32>> {
        let Here { rank, slot, lane } = here;
        let lanes = &mut self.ranks[rank].instances[usize::from(slot)].lanes;
        let Lane { last: mut cause, read_out, .. } = lanes[usize::from(lane)];
        if let Some(after) = compiled.step.after {
            let (done, record) = lanes[usize::from(after.lane)].done[usize::from(after.step)];
            if done > at {
                // Once the step has begun, its end is known and no event will announce it.
                if done.is_finite() {
                    self.schedule(done, Event::Lane(here));
                } else {
                    lanes[usize::from(lane)].waiting_after = true;
                }
                return None;
            }
            cause = self.later(cause, done, Some(record));
        }
        if compiled.step.fence && read_out > at {
            self.schedule(read_out, Event::Lane(here));
            return None;
        }
        let latency = self.stage_latency();
        let ready = match compiled.step.action {
            Action::Publish { .. } => self.stages.may_publish(rank, lane, usize::from(slot), latency),
            Action::Await { of } => self.stages.have_published(of, (rank, lane), usize::from(slot), latency),
            _ => return Some(cause),
        };
        match ready {
            Ready::Later => None,
            Ready::At(ready, _) if ready > at => {
                self.schedule(ready, Event::Lane(here));
                None
            }
            Ready::At(ready, record) => Some(self.later(cause, ready, record)),
        }
    }

    /// Returns the later of two causes; `record` is of something that was over at `at`.
    fn later(&self, cause: Option<u32>, at: f64, record: Option<u32>) -> Option<u32> {
        let own = cause.map_or(0.0, |own| self.records[own as usize].at);
        if at >= own { record.or(cause) } else { cause }
    }

    /// Returns the time after which a member sees what another one has published.
    fn stage_latency(&self) -> f64 {
        let model = &self.cluster.model;
        model.intra.latency_seconds + (self.slower - 1.0) * model.switch_seconds
    }

    /// Takes the next message of a channel. If it is not there yet, its lane is woken later.
    fn take_message(&mut self, here: Here, channel: usize, at: f64) -> Option<Message> {
        let slot = usize::from(here.slot);
        let Some(message) = self.queues[slot][channel].front().copied() else {
            self.waiting[slot][channel] = Some((here.rank as u32, here.lane));
            return None;
        };
        if message.begins > at {
            self.schedule(message.begins, Event::Lane(here));
            return None;
        }
        self.queues[slot][channel].pop_front();
        Some(message)
    }

    /// Lets a step work as soon as its processor is free.
    fn occupy(&mut self, rank: usize, work: &Work, at: f64, cause: &mut Option<u32>) -> Span {
        let state = &self.ranks[rank];
        let processor = &mut self.processors[state.processor];
        let start = processor.free.max(at);
        let begin = start + work.opening;
        let mut last_byte = work.last_byte;
        if work.on_bus > 0.0 {
            let host = &mut self.hosts[state.host];
            host.memory = host.memory.max(start) + work.on_bus;
            last_byte = host.memory;
        }
        if work.seconds <= 0.0 {
            return Span { begin, end: at };
        }
        if processor.free > at {
            *cause = processor.record.or(*cause);
        }
        processor.free = start + work.seconds;
        // The step's record comes next.
        processor.record = Some(self.records.len() as u32);
        Span { begin, end: processor.free.max(last_byte) }
    }

    /// Records a step, and wakes those that wait for its end.
    fn end_step(&mut self, here: Here, compiled: &Compiled, bytes: f64, span: Span, cause: Option<u32>) {
        let (Here { rank, slot, lane }, done) = (here, span.end);
        let (slot_index, lane_index) = (usize::from(slot), usize::from(lane));
        let instance = &self.ranks[rank].instances[slot_index];
        let step = StepRef { lane, step: instance.lanes[lane_index].next };
        let (record, segment) = (self.records.len() as u32, instance.segment as u32);
        self.records.push(Record { rank: rank as u32, segment, step, at: done, cause });
        if let Action::Publish { .. } = compiled.step.action {
            let latency = self.stage_latency();
            for (rank, lane) in self.stages.publish(rank, slot_index, done, record) {
                self.schedule(done + latency, Event::Lane(Here { rank: rank as usize, slot, lane }));
            }
        }
        let sends = matches!(compiled.step.action, Action::Send { .. }) && bytes > 0.0
            || matches!(compiled.step.action, Action::Signal { .. });
        let read_out = if sends { self.post(here, step, compiled, bytes, span, record) } else { 0.0 };
        let lanes = &mut self.ranks[rank].instances[slot_index].lanes;
        let state = &mut lanes[lane_index];
        state.read_out = state.read_out.max(read_out);
        state.last = Some(record);
        state.next += 1;
        if !state.done.is_empty() {
            state.done[usize::from(step.step)] = (done, record);
            for other in 0..lanes.len() {
                if std::mem::take(&mut self.ranks[rank].instances[slot_index].lanes[other].waiting_after) {
                    self.schedule(done, Event::Lane(Here { lane: other as u16, ..here }));
                }
            }
        }
        self.schedule(done, Event::Lane(here));
    }

    /// Queues a message for the sender's link, which may begin while the sender's processor still works. Returns the time
    /// at which the link has read the message if nothing else is in the way.
    fn post(
        &mut self,
        here: Here,
        step: StepRef,
        compiled: &Compiled,
        bytes: f64,
        span: Span,
        record: u32,
    ) -> f64 {
        let Here { rank, slot, .. } = here;
        let link_seconds = self.link_seconds(rank, step, compiled.inter, bytes);
        let traffic = if compiled.inter { &mut self.inter } else { &mut self.intra };
        traffic.messages += 1;
        traffic.bytes += bytes as u64;
        let state = &mut self.ranks[rank];
        let start = state.link_out.max(span.begin);
        state.link_out = start + link_seconds;
        let read_out = state.link_out.max(span.end);
        let departure = Departure { rank: rank as u32, slot, step, bytes, sent: span.end, record };
        self.schedule(start, Event::Depart(departure));
        read_out
    }

    /// Returns the time that a message occupies a link.
    fn link_seconds(&self, rank: usize, step: StepRef, inter: bool, bytes: f64) -> f64 {
        if inter {
            let compiled = &self.programs[rank][usize::from(step.lane)][usize::from(step.step)];
            let to = self.cluster.host(compiled.peer);
            return bytes / self.cluster.link_rate(self.ranks[rank].host as u32, to);
        }
        let rate = |model: &Model| model.intra.bytes_per_second;
        bytes * self.memory.seconds_per_byte((rank, step.lane, step.step), rate)
    }

    /// Takes a message through the resources that the ranks of its host share, and sends it on its way.
    fn depart(&mut self, departure: Departure, at: f64) {
        let Departure { rank, slot, step, bytes, sent, record } = departure;
        let rank = rank as usize;
        let compiled = self.programs[rank][usize::from(step.lane)][usize::from(step.step)];
        let model = &self.cluster.model;
        let class: &LinkClass = if compiled.inter { &model.inter } else { &model.intra };
        let latency = class.latency_seconds + (self.slower - 1.0) * model.switch_seconds;
        let link_seconds = self.link_seconds(rank, step, compiled.inter, bytes);
        let bus = |model: &Model| model.memory_bytes_per_second;
        let bus_seconds = bytes * self.memory.seconds_per_byte((rank, step.lane, step.step), bus);
        let state = &mut self.ranks[rank];
        let host = &mut self.hosts[state.host];
        let mut left = (at + link_seconds).max(sent);
        if compiled.inter {
            host.out = host.out.max(at) + self.cluster.seconds_out(state.host, bytes);
            left = left.max(host.out);
        } else {
            // The sender writes the bytes, and the receiver reads them.
            host.memory = host.memory.max(at) + 2.0 * bus_seconds;
            left = left.max(host.memory);
        }
        // The lane still exists: it cannot end before its link has read this message.
        let lane = &mut state.instances[usize::from(slot)].lanes[usize::from(step.lane)];
        lane.read_out = lane.read_out.max(left);
        let arrival = Arrival {
            rank: compiled.peer,
            slot,
            channel: compiled.channel,
            bytes,
            inter: compiled.inter,
            link_seconds,
            left: left + latency,
            record,
        };
        self.schedule(at + latency, Event::Arrive(arrival));
    }

    /// Takes a message through the receiver's side.
    fn land(&mut self, arrival: Arrival, at: f64) {
        let Arrival { rank, slot, channel, bytes, inter, link_seconds, left, record } = arrival;
        let state = &mut self.ranks[rank as usize];
        state.link_in = state.link_in.max(at) + link_seconds;
        let mut arrived = left.max(state.link_in);
        if inter {
            let host = &mut self.hosts[state.host];
            host.inward = host.inward.max(at) + self.cluster.seconds_in(state.host, bytes);
            arrived = arrived.max(host.inward);
        }
        let queue = &mut self.queues[usize::from(slot)][channel as usize];
        // A channel is a FIFO, whatever paths its messages take.
        let arrived = queue.back().map_or(arrived, |last| last.arrived.max(arrived));
        // From another host a message arrives without the processor; inside a host the receiver's processor moves it as
        // it arrives.
        let begins = if inter { arrived } else { queue.back().map_or(at, |last| last.begins.max(at)) };
        queue.push_back(Message { begins, arrived, record });
        if let Some((rank, lane)) = self.waiting[usize::from(slot)][channel as usize].take() {
            self.schedule(begins, Event::Lane(Here { rank: rank as usize, slot, lane }));
        }
    }
}

/// Returns the number of a host's processors for its ranks, and the factor by which ranks that are not simulated slow
/// work down.
fn sharing(cluster: &Cluster) -> (u32, f64) {
    let ranks = cluster.ranks_per_host.max(1);
    let per_processor = cluster.model.oversubscription.max(1.0);
    let processors = (f64::from(ranks) / per_processor).ceil().max(1.0) as u32;
    (processors, (per_processor / f64::from(ranks)).max(1.0))
}
