//! Calls and messages on GPU memory: which ones these are, and how they are carried out.

use std::sync::Arc;

use kolo_gdr::{Gpu, Mode};

use super::{Core, Shared};
use crate::call::{Call, Form, Waited};
use crate::cancel::Whole;
use crate::engine::Route;
use crate::error::{Error, Result};
use crate::gpu::{Buffer, GpuPath, StagingReason};

/// Returns the GPU that owns this memory, if one does.
///
/// # Errors
/// [`Error::Unsupported`] if the driver cannot say.
pub(crate) fn owner(
    shared: &Shared,
    address: *const u8,
    bytes: usize,
    waited: impl FnOnce() -> Waited,
) -> Result<Option<Arc<Gpu>>> {
    shared.gpus.owner(address, bytes).map_err(|problem| unsupported(shared, waited(), problem))
}

/// Notes in a call on raw memory which buffers are GPU memory.
///
/// # Errors
/// See [`owner`].
pub(crate) fn locate(shared: &Shared, call: &mut Call) -> Result<()> {
    let found = shared.gpus.locate(call);
    found.map_err(|problem| unsupported(shared, Waited::unnumbered(call.summary(Form::Blocking)), problem))
}

#[cold]
fn unsupported(shared: &Shared, waited: Waited, problem: String) -> Error {
    Error::Unsupported { context: shared.context(waited), problem }
}

/// Returns the expected path of a call on GPU memory, as far as it is known beforehand.
pub(crate) fn foreseen(shared: &Shared, core: &Core, call: &Call) -> Option<GpuPath> {
    core.gpu.foreseen(call, shared.group.routes.iter().all(Route::uses_adapters))
}

/// Prepares for a call, or for a group of messages: deregisters the allocations beyond the limit.
pub(crate) fn begin(core: &mut Core) {
    core.gpu.regions.shrink(&mut core.engine);
}

/// Returns the path of a call on GPU memory, after registering the buffers that it needs.
///
/// # Errors
/// [`Error::Unsupported`] if adapters are required to reach the memory directly, and do not.
pub(crate) fn call_path(
    shared: &Shared,
    core: &mut Core,
    call: &Call,
    waited: Waited,
) -> Result<Option<GpuPath>> {
    let _whole = Whole::new();
    let Some(path) = foreseen(shared, core, call) else { return Ok(None) };
    let (input, output) = call.bytes();
    let buffers =
        [(&call.gpus().input, call.input, input), (&call.gpus().output, call.output.cast_const(), output)];
    let buffers = buffers.into_iter().filter_map(|(gpu, at, len)| Some((gpu.as_ref()?, at, len)));
    begin(core);
    settle(shared, core, path, buffers, waited).map(Some)
}

/// Returns the path of a message from or to GPU memory, after registering the memory as needed. [`begin`] comes
/// before the first of a group.
///
/// # Errors
/// See [`call_path`].
pub(crate) fn message_path(
    shared: &Shared,
    core: &mut Core,
    peer: Option<u32>,
    buffer: Buffer<'_>,
    waited: Waited,
) -> Result<GpuPath> {
    let concerned = |route: &&Route| peer.is_none_or(|peer| route.peer == peer);
    let path = match peer {
        Some(peer) if peer == shared.group.rank => GpuPath::Staged(StagingReason::ToItself),
        _ => core.gpu.direct_or(shared.group.routes.iter().filter(concerned).all(Route::uses_adapters)),
    };
    settle(shared, core, path, [buffer], waited)
}

fn settle<'a>(
    shared: &Shared,
    core: &mut Core,
    path: GpuPath,
    buffers: impl IntoIterator<Item = Buffer<'a>>,
    waited: Waited,
) -> Result<GpuPath> {
    let Core { gpu, engine, .. } = core;
    let settled = gpu.settle(engine, path, buffers, shared.config.gdr == Mode::Require);
    settled.map_err(|problem| unsupported(shared, waited, problem))
}
