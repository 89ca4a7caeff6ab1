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

/// A call that has been numbered and recorded.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    sequence: u64,
    form: Form,
    pub(super) tag: u64,
    pub(super) combine: Combine,
    /// Path of a call on GPU memory.
    path: Option<GpuPath>,
}

impl Begun {
    /// Returns the full description of the awaited call. Most calls are over before anybody asks for it.
    pub(super) fn waited(&self, call: &Call) -> Waited {
        Waited::Call(call.summary(self.form), Some(self.sequence))
    }
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
    shared.check_process(|| Waited::unnumbered(call.summary(form)))?;
    let mut core = shared.core();
    let begun = begin(shared, &mut core, call, form)?;
    let Decision { asks_for_symmetric, executor } = core.decide(call, form);
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if asks_for_symmetric {
            ask_first(shared, core, call, executor, &begun, limit)
        } else {
            carry_out(shared, core, call, executor, &begun, limit)
        }
    }
}

/// Runs a call on symmetric buffers, or as was decided if they are not.
///
/// # Safety
/// See [`run_within`].
#[inline(never)]
unsafe fn ask_first<'a>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    call: &Call,
    executor: Executor,
    begun: &Begun,
    limit: Duration,
) -> Result<()> {
    // SAFETY: the caller's promise, passed on.
    let asked = unsafe { run_symmetric(shared, core, call, executor, begun, limit) };
    let (mut core, declined) = asked.inspect_err(|error| refused(shared, error, begun.sequence))?;
    match declined {
        // SAFETY: the caller's promise, passed on.
        Some(executor) => unsafe { carry_out(shared, core, call, executor, begun, limit) },
        None => {
            core.end_call(begun.sequence);
            Ok(())
        }
    }
}

/// Runs a call as was decided.
///
/// # Safety
/// See [`run_within`].
#[inline(always)]
unsafe fn carry_out<'a>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    call: &Call,
    executor: Executor,
    begun: &Begun,
    limit: Duration,
) -> Result<()> {
    // SAFETY: the caller's promise, passed on.
    let mut core = unsafe {
        match executor {
            Executor::Exchange { turn } if call.gpus.is_none() => {
                run_exchange(shared, core, call, turn, begun, limit)
            }
            executor => run_started(shared, core, call, executor, begun, limit),
        }
    }
    .inspect_err(|error| refused(shared, error, begun.sequence))?;
    core.end_call(begun.sequence);
    Ok(())
}

/// Runs a call as an operation of the engine, and waits for it.
///
/// # Safety
/// See [`run_within`].
#[inline(never)]
unsafe fn run_started<'a>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    call: &Call,
    executor: Executor,
    begun: &Begun,
    limit: Duration,
) -> Result<CoreGuard<'a>> {
    lend(shared, move || {
        // SAFETY: the caller's promise, passed on.
        let (core, id) = unsafe { launch(shared, core, call, executor, begun, &mut None) }?;
        let mut core = wait_for(shared, core, id, begun.waited(call), limit)?;
        core.engine.release(id);
        Ok(core)
    })
}

/// Starts a call; `keep` lives until it is done.
///
/// # Safety
/// Until the operation is done or the communicator has been aborted, the buffers of the call are valid and nobody else
/// touches them.
pub(crate) unsafe fn start(shared: &Arc<Shared>, call: &Call, mut keep: Option<Owner>) -> Result<Ticket> {
    shared.check_process(|| Waited::unnumbered(call.summary(Form::Started)))?;
    let mut core = shared.core();
    let begun = begin(shared, &mut core, call, Form::Started)?;
    let Decision { executor, .. } = core.decide(call, Form::Started);
    let (id, pending) = lend(shared, move || {
        // SAFETY: the caller's promise, passed on.
        let (mut core, id) = unsafe { launch(shared, core, call, executor, &begun, &mut keep) }?;
        let pending = !core.engine.is_done(id);
        if pending {
            core.engine.number(id, begun.sequence);
        } else {
            core.end_call(begun.sequence);
        }
        Ok((id, pending))
    })
    .inspect_err(|error| refused(shared, error, begun.sequence))?;
    if pending {
        call_helper(shared);
    }
    Ok(Ticket { id, waited: begun.waited(call) })
}

/// Numbers and records a call.
#[inline(always)]
fn begin(shared: &Shared, core: &mut Core, call: &Call, form: Form) -> Result<Begun> {
    let sequence = core.calls.sequence + 1;
    let summary = call.summary(form);
    let waited = || Waited::Call(summary, Some(sequence));
    if !shared.is_well(core) {
        check_usable(shared, core, waited())?;
    }
    if !core.engine.has_room() {
        return Err(too_many(shared, waited()));
    }
    let path = if call.gpus.is_none() { None } else { on_gpus::call_path(shared, core, call, waited())? };
    core.calls.sequence = sequence;
    let label = summary.label();
    core.calls.recorder.begin(sequence, summary, path);
    shared.membership.board().start(sequence, label);
    let Known { signature, combine } = core.calls.last.look_up(call, label);
    let tag = call::tag(shared.group.id, sequence, signature);
    Ok(Begun { sequence, form, tag, combine, path })
}

#[cold]
fn too_many(shared: &Shared, waited: Waited) -> Error {
    let problem = "too many asynchronous operations are outstanding; wait for some of them";
    Error::Usage { context: shared.context(waited), problem: problem.to_owned() }
}

/// Ends a call that was numbered and then refused. Otherwise this rank would tell others that it is inside the call.
#[cold]
fn refused(shared: &Shared, error: &Error, sequence: u64) {
    if !error.is_fatal() {
        shared.core().end_call(sequence);
    }
}

/// Starts a call with this executor. After an error, `keep` is still the caller's, who drops it without the core.
///
/// # Safety
/// See [`start`].
unsafe fn launch<'a>(
    shared: &'a Shared,
    mut core: CoreGuard<'a>,
    call: &Call,
    executor: Executor,
    begun: &Begun,
    keep: &mut Option<Owner>,
) -> Result<(CoreGuard<'a>, Id)> {
    match executor {
        Executor::Engine { reservation } => {
            let job = job(&mut core, call, begun);
            let mut job = job.inspect_err(|_| {
                if let Some(reservation) = reservation {
                    core.engine.unreserve(reservation);
                }
            })?;
            job.keep = keep.take();
            let reservation = reservation.unwrap_or_else(|| core.engine.reserve(begun.form));
            // SAFETY: the caller's promise, passed on.
            let id = unsafe { core.engine.start(reservation, job) };
            Ok((core, id))
        }
        Executor::Exchange { turn } => {
            let Core { engine, exchange: Some(exchange), .. } = &mut *core else {
                unreachable!("it was decided for")
            };
            // SAFETY: the caller's promise, passed on.
            let id = unsafe { exchange.start(engine, call, begun.combine, begun.tag, turn, keep) };
            // If a GPU's driver refuses in the middle of a call, the other ranks cannot go on either.
            let refusal = match id {
                Ok(id) => return Ok((core, id)),
                Err(refusal) => refusal,
            };
            drop(core);
            Err(give_up(shared, Cause::Transport(refusal), begun.waited(call)))
        }
    }
}

/// Describes a call as a job for the engine.
fn job(core: &mut Core, call: &Call, begun: &Begun) -> Result<Job> {
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
    let path = begun.path.filter(|_| planned.plan.stage.is_none());
    Ok(Job {
        plan: planned.plan,
        shape,
        buffers,
        gpus: GpuBuffers {
            access: path.map_or(AdapterAccess::Staged, |path| core.gpu.access(path)),
            ..call.gpus().clone()
        },
        arithmetic: call.arithmetic(begun.combine, core.planner.is_canonical()),
        segment_elements: planned.segment_elements,
        window: planned.window,
        tag: begun.tag,
        lent,
        keep: None,
    })
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
