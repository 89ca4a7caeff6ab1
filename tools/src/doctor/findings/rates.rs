//! Findings about slow and lossy links.

use std::collections::BTreeSet;

use super::super::rates::Measured;
use super::super::report::Report;
use super::{Blame, Finding, Severity, blame, ends};

/// Share of the possible rate below which a rate is reported. Measured rates vary by a tenth, on busy hosts by
/// more.
const SLOW: f64 = 0.5;

/// Fewest lost segments that are reported: one or two may only have been late.
const LOST: u32 = 3;

/// Share of lost segments that slows a connection down: cubic fills 1 Gbit/s at 1 ms if fewer are lost.
const LOSSY: f64 = 3e-4;

/// Finds hosts all of whose links are slow in one direction, and links that are slower than both their hosts.
pub(super) fn slow(report: &Report) -> Vec<Finding> {
    let hosts = report.hosts.len() as u32;
    let sends = |host| report.rate(host, |way: &Measured| way.from);
    let receives = |host| report.rate(host, |way: &Measured| way.to);
    let mut found = Vec::new();
    let mut named = BTreeSet::new();
    // With two hosts, the measurements cannot tell which one is slow.
    for host in (0..hosts).filter(|_| hosts > 2) {
        let slow = |own: Option<f64>, of: &dyn Fn(u32) -> Option<f64>| {
            let (own, usual) = (own?, median((0..hosts).filter_map(of).collect())?);
            (own < SLOW * usual).then_some((own, usual))
        };
        let (out, inward) = (slow(sends(host), &sends), slow(receives(host), &receives));
        let Some((rate, usual)) = out.or(inward) else { continue };
        named.insert(host);
        let how = match (out, inward) {
            (Some(_), Some(_)) => "sends and receives",
            (Some(_), None) => "sends",
            _ => "receives",
        };
        let what = format!(
            "{} {how} at most {:.1} MB/s; the others have {:.1}",
            report.name(host),
            rate / 1e6,
            usual / 1e6
        );
        found.push(Finding::new(
            "slow_host",
            Severity::Warning,
            what,
            "a cable or port that negotiated a lower speed, a virtual machine's limit, or other traffic",
            "Compare `ethtool` of its interface with another host's; collectives wait for this host, so \
             leave it out if it cannot be fixed",
        ));
    }
    let could = |way: &Measured| Some(sends(way.from)?.min(receives(way.to)?));
    for way in &report.measured {
        let is_known = named.contains(&way.from) || named.contains(&way.to);
        let Some(rate) = could(way).filter(|rate| !is_known && way.bytes_per_second < SLOW * rate) else {
            continue;
        };
        let what = format!(
            "{} sends to {} at {:.1} MB/s; both are faster with other hosts ({:.1})",
            report.name(way.from),
            report.name(way.to),
            way.bytes_per_second / 1e6,
            rate / 1e6
        );
        let cause = "a slow or congested link between the two, such as a switch's uplink";
        let remedy = "Check the path (`tracepath`) and its switches, or place the job on hosts that are \
                      close to each other";
        found.push(Finding::new("slow_link", Severity::Warning, what, cause, remedy));
    }
    found.extend(two_hosts_apart(report));
    found
}

/// Finds one direction between two hosts that is much slower than the other.
fn two_hosts_apart(report: &Report) -> Option<Finding> {
    if report.hosts.len() != 2 {
        return None;
    }
    let (there, back) = (report.between(0, 1)?, report.between(1, 0)?);
    let (slow, fast) =
        if there.bytes_per_second < back.bytes_per_second { (there, back) } else { (back, there) };
    (slow.bytes_per_second < SLOW * fast.bytes_per_second).then(|| {
        let what = format!(
            "{} sends to {} at {:.1} MB/s, but receives {:.1} from it",
            report.name(slow.from),
            report.name(slow.to),
            slow.bytes_per_second / 1e6,
            fast.bytes_per_second / 1e6
        );
        let cause = "losses in one direction, a duplex mismatch, or limits that differ by direction";
        let remedy = "Check the counters of both interfaces (`ip -s link`, `ethtool -S`)";
        Finding::new("slow_link", Severity::Warning, what, cause, remedy)
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Finds links on which segments are lost although queues are empty.
pub(super) fn lossy(report: &Report) -> Vec<Finding> {
    let pair = |way: &Measured| (way.from.min(way.to), way.from.max(way.to));
    let all: BTreeSet<_> = report.measured.iter().map(pair).collect();
    let sum = |of: &dyn Fn(&Measured) -> bool| {
        let own = report.measured.iter().filter(|way| of(way));
        own.fold((0_u32, 0_u32), |(lost, sent), way| (lost + way.lost, sent + way.segments))
    };
    let share = |(lost, sent): (u32, u32)| f64::from(lost) / f64::from(sent.max(1));
    let is_lossy = |counts: (u32, u32)| counts.0 >= LOST && share(counts) >= LOSSY;
    let bad: BTreeSet<_> =
        all.iter().copied().filter(|link| is_lossy(sum(&|way| pair(way) == *link))).collect();
    let words = |who| {
        let (place, counts) = match who {
            Blame::All => ("between all hosts".to_owned(), sum(&|_| true)),
            Blame::Host(host) => (
                format!("between {} and all others", report.name(host)),
                sum(&|way| way.from == host || way.to == host),
            ),
            Blame::Pair(one, other) => (
                format!("between {} and {}", report.name(one), report.name(other)),
                sum(&|way| pair(way) == (one, other)),
            ),
        };
        format!("{:.2} % of segments are lost {place} ({} of {})", 100.0 * share(counts), counts.0, counts.1)
    };
    blame(&bad, &all, ends)
        .into_iter()
        .map(|who| {
            let cause =
                "a bad cable, transceiver or port, a wireless link, or a limit that drops packets instead of \
                 queueing them";
            let remedy = "Look for errors and drops on the path (`ip -s link`, `ethtool -S`); until then, \
                          KOLO_SOCKET_CONGESTION=bbr loses less time, if the kernel offers it";
            Finding::new("lossy", Severity::Warning, words(who), cause, remedy)
        })
        .collect()
}
