//! `kolo sim`: a collective on a described cluster, without a socket.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kolo_collectives::check::{self, Options};
use kolo_collectives::plan::{Collective, Plan};
use kolo_collectives::simulate::{Cluster, Timing, Traffic, simulate, simulate_symmetric};
use kolo_collectives::{Algorithm, Task};
use tabled::builder::Builder;
use tabled::settings::Style;

use crate::error::{CliError, EXIT_WRONG_RESULT, Result};
use crate::explain::{Network, choose};
use crate::perf::human_bytes;
use crate::planning::{CallArgs, human_seconds};

/// Plans of all ranks together may take this much memory: a ring of 4000 ranks does.
const MAX_PLAN_BYTES: usize = 2 << 30;

/// Up to so many ranks every value is followed; beyond, only messages, lengths and the absence of deadlock.
const MAX_RANKS_WITH_VALUES: u32 = 128;

/// In a comparison: steps of all ranks and segments together, a few seconds' worth.
const MAX_COMPARED_STEPS: usize = 20_000_000;

const EXAMPLE_FILE: &str = "\
# A cluster for `kolo sim`. Whatever is left out has a default.
hosts = 16
ranks_per_host = 8
# segment_bytes = 1048576        # chosen as the runtime would, unless given
# window = 4

[model]
nic_bytes_per_second = 25e9      # of a host, each direction, shared by its ranks
memory_bytes_per_second = 100e9  # of a host, shared by its ranks
reduce_bytes_per_second = 20e9   # of a rank
copy_bytes_per_second = 10e9     # of a rank
oversubscription = 1.0           # ranks per processor

[model.intra]                    # between ranks of a host
latency_seconds = 0.3e-6
overhead_seconds = 0.1e-6
bytes_per_second = 10e9

[model.inter]                    # between hosts
latency_seconds = 2e-6
overhead_seconds = 0.3e-6
bytes_per_second = 25e9

# [[stragglers]]
# rank = 3
# delay_seconds = 1e-3

# [killed]
# rank = 5
# at_seconds = 1e-4
";

const EXAMPLES: &str = "\
Examples:
  kolo sim all_reduce --cluster cluster.toml --bytes 64M
  kolo sim all_reduce --hosts 128 --ranks-per-host 8 --network rdma --bytes 1G --compare
  kolo sim --example > cluster.toml";

/// Options of `kolo sim`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    #[command(flatten)]
    call: Option<CallArgs>,
    /// Description of the cluster
    #[arg(long, value_name = "FILE.toml")]
    cluster: Option<PathBuf>,
    /// Hosts, over what the file says
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,
    /// Ranks on each host, over what the file says
    #[arg(long, value_name = "N")]
    ranks_per_host: Option<u32>,
    /// Between hosts, when there is no file
    #[arg(long, value_enum, default_value = "tcp", conflicts_with = "cluster")]
    network: Network,
    /// Simulate every algorithm that can, and compare
    #[arg(long)]
    compare: bool,
    /// Steps of the critical path to show, half of them from each end
    #[arg(long, value_name = "N", default_value = "12")]
    path: usize,
    /// Machine-readable
    #[arg(long)]
    json: bool,
    /// Print a description of a cluster to start from
    #[arg(long)]
    example: bool,
}

/// How long somebody waits for one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// It is one of many.
    Short,
    /// It is what was asked for.
    Long,
}

/// A cluster, and which of its settings the user made.
struct Described {
    cluster: Cluster,
    segment_given: bool,
    window_given: bool,
}

/// What a simulation gave.
struct Outcome {
    algorithm: Algorithm,
    predicted_seconds: f64,
    cluster: Cluster,
    timing: Timing,
    plans: Plans,
}

/// The plans that were run.
enum Plans {
    /// One of each rank.
    All(Vec<Plan>),
    /// That of rank 0, which stands for all.
    Symmetric(Box<Plan>),
}

/// Runs `kolo sim`.
pub(crate) fn run(args: &SimArgs) -> Result<ExitCode> {
    let (text, okay) = if args.example { (EXAMPLE_FILE.to_owned(), true) } else { report(args)? };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| CliError::system("standard output cannot be written", &error))?;
    Ok(if okay { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WRONG_RESULT) })
}

fn report(args: &SimArgs) -> Result<(String, bool)> {
    let Some(call) = &args.call else {
        return Err(CliError::usage(
            "no collective was named",
            "For example: kolo sim all_reduce --bytes 64M",
        ));
    };
    let described = describe(args, call)?;
    let task = call.task(described.cluster.hosts_of_ranks())?;
    if args.compare {
        return Ok((compare(call, &described, &task)?, true));
    }
    let outcome = simulate_one(call, &described, &task, call.algo, Patience::Long)?;
    if args.json {
        let value = serde_json::json!({
            "collective": call.collective.name(),
            "bytes": call.bytes,
            "algorithm": outcome.algorithm.name(),
            "predicted_seconds": outcome.predicted_seconds,
            "cluster": outcome.cluster,
            "timing": outcome.timing,
        });
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        return Ok((text + "\n", outcome.timing.stuck.is_empty()));
    }
    let mut out = summary(call, &outcome);
    let _ = writeln!(out, "\n{}\n", traffic(&outcome));
    let _ = writeln!(out, "{}", proof(call, &outcome)?);
    out.push_str(&critical_path(&outcome, args.path));
    out.push_str(&stuck(&outcome.timing));
    Ok((out, outcome.timing.stuck.is_empty()))
}

fn describe(args: &SimArgs, call: &CallArgs) -> Result<Described> {
    let (mut cluster, table) = match &args.cluster {
        None => (Cluster { model: args.network.model(), ..Cluster::default() }, toml::Table::new()),
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| CliError::system(format!("{} cannot be read", path.display()), &error))?;
            let bad = |error: toml::de::Error| {
                let text = error.to_string();
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                CliError::usage(
                    format!("{} does not describe a cluster: {text}", path.display()),
                    "`kolo sim --example` prints a description that does",
                )
            };
            (toml::from_str(&text).map_err(bad)?, toml::from_str(&text).map_err(bad)?)
        }
    };
    cluster.hosts = args.hosts.unwrap_or(cluster.hosts);
    cluster.ranks_per_host = args.ranks_per_host.unwrap_or(cluster.ranks_per_host);
    cluster.element_bytes = call.element_bytes as usize;
    let ranks = u64::from(cluster.hosts) * u64::from(cluster.ranks_per_host);
    if !(1..=1 << 20).contains(&ranks) {
        return Err(CliError::usage(
            format!("{} hosts with {} ranks make {ranks} ranks", cluster.hosts, cluster.ranks_per_host),
            "A cluster has 1 to 1048576",
        ));
    }
    let ranks = ranks as u32;
    let wrong = cluster.stragglers.iter().map(|straggler| straggler.rank);
    if let Some(rank) = wrong.chain(cluster.killed.map(|killed| killed.rank)).find(|rank| *rank >= ranks) {
        return Err(CliError::usage(
            format!("the description speaks of rank {rank}, but there are {ranks} ranks"),
            "Number them from 0",
        ));
    }
    let model = &cluster.model;
    let rates = [
        model.intra.bytes_per_second,
        model.inter.bytes_per_second,
        model.reduce_bytes_per_second,
        model.copy_bytes_per_second,
        model.nic_bytes_per_second,
        model.memory_bytes_per_second,
        model.oversubscription,
    ];
    let times =
        [model.intra, model.inter].map(|class| [class.latency_seconds, class.overhead_seconds]).concat();
    if rates.iter().any(|rate| !rate.is_finite() || *rate <= 0.0)
        || times.iter().any(|time| !time.is_finite() || *time < 0.0)
        || cluster.segment_bytes == 0
        || cluster.window == 0
    {
        return Err(CliError::usage(
            "the description has a rate, a window or a segment that is not positive, or a negative time",
            "Correct it; all are plain numbers of bytes, seconds and bytes per second",
        ));
    }
    let given = |name: &str| table.contains_key(name);
    Ok(Described { cluster, segment_given: given("segment_bytes"), window_given: given("window") })
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
    if patience == Patience::Short && steps > MAX_COMPARED_STEPS {
        return Err(CliError::usage(
            format!("{} million steps take long: ask for it alone with --algo", steps / 1_000_000),
            "Or simulate less",
        ));
    }
    let plan_bytes: usize = first.lanes.iter().map(|lane| size_of_val(&**lane)).sum();
    let (timing, plans) = if plan_bytes.saturating_mul(task.world_size as usize) <= MAX_PLAN_BYTES {
        let mut plans = vec![first];
        plans.extend((1..task.world_size).map(|rank| choice.algorithm.plan(&task, rank)));
        let shapes: Vec<_> = plans.iter().map(|plan| call.shape(plan)).collect();
        let timing = simulate(&plans, &shapes, &cluster).map_err(|violation| {
            CliError::failure(
                format!("the plans do not fit together: {violation}"),
                "Please report this as a bug",
            )
        })?;
        (timing, Plans::All(plans))
    } else if is_symmetric(choice.algorithm, call.collective) && cluster.ranks_per_host == 1 {
        (simulate_symmetric(&first, &call.shape(&first), &cluster), Plans::Symmetric(Box::new(first)))
    } else {
        return Err(CliError::usage(
            format!(
                "{} on {} ranks has {} of steps in all, more than the {} that a simulation may take",
                choice.algorithm,
                task.world_size,
                human_bytes(plan_bytes as f64 * f64::from(task.world_size)),
                human_bytes(MAX_PLAN_BYTES as f64)
            ),
            "Simulate fewer ranks, one rank per host, or an algorithm with fewer steps, for example --algo circulant",
        ));
    };
    Ok(Outcome {
        algorithm: choice.algorithm,
        predicted_seconds: choice.cost_seconds,
        cluster,
        timing,
        plans,
    })
}

/// Whether rank r does to rank r + d what rank 0 does to rank d: then one rank stands for all.
const fn is_symmetric(algorithm: Algorithm, collective: Collective) -> bool {
    matches!(
        (algorithm, collective),
        (Algorithm::Dissemination, Collective::Barrier)
            | (
                Algorithm::Ring | Algorithm::Circulant | Algorithm::Direct,
                Collective::AllReduce
                    | Collective::AllGather
                    | Collective::ReduceScatter
                    | Collective::AllToAll,
            )
    )
}

fn summary(call: &CallArgs, outcome: &Outcome) -> String {
    let (cluster, timing) = (&outcome.cluster, &outcome.timing);
    let done: Vec<f64> = timing.finished.iter().flatten().copied().collect();
    let earliest = done.iter().copied().fold(f64::INFINITY, f64::min);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} of {} on {} host(s) with {} rank(s) each",
        call.collective,
        human_bytes(call.bytes as f64),
        cluster.hosts,
        cluster.ranks_per_host
    );
    let bandwidth = call.bytes as f64 / timing.seconds.max(1e-12) / 1e9;
    for (name, value) in [
        ("algorithm", outcome.algorithm.to_string()),
        (
            "time",
            format!(
                "{} (cost model: {})",
                human_seconds(timing.seconds),
                human_seconds(outcome.predicted_seconds)
            ),
        ),
        ("bandwidth", format!("{bandwidth:.3} GB/s (algbw)")),
        (
            "finished",
            format!(
                "first rank after {}, {} of {}",
                human_seconds(earliest),
                done.len(),
                timing.finished.len()
            ),
        ),
        (
            "segments",
            format!("of up to {}, {} in flight", human_bytes(cluster.segment_bytes as f64), cluster.window),
        ),
        ("staging", format!("{} on the rank that needs most", human_bytes(timing.scratch_bytes as f64))),
        ("peers", format!("at most {} per rank", timing.connections)),
    ] {
        let _ = writeln!(out, "  {name:<10} {value}");
    }
    out
}

fn traffic(outcome: &Outcome) -> String {
    let mut table = Builder::default();
    table.push_record(["links", "messages", "bytes", "bytes per rank"]);
    let ranks = f64::from(outcome.cluster.world_size());
    let mut push = |name: &str, traffic: Traffic| {
        table.push_record([
            name.to_owned(),
            traffic.messages.to_string(),
            human_bytes(traffic.bytes as f64),
            human_bytes(traffic.bytes as f64 / ranks),
        ]);
    };
    push("within hosts", outcome.timing.intra);
    push("between hosts", outcome.timing.inter);
    table.build().with(Style::psql()).to_string()
}

/// What could be proved of the plans; an error if they are wrong.
fn proof(call: &CallArgs, outcome: &Outcome) -> Result<String> {
    let Plans::All(plans) = &outcome.plans else {
        return Ok("not checked: one rank stands for all; use fewer ranks for a proof".into());
    };
    let shapes: Vec<_> = plans.iter().map(|plan| call.shape(plan)).collect();
    let values = plans.len() as u32 <= MAX_RANKS_WITH_VALUES;
    let elements = outcome.cluster.segment_bytes / outcome.cluster.element_bytes.max(1);
    let stride = if values { 1 } else { (plans.len() / 64).max(1) as u32 };
    let options =
        Options { values, hazard_stride: stride, segments: 2, ..Options::quick() }.segmented(elements.max(1));
    check::check(plans, &shapes, &options).map_err(|violation| {
        CliError::failure(format!("the plans are wrong: {violation}"), "Please report this as a bug")
    })?;
    Ok(if values {
        "correct: every contribution counted exactly once, no deadlock, no buffer used too early".into()
    } else {
        format!(
            "correct as far as followed: no deadlock, equal lengths, buffers of every {stride}th rank; values are \
             followed up to {MAX_RANKS_WITH_VALUES} ranks"
        )
    })
}

fn critical_path(outcome: &Outcome, shown: usize) -> String {
    let path = &outcome.timing.critical_path;
    if shown == 0 || path.is_empty() {
        return String::new();
    }
    let mut out = format!("\ncritical path, {} steps:\n", path.len());
    let head = shown.div_ceil(2);
    for (index, step) in path.iter().enumerate() {
        let left_out = path.len().saturating_sub(shown);
        if left_out > 0 && index == head {
            let _ = writeln!(out, "  ... {left_out} more ...");
        }
        if left_out > 0 && (head..head + left_out).contains(&index) {
            continue;
        }
        let plan = match &outcome.plans {
            Plans::All(plans) => plans.get(step.rank as usize),
            Plans::Symmetric(plan) => Some(&**plan),
        };
        let action = plan
            .and_then(|plan| plan.lanes.get(usize::from(step.step.lane))?.get(usize::from(step.step.step)))
            .map_or_else(String::new, ToString::to_string);
        let _ = writeln!(
            out,
            "  {:>12}  rank {:<5} segment {:<4} {action}",
            human_seconds(step.at_seconds),
            step.rank,
            step.segment
        );
    }
    out
}

fn stuck(timing: &Timing) -> String {
    if timing.stuck.is_empty() {
        return String::new();
    }
    let mut ranks: Vec<u32> = timing.stuck.iter().map(|stuck| stuck.rank).collect();
    ranks.dedup();
    let mut out = format!("\n{} rank(s) never got through:\n", ranks.len());
    for stuck in timing.stuck.iter().take(20) {
        let peer = stuck.peer.map_or_else(|| "itself".to_owned(), |peer| format!("rank {peer}"));
        let _ = writeln!(out, "  rank {} waits for {peer} in segment {}", stuck.rank, stuck.segment);
    }
    out
}

fn compare(call: &CallArgs, described: &Described, task: &Task) -> Result<String> {
    let mut results = Vec::new();
    for algorithm in Algorithm::ALL {
        match simulate_one(call, described, task, Some(algorithm), Patience::Short) {
            Ok(outcome) => results.push((outcome.timing.seconds, algorithm, Ok(outcome.predicted_seconds))),
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

    use super::*;
    use crate::cli::{Command, parse};

    fn simulated(line: &str) -> Result<(String, bool)> {
        match parse(format!("kolo sim {line}").split_whitespace().map(OsString::from)).unwrap().command {
            Command::Sim(args) => report(&args),
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
