//! Findings about limits and settings of hosts.

use super::super::report::{Host, Report};
use super::{Finding, Severity};

/// Accepted difference between clocks: logs of several hosts still read in order.
const CLOCK_SECONDS: f64 = 1.0;

/// Bytes of memory that adapters need to lock.
const LOCKED_BYTES: u64 = 64 << 20;

/// Connections that a program may have open to each other rank, and files that it opens besides.
const FILES_PER_RANK: u64 = 4;
const FILES_OTHERWISE: u64 = 64;

pub(super) fn hosts(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    let ranks: u64 = report.hosts.iter().map(|host| host.ranks.len() as u64).sum();
    for (host, name) in report.hosts.iter().zip((0..).map(|host| report.name(host))) {
        found.extend(open_files(host, &name, ranks));
        found.extend(locked_memory(host, &name));
        found.extend(processors(host, &name));
        found.extend(settings(host, &name));
    }
    found.extend(clocks(report));
    found.extend(differing(report));
    found.extend(slow_transports(report));
    found
}

fn open_files(host: &Host, name: &str, ranks: u64) -> Option<Finding> {
    let (limit, needed) = (host.facts.open_files?, FILES_PER_RANK * ranks + FILES_OTHERWISE);
    (limit < needed).then(|| {
        let what = format!("a process on {name} may open {limit} files; {ranks} ranks may need {needed}");
        let cause = "a low limit set by the shell, container or service manager that started it";
        let remedy = format!("Raise it there: `ulimit -n {}`", needed.next_power_of_two().max(1024));
        Finding::new("open_files", Severity::Warning, what, cause, remedy)
    })
}

fn locked_memory(host: &Host, name: &str) -> Option<Finding> {
    let limit = host.facts.locked_memory.filter(|_| !host.facts.adapters.is_empty())?;
    (limit < LOCKED_BYTES).then(|| {
        let what =
            format!("{name} has RDMA adapters, but a process may lock only {} KiB of memory", limit >> 10);
        let cause = "the memlock limit of the shell, container or launcher";
        Finding::new("locked_memory", Severity::Warning, what, cause, "Raise it: `ulimit -l unlimited`")
    })
}

fn settings(host: &Host, name: &str) -> Option<Finding> {
    let problem = host.facts.problem.as_ref()?;
    Some(Finding::new(
        "settings",
        Severity::Broken,
        format!("ranks on {name} refuse their settings: {problem}"),
        "a file of `kolo tune` or `kolo plan` that is missing, outdated or damaged",
        "Write it again, the same for all hosts, or unset the variable",
    ))
}

fn processors(host: &Host, name: &str) -> Option<Finding> {
    let quota = host.facts.processor_quota?;
    (quota < host.ranks.len() as f64).then(|| {
        let what = format!(
            "the control group of {name} allows {quota:.1} processors, but {} ranks run there",
            host.ranks.len()
        );
        let cause = "a limit of the container or batch system: waiting ranks take time from those that work";
        Finding::new(
            "processors",
            Severity::Warning,
            what,
            cause,
            "Raise the quota, or start fewer ranks there",
        )
    })
}

/// Finds clocks that differ much from those of most hosts, as measured by pairs.
fn clocks(report: &Report) -> Vec<Finding> {
    let hosts = report.hosts.len() as u32;
    let ahead = |host: u32| {
        let others = report.measured.iter().filter(|way| way.from == host);
        let mut behind: Vec<f64> = others.map(|way| -way.ahead_seconds).collect();
        behind.sort_by(f64::total_cmp);
        behind.get(behind.len() / 2).copied()
    };
    let is_off = |host: &u32| {
        let off = ahead(*host).filter(|off| off.abs() > CLOCK_SECONDS);
        // With two clocks, either may be the wrong one; the second host's is reported.
        off.filter(|_| hosts > 2 || *host > 0)
    };
    (0..hosts)
        .filter_map(|host| Some((host, is_off(&host)?)))
        .map(|(host, off)| {
            let way = if off > 0.0 { "ahead of" } else { "behind" };
            let what = format!("the clock of {} is {:.1} s {way} the others'", report.name(host), off.abs());
            let cause = "it is not synchronised";
            let remedy =
                "Start chrony or another NTP client there. Kolo does not need synchronised clocks, but \
                 people who compare logs do";
            Finding::new("clock", Severity::Warning, what, cause, remedy)
        })
        .collect()
}

/// Finds settings that differ between hosts and should not.
fn differing(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut compare = |kind, severity, what: fn(&Host) -> &str, name: &str, cause: &str, remedy: &str| {
        let values: Vec<&str> = report.hosts.iter().map(what).collect();
        if values.windows(2).any(|pair| pair[0] != pair[1]) {
            let each: Vec<String> =
                (0..).zip(&values).map(|(host, value)| format!("{} {value}", report.name(host))).collect();
            let words = format!("{name} differs: {}", each.join(", "));
            found.push(Finding::new(kind, severity, words, cause, remedy));
        }
    };
    compare(
        "version",
        Severity::Broken,
        |host| &host.facts.version,
        "the version of Kolo",
        "different builds are installed",
        "Install the same on all hosts",
    );
    compare(
        "congestion",
        Severity::Warning,
        |host| &host.facts.congestion,
        "the congestion control",
        "the hosts have different settings (net.ipv4.tcp_congestion_control): some keep to their fair share, \
         others do not",
        "Set the same on all hosts, or KOLO_SOCKET_CONGESTION for the job",
    );
    found
}

/// Finds ranks of one host that do not share memory, and hosts whose adapters are not used.
fn slow_transports(report: &Report) -> Vec<Finding> {
    let is_inside = |rank, peer: &u32| report.host_of(rank) == report.host_of(*peer);
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for route in &report.routes {
        let is_slow = |(name, _): &&(String, String)| {
            let inside = route.peers.iter().any(|peer| is_inside(route.rank, peer));
            let across = route.peers.iter().any(|peer| !is_inside(route.rank, peer));
            let host = report.host_of(route.rank).map(|host| &report.hosts[host as usize]);
            let has_adapters = host.is_some_and(|host| !host.facts.adapters.is_empty());
            name == "shm" && inside || name == "rdma" && across && has_adapters
        };
        for (name, why) in route.declined.iter().filter(is_slow) {
            let host = report.host_of(route.rank);
            if seen.contains(&(host, name)) {
                continue;
            }
            seen.push((host, name));
            let place = host.map_or_else(String::new, |host| report.name(host));
            let what = format!("ranks of {place} take {} and not {name}: {why}", route.transport);
            let remedy =
                "Fix the reason given, or exclude the transport with KOLO_TRANSPORT if this is intended";
            found.push(Finding::new("transport", Severity::Warning, what, "see the reason given", remedy));
        }
    }
    found
}
