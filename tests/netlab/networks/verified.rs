//! All collectives, with verified results, on networks that are hard on them.

use std::time::Duration;

use kolo_netlab::Lab;
use kolo_netlab::network::Network;

use crate::Test;
use crate::job::{perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Long all_collectives_on_a_slow_network,
    Long all_collectives_on_a_lossy_network,
];

const LONG: Duration = Duration::from_secs(100);

fn all_collectives(network: &Network, largest: &str) {
    let lab = Lab::new(network).expect("a network");
    for name in [
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
    ] {
        let words = format!("{name} -b 8 -e {largest} -f 128 -n 2 -w 1 -c 1 -d int32 -r 4");
        let Some(commands) = perf(&lab, 2, &words, &[]) else { return };
        let ends = run(commands, LONG);
        succeed(&ends, name);
        println!("{name}: {:.1} s", ends[0].at.as_secs_f64());
        let verdict = if name == "barrier" { "Avg bus bandwidth" } else { "Out of bounds values : 0 OK" };
        assert!(ends[0].said.contains(verdict), "{name}: {}", ends[0].said);
    }
    println!("{:?}", lab.counts());
}

fn all_collectives_on_a_slow_network() {
    let network = Network::hosts(3).rate(50_000_000).delay(Duration::from_millis(2)).host_rate(1, 20_000_000);
    all_collectives(&network, "128K");
}

fn all_collectives_on_a_lossy_network() {
    let network = Network::hosts(3).rate(500_000_000).delay(Duration::from_micros(100)).burst(0.005, 3.0);
    all_collectives(&network.reorder(0.01, Duration::from_micros(500)).queue(64 << 10), "2M");
}
