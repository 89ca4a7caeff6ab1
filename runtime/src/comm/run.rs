//! Running a checked call: tiny path or plan, blocking or asynchronous.

use std::any::Any;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Collective, Cut, Placement};
use kolo_transport::Piece;
use kolo_transport::shm::FlatMismatch;

use super::failure::{Meeting, Poison};
use super::familiar::Known;
use super::shared::{Core, Shared};
use super::tiny::Passage;
use super::waited::Waited;
use super::watch::{Attended, Watch};
use crate::call::{self, Call, Counts, reduces};
use crate::cancel::Whole;
use crate::engine::{Buffers, Id, Job, Lent, Mode};
use crate::error::{Error, Result};
use crate::gpu::GpuPath;
use crate::reduce::{Combine, combine_fn, combine_nothing, kernel};
use crate::sides::{Reach, Sides};
use crate::types::ReduceOp;

/// Polls of a tiny exchange before the wait is watched, where spinning is wanted: about a microsecond, which is what most
/// exchanges take.
pub(super) const POLLS_FIRST: u32 = 64;

/// An asynchronous operation that was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: Id,
    pub(crate) waited: Waited,
}

/// A call that is numbered and recorded.
#[derive(Clone, Copy)]
struct Begun {
    sequence: u64,
    asynchronous: bool,
    tag: u64,
    /// What reduces, if there is a kernel for it.
    combine: Option<Combine>,
    /// How it is carried out, if it is on a GPU's memory.
    path: Option<GpuPath>,
}

impl Begun {
    /// What is waited for, in full. Most calls are over before anybody asks.
    fn waited(&self, call: &Call) -> Waited {
        Waited::call(call.summary(self.asynchronous), self.sequence)
    }
}

impl Shared {
    /// Runs a call and waits for it, as long as the settings say.
    ///
    /// # Safety
    /// As [`Shared::run_within`].
    pub(crate) unsafe fn run(&self, call: &Call) -> Result<()> {
        // SAFETY: handed on.
        unsafe { self.run_within(call, self.config.timeout) }
    }

    /// Runs a call and waits for it, at most for `limit`.
    ///
    /// # Safety
    /// The buffers of the call are valid and not touched by anybody else until this returns.
    pub(crate) unsafe fn run_within(&self, call: &Call, limit: Duration) -> Result<()> {
        self.check_process(|| Waited::call(call.summary(false), 0))?;
        let mut core = self.core();
        let begun = self.begin(&mut core, call, false)?;
        if core.direct.considers(call) {
            // SAFETY: handed on.
            match unsafe { self.run_direct(core, call, begun.tag, (begun.waited(call), limit)) }? {
                (mut core, true) => {
                    self.end_call(&mut core, begun.sequence);
                    return Ok(());
                }
                (undecided, false) => core = undecided,
            }
        }
        let serves = core.tiny.as_ref().is_some_and(|tiny| tiny.serves(call));
        // SAFETY: handed on.
        let mut core = unsafe {
            if serves {
                self.run_tiny_anywhere(core, call, &begun, limit)
            } else {
                self.run_planned(core, call, &begun, limit)
            }
        }?;
        self.end_call(&mut core, begun.sequence);
        Ok(())
    }

    /// Runs a call by its plan, and waits for it.
    ///
    /// # Safety
    /// As [`Shared::run_within`].
    #[inline(never)]
    unsafe fn run_planned<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        begun: &Begun,
        limit: Duration,
    ) -> Result<MutexGuard<'a, Core>> {
        self.lend(move || {
            let mode = if begun.asynchronous { Mode::Asynchronous } else { Mode::Blocking };
            // SAFETY: handed on.
            let id = unsafe { self.launch(&mut core, call, (begun.tag, begun.path), mode, None) }?;
            let mut core = self.wait_for(core, id, begun.waited(call), limit)?;
            core.engine.finish(id);
            Ok(core)
        })
    }

    /// Starts a call; `keep` lives until it is done.
    ///
    /// # Safety
    /// The buffers of the call are valid and not touched by anybody else until the operation is done or the
    /// communicator has been aborted.
    pub(crate) unsafe fn start(
        self: &Arc<Self>,
        call: &Call,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Ticket> {
        self.check_process(|| Waited::call(call.summary(true), 0))?;
        let mut core = self.core();
        let begun = self.begin(&mut core, call, true)?;
        let Begun { tag, path, .. } = begun;
        let (id, pending) = self.lend(move || {
            // SAFETY: handed on.
            let id = unsafe {
                if core.lines_up(call) {
                    let how = (self.combine(call)?, tag);
                    match core.line_up(call, how, (self.rank, self.world_size), keep) {
                        Ok(id) => id,
                        Err(error) => return Err(self.refused(core, error, begun.waited(call))),
                    }
                } else {
                    self.launch(&mut core, call, (tag, path), Mode::Asynchronous, keep)?
                }
            };
            Ok((id, !core.engine.is_done(id)))
        })?;
        if pending {
            self.call_helper();
        }
        Ok(Ticket { id, waited: begun.waited(call) })
    }

    /// Starts a call and drives it at once, without a word to the helper.
    ///
    /// # Safety
    /// As [`Shared::run`].
    pub(crate) unsafe fn start_and_wait(&self, call: &Call, limit: Duration) -> Result<()> {
        self.check_process(|| Waited::call(call.summary(true), 0))?;
        let mut core = self.core();
        let begun = self.begin(&mut core, call, true)?;
        let lines_up = core.lines_up(call);
        // SAFETY: handed on.
        let mut core = unsafe {
            if lines_up {
                self.run_tiny_anywhere(core, call, &begun, limit)
            } else {
                self.run_planned(core, call, &begun, limit)
            }
        }?;
        self.end_call(&mut core, begun.sequence);
        Ok(())
    }

    /// Numbers and records a call.
    #[inline(always)]
    fn begin(&self, core: &mut Core, call: &Call, asynchronous: bool) -> Result<Begun> {
        let sequence = core.sequence + 1;
        let waited = || Waited::call(call.summary(asynchronous), sequence);
        if !self.is_well(core) {
            self.check_usable(core, waited())?;
        }
        if !core.engine.has_room() {
            return Err(self.too_many(waited()));
        }
        let path = if call.gpus.is_none() { None } else { self.gpu_path(core, call, waited())? };
        core.sequence = sequence;
        let summary = call.summary(asynchronous);
        let label = summary.label();
        core.recorder.begin(sequence, summary, path);
        self.membership.board().start(sequence, label);
        let Known { signature, combine } = core.familiar.look_up(call, label);
        let tag = call::tag(self.id, sequence, signature);
        Ok(Begun { sequence, asynchronous, tag, combine, path })
    }

    #[cold]
    fn too_many(&self, waited: Waited) -> Error {
        let problem = "too many asynchronous operations are outstanding; wait for some of them";
        Error::Usage { context: self.context(waited), problem: problem.to_owned() }
    }

    pub(crate) fn end(&self, core: &mut Core, waited: Waited) {
        // Messages are not numbered among the collectives.
        if waited.summary().is_some() {
            self.end_call(core, waited.sequence);
        }
    }

    #[inline]
    fn end_call(&self, core: &mut Core, sequence: u64) {
        core.recorder.end(sequence);
        self.membership.board().finish(sequence);
    }

    /// Runs a call of the tiny path, whosever memory it is on.
    ///
    /// # Safety
    /// As [`Shared::run_within`].
    #[inline(always)]
    unsafe fn run_tiny_anywhere<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        begun: &Begun,
        limit: Duration,
    ) -> Result<MutexGuard<'a, Core>> {
        if call.gpus.is_some() {
            // SAFETY: handed on.
            return unsafe { self.run_tiny_bounced(core, call, begun, limit) };
        }
        let Some(combine) = begun.combine else { return Err(self.no_kernel(call)) };
        let Some(tiny) = &mut core.tiny else { unreachable!("the caller found it") };
        let mut passage = tiny.enter(call, combine, begun.tag);
        // SAFETY: handed on.
        unsafe { self.run_tiny(core, call, &mut passage, (begun, limit)) }
    }

    /// Runs a call of the tiny path on copies of a GPU's memory.
    ///
    /// # Safety
    /// As [`Shared::run_within`].
    #[cold]
    unsafe fn run_tiny_bounced<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        begun: &Begun,
        limit: Duration,
    ) -> Result<MutexGuard<'a, Core>> {
        let _whole = Whole::new();
        let waited = begun.waited(call);
        let combine = self.combine(call)?;
        let mut bounce = core.bounces.pop().unwrap_or_default();
        let bounced = bounce.prepare(call, self.rank, self.world_size);
        // SAFETY: handed on; settled before this returns.
        let loaded = bounced.and_then(|bounced| Ok((bounced, unsafe { bounce.load() }?)));
        let (bounced, bytes) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return Err(self.refused(core, error, waited)),
        };
        core.gpu_counters.loaded_bytes += bytes as u64;
        // The turn is taken before anything that may let another call in.
        let Some(tiny) = &mut core.tiny else { unreachable!("as above") };
        let mut passage = tiny.enter(&bounced, combine, begun.tag);
        let _attended = Attended::new(self);
        let mut watch = Watch::new(self, waited, limit);
        core = self.carry(core, &mut bounce, &mut watch, waited)?;
        // SAFETY: the buffers are the caller's or those of the bounce, which is kept until the end.
        core = unsafe { self.run_tiny(core, &bounced, &mut passage, (begun, limit)) }?;
        // SAFETY: handed on; settled before this returns.
        match unsafe { bounce.store() } {
            Ok(bytes) => core.gpu_counters.stored_bytes += bytes as u64,
            Err(error) => return Err(self.refused(core, error, waited)),
        }
        core = self.carry(core, &mut bounce, &mut watch, waited)?;
        core.give_back(bounce);
        Ok(core)
    }

    /// A GPU's driver refused in the middle of a call: the others cannot go on either.
    #[cold]
    fn refused(&self, core: MutexGuard<'_, Core>, error: kolo_transport::Error, waited: Waited) -> Error {
        drop(core);
        self.poison_with(Poison::Transport(error));
        self.fail(waited)
    }

    /// # Safety
    /// As [`Shared::run_within`]; the passage is the call's.
    #[inline(always)]
    unsafe fn run_tiny<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        passage: &mut Passage,
        (begun, limit): (&Begun, Duration),
    ) -> Result<MutexGuard<'a, Core>> {
        let mut polls = if self.policy.spin.is_zero() { 0 } else { POLLS_FIRST };
        loop {
            let Some(tiny) = &mut core.tiny else { unreachable!("the caller found it") };
            // SAFETY: handed on.
            match unsafe { tiny.advance(call, passage) } {
                Ok(true) => return Ok(core),
                Ok(false) => {}
                Err(mismatch) => {
                    drop(core);
                    return Err(self.tiny_mismatch(mismatch, begun.waited(call)));
                }
            }
            if polls == 0 || self.is_wanted() || core.engine.outstanding() > 0 {
                break;
            }
            polls -= 1;
            // Not more often than that: each look takes the line from whoever is about to write it.
            std::hint::spin_loop();
        }
        // SAFETY: handed on.
        unsafe { self.run_tiny_watched(core, call, passage, (begun.waited(call), limit)) }
    }

    /// The same for what takes longer, or has others to care for.
    ///
    /// # Safety
    /// As [`Shared::run_tiny`].
    #[inline(never)]
    unsafe fn run_tiny_watched<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        passage: &mut Passage,
        (waited, limit): (Waited, Duration),
    ) -> Result<MutexGuard<'a, Core>> {
        self.lend(move || {
            let _attended = Attended::new(self);
            let mut watch = Watch::of_turn(self, waited, limit, passage.turn());
            let mut moved = false;
            loop {
                // Somebody may be waiting for an earlier operation of ours before coming here.
                moved |= core.engine.outstanding() > 0 && core.turn();
                if core.line.is_stuck(&core.engine) {
                    drop(core);
                    return Err(self.fail(waited));
                }
                core = if core.is_behind_a_thread(passage.turn()) {
                    watch.until_turn(core)?
                } else {
                    watch.pause(core, moved, |core| {
                        core.tiny.as_ref().map_or_else(Vec::new, |t| t.waiting_for())
                    })?
                };
                let Some(tiny) = &mut core.tiny else { unreachable!("the caller found it") };
                let before = passage.position();
                // SAFETY: handed on.
                match unsafe { tiny.advance(call, passage) } {
                    Ok(true) => return Ok(core),
                    Ok(false) => moved = passage.position() > before,
                    Err(mismatch) => {
                        drop(core);
                        return Err(self.tiny_mismatch(mismatch, waited));
                    }
                }
            }
        })
    }

    #[cold]
    pub(super) fn tiny_mismatch(&self, found: FlatMismatch, waited: Waited) -> Error {
        let _whole = Whole::new();
        self.show_call(&self.core(), waited);
        let met = Meeting { tag: found.tag, len: 0, expected: None };
        let poison = self.mismatch(found.member as u32, met, waited);
        self.poison_with(poison);
        self.fail(waited)
    }

    unsafe fn launch(
        &self,
        core: &mut Core,
        call: &Call,
        (tag, path): (u64, Option<GpuPath>),
        mode: Mode,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Id> {
        let reduces = reduces(call.collective);
        let premultiply = match call.op {
            ReduceOp::PremulSum(factor) if reduces => Some(factor),
            _ => None,
        };
        // Scaled input is read from a copy, so the plan must not take input and output for the same memory.
        let apart = premultiply.is_some() && call.collective == Collective::ReduceScatter;
        let placement = if apart { Placement::OutOfPlace } else { call.placement };
        let planned = core.planner.plan(call, placement)?;
        let shape = match (&call.counts, planned.plan.cut) {
            (Counts::Even(count), Cut::Vector { .. }) => Shape::Vector { count: *count },
            (Counts::Even(count), Cut::PerRank) => Shape::Blocks { count: *count },
            (Counts::Uneven { input, output }, _) => {
                Shape::Irregular { input: input.clone(), output: output.clone() }
            }
        };
        // In place, vectors live in the output; a rank of a reduce that is not the root has an input only.
        let buffers = match call.placement {
            Placement::OutOfPlace => Buffers { input: call.input.cast_mut(), output: call.output },
            Placement::InPlace if call.input.is_null() => Buffers { input: call.output, output: call.output },
            Placement::InPlace => Buffers { input: call.input.cast_mut(), output: call.output },
        };
        let lent = self.lent(call, &buffers);
        let job = Job {
            plan: planned.plan,
            shape,
            buffers,
            sides: Sides {
                reach: path.map_or(Reach::Staged, |path| core.reach(path)),
                ..call.sides().clone()
            },
            data_type: call.data_type,
            combine: self.combine(call)?,
            premultiply,
            divide_by: (reduces && matches!(call.op, ReduceOp::Avg)).then_some(self.world_size),
            segment_elements: planned.segment_elements,
            window: planned.window,
            channel_base: 0,
            tag,
            lent,
            keep,
        };
        // SAFETY: handed on.
        Ok(unsafe { core.engine.start(job, mode) })
    }

    /// The host's memory that a call works on. In place, one buffer lies in the other.
    fn lent(&self, call: &Call, buffers: &Buffers) -> Lent {
        let (mut input, mut output) = call.bytes(self.rank, self.world_size);
        match call.placement {
            Placement::InPlace if input > output => output = 0,
            Placement::InPlace => input = 0,
            Placement::OutOfPlace => {}
        }
        let of = |is_gpu: bool, ptr: *mut u8, len: usize| {
            (!is_gpu && !ptr.is_null() && len > 0).then_some(Piece { ptr, len })
        };
        let sides = call.sides();
        Lent {
            input: of(sides.input.is_some(), buffers.input, input),
            output: of(sides.output.is_some(), buffers.output, output),
        }
    }

    #[inline]
    pub(super) fn combine(&self, call: &Call) -> Result<Combine> {
        if !reduces(call.collective) {
            return Ok(combine_nothing);
        }
        combine_fn(call.data_type, call.op).ok_or_else(|| self.no_kernel(call))
    }

    #[cold]
    fn no_kernel(&self, call: &Call) -> Error {
        let problem = kernel(call.data_type, call.op).err().map_or_else(String::new, |why| why.to_string());
        Error::Unsupported { context: self.context(Waited::call(call.summary(false), 0)), problem }
    }
}
