//! One operation in flight: a bound plan, its segments and their cursors.
//!
//! # States
//! An operation runs up to `window` segments at a time, each in an *instance* with cursors, scratch and sub-channels of
//! its own: instance i runs segments i, i + window, i + 2 window ... An instance goes on to its next segment when all
//! lanes of the current one are done, sends included. The operation is done when all instances have run out of
//! segments.
//!
//! Where the plan uses the stage of the host, each instance has an area of its own there (`staged.rs`). The engine
//! polls a segment that waits for other ranks until they have come.
//!
//! Where a buffer is GPU memory, a segment works on *bounce buffers* in pinned scratch (`bounce.rs`), or on the GPU
//! memory itself if adapters reach it (`direct.rs`). With bounce buffers an operation may have fewer instances than the
//! window, which bounds its scratch. Segments keep their sub-channels, since other ranks count on them.
//!
//! # Access
//! Between a post and its completion, the endpoints hold raw pointers into an instance: to pieces, to the reducer of
//! the lane, to scratch. Rules:
//! 1. `pieces` never reallocates while a segment runs: its capacity is reserved for all steps of a segment.
//! 2. A lane has at most one receive posted. Its reducer is in a box of its own, and is touched only when no receive is
//!    posted.
//! 3. Scratch is reserved only between operations. Copies use it only while no lane of the segment runs.
//! 4. The memory of an operation that failed stays as it is until the endpoints have been told to abort.

mod bounce;
mod direct;
mod instance;
mod job;
mod staged;
mod steps;
mod waiting;

use std::mem;
use std::sync::Arc;

use kolo_collectives::plan::Blocks;
use kolo_transport::{Awaited, Error};

use super::Io;
use super::copies::CopyQueues;
use super::links::Links;
use super::memory::{Binding, Buffers};
use super::token::{Kind, Name};
use crate::call::GpuBuffers;
use crate::reduce::Arithmetic;
use instance::{Instance, Phase};
pub(crate) use job::{Job, Lent};
pub(crate) use staged::needs;

/// Memory that is kept between the operations of a slot.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// The last bound plan. Most programs make the same call again.
    binding: Option<Box<Binding>>,
    instances: Vec<Instance>,
}

/// A job that runs.
#[derive(Debug)]
pub(crate) struct Operation {
    bound: Bound,
    instances: Vec<Instance>,
    /// Number of instances that have segments left.
    running: usize,
    /// Whether adapters may have written bytes that the GPU does not see yet.
    unflushed: bool,
    lent: Lent,
}

/// The part of an operation that does not change while it runs.
#[derive(Debug)]
struct Bound {
    position: Position,
    binding: Box<Binding>,
    buffers: Buffers,
    gpus: GpuBuffers,
    arithmetic: Arithmetic,
    /// Distance between the channels, and between the segments on a channel. It is the same on all ranks, while the
    /// number of segments need not be.
    window: u16,
    /// Greatest number of instances, and therefore the distance between the segments of one instance.
    stride: usize,
    tag: u64,
    /// Whether copies to the output should bypass the caches.
    streams: bool,
}

/// The slot, channels and stage areas of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
    /// First transport channel that the operation may use.
    pub(crate) channel_base: u16,
    /// First area of the stage that the operation may use.
    pub(crate) area_base: u16,
}

// SAFETY: the raw pointers name the caller's buffers and the scratch. By the contract of the posting functions these stay
// valid and otherwise untouched while the operation runs, whichever thread drives it; between operations, nothing uses
// the pointers.
unsafe impl Send for Instance {}

impl Spare {
    /// Binds the plan of a job, unless the last operation had the same.
    ///
    /// # Errors
    /// If the plan cannot run on this rank's stage.
    pub(crate) fn bind(&mut self, job: &Job, links: &Links) -> Result<Box<Binding>, Error> {
        let Job { plan, shape, segment_elements, arithmetic, .. } = job;
        let (element_bytes, bounced) = (arithmetic.element_bytes(), bounce::bounced(job));
        let binding = match self.binding.take() {
            Some(kept) if kept.serves(plan, shape, *segment_elements, element_bytes, bounced) => kept,
            _ => {
                let (plan, shape) = (Arc::clone(plan), shape.clone());
                let binding = Binding::new(plan, shape, *segment_elements, element_bytes, bounced);
                staged::check(&binding, links)?;
                Box::new(binding)
            }
        };
        staged::check_window(&binding, job.window)?;
        Ok(binding)
    }

    /// Returns the bytes of staging held.
    pub(crate) fn staging_bytes(&self) -> usize {
        staging_bytes(&self.instances)
    }
}

fn staging_bytes(instances: &[Instance]) -> usize {
    instances.iter().map(|instance| instance.scratch.bytes()).sum()
}

impl Operation {
    /// Makes an operation of a job whose plan was bound. It takes the memory in `spare`.
    pub(crate) fn new(job: Job, binding: Box<Binding>, spare: &mut Spare, position: Position) -> Self {
        let Job { buffers, gpus, arithmetic, tag, lent, .. } = job;
        let window = job.window.max(1) as u16;
        let stride = instance::most(&binding, window, gpus.any());
        let running = binding.layout.segments().min(stride);
        let streams = staged::streams(&binding);
        let bound = Bound { position, binding, buffers, gpus, arithmetic, window, stride, tag, streams };
        Self { bound, instances: mem::take(&mut spare.instances), running, unflushed: false, lent }
    }

    /// Ends an operation. Returns the memory for the next one.
    pub(crate) fn end(self) -> Spare {
        Spare { binding: Some(self.bound.binding), instances: self.instances }
    }

    /// Returns the host memory that the operation works on.
    pub(crate) fn lent(&self) -> Lent {
        self.lent
    }

    /// Returns the bytes of staging held.
    pub(crate) fn staging_bytes(&self) -> usize {
        staging_bytes(&self.instances)
    }

    /// Begins the first segments, and advances them as far as possible.
    ///
    /// # Safety
    /// The buffers of the job are valid for its shape until the operation is done or the links have been aborted.
    pub(crate) unsafe fn begin(&mut self, io: &mut Io) -> Result<(), Error> {
        let Bound { binding, gpus, .. } = &self.bound;
        instance::prepare(&mut self.instances, binding, self.running, gpus.any())?;
        for index in 0..self.running as u16 {
            self.begin_segment(index, index as usize, &mut io.copies)?;
            self.run_instance(index, io)?;
        }
        Ok(())
    }

    /// Handles the completion of a posted message.
    pub(crate) fn completed(&mut self, name: Name, io: &mut Io) -> Result<(), Error> {
        let lane = &mut self.instances[name.instance as usize].lanes[name.lane as usize];
        match name.kind {
            Kind::Send => lane.sends_pending -= 1,
            Kind::Recv => {
                lane.end_step();
                self.unflushed = true;
            }
        }
        self.run_instance(u16::from(name.instance), io)?;
        Ok(())
    }

    /// Handles the end of copies: a step of a lane, or all that fill or empty the bounce buffers of an instance.
    pub(crate) fn copied(&mut self, instance: u8, lane: Option<u16>, io: &mut Io) -> Result<(), Error> {
        let index = u16::from(instance);
        let instance = &mut self.instances[index as usize];
        match (lane, instance.phase) {
            (Some(lane), _) => instance.lanes[lane as usize].end_step(),
            (None, Phase::Loading) => self.loaded(index),
            (None, Phase::Storing) => instance.phase = Phase::Over,
            (None, Phase::Idle | Phase::Running | Phase::Over) => return Ok(()),
        }
        self.run_instance(index, io)?;
        Ok(())
    }

    /// Returns whether all segments are over.
    pub(crate) fn is_over(&self) -> bool {
        self.running == 0
    }

    /// Returns whether the operation uses the stage.
    pub(crate) fn uses_stage(&self) -> bool {
        self.bound.binding.plan.stage.is_some()
    }

    /// Returns whether the operation has no messages.
    pub(crate) fn is_silent(&self) -> bool {
        self.bound.binding.plan.channels == 0
    }

    /// Advances segments that waited for the stage and need not wait any more. Returns whether there were any.
    pub(crate) fn look_at_stage(&mut self, io: &mut Io) -> Result<bool, Error> {
        let mut moved = false;
        for index in 0..self.instances.len() as u16 {
            let Instance { awaited: Some(awaited), segment, .. } = self.instances[index as usize] else {
                continue;
            };
            let Some(stage) = io.links.stage_mut() else { continue };
            let area = self.bound.area(segment);
            let answer = match awaited {
                Awaited::Room(len) => stage.is_free(area, len),
                Awaited::Payloads(needs) => stage.has_published(area, needs),
            };
            if answer.map_err(|found| staged::mismatch(stage, self.bound.tag, found))? {
                moved = true;
                self.run_instance(index, io)?;
            }
        }
        Ok(moved)
    }

    /// Advances one instance until it blocks: its current segment, then its next one, and so on.
    fn run_instance(&mut self, index: u16, io: &mut Io) -> Result<(), Error> {
        loop {
            match self.instances[index as usize].phase {
                Phase::Idle | Phase::Loading | Phase::Storing => return Ok(()),
                Phase::Running => {
                    if !self.run_lanes(index, io)? {
                        return Ok(());
                    }
                    self.end_segment(index, &mut io.copies)?;
                }
                Phase::Over => {
                    let next = self.instances[index as usize].segment + self.bound.stride;
                    if next >= self.bound.binding.layout.segments() {
                        self.instances[index as usize].phase = Phase::Idle;
                        self.running -= 1;
                        return if self.running == 0 { self.flush(&mut io.copies) } else { Ok(()) };
                    }
                    self.begin_segment(index, next, &mut io.copies)?;
                }
            }
        }
    }

    /// Gives an instance a segment, and loads the segment's data if it is on a GPU.
    fn begin_segment(&mut self, index: u16, segment: usize, copies: &mut CopyQueues) -> Result<(), Error> {
        let instance = &mut self.instances[index as usize];
        instance.begin(segment);
        instance.phase = Phase::Loading;
        if !self.bound.load(index, instance, copies)? {
            self.loaded(index);
        }
        Ok(())
    }

    /// Lets the lanes of a segment run, since its data is there.
    fn loaded(&mut self, index: u16) {
        let instance = &mut self.instances[index as usize];
        instance.phase = Phase::Running;
        if let Some(factor) = self.bound.arithmetic.factor {
            self.bound.premultiply(instance, factor);
        }
    }

    /// Ends a segment whose lanes are all done, and stores its results if they belong on a GPU.
    fn end_segment(&mut self, index: u16, copies: &mut CopyQueues) -> Result<(), Error> {
        let instance = &mut self.instances[index as usize];
        if self.bound.arithmetic.divisor.is_some() {
            self.bound.divide(instance);
        }
        let is_storing = self.bound.store(index, instance, copies)?;
        instance.phase = if is_storing { Phase::Storing } else { Phase::Over };
        Ok(())
    }
}

impl Bound {
    /// Returns the place of a segment among those in flight, which is that of its channels and of its area.
    fn sub_channel(&self, segment: usize) -> u16 {
        (segment % self.window as usize) as u16
    }

    /// Returns the area of the stage that a segment uses.
    fn area(&self, segment: usize) -> u16 {
        self.position.area_base + self.sub_channel(segment)
    }

    /// Appends the memory of blocks to an instance's pieces.
    fn place(&self, blocks: Blocks, instance: &mut Instance) {
        let Instance { segment, scratch, pieces, .. } = instance;
        self.binding.pieces(blocks, *segment, self.buffers, scratch.ptr(), pieces);
    }

    /// Divides a segment's output by the divisor of Avg.
    fn divide(&self, instance: &Instance) {
        self.binding.each_output(instance.segment, self.buffers, instance.scratch.ptr(), |at, bytes| {
            // SAFETY: the output is valid (see `Operation::begin`), and all messages of this segment are done.
            unsafe { self.arithmetic.divide(at, bytes) };
        });
    }
}
