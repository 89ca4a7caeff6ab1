//! The table at the end of a run, with one line for each kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::trial::Report;

/// A trial with its result: one line of the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub kind: String,
    pub seed: u64,
    pub ranks: u32,
    pub way: String,
    /// Duration in seconds.
    pub took_s: f64,
    #[serde(flatten)]
    pub report: Report,
}

/// Renders the table in Markdown, with the kinds in the given order.
pub(crate) fn render(kinds: &[String], records: &[Record]) -> String {
    let mut out = String::from(
        "| fault | n | ranks | hangs | wrong blame | others | noticed after: median, max | leaks | survivors |\n\
         | --- | ---: | --- | ---: | ---: | ---: | --- | ---: | --- |\n",
    );
    for kind in kinds {
        let of_kind: Vec<_> =
            records.iter().filter(|record| record.kind == *kind && record.report.skipped.is_none()).collect();
        if !of_kind.is_empty() {
            out += &line(kind, &of_kind);
        }
    }
    let made: Vec<_> = records.iter().filter(|record| record.report.skipped.is_none()).collect();
    out += &line("**all**", &made);
    out
}

fn line(name: &str, records: &[&Record]) -> String {
    let mut ranks: Vec<u32> = records.iter().map(|record| record.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let ranks: Vec<_> = ranks.iter().map(u32::to_string).collect();
    let with = |pick: fn(&Record) -> bool| records.iter().filter(|record| pick(record)).count();
    let mut noticed: Vec<f64> =
        records.iter().flat_map(|record| record.report.noticed_ms.iter().copied()).collect();
    noticed.sort_by(f64::total_cmp);
    let times = match (noticed.get(noticed.len() / 2), noticed.last()) {
        (Some(median), Some(most)) => format!("{}, {}", time(*median), time(*most)),
        _ => "no error".into(),
    };
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in records.iter().flat_map(|record| &record.report.kinds) {
        *kinds.entry(kind).or_default() += 1;
    }
    let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let mut out = String::new();
    let _ = writeln!(
        out,
        "| {name} | {} | {} | {} | {} | {} | {times} | {} | {} |",
        records.len(),
        ranks.join(","),
        with(|record| !record.report.problems.hangs.is_empty()),
        with(|record| !record.report.problems.blame.is_empty()),
        with(|record| !record.report.problems.others.is_empty()),
        with(|record| !record.report.problems.leaks.is_empty()),
        kinds.join(", "),
    );
    out
}

fn time(millis: f64) -> String {
    if millis < 1000.0 { format!("{millis:.0} ms") } else { format!("{:.1} s", millis / 1e3) }
}
