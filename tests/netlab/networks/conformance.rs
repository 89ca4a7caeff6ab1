//! Conformance suite of the transports, with each rank's endpoint on a host of its own.

use std::time::Duration;

use kolo_netlab::network::Network;
use kolo_netlab::{Host, Lab};
use kolo_transport::conformance::{CASES, Subject, run};
use kolo_transport::{Endpoint, TcpOptions};

use crate::Test;
use crate::placed::Placed;

pub(crate) const TESTS: &[Test] = tests![
    Long tcp_on_a_fast_network,
    Long tcp_on_a_lossy_network,
    Long tcp_on_two_rails,
    Long tcp_in_several_streams_on_a_lossy_network,
];

/// TCP between the hosts of a laboratory.
struct Tcp {
    lab: Lab,
    exemptions: Exemptions,
    streams: Option<u8>,
}

impl Subject for Tcp {
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint> {
        let hosts = self.lab.hosts();
        let host: &Host = &hosts[rank as usize % hosts.len()];
        let options = TcpOptions { cookie: job, streams: self.streams, ..TcpOptions::default() };
        Box::new(Placed::new(host, rank, world_size, options))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(90)
    }

    fn exemptions(&self) -> &[(&'static str, &'static str)] {
        self.exemptions
    }
}

type Exemptions = &'static [(&'static str, &'static str)];

fn all_cases(network: &Network, exemptions: Exemptions, streams: Option<u8>) {
    let subject = Tcp { lab: Lab::new(network).expect("a network"), exemptions, streams };
    for case in CASES {
        println!("{}", case.name);
        run(&subject, case.name);
    }
    println!("{:?}", subject.lab.counts());
}

fn tcp_on_a_fast_network() {
    all_cases(&Network::hosts(4).delay(Duration::from_micros(25)), &[], None);
}

/// Rates and delays differ between cards and hosts, so that parts arrive in any order.
fn tcp_on_two_rails() {
    let network = Network::hosts(4).nics(2).delay(Duration::from_micros(50)).nic_rate(1, 1_000_000_000);
    all_cases(&network, &[], None);
}

const LOSSY: Exemptions = &[("one_gigabyte", "takes a minute where packets are lost")];

fn lossy() -> Network {
    let network = Network::hosts(4).rate(1_000_000_000).delay(Duration::from_micros(200)).loss(0.002);
    network.reorder(0.01, Duration::from_millis(1)).jitter(Duration::from_micros(100))
}

fn tcp_on_a_lossy_network() {
    all_cases(&lossy(), LOSSY, None);
}

fn tcp_in_several_streams_on_a_lossy_network() {
    all_cases(&lossy(), LOSSY, Some(3));
}
