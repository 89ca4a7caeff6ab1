//! Selection of the algorithm, its parameters and its segments: the cheapest by the cost model among those that can
//! serve a call.
//!
//! Selection is a pure function of facts that are the same on all ranks, so all ranks choose alike without
//! communication.

use std::fmt;

use serde::Serialize;

use crate::Algorithm;
use crate::cost::{Flow, footprint_bytes, seconds};
use crate::model::Model;
use crate::plan::Collective;
use crate::task::{Params, Task};

/// The order of reduction that a call asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The same order on all ranks and in every run.
    #[default]
    Any,
    /// Also independent of size, segments, parameters, algorithm and transport: see [`Algorithm::is_canonical`].
    Canonical,
}

/// The outcome of a selection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its parameters: those of the task, except where the selection tuned them for the algorithm.
    pub params: Params,
    /// Bytes per segment, of the vector or of the longest block; a multiple of the element size.
    pub segment_bytes: usize,
    /// Segments in flight.
    pub window: usize,
    /// The most segments in flight for which the transports offer channels.
    pub window_max: usize,
    /// `Some` if the plan of any rank uses stages: the longest segment, in bytes, with which no payload is longer than
    /// [`PAYLOAD_BYTES_MAX`](crate::stage::PAYLOAD_BYTES_MAX).
    pub staged_segment_bytes_max: Option<usize>,
    /// The expected time.
    pub cost_seconds: f64,
    /// The other algorithms with their expected times, or the reasons why they cannot serve. Those that can come first,
    /// the cheapest first.
    pub losers: Vec<(Algorithm, Result<f64, String>)>,
    /// The reason for this choice, in a sentence.
    pub reason: String,
}

/// The reason why no algorithm was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// The requested algorithm cannot serve the call.
    Forced {
        /// The requested algorithm.
        algorithm: Algorithm,
        /// The operation.
        collective: Collective,
        /// The obstacle.
        reason: String,
    },
    /// No algorithm can serve the call.
    None {
        /// The operation.
        collective: Collective,
        /// The obstacle for each algorithm.
        reasons: Vec<(Algorithm, String)>,
    },
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced { algorithm, collective, reason } => {
                write!(f, "{algorithm} was requested but cannot serve {collective}: {reason}")
            }
            Self::None { collective, reasons } => {
                write!(f, "no algorithm can serve {collective}")?;
                for (algorithm, reason) in reasons {
                    write!(f, "; {algorithm}: {reason}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for SelectError {}

/// Longest segment: longer ones fall out of the cache between the producer and the consumer of a chunk.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// Longest segment of exchanges for which ranks that share processors take turns: the data on its way out and in stays
/// in the second-level cache. An all-to-all of 8 to 128 MiB in segments of 2 MiB takes 1.2 to 1.3 times as long among 4
/// ranks on 2 processors, and 1.03 to 1.08 times among 8 ranks.
const SEGMENT_BYTES_TURNS: u64 = 256 << 10;

/// Longest segment of reductions that are passed on between ranks that share processors: a segment, a rank's own data
/// and the sum fit into the second-level cache together, for all ranks of the processor. See docs/measurements.md,
/// "Reductions among ranks that share processors, over TCP".
const SEGMENT_BYTES_HANDED_ON: u64 = 32 << 10;

/// Longest segment of broadcasts over loopback, of vectors up to [`LOOPBACK_CACHED_BYTES`], where ranks have processors
/// of their own. With a single segment the two ends of a connection get in each other's way; with two segments they
/// take turns. In one piece, 1 to 8 MiB between two ranks take as long where the processors are near each other, and
/// 1.3 to 1.65 times as long where they are far apart.
const SEGMENT_BYTES_LOOPBACK: u64 = 512 << 10;

/// Bytes that the caches hold at both ends. For longer vectors, segments of 4 MiB are up to a twentieth faster.
const LOOPBACK_CACHED_BYTES: u64 = 8 << 20;

/// Shortest segment of a vector where data goes both ways. Measured on shared memory and loopback TCP with 2 to 8
/// ranks, segments of 64 KiB cost 1.3 to 2 times as much as those of 1 MiB, since every segment is a round of
/// hand-overs.
const SEGMENT_BYTES_VECTOR: u64 = 1 << 20;

/// Shortest segment of a block where every rank has one: as many blocks as ranks are in flight.
const SEGMENT_BYTES_BLOCK: u64 = 256 << 10;

/// Shortest segment where data goes one way only: a rank passes a segment on when it has all of it, so that short ones
/// fill the pipeline sooner.
const SEGMENT_BYTES_ONE_WAY: u64 = 64 << 10;

/// Segments in flight on a [long way](Model::has_long_ways), for algorithms that send [all the
/// time](crate::generator::Generator::is_steady). Two segments leave the links idle while their rounds wait: see
/// docs/measurements.md, "Long paths".
const WINDOWS_LONG: [u32; 3] = [2, 4, 8];

fn shortest_segment(collective: Collective) -> u64 {
    match collective {
        Collective::Broadcast | Collective::Reduce | Collective::Scan | Collective::ExScan => {
            SEGMENT_BYTES_ONE_WAY
        }
        Collective::AllReduce | Collective::Barrier => SEGMENT_BYTES_VECTOR,
        _ => SEGMENT_BYTES_BLOCK,
    }
}

/// Limit on the scratch of all segments in flight. Scratch memory must not grow with messages or ranks.
const SCRATCH_BYTES: f64 = (16 << 20) as f64;

/// A call that needs an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    task: &'a Task,
    bytes: u64,
    element_size: u64,
    irregular: bool,
    order: Order,
    force: Option<Algorithm>,
}

impl<'a> Request<'a> {
    /// Describes a call for `bytes` bytes: of the vector, or of the longest block where the collective has a block per
    /// rank (0 if not all ranks know that).
    #[must_use]
    pub fn new(task: &'a Task, bytes: u64, element_size: usize) -> Self {
        let bytes = if task.collective == Collective::Barrier { 0 } else { bytes };
        let element_size = element_size.max(1) as u64;
        Self { task, bytes, element_size, irregular: false, order: Order::Any, force: None }
    }

    /// Sets whether blocks differ in length.
    #[must_use]
    pub const fn irregular(self, irregular: bool) -> Self {
        Self { irregular, ..self }
    }

    /// Sets the order of reduction.
    #[must_use]
    pub const fn ordered(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Requests an algorithm; `None` requests the cheapest that can serve the call.
    #[must_use]
    pub fn forced(self, algorithm: impl Into<Option<Algorithm>>) -> Self {
        Self { force: algorithm.into(), ..self }
    }

    /// Chooses an algorithm.
    ///
    /// # Errors
    /// If the requested algorithm cannot serve the call, or none can.
    pub fn select(&self, model: &Model) -> Result<Choice, SelectError> {
        select(self, model)
    }
}

fn select(request: &Request<'_>, model: &Model) -> Result<Choice, SelectError> {
    let Request { task, bytes, element_size, irregular, order, force } = *request;
    let model = &model.with_footprint(footprint_bytes(task, bytes));
    let mut candidates: Vec<(f64, Algorithm, Params, Flow)> = Vec::new();
    let mut unfit: Vec<(Algorithm, String)> = Vec::new();
    for algorithm in Algorithm::ALL {
        match may_serve(algorithm, task, irregular, order) {
            Ok(()) => {
                let (cost, params, flow) = tune(algorithm, task, bytes, element_size, model);
                candidates.push((cost, algorithm, params, flow));
            }
            Err(reason) => unfit.push((algorithm, reason)),
        }
    }
    // The sort is stable: among equals, the first in the list of algorithms wins.
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let position = match force {
        None => 0,
        Some(forced) => match candidates.iter().position(|candidate| candidate.1 == forced) {
            Some(position) => position,
            None => {
                let reason = unfit.into_iter().find(|(algorithm, _)| *algorithm == forced);
                return Err(SelectError::Forced {
                    algorithm: forced,
                    collective: task.collective,
                    reason: reason.map_or_else(String::new, |(_, reason)| reason),
                });
            }
        },
    };
    if candidates.is_empty() {
        return Err(SelectError::None { collective: task.collective, reasons: unfit });
    }
    let (cost_seconds, algorithm, params, flow) = candidates.remove(position);
    let reason = match (force, candidates.first()) {
        (Some(_), _) => format!("requested; expected to take {}", Micros(cost_seconds)),
        (None, None) => "the only one that can".to_owned(),
        (None, Some((next, other, ..))) => {
            format!("expected to take {}, before {other} with {}", Micros(cost_seconds), Micros(*next))
        }
    };
    let losers = candidates.into_iter().map(|(cost, algorithm, ..)| (algorithm, Ok(cost)));
    let losers =
        losers.chain(unfit.into_iter().map(|(algorithm, reason)| (algorithm, Err(reason)))).collect();
    let tuned = Task { params, ..task.clone() };
    let staged = algorithm.generator().staged_segments(&tuned);
    Ok(Choice {
        algorithm,
        params,
        window_max: window_max(algorithm, &tuned) as usize,
        staged_segment_bytes_max: staged.map(|segments| segments.most as usize),
        segment_bytes: flow.segment_bytes as usize,
        window: flow.window as usize,
        cost_seconds,
        losers,
        reason,
    })
}

struct Micros(f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} us", self.0 * 1e6)
    }
}

/// Checks whether an algorithm can do a call; the error tells users why not.
pub(crate) fn may_serve(
    algorithm: Algorithm,
    task: &Task,
    irregular: bool,
    order: Order,
) -> Result<(), String> {
    algorithm.supports(task)?;
    if irregular && !algorithm.serves_irregular(task.collective) {
        return Err("it needs blocks of equal length".to_owned());
    }
    if order == Order::Canonical && !algorithm.is_canonical(task) {
        return Err("its order of reduction is not the canonical one".to_owned());
    }
    Ok(())
}

/// Finds the best segment size and parameters for one algorithm.
fn tune(
    algorithm: Algorithm,
    task: &Task,
    bytes: u64,
    element_size: u64,
    model: &Model,
) -> (f64, Params, Flow) {
    let mut best: Option<(f64, Params, Flow)> = None;
    for window in windows(algorithm, task, model) {
        for segment_bytes in segment_sizes(algorithm, task, bytes, element_size, window, model) {
            let parts = algorithm.generator().parts(task, segment_bytes.min(bytes), model);
            for width in widths(algorithm, task, model) {
                let params = Params { parts, width, ..task.params };
                let tuned = Task { params, ..task.clone() };
                let flow =
                    Flow { bytes, segment_bytes, window: if segment_bytes >= bytes { 1 } else { window } };
                let cost = seconds(algorithm, &tuned, flow, model);
                if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    best = Some((cost, params, flow));
                }
            }
        }
    }
    best.unwrap_or_else(|| unreachable!("there is at least one size"))
}

/// Returns the most segments in flight for which there are channels.
fn window_max(algorithm: Algorithm, task: &Task) -> u32 {
    u32::from(task.channels / algorithm.channels(task)).max(1)
}

/// Returns the numbers of segments in flight to try, fewest first: among equal costs, the first wins.
fn windows(algorithm: Algorithm, task: &Task, model: &Model) -> Vec<u32> {
    let most = window_max(algorithm, task);
    let mut windows: Vec<u32> =
        best_windows(algorithm, task, model).into_iter().map(|window| window.min(most)).collect();
    windows.dedup();
    windows
}

/// Returns the numbers of segments in flight to try where there are channels for any number.
fn best_windows(algorithm: Algorithm, task: &Task, model: &Model) -> Vec<u32> {
    if let Some((_, window)) = between_hosts(algorithm, task, model) {
        return vec![window];
    }
    match algorithm.generator().window() {
        // A rank that has the processor takes and passes on as many segments as are there. More in flight would only
        // take more memory.
        Some(_) if hands_on(algorithm, task, model) => vec![1],
        Some(window) => vec![window],
        // Ranks of a host that share processors have nothing to overlap with: each runs only while another one waits.
        None if model.oversubscription > 1.0 && !task.has_several_hosts() => vec![1],
        // A single exchange, in which the kernel holds the data that the other rank has not reached yet: one segment is
        // as fast as two.
        None if task.collective == Collective::AllGather
            && task.world_size == 2
            && model.has_system_calls() =>
        {
            vec![1]
        }
        None if algorithm.generator().is_steady() && task.has_several_hosts() && model.has_long_ways() => {
            WINDOWS_LONG.to_vec()
        }
        None => vec![2],
    }
}

/// Returns the lengths of segments to try, if `window` of them are in flight.
fn segment_sizes(
    algorithm: Algorithm,
    task: &Task,
    bytes: u64,
    element: u64,
    window: u32,
    model: &Model,
) -> Vec<u64> {
    let generator = algorithm.generator();
    let longest = longest_segment(algorithm, task, bytes, model);
    let shortest = between_hosts(algorithm, task, model)
        .map(|(shortest, _)| shortest)
        .or_else(|| generator.shortest_segment())
        .unwrap_or_else(|| shortest_segment(task.collective));
    let aligned = |size: u64| (size / element).max(1) * element;
    let scratch = generator.scratch_factor(task);
    let whole = bytes.next_multiple_of(element).max(element);
    let staged = generator.staged_segments(task).is_some();
    let mut sizes: Vec<u64> = Vec::new();
    let mut size = longest;
    loop {
        // With scratch for many blocks, segments are shorter than would otherwise pay.
        let fits = scratch * size as f64 * f64::from(window) <= SCRATCH_BYTES;
        if fits && size < whole {
            sizes.push(aligned(if staged { even(whole, size) } else { size }));
        }
        // Inside a host, only the length that was measured best is tried.
        let measured = staged && !task.has_several_hosts();
        if (size <= shortest || measured) && (fits || size <= 1 << 10) {
            break;
        }
        size /= 2;
    }
    if whole <= longest && scratch * whole as f64 <= SCRATCH_BYTES {
        sizes.insert(0, whole);
    }
    if sizes.is_empty() {
        sizes.push(aligned(size));
    }
    sizes
}

fn longest_segment(algorithm: Algorithm, task: &Task, bytes: u64, model: &Model) -> u64 {
    let loopback = model.has_system_calls() && model.oversubscription <= 1.0 && !task.has_several_hosts();
    let broadcast = task.collective == Collective::Broadcast;
    if let Some(segments) = algorithm.generator().staged_segments(task) {
        // Parts that begin in the middle of a cache line make reductions slower.
        (segments.best / GRAIN_BYTES * GRAIN_BYTES).max(GRAIN_BYTES).min(segments.most)
    } else if hands_on(algorithm, task, model) {
        SEGMENT_BYTES_HANDED_ON
    } else if takes_turns(algorithm, task, model) {
        SEGMENT_BYTES_TURNS
    } else if broadcast && loopback && bytes <= LOOPBACK_CACHED_BYTES {
        SEGMENT_BYTES_LOOPBACK
    } else {
        SEGMENT_BYTES_MAX
    }
}

/// Returns the length of equal segments of `whole`, none longer than `longest`: a short last segment would cost as many
/// synchronizations as the others.
fn even(whole: u64, longest: u64) -> u64 {
    whole.div_ceil(whole.div_ceil(longest)).next_multiple_of(GRAIN_BYTES).min(longest)
}

/// Two cache lines, and a whole number of elements of any type.
const GRAIN_BYTES: u64 = 128;

/// Returns the numbers of exchanges in flight to try: the task's, and also one at a time where ranks that share
/// processors get in each other's way.
fn widths(algorithm: Algorithm, task: &Task, model: &Model) -> impl Iterator<Item = u16> {
    let one = takes_turns(algorithm, task, model) && task.params.width > 1;
    std::iter::once(task.params.width).chain(one.then_some(1))
}

fn takes_turns(algorithm: Algorithm, task: &Task, model: &Model) -> bool {
    algorithm.generator().takes_turns(task) && shares_processors(model)
}

/// Whether ranks that share the processors of one host hand segments on to each other.
fn hands_on(algorithm: Algorithm, task: &Task, model: &Model) -> bool {
    algorithm.generator().hands_on(task) && !task.has_several_hosts() && shares_processors(model)
}

/// Returns the shortest segment and the number in flight of an algorithm that has its own for a near network.
fn between_hosts(algorithm: Algorithm, task: &Task, model: &Model) -> Option<(u64, u32)> {
    let is_near = task.has_several_hosts() && !model.has_long_ways();
    algorithm.generator().segments_between_hosts(task, model).filter(|_| is_near)
}

fn shares_processors(model: &Model) -> bool {
    model.oversubscription > 1.0 && model.has_system_calls()
}
