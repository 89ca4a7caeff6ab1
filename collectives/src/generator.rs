//! The trait `Generator`, which every algorithm implements, and the methods of [`Algorithm`], the public name of
//! each.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::cost::Bill;
pub use crate::generators::Algorithm;
use crate::model::Model;
use crate::plan::{Collective, Plan};
use crate::task::Task;

/// The most ranks for which plans are made. A step is named by 16 bits, and the longest lane, that of the ring
/// all-reduce, has 4 (p - 1) steps.
pub const MAX_WORLD_SIZE: u32 = 1 << 14;

/// The most blocks into which a pipelined broadcast or reduce is cut. A block takes two steps, so this leaves room to
/// spare.
pub const MAX_PARTS: u32 = 1 << 14;

/// An algorithm, as the rest of Kolo uses it. Except for `rank`, arguments are the same on all ranks, so that all ranks
/// get the same answers.
pub(crate) trait Generator {
    /// The name, as parsed and printed.
    fn name(&self) -> &'static str;

    /// The paper or system that the algorithm comes from.
    fn source(&self) -> &'static str;

    /// Checks whether the algorithm can do `task`; the error tells users why not. [`Algorithm::supports`] has checked
    /// the limits common to all algorithms.
    fn supports(&self, task: &Task) -> Result<(), String>;

    /// Makes the program of `rank` for a supported task.
    fn plan(&self, task: &Task, rank: u32) -> Plan;

    /// Enters the cost of a segment of `bytes` bytes: of the vector, or of the longest block where the collective has a
    /// block per rank. The world has at least two ranks.
    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill);

    /// See [`Algorithm::channels`].
    fn channels(&self, task: &Task) -> u16 {
        let _ = task;
        1
    }

    /// Bytes of scratch that the plan takes per byte of a segment, on the rank that needs the most.
    fn scratch_factor(&self, task: &Task) -> f64 {
        let _ = task;
        1.0
    }

    /// See [`Algorithm::is_canonical`]; asked only if the collective reduces. Most algorithms have an order of their
    /// own.
    fn is_canonical(&self, task: &Task) -> bool {
        let _ = task;
        false
    }

    /// See [`Algorithm::serves_irregular`].
    fn serves_irregular(&self, collective: Collective) -> bool {
        !matches!(collective, Collective::Gather | Collective::Scatter | Collective::AllToAll)
    }

    /// Whether a rank sends to the same neighbour throughout.
    fn is_steady(&self) -> bool {
        false
    }

    /// Segments in flight, where the usual one or two are not the best number. An algorithm whose segments are short
    /// compared to its latency needs many in flight.
    fn window(&self) -> Option<u32> {
        None
    }

    /// The shortest segment that is worth its messages, where it differs from the collective's usual one.
    fn shortest_segment(&self) -> Option<u64> {
        None
    }

    /// The shortest segment and the number in flight on a near network between hosts, where they differ from
    /// [`shortest_segment`](Self::shortest_segment) and [`window`](Self::window).
    fn segments_between_hosts(&self, task: &Task, model: &Model) -> Option<(u64, u32)> {
        let _ = (task, model);
        None
    }

    /// The best `params.parts` for segments of `bytes` bytes.
    fn parts(&self, task: &Task, bytes: u64, model: &Model) -> u32 {
        let _ = (bytes, model);
        task.params.parts
    }

    /// Limits on the length of a segment, if the algorithm uses stages.
    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        let _ = task;
        None
    }

    /// See [`Algorithm::takes_shards`].
    fn takes_shards(&self) -> bool {
        false
    }

    /// Whether each rank reduces a segment and passes the result on to the next rank.
    fn hands_on(&self, task: &Task) -> bool {
        let _ = task;
        false
    }

    /// Whether the algorithm exchanges data with one rank after another, so that ranks that share processors can take
    /// turns.
    fn takes_turns(&self, task: &Task) -> bool {
        let _ = task;
        false
    }
}

/// Lengths of segments for plans that use stages: bytes of the vector, or of the longest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagedSegments {
    /// The longest segment that is faster than a shorter one.
    pub(crate) best: u64,
    /// The longest segment, with the task's parameters, whose payloads fit.
    pub(crate) most: u64,
}

impl Algorithm {
    /// Returns the name, as parsed and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.generator().name()
    }

    /// Returns the paper or system that the algorithm comes from.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.generator().source()
    }

    /// Checks whether the algorithm can do `task`.
    ///
    /// # Errors
    /// A sentence for users that names the obstacle.
    pub fn supports(self, task: &Task) -> Result<(), String> {
        if task.world_size == 0 || task.world_size > MAX_WORLD_SIZE {
            return Err(format!("a world has 1 to {MAX_WORLD_SIZE} ranks, not {}", task.world_size));
        }
        if task.root >= task.world_size {
            return Err(format!("root {} is not among {} ranks", task.root, task.world_size));
        }
        if task.params.parts > MAX_PARTS {
            return Err(format!("{} parts are more than {MAX_PARTS}", task.params.parts));
        }
        let (needed, offered) = (self.channels(task), task.channels);
        if needed > offered {
            return Err(format!("it needs {needed} channels to a peer, but the transports offer {offered}"));
        }
        match task.shards {
            Some(_) if !self.takes_shards() => Err("it reduces one vector per rank, not shards".to_owned()),
            None if self.takes_shards() => Err("it reduces shards".to_owned()),
            _ => self.generator().supports(task),
        }
    }

    /// Returns the most channels that any rank uses to another one for a segment in flight. Each segment has channels of
    /// its own.
    #[must_use]
    pub fn channels(self, task: &Task) -> u16 {
        self.generator().channels(task)
    }

    /// Returns whether the algorithm serves tasks with [`Task::shards`], and no others.
    #[must_use]
    pub fn takes_shards(self) -> bool {
        self.generator().takes_shards()
    }

    /// Returns whether the algorithm also serves blocks of unequal length (the v-forms). Gather, scatter and all-to-all
    /// with unequal blocks need a direct algorithm, since only two ranks know the length of a block.
    #[must_use]
    pub fn serves_irregular(self, collective: Collective) -> bool {
        self.generator().serves_irregular(collective)
    }

    /// Returns whether the algorithm reduces in canonical order: by the same expression for every element, whatever the
    /// size, the segments and the parameters, and the same one as all other canonical algorithms.
    #[must_use]
    pub fn is_canonical(self, task: &Task) -> bool {
        !task.collective.reduces() || self.generator().is_canonical(task)
    }

    /// Makes the program of `rank`.
    ///
    /// # Panics
    /// If the task is not supported (see [`supports`](Self::supports)), or `rank` is not in the world.
    #[must_use]
    pub fn plan(self, task: &Task, rank: u32) -> Plan {
        if let Err(reason) = self.supports(task) {
            panic!("{reason}");
        }
        self.generator().plan(task, rank)
    }

    /// Makes the plans of all ranks, as [`Algorithm::plan`] does. The members of a stage share one table of rounds,
    /// whose size grows with the number of hosts.
    ///
    /// # Panics
    /// As [`Algorithm::plan`].
    #[must_use]
    pub fn plans(self, task: &Task) -> Vec<Plan> {
        let mut plans: Vec<Plan> = Vec::with_capacity(task.world_size as usize);
        for rank in 0..task.world_size {
            let mut plan = self.plan(task, rank);
            if let Some(stage) = &mut plan.stage
                && let Some(first) = plans.get(stage.members[0] as usize).and_then(|plan| plan.stage.as_ref())
                && first == stage
            {
                stage.rounds = Arc::clone(&first.rounds);
            }
            plans.push(plan);
        }
        plans
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: no algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm {
    /// The text that was given.
    pub name: String,
}

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        write!(f, "unknown algorithm {:?}; expected one of {}", self.name, names.join(", "))
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Placement;

    #[test]
    fn names_are_parsed_and_printed() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert!(!algorithm.source().is_empty());
            assert_eq!(Algorithm::ALL.iter().filter(|other| other.name() == algorithm.name()).count(), 1);
        }
        for collective in Collective::ALL {
            assert_eq!(collective.to_string().parse(), Ok(collective));
        }
        let error = "rnig".parse::<Algorithm>().expect_err("no such algorithm").to_string();
        assert!(error.contains("rnig") && error.contains("ring"), "{error}");
    }

    #[test]
    fn refusals_name_collectives_as_users_do() {
        for (algorithm, collective) in Algorithm::ALL.iter().flat_map(|a| Collective::ALL.map(|c| (a, c))) {
            let refusal = algorithm.supports(&Task::new(collective, 4)).err().unwrap_or_default();
            assert!(!refusal.contains(&format!("{collective:?}")), "{algorithm}, {collective}: {refusal}");
        }
    }

    #[test]
    fn impossible_tasks_are_refused_by_all() {
        let task = Task::new(Collective::AllReduce, 4);
        let mut params = task.params;
        params.parts = MAX_PARTS + 1;
        for (task, reason) in [
            (Task { world_size: 0, ..task.clone() }, "not 0"),
            (Task { world_size: MAX_WORLD_SIZE + 1, ..task.clone() }, "not 16385"),
            (task.clone().with_root(4), "root 4"),
            (task.with_params(params), "parts"),
        ] {
            for algorithm in Algorithm::ALL {
                let refusal = algorithm.supports(&task).expect_err(reason);
                assert!(refusal.contains(reason), "{refusal}");
            }
        }
    }

    #[test]
    fn plans_use_the_channels_that_are_announced() {
        for (collective, p) in Collective::ALL.iter().flat_map(|c| [1, 2, 3, 6, 8].map(|p| (*c, p))) {
            for channels in 1..=3 {
                let params = crate::Params { channels, ..crate::Params::default() };
                let hosts: Vec<u32> = (0..p).map(|rank| rank / 2).collect();
                let task = Task::new(collective, p).with_params(params).with_hosts(hosts);
                let tasks = [task.clone(), task.with_stages()];
                for (task, algorithm) in tasks.iter().flat_map(|task| Algorithm::ALL.map(|a| (task, a))) {
                    if algorithm.supports(task).is_err() {
                        continue;
                    }
                    let most = algorithm.plans(task).iter().map(|plan| plan.channels).max().unwrap_or(0);
                    let announced = algorithm.channels(task);
                    assert!(most <= announced, "{algorithm}, {collective}, {p} ranks: {most} > {announced}");
                    if most > 1 {
                        let with = |channels| algorithm.supports(&task.clone().with_channels(channels));
                        assert!(with(most).is_ok() && with(most - 1).is_err(), "{algorithm}, {p} ranks");
                    }
                }
            }
        }
    }

    /// Makes a rank's plan by every algorithm that supports the task. The builder panics if a lane is too long.
    fn make_plans(task: &Task, rank: u32) {
        for algorithm in Algorithm::ALL {
            if algorithm.supports(task).is_ok() {
                drop(algorithm.plan(task, rank));
            }
        }
    }

    #[test]
    fn the_largest_world_fits() {
        for collective in Collective::ALL {
            for placement in [Placement::OutOfPlace, Placement::InPlace] {
                let params = crate::Params { width: 1, parts: MAX_PARTS, ..crate::Params::default() };
                let task = Task { placement, params, ..Task::new(collective, MAX_WORLD_SIZE) };
                let hosts: Vec<u32> = (0..MAX_WORLD_SIZE).map(|rank| rank / 64).collect();
                make_plans(&task.with_hosts(hosts).with_stages(), 0);
            }
        }
    }

    #[test]
    fn leaders_take_no_more_steps_than_fit() {
        let even =
            |hosts: u32, local: u32| -> Vec<u32> { (0..hosts * local).map(|rank| rank / local).collect() };
        let one_large = (0..1000).map(|rank: u32| rank.saturating_sub(900)).collect();
        // The longest lanes of the second and third just fit, and those of the others do not.
        for hosts in [even(17, 64), even(16, 64), even(3, 180), even(3, 192), one_large] {
            let task = Task::new(Collective::AllToAll, hosts.len() as u32).with_hosts(hosts).with_stages();
            for task in [task.clone(), task.in_place()] {
                make_plans(&task, 0);
                make_plans(&task, task.world_size - 1);
            }
        }
    }
}
