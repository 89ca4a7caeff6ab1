//! The event loop of the simulator.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::check::stage::Groups;
use crate::layout::Layout;
use crate::model::{LinkClass, Model};
use crate::plan::{Action, Blocks, Plan, Space, Step, StepRef};

use super::memory::Memory;
use super::processor::{Claim, Processor};
use super::stages::{Ready, Stages};
use super::state::{Compiled, Event, Host, Instance, Lane, Message, Rank, Record, Timed};
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
    memory: Memory,
    pub(super) stages: Stages,
    processors: Vec<Processor>,
    processors_per_host: u32,
    /// Factor by which work takes longer because of ranks that are not simulated.
    slower: f64,
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
        let ranks = plans.iter().zip(layouts).enumerate().map(|(rank, (plan, layout))| Rank {
            host: cluster.host(rank as u32) as usize,
            processor: (cluster.host(rank as u32) * processors_per_host
                + cluster.place(rank as u32) % processors_per_host) as usize,
            place: (cluster.place(rank as u32) / processors_per_host) as usize,
            link_out: 0.0,
            link_in: 0.0,
            instances: Vec::new(),
            calls: cluster.calls.max(1),
            under_way: 0,
            segments: if plan.lanes.is_empty() { 0 } else { layout.segments() },
            finished: 0.0,
            last_record: None,
            dies: cluster
                .killed
                .filter(|killed| killed.rank as usize == rank)
                .map_or(f64::INFINITY, |killed| killed.at_seconds),
            has_after: plan.lanes.iter().any(|lane| lane.iter().any(|step| step.after.is_some())),
        });
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
                Event::Lane { rank, slot, lane } => self.wake(rank as usize, slot, lane, at),
                Event::Turn { processor } => self.turn(processor, at),
                Event::Depart { rank, slot, lane, step, bytes, sent, record } => {
                    self.depart(rank as usize, slot, StepRef { lane, step }, (bytes, sent), at, record);
                }
                Event::Head { rank, slot, channel, bytes, inter, link_seconds, left, record } => {
                    let message = (bytes, inter, link_seconds, left);
                    self.land(rank as usize, slot, channel as usize, message, record, at);
                }
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
    fn wake(&mut self, rank: usize, slot: u16, lane: u16, at: f64) {
        let Rank { processor, place, .. } = self.ranks[rank];
        let switch = self.cluster.model.switch_seconds;
        match self.processors[processor].claim(place, (slot, lane), at, switch) {
            Claim::Now => self.advance(rank, slot, lane, at),
            Claim::At(later) => self.schedule(later, Event::Lane { rank: rank as u32, slot, lane }),
            Claim::Queued(None) => {}
            Claim::Queued(Some(free)) => self.schedule(free, Event::Turn { processor: processor as u32 }),
        }
    }

    fn turn(&mut self, processor: u32, at: f64) {
        let switch = self.cluster.model.switch_seconds;
        let (place, lanes, free, again) = self.processors[processor as usize].turn(at, switch);
        let per_host = self.processors_per_host;
        let rank = processor / per_host * self.cluster.ranks_per_host
            + processor % per_host
            + place as u32 * per_host;
        for (slot, lane) in lanes {
            self.schedule(free, Event::Lane { rank, slot, lane });
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
            self.schedule(at, Event::Lane { rank: rank as u32, slot: slot as u16, lane: lane as u16 });
        }
    }

    /// Ends a lane whose steps are all done, as soon as its sends have been read.
    fn end_lane(&mut self, (rank, slot, lane): (usize, u16, u16), at: f64) {
        let instance = &mut self.ranks[rank].instances[usize::from(slot)];
        let Lane { read_out, last, .. } = instance.lanes[usize::from(lane)];
        if read_out > at {
            return self.schedule(read_out, Event::Lane { rank: rank as u32, slot, lane });
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

    /// Runs a lane from time `at` on, until it has to wait for a later event.
    fn advance(&mut self, rank: usize, slot: u16, lane: u16, at: f64) {
        let slot_index = usize::from(slot);
        if at >= self.ranks[rank].dies {
            return;
        }
        let this = Event::Lane { rank: rank as u32, slot, lane };
        let instance = &mut self.ranks[rank].instances[slot_index];
        let segment = instance.segment;
        let state = &mut instance.lanes[usize::from(lane)];
        let program = &self.programs[rank][usize::from(lane)];
        let Some(compiled) = program.get(usize::from(state.next)).copied() else {
            return self.end_lane((rank, slot, lane), at);
        };
        let mut cause = state.last;
        if let Some(after) = compiled.step.after {
            let (done, record) = instance.lanes[usize::from(after.lane)].done[usize::from(after.step)];
            if done > at {
                // Once the step has begun, its end is known and no event will announce it.
                if done.is_finite() {
                    self.schedule(done, this);
                } else {
                    instance.lanes[usize::from(lane)].waiting_after = true;
                }
                return;
            }
            let own = instance.lanes[usize::from(lane)].last.map_or(0.0, |own| self.records[own as usize].at);
            if done >= own {
                cause = Some(record);
            }
        }
        let state = &mut self.ranks[rank].instances[slot_index].lanes[usize::from(lane)];
        if compiled.step.fence && state.read_out > at {
            let read_out = state.read_out;
            self.schedule(read_out, this);
            return;
        }
        let bytes = self.bytes(rank, &compiled.step.action, segment);
        let model = &self.cluster.model;
        let slower = self.slower;
        let class = if compiled.inter { &model.inter } else { &model.intra };
        let number = self.ranks[rank].instances[slot_index].lanes[usize::from(lane)].next;
        let memory =
            |rate: fn(&Model) -> f64| bytes * self.memory.seconds_per_byte((rank, lane, number), rate);
        let moved = |inter: bool| if inter { 0.0 } else { memory(|model| model.move_bytes_per_second) };
        let (mut work, mut opening, mut last_byte) = (0.0, 0.0, 0.0);
        // Number of times that a step moves its bytes to or from a stage.
        let mut staged = 0.0;
        let latency = model.intra.latency_seconds + (slower - 1.0) * model.switch_seconds;
        let ready = match compiled.step.action {
            Action::Publish { .. } => self.stages.may_publish(rank, lane, slot_index, latency),
            Action::Await { of } => self.stages.have_published(of, (rank, lane), slot_index, latency),
            _ => Ready::At(0.0, None),
        };
        match ready {
            Ready::Later => return,
            Ready::At(ready, _) if ready > at => {
                self.schedule(ready, this);
                return;
            }
            Ready::At(ready, record) => {
                let own = cause.map_or(0.0, |own| self.records[own as usize].at);
                cause = if ready >= own { record.or(cause) } else { cause };
            }
        }
        match compiled.step.action {
            // Both ends skip messages of no bytes.
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } if bytes == 0.0 => {}
            Action::Send { .. } | Action::Signal { .. } => {
                opening = class.overhead_seconds * slower;
                work = class.overhead_seconds + moved(compiled.inter);
            }
            Action::Copy { src, .. } if src.space.is_shared() => staged = 1.0,
            Action::Copy { .. } => work = memory(|model| model.copy_bytes_per_second),
            Action::Reduce { .. } => work = memory(|model| model.reduce_bytes_per_second),
            Action::Publish { .. } => staged = 1.0,
            Action::Await { of } => {
                work = model.intra.overhead_seconds * self.stages.count(of, rank) as f64;
            }
            Action::Fold { of, .. } => {
                let others = self.stages.count(of, rank) as f64 - 1.0;
                work = others * memory(|model| model.reduce_bytes_per_second);
                staged = others.max(1.0);
            }
            Action::Spread { of, to, .. } => {
                let others = self.stages.count(of, rank) as f64 - 1.0;
                // The reduction itself, if there is one, writes the first of the results.
                let copies = self.stages.count(to, rank) as f64 - others.min(1.0);
                staged = others + copies;
                // A single pass, which reduces while it moves.
                let reduced = others * memory(|model| model.reduce_bytes_per_second);
                work = (reduced - staged * memory(|model| model.move_bytes_per_second)).max(0.0);
            }
            Action::Recv { .. } | Action::RecvReduce { .. } | Action::WaitSignal { .. } => {
                let channel = compiled.channel as usize;
                let Some(message) = self.queues[slot_index][channel].front().copied() else {
                    self.waiting[slot_index][channel] = Some((rank as u32, lane));
                    return;
                };
                if message.begins > at {
                    self.schedule(message.begins, this);
                    return;
                }
                self.queues[slot_index][channel].pop_front();
                let own = cause.map_or(0.0, |own| self.records[own as usize].at);
                if message.arrived >= own {
                    cause = Some(message.record);
                }
                let from = compiled.step.action.receives_from().map_or(0, |from| from.peer);
                let inter =
                    self.plans.len() == 1 || self.cluster.host(from) != self.cluster.host(rank as u32);
                let overhead =
                    if inter { model.inter.overhead_seconds } else { model.intra.overhead_seconds };
                work = overhead + moved(inter);
                last_byte = message.arrived + overhead * slower;
                if matches!(compiled.step.action, Action::RecvReduce { .. }) {
                    work += memory(|model| model.reduce_bytes_per_second);
                }
            }
        }
        // A processor moves the bytes into and out of a stage, over the memory bus.
        work += staged * memory(|model| model.move_bytes_per_second);
        let on_bus = staged * memory(|model| model.memory_bytes_per_second);
        let work = work * slower;
        let rank_state = &mut self.ranks[rank];
        let processor = &mut self.processors[rank_state.processor];
        let start = processor.free.max(at);
        if work > 0.0 {
            if processor.free > at {
                cause = processor.record.or(cause);
            }
            processor.free = start + work;
        }
        if on_bus > 0.0 {
            let host = &mut self.hosts[rank_state.host];
            host.memory = host.memory.max(start) + on_bus;
            last_byte = host.memory;
        }
        let done = if work > 0.0 { (start + work).max(last_byte) } else { at };
        let record = self.records.len() as u32;
        let next = rank_state.instances[slot_index].lanes[usize::from(lane)].next;
        self.records.push(Record {
            rank: rank as u32,
            segment: segment as u32,
            step: StepRef { lane, step: next },
            at: done,
            cause,
        });
        if work > 0.0 {
            processor.record = Some(record);
        }
        if let Action::Publish { .. } = compiled.step.action {
            for (rank, lane) in self.stages.publish(rank, slot_index, done, record) {
                self.schedule(done + latency, Event::Lane { rank, slot, lane });
            }
        }
        let sends = matches!(compiled.step.action, Action::Send { .. }) && bytes > 0.0
            || matches!(compiled.step.action, Action::Signal { .. });
        let mut read_out = 0.0;
        if sends {
            let times = (start + opening, done);
            read_out = self.post(rank, slot, (StepRef { lane, step: next }, times), &compiled, bytes, record);
        }
        let rank_state = &mut self.ranks[rank];
        let instance = &mut rank_state.instances[slot_index];
        let state = &mut instance.lanes[usize::from(lane)];
        state.read_out = state.read_out.max(read_out);
        state.last = Some(record);
        state.next += 1;
        if !state.done.is_empty() {
            state.done[usize::from(next)] = (done, record);
            for other in 0..instance.lanes.len() {
                if std::mem::take(&mut self.ranks[rank].instances[slot_index].lanes[other].waiting_after) {
                    self.schedule(done, Event::Lane { rank: rank as u32, slot, lane: other as u16 });
                }
            }
        }
        self.schedule(done, this);
    }

    fn bytes(&self, rank: usize, action: &Action, segment: usize) -> f64 {
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

    /// Queues a message for the sender's link. The link may begin at the first of the two times while the sender's
    /// processor works until the second. Returns the time at which the link has read the message if nothing else is in
    /// the way.
    fn post(
        &mut self,
        rank: usize,
        slot: u16,
        at: (StepRef, (f64, f64)),
        compiled: &Compiled,
        bytes: f64,
        record: u32,
    ) -> f64 {
        let (step, (at, sent)) = at;
        let link_seconds = self.link_seconds(rank, step, compiled.inter, bytes);
        let traffic = if compiled.inter { &mut self.inter } else { &mut self.intra };
        traffic.messages += 1;
        traffic.bytes += bytes as u64;
        let state = &mut self.ranks[rank];
        let start = state.link_out.max(at);
        state.link_out = start + link_seconds;
        let read_out = state.link_out.max(sent);
        let event =
            Event::Depart { rank: rank as u32, slot, lane: step.lane, step: step.step, bytes, sent, record };
        self.schedule(start, event);
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
    fn depart(
        &mut self,
        rank: usize,
        slot: u16,
        step: StepRef,
        (bytes, sent): (f64, f64),
        at: f64,
        record: u32,
    ) {
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
        let head = Event::Head {
            rank: compiled.peer,
            slot,
            channel: compiled.channel,
            bytes,
            inter: compiled.inter,
            link_seconds,
            left: left + latency,
            record,
        };
        self.schedule(at + latency, head);
    }

    /// Takes a message through the receiver's side; its last byte arrives there at `left`.
    fn land(
        &mut self,
        rank: usize,
        slot: u16,
        channel: usize,
        (bytes, inter, link_seconds, left): (f64, bool, f64, f64),
        record: u32,
        at: f64,
    ) {
        let state = &mut self.ranks[rank];
        state.link_in = state.link_in.max(at) + link_seconds;
        let mut arrived = left.max(state.link_in);
        if inter {
            let host = &mut self.hosts[state.host];
            host.inward = host.inward.max(at) + self.cluster.seconds_in(state.host, bytes);
            arrived = arrived.max(host.inward);
        }
        let queue = &mut self.queues[usize::from(slot)][channel];
        // A channel is a FIFO, whatever paths its messages take.
        let arrived = queue.back().map_or(arrived, |last| last.arrived.max(arrived));
        // From another host a message arrives without the processor; inside a host the receiver's processor moves it as
        // it arrives.
        let begins = if inter { arrived } else { queue.back().map_or(at, |last| last.begins.max(at)) };
        queue.push_back(Message { begins, arrived, record });
        if let Some((rank, lane)) = self.waiting[usize::from(slot)][channel].take() {
            self.schedule(begins, Event::Lane { rank, slot, lane });
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
