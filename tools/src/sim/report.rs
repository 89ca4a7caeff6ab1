//! Results of a simulation as text for people.

use std::fmt::Write as _;

use kolo_collectives::check::{self, Options};
use kolo_collectives::simulate::{Timing, Traffic};
use tabled::builder::Builder;
use tabled::settings::Style;

use super::{Outcome, Plans};
use crate::answer::Answer;
use crate::error::{CliError, Result};
use crate::perf::human_bytes;
use crate::planning::{CallArgs, human_seconds};

/// Up to this many ranks every value is followed; with more, only messages, lengths and the absence of
/// deadlock are checked.
const MAX_RANKS_WITH_VALUES: u32 = 128;

/// Describes the simulation and its duration.
pub(super) fn summary(call: &CallArgs, outcome: &Outcome) -> Answer {
    let (cluster, timing) = (&outcome.cluster, &outcome.timing);
    let done: Vec<f64> = timing.finished.iter().flatten().copied().collect();
    let earliest = done.iter().copied().fold(f64::INFINITY, f64::min);
    let predicted = outcome
        .predicted_seconds
        .map_or_else(String::new, |seconds| format!(" (cost model: {})", human_seconds(seconds)));
    let (finished, ranks) = (done.len(), timing.finished.len());
    let segment = human_bytes(cluster.segment_bytes as f64);
    let bandwidth = call.bytes as f64 / timing.seconds.max(1e-12) / 1e9;
    let rows = [
        ("algorithm", outcome.algorithm.to_string()),
        ("time", format!("{}{predicted}", human_seconds(timing.seconds))),
        ("bandwidth", format!("{bandwidth:.3} GB/s (algbw)")),
        ("finished", format!("first rank after {}, {finished} of {ranks}", human_seconds(earliest))),
        ("segments", format!("of up to {segment}, {} in flight", cluster.window)),
        ("staging", format!("{} on the rank that needs the most", human_bytes(timing.scratch_bytes as f64))),
        ("peers", format!("at most {} per rank", timing.connections)),
    ];
    let (hosts, per_host) = (cluster.hosts, cluster.ranks_per_host);
    let bytes = human_bytes(call.bytes as f64);
    Answer::new(
        format!("{} of {bytes} on {hosts} host(s) with {per_host} rank(s) each", call.collective),
        rows,
    )
}

/// Returns a table of the traffic over each class of links.
pub(super) fn traffic(outcome: &Outcome) -> String {
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

/// Proves the plans; an error if they are wrong.
pub(super) fn proof(call: &CallArgs, outcome: &Outcome) -> Result<String> {
    let Plans::All(plans) = &outcome.plans else {
        return Ok("not checked: one rank represents all; use fewer ranks for a proof".into());
    };
    let values = plans.len() as u32 <= MAX_RANKS_WITH_VALUES;
    let elements = outcome.cluster.segment_bytes / outcome.cluster.element_bytes.max(1);
    let stride = if values { 1 } else { (plans.len() / 64).max(1) as u32 };
    let options =
        Options { values, hazard_stride: stride, segments: 2, ..Options::quick() }.segmented(elements.max(1));
    check::check(plans, &call.shapes(plans), &options).map_err(|violation| {
        CliError::failure(format!("the plans are wrong: {violation}"), "Please report this as a bug")
    })?;
    Ok(if values {
        "correct: every contribution counted exactly once, no deadlock, no buffer used too early".into()
    } else {
        format!(
            "correct as far as checked: no deadlock, equal lengths, buffers of every {stride}th rank; values \
             are followed up to {MAX_RANKS_WITH_VALUES} ranks"
        )
    })
}

/// Returns `shown` steps of the critical path, half of them from each end.
pub(super) fn critical_path(outcome: &Outcome, shown: usize) -> String {
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

/// Lists the ranks that never finished, if a rank was killed.
pub(super) fn stuck(timing: &Timing) -> String {
    if timing.stuck.is_empty() {
        return String::new();
    }
    let mut ranks: Vec<u32> = timing.stuck.iter().map(|stuck| stuck.rank).collect();
    ranks.dedup();
    let mut out = format!("\n{} rank(s) never finished:\n", ranks.len());
    for stuck in timing.stuck.iter().take(20) {
        let peer = stuck.peer.map_or_else(|| "itself".to_owned(), |peer| format!("rank {peer}"));
        let _ = writeln!(out, "  rank {} waits for {peer} in segment {}", stuck.rank, stuck.segment);
    }
    out
}
