//! Files of plans: written by `explain --plan-out` and `kolo plan`, explained by `explain --plan`, simulated by `sim --plan`.

use std::path::{Path, PathBuf};

use clap::Args;
use kolo::LoadedPlans;
use kolo::internal::plans::{digest, to_text};
use kolo_collectives::Task;
use kolo_collectives::plan::{Placement, Plan};
use kolo_collectives::plan_set::PlanSet;
use kolo_collectives::select::Choice;
use kolo_collectives::simulate::{Cluster, Timing};

use crate::error::{CliError, Result};
use crate::perf::parse_size;
use crate::planning::CallArgs;

/// Options of `explain` about files of plans.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Explain the plan of this file, for as many ranks as it has
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algo", "plan_out", "shards"])]
    pub plan: Option<PathBuf>,
    /// Write the plan that would run to this file, for KOLO_PLAN
    #[arg(long, value_name = "FILE")]
    pub plan_out: Option<PathBuf>,
    /// Fewest bytes for which the file's plan is taken: of the vector or of a block [default: the size explained]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "plan_out")]
    pub plan_from: Option<u64>,
    /// Most bytes [default: the size explained]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "plan_out")]
    pub plan_to: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "not a size such as 8, 64K, 1M or 2G".to_owned())
}

/// Reads a file of plans for a call.
pub(crate) fn read(path: &Path, call: &CallArgs) -> Result<LoadedPlans> {
    let loaded = LoadedPlans::read(path)?;
    let serves = loaded.set.serves();
    let bytes = call.selection_bytes(serves.ranks);
    serves.serves(call.collective, call.root, bytes).map_err(|because| {
        CliError::usage(
            format!("the plan of {} does not serve this call: {because}", path.display()),
            "Choose a call that it serves",
        )
    })?;
    Ok(loaded)
}

/// Writes plans, and returns a message that says so.
pub(crate) fn write(path: &Path, set: &PlanSet) -> Result<String> {
    std::fs::write(path, to_text(set))
        .map_err(|error| CliError::system(format!("{} cannot be written", path.display()), &error))?;
    Ok(format!(
        "plan {} ({}) is in {}: KOLO_PLAN={}",
        set.name(),
        digest(set),
        path.display(),
        path.display()
    ))
}

/// Writes the plan of a choice if `args` ask for that, and returns a message that names the file.
pub(crate) fn write_choice(
    args: &PlanArgs,
    call: &CallArgs,
    task: &Task,
    choice: &Choice,
) -> Result<Option<String>> {
    let Some(path) = &args.plan_out else { return Ok(None) };
    let bytes = call.selection_bytes(task.world_size);
    let (from, to) = (args.plan_from.unwrap_or(bytes), args.plan_to.unwrap_or(bytes));
    let set = PlanSet::of_choice(task, choice, from, to).map_err(|problem| {
        CliError::usage(
            format!("the plan of {} cannot be written to a file: {problem}", choice.algorithm),
            "Choose another --algo or fewer ranks",
        )
    })?;
    write(path, &set).map(Some)
}

/// Returns the plans for a call.
pub(crate) fn plans<'a>(set: &'a PlanSet, call: &CallArgs) -> &'a [Plan] {
    set.plans(if call.in_place { Placement::InPlace } else { Placement::OutOfPlace })
}

/// Simulates the plans on a cluster with as many ranks.
pub(crate) fn simulated(set: &PlanSet, call: &CallArgs, cluster: &Cluster) -> Result<Timing> {
    let serves = set.serves();
    serves.fits(&cluster.hosts_of_ranks(), None).map_err(|because| {
        CliError::usage(
            format!("the plan does not fit this cluster: {because}"),
            "Describe the hosts that it is for",
        )
    })?;
    call.simulated(plans(set, call), cluster)
}
