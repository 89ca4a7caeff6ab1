//! Tests of all collectives, with verified results, on difficult networks.

use std::time::Duration;

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use kolo_netlab::network::Network;
use kolo_netlab::ranks::MASTER_PORT;

use crate::Test;
use crate::job::{perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Long all_collectives_on_a_slow_network,
    Long all_collectives_on_a_lossy_network,
    Long all_collectives_between_hosts_that_nobody_can_dial,
    Long a_slow_host_gets_a_smaller_share,
];

const LONG: Duration = Duration::from_secs(100);

const COLLECTIVES: [&str; 11] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "sendrecv",
    "barrier",
];

fn all_collectives(network: &Network, largest: &str) {
    let lab = Lab::new(network).expect("a network");
    for name in COLLECTIVES {
        verified(&lab, 2, name, largest, &[]);
    }
    println!("{:?}", lab.counts());
}

/// Runs a collective and checks its results.
fn verified(lab: &Lab, per_host: usize, name: &str, largest: &str, settings: &[(&str, &str)]) {
    let root = lab.hosts().len() * per_host - 2;
    let words = format!("{name} -b 8 -e {largest} -f 128 -n 2 -w 1 -c 1 -d int32 -r {root}");
    let Some(commands) = perf(lab, per_host, &words, settings) else { return };
    let ends = run(commands, LONG);
    succeed(&ends, name);
    println!("{name}: {:.1} s", ends[0].at.as_secs_f64());
    let verdict = if name == "barrier" { "Avg bus bandwidth" } else { "Out of bounds values : 0 OK" };
    assert!(ends[0].said.contains(verdict), "{name}: {}", ends[0].said);
}

fn all_collectives_on_a_slow_network() {
    let network = Network::hosts(3).rate(50_000_000).delay(Duration::from_millis(2)).host_rate(1, 20_000_000);
    all_collectives(&network, "128K");
}

fn all_collectives_on_a_lossy_network() {
    let network = Network::hosts(3).rate(500_000_000).delay(Duration::from_micros(100)).burst(0.005, 3.0);
    all_collectives(&network.reorder(0.01, Duration::from_micros(500)).duplicate(0.05).queue(64 << 10), "2M");
}

/// Two hosts are behind NATs, and reach each other through a public one.
fn all_collectives_between_hosts_that_nobody_can_dial() {
    let lab = Lab::new(&Network::hosts(3).rate(1_000_000_000).delay(Duration::from_micros(200)))
        .expect("a network");
    for host in 1..3 {
        lab.block(Rule { from: None, to: Some(host), what: What::Syn, count: None });
    }
    // All collectives run at the same time, since each waits for some seconds before it asks for the relay.
    std::thread::scope(|scope| {
        for (name, port) in COLLECTIVES.into_iter().zip(MASTER_PORT..) {
            let (lab, port) = (&lab, port.to_string());
            scope.spawn(move || verified(lab, 1, name, "64K", &[("MASTER_PORT", &port)]));
        }
    });
}

/// One host has a tenth of the rate. The plan with shares must be chosen, give right sums, and not be much slower than
/// the ring.
fn a_slow_host_gets_a_smaller_share() {
    let network = Network::hosts(4).rate(400_000_000).delay(Duration::from_micros(100));
    let lab = Lab::new(&network.host_rate(2, 40_000_000)).expect("a network");
    let seconds = |settings: &[(&str, &str)], chosen: &str| {
        let words = "all_reduce -b 4M -e 4M -n 2 -w 1 -c 1 -d int32 -v";
        let ends = run(perf(&lab, 1, words, settings)?, LONG);
        succeed(&ends, "all_reduce");
        let said = &ends[0].said;
        assert!(said.contains(chosen) && said.contains("Out of bounds values : 0 OK"), "{said}");
        let row = said.lines().find(|line| line.trim_start().starts_with("4194304"));
        row.and_then(|row| row.split_whitespace().nth(5)?.parse::<f64>().ok()).map(|time| time * 1e-6)
    };
    let (shares, ring) = (seconds(&[], " by shares: "), seconds(&[("KOLO_ALGO", "all_reduce:ring")], ""));
    println!("shares {shares:?} s, ring {ring:?} s");
    // The plan is 1.5 times as fast at best, and as fast as the ring where processors are few.
    if let (Some(shares), Some(ring)) = (shares, ring) {
        assert!(shares < 1.5 * ring, "{shares} s, ring {ring} s");
    }
}
