//! Tests whether Kolo fills paths that hold more bytes than a switch does.

use std::time::Duration;

use kolo_netlab::Lab;
use kolo_netlab::network::Network;

use crate::Test;
use crate::job::{perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Long a_long_all_reduce_fills_a_long_way,
];

const HOSTS: usize = 4;
const BYTES: f64 = (64 << 20) as f64;
const BITS_PER_SECOND: u64 = 1_000_000_000;

/// Least accepted share of the links' rate. Direct exchange, or the ring with two segments in flight, reaches 0.4 to
/// 0.55.
const LEAST: f64 = 0.65;

fn a_long_all_reduce_fills_a_long_way() {
    let network = Network::hosts(HOSTS).rate(BITS_PER_SECOND).delay(Duration::from_millis(20));
    let lab = Lab::new(&network).expect("a network");
    let settings = [("KOLO_JOIN_TIMEOUT", "40"), ("KOLO_TIMEOUT", "40")];
    let Some(commands) = perf(&lab, 1, "all_reduce -b 64M -e 64M -n 2 -w 1 -c 0 -v", &settings) else {
        return;
    };
    let ends = run(commands, Duration::from_secs(60));
    succeed(&ends, "64 MiB on a long way");
    let said = &ends[0].said;
    assert!(said.contains("by ring") && !said.contains(" 2 in flight"), "{said}");
    let row =
        said.lines().find(|line| line.trim_start().starts_with("67108864")).expect("a row of the table");
    let columns: Vec<&str> = row.split_whitespace().collect();
    let seconds = [5, 9].map(|at| columns[at].parse::<f64>().expect("a time") / 1e6);
    let moved = 2.0 * (HOSTS - 1) as f64 / HOSTS as f64 * BYTES;
    let shares = seconds.map(|seconds| moved * 8.0 / seconds / BITS_PER_SECOND as f64);
    println!("64 MiB on a long way: {shares:.2?} of the links' rate");
    // The better of two counts, since other programs may have the CPUs meanwhile.
    assert!(shares[0].max(shares[1]) >= LEAST, "{shares:?}: {said}");
}
