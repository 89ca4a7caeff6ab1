//! `kolo sim`: simulates a collective on a described cluster, without a socket.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kolo::{Config, Transports};
use kolo_collectives::plan::{Collective, Plan};
use kolo_collectives::simulate::{Cluster, Symmetry, Timing, simulate_symmetric};
use kolo_collectives::{Algorithm, Task};
use tabled::builder::Builder;
use tabled::settings::Style;

use crate::error::{CliError, EXIT_WRONG_RESULT, Result};
use crate::explain::{Network, choose};
use crate::perf::{console, human_bytes};
use crate::plan_file;
use crate::planning::{CallArgs, human_seconds, on_unequal_hosts};
pub(crate) use description::describe;
use description::{Described, EXAMPLE_FILE};
use report::{critical_path, proof, stuck, summary, traffic};

mod description;
mod report;
mod scale;

/// Limit on the memory of the plans of all ranks: enough for a ring of 4000 ranks.
const MAX_PLAN_BYTES: usize = 2 << 30;

/// Limit on the steps of a simulation on a page of many: about a second of work.
const MAX_LISTED_STEPS: usize = 3_000_000;

/// Limit on the steps, of all ranks and segments together, of a simulation in a comparison: a few seconds of work.
const MAX_COMPARED_STEPS: usize = 20_000_000;

const EXAMPLES: &str = "\
Examples:
  kolo sim all_reduce --cluster cluster.toml --bytes 64M
  kolo sim all_reduce --hosts 128 --ranks-per-host 8 --network rdma --bytes 1G --compare
  kolo sim --example > cluster.toml
  KOLO_PROFILE=profile.toml kolo sim all_reduce --ranks-per-host 4 --compare     with measured constants
  KOLO_TRANSPORT=tcp kolo sim all_reduce --ranks-per-host 4                      without shared memory
  kolo sim --scale > docs/scale.md";

/// Options of `kolo sim`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    #[command(flatten)]
    call: Option<CallArgs>,
    #[command(flatten)]
    described: ClusterArgs,
    /// Simulate the plan of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algo", "compare"])]
    plan: Option<PathBuf>,
    /// Simulate every algorithm that serves the call, and compare them
    #[arg(long)]
    compare: bool,
    /// Number of steps of the critical path to show, half of them from each end
    #[arg(long, value_name = "N", default_value = "12")]
    path: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a description of a cluster to start from
    #[arg(long, exclusive = true)]
    example: bool,
    /// Print tables for 64 to 4096 ranks at 10, 100 and 400 Gb/s: the page docs/scale.md
    #[arg(long, exclusive = true)]
    scale: bool,
}

/// Options that describe a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// Description of the cluster
    #[arg(long, value_name = "FILE.toml")]
    cluster: Option<PathBuf>,
    /// Number of hosts; overrides the file
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,
    /// Ranks on each host; overrides the file
    #[arg(long, value_name = "N")]
    ranks_per_host: Option<u32>,
    /// Network between hosts, if there is no file
    #[arg(long, value_enum, default_value = "tcp", conflicts_with = "cluster")]
    network: Network,
}

impl ClusterArgs {
    /// Returns whether a file describes the cluster.
    pub(crate) const fn has_file(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns the same options, with this many hosts unless they give a number.
    pub(crate) fn or_hosts(&self, hosts: usize) -> Self {
        let said = self.hosts.or_else(|| (!self.has_file() && hosts > 0).then_some(hosts as u32));
        Self { hosts: said, ..self.clone() }
    }
}

/// How long a user waits for one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// Not at all: it is one of very many.
    None,
    /// Briefly: it is one of many.
    Short,
    /// Patiently: it is the one that was asked for.
    Long,
}

/// Outcome of a simulation.
struct Outcome {
    /// Name of the algorithm, or of the plan of a file.
    algorithm: String,
    /// Time by the cost model, which prices algorithms only.
    predicted_seconds: Option<f64>,
    cluster: Cluster,
    timing: Timing,
    plans: Plans,
}

/// The plans that were simulated.
enum Plans {
    /// One plan per rank.
    All(Vec<Plan>),
    /// The plan of rank 0, which represents all.
    Symmetric(Box<Plan>),
}

/// Runs `kolo sim`.
pub(crate) fn run(args: &SimArgs) -> Result<ExitCode> {
    let (text, okay) = match (args.example, args.scale) {
        (true, _) => (EXAMPLE_FILE.to_owned(), true),
        (_, true) => (scale::page()?, true),
        _ => simulated_text(args)?,
    };
    console::print(text)?;
    Ok(if okay { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WRONG_RESULT) })
}

fn simulated_text(args: &SimArgs) -> Result<(String, bool)> {
    let Some(call) = &args.call else {
        return Err(CliError::usage(
            "no collective was given",
            "For example: kolo sim all_reduce --bytes 64M",
        ));
    };
    let described = describe(&args.described, call.element_bytes)?;
    let task = call.task(described.cluster.hosts_of_ranks(), &Config::from_env()?.transports)?;
    let task = on_unequal_hosts(task, &described.cluster.rates);
    if args.compare {
        return Ok((compare(call, &described, &task)?, true));
    }
    let outcome = match &args.plan {
        Some(path) => simulate_file(call, &described, path)?,
        None => simulate_one(call, &described, &task, call.algo, Patience::Long)?,
    };
    if args.json {
        let value = serde_json::json!({
            "collective": call.collective.name(),
            "bytes": call.bytes,
            "algorithm": outcome.algorithm,
            "predicted_seconds": outcome.predicted_seconds,
            "cluster": outcome.cluster,
            "timing": outcome.timing,
        });
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        return Ok((text + "\n", outcome.timing.stuck.is_empty()));
    }
    let mut answer = summary(call, &outcome);
    answer.paragraph(traffic(&outcome));
    answer.paragraph(proof(call, &outcome)?);
    let mut out = answer.to_string();
    out.push_str(&critical_path(&outcome, args.path));
    out.push_str(&stuck(&outcome.timing));
    Ok((out, outcome.timing.stuck.is_empty()))
}

/// Number of successive calls after which each takes as long as the one before.
const CALLS_IN_A_ROW: usize = 6;

/// Calls that take longer overlap with the call before by a small part only.
const SHORT_SECONDS: f64 = 1e-3;

/// Returns the time per call of several successive calls in the simulator, with segments and window as the runtime
/// would choose them. A rank that is done with one call goes on to the next, so each takes less time than a single one.
pub(crate) fn seconds_each(call: &CallArgs, cluster: &Cluster) -> Result<f64> {
    let task = on_unequal_hosts(call.task(cluster.hosts_of_ranks(), &Transports::Auto)?, &cluster.rates);
    let seconds = |calls| {
        let cluster = Cluster { calls, ..cluster.clone() };
        let described = Described { cluster, segment_given: false, window_given: false };
        Ok::<_, CliError>(simulate_one(call, &described, &task, call.algo, Patience::Long)?.timing.seconds)
    };
    let alone = seconds(1)?;
    // For collectives with a root, calls with other roots follow.
    if alone > SHORT_SECONDS || call.collective.is_rooted() {
        return Ok(alone);
    }
    Ok((seconds(1 + CALLS_IN_A_ROW)? - alone) / CALLS_IN_A_ROW as f64)
}

fn simulate_one(
    call: &CallArgs,
    described: &Described,
    task: &Task,
    algo: Option<Algorithm>,
    patience: Patience,
) -> Result<Outcome> {
    let call = &CallArgs { algo, ..call.clone() };
    let choice = choose(call, task, &described.cluster.model)?;
    let task = task.clone().with_params(choice.params);
    let mut cluster = described.cluster.clone();
    if !described.segment_given {
        cluster.segment_bytes = choice.segment_bytes.max(1);
    }
    if !described.window_given {
        cluster.window = choice.window.max(1);
    }
    let first = choice.algorithm.plan(&task, 0);
    let steps: usize = first.lanes.iter().map(|lane| lane.len()).sum();
    let segments = (call.selection_bytes(task.world_size) as usize).div_ceil(cluster.segment_bytes).max(1);
    let steps = steps.saturating_mul(segments).saturating_mul(task.world_size as usize);
    let steps_max = match patience {
        Patience::None => MAX_LISTED_STEPS,
        Patience::Short => MAX_COMPARED_STEPS,
        Patience::Long => usize::MAX,
    };
    if steps > steps_max {
        return Err(CliError::usage(
            format!("{} million steps take long: simulate it alone with --algo", steps / 1_000_000),
            "Or simulate less",
        ));
    }
    let plans_bytes = plans_bytes(&first);
    let (timing, plans) = if plans_bytes <= MAX_PLAN_BYTES {
        let plans = choice.algorithm.plans(&task);
        (call.simulated(&plans, &cluster)?, Plans::All(plans))
    } else if let (Some(symmetry), 1) = (symmetry(choice.algorithm, &task), cluster.ranks_per_host) {
        let timing = simulate_symmetric(&first, &call.shape(&first), &cluster, symmetry);
        (timing, Plans::Symmetric(Box::new(first)))
    } else {
        return Err(CliError::usage(
            format!(
                "{} on {} ranks needs {} for its steps, more than the {} that a simulation may use",
                choice.algorithm,
                task.world_size,
                human_bytes(plans_bytes as f64),
                human_bytes(MAX_PLAN_BYTES as f64)
            ),
            "Simulate fewer ranks, one rank per host, or an algorithm with fewer steps, for example --algo circulant",
        ));
    };
    Ok(Outcome {
        algorithm: choice.algorithm.name().to_owned(),
        predicted_seconds: Some(choice.cost_seconds),
        cluster,
        timing,
        plans,
    })
}

fn simulate_file(call: &CallArgs, described: &Described, path: &Path) -> Result<Outcome> {
    let loaded = plan_file::read(path, call)?;
    let mut cluster = described.cluster.clone();
    cluster.segment_bytes = loaded.set.segment_bytes() as usize;
    cluster.window = loaded.set.window() as usize;
    let timing = plan_file::simulated(&loaded.set, call, &cluster)?;
    Ok(Outcome {
        algorithm: format!("{} of {}", loaded.set.name(), path.display()),
        predicted_seconds: None,
        cluster,
        timing,
        plans: Plans::All(plan_file::plans(&loaded.set, call).to_vec()),
    })
}

/// Returns the bytes of the plans of all ranks, estimated from one of them. The members of a stage share a table.
fn plans_bytes(first: &Plan) -> usize {
    let ranks = first.world_size as usize;
    let steps: usize = first.lanes.iter().map(|lane| size_of_val(&**lane)).sum();
    let table = first.stage.as_ref().map_or(0, |stage| {
        let bytes: usize = stage.rounds.iter().map(|round| size_of_val(&**round)).sum();
        bytes.saturating_mul(ranks.div_ceil(stage.members.len()))
    });
    steps.saturating_mul(ranks).saturating_add(table)
}

/// Returns the symmetry of an algorithm by which one rank can represent all.
const fn symmetry(algorithm: Algorithm, task: &Task) -> Option<Symmetry> {
    use {Algorithm as A, Collective as C};
    match (algorithm, task.collective) {
        (A::Direct, C::AllToAll) if task.world_size.is_power_of_two() => Some(Symmetry::Pairs),
        (A::Dissemination, C::Barrier)
        | (
            A::Ring | A::Circulant | A::Direct,
            C::AllReduce | C::AllGather | C::ReduceScatter | C::AllToAll,
        ) => Some(Symmetry::Circle),
        _ => None,
    }
}

fn compare(call: &CallArgs, described: &Described, task: &Task) -> Result<String> {
    let mut results = Vec::new();
    for algorithm in Algorithm::ALL {
        if let Err(reason) = algorithm.supports(task) {
            results.push((f64::INFINITY, algorithm, Err(reason)));
            continue;
        }
        match simulate_one(call, described, task, Some(algorithm), Patience::Short) {
            Ok(outcome) => {
                results.push((
                    outcome.timing.seconds,
                    algorithm,
                    Ok(outcome.predicted_seconds.unwrap_or(f64::NAN)),
                ));
            }
            Err(error) => results.push((f64::INFINITY, algorithm, Err(error.message))),
        }
    }
    results.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = Builder::default();
    table.push_record(["algorithm", "simulated", "cost model", ""]);
    for (seconds, algorithm, verdict) in results {
        match verdict {
            Ok(predicted) => table.push_record([
                algorithm.to_string(),
                human_seconds(seconds),
                human_seconds(predicted),
                String::new(),
            ]),
            Err(reason) => {
                let reason = reason.split(". ").next().unwrap_or_default().to_owned();
                table.push_record([algorithm.to_string(), "-".into(), "-".into(), reason]);
            }
        }
    }
    Ok(format!("{}\n", table.build().with(Style::psql())))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use super::*;
    use crate::cli::{Command, parse};

    fn simulated(line: &str) -> Result<(String, bool)> {
        match parse(format!("kolo sim {line}").split_whitespace().map(OsString::from)).unwrap().command {
            Command::Sim(args) => simulated_text(&args),
            other => panic!("{other:?}"),
        }
    }

    fn with_file(description: &str, line: &str) -> Result<(String, bool)> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.toml");
        fs::write(&path, description).unwrap();
        simulated(&format!("{line} --cluster {}", path.display()))
    }

    #[test]
    fn one_rank_stands_for_thousands_that_exchange_in_pairs() {
        let line = "all_to_all --hosts 8192 --ranks-per-host 1 --algo direct --bytes 64K";
        let (text, okay) = simulated(line).unwrap();
        assert!(okay, "{text}");
    }

    #[test]
    fn time_traffic_path_and_proof() {
        let (text, okay) = simulated("all_reduce --hosts 4 --ranks-per-host 2 --bytes 1M").unwrap();
        assert!(okay);
        for expected in
            ["4 host(s) with 2 rank(s)", "time", "between hosts", "correct: every", "critical path"]
        {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    #[test]
    fn the_example_describes_a_cluster() {
        let (text, okay) = with_file(EXAMPLE_FILE, "broadcast --bytes 64K --hosts 3").unwrap();
        assert!(okay && text.contains("3 host(s) with 8 rank(s)"), "{text}");
    }

    #[test]
    fn hosts_may_differ() {
        let rate =
            |rate: &str| format!("[[rates]]\nout_bytes_per_second = {rate}\nin_bytes_per_second = {rate}\n");
        let of_hosts = |rates: [&str; 4]| rates.map(rate).concat();
        let head = "hosts = 4\nranks_per_host = 1\n";
        let model = "[model]\nnic_bytes_per_second = 1e7\n";
        let slow = format!("{head}{}{model}", of_hosts(["1e8", "1e8", "1e7", "1e8"]));
        let (text, okay) = with_file(&slow, "all_reduce --bytes 64M").unwrap();
        assert!(okay && text.contains("shares"), "{text}");
        let few = format!("{head}{}{model}", rate("1e8"));
        let pairs = format!("{head}[[pairs]]\nfrom = 0\nto = 4\nbytes_per_second = 1e8\n");
        for wrong in [few, pairs] {
            let error = with_file(&wrong, "all_reduce").unwrap_err().message;
            assert!(error.contains("there are 4"), "{error}");
        }
        let zero = format!("{head}{}", of_hosts(["1e8", "0.0", "1e7", "1e8"]));
        assert!(with_file(&zero, "all_reduce").unwrap_err().message.contains("not positive"));
    }

    #[test]
    fn a_dead_rank_is_seen() {
        let (text, okay) =
            with_file("ranks_per_host = 4\n[killed]\nrank = 1\nat_seconds = 0.0", "all_reduce --algo ring")
                .unwrap();
        assert!(!okay && text.contains("waits for rank 1"), "{text}");
    }

    #[test]
    fn algorithms_are_compared() {
        let (text, _) = simulated("all_reduce --hosts 8 --ranks-per-host 1 --bytes 1M --compare").unwrap();
        assert!(text.contains("ring") && text.contains("dissemination"), "{text}");
    }

    #[test]
    fn json_reads_back() {
        let (text, _) = simulated("barrier --hosts 2 --json").unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value["timing"]["seconds"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn wrong_descriptions_are_refused() {
        for description in [
            "hosts = 0",
            "hosts = 'many'",
            "computers = 3",
            "window = 0",
            "hosts = 4000000000\nranks_per_host = 2",
            "[killed]\nrank = 9\nat_seconds = 0.0",
            "[model]\nnic_bytes_per_second = 0.0",
        ] {
            let error = with_file(description, "all_reduce").unwrap_err();
            assert!(!error.message.contains('\n') && error.exit_code == 2, "{description}: {error}");
        }
        assert!(simulated("all_reduce --cluster /no/such/file").is_err());
    }
}
