//! The plans of the search: correct everywhere, never slower than the algorithms, and faster where hosts or pairs
//! differ.

mod common;

use std::time::Instant;

use common::Numbers;
use kolo_collectives::model::{HostRate, LinkClass, Model, PairRate};
use kolo_collectives::plan::Collective;
use kolo_collectives::search::{COLLECTIVES, Found, search};
use kolo_collectives::simulate::Cluster;

/// A cluster of hosts with these rates, 50 us apart.
fn cluster(rates: &[f64], ranks_per_host: u32) -> Cluster {
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    let inter = LinkClass { latency_seconds: 50e-6, bytes_per_second: fastest, ..LinkClass::TCP };
    let host = |rate: &f64| HostRate { out_bytes_per_second: *rate, in_bytes_per_second: *rate };
    Cluster {
        hosts: rates.len() as u32,
        ranks_per_host,
        model: Model { inter, nic_bytes_per_second: fastest, ..Model::TCP },
        rates: rates.iter().map(host).collect(),
        ..Cluster::default()
    }
}

/// Slows down one pair of hosts, in both directions.
fn slow_pair(mut cluster: Cluster, one: u32, other: u32, rate: f64) -> Cluster {
    for (from, to) in [(one, other), (other, one)] {
        cluster.pairs.push(PairRate { from, to, bytes_per_second: rate });
    }
    cluster
}

fn found(collective: Collective, bytes: u64, cluster: &Cluster) -> Found {
    let begun = Instant::now();
    let found = search(collective, 0, bytes, cluster).expect("something");
    println!(
        "{collective} of {bytes} on {} x {}: {:.2} of {} ({:.2} ms, {}), searched in {:.2} s",
        cluster.hosts,
        cluster.ranks_per_host,
        found.built_in.1 / found.seconds,
        found.built_in.0,
        found.seconds * 1e3,
        found.set.name(),
        begun.elapsed().as_secs_f64()
    );
    assert!(found.seconds <= found.built_in.1, "{collective}: slower than {}", found.built_in.0);
    found
}

fn gain(found: &Found) -> f64 {
    found.built_in.1 / found.seconds
}

#[test]
fn sets_are_right_for_all_shapes_of_networks() {
    for ranks_per_host in [1, 2, 3] {
        let rates = [125e6, 12.5e6, 125e6, 62.5e6];
        let plain = cluster(&rates, ranks_per_host);
        for cluster in [plain.clone(), slow_pair(plain, 0, 2, 2e6), cluster(&[125e6; 2], ranks_per_host)] {
            for collective in COLLECTIVES {
                for bytes in [4, 100_000, 4 << 20] {
                    // The checker has proved every set.
                    found(collective, bytes, &cluster);
                }
            }
        }
    }
}

#[test]
fn a_bad_pair_is_gone_around() {
    for hosts in [4, 8] {
        let cluster = slow_pair(cluster(&vec![125e6; hosts], 1), 0, 1, 12.5e6);
        for collective in COLLECTIVES {
            let block = if collective.has_block_per_rank() { (16 << 20) / hosts as u64 } else { 16 << 20 };
            let found = found(collective, block, &cluster);
            let least = match (hosts, collective) {
                (4, _) | (_, Collective::Broadcast) => 2.0,
                (_, Collective::AllReduce) => 1.2,
                _ => 1.5,
            };
            assert!(gain(&found) > least, "{collective} on {hosts} hosts: {}", gain(&found));
        }
    }
}

#[test]
fn random_networks_with_a_slow_host() {
    let mut numbers = Numbers(2026);
    let mut products = [1.0_f64; 4];
    for number in 0..30 {
        let hosts = 4 + (numbers.next() % 5) as usize;
        // Rates from 0.1 to 2 Gbit/s; one host has a tenth of its rate.
        let mut rates: Vec<f64> = (0..hosts).map(|_| 12.5e6 * 20_f64.powf(numbers.share())).collect();
        rates[numbers.next() as usize % hosts] /= 10.0;
        let network = cluster(&rates, 1 + (numbers.next() % 2) as u32);
        // The other collectives gain nothing on any such network: the slow host sends or receives all data once.
        for (at, collective) in COLLECTIVES.into_iter().enumerate().take(if number < 5 { 4 } else { 1 }) {
            let blocks = if collective.has_block_per_rank() { u64::from(network.world_size()) } else { 1 };
            products[at] *= gain(&found(collective, (32 << 20) / blocks, &network));
        }
    }
    let mean = products[0].powf(1.0 / 30.0);
    println!("mean of all_reduce: {mean:.2}");
    assert!(mean > 1.1, "{mean}");
}

#[test]
fn nothing_but_several_hosts_is_searched() {
    let one = Cluster { hosts: 1, ..Cluster::default() };
    for (collective, cluster, text) in [
        (Collective::AllReduce, &one, "several hosts"),
        (Collective::Scan, &cluster(&[1e8; 3], 1), "but not scan"),
    ] {
        let problem = search(collective, 0, 1 << 20, cluster).map(drop).expect_err(text);
        assert!(problem.contains(text), "{problem}");
    }
}
