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

/// Part of the segments sent again that had arrived, from which packets overtake each other. Where packets are lost, it is
/// some percent.
const LATE: f64 = 0.2;

const OVERTAKING: &str = "packets of one connection overtake each other, as on several paths of different length, and are \
                          then sent again";
const ONE_PATH: &str = "Have switches and bonds distribute connections, not packets (`xmit_hash_policy layer3+4` instead of \
                        mode balance-rr), and check the path for errors (`ip -s link`)";

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
        let own = || report.measured.iter().filter(|way| [way.from, way.to].contains(&host));
        let fastest = own().max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
        let is_far = own().all(|way| is_far(report, way));
        let (cause, remedy) = fastest.filter(|_| is_far).map(distance).unwrap_or_else(|| {
            let cause =
                "a cable or port that negotiated a lower speed, a virtual machine's limit, or other traffic";
            let remedy = "Compare `ethtool` of its interface with another host's; collectives wait for this host, \
                          so leave it out if it cannot be fixed";
            (cause.to_owned(), remedy)
        });
        found.push(Finding::new("slow_host", Severity::Warning, what, cause, remedy));
    }
    let could = |way: &Measured| Some(sends(way.from)?.min(receives(way.to)?));
    for way in &report.measured {
        let is_known = named.contains(&way.from) || named.contains(&way.to) || loses_much(way);
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
        let (cause, remedy) = if is_far(report, way) {
            distance(way)
        } else {
            let cause = "a slow or congested link between the two, such as a switch's uplink";
            let remedy = "Check the path (`tracepath`) and its switches, or place the job on hosts that are \
                          close to each other";
            (cause.to_owned(), remedy)
        };
        found.push(Finding::new("slow_link", Severity::Warning, what, cause, remedy));
    }
    found.extend(two_hosts_apart(report));
    found
}

/// Returns whether losses, which are a finding of their own, are enough to make a way slow.
fn loses_much(way: &Measured) -> bool {
    const MUCH: f64 = 0.01;
    way.lost >= LOST && f64::from(way.lost) >= MUCH * f64::from(way.segments)
}

/// Round trip, and its factor over that of near pairs, from which a path is long.
const FAR_SECONDS: f64 = 5e-3;
const FAR_FACTOR: f64 = 4.0;

/// Returns whether the distance may be why a way is slow: it is much longer than the near ones.
fn is_far(report: &Report, way: &Measured) -> bool {
    let mut trips: Vec<f64> = report.measured.iter().map(|way| way.round_trip_seconds).collect();
    trips.sort_by(f64::total_cmp);
    let near = trips.get(trips.len() / 4).copied().unwrap_or_default();
    way.round_trip_seconds >= FAR_SECONDS.max(FAR_FACTOR * near)
}

/// Returns cause and remedy of a rate that the distance explains.
fn distance(way: &Measured) -> (String, &'static str) {
    let cause = format!(
        "the distance: a round trip takes {:.1} ms, and one connection had {:.2} MB in flight (its window), which \
         gives this rate",
        1e3 * way.round_trip_seconds,
        way.bytes_per_second * way.round_trip_seconds / 1e6
    );
    let remedy = "Raise net.core.wmem_max, and the last numbers of net.ipv4.tcp_wmem and tcp_rmem, on both hosts, or \
                  place the job on hosts that are close to each other. If losses are reported too, mend these first";
    (cause, remedy)
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
    let late: u32 = report.measured.iter().map(|way| way.late).fold(0, u32::saturating_add);
    let are_late = late >= LOST && f64::from(late) >= LATE * f64::from(late.saturating_add(sum(&|_| true).0));
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
        let late = if are_late { " or late" } else { "" };
        format!(
            "{:.2} % of segments are lost{late} {place} ({} of {})",
            100.0 * share(counts),
            counts.0,
            counts.1
        )
    };
    blame(&bad, &all, ends)
        .into_iter()
        .map(|who| {
            let cause =
                "a bad cable, transceiver or port, a wireless link, or a limit that drops packets instead of \
                 queueing them";
            let remedy = "Look for errors and drops on the path (`ip -s link`, `ethtool -S`); until then, \
                          KOLO_SOCKET_CONGESTION=bbr loses less time, if the kernel offers it";
            let (cause, remedy) = if are_late { (OVERTAKING, ONE_PATH) } else { (cause, remedy) };
            Finding::new("lossy", Severity::Warning, words(who), cause, remedy)
        })
        .collect()
}
