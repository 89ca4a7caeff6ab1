//! Long messages of many senders that meet at each host's link.

use std::time::Duration;

use kolo_netlab::Lab;
use kolo_netlab::network::Network;

use crate::Test;
use crate::job::{perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Moment paced_senders_that_meet_do_not_overflow_a_queue,
];

/// Returns the share of packets that overflow a queue in all-to-alls among eight hosts. `None` if there is no `kolo`.
fn overflow(pacing: &str) -> Option<f64> {
    let network = Network::hosts(8).rate(100_000_000).delay(Duration::from_micros(25)).queue(256 << 10);
    let lab = Lab::new(&network).expect("a network");
    let settings = [
        ("KOLO_JOIN_TIMEOUT", "40"),
        ("KOLO_TIMEOUT", "40"),
        ("KOLO_SOCKET_PACING", pacing),
        ("KOLO_ALGO", "direct"),
    ];
    let ends = run(perf(&lab, 1, "alltoall -b 2M -e 2M -n 5 -w 1 -c 0", &settings)?, Duration::from_secs(60));
    succeed(&ends, "all-to-alls");
    let counts = lab.counts();
    println!("pacing {pacing}: {counts:?}");
    Some(counts.overflowed as f64 / counts.passed as f64)
}

fn paced_senders_that_meet_do_not_overflow_a_queue() {
    let (Some(paced), Some(unpaced)) = (overflow("auto"), overflow("off")) else { return };
    // Without pacing it is a hundredth. A machine that is short of time may delay some senders until they meet.
    assert!(paced <= (unpaced / 2.0).max(0.002), "{paced}, without pacing {unpaced}");
}
