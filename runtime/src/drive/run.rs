//! Runs a checked call, blocking or asynchronous, with the executor that [`Core::decide`] names.

use std::sync::Arc;
use std::time::Duration;

use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Collective, Cut, Placement};
use kolo_transport::Piece;

use super::exchange::run_exchange;
use super::fail::give_up;
use super::symmetric::run_symmetric;
use super::{call_helper, check_usable, lend, wait_for};
use crate::call::{self, AdapterAccess, Call, Counts, Form, GpuBuffers, Waited};
use crate::communicator::{Core, CoreGuard, Shared, on_gpus};
use crate::dispatch::{Decision, Executor, Known};
use crate::engine::{Buffers, Id, Job, Lent, Owner};
use crate::error::{Error, Result};
use crate::failure::Cause;
use crate::gpu::GpuPath;
use crate::reduce::Combine;

/// An asynchronous operation that was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: Id,
    pub(crate) waited: Waited,
}

/// Runs a call and waits for it, with the time-out of the settings.
///
/// # Safety
/// See [`run_within`].
pub(crate) unsafe fn run(shared: &Shared, call: &Call) -> Result<()> {
    // SAFETY: the caller's promise, passed on.
    unsafe { run_within(shared, call, shared.config.timeout) }
}

/// Runs a call and waits for it, at most for `limit`.
///
/// # Safety
/// Until this returns, the buffers of the call are valid and nobody else touches them.
pub(crate) unsafe fn run_within(shared: &Shared, call: &Call, limit: Duration) -> Result<()> {
    // SAFETY: the caller's promise, passed on.
    unsafe { run_as(shared, call, Form::Blocking, limit) }
}

/// Starts a call and drives it at once, without calling the helper thread.
///
/// # Safety
/// See [`run_within`].
pub(crate) unsafe fn start_and_wait(shared: &Shared, call: &Call, limit: Duration) -> Result<()> {
    // SAFETY: the caller's promise, passed on.
    unsafe { run_as(shared, call, Form::Started, limit) }
}

/// # Safety
/// See [`run_within`].
#[inline(always)]
unsafe fn run_as(shared: &Shared, call: &Call, form: Form, limit: Duration) -> Result<()> {
    let (begun, core) = Begun::new(shared, call, form)?;
    let Decision { asks_for_symmetric, executor } = core.decide(call, form);
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if asks_for_symmetric {
            begun.ask_first(core, executor, limit)
        } else {
            begun.carry_out(core, executor, limit)
        }
    }
}

/// Starts a call; `keep` lives until it is done.
///
/// # Safety
/// Until the operation is done or the communicator has been aborted, the buffers of the call are valid and nobody else
/// touches them.
pub(crate) unsafe fn start(shared: &Arc<Shared>, call: &Call, mut keep: Option<Owner>) -> Result<Ticket> {
    let (begun, core) = Begun::new(shared, call, Form::Started)?;
    let Decision { executor, .. } = core.decide(call, Form::Started);
    let (id, pending) = lend(shared, move || {
        // SAFETY: the caller's promise, passed on.
        let (mut core, id) = unsafe { begun.launch(core, executor, &mut keep) }?;
        let pending = !core.engine.is_done(id);
        if pending {
            core.engine.number(id, begun.sequence);
        } else {
            core.end_call(begun.sequence);
        }
        Ok((id, pending))
    })
    .inspect_err(|error| begun.refused(error))?;
    if pending {
        call_helper(shared);
    }
    Ok(Ticket { id, waited: begun.waited() })
}

/// A call that has been numbered and recorded.
#[derive(Clone, Copy)]
pub(super) struct Begun<'a> {
    pub(super) shared: &'a Shared,
    pub(super) call: &'a Call,
    sequence: u64,
    form: Form,
    pub(super) tag: u64,
    pub(super) combine: Combine,
    /// Path of a call on GPU memory.
    path: Option<GpuPath>,
}

impl<'a> Begun<'a> {
    /// Numbers and records a call. Returns it with the core.
    #[inline(always)]
    fn new(shared: &'a Shared, call: &'a Call, form: Form) -> Result<(Self, CoreGuard<'a>)> {
        shared.check_process(|| Waited::unnumbered(call.summary(form)))?;
        let mut core = shared.core();
        let sequence = core.calls.sequence + 1;
        let summary = call.summary(form);
        let waited = || Waited::Call(summary, Some(sequence));
        if !shared.is_well(&core) {
            check_usable(shared, &core, waited())?;
        }
        if !core.engine.has_room() {
            return Err(too_many(shared, waited()));
        }
        let path =
            if call.gpus.is_none() { None } else { on_gpus::call_path(shared, &mut core, call, waited())? };
        core.calls.sequence = sequence;
        let label = summary.label();
        core.calls.recorder.begin(sequence, summary, path);
        shared.membership.board().start(sequence, label);
        let Known { signature, combine } = core.calls.last.look_up(call, label);
        let tag = call::tag(shared.group.id, sequence, signature);
        Ok((Self { shared, call, sequence, form, tag, combine, path }, core))
    }

    /// Returns the full description of the awaited call. Most calls are over before anybody asks for it.
    pub(super) fn waited(&self) -> Waited {
        Waited::Call(self.call.summary(self.form), Some(self.sequence))
    }

    /// Runs a call on symmetric buffers, or with this executor if they are not.
    ///
    /// # Safety
    /// See [`run_within`].
    #[inline(never)]
    unsafe fn ask_first(&self, core: CoreGuard<'a>, executor: Executor, limit: Duration) -> Result<()> {
        // SAFETY: the caller's promise, passed on.
        let asked = unsafe { run_symmetric(self, core, executor, limit) };
        let (mut core, declined) = asked.inspect_err(|error| self.refused(error))?;
        match declined {
            // SAFETY: the caller's promise, passed on.
            Some(executor) => unsafe { self.carry_out(core, executor, limit) },
            None => {
                core.end_call(self.sequence);
                Ok(())
            }
        }
    }

    /// Runs a call with this executor.
    ///
    /// # Safety
    /// See [`run_within`].
    #[inline(always)]
    unsafe fn carry_out(&self, core: CoreGuard<'a>, executor: Executor, limit: Duration) -> Result<()> {
        // SAFETY: the caller's promise, passed on.
        let mut core = unsafe {
            match executor {
                Executor::Exchange { turn } if self.call.gpus.is_none() => {
                    run_exchange(self, core, turn, limit)
                }
                executor => self.run_started(core, executor, limit),
            }
        }
        .inspect_err(|error| self.refused(error))?;
        core.end_call(self.sequence);
        Ok(())
    }

    /// Runs a call as an operation of the engine, and waits for it.
    ///
    /// # Safety
    /// See [`run_within`].
    #[inline(never)]
    unsafe fn run_started(
        &self,
        core: CoreGuard<'a>,
        executor: Executor,
        limit: Duration,
    ) -> Result<CoreGuard<'a>> {
        lend(self.shared, move || {
            // SAFETY: the caller's promise, passed on.
            let (core, id) = unsafe { self.launch(core, executor, &mut None) }?;
            let mut core = wait_for(self.shared, core, id, self.waited(), limit)?;
            core.engine.release(id);
            Ok(core)
        })
    }

    /// Starts a call with this executor. After an error, `keep` is still the caller's, who drops it without the core.
    ///
    /// # Safety
    /// See [`start`].
    unsafe fn launch(
        &self,
        mut core: CoreGuard<'a>,
        executor: Executor,
        keep: &mut Option<Owner>,
    ) -> Result<(CoreGuard<'a>, Id)> {
        match executor {
            Executor::Engine { reservation } => {
                let mut job = self.job(&mut core).inspect_err(|_| {
                    if let Some(reservation) = reservation {
                        core.engine.unreserve(reservation);
                    }
                })?;
                job.keep = keep.take();
                let reservation = reservation.unwrap_or_else(|| core.engine.reserve(self.form));
                // SAFETY: the caller's promise, passed on.
                let id = unsafe { core.engine.start(reservation, job) };
                Ok((core, id))
            }
            Executor::Exchange { turn } => {
                let Core { engine, exchange: Some(exchange), .. } = &mut *core else {
                    unreachable!("it was decided for")
                };
                // SAFETY: the caller's promise, passed on.
                let id = unsafe { exchange.start(engine, self.call, self.combine, self.tag, turn, keep) };
                // If a GPU's driver refuses in the middle of a call, the other ranks cannot go on either.
                let refusal = match id {
                    Ok(id) => return Ok((core, id)),
                    Err(refusal) => refusal,
                };
                drop(core);
                Err(give_up(self.shared, Cause::Transport(refusal), self.waited()))
            }
        }
    }

    /// Describes a call as a job for the engine.
    fn job(&self, core: &mut Core) -> Result<Job> {
        let call = self.call;
        // Scaled input is read from a copy, so the plan must not assume that input and output are the same memory.
        let apart = call.factor().is_some() && call.collective == Collective::ReduceScatter;
        let placement = if apart { Placement::OutOfPlace } else { call.placement };
        let planned = core.planner.plan(call, placement)?;
        let shape = match (&call.counts, planned.plan.cut) {
            (Counts::Even(count) | Counts::Shards(count), Cut::Vector { .. } | Cut::Shards { .. }) => {
                Shape::Vector { count: *count }
            }
            (Counts::Even(count) | Counts::Shards(count), Cut::PerRank) => Shape::Blocks { count: *count },
            (Counts::Uneven { input, output }, _) => {
                Shape::Irregular { input: input.clone(), output: output.clone() }
            }
        };
        // In place, vectors lie in the output; a non-root rank of a reduce has only an input.
        let buffers = match call.placement {
            Placement::OutOfPlace => Buffers { input: call.input.cast_mut(), output: call.output },
            Placement::InPlace if call.input.is_null() => Buffers { input: call.output, output: call.output },
            Placement::InPlace => Buffers { input: call.input.cast_mut(), output: call.output },
        };
        let lent = lent(call, &buffers);
        // CPUs publish and reduce on a stage, so data of a GPU is first copied to the host.
        let path = self.path.filter(|_| planned.plan.stage.is_none());
        Ok(Job {
            plan: planned.plan,
            shape,
            buffers,
            gpus: GpuBuffers {
                access: path.map_or(AdapterAccess::Staged, |path| core.gpu.access(path)),
                ..call.gpus().clone()
            },
            arithmetic: call.arithmetic(self.combine, core.planner.is_canonical()),
            segment_elements: planned.segment_elements,
            window: planned.window,
            tag: self.tag,
            lent,
            keep: None,
        })
    }

    /// Ends a call that was refused. Otherwise this rank would tell others that it is inside the call.
    #[cold]
    fn refused(&self, error: &Error) {
        if !error.is_fatal() {
            self.shared.core().end_call(self.sequence);
        }
    }
}

#[cold]
fn too_many(shared: &Shared, waited: Waited) -> Error {
    let problem = "too many asynchronous operations are outstanding; wait for some of them";
    Error::Usage { context: shared.context(waited), problem: problem.to_owned() }
}

/// Returns the host memory that a call works on. In place, one buffer lies within the other.
fn lent(call: &Call, buffers: &Buffers) -> Lent {
    let (mut input, mut output) = call.bytes();
    match call.placement {
        Placement::InPlace if input > output => output = 0,
        Placement::InPlace => input = 0,
        Placement::OutOfPlace => {}
    }
    let of = |is_gpu: bool, ptr: *mut u8, len: usize| {
        (!is_gpu && !ptr.is_null() && len > 0).then_some(Piece { ptr, len })
    };
    let gpus = call.gpus();
    Lent {
        input: of(gpus.input.is_some(), buffers.input, input),
        output: of(gpus.output.is_some(), buffers.output, output),
    }
}
