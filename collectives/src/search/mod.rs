//! Search for plans that suit a given network: makes candidates from the rates of hosts and pairs, and takes the
//! fastest in the simulator.
//!
//! | candidates | networks where they win |
//! |---|---|
//! | every algorithm of the table | hosts that are alike |
//! | trees packed so that no interface and no pair is busier than necessary (`pack`, `weave`) | a slow host, a slow pair, interfaces of different rates: shares in proportion to rates, and relays that reduce |
//!
//! The search measures its work in simulated steps, never in seconds, so that it finds the same plans on every machine.
//! The result is a [`PlanSet`], proved by the checker.

mod pack;
mod weave;

use std::sync::Arc;

use crate::layout::Shape;
use crate::plan::{Collective, Cut, Placement, Plan};
use crate::plan_set::{PlanSet, Serves};
use crate::select::Request;
use crate::simulate::{Cluster, simulate};
use crate::{Algorithm, Task};

/// The plans found for calls of one length.
#[derive(Clone, Debug)]
pub struct Found {
    /// The plans.
    pub set: PlanSet,
    /// Their time in the simulator.
    pub seconds: f64,
    /// The algorithm that is fastest in the simulator, and its time.
    pub built_in: (Algorithm, f64),
}

/// Plans are only worth a file if they take less than this share of the best algorithm's time.
pub const WORTH: f64 = 0.95;

/// Limit on the steps of one simulation, over all ranks and segments; longer ones are skipped.
const STEPS_MAX: usize = 3_000_000;

/// Limit on the steps of all simulations of a search: some seconds of work.
const EFFORT_STEPS: usize = 40_000_000;

/// Trees for each host, among which the parts of a vector are distributed.
const TREES_PER_HOST: usize = 16;

/// The collectives for which the search may find better plans.
pub const COLLECTIVES: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast];

/// Bytes of a segment, and number of segments in flight.
type Run = (u64, u32);

/// Checks that [`search`] can search for such plans.
///
/// # Errors
/// As [`search`].
pub fn check(collective: Collective, root: u32, cluster: &Cluster) -> Result<(), String> {
    let ranks = cluster.world_size();
    if !COLLECTIVES.contains(&collective) {
        let names = COLLECTIVES.map(Collective::name).join(", ");
        return Err(format!("plan search supports {names}, but not {collective}"));
    }
    if cluster.hosts < 2 || ranks > 512 {
        return Err("plan search supports 2 to 512 ranks on several hosts".to_owned());
    }
    if root >= ranks {
        return Err(format!("root {root} is out of range: there are {ranks} ranks, 0 to {}", ranks - 1));
    }
    Ok(())
}

/// Searches plans for calls of `bytes` bytes (of the vector, or of a block) on a cluster.
///
/// # Errors
/// A sentence: the collective has no better plans to find, or the cluster does not suit the search.
pub fn search(collective: Collective, root: u32, bytes: u64, cluster: &Cluster) -> Result<Found, String> {
    check(collective, root, cluster)?;
    let ranks = cluster.world_size();
    let task = Task::new(collective, ranks)
        .with_root(if collective.is_rooted() { root } else { 0 })
        .with_hosts(cluster.hosts_of_ranks())
        .with_stages();
    let mut effort = Effort { left: EFFORT_STEPS, cluster, bytes };
    let (algorithm, tuned, mut best_time, run) = best_built_in(&task, &mut effort)?;
    let built_in = (algorithm, best_time);
    let mut best = (
        algorithm.name().to_owned(),
        run,
        [Placement::OutOfPlace, Placement::InPlace]
            .map(|placement| algorithm.plans(&Task { placement, ..tuned.clone() })),
    );
    for trees in pack::packings(&task, cluster, TREES_PER_HOST) {
        let woven = |placement| weave::weave(&Task { placement, ..task.clone() }, &trees.pieces);
        let outside = woven(Placement::OutOfPlace);
        let mut better = None;
        for run in runs(bytes) {
            if let Some(seconds) = effort.time(&outside, run)
                && seconds < best_time
            {
                (best_time, better) = (seconds, Some(run));
            }
        }
        if let Some(run) = better {
            best = (trees.name, run, [outside, woven(Placement::InPlace)]);
        }
    }
    let serves = Serves {
        collective,
        ranks,
        root: task.root,
        hosts: task.hosts.as_ref().map(|hosts| hosts.to_vec()),
        host_names: Vec::new(),
        from_bytes: bytes,
        to_bytes: bytes,
    };
    let (name, run, plans) = best;
    let set = PlanSet::of_plans(name, serves, run, plans)?;
    Ok(Found { set, seconds: best_time, built_in })
}

/// Returns the model on which selection is based: that of the slowest host.
fn slowest(cluster: &Cluster) -> crate::model::Model {
    let mut model = cluster.model;
    for rate in &cluster.rates {
        let least = rate.out_bytes_per_second.min(rate.in_bytes_per_second);
        model.nic_bytes_per_second = model.nic_bytes_per_second.min(least);
        model.inter.bytes_per_second = model.inter.bytes_per_second.min(least);
    }
    model
}

/// Returns the algorithm that is fastest in the simulator, with its task, time and segments as the runtime would choose
/// them.
fn best_built_in(task: &Task, effort: &mut Effort<'_>) -> Result<(Algorithm, Task, f64, Run), String> {
    let task = &with_speeds(task.clone(), effort.cluster);
    let model = slowest(effort.cluster);
    let mut best: Option<(Algorithm, Task, f64, Run)> = None;
    for algorithm in Algorithm::ALL {
        let element = effort.cluster.element_bytes;
        let Ok(choice) = Request::new(task, effort.bytes, element).forced(algorithm).select(&model) else {
            continue;
        };
        let tuned = task.clone().with_params(choice.params);
        let steps: usize = algorithm.plan(&tuned, 0).lanes.iter().map(|lane| lane.len()).sum();
        let candidate_steps = steps.saturating_mul(task.world_size as usize);
        if candidate_steps.saturating_mul(segments(effort.bytes, choice.segment_bytes as u64)) > STEPS_MAX {
            continue;
        }
        let run = (choice.segment_bytes as u64, choice.window as u32);
        if let Some(seconds) = effort.time(&algorithm.plans(&tuned), run)
            && best.as_ref().is_none_or(|(_, _, least, _)| seconds < *least)
        {
            best = Some((algorithm, tuned, seconds, run));
        }
    }
    best.ok_or_else(|| "no algorithm can be simulated in time".to_owned())
}

/// Adds the relative speeds of ranks if each has a host of its own: see [`Task::with_speeds`].
fn with_speeds(task: Task, cluster: &Cluster) -> Task {
    let least = |rate: &crate::model::HostRate| rate.out_bytes_per_second.min(rate.in_bytes_per_second);
    let rates: Vec<f64> = cluster.rates.iter().map(least).collect();
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    if rates.len() != task.world_size as usize || slowest >= 0.6 * fastest {
        return task;
    }
    let speeds: Arc<[u32]> =
        rates.iter().map(|rate| (16.0 * (rate / slowest).min(1024.0)).round() as u32).collect();
    task.with_speeds(speeds)
}

fn segments(bytes: u64, segment_bytes: u64) -> usize {
    bytes.div_ceil(segment_bytes.max(1)).max(1) as usize
}

/// Returns the lengths of segments to try, with the number in flight, for vectors or blocks of `bytes` bytes.
fn runs(bytes: u64) -> impl Iterator<Item = Run> {
    let lengths = [256 << 10, 512 << 10, 1 << 20, 4 << 20].into_iter().filter(move |length| *length < bytes);
    let whole = (bytes <= 8 << 20).then_some((bytes.next_multiple_of(16).max(16), 1));
    lengths.flat_map(|length| [(length, 4), (length, 8)]).chain(whole)
}

/// The simulations that a search may still make.
struct Effort<'a> {
    left: usize,
    cluster: &'a Cluster,
    bytes: u64,
}

impl Effort<'_> {
    /// Returns the time of the plans in the simulator; `None` if the simulation takes too long, or the plans do not fit
    /// together.
    fn time(&mut self, plans: &[Plan], (segment_bytes, window): Run) -> Option<f64> {
        let steps: usize = plans.iter().flat_map(|plan| plan.lanes.iter()).map(|lane| lane.len()).sum();
        let steps = steps.saturating_mul(segments(self.bytes, segment_bytes));
        if steps > STEPS_MAX {
            return None;
        }
        self.left = self.left.checked_sub(steps)?;
        let cluster = Cluster {
            segment_bytes: segment_bytes as usize,
            window: window as usize,
            ..self.cluster.clone()
        };
        let count = self.bytes as usize / self.cluster.element_bytes.max(1);
        let shape = |plan: &Plan| match plan.cut {
            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
            Cut::PerRank => Shape::Blocks { count },
        };
        let shapes: Vec<Shape> = plans.iter().map(shape).collect();
        simulate(plans, &shapes, &cluster).ok().map(|timing| timing.seconds)
    }
}
