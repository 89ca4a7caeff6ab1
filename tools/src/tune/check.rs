//! `kolo tune --check`, on every rank: times the chosen algorithm and its alternatives.
//!
//! Among few ranks several algorithms may coincide: they have the same steps on every rank, in the same segments. They
//! are timed once, under the name of the first, since any measured difference would be noise.

use std::hash::{DefaultHasher, Hash, Hasher};

use kolo::{Collective, Communicator, Config, DataType, RawCall, ReduceOp, Route};
use kolo_collectives::model::Model;
use kolo_collectives::plan::{Placement, Plan};
use kolo_collectives::select::Request;
use kolo_collectives::{Algorithm, Task};
use serde::{Deserialize, Serialize};

use super::timing::{Buffers, call, in_turn};
use crate::error::Result;

/// Sizes from one word to more than any cache holds.
const SIZES: [usize; 9] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20];

/// Number of rounds; their median counts.
const ROUNDS: usize = 5;

/// A plan that is expected to take this many times as long as the best is not timed.
const HOPELESS: f64 = 8.0;

/// Name of the way that is timed beside the algorithms: the exchange inside a host, which needs no plan.
pub(super) const EXCHANGE: &str = "exchange";

/// The collectives that are checked.
pub(super) const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

/// Times of one collective on a number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Checked {
    /// The constants in force.
    pub model: Model,
    /// Times by size.
    pub points: Vec<Point>,
}

/// Times of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Point {
    /// Bytes of the vector, or of the blocks of all ranks together.
    pub bytes: u64,
    /// Kolo's choice, by name.
    pub chosen: String,
    /// Seconds that each candidate takes, by name.
    pub seconds: Vec<(String, f64)>,
}

impl Point {
    /// Returns the seconds of the chosen candidate, and name and seconds of the best one.
    pub(super) fn verdict(&self) -> Option<(f64, &str, f64)> {
        let chosen = self.seconds.iter().find(|(name, _)| *name == self.chosen)?.1;
        let (best, seconds) = self.seconds.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((chosen, best, *seconds))
    }
}

/// Returns whether [`call`] runs the collective in place.
pub(super) const fn is_in_place(collective: Collective) -> bool {
    !matches!(collective, Collective::ReduceScatter | Collective::AllToAll)
}

/// Times a collective at all sizes.
pub(super) fn run(comm: &Communicator, collective: Collective) -> Result<Checked> {
    let ranks = comm.world_size();
    let mut task = Task::new(collective, ranks);
    if is_in_place(collective) {
        task.placement = Placement::InPlace;
    }
    if comm.routes().iter().all(Route::shares_memory) {
        task = task.with_stages();
    }
    let with = |config: Config| -> Result<Communicator> { Ok(comm.duplicate(config)?) };
    let mut candidates = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(&task).is_ok()) {
        let algorithms = format!("{collective}:{algorithm}");
        let forced = with(comm.config().clone().with(|config| config.algorithms = algorithms))?;
        candidates.push((algorithm.name().to_owned(), Some(algorithm), forced));
    }
    let mut buffers = Buffers::new(SIZES[SIZES.len() - 1]);
    let by_exchange = with(comm.config().clone().with(|config| config.exchange_bytes = Some(1 << 30)))?;
    if chosen(&by_exchange, collective, SIZES[0], &buffers)? == EXCHANGE {
        candidates.push((EXCHANGE.to_owned(), None, by_exchange));
    }
    let mut points = Vec::new();
    for bytes in SIZES {
        let block = if collective.has_block_per_rank() { (bytes / ranks as usize).max(4) } else { bytes };
        let expected = |algorithm: Algorithm| {
            Request::new(&task, block as u64, 4)
                .forced(algorithm)
                .select(&comm.model())
                .map_or(f64::INFINITY, |choice| choice.cost_seconds)
        };
        let costs: Vec<f64> =
            candidates.iter().map(|(_, algorithm, _)| algorithm.map_or(0.0, expected)).collect();
        let least = costs.iter().copied().filter(|cost| *cost > 0.0).fold(f64::INFINITY, f64::min);
        let chosen = chosen(comm, collective, block, &buffers)?;
        let ways: Vec<_> = candidates
            .iter()
            .map(|(_, algorithm, _)| {
                (*algorithm).map(|algorithm| way(&task, block as u64, &comm.model(), algorithm))
            })
            .collect();
        let first_alike = |way| ways.iter().position(|other| other == way).unwrap_or_default();
        let chosen = candidates
            .iter()
            .position(|(name, ..)| *name == chosen)
            .map_or(chosen.to_owned(), |chosen| candidates[first_alike(&ways[chosen])].0.clone());
        let worthy: Vec<_> = candidates
            .iter()
            .zip(&costs)
            .enumerate()
            .filter(|(number, _)| first_alike(&ways[*number]) == *number)
            .filter(|(_, ((name, ..), cost))| **cost <= HOPELESS * least || *name == chosen)
            .map(|(_, (candidate, _))| candidate)
            .collect();
        let seconds = in_turn(comm, worthy.len(), ROUNDS, |thing, number| {
            call(&worthy[thing].2, collective, bytes, number, &mut buffers)
        })?;
        let names = worthy.iter().map(|(name, ..)| name.clone());
        points.push(Point { bytes: bytes as u64, chosen, seconds: names.zip(seconds).collect() });
    }
    Ok(Checked { model: comm.model(), points })
}

/// Identifies how an algorithm does a task: a hash of the steps of all ranks and of their segments.
fn way(task: &Task, bytes: u64, model: &Model, algorithm: Algorithm) -> u64 {
    let mut hash = DefaultHasher::new();
    match Request::new(task, bytes, 4).forced(algorithm).select(model) {
        Ok(choice) => {
            let task = task.clone().with_params(choice.params);
            for rank in 0..task.world_size {
                Plan { algorithm: "", ..algorithm.plan(&task, rank) }.hash(&mut hash);
            }
            (choice.segment_bytes.min(bytes as usize), choice.window).hash(&mut hash);
        }
        Err(_) => algorithm.hash(&mut hash),
    }
    hash.finish()
}

/// Returns the name of Kolo's choice.
fn chosen(
    comm: &Communicator,
    collective: Collective,
    block: usize,
    buffers: &Buffers,
) -> Result<&'static str> {
    let (input, output) = buffers.places(collective, block * comm.rank() as usize);
    let count = (block / 4).max(1);
    let call =
        RawCall { collective, input, output, count, data_type: DataType::F32, op: ReduceOp::Sum, root: 0 };
    Ok(comm.way(&call)?)
}
