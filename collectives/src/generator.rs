//! The algorithms by name, and the door to their generators.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::generators::*;
use crate::plan::{Collective, Plan};
use crate::task::Task;

/// The most ranks that plans are made for. A step is named by 16 bits, and the longest lane, that of the ring
/// all-reduce, has 4 (p - 1) steps.
pub const MAX_WORLD_SIZE: u32 = 1 << 14;

/// The most blocks that a pipelined broadcast or reduce is cut into: a block takes two steps, with room to spare.
pub const MAX_PARTS: u32 = 1 << 14;

/// The algorithms Kolo knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Everybody gets all vectors and reduces them by itself, in canonical order.
    OneShot,
    /// Exchange whole vectors with partners at doubling distance.
    RecursiveDoubling,
    /// Träff's exchange on a circulant graph; for broadcast and reduce its pipelined form.
    Circulant,
    /// Neighbours on a ring, over one or several channels.
    Ring,
    /// Two binary trees, each for half of the vector.
    Tree,
    /// Binomial tree.
    Binomial,
    /// Straight from owner to destination.
    Direct,
    /// Bruck's few rounds for small blocks.
    Bruck,
    /// Signals at doubling distance.
    Dissemination,
    /// Halving vectors with partners at doubling distance, in canonical order.
    Halving,
    /// From rank to rank.
    Chain,
    /// Within hosts, then between them, in parallel on all ranks of a host.
    Hierarchical,
    /// Within hosts to one leader each, then among the leaders.
    Leader,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::OneShot,
        Self::RecursiveDoubling,
        Self::Circulant,
        Self::Ring,
        Self::Tree,
        Self::Binomial,
        Self::Direct,
        Self::Bruck,
        Self::Dissemination,
        Self::Halving,
        Self::Chain,
        Self::Hierarchical,
        Self::Leader,
    ];

    /// The name, as parsed and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneShot => "one_shot",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::Circulant => "circulant",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Binomial => "binomial",
            Self::Direct => "direct",
            Self::Bruck => "bruck",
            Self::Dissemination => "dissemination",
            Self::Halving => "halving",
            Self::Chain => "chain",
            Self::Hierarchical => "hierarchical",
            Self::Leader => "leader",
        }
    }

    /// The paper or system it comes from.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::OneShot => "flat exchange with ordered local reduction, as one-shot kernels on GPUs do",
            Self::RecursiveDoubling => "Thakur, Rabenseifner, Gropp 2005; scans: Hillis, Steele 1986",
            Self::Circulant => "Träff 2023 and 2024",
            Self::Ring => "Patarasuk, Yuan 2009; Gloo, NCCL",
            Self::Tree => "Sanders, Speck, Träff 2009; NCCL",
            Self::Binomial => "binomial trees; Chan, Heimlich, Purkayastha, van de Geijn 2007",
            Self::Direct => "pairwise exchange; two-shot kernels on GPUs",
            Self::Bruck => "Bruck, Ho, Kipnis, Upfal, Weathersby 1997",
            Self::Dissemination => "Hensgen, Finkel, Manber 1988",
            Self::Halving => "Rabenseifner 2004, with distance doubling",
            Self::Chain => "pipelined chain",
            Self::Hierarchical => "split rails and multiple leaders, as UCC and DPML do",
            Self::Leader => "one leader per host, as Open MPI's HAN does",
        }
    }

    /// Whether it can do `task`; if not, why not, for users.
    ///
    /// # Errors
    /// A sentence that says what is in the way.
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
        match self {
            Self::RecursiveDoubling => recursive_doubling::supports(task),
            Self::Circulant => circulant::supports(task),
            Self::Ring => ring::supports(task),
            Self::Binomial => binomial::supports(task),
            Self::Direct => direct::supports(task),
            Self::Dissemination => dissemination::supports(task),
            Self::Chain => chain::supports(task),
            Self::OneShot => one_shot::supports(task),
            Self::Tree => tree::supports(task),
            Self::Bruck => bruck::supports(task),
            Self::Halving => halving::supports(task),
            Self::Hierarchical => hierarchical::supports(task),
            Self::Leader => leader::supports(task),
        }
    }

    /// Whether it also serves blocks of unequal length (the v-forms). Gather, scatter and all-to-all with
    /// unequal blocks need a direct form, since only two ranks know the length of a block.
    #[must_use]
    pub const fn serves_irregular(self, collective: Collective) -> bool {
        match collective {
            Collective::Gather | Collective::Scatter | Collective::AllToAll => matches!(self, Self::Direct),
            _ => true,
        }
    }

    /// Whether what it reduces comes out in canonical order: the same expression for every element, whatever
    /// the size, the segments and the parameters, and the same for all algorithms of which this is true.
    #[must_use]
    pub fn is_canonical(self, task: &Task) -> bool {
        match (self, task.collective) {
            (Self::OneShot | Self::RecursiveDoubling | Self::Halving, Collective::AllReduce)
            | (Self::OneShot, Collective::Reduce | Collective::ReduceScatter) => true,
            (Self::Binomial, Collective::Reduce) => task.root == 0 && task.world_size.is_power_of_two(),
            // The others reduce nothing, or in an order of their own; scans have only one order to speak of.
            _ => !matches!(
                task.collective,
                Collective::AllReduce
                    | Collective::Reduce
                    | Collective::ReduceScatter
                    | Collective::Scan
                    | Collective::ExScan
            ),
        }
    }

    /// The program of `rank`.
    ///
    /// # Panics
    /// If the task is not supported (see [`supports`](Self::supports)), or `rank` is not in the world.
    #[must_use]
    pub fn plan(self, task: &Task, rank: u32) -> Plan {
        if let Err(reason) = self.supports(task) {
            panic!("{reason}");
        }
        match self {
            Self::RecursiveDoubling => recursive_doubling::plan(task, rank),
            Self::Circulant => circulant::plan(task, rank),
            Self::Ring => ring::plan(task, rank),
            Self::Binomial => binomial::plan(task, rank),
            Self::Direct => direct::plan(task, rank),
            Self::Dissemination => dissemination::plan(task, rank),
            Self::Chain => chain::plan(task, rank),
            Self::OneShot => one_shot::plan(task, rank),
            Self::Tree => tree::plan(task, rank),
            Self::Bruck => bruck::plan(task, rank),
            Self::Halving => halving::plan(task, rank),
            Self::Hierarchical => hierarchical::plan(task, rank),
            Self::Leader => leader::plan(task, rank),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm {
    /// What was given.
    pub name: String,
}

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        write!(f, "no algorithm is called {:?}; there are {}", self.name, names.join(", "))
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

    #[test]
    fn names_are_parsed_and_printed() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert!(!algorithm.source().is_empty());
        }
        for collective in Collective::ALL {
            assert_eq!(collective.to_string().parse(), Ok(collective));
        }
        let error = "rnig".parse::<Algorithm>().expect_err("no such algorithm").to_string();
        assert!(error.contains("rnig") && error.contains("ring"), "{error}");
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
    fn the_largest_world_fits() {
        for collective in Collective::ALL {
            for placement in [crate::plan::Placement::OutOfPlace, crate::plan::Placement::InPlace] {
                let params = crate::Params { width: 1, parts: MAX_PARTS, ..crate::Params::default() };
                let task = Task { placement, params, ..Task::new(collective, MAX_WORLD_SIZE) };
                let hosts: Vec<u32> = (0..MAX_WORLD_SIZE).map(|rank| rank / 64).collect();
                let task = task.with_hosts(hosts);
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(&task).is_ok() {
                        let plan = algorithm.plan(&task, 0);
                        assert!(plan.lanes.iter().all(|lane| lane.len() <= 1 << 16));
                    }
                }
            }
        }
    }
}
