//! One operation in flight: a bound plan, its segments and their cursors.
//!
//! # States
//! An operation runs up to `window` segments at a time, each in an *instance* with cursors, scratch and sub-channels of
//! its own: instance i runs segments i, i + window, i + 2 window ... An instance goes on to its next segment when all
//! lanes of the current one are done, sends included; the operation is done when all instances have run out.
//!
//! # Who may touch what
//! The endpoints hold raw pointers into an instance between a post and its completion: to pieces, to the reducer of
//! the lane, to scratch. Rules:
//! 1. `pieces` never reallocates while a segment runs: its capacity is reserved for all steps of a segment.
//! 2. A lane has at most one receive posted; its reducer is in a box of its own and is only touched when none is.
//! 3. Scratch is only reserved between operations.
//! 4. An operation that failed is not reused before the endpoints have been told to abort.

use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::Arc;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Action, Blocks, Channel as PlanChannel, Plan};
use kolo_transport::{Channel, Consumer, Error, Piece, Posted, Sink};

use super::links::Links;
use super::local::{self, Reducer};
use super::memory::{Binding, Buffers, Staging};
use super::token::{Kind, Name};
use crate::reduce::Combine;
use crate::reduce::{divide, scale};
use crate::types::DataType;

/// Everything needed to start an operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) buffers: Buffers,
    pub(crate) data_type: DataType,
    pub(crate) combine: Combine,
    /// Factor of PremulSum.
    pub(crate) premultiply: Option<f64>,
    /// Divisor of Avg.
    pub(crate) divide_by: Option<u32>,
    pub(crate) segment_elements: usize,
    pub(crate) window: usize,
    /// First of the transport channels that this operation may use.
    pub(crate) channel_base: u16,
    pub(crate) tag: u64,
    /// Memory that must live as long as the operation runs.
    pub(crate) keep: Option<Box<dyn Any + Send>>,
}

#[derive(Debug)]
struct LaneState {
    cursor: u32,
    sends_pending: u32,
    receiving: bool,
    reducer: Box<UnsafeCell<Reducer>>,
}

#[derive(Debug)]
struct Instance {
    segment: usize,
    running: bool,
    lanes: Vec<LaneState>,
    pieces: Vec<Piece>,
    scratch: Staging,
}

/// An operation, or the idle shell of one, whose memory is reused.
#[derive(Debug)]
pub(crate) struct Operation {
    slot: u16,
    generation: u16,
    binding: Option<Binding>,
    buffers: Buffers,
    data_type: DataType,
    combine: Combine,
    premultiply: Option<f64>,
    divide_by: Option<u32>,
    channel_base: u16,
    window: u16,
    tag: u64,
    keep: Option<Box<dyn Any + Send>>,
    instances: Vec<Instance>,
    /// Instances that have segments left.
    running: usize,
}

// SAFETY: the raw pointers name the caller's buffers, which by the contract of the posting functions stay valid and
// otherwise untouched while the operation runs, whichever thread drives it.
unsafe impl Send for Operation {}

unsafe fn no_combine(_: *mut u8, _: *const u8, _: *const u8, _: usize) {}

impl Operation {
    pub(crate) fn new(slot: u16) -> Self {
        Self {
            slot,
            generation: 0,
            binding: None,
            buffers: Buffers { input: std::ptr::null_mut(), output: std::ptr::null_mut() },
            data_type: DataType::U8,
            combine: no_combine,
            premultiply: None,
            divide_by: None,
            channel_base: 0,
            window: 1,
            tag: 0,
            keep: None,
            instances: Vec::new(),
            running: 0,
        }
    }

    pub(crate) fn generation(&self) -> u16 {
        self.generation
    }

    /// Bytes of staging held, for the accounting.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.instances.iter().map(|i| i.scratch.bytes()).sum()
    }

    pub(crate) fn take_keep(&mut self) -> Option<Box<dyn Any + Send>> {
        self.keep.take()
    }

    /// Starts a job in this shell and runs it as far as it goes at once. Returns whether it is already done.
    ///
    /// # Safety
    /// The buffers of the job are valid for its shape until the operation is done or the links have been aborted.
    pub(crate) unsafe fn start(&mut self, job: Job, links: &mut Links) -> Result<bool, Error> {
        let element_bytes = job.data_type.size();
        let staged = job.premultiply.is_some() && has_input(&job.plan);
        let reusable = self
            .binding
            .as_ref()
            .is_some_and(|b| b.serves(&job.plan, &job.shape, job.segment_elements, element_bytes, staged));
        if !reusable {
            self.binding =
                Some(Binding::new(job.plan, job.shape, job.segment_elements, element_bytes, staged));
        }
        self.generation = self.generation.wrapping_add(1);
        self.buffers = job.buffers;
        self.data_type = job.data_type;
        self.combine = job.combine;
        self.premultiply = job.premultiply;
        self.divide_by = job.divide_by;
        self.channel_base = job.channel_base;
        self.tag = job.tag;
        self.keep = job.keep;
        let Some(binding) = &self.binding else { unreachable!("set above") };
        // The stride of sub-channels must be the same on all ranks; the number of segments need not be.
        self.window = job.window.max(1) as u16;
        self.running = binding.layout.segments().min(self.window as usize);
        prepare_instances(&mut self.instances, binding, self.running, self.combine);
        for index in 0..self.running as u16 {
            self.begin_segment(index, index as usize);
            self.run_instance(index, links)?;
        }
        Ok(self.running == 0)
    }

    /// Handles the completion of a posted message. Returns whether the operation is done.
    pub(crate) fn completed(&mut self, name: Name, links: &mut Links) -> Result<bool, Error> {
        let lane = &mut self.instances[name.instance as usize].lanes[name.lane as usize];
        match name.kind {
            Kind::Send => lane.sends_pending -= 1,
            Kind::Recv => {
                lane.receiving = false;
                lane.cursor += 1;
            }
        }
        self.run_instance(u16::from(name.instance), links)?;
        Ok(self.running == 0)
    }

    /// Ranks that a message is outstanding from or to.
    pub(crate) fn waiting_for(&self) -> Vec<u32> {
        let Some(binding) = &self.binding else { return Vec::new() };
        let mut peers: Vec<u32> = Vec::new();
        for instance in self.instances.iter().filter(|i| i.running) {
            for (state, lane) in instance.lanes.iter().zip(&binding.plan.lanes) {
                let (head, before) = match lane.get(state.cursor as usize) {
                    Some(step) if state.receiving => (Some(&step.action), 0),
                    _ => (None, state.cursor as usize),
                };
                if let Some(from) = head.and_then(peer_of) {
                    peers.push(from);
                }
                if state.sends_pending > 0 {
                    // The latest posted send is the likeliest to be stuck; naming all would name everybody.
                    let sends = lane[..before.max(state.cursor as usize)].iter().rev();
                    peers.extend(
                        sends.filter_map(|s| send_peer(&s.action)).take(state.sends_pending as usize),
                    );
                }
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Runs one instance until it blocks: its segment, then the next of its segments, and so on.
    fn run_instance(&mut self, index: u16, links: &mut Links) -> Result<(), Error> {
        while self.run_lanes(index, links)? {
            self.end_segment(index);
            let next = self.instances[index as usize].segment + self.window as usize;
            if self.binding.as_ref().is_none_or(|b| next >= b.layout.segments()) {
                self.running -= 1;
                return Ok(());
            }
            self.begin_segment(index, next);
        }
        Ok(())
    }

    fn begin_segment(&mut self, index: u16, segment: usize) {
        let Some(binding) = &self.binding else { unreachable!("an instance runs a bound plan") };
        let instance = &mut self.instances[index as usize];
        instance.segment = segment;
        instance.running = true;
        instance.pieces.clear();
        for lane in &mut instance.lanes {
            (lane.cursor, lane.sends_pending, lane.receiving) = (0, 0, false);
        }
        let Some(factor) = self.premultiply else { return };
        let (data_type, size) = (self.data_type, binding.element_bytes);
        if binding.is_staged() {
            binding.each_staged(segment, self.buffers, instance.scratch.ptr(), |from, to, bytes| {
                // SAFETY: staged input blocks have room for their segment; the input is valid (see `start`).
                unsafe { scale(data_type, to, from, bytes / size, factor) };
            });
        } else {
            binding.each_output(segment, self.buffers, |at, bytes| {
                // SAFETY: the output is valid (see `start`) and nothing of this segment is in flight yet.
                unsafe { scale(data_type, at, at, bytes / size, factor) };
            });
        }
    }

    fn end_segment(&mut self, index: u16) {
        let instance = &mut self.instances[index as usize];
        instance.running = false;
        let (Some(by), Some(binding)) = (self.divide_by, &self.binding) else { return };
        let (data_type, size) = (self.data_type, binding.element_bytes);
        binding.each_output(instance.segment, self.buffers, |at, bytes| {
            // SAFETY: the output is valid (see `start`); all messages of this segment are done.
            unsafe { divide(data_type, at, bytes / size, by) };
        });
    }

    /// Advances all lanes as far as they go. Returns whether the segment is done.
    fn run_lanes(&mut self, index: u16, links: &mut Links) -> Result<bool, Error> {
        let lanes = self.instances[index as usize].lanes.len();
        loop {
            let (mut moved, mut done) = (false, true);
            for lane in 0..lanes {
                let before = self.instances[index as usize].lanes[lane].cursor;
                done &= self.run_lane(index, lane, links)?;
                moved |= self.instances[index as usize].lanes[lane].cursor != before;
            }
            // A lane that moved may have let another one go on; with a single lane there is no other.
            if done || !moved || lanes == 1 {
                return Ok(done);
            }
        }
    }

    /// Advances one lane as far as it goes. Returns whether it is done, sends included.
    fn run_lane(&mut self, index: u16, lane: usize, links: &mut Links) -> Result<bool, Error> {
        let Some(binding) = &self.binding else { return Ok(true) };
        let steps = &binding.plan.lanes[lane];
        let instance = &mut self.instances[index as usize];
        let (segment, scratch) = (instance.segment, instance.scratch.ptr());
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
            index: self.channel_base + on.index * self.window + index,
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
                    let (src, dst) = (place(src), place(dst));
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

fn prepare_instances(instances: &mut Vec<Instance>, binding: &Binding, window: usize, combine: Combine) {
    let lanes = binding.plan.lanes.len();
    while instances.len() < window {
        instances.push(Instance {
            segment: 0,
            running: false,
            lanes: Vec::new(),
            pieces: Vec::new(),
            scratch: Staging::new(),
        });
    }
    for instance in &mut instances[..window] {
        instance.running = false;
        instance.pieces.clear();
        instance.pieces.reserve(binding.pieces_max);
        instance.scratch.reserve(binding.scratch_bytes);
        instance.lanes.truncate(lanes);
        while instance.lanes.len() < lanes {
            instance.lanes.push(LaneState {
                cursor: 0,
                sends_pending: 0,
                receiving: false,
                reducer: Box::new(UnsafeCell::new(Reducer::idle(combine))),
            });
        }
    }
}

fn has_input(plan: &Plan) -> bool {
    kolo_collectives::memory::Memory::of(plan).input_blocks() > 0
}

fn peer_of(action: &Action) -> Option<u32> {
    match action {
        Action::Recv { from, .. } | Action::RecvReduce { from, .. } | Action::WaitSignal { from } => {
            Some(from.peer)
        }
        _ => None,
    }
}

fn send_peer(action: &Action) -> Option<u32> {
    match action {
        Action::Send { to, .. } | Action::Signal { to } => Some(to.peer),
        _ => None,
    }
}
