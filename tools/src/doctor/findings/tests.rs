use super::super::meetings::Meeting;
use super::super::rates::Measured;
use super::super::report::{Host, Route};
use super::*;

/// Returns the report of hosts with one rank each, on a network without problems.
fn healthy(hosts: u32) -> Report {
    let pairs = || {
        (0..hosts).flat_map(move |from| (0..hosts).filter(move |to| *to != from).map(move |to| (from, to)))
    };
    let host = |rank: u32| {
        let mut host = Host { ranks: vec![rank], ..Host::default() };
        host.facts.hostname = format!("node{rank}");
        host.facts.open_files = Some(1024);
        host
    };
    let way = |(from, to): (u32, u32)| Measured {
        from,
        to,
        round_trip_seconds: 1e-4,
        ahead_seconds: 0.01,
        bytes_per_second: 110e6 + 1e6 * f64::from(from),
        segments: 5000,
        lost: 1,
        late: 0,
    };
    Report {
        hosts: (0..hosts).map(host).collect(),
        reaches: pairs().map(|(from, to)| reach(from, to, None)).collect(),
        measured: pairs().map(way).collect(),
        ..Report::default()
    }
}

fn reach(from: u32, to: u32, problem: Option<&str>) -> Reach {
    let address = std::net::Ipv4Addr::new(192, 0, 2, to as u8).into();
    let tried = Try {
        address,
        interface: "eth0".to_owned(),
        distance: 2,
        local: None,
        problem: problem.map(str::to_owned),
        black_hole: false,
    };
    let carries = if problem.is_some() { Carries::Nothing } else { Carries::All };
    Reach { from, to, tries: vec![tried], carries }
}

/// Returns the only finding.
fn only(report: &Report) -> Finding {
    let mut found = findings(report);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

fn dials(report: &mut Report, is_bad: impl Fn(u32, u32) -> bool) {
    for found in report.reaches.iter_mut().filter(|found| is_bad(found.from, found.to)) {
        *found = reach(found.from, found.to, Some("no answer within 2.5 s"));
    }
}

#[test]
fn a_healthy_network_has_no_finding() {
    for hosts in 1..6 {
        assert_eq!(findings(&healthy(hosts)), [], "{hosts}");
    }
}

#[test]
fn hosts_that_nobody_can_dial_are_told_from_pairs() {
    let mut report = healthy(4);
    dials(&mut report, |_, to| to == 2);
    let found = only(&report);
    assert_eq!((found.kind, found.severity), ("one_way", Severity::Warning));
    assert!(found.what.starts_with("no other host can connect to host 2 (node2)"), "{found:?}");
    let mut report = healthy(4);
    dials(&mut report, |from, to| (from, to) == (1, 3));
    assert!(only(&report).what.starts_with("host 1 (node1) cannot connect to host 3 (node3)"));
}

#[test]
fn pairs_that_never_meet_break_a_job() {
    let mut report = healthy(4);
    dials(&mut report, |from, to| from + to == 5 && from.max(to) == 3);
    let found = only(&report);
    assert_eq!((found.kind, found.severity), ("unreachable", Severity::Broken));
    assert!(
        found.what.contains("host 2 (node2) and host 3") && found.what.contains("no answer"),
        "{found:?}"
    );
    let mut report = healthy(4);
    dials(&mut report, |from, to| from == 1 || to == 1);
    assert!(only(&report).what.starts_with("host 1 (node1) and the others"));
    report.hosts.iter_mut().for_each(|host| host.facts.relays = true);
    let found = only(&report);
    assert!(found.severity == Severity::Warning && found.what.contains("rank 0 relays"), "{found:?}");
}

#[test]
fn an_address_that_leads_nowhere_is_named_once() {
    let with_dead = |distance: u8| {
        let mut report = healthy(3);
        for found in report.reaches.iter_mut().filter(|found| found.to == 2) {
            let dead = Try {
                interface: "eth1".to_owned(),
                distance,
                problem: Some("no answer".to_owned()),
                ..found.tries[0].clone()
            };
            found.tries.push(dead);
        }
        report
    };
    assert_eq!(findings(&with_dead(6)), [], "jobs do not try the bridge of a host's containers");
    let found = only(&with_dead(2));
    assert!(found.kind == "silent_address" && found.remedy.contains("^eth1"), "{found:?}");
}

#[test]
fn a_card_that_loses_full_segments_is_told_from_one_that_carries_nothing() {
    for (black_hole, kind) in [(true, "mtu_black_hole"), (false, "silent_address")] {
        let mut report = healthy(3);
        for found in report.reaches.iter_mut().filter(|found| found.to == 2) {
            let first = found.tries[0].clone();
            let problem = Some("a text".to_owned());
            let local = Some("192.0.2.7".parse().unwrap());
            found.tries.push(Try { interface: "eth1".to_owned(), local, problem, black_hole, ..first });
        }
        let found = only(&report);
        assert_eq!((found.kind, found.severity), (kind, Severity::Warning));
        assert!(found.what.contains("(eth1)") && found.remedy.contains("^eth1"), "{found:?}");
    }
}

#[test]
fn black_holes_are_placed() {
    for (bad, expected) in [
        (&[(0, 2)][..], "between host 0 (node0) and host 2 (node2)"),
        (&[(0, 2), (1, 2), (2, 3)], "between host 2 (node2) and all others"),
        (&[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], "between all hosts"),
    ] {
        let mut report = healthy(4);
        for found in report.reaches.iter_mut().filter(|found| bad.contains(&(found.from, found.to))) {
            found.carries = Carries::SmallOnly { outward: true, segment_bytes: 1448 };
        }
        let found = only(&report);
        assert_eq!((found.kind, found.severity), ("mtu_black_hole", Severity::Broken));
        assert!(found.what.contains(expected) && found.what.contains("1448"), "{found:?}");
    }
}

#[test]
fn slow_hosts_are_told_from_slow_links() {
    let slow = |is_slow: fn(&Measured) -> bool, hosts| {
        let mut report = healthy(hosts);
        report.measured.iter_mut().filter(|way| is_slow(way)).for_each(|way| way.bytes_per_second /= 10.0);
        only(&report)
    };
    let found = slow(|way| way.from == 2 || way.to == 2, 4);
    assert!(
        found.kind == "slow_host" && found.what.starts_with("host 2 (node2) sends and receives"),
        "{found:?}"
    );
    let found = slow(|way| way.to == 2, 4);
    assert!(found.what.starts_with("host 2 (node2) receives"), "{found:?}");
    let found = slow(|way| (way.from, way.to) == (1, 3), 4);
    assert!(
        found.kind == "slow_link" && found.what.starts_with("host 1 (node1) sends to host 3"),
        "{found:?}"
    );
    let found = slow(|way| way.from == 1, 2);
    assert!(
        found.kind == "slow_link" && found.what.starts_with("host 1 (node1) sends to host 0"),
        "{found:?}"
    );
}

#[test]
fn a_long_path_explains_a_rate() {
    for (hosts, is_slow, kind) in [
        (4, (|way| (way.from, way.to) == (1, 3)) as fn(&Measured) -> bool, "slow_link"),
        (4, |way| way.from == 2 || way.to == 2, "slow_host"),
    ] {
        let mut report = healthy(hosts);
        report.measured.iter_mut().filter(|way| is_slow(way)).for_each(|way| {
            (way.bytes_per_second, way.round_trip_seconds) = (20e6, 0.04);
        });
        let found = only(&report);
        assert!(
            found.kind == kind && found.cause.contains("40.0 ms") && found.cause.contains("0.80 MB"),
            "{found:?}"
        );
        // If all paths are as long, the distance distinguishes none.
        report.measured.iter_mut().for_each(|way| way.round_trip_seconds = 0.04);
        assert!(!only(&report).cause.contains("distance"));
    }
}

#[test]
fn losses_are_placed() {
    let lossy = |is_bad: fn(&Measured) -> bool| {
        let mut report = healthy(4);
        report.measured.iter_mut().filter(|way| is_bad(way)).for_each(|way| way.lost = 50);
        only(&report)
    };
    let found = lossy(|way| way.from == 1 || way.to == 1);
    assert!(
        found.what.starts_with("1.00 % of segments are lost between host 1 (node1) and all"),
        "{found:?}"
    );
    let found = lossy(|way| (way.from, way.to) == (0, 3));
    assert!(found.what.contains("between host 0 (node0) and host 3"), "{found:?}");
    // Segments that come late are sent again too.
    let mut report = healthy(4);
    report.measured.iter_mut().for_each(|way| (way.lost, way.late) = (50, 20));
    let found = only(&report);
    assert!(found.what.contains("are lost or late") && found.cause.contains("overtake"), "{found:?}");
    // They also explain the rate.
    let mut report = healthy(4);
    for way in report.measured.iter_mut().filter(|way| (way.from, way.to) == (0, 3)) {
        (way.lost, way.bytes_per_second) = (500, 1e6);
    }
    assert_eq!(only(&report).kind, "lossy");
}

#[test]
fn queues_that_bursts_overflow_are_told_from_losses() {
    let meeting =
        |to, lost| Meeting { to, senders: 3, bytes: 96 << 10, seconds: 0.024, segments: 1000, lost };
    let mut report = healthy(4);
    report.meetings = (0..4).map(|to| meeting(to, if to == 2 { 230 } else { 10 })).collect();
    let found = only(&report);
    assert_eq!((found.kind, found.severity), ("short_queue", Severity::Warning));
    for text in ["23 % of", "3 hosts send to host 2 (node2)", "96 KiB", "24.0 ms instead of "] {
        assert!(found.what.contains(text), "{text}: {found:?}");
    }
    report.meetings = (0..4).map(|to| meeting(to, 200)).collect();
    assert!(only(&report).what.contains("send to any host"));
    report.measured.iter_mut().for_each(|way| way.lost = way.segments / 10);
    assert_eq!(only(&report).kind, "lossy");
}

#[test]
fn hosts_that_differ_are_named() {
    type Change = fn(&mut Report);
    let changes: [(Change, &str, &str); 6] = [
        (|report| report.hosts[1].facts.open_files = Some(64), "open_files", "host 1 (node1) may open 64"),
        (
            |report| {
                report.hosts[1].facts.adapters = vec!["mlx5_0".to_owned()];
                report.hosts[1].facts.locked_memory = Some(8 << 20);
            },
            "locked_memory",
            "8192 KiB",
        ),
        (|report| report.hosts[2].facts.processor_quota = Some(0.5), "processors", "0.5 processors"),
        (|report| report.hosts[2].facts.version = "7".to_owned(), "version", "host 2 (node2) 7"),
        (|report| report.hosts[0].facts.congestion = "bbr".to_owned(), "congestion", "host 0 (node0) bbr"),
        (
            |report| {
                for way in &mut report.measured {
                    way.ahead_seconds +=
                        90.0 * f64::from(u8::from(way.to == 1)) - 90.0 * f64::from(u8::from(way.from == 1));
                }
            },
            "clock",
            "host 1 (node1) is 90.0 s ahead",
        ),
    ];
    for (change, kind, text) in changes {
        let mut report = healthy(3);
        change(&mut report);
        let found = only(&report);
        assert!(found.kind == kind && found.what.contains(text), "{kind}: {found:?}");
    }
}

#[test]
fn ranks_of_a_host_should_share_memory() {
    let mut report = healthy(2);
    report.hosts[0].ranks = vec![0, 1];
    report.hosts[1].ranks = vec![2];
    let route = |rank, peers: &[u32]| Route {
        rank,
        peers: peers.to_vec(),
        transport: "tcp".to_owned(),
        how: String::new(),
        declined: vec![("shm".to_owned(), "it is on another host".to_owned())],
    };
    report.routes = vec![route(0, &[2])];
    assert_eq!(findings(&report), []);
    report.routes = vec![route(0, &[1]), route(1, &[0])];
    assert!(only(&report).what.contains("take tcp and not shm"));
}
