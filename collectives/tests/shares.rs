//! Plans for hosts of different speed: correct, and fast where links differ.

mod common;

use std::collections::BTreeSet;

use common::{Numbers, PLACEMENTS, expect, uniform};
use kolo_collectives::check::Options;
use kolo_collectives::model::{HostRate, LinkClass, Model};
use kolo_collectives::plan::{Collective, Placement, Plan};
use kolo_collectives::select::Request;
use kolo_collectives::simulate::{Cluster, simulate};
use kolo_collectives::{Algorithm, Task};

fn task(p: u32, placement: Placement, speeds: &[u32]) -> Task {
    let task = Task { placement, ..Task::new(Collective::AllReduce, p) };
    task.with_hosts((0..p).collect::<Vec<u32>>()).with_speeds(speeds)
}

#[test]
fn every_share_is_counted_once() {
    let mut numbers = Numbers(7);
    for p in 3..=12 {
        for _ in 0..4 {
            let speeds: Vec<u32> = (0..p).map(|_| 16 + (numbers.next() % 400) as u32).collect();
            for placement in PLACEMENTS {
                let task = task(p, placement, &speeds);
                let mut plans = Algorithm::Shares.plans(&task);
                for (count, segment) in [(257, 257), (257, 100), (3, 3), (0, 1)] {
                    let options = Options::quick().segmented(segment);
                    expect(Algorithm::Shares, &task, &plans, &uniform(&plans, count), &options);
                }
                let shapes = uniform(&plans, 300);
                expect(Algorithm::Shares, &task, &plans, &shapes, &Options::default());
                // Ranks need not agree on whether their buffers are in place.
                let other =
                    Task { placement: PLACEMENTS[usize::from(placement == PLACEMENTS[0])], ..task.clone() };
                for (plan, other) in plans.iter_mut().zip(Algorithm::Shares.plans(&other)).step_by(2) {
                    *plan = other;
                }
                expect(Algorithm::Shares, &task, &plans, &shapes, &Options::quick());
            }
        }
    }
}

/// Returns the ranks with which a rank exchanges messages.
fn peers(plan: &Plan) -> BTreeSet<u32> {
    let steps = plan.lanes.iter().flatten();
    steps
        .flat_map(|step| [step.action.sends_to(), step.action.receives_from()])
        .flatten()
        .map(|channel| channel.peer)
        .collect()
}

#[test]
fn chains_end_at_the_slowest_hosts() {
    let speeds = [160, 16, 160, 160, 40];
    for (collective, root, chain) in [
        (Collective::Broadcast, 0, [0, 2, 3, 4, 1]),
        (Collective::Broadcast, 1, [1, 2, 3, 0, 4]),
        (Collective::Reduce, 3, [3, 0, 2, 4, 1]),
    ] {
        for placement in PLACEMENTS {
            let task = Task { placement, ..Task::new(collective, 5) }.with_root(root);
            let task = task.with_hosts((0..5).collect::<Vec<u32>>()).with_speeds(&speeds[..]);
            let plans = Algorithm::Chain.plans(&task);
            for (count, segment) in [(257, 257), (257, 100), (3, 3), (0, 1)] {
                let options = Options::quick().segmented(segment);
                expect(Algorithm::Chain, &task, &plans, &uniform(&plans, count), &options);
            }
            for pair in chain.windows(2) {
                assert!(peers(&plans[pair[0]]).contains(&(pair[1] as u32)), "{collective} from {root}");
            }
            assert_eq!(peers(&plans[chain[4]]).len(), 1, "{collective} from {root}");
        }
    }
}

#[test]
fn it_wants_speeds_that_make_sense() {
    let refusal = |task: &Task| Algorithm::Shares.supports(task).expect_err("it cannot");
    assert!(refusal(&Task::new(Collective::AllReduce, 4)).contains("not known to differ"));
    for (p, speeds, text) in [(4, &[16, 16][..], "2 of 4"), (3, &[16, 0, 1], "is 0"), (2, &[16, 32], "3 to")]
    {
        assert!(refusal(&task(p, Placement::InPlace, speeds)).contains(text), "{text}");
    }
}

/// Returns the simulated seconds of the cheapest plan, and its algorithm, with or without knowledge of the
/// speeds.
fn simulated(rates: &[f64], knows: bool, bytes: u64) -> (f64, Algorithm) {
    let p = rates.len() as u32;
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    let inter = LinkClass { latency_seconds: 50e-6, bytes_per_second: slowest, ..LinkClass::TCP };
    let model = Model { inter, nic_bytes_per_second: slowest, ..Model::TCP };
    let speeds: Vec<u32> = rates.iter().map(|rate| (16.0 * rate / slowest).round() as u32).collect();
    let mut task = Task::new(Collective::AllReduce, p).with_hosts((0..p).collect::<Vec<u32>>());
    if knows {
        task = task.with_speeds(speeds);
    }
    let choice = Request::new(&task, bytes, 4).select(&model).expect("there is one");
    let plans = choice.algorithm.plans(&Task { params: choice.params, ..task });
    let host = |rate: &f64| HostRate { out_bytes_per_second: *rate, in_bytes_per_second: *rate };
    let cluster = Cluster {
        hosts: p,
        ranks_per_host: 1,
        model: Model { inter: LinkClass { bytes_per_second: fastest, ..inter }, ..model },
        rates: rates.iter().map(host).collect(),
        segment_bytes: choice.segment_bytes,
        window: choice.window,
        ..Cluster::default()
    };
    let timing = simulate(&plans, &uniform(&plans, bytes as usize / 4), &cluster).expect("the plans fit");
    (timing.seconds, choice.algorithm)
}

#[test]
fn a_host_at_a_tenth_takes_the_vector_once() {
    for (p, least) in [(4, 1.35), (8, 1.5)] {
        let mut rates = vec![125e6; p];
        rates[2] = 12.5e6;
        let bytes = 64 << 20;
        let (before, _) = simulated(&rates, false, bytes);
        let (after, chosen) = simulated(&rates, true, bytes);
        println!("{p} hosts: {before:.3} s, {after:.3} s with {chosen}: {:.2}", before / after);
        assert_eq!(chosen, Algorithm::Shares);
        assert!(before / after > least, "{p} hosts: {before} {after}");
    }
}

#[test]
fn random_networks_get_faster_and_none_slower() {
    let mut numbers = Numbers(2026);
    let mut product = 1.0;
    for _ in 0..30 {
        let p = 4 + numbers.next() % 5;
        // From 0.1 to 2 Gbit/s.
        let rates: Vec<f64> = (0..p).map(|_| 12.5e6 * 20_f64.powf(numbers.share())).collect();
        for bytes in [8, 64 << 10, 1 << 20, 64 << 20] {
            let (before, _) = simulated(&rates, false, bytes);
            let (after, chosen) = simulated(&rates, true, bytes);
            assert!(before / after > 0.98, "{rates:?}, {bytes}: {before} {after} {chosen}");
            if bytes == 64 << 20 {
                product *= before / after;
            }
        }
    }
    let mean = f64::powf(product, 1.0 / 30.0);
    println!("64 MiB: {mean:.2} times as fast");
    assert!(mean > 1.3, "{mean}");
}
