//! Finds the plan that serves a call: selection with a cache.

use std::sync::Arc;

use kolo_collectives::generator::Algorithm;
use kolo_collectives::model::Model;
use kolo_collectives::overrides::Overrides;
use kolo_collectives::plan::{Collective, Placement, Plan};
use kolo_collectives::select::{Choice, Order, Request};
use kolo_collectives::task::{Params, Task};
use kolo_collectives::window::Symmetric;

use super::plan_files::{Asked, PlanFile, PlanFiles};
use super::recent::Recent;
use crate::call::{Call, Counts, Forced};
use crate::config::{Config, Determinism, Transports};
use crate::engine::{STAGE_SEGMENTS, channels_per_operation};
use crate::error::{Error, ErrorContext, Result};
use crate::network::{Between, Knowledge};
use crate::reduce::DefaultFloats;

/// Key of a call's plan. Sizes matter only through the selection's answer, so calls of all sizes share plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PlanKey {
    task: Task,
    algorithm: Algorithm,
}

/// Key of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ChoiceKey {
    collective: Collective,
    root: u32,
    bytes: usize,
    element_bytes: usize,
    irregular: bool,
    placement: Placement,
    shards: Option<u32>,
}

impl ChoiceKey {
    fn asked(&self) -> Asked {
        let Self { collective, root, bytes, irregular, shards, .. } = *self;
        Asked { collective, root, bytes: bytes as u64, irregular: irregular || shards.is_some() }
    }
}

/// The plan of a call, and how to run it.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Arc<Plan>,
    pub(crate) segment_elements: usize,
    pub(crate) window: usize,
}

/// Limits of the transports for one call, common to all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Channels to a peer.
    pub(crate) channels: u16,
    /// Whether the ranks of each host share memory that plans may use.
    pub(crate) stages: bool,
}

/// Returns the channels to a peer for one call of so many ranks, if they can open all of these transports.
#[must_use]
pub fn offered_channels(transports: &Transports, ranks: u32) -> u16 {
    let offered = transports.kinds().iter().map(|kind| kind.channels_max(ranks));
    channels_per_operation(offered.min().unwrap_or(u16::MAX))
}

/// Chooses and caches plans for one communicator.
#[derive(Debug)]
pub(crate) struct Planner {
    rank: u32,
    world_size: u32,
    hosts: Arc<[u32]>,
    model: Model,
    order: Order,
    overrides: Overrides,
    files: PlanFiles,
    segment_bytes: Option<usize>,
    window: Option<usize>,
    limits: Limits,
    /// Knowledge of the network between the hosts.
    network: Knowledge,
    /// Relative speeds of the ranks' links, where hosts have one rank each and differ much.
    speeds: Option<Arc<[u32]>>,
    /// By calls.
    planned: Recent<ChoiceKey, Planned>,
    /// By calls with buffers that lie apart, from root 0 unless the order of reduction is canonical.
    selections: Recent<ChoiceKey, Selected>,
    plans: Recent<PlanKey, Arc<Plan>>,
}

/// The part of a selection that matters for the plan.
#[derive(Clone, Copy, Debug)]
struct Selected {
    algorithm: Algorithm,
    params: Params,
    segment_bytes: usize,
    window: usize,
}

/// Assumed length of a v-form's block where no rank knows all lengths. It is long enough that the segments of a long
/// block are sized for bandwidth.
const UNKNOWN_BYTES: usize = 1 << 20;

/// Most segments in flight.
const WINDOW_MAX: usize = 64;

/// Applies `KOLO_SEGMENT_BYTES` and `KOLO_WINDOW` to a selection, as far as its plan allows.
pub fn apply_settings(choice: &mut Choice, segment_bytes: Option<usize>, window: Option<usize>) {
    if let Some(bytes) = segment_bytes {
        choice.segment_bytes = choice.staged_segment_bytes_max.map_or(bytes, |most| bytes.min(most));
    }
    // Depends only on facts that are the same on all ranks: a rank alone on its host has no stage, but the same
    // segments as the others.
    let most = if choice.staged_segment_bytes_max.is_some() { STAGE_SEGMENTS } else { WINDOW_MAX };
    choice.window = window.unwrap_or(choice.window).clamp(1, most.min(choice.window_max));
}

impl Planner {
    pub(crate) fn new(
        rank: u32,
        hosts: Arc<[u32]>,
        names: &[&str],
        model: Model,
        config: &Config,
        limits: Limits,
    ) -> Result<Self> {
        let overrides = config.algorithms.parse::<Overrides>().map_err(|problem| {
            Error::configuration("KOLO_ALGO", problem.to_string(), "See `kolo explain --help` for the names")
        })?;
        let is_canonical = config.determinism == Determinism::Canonical;
        let files = PlanFiles::new(&config.plans, rank, &hosts, Some(names), limits, is_canonical);
        Ok(Self {
            rank,
            world_size: hosts.len() as u32,
            hosts,
            model,
            order: match config.determinism {
                Determinism::Repeatable => Order::Any,
                Determinism::Canonical => Order::Canonical,
            },
            overrides,
            files,
            segment_bytes: config.segment_bytes,
            window: config.window,
            limits,
            network: Knowledge::OneHost,
            speeds: None,
            planned: Recent::new(|planned: &Planned| steps(&planned.plan)),
            selections: Recent::new(|_| 0),
            plans: Recent::new(|plan: &Arc<Plan>| steps(plan)),
        })
    }

    /// Returns the plan for a call with this placement of its buffers, and how to run it.
    pub(crate) fn plan(&mut self, call: &Call, placement: Placement) -> Result<Planned> {
        let key = ChoiceKey { placement, ..self.key(call) };
        if let Some(planned) = self.planned.get(&key) {
            return Ok(planned);
        }
        let planned = |file: &PlanFile| file.planned(placement, key.element_bytes);
        if let Some(planned) = self.serving(&key).and_then(planned) {
            self.planned.insert(key, planned.clone());
            return Ok(planned);
        }
        let Selected { algorithm, params, segment_bytes, window } = self.selected(key)?;
        let task = Task { params, placement, ..self.task_of(&key) };
        let segment_elements = (segment_bytes / key.element_bytes).max(1);
        let planned = Planned { plan: self.plan_of(PlanKey { task, algorithm }), segment_elements, window };
        self.planned.insert(key, planned.clone());
        Ok(planned)
    }

    /// Selects for buffers that lie apart, wherever this rank's lie. Other ranks' buffers may lie otherwise, and all ranks
    /// must choose alike. The root matters only to the order of reduction.
    fn selected(&mut self, key: ChoiceKey) -> Result<Selected> {
        let root = if self.is_canonical() { key.root } else { 0 };
        let key = ChoiceKey { root, placement: Placement::OutOfPlace, ..key };
        if let Some(selected) = self.selections.get(&key) {
            return Ok(selected);
        }
        let Choice { algorithm, params, segment_bytes, window, .. } =
            self.choose(&key, Symmetric::Nothing)?;
        let selected = Selected { algorithm, params, segment_bytes, window };
        self.selections.insert(key, selected);
        Ok(selected)
    }

    fn plan_of(&mut self, key: PlanKey) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&key) {
            return plan;
        }
        let plan = Arc::new(key.algorithm.plan(&key.task, self.rank));
        self.plans.insert(key, Arc::clone(&plan));
        plan
    }

    /// Returns the calls for which the settings name an algorithm or a plan.
    pub(crate) fn forced(&self) -> Forced {
        Forced::new(&self.overrides, self.order, |collective| self.task(collective))
            .with_plans(self.files.calls())
    }

    /// Describes the plan of a file that serves a call; `None` if a generator's plan does.
    pub(crate) fn file_for(&self, call: &Call) -> Option<String> {
        self.serving(&self.key(call)).map(PlanFile::describe)
    }

    fn serving(&self, key: &ChoiceKey) -> Option<&PlanFile> {
        self.files.serving(key.asked(), &self.overrides, self.order, || self.task(key.collective))
    }

    /// Explains for each file of plans why it does not serve a call.
    pub(crate) fn files_unused(&self, call: &Call) -> Vec<String> {
        let key = self.key(call);
        self.files.unused(key.asked(), &self.overrides, self.order, || self.task(key.collective))
    }

    /// Describes the files of plans.
    pub(crate) fn describe_files(&self) -> Vec<String> {
        self.files.describe()
    }

    /// Returns the task for a collective of all ranks.
    fn task(&self, collective: Collective) -> Task {
        let task = Task::new(collective, self.world_size)
            .with_hosts(Arc::clone(&self.hosts))
            .with_channels(self.limits.channels);
        let task = if self.limits.stages { task.with_stages() } else { task };
        match &self.speeds {
            Some(speeds) => task.with_speeds(Arc::clone(speeds)),
            None => task,
        }
    }

    /// Returns the task of a call with buffers that lie apart.
    fn task_of(&self, key: &ChoiceKey) -> Task {
        Task { shards: key.shards, ..self.task(key.collective).with_root(key.root) }
    }

    /// Returns whether calls of `bytes` bytes (of the vector, or of a block) and of many more take plans that use the
    /// stage.
    pub(crate) fn takes_stages(&self, collective: Collective, bytes: usize) -> bool {
        let key = |bytes| ChoiceKey {
            collective,
            root: 0,
            bytes,
            element_bytes: 4,
            irregular: false,
            placement: Placement::OutOfPlace,
            shards: None,
        };
        let uses_stages = |choice: Choice| choice.staged_segment_bytes_max.is_some();
        [bytes, 16 * bytes, 64 * bytes]
            .into_iter()
            .all(|bytes| self.choose(&key(bytes), Symmetric::Nothing).is_ok_and(uses_stages))
    }

    /// Returns whether all reductions follow the canonical tree.
    pub(crate) fn is_canonical(&self) -> bool {
        self.order == Order::Canonical
    }

    /// Uses this knowledge of the network from now on. The caller has set the default floating-point mode.
    pub(crate) fn learn(&mut self, network: Knowledge) {
        self.model = network.apply(self.model);
        let is_alone = |speeds: &Vec<u32>| speeds.len() == self.hosts.len();
        self.speeds = network.between().and_then(Between::speeds).filter(is_alone).map(Into::into);
        self.network = network;
        self.planned.clear();
        self.selections.clear();
    }

    /// Returns the knowledge of the network between the hosts.
    pub(crate) const fn network(&self) -> &Knowledge {
        &self.network
    }

    /// Describes the network and the source of that knowledge; `None` on one host.
    pub(crate) fn describe_network(&self) -> Option<String> {
        self.network.describe(&self.model)
    }

    /// Returns the constants of the selection.
    pub(crate) const fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the selection for a call on such buffers, including the algorithms not chosen, as `explain` prints it.
    pub(crate) fn explain(&self, call: &Call, symmetric: Symmetric) -> Result<Choice> {
        self.choose(&self.key(call), symmetric)
    }

    fn key(&self, call: &Call) -> ChoiceKey {
        let size = call.data_type.size();
        let bytes = match &call.counts {
            Counts::Even(count) | Counts::Shards(count) => count * size,
            Counts::Uneven { input, output } => match call.collective {
                // All ranks know all lengths.
                Collective::AllGather => output.iter().max().map_or(0, |longest| longest * size),
                Collective::ReduceScatter => input.iter().max().map_or(0, |longest| longest * size),
                // A rank knows only its own lengths, so these must not decide.
                _ => UNKNOWN_BYTES,
            },
        };
        ChoiceKey {
            collective: call.collective,
            root: call.root,
            bytes,
            element_bytes: size,
            irregular: matches!(call.counts, Counts::Uneven { .. }),
            placement: call.placement,
            shards: call.shards.filter(|_| matches!(call.counts, Counts::Shards(_))),
        }
    }

    fn choose(&self, key: &ChoiceKey, symmetric: Symmetric) -> Result<Choice> {
        let _floats = DefaultFloats::enter();
        let task = self.task_of(key).with_symmetric(symmetric);
        let forced = self.overrides.force(&task, key.bytes as u64, key.irregular, self.order);
        let mut choice = Request::new(&task, key.bytes as u64, key.element_bytes)
            .irregular(key.irregular)
            .ordered(self.order)
            .forced(forced)
            .select(&self.model)
            .map_err(|problem| Error::Unsupported {
                context: ErrorContext { rank: Some(self.rank), ..ErrorContext::default() },
                problem: problem.to_string(),
            })?;
        apply_settings(&mut choice, self.segment_bytes, self.window);
        Ok(choice)
    }
}

fn steps(plan: &Plan) -> usize {
    plan.lanes.iter().map(|lane| lane.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Member, RawCall};
    use crate::types::{DataType, ReduceOp};
    use kolo_collectives::model::LinkClass;

    /// Returns rank 0's planner among hosts of one rank each, far from each other.
    fn planner(ranks: u32, channels: u16, config: &Config) -> Planner {
        let hosts: Arc<[u32]> = (0..ranks).collect();
        let inter = LinkClass { latency_seconds: 10e-3, ..Model::TCP.inter };
        let model = Model { inter, ..Model::TCP };
        let names = vec!["a"; ranks as usize];
        Planner::new(0, hosts, &names, model, config, Limits { channels, stages: false }).expect("it can")
    }

    fn call(collective: Collective, count: usize, root: u32) -> Call {
        let (input, output, op) = (std::ptr::null(), std::ptr::null_mut(), ReduceOp::Sum);
        let raw = RawCall { collective, input, output, count: 0, data_type: DataType::F32, op, root };
        let member = Member { rank: 0, world_size: u32::MAX };
        Call { counts: Counts::Even(count), ..Call::check(&raw, member).expect("a sound call") }
    }

    #[test]
    fn plans_keep_to_the_channels_and_are_explained_as_they_run() {
        let all_reduce = call(Collective::AllReduce, 64 << 20, 0);
        for (channels, window) in [(1, None), (2, None), (8, None), (8, Some(64)), (3, Some(64))] {
            let mut planner = planner(128, channels, &Config { window, ..Config::default() });
            let planned = planner.plan(&all_reduce, Placement::OutOfPlace).expect("some algorithm can");
            let explained = planner.explain(&all_reduce, Symmetric::Nothing).expect("some algorithm can");
            assert_eq!(planned.window, explained.window, "{channels} channels");
            assert_eq!(planned.plan.algorithm, explained.algorithm.name(), "{channels} channels");
            let used = usize::from(planned.plan.channels) * planned.window;
            assert!(
                used <= usize::from(channels) && 2 * used > usize::from(channels),
                "{used} of {channels}"
            );
        }
    }

    #[test]
    fn roots_share_a_selection_and_plans_are_forgotten() {
        let mut planner = planner(4096, 8, &Config::default());
        for root in 0..4096 {
            let broadcast = call(Collective::Broadcast, 16, root);
            let planned = planner.plan(&broadcast, Placement::OutOfPlace).expect("some algorithm can");
            assert_eq!(planned.plan.root, root);
        }
        assert_eq!(planner.selections.len(), 1);
        assert!(planner.plans.len() < 4096 && planner.planned.len() < 4096);
    }
}
