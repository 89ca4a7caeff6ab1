//! Options that `explain` and `sim` share. They turn a collective, a size and a number of ranks into a task with a
//! shape, whose plans can be proved and simulated.

use std::str::FromStr;

use clap::Args;
use kolo::Transports;
use kolo::internal::profile::{Inside, Rates};
use kolo::internal::selection::offered_channels;
use kolo_collectives::check::{self, Options, Report};
use kolo_collectives::layout::Shape;
use kolo_collectives::model::HostRate;
use kolo_collectives::plan::{Collective, Cut, Plan};
use kolo_collectives::select::Order;
use kolo_collectives::simulate::{Cluster, Timing, simulate};
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Task};

use crate::error::{CliError, Result};
use crate::perf::{human_bytes, parse_size};

/// Options that describe one collective call.
#[derive(Args, Debug, Clone)]
pub(crate) struct CallArgs {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, scan, exscan or
    /// barrier
    #[arg(value_name = "COLLECTIVE", value_parser = collective)]
    pub collective: Collective,
    /// Size as `kolo perf` shows it: of the vector, or of the blocks of all ranks together
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    pub bytes: u64,
    /// Root, if the collective has one
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0")]
    pub root: u32,
    /// Input and output share memory
    #[arg(long)]
    pub in_place: bool,
    /// The buffers of all ranks are symmetric; --algo window implies this
    #[arg(long)]
    pub symmetric: bool,
    /// Bytes of an element
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u64).range(1..=16))]
    pub element_bytes: u64,
    /// Use this algorithm instead of the one that would be chosen
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    pub algo: Option<Algorithm>,
    /// Only algorithms whose results do not depend on size, segments and transport
    #[arg(long)]
    pub canonical: bool,
    /// An all_reduce over this many shards, which the ranks hold in consecutive runs, instead of one vector per rank
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub shards: Option<u32>,
}

impl CallArgs {
    /// Makes the task; `hosts` gives the host of each rank.
    pub(crate) fn task(&self, hosts: Vec<u32>, transports: &Transports) -> Result<Task> {
        let ranks = hosts.len() as u32;
        if ranks == 0 {
            return Err(CliError::usage("there are no ranks", "Give at least one"));
        }
        if self.root >= ranks {
            return Err(CliError::usage(
                format!("root {} is out of range: there are {ranks} ranks, 0 to {}", self.root, ranks - 1),
                "Choose one of them",
            ));
        }
        let task = Task::new(self.collective, ranks).with_root(if self.collective.is_rooted() {
            self.root
        } else {
            0
        });
        let task = task.with_channels(offered_channels(transports, ranks));
        let several = hosts.iter().any(|host| *host != hosts[0]);
        let task = if several { task.with_hosts(hosts) } else { task };
        // A rank alone shares memory with nobody.
        let has_stages = ranks > 1 && shares_memory(transports);
        let task = if has_stages { task.with_stages() } else { task };
        let task = if self.is_symmetric() { task.with_symmetric(Symmetric::All) } else { task };
        let task = Task { shards: self.shards, ..task };
        Ok(if self.in_place { task.in_place() } else { task })
    }

    /// Returns whether ranks reach each other's buffers.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.symmetric || self.algo == Some(Algorithm::Window)
    }

    /// Returns the bytes as the selection counts them: of the vector, or of one block.
    pub(crate) fn selection_bytes(&self, ranks: u32) -> u64 {
        match self.collective {
            Collective::Barrier => 0,
            collective if collective.has_block_per_rank() => self.bytes / u64::from(ranks),
            _ => self.bytes,
        }
    }

    /// Returns the shape that a plan is bound to.
    pub(crate) fn shape(&self, plan: &Plan) -> Shape {
        let count = (self.selection_bytes(plan.world_size) / self.element_bytes) as usize;
        match plan.cut {
            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
            Cut::PerRank => Shape::Blocks { count },
        }
    }

    /// Returns the shapes that the plans of all ranks are bound to.
    pub(crate) fn shapes(&self, plans: &[Plan]) -> Vec<Shape> {
        plans.iter().map(|plan| self.shape(plan)).collect()
    }

    /// Simulates the plans of all ranks.
    pub(crate) fn simulated(&self, plans: &[Plan], cluster: &Cluster) -> Result<Timing> {
        simulate(plans, &self.shapes(plans), cluster).map_err(|violation| {
            let problem = format!("the plans do not fit together: {violation}");
            CliError::failure(problem, "Please report this as a bug")
        })
    }

    /// Proves the plans of all ranks, for segments of at most this many bytes.
    pub(crate) fn checked(&self, plans: &[Plan], segment_bytes: u64) -> Result<Report> {
        let options = Options::quick().segmented((segment_bytes / self.element_bytes).max(1) as usize);
        check::check(plans, &self.shapes(plans), &options).map_err(|violation| {
            CliError::failure(format!("the plan is wrong: {violation}"), "Please report this as a bug")
        })
    }

    /// Formats a number of elements as bytes.
    pub(crate) fn human_elements(&self, elements: u64) -> String {
        human_bytes(elements as f64 * self.element_bytes as f64)
    }

    /// Describes plans that have been proved.
    pub(crate) fn proof(&self, report: &Report) -> String {
        format!(
            "right and free of deadlock; per segment {} messages and {} in all, {} from the busiest rank",
            report.messages,
            self.human_elements(report.elements),
            self.human_elements(report.elements_per_rank),
        )
    }

    /// Returns the required order of reduction.
    pub(crate) const fn order(&self) -> Order {
        if self.canonical { Order::Canonical } else { Order::Any }
    }
}

/// Returns whether the ranks of a host share memory, if these transports may be used. The first that reaches a peer is
/// used, and adapters may be missing.
pub(crate) fn shares_memory(transports: &Transports) -> bool {
    let mut features = transports.kinds().iter().map(|kind| kind.features());
    features.find(|features| !features.uses_adapters).is_some_and(|features| features.shares_memory)
}

/// Returns the constants that apply inside a host.
pub(crate) fn inside(transports: &Transports) -> Inside {
    if shares_memory(transports) { Inside::Shm } else { Inside::Tcp }
}

/// Adds the hosts' rates to a task, as relative speeds of ranks if each rank has a host of its own.
pub(crate) fn on_unequal_hosts(task: Task, rates: &[HostRate]) -> Task {
    let known = Rates { hosts: rates.to_vec(), pairs: Vec::new() };
    match known.speeds() {
        Some(speeds) if speeds.len() == task.world_size as usize => task.with_speeds(speeds),
        _ => task,
    }
}

/// Finds a collective by its name, with or without underscores or hyphens.
fn collective(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    let found = Collective::ALL.into_iter().find(|collective| plain(collective.name()) == plain(text));
    found.map_or_else(|| Collective::from_str(text).map_err(|error| error.to_string()), Ok)
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::from_str(&text.to_ascii_lowercase().replace('-', "_")).map_err(|error| error.to_string())
}

fn size(text: &str) -> Result<u64, String> {
    // 2^50: a simulation of more would mean little, and products of it stay within 64 bits.
    parse_size(text)
        .filter(|bytes| *bytes <= 1 << 50)
        .ok_or_else(|| "not a size such as 8, 64K, 1M or 2G".to_owned())
}

/// Formats a time for people.
pub(crate) fn human_seconds(seconds: f64) -> String {
    match seconds {
        short if short < 1e-3 => format!("{:.2} us", short * 1e6),
        middle if middle < 1.0 => format!("{:.3} ms", middle * 1e3),
        long => format!("{long:.3} s"),
    }
}
