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
//! 4. An operation that failed is not reused before the endpoints have been told to abort.

mod bounce;
mod direct;
mod instance;
mod job;
mod staged;
mod steps;
mod waiting;

use kolo_transport::{Awaited, Error};

use super::Owner;
use super::copies::CopyQueues;
use super::links::Links;
use super::memory::{Binding, Buffers};
use super::token::{Kind, Name};
use crate::call::GpuBuffers;
use crate::reduce::{Arithmetic, combine_nothing};
use crate::types::DataType;
use instance::{Instance, Phase};
pub(crate) use job::{Job, Lent};
pub(crate) use staged::needs;

/// An operation, or an idle one whose memory is kept for reuse.
#[derive(Debug)]
pub(crate) struct Operation {
    slot: u16,
    generation: u16,
    binding: Option<Binding>,
    buffers: Buffers,
    gpus: GpuBuffers,
    arithmetic: Arithmetic,
    channel_base: u16,
    area_base: u16,
    window: u16,
    tag: u64,
    /// Whether copies to the output should bypass the caches.
    streams: bool,
    keep: Option<Owner>,
    instances: Vec<Instance>,
    /// Whether adapters may have written bytes that the GPU does not see yet.
    unflushed: bool,
    /// Greatest number of instances, and therefore the distance between the segments of one instance.
    stride: usize,
    /// Number of instances that have segments left.
    running: usize,
}

// SAFETY: the raw pointers name the caller's buffers. By the contract of the posting functions these stay valid and
// otherwise untouched while the operation runs, whichever thread drives it.
unsafe impl Send for Operation {}

impl Operation {
    pub(crate) fn new(slot: u16) -> Self {
        Self {
            slot,
            generation: 0,
            binding: None,
            buffers: Buffers { input: std::ptr::null_mut(), output: std::ptr::null_mut() },
            gpus: GpuBuffers::default(),
            arithmetic: Arithmetic {
                combine: combine_nothing,
                data_type: DataType::U8,
                factor: None,
                divisor: None,
                canonical: false,
            },
            channel_base: 0,
            area_base: 0,
            window: 1,
            tag: 0,
            streams: false,
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

    /// Returns the bytes of staging held.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.instances.iter().map(|i| i.scratch.bytes()).sum()
    }

    /// Takes the next generation for an operation that is carried out elsewhere, and keeps its buffers.
    pub(crate) fn stand_in(&mut self, keep: Option<Owner>) -> u16 {
        self.keep = keep;
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(crate) fn take_keep(&mut self) -> Option<Owner> {
        self.keep.take()
    }

    /// Starts a job and advances it as far as possible. Returns whether it is already done.
    ///
    /// # Safety
    /// The buffers of the job are valid for its shape until the operation is done or the links have been aborted.
    pub(crate) unsafe fn start(
        &mut self,
        job: Job,
        links: &mut Links,
        copies: &mut CopyQueues,
    ) -> Result<bool, Error> {
        let element_bytes = job.arithmetic.element_bytes();
        let bounced = bounce::bounced(&job);
        let reusable = self
            .binding
            .as_ref()
            .is_some_and(|b| b.serves(&job.plan, &job.shape, job.segment_elements, element_bytes, bounced));
        if !reusable {
            let binding = Binding::new(job.plan, job.shape, job.segment_elements, element_bytes, bounced);
            staged::check(&binding, links)?;
            self.streams = staged::streams(&binding);
            self.binding = Some(binding);
        }
        self.generation = self.generation.wrapping_add(1);
        self.buffers = job.buffers;
        self.gpus = job.gpus;
        self.arithmetic = job.arithmetic;
        self.channel_base = job.channel_base;
        self.area_base = job.area_base;
        self.tag = job.tag;
        self.keep = job.keep;
        self.unflushed = false;
        let Some(binding) = &self.binding else { unreachable!("set above") };
        // The stride of sub-channels must be the same on all ranks, while the number of segments need not be.
        self.window = job.window.max(1) as u16;
        staged::check_window(binding, job.window)?;
        let gpu = self.gpus.any();
        self.stride = instance::most(binding, self.window, gpu);
        self.running = binding.layout.segments().min(self.stride);
        instance::prepare(&mut self.instances, binding, self.running, self.arithmetic.combine, gpu)?;
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
        copies: &mut CopyQueues,
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
        copies: &mut CopyQueues,
    ) -> Result<bool, Error> {
        let state = &mut self.instances[instance as usize].lanes[lane as usize];
        state.receiving = false;
        state.cursor += 1;
        self.run_instance(u16::from(instance), links, copies)?;
        Ok(self.running == 0)
    }

    /// Handles the end of the copies of an instance. Returns whether the operation is done.
    pub(crate) fn copied(
        &mut self,
        instance: u8,
        links: &mut Links,
        copies: &mut CopyQueues,
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

    /// Returns whether the operation uses the stage.
    pub(crate) fn uses_stage(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| binding.plan.stage.is_some())
    }

    /// Returns whether the operation has no messages.
    pub(crate) fn is_silent(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| binding.plan.channels == 0)
    }

    /// Returns the area of the stage that a segment uses.
    fn area(&self, segment: usize) -> u16 {
        self.area_base + (segment % self.window as usize) as u16
    }

    /// Advances segments that waited for the stage and need not wait any more. Returns whether there were any, and
    /// whether the operation is done.
    pub(crate) fn look_at_stage(
        &mut self,
        links: &mut Links,
        copies: &mut CopyQueues,
    ) -> Result<(bool, bool), Error> {
        let mut moved = false;
        for index in 0..self.instances.len() as u16 {
            let Instance { awaited: Some(awaited), segment, .. } = self.instances[index as usize] else {
                continue;
            };
            let Some(stage) = links.stage_mut() else { continue };
            let area = self.area(segment);
            let answer = match awaited {
                Awaited::Room(len) => stage.is_free(area, len),
                Awaited::Payloads(needs) => stage.has_published(area, needs),
            };
            if answer.map_err(|found| staged::mismatch(stage, self.tag, found))? {
                moved = true;
                self.run_instance(index, links, copies)?;
            }
        }
        Ok((moved, self.running == 0))
    }

    /// Advances one instance until it blocks: its current segment, then its next one, and so on.
    fn run_instance(&mut self, index: u16, links: &mut Links, copies: &mut CopyQueues) -> Result<(), Error> {
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

    /// Gives an instance a segment, and loads the segment's data if it is on a GPU.
    fn begin_segment(&mut self, index: u16, segment: usize, copies: &mut CopyQueues) -> Result<(), Error> {
        let instance = &mut self.instances[index as usize];
        instance.begin(segment);
        instance.phase = Phase::Loading;
        if !self.load(index, copies)? {
            self.loaded(index);
        }
        Ok(())
    }

    /// Lets the lanes of a segment run, since its data is there.
    fn loaded(&mut self, index: u16) {
        self.instances[index as usize].phase = Phase::Running;
        if let Some(factor) = self.arithmetic.factor {
            self.premultiply(index, factor);
        }
    }

    /// Ends a segment whose lanes are all done, and stores its results if they belong on a GPU.
    fn end_segment(&mut self, index: u16, copies: &mut CopyQueues) -> Result<(), Error> {
        if self.arithmetic.divisor.is_some() {
            self.divide(index);
        }
        let is_storing = self.store(index, copies)?;
        self.instances[index as usize].phase = if is_storing { Phase::Storing } else { Phase::Over };
        Ok(())
    }

    /// Divides a segment's output by the divisor of Avg.
    fn divide(&self, index: u16) {
        let Some(binding) = &self.binding else { unreachable!("an instance runs a bound plan") };
        let instance = &self.instances[index as usize];
        binding.each_output(instance.segment, self.buffers, instance.scratch.ptr(), |at, bytes| {
            // SAFETY: the output is valid (see `start`), and all messages of this segment are done.
            unsafe { self.arithmetic.divide(at, bytes) };
        });
    }
}
