//! One operation in flight: a bound plan, its segments and their cursors.
//!
//! # States
//! An operation runs up to `window` segments at a time, each in an *instance* with cursors, scratch and sub-channels of
//! its own: instance i runs segments i, i + window, i + 2 window ... An instance goes on to its next segment when all
//! lanes of the current one are done, sends included; the operation is done when all instances have run out.
//!
//! Where a buffer is a GPU's memory, the plan works on a mirror of it in scratch, which is pinned then. A segment is first
//! *loaded*: what its mirrors are made from is copied from the GPU; and at last *stored*. The copies run by themselves,
//! so those of one segment overlap with the messages of the others. Such an operation may have fewer instances than the
//! window, so that its scratch stays within [`PINNED_BYTES`]; segments keep their sub-channels, which other ranks count on.
//!
//! Where adapters reach that memory by themselves, there are no mirrors: pieces name it, and a copy that is a step of the plan
//! is the GPU's. What adapters wrote is flushed before such a copy, and before the operation is done.
//!
//! # Who may touch what
//! The endpoints hold raw pointers into an instance between a post and its completion: to pieces, to the reducer of
//! the lane, to scratch. Rules:
//! 1. `pieces` never reallocates while a segment runs: its capacity is reserved for all steps of a segment.
//! 2. A lane has at most one receive posted; its reducer is in a box of its own and is only touched when none is.
//! 3. Scratch is only reserved between operations. Copies use it only while no lane of the segment runs.
//! 4. An operation that failed is not reused before the endpoints have been told to abort.

use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::Arc;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Action, Blocks, Channel as PlanChannel, Placement, Plan, Space};
use kolo_gdr::Gpu;
use kolo_transport::{Channel, Consumer, Error, Piece, Posted, Sink};

use super::copies::{CopyLines, Mark, Way};
use super::links::Links;
use super::local::{self, Reducer};
use super::memory::{Binding, Buffers, Mirrored, Part};
use super::staging::Staging;
use super::token::{Kind, Name};
use crate::reduce::Combine;
use crate::reduce::{divide, scale};
use crate::types::DataType;

/// Pinned scratch that an operation on a GPU's memory holds at most, but for what a single segment needs: enough for copies
/// of a few MiB to run while as much is on the network, and little beside what a host may lock.
const PINNED_BYTES: usize = 32 << 20;

/// The GPUs whose memory the caller's buffers are; none where it is the host's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sides {
    pub(crate) input: Option<Arc<Gpu>>,
    pub(crate) output: Option<Arc<Gpu>>,
    pub(crate) reach: Reach,
}

/// How messages get from and to a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Through pinned memory of the host.
    #[default]
    Staged,
    /// Adapters reach it; what they write is flushed by the driver if that is needed.
    Direct { flush: bool },
}

impl Sides {
    pub(crate) fn any(&self) -> Option<&Arc<Gpu>> {
        self.input.as_ref().or(self.output.as_ref())
    }

    /// The GPU that mirrors are made from: all that is loaded is of one buffer, the input, or the one that is both.
    fn source(&self, binding: &Binding) -> Option<&Arc<Gpu>> {
        match binding.plan.placement {
            Placement::OutOfPlace => self.input.as_ref(),
            Placement::InPlace => self.any(),
        }
    }
}

/// Everything needed to start an operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) buffers: Buffers,
    pub(crate) sides: Sides,
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

/// What an instance does with its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Idle,
    /// Its mirrors are being made.
    Loading,
    /// Its lanes run.
    Running,
    /// Its mirrors are being copied back.
    Storing,
    /// It is over.
    Over,
}

#[derive(Debug)]
struct Instance {
    segment: usize,
    phase: Phase,
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
    sides: Sides,
    data_type: DataType,
    combine: Combine,
    premultiply: Option<f64>,
    divide_by: Option<u32>,
    channel_base: u16,
    window: u16,
    tag: u64,
    keep: Option<Box<dyn Any + Send>>,
    instances: Vec<Instance>,
    /// Whether adapters may have written what the GPU does not see yet.
    unflushed: bool,
    /// How many of them there are at most: the segments of an instance lie so far apart.
    stride: usize,
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
            sides: Sides::default(),
            data_type: DataType::U8,
            combine: no_combine,
            premultiply: None,
            divide_by: None,
            channel_base: 0,
            window: 1,
            tag: 0,
            keep: None,
            instances: Vec::new(),
            unflushed: false,
            stride: 1,
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

    /// Takes the next generation for an operation that somebody else carries out, and keeps what is kept for it.
    pub(crate) fn stand_in(&mut self, keep: Option<Box<dyn Any + Send>>) -> u16 {
        self.keep = keep;
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(crate) fn take_keep(&mut self) -> Option<Box<dyn Any + Send>> {
        self.keep.take()
    }

    /// Starts a job in this shell and runs it as far as it goes at once. Returns whether it is already done.
    ///
    /// # Safety
    /// The buffers of the job are valid for its shape until the operation is done or the links have been aborted.
    pub(crate) unsafe fn start(
        &mut self,
        job: Job,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let element_bytes = job.data_type.size();
        let scaled = job.premultiply.is_some() && has_input(&job.plan);
        let is_staged = job.sides.reach == Reach::Staged;
        let mirrored = Mirrored {
            input: scaled || (is_staged && job.sides.input.is_some()),
            output: is_staged && job.sides.output.is_some(),
        };
        let reusable = self
            .binding
            .as_ref()
            .is_some_and(|b| b.serves(&job.plan, &job.shape, job.segment_elements, element_bytes, mirrored));
        if !reusable {
            self.binding =
                Some(Binding::new(job.plan, job.shape, job.segment_elements, element_bytes, mirrored));
        }
        self.generation = self.generation.wrapping_add(1);
        self.buffers = job.buffers;
        self.sides = job.sides;
        self.data_type = job.data_type;
        self.combine = job.combine;
        self.premultiply = job.premultiply;
        self.divide_by = job.divide_by;
        self.channel_base = job.channel_base;
        self.tag = job.tag;
        self.keep = job.keep;
        self.unflushed = false;
        let Some(binding) = &self.binding else { unreachable!("set above") };
        // The stride of sub-channels must be the same on all ranks; the number of segments need not be.
        self.window = job.window.max(1) as u16;
        let gpu = self.sides.any();
        self.stride = match gpu {
            Some(_) => instances_within(PINNED_BYTES, binding.scratch_bytes, self.window),
            None => self.window as usize,
        };
        self.running = binding.layout.segments().min(self.stride);
        prepare_instances(&mut self.instances, binding, self.running, self.combine, gpu)?;
        for index in 0..self.running as u16 {
            self.begin_segment(index, index as usize, copies)?;
            self.run_instance(index, links, copies)?;
        }
        Ok(self.running == 0)
    }

    /// Handles the completion of a posted message. Returns whether the operation is done.
    pub(crate) fn completed(
        &mut self,
        name: Name,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let lane = &mut self.instances[name.instance as usize].lanes[name.lane as usize];
        match name.kind {
            Kind::Send => lane.sends_pending -= 1,
            Kind::Recv => {
                lane.receiving = false;
                lane.cursor += 1;
                self.unflushed = true;
            }
        }
        self.run_instance(u16::from(name.instance), links, copies)?;
        Ok(self.running == 0)
    }

    /// Handles the end of a copy that is a step. Returns whether the operation is done.
    pub(crate) fn step_copied(
        &mut self,
        instance: u8,
        lane: u16,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let state = &mut self.instances[instance as usize].lanes[lane as usize];
        state.receiving = false;
        state.cursor += 1;
        self.run_instance(u16::from(instance), links, copies)?;
        Ok(self.running == 0)
    }

    /// Makes what was received into a GPU's memory visible to it.
    fn flush(&mut self, copies: &mut CopyLines) -> Result<(), Error> {
        if self.sides.reach == (Reach::Direct { flush: true })
            && std::mem::take(&mut self.unflushed)
            && let Some(gpu) = self.sides.any()
        {
            copies.flush(gpu)?;
        }
        Ok(())
    }

    /// Handles the end of the copies of an instance. Returns whether the operation is done.
    pub(crate) fn copied(
        &mut self,
        instance: u8,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<bool, Error> {
        let index = u16::from(instance);
        match self.instances[index as usize].phase {
            Phase::Loading => self.loaded(index),
            Phase::Storing => self.instances[index as usize].phase = Phase::Over,
            Phase::Idle | Phase::Running | Phase::Over => return Ok(false),
        }
        self.run_instance(index, links, copies)?;
        Ok(self.running == 0)
    }

    /// Ranks that a message is outstanding from or to.
    pub(crate) fn waiting_for(&self) -> Vec<u32> {
        let Some(binding) = &self.binding else { return Vec::new() };
        let mut peers: Vec<u32> = Vec::new();
        for instance in self.instances.iter().filter(|i| i.phase == Phase::Running) {
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
    fn run_instance(&mut self, index: u16, links: &mut Links, copies: &mut CopyLines) -> Result<(), Error> {
        loop {
            match self.instances[index as usize].phase {
                Phase::Idle | Phase::Loading | Phase::Storing => return Ok(()),
                Phase::Running => {
                    if !self.run_lanes(index, links, copies)? {
                        return Ok(());
                    }
                    self.end_segment(index, copies)?;
                }
                Phase::Over => {
                    let next = self.instances[index as usize].segment + self.stride;
                    if self.binding.as_ref().is_none_or(|b| next >= b.layout.segments()) {
                        self.instances[index as usize].phase = Phase::Idle;
                        self.running -= 1;
                        return if self.running == 0 { self.flush(copies) } else { Ok(()) };
                    }
                    self.begin_segment(index, next, copies)?;
                }
            }
        }
    }

    /// Gives an instance a segment, and loads what is on a GPU.
    fn begin_segment(&mut self, index: u16, segment: usize, copies: &mut CopyLines) -> Result<(), Error> {
        let Some(binding) = &self.binding else { unreachable!("an instance runs a bound plan") };
        let instance = &mut self.instances[index as usize];
        instance.segment = segment;
        instance.pieces.clear();
        for lane in &mut instance.lanes {
            (lane.cursor, lane.sends_pending, lane.receiving) = (0, 0, false);
        }
        let Some(gpu) = self.sides.source(binding).filter(|_| binding.has_loads()) else {
            self.loaded(index);
            return Ok(());
        };
        let mark = Mark::Segment { slot: self.slot, generation: self.generation, instance: index as u8 };
        let parts = binding.loads(segment, self.buffers, instance.scratch.ptr());
        // SAFETY: mirrors have room for their segment, and lie in scratch, which is pinned and of which no lane runs; the
        // buffers are valid (see `start`), and the engine settles copies before it gives an operation up.
        unsafe { copies.start(Way::Load, gpu, parts, mark) }?;
        instance.phase = Phase::Loading;
        Ok(())
    }

    /// The data of a segment is there: its lanes may run.
    fn loaded(&mut self, index: u16) {
        let Some(binding) = &self.binding else { unreachable!("an instance runs a bound plan") };
        let instance = &mut self.instances[index as usize];
        instance.phase = Phase::Running;
        let Some(factor) = self.premultiply else { return };
        let (data_type, size) = (self.data_type, binding.element_bytes);
        let (segment, scratch) = (instance.segment, instance.scratch.ptr());
        if binding.is_mirrored() && binding.has_loads() {
            let is_here = self.sides.source(binding).is_none();
            for (from, to, bytes) in binding.loads(segment, self.buffers, scratch) {
                let from = if is_here { from } else { to.cast_const() };
                // SAFETY: mirrored blocks have room for their segment, and the input is valid (see `start`); a GPU's was
                // just copied to the mirror.
                unsafe { scale(data_type, to, from, bytes / size, factor) };
            }
        } else if !binding.is_mirrored() {
            binding.each_output(segment, self.buffers, scratch, |at, bytes| {
                // SAFETY: the output is valid (see `start`) and nothing of this segment is in flight yet.
                unsafe { scale(data_type, at, at, bytes / size, factor) };
            });
        }
    }

    /// All lanes of a segment are done: stores what belongs on a GPU.
    fn end_segment(&mut self, index: u16, copies: &mut CopyLines) -> Result<(), Error> {
        let Some(binding) = &self.binding else { unreachable!("an instance runs a bound plan") };
        let instance = &mut self.instances[index as usize];
        instance.phase = Phase::Over;
        let (segment, scratch) = (instance.segment, instance.scratch.ptr());
        if let Some(by) = self.divide_by {
            let (data_type, size) = (self.data_type, binding.element_bytes);
            binding.each_output(segment, self.buffers, scratch, |at, bytes| {
                // SAFETY: the output is valid (see `start`); all messages of this segment are done.
                unsafe { divide(data_type, at, bytes / size, by) };
            });
        }
        let Some(gpu) = self.sides.output.as_ref().filter(|_| binding.has_stores()) else { return Ok(()) };
        let mark = Mark::Segment { slot: self.slot, generation: self.generation, instance: index as u8 };
        let parts = binding.stores(segment, self.buffers, scratch);
        // SAFETY: as in `begin_segment`.
        unsafe { copies.start(Way::Store, gpu, parts, mark) }?;
        instance.phase = Phase::Storing;
        Ok(())
    }

    /// Has the GPU do a copy that is a step of a lane.
    fn start_step(
        &mut self,
        index: u16,
        lane: usize,
        parts: Vec<Part>,
        copies: &mut CopyLines,
    ) -> Result<(), Error> {
        self.flush(copies)?;
        let Some(gpu) = self.sides.any() else { unreachable!("adapters reach a GPU's memory") };
        let (slot, generation, instance) = (self.slot, self.generation, index as u8);
        let mark = Mark::Step { slot, generation, instance, lane: lane as u16 };
        // SAFETY: valid by `start`, the scratch pinned; the checker proves that they do not overlap, and that nothing else
        // touches them before the step is over; the engine settles copies before it gives an operation up.
        unsafe { copies.start(Way::Step, gpu, parts, mark) }?;
        // As a receive does, it ends with a word from elsewhere.
        self.instances[index as usize].lanes[lane].receiving = true;
        Ok(())
    }

    /// Advances all lanes as far as they go. Returns whether the segment is done.
    fn run_lanes(&mut self, index: u16, links: &mut Links, copies: &mut CopyLines) -> Result<bool, Error> {
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
            self.unflushed |= peer_of(&step.action).is_some();
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

/// How many instances there may be with so much scratch each: a divisor of the window, so that segments that use the same
/// sub-channels follow each other in one instance; at least one.
fn instances_within(limit: usize, scratch_bytes: usize, window: u16) -> usize {
    let fits = |count: &usize| (window as usize).is_multiple_of(*count) && count * scratch_bytes <= limit;
    (1..=window as usize).rev().find(fits).unwrap_or(1)
}

fn prepare_instances(
    instances: &mut Vec<Instance>,
    binding: &Binding,
    count: usize,
    combine: Combine,
    gpu: Option<&Arc<Gpu>>,
) -> Result<(), Error> {
    let lanes = binding.plan.lanes.len();
    while instances.len() < count {
        instances.push(Instance {
            segment: 0,
            phase: Phase::Idle,
            lanes: Vec::new(),
            pieces: Vec::new(),
            scratch: Staging::new(),
        });
    }
    for instance in &mut instances[..count] {
        instance.phase = Phase::Idle;
        instance.pieces.clear();
        instance.pieces.reserve(binding.pieces_max);
        instance.scratch.reserve(binding.scratch_bytes);
        if let Some(gpu) = gpu {
            instance.scratch.pin(gpu)?;
        }
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
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::instances_within;

    #[test]
    fn instances_stay_within_the_bound_and_divide_the_window() {
        assert_eq!(instances_within(100, 0, 12), 12);
        assert_eq!(instances_within(100, 10, 12), 6);
        assert_eq!(instances_within(100, 30, 12), 3);
        assert_eq!(instances_within(100, 30, 7), 1);
        assert_eq!(instances_within(100, 101, 12), 1, "one segment goes in any case");
    }
}
