//! Under a launcher: measures the network between the hosts, for the profile.

use std::time::Duration;

use kolo::internal::profile::{HostProfile, NetworkProfile, PairProfile};
use kolo_collectives::model::Model;

use crate::doctor::examine::{Depth, examine};
use crate::doctor::findings::{Severity, findings};
use crate::doctor::report::Report;
use crate::error::{CliError, Result};
use crate::launch::environment;
use crate::perf::console::Console;

/// Time for measuring pairs of hosts: enough for some hundreds.
const TIME: Duration = Duration::from_secs(120);

/// A pair is slow if its rate is below this share of its hosts' rates; all other pairs are taken to have the rates of
/// their hosts.
const SLOW: f64 = 0.7;

/// The job that this process is a rank of.
pub(super) enum Cluster {
    /// There is no launcher, or only one host.
    Alone,
    /// There are several hosts; this is rank 0, and this is their network.
    Measured(NetworkProfile),
    /// This is another rank, which has done its part.
    Others,
}

/// Measures the network between the hosts of the job that this process is a rank of. All ranks call it. Blocks for some seconds.
pub(super) fn network(console: &mut Console) -> Result<Cluster> {
    let launched = environment::launched()?;
    if launched.is_none_or(|launched| launched.world_size == 1) {
        return Ok(Cluster::Alone);
    }
    let examined = examine(TIME, Depth::Network)?;
    if examined.rank > 0 {
        return Ok(Cluster::Others);
    }
    let report = examined.report;
    if report.hosts.len() < 2 {
        return Ok(Cluster::Alone);
    }
    for finding in findings(&report) {
        if finding.severity == Severity::Broken {
            let remedy = format!("{}. `kolo doctor` tells more", finding.remedy);
            return Err(CliError::failure(finding.what, remedy));
        }
        console.line(&format!("Note: {}. {}.", finding.what, finding.remedy))?;
    }
    Ok(Cluster::Measured(profile(&report)?))
}

/// Converts measurements to the constants of a profile.
fn profile(report: &Report) -> Result<NetworkProfile> {
    let names: Vec<&str> = report.hosts.iter().map(|host| host.facts.hostname.as_str()).collect();
    if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        let problem = format!("two hosts are called {name}, but a profile identifies hosts by their names");
        return Err(CliError::failure(problem, "Give them different names"));
    }
    let missing = |host: u32| {
        CliError::failure(format!("{} was not measured", report.name(host)), "Check it with `kolo doctor`")
    };
    let mut hosts = Vec::new();
    for (host, name) in (0..).zip(&names) {
        hosts.push(HostProfile {
            name: (*name).to_owned(),
            out_bytes_per_second: report.rate(host, |way| way.from).ok_or_else(|| missing(host))?,
            in_bytes_per_second: report.rate(host, |way| way.to).ok_or_else(|| missing(host))?,
        });
    }
    let could = |from: u32, to: u32| {
        hosts[from as usize].out_bytes_per_second.min(hosts[to as usize].in_bytes_per_second)
    };
    let is_slow =
        |way: &&crate::doctor::rates::Measured| way.bytes_per_second < SLOW * could(way.from, way.to);
    let pair = |way: &crate::doctor::rates::Measured| PairProfile {
        from: names[way.from as usize].to_owned(),
        to: names[way.to as usize].to_owned(),
        bytes_per_second: way.bytes_per_second,
    };
    let pairs = report.measured.iter().filter(is_slow).map(pair).collect();
    let mut round_trips: Vec<f64> = report.measured.iter().map(|way| way.round_trip_seconds).collect();
    round_trips.sort_by(f64::total_cmp);
    // Of two, the shorter one counts: packets can be late, but not early.
    let round_trip = round_trips[round_trips.len().saturating_sub(1) / 2];
    // All ranks wait for the slowest host.
    let least = hosts.iter().map(|host| host.out_bytes_per_second.min(host.in_bytes_per_second));
    let rate = least.fold(f64::INFINITY, f64::min);
    let Model { inter, nic_message_seconds, .. } = Model::TCP;
    let processors = 2.0 * inter.overhead_seconds + nic_message_seconds;
    Ok(NetworkProfile {
        latency_seconds: (round_trip / 2.0 - processors).max(0.2e-6),
        overhead_seconds: inter.overhead_seconds,
        bytes_per_second: rate,
        host_bytes_per_second: rate,
        hosts,
        pairs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::rates::Measured;
    use crate::doctor::report::Host;

    #[test]
    fn hosts_have_the_rates_of_their_fastest_ways_and_slow_pairs_are_named() {
        let way = |from, to, bytes_per_second| Measured {
            from,
            to,
            round_trip_seconds: 200e-6,
            ahead_seconds: 0.0,
            bytes_per_second,
            segments: 0,
            lost: 0,
            late: 0,
        };
        let mut report = Report { hosts: vec![Host::default(); 3], ..Report::default() };
        for (host, name) in report.hosts.iter_mut().zip(["a", "b", "c"]) {
            host.facts.hostname = name.to_owned();
        }
        report.measured = [(0, 1, 1e8), (1, 0, 9e7), (0, 2, 1e7), (2, 0, 9e7), (1, 2, 1e7), (2, 1, 1e7)]
            .map(|(from, to, rate)| way(from, to, rate))
            .to_vec();
        let profile = profile(&report).unwrap();
        let rates: Vec<(f64, f64)> =
            profile.hosts.iter().map(|host| (host.out_bytes_per_second, host.in_bytes_per_second)).collect();
        assert_eq!(rates, [(1e8, 9e7), (9e7, 1e8), (9e7, 1e7)]);
        // Slow receiving is a property of host c; slow sending to b is one of the pair.
        let slow = PairProfile { from: "c".into(), to: "b".into(), bytes_per_second: 1e7 };
        assert_eq!(profile.pairs, [slow]);
        assert!(
            (profile.latency_seconds - 91e-6).abs() < 1e-9 && profile.bytes_per_second == 1e7,
            "{profile:?}"
        );
        report.measured.truncate(4);
        report.measured[0].round_trip_seconds = 0.2;
        report.measured[1].round_trip_seconds = 0.2;
        assert!(
            (super::profile(&report).unwrap().latency_seconds - 91e-6).abs() < 1e-9,
            "of four, the second"
        );
        report.hosts[2].facts.hostname = "a".to_owned();
        assert!(super::profile(&report).unwrap_err().message.contains("called a"));
    }
}
