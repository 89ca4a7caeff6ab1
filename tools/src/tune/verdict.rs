//! Result of a check: where the selection misses the best algorithm, and how well the simulator predicts.

use kolo::{Collective, TransportKind};
use kolo_collectives::Algorithm;
use kolo_collectives::simulate::Cluster;
use tabled::builder::Builder;
use tabled::settings::Style;

use super::check::{Checked, Point, is_in_place};
use super::fit::median;
use crate::perf::human_bytes;
use crate::planning::{CallArgs, human_seconds};
use crate::sim;

/// The chosen algorithm is good if it takes at most this many times as long as the best.
const GOOD: f64 = 1.15;

/// Algorithms whose times differ by less than this factor count as equal.
const APART: f64 = 1.2;

/// Predictions are good if their relative error is below this.
const NEAR: f64 = 0.3;

/// Size in bytes from which predictions are also judged by their error.
const LONG: u64 = 64 << 10;

/// Results of one collective on a number of ranks over one transport.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) kind: TransportKind,
    pub(super) ranks: u32,
    pub(super) collective: Collective,
    pub(super) checked: Checked,
}

/// The same case in the simulator.
struct Compared<'a> {
    point: &'a Point,
    /// Measured and simulated seconds of each algorithm.
    times: Vec<(Algorithm, f64, f64)>,
}

/// Returns all tables; with every point if `verbose`.
pub(super) fn lines(cases: &[Case], verbose: bool) -> Vec<String> {
    let mut out = vec!["selection: time of the chosen algorithm / time of the best candidate".to_owned()];
    out.extend(selection_summary(cases));
    out.push(String::new());
    out.push(if verbose { "every point:".to_owned() } else { format!("points above {GOOD}:") });
    out.extend(selection_points(cases, verbose));
    out.push(String::new());
    out.push(format!(
        "simulator: order of pairs more than {APART}x apart; error from {} up",
        human_bytes(LONG as f64)
    ));
    out.extend(simulator_summary(cases, verbose));
    out
}

fn groups(cases: &[Case]) -> Vec<(TransportKind, u32)> {
    let mut groups: Vec<_> = cases.iter().map(|case| (case.kind, case.ranks)).collect();
    groups.dedup();
    groups
}

fn of_group(cases: &[Case], group: (TransportKind, u32)) -> impl Iterator<Item = &Case> {
    cases.iter().filter(move |case| (case.kind, case.ranks) == group)
}

fn selection_summary(cases: &[Case]) -> Vec<String> {
    let mut table = Builder::default();
    table.push_record(["transport", "ranks", "points", "within 15%", "median", "worst"]);
    for (kind, ranks) in groups(cases) {
        let mut ratios: Vec<f64> = of_group(cases, (kind, ranks))
            .flat_map(|case| &case.checked.points)
            .filter_map(|point| point.verdict().map(|(chosen, _, best)| chosen / best))
            .collect();
        let good = ratios.iter().filter(|ratio| **ratio <= GOOD).count();
        table.push_record([
            kind.name().to_owned(),
            ranks.to_string(),
            ratios.len().to_string(),
            good.to_string(),
            format!("{:.2}", median(&mut ratios)),
            format!("{:.2}", ratios.last().copied().unwrap_or(f64::NAN)),
        ]);
    }
    text(table)
}

fn selection_points(cases: &[Case], all: bool) -> Vec<String> {
    let mut table = Builder::default();
    table.push_record([
        "transport",
        "ranks",
        "collective",
        "bytes",
        "chosen",
        "time",
        "best",
        "time",
        "ratio",
    ]);
    for case in cases {
        for point in &case.checked.points {
            let Some((chosen, best, least)) = point.verdict() else { continue };
            if all || chosen / least > GOOD {
                table.push_record([
                    case.kind.name().to_owned(),
                    case.ranks.to_string(),
                    case.collective.to_string(),
                    human_bytes(point.bytes as f64),
                    point.chosen.clone(),
                    human_seconds(chosen),
                    best.to_owned(),
                    human_seconds(least),
                    format!("{:.2}", chosen / least),
                ]);
            }
        }
    }
    text(table)
}

fn simulator_summary(cases: &[Case], verbose: bool) -> Vec<String> {
    let mut table = Builder::default();
    table.push_record([
        "transport",
        "ranks",
        "pairs",
        "in order",
        "times",
        "within 30%",
        "median error",
        "worst",
    ]);
    let mut details = Vec::new();
    for (kind, ranks) in groups(cases) {
        let (mut pairs, mut in_order) = (0_u32, 0_u32);
        let mut errors = Vec::new();
        for case in of_group(cases, (kind, ranks)) {
            for compared in compare(case) {
                let (some, right) = compared.pairs();
                (pairs, in_order) = (pairs + some, in_order + right);
                if compared.point.bytes >= LONG {
                    errors.extend(
                        compared.times.iter().map(|(_, real, simulated)| (simulated / real - 1.0).abs()),
                    );
                }
                if verbose {
                    details.extend(compared.times.iter().map(|(algorithm, real, simulated)| {
                        format!(
                            "{} {ranks} {} {} {algorithm}: {} measured, {} simulated, {:+.0}%",
                            kind.name(),
                            case.collective,
                            human_bytes(compared.point.bytes as f64),
                            human_seconds(*real),
                            human_seconds(*simulated),
                            (simulated / real - 1.0) * 100.0
                        )
                    }));
                }
            }
        }
        let near = errors.iter().filter(|error| **error < NEAR).count();
        let share = |part: f64, of: f64| format!("{:.0}%", 100.0 * part / of.max(1.0));
        table.push_record([
            kind.name().to_owned(),
            ranks.to_string(),
            pairs.to_string(),
            share(f64::from(in_order), f64::from(pairs)),
            errors.len().to_string(),
            share(near as f64, errors.len() as f64),
            format!("{:.0}%", 100.0 * median(&mut errors)),
            format!("{:.0}%", 100.0 * errors.last().copied().unwrap_or(f64::NAN)),
        ]);
    }
    let mut out = text(table);
    out.extend(details);
    out
}

impl Compared<'_> {
    /// Returns the number of pairs of algorithms whose times differ clearly, and how many of these pairs the
    /// simulator orders correctly.
    fn pairs(&self) -> (u32, u32) {
        let (mut pairs, mut right) = (0, 0);
        for (i, (_, slow, predicted_slow)) in self.times.iter().enumerate() {
            for (_, fast, predicted_fast) in
                self.times.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, t)| t)
            {
                if *slow > APART * fast {
                    pairs += 1;
                    right += u32::from(predicted_slow > predicted_fast);
                }
            }
        }
        (pairs, right)
    }
}

/// Simulates the measured cases. The exchange has no plan, so it is not simulated.
fn compare(case: &Case) -> Vec<Compared<'_>> {
    let simulated = |point: &Point, algorithm: Algorithm| {
        // For blocks, a call has at least one element per rank.
        let least = if case.collective.has_block_per_rank() { u64::from(case.ranks) * 4 } else { 4 };
        let call = CallArgs {
            collective: case.collective,
            bytes: point.bytes.max(least),
            root: 0,
            in_place: is_in_place(case.collective),
            element_bytes: 4,
            algo: Some(algorithm),
            canonical: false,
            shards: None,
            symmetric: false,
        };
        let cluster = Cluster { ranks_per_host: case.ranks, model: case.checked.model, ..Cluster::default() };
        sim::seconds_each(&call, &cluster).ok()
    };
    let named = |name: &str| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    let points = case.checked.points.iter().map(|point| Compared {
        point,
        times: point
            .seconds
            .iter()
            .filter_map(|(name, real)| {
                let algorithm = named(name)?;
                Some((algorithm, *real, simulated(point, algorithm)?))
            })
            .collect(),
    });
    points.collect()
}

fn text(table: Builder) -> Vec<String> {
    table.build().with(Style::psql()).to_string().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_once_and_only_when_apart() {
        let point = Point {
            bytes: 8,
            chosen: "ring".into(),
            seconds: vec![("ring".into(), 3.0), ("tree".into(), 2.0)],
        };
        assert_eq!(point.verdict(), Some((3.0, "tree", 2.0)));
        let times = |a: f64, b: f64, c: f64| {
            vec![(Algorithm::Ring, 1.0, a), (Algorithm::Tree, 1.1, b), (Algorithm::Direct, 2.0, c)]
        };
        assert_eq!(Compared { point: &point, times: times(1.0, 1.0, 3.0) }.pairs(), (2, 2));
        assert_eq!(Compared { point: &point, times: times(1.0, 4.0, 3.0) }.pairs(), (2, 1));
    }
}
