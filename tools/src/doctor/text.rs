//! The report as text for people.

use std::fmt::Write as _;

use tabled::builder::Builder;
use tabled::settings::Style;

use super::findings::{Finding, Severity};
use super::rates::Measured;
use super::report::{Report, Route};

/// Larger matrices are left to `--json` and `--svg`.
const MATRIX_HOSTS: usize = 16;

/// Returns the whole report, findings last.
pub(crate) fn text(report: &Report, findings: &[Finding]) -> String {
    let ranks: usize = report.hosts.iter().map(|host| host.ranks.len()).sum();
    let mut out = format!(
        "{}, {}; examined for {:.1} s\n\n",
        count(report.hosts.len(), "host"),
        count(ranks, "rank"),
        report.seconds
    );
    out += &hosts(report);
    if report.hosts.len() > 1 {
        out += &network(report);
    }
    for route in report.routes.iter().filter(|route| route.rank == 0) {
        let _ = writeln!(out, "{}", words(route));
    }
    out.push('\n');
    for finding in findings {
        let word = match finding.severity {
            Severity::Broken => "BROKEN",
            Severity::Warning => "warning",
        };
        let Finding { what, cause, remedy, .. } = finding;
        let _ = writeln!(out, "{word}: {what}.\n  cause:  {cause}\n  remedy: {remedy}\n");
    }
    out + &verdict(findings) + "\n"
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

fn verdict(findings: &[Finding]) -> String {
    match findings.iter().map(|finding| finding.severity).max() {
        None => "No findings: jobs will run well here.".to_owned(),
        Some(Severity::Warning) => {
            format!("{}: jobs run, but not as well as they could.", count(findings.len(), "finding"))
        }
        Some(Severity::Broken) => format!("{}: jobs will fail here.", count(findings.len(), "finding")),
    }
}

fn words(route: &Route) -> String {
    let peers: Vec<String> = route.peers.iter().map(ToString::to_string).collect();
    let declined: Vec<String> =
        route.declined.iter().map(|(name, why)| format!("; not {name}: {why}")).collect();
    let (rank, peers, transport, how) = (route.rank, peers.join(", "), &route.transport, &route.how);
    format!("rank {rank} to {peers}: {transport} ({how}){}", declined.concat())
}

fn table(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Builder::default();
    rows.into_iter().for_each(|row| table.push_record(row));
    let mut table = table.build();
    table.with(Style::blank());
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>() + "\n"
}

fn hosts(report: &Report) -> String {
    let titles =
        ["host", "name", "ranks", "processors", "interfaces", "congestion", "open files", "locked memory"];
    let row = |(host, number): (&super::report::Host, usize)| {
        let facts = &host.facts;
        let each = |interface: &crate::info::network::Interface| {
            let mtu = interface.mtu.map_or_else(String::new, |mtu| format!(" mtu {mtu}"));
            let address =
                interface.addresses.first().map_or_else(String::new, |address| format!(" {address}"));
            format!("{}{address}{mtu}", interface.name)
        };
        let interfaces: Vec<String> = facts.interfaces.iter().map(each).collect();
        let limit = |limit: Option<u64>, unit: &str| {
            limit.map_or("no limit".to_owned(), |most| format!("{most}{unit}"))
        };
        vec![
            number.to_string(),
            facts.hostname.clone(),
            host.ranks.len().to_string(),
            facts.processors.to_string(),
            interfaces.join(", "),
            facts.congestion.clone(),
            limit(facts.open_files, ""),
            limit(facts.locked_memory.map(|bytes| bytes >> 10), " KiB"),
        ]
    };
    let rows = report.hosts.iter().zip(0..).map(row);
    table(std::iter::once(titles.map(str::to_owned).to_vec()).chain(rows))
}

fn network(report: &Report) -> String {
    let mut out = String::new();
    let (done, all) = report.rounds;
    if done < all {
        let _ = writeln!(
            out,
            "{done} of {all} rounds of pairs were measured; use --seconds to allow more time.\n"
        );
    }
    let mut ways: Vec<&Measured> = report.measured.iter().collect();
    ways.sort_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
    if let [slowest, .., fastest] = ways[..] {
        let mut round_trips: Vec<f64> = ways.iter().map(|way| way.round_trip_seconds).collect();
        round_trips.sort_by(f64::total_cmp);
        let _ = writeln!(
            out,
            "one connection: {:.1} MB/s (host {} to {}) to {:.1} (host {} to {}); round trip {:.3} to {:.3} ms\n",
            slowest.bytes_per_second / 1e6,
            slowest.from,
            slowest.to,
            fastest.bytes_per_second / 1e6,
            fastest.from,
            fastest.to,
            round_trips[0] * 1e3,
            round_trips[round_trips.len() - 1] * 1e3
        );
    }
    if report.hosts.len() > MATRIX_HOSTS {
        return out;
    }
    out += &matrix(report, "MB/s", |way| format!("{:.1}", way.bytes_per_second / 1e6));
    out += &matrix(report, "round trip, ms", |way| format!("{:.3}", way.round_trip_seconds * 1e3));
    if report.measured.iter().any(|way| way.lost > 0) {
        let share = |way: &Measured| 100.0 * f64::from(way.lost) / f64::from(way.segments.max(1));
        out += &matrix(report, "lost, %", |way| format!("{:.2}", share(way)));
    }
    out
}

/// Returns a matrix with senders by row and receivers by column.
fn matrix(report: &Report, title: &str, cell: impl Fn(&Measured) -> String) -> String {
    let hosts = 0..report.hosts.len() as u32;
    let head = std::iter::once(title.to_owned()).chain(hosts.clone().map(|to| format!("to {to}"))).collect();
    let row = |from: u32| {
        let cells = hosts.clone().map(|to| match report.between(from, to) {
            Some(way) => cell(way),
            None if from == to => String::new(),
            None => "-".to_owned(),
        });
        std::iter::once(format!("host {from}")).chain(cells).collect()
    };
    table(std::iter::once(head).chain(hosts.clone().map(row)))
}
