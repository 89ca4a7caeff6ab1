//! Derives findings from a report. All functions are pure, so that all ranks find the same.

use std::collections::BTreeSet;

use serde::Serialize;

use super::reach::{Carries, Reach, Try};
use super::report::Report;

mod hosts;
mod queues;
mod rates;

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The kind of problem in one word, for scripts.
    pub kind: &'static str,
    /// Severity of the problem.
    pub severity: Severity,
    /// The observation, and where it was made.
    pub what: String,
    /// The likely cause.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
}

/// Severity of a problem. The number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// A job runs, but not as well as it could.
    Warning = 1,
    /// A job does not run.
    Broken = 2,
}

impl Finding {
    fn new(
        kind: &'static str,
        severity: Severity,
        what: String,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { kind, severity, what, cause: cause.into(), remedy: remedy.into() }
    }
}

/// Returns all findings, the worst first.
pub(crate) fn findings(report: &Report) -> Vec<Finding> {
    let mut found = unreachable(report);
    found.extend(one_way(report));
    found.extend(silent_addresses(report));
    found.extend(black_holes(report));
    found.extend(stalls(report));
    found.extend(rates::slow(report));
    found.extend(rates::lossy(report));
    found.extend(queues::short(report));
    found.extend(hosts::hosts(report));
    found.extend(failure(report));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// The culprit that a set of pairs points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// All pairs of hosts.
    All,
    /// One host, all of whose pairs are in the set.
    Host(u32),
    /// One pair.
    Pair(u32, u32),
}

/// Returns what the bad pairs have in common among all pairs. `of` gives the ends of a pair that may be to
/// blame.
fn blame(
    bad: &BTreeSet<(u32, u32)>,
    all: &BTreeSet<(u32, u32)>,
    of: fn(&(u32, u32)) -> Vec<u32>,
) -> Vec<Blame> {
    if bad.is_empty() {
        return Vec::new();
    }
    if bad.len() == all.len() && bad.len() > 2 {
        return vec![Blame::All];
    }
    let mut left = bad.clone();
    let mut found = Vec::new();
    let hosts: BTreeSet<u32> = all.iter().flat_map(|pair| [pair.0, pair.1]).collect();
    for host in hosts {
        let own: BTreeSet<_> = all.iter().filter(|pair| of(pair).contains(&host)).copied().collect();
        if own.len() > 1 && own.is_subset(bad) && !own.is_disjoint(&left) {
            left = &left - &own;
            found.push(Blame::Host(host));
        }
    }
    found.extend(left.into_iter().map(|(one, other)| Blame::Pair(one, other)));
    found
}

/// Returns both ends of a pair.
fn ends(pair: &(u32, u32)) -> Vec<u32> {
    vec![pair.0, pair.1]
}

/// Returns the end that is dialled.
fn dialled(pair: &(u32, u32)) -> Vec<u32> {
    vec![pair.1]
}

const FIREWALL: &str =
    "a firewall or NAT keeps others from connecting to the ports on which processes there listen";

fn unreachable(report: &Report) -> Vec<Finding> {
    let ways = report.reaches.iter().filter(|reach| reach.way().is_some());
    let ways: BTreeSet<(u32, u32)> = ways.map(|reach| (reach.from, reach.to)).collect();
    let came = |from: u32, to: u32| ways.contains(&(from, to));
    let all: BTreeSet<(u32, u32)> =
        report.reaches.iter().map(|reach| (reach.from.min(reach.to), reach.from.max(reach.to))).collect();
    let bad = all.iter().copied().filter(|(one, other)| !came(*one, *other) && !came(*other, *one)).collect();
    let tried = |one: u32, other: u32| {
        let problems: Vec<String> = report
            .reaches
            .iter()
            .filter(|reach| [(one, other), (other, one)].contains(&(reach.from, reach.to)))
            .flat_map(|reach| &reach.tries)
            .filter_map(|tried| Some(format!("{}: {}", tried.address, tried.problem.as_ref()?)))
            .collect();
        if problems.is_empty() { "there was no address to try".to_owned() } else { problems.join("; ") }
    };
    let remedy = "Open TCP between the hosts, to the ports of KOLO_PORT_RANGE if that is set, or to all; or \
                  use KOLO_SOCKET_IFNAME to name the interfaces that connect the hosts";
    let words = |blame| match blame {
        Blame::All => "no host can reach any other".to_owned(),
        Blame::Host(host) => format!("{} and the others cannot reach each other", report.name(host)),
        Blame::Pair(one, other) => format!(
            "{} and {} cannot reach each other ({})",
            report.name(one),
            report.name(other),
            tried(one, other)
        ),
    };
    blame(&bad, &all, ends)
        .into_iter()
        .map(|who| {
            let cause = "a firewall drops their packets, or there is no route between their networks";
            let relays = report.hosts.iter().all(|host| host.facts.relays);
            let (severity, then) = if relays {
                (Severity::Warning, "; rank 0 relays their data, which crosses its network twice")
            } else {
                (Severity::Broken, "")
            };
            Finding::new("unreachable", severity, words(who) + then, cause, remedy)
        })
        .collect()
}

/// Finds pairs in which no connection gets through in one direction, although the other direction works.
fn one_way(report: &Report) -> Vec<Finding> {
    let all: BTreeSet<(u32, u32)> = report.reaches.iter().map(|reach| (reach.from, reach.to)).collect();
    let failed = report.reaches.iter().filter(|reach| reach.way().is_none());
    let failed: BTreeSet<(u32, u32)> = failed.map(|reach| (reach.from, reach.to)).collect();
    let fails = |from: u32, to: u32| failed.contains(&(from, to));
    let bad: BTreeSet<_> =
        all.iter().copied().filter(|(from, to)| fails(*from, *to) && !fails(*to, *from)).collect();
    let words = |who| match who {
        Blame::All => "no host can connect to any other directly".to_owned(),
        Blame::Host(host) => {
            format!("no other host can connect to {}, although it can connect to others", report.name(host))
        }
        Blame::Pair(from, to) => {
            format!(
                "{} cannot connect to {}, although that host can connect to it",
                report.name(from),
                report.name(to)
            )
        }
    };
    let remedy = "Open the ports of KOLO_PORT_RANGE there. Jobs run without that, but each first connection \
                  takes a second longer, until the other end connects";
    blame(&bad, &all, dialled)
        .into_iter()
        .map(|who| Finding::new("one_way", Severity::Warning, words(who), FIREWALL, remedy))
        .collect()
}

/// Finds addresses that the transport tries or uses in vain, although others of the same host answer.
fn silent_addresses(report: &Report) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let reaches = report.reaches.iter();
    reaches
        .flat_map(|reach| reach.in_vain().map(move |tried| (reach, tried)))
        .filter_map(|(reach, tried)| {
            let problem = tried.problem.as_ref()?;
            seen.insert((reach.to, tried.address)).then(|| {
                if tried.black_hole {
                    return black_hole_at(report, reach, tried, problem);
                }
                Finding::new(
                    "silent_address",
                    Severity::Warning,
                    format!(
                        "{} of {} ({}) does not answer {} ({problem}), although another of its addresses \
                         does",
                        tried.address,
                        report.name(reach.to),
                        tried.interface,
                        report.name(reach.from)
                    ),
                    "the interface belongs to another network, or its cable is broken",
                    format!("Leave it out with KOLO_SOCKET_IFNAME=^{}", tried.interface),
                )
            })
        })
        .collect()
}

/// Describes an address that lets hosts connect, and loses their full segments. Jobs do without it.
fn black_hole_at(report: &Report, reach: &Reach, tried: &Try, problem: &str) -> Finding {
    Finding::new(
        "mtu_black_hole",
        Severity::Warning,
        format!(
            "{} of {} ({}) does not get the data of {} ({problem}), although another of its addresses does",
            tried.address,
            report.name(reach.to),
            tried.interface,
            report.name(reach.from)
        ),
        "an MTU black hole: the MTU of that interface is larger than a switch on the way carries",
        format!(
            "Set the interface's MTU to the least on the way, or leave it out with KOLO_SOCKET_IFNAME=^{}",
            tried.interface
        ),
    )
}

fn black_holes(report: &Report) -> Vec<Finding> {
    let pair = |from: u32, to: u32| (from.min(to), from.max(to));
    let all: BTreeSet<(u32, u32)> = report.reaches.iter().map(|reach| pair(reach.from, reach.to)).collect();
    let mut bytes = 0;
    let bad: BTreeSet<(u32, u32)> = report
        .reaches
        .iter()
        .filter_map(|reach| match reach.carries {
            Carries::SmallOnly { segment_bytes, .. } => {
                bytes = bytes.max(segment_bytes);
                Some(pair(reach.from, reach.to))
            }
            _ => None,
        })
        .collect();
    let place = |who| match who {
        Blame::All => "between all hosts".to_owned(),
        Blame::Host(host) => format!("between {} and all others", report.name(host)),
        Blame::Pair(one, other) => format!("between {} and {}", report.name(one), report.name(other)),
    };
    blame(&bad, &all, ends)
        .into_iter()
        .map(|who| {
            let what =
                format!("full-size segments ({bytes} bytes) are lost {}; small ones arrive", place(who));
            let cause = "an MTU black hole: a link on the path has a smaller MTU than the interfaces, and \
                         the ICMP messages that report this are dropped";
            let remedy = "Set the same MTU on all interfaces and tunnels of the path (try `ip link set \
                          DEVICE mtu 1400` and less), let ICMP pass, or set net.ipv4.tcp_mtu_probing=1 on \
                          all hosts";
            Finding::new("mtu_black_hole", Severity::Broken, what, cause, remedy)
        })
        .collect()
}

/// Finds connections on which no data gets through, or that broke while they were measured.
fn stalls(report: &Report) -> Vec<Finding> {
    let stalled = report.reaches.iter().filter_map(|reach| match &reach.carries {
        Carries::Stalls(why) => Some((reach.from, reach.to, why.clone())),
        _ => None,
    });
    stalled
        .chain(report.unmeasured.iter().cloned())
        .map(|(from, to, why)| {
            let what = format!("{} connects to {}, but: {why}", report.name(from), report.name(to));
            let cause = "most packets are lost, or something between the hosts closes connections";
            let remedy =
                "Check the counters of the interfaces on the path (`ip -s link`), and try the pair alone";
            Finding::new("stalled", Severity::Broken, what, cause, remedy)
        })
        .collect()
}

fn failure(report: &Report) -> Vec<Finding> {
    let failed = report.failure.iter().map(|why| {
        let what = format!("the ranks cannot work together: {why}");
        let cause = "see the error; other findings may be its cause";
        Finding::new("failed", Severity::Broken, what, cause, "Fix those first, then run this again")
    });
    failed.collect()
}

#[cfg(test)]
mod tests;
