//! Closed-form costs: an estimate of the simulated time in a handful of operations.
//!
//! A generator describes its algorithm as a sequence of exchanges, each priced with the constants of the [`Model`]. Two
//! quantities are summed for one segment: *path*, the time from start to end with nothing else going on; and *busy*,
//! the time that the most used shared resource (link, interface, memory bus or processor) works. Segments in flight
//! overlap, so S segments with W in flight take
//!
//! > max(path, busy) + (S - 1) max(busy, path / W)
//!
//! (without the last term where data goes one way only).
//!
//! All inputs are the same on all ranks. Costs therefore ignore where a rank's buffers lie: all are priced as out of
//! place.

mod bill;

use crate::Algorithm;
use crate::contention::LONG_BYTES;
use crate::model::Model;
use crate::plan::Collective;
use crate::task::Task;

pub(crate) use bill::{Bill, Busy, Reach, leaving};

/// How the data of one operation is cut up for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Bytes of the vector, or of the longest block where the collective has a block per rank.
    pub bytes: u64,
    /// Bytes of it per segment.
    pub segment_bytes: u64,
    /// Segments in flight, at least 1.
    pub window: u32,
}

/// Returns the seconds that `algorithm` takes for `task`, which it must support.
#[must_use]
pub fn seconds(algorithm: Algorithm, task: &Task, flow: Flow, model: &Model) -> f64 {
    let segment = flow.segment_bytes.clamp(1, flow.bytes.max(1));
    let segments = flow.bytes.div_ceil(segment).max(1);
    let mut bill = Bill::new(task, model, inbound_bytes(task, flow.bytes));
    let part = segment.min(flow.bytes) as f64;
    if task.world_size == 1 {
        bill.copy(part);
    } else {
        algorithm.generator().cost(task, part, &mut bill);
    }
    if segment as f64 > LONG_BYTES && reads_twice(task, flow.bytes, model) {
        bill.copy(segment as f64);
    }
    let busy = bill.busy.most();
    let path = bill.path;
    // Where data goes one way only, a rank is done with a segment long before the last rank is, so that the window
    // holds no rank up.
    let one_way =
        task.collective.is_rooted() || matches!(task.collective, Collective::Scan | Collective::ExScan);
    let turn = if one_way { 0.0 } else { path / f64::from(flow.window.max(1)) };
    model.call_seconds + path.max(busy) + (segments - 1) as f64 * busy.max(turn)
}

/// Returns the bytes that a rank receives in one phase of a call of `bytes`: of the vector, or of the longest block.
fn inbound_bytes(task: &Task, bytes: u64) -> f64 {
    let others = f64::from(task.world_size) - 1.0;
    match task.collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => others * bytes as f64,
        Collective::AllReduce => others / f64::from(task.world_size) * bytes as f64,
        _ => bytes as f64,
    }
}

/// Whether a rank reads its own block from memory twice if segments are long: once to send it and once to copy it into
/// its output. All-gathers of 32 and 128 MiB between two ranks over loopback TCP take 1.1 to 1.2 times as long in
/// segments of 4 MiB as in those of 512 KiB. Buffers that the caches hold make no difference, and between hosts a copy
/// costs nothing that shows.
fn reads_twice(task: &Task, bytes: u64, model: &Model) -> bool {
    let p = f64::from(task.world_size);
    // The size of the outputs alone: ranks need not agree on whether they are in place.
    let held = p * p * bytes as f64 <= HELD_BYTES;
    task.collective == Collective::AllGather && !task.has_several_hosts() && model.has_system_calls() && !held
}

/// Bytes of buffers that a large processor's caches hold.
const HELD_BYTES: f64 = 32e6;

/// Returns the bytes that the buffers of a host's ranks take for a call of `bytes`: of the vector, or of the longest
/// block.
#[must_use]
pub fn footprint_bytes(task: &Task, bytes: u64) -> f64 {
    use Collective as C;
    let p = f64::from(task.world_size);
    let (input, output) = match task.collective {
        C::AllGather => (1.0, p),
        C::ReduceScatter => (p, 1.0),
        C::AllToAll => (p, p),
        // The root has the blocks of all ranks, the others have one each.
        C::Gather | C::Scatter => (1.0, 1.0),
        C::Barrier => (0.0, 0.0),
        C::AllReduce if task.shards.is_some() => {
            (f64::from(task.shards.unwrap_or(1).div_ceil(task.world_size)), 1.0)
        }
        C::AllReduce | C::Broadcast | C::Reduce | C::Scan | C::ExScan => (1.0, 1.0),
    };
    let each = if task.collective == C::Broadcast { f64::max(input, output) } else { input + output };
    let hosts = task.host_count();
    each * bytes as f64 * f64::from(task.world_size.div_ceil(hosts))
}

/// Returns the bytes of scratch that the plan takes per byte of a segment, on the rank that needs the most.
#[must_use]
pub fn scratch_factor(algorithm: Algorithm, task: &Task) -> f64 {
    algorithm.generator().scratch_factor(task)
}
