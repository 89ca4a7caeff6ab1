//! The simulator compared with results computed by hand, and at scale.

mod common;

use common::{plans, uniform};
use kolo_collectives::layout::Shape;
use kolo_collectives::model::{HostRate, LinkClass, Model, PairRate};
use kolo_collectives::plan::Collective;
use kolo_collectives::simulate::{
    Cluster, Killed, Straggler, Symmetry, Timing, simulate, simulate_symmetric,
};
use kolo_collectives::{Algorithm, Params, Task};

/// A cluster of one rank per host, with round numbers.
fn flat(hosts: u32) -> Cluster {
    let inter = LinkClass { latency_seconds: 10e-6, overhead_seconds: 1e-6, bytes_per_second: 1e9 };
    let model = Model {
        inter,
        nic_bytes_per_second: 1e9,
        nic_message_seconds: 0.0,
        reduce_bytes_per_second: 4e9,
        copy_bytes_per_second: 8e9,
        ..Model::TCP
    };
    Cluster { hosts, ranks_per_host: 1, model, element_bytes: 4, ..Cluster::default() }
}

fn run(algorithm: Algorithm, task: &Task, count: usize, cluster: &Cluster) -> Timing {
    let plans = plans(algorithm, task);
    simulate(&plans, &uniform(&plans, count), cluster).expect("the plans fit together")
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected * 1e-9, "{found} is not {expected}");
}

#[test]
fn a_barrier_takes_its_rounds() {
    for (p, rounds) in [(2, 1.0), (4, 2.0), (5, 3.0), (64, 6.0)] {
        let timing = run(Algorithm::Dissemination, &Task::new(Collective::Barrier, p), 0, &flat(p));
        close(timing.seconds, rounds * 12e-6);
        assert_eq!(timing.inter.messages, u64::from(p) * rounds as u64);
        assert_eq!(timing.stuck, []);
    }
}

#[test]
fn recursive_doubling_takes_latency_bytes_and_reduction_each_round() {
    // 4000 bytes: 4 microseconds on the wire and 1 in the processor.
    let timing = run(Algorithm::RecursiveDoubling, &Task::new(Collective::AllReduce, 8), 1000, &flat(8));
    close(timing.seconds, 3.0 * (12e-6 + 4e-6 + 1e-6));
    assert_eq!(timing.inter.bytes, 8 * 3 * 4000);
    let last = timing.critical_path.last().expect("a path");
    close(last.at_seconds, timing.seconds);
    // Each round is a send and a receive.
    assert_eq!(timing.critical_path.len(), 6);
}

#[test]
fn messages_of_a_host_pass_its_interface_one_by_one() {
    let task =
        Task::new(Collective::AllReduce, 8).with_hosts((0..8).map(|rank| rank / 4).collect::<Vec<u32>>());
    let mut cluster = Cluster { ranks_per_host: 4, ..flat(2) };
    let seconds = |cluster: &Cluster| run(Algorithm::RecursiveDoubling, &task, 1, cluster).seconds;
    let at_once = seconds(&cluster);
    cluster.model.nic_message_seconds = 2e-6;
    // In the round between the hosts each rank has one message.
    assert!((seconds(&cluster) - at_once - 4.0 * 2e-6).abs() < 1e-8, "{} {at_once}", seconds(&cluster));
}

/// In a reduction between two hosts, only the direction towards the root counts.
#[test]
fn a_host_is_as_slow_as_its_own_interface() {
    let task = Task::new(Collective::Reduce, 2).with_root(1);
    let even = flat(2);
    let rate =
        |out_bytes_per_second, in_bytes_per_second| HostRate { out_bytes_per_second, in_bytes_per_second };
    let run = |cluster: &Cluster| run(Algorithm::Binomial, &task, 100_000, cluster).seconds;
    let usual = run(&even);
    for (rates, slower) in [
        (vec![rate(1e9, 1e9), rate(1e9, 1e9)], 1.0),
        (vec![rate(1e8, 1e9), rate(1e9, 1e9)], 10.0),
        (vec![rate(1e9, 1e9), rate(1e9, 1e8)], 10.0),
        // The other directions carry nothing.
        (vec![rate(1e9, 1e6), rate(1e6, 1e9)], 1.0),
    ] {
        let found = run(&Cluster { rates: rates.clone(), ..even.clone() });
        let wire = 100_000.0 * 4.0 / 1e9;
        close(found, usual + (slower - 1.0) * wire);
    }
    let slow = PairRate { from: 0, to: 1, bytes_per_second: 1e8 };
    let found = run(&Cluster { pairs: vec![slow], ..even.clone() });
    close(found, usual + 9.0 * 100_000.0 * 4.0 / 1e9);
    let back = PairRate { from: 1, to: 0, bytes_per_second: 1e8 };
    close(run(&Cluster { pairs: vec![back], ..even.clone() }), usual);
}

#[test]
fn a_window_hides_latency() {
    let task = Task::new(Collective::AllReduce, 4);
    let mut cluster = Cluster { segment_bytes: 4000, window: 1, ..flat(4) };
    let alone = run(Algorithm::RecursiveDoubling, &task, 16_000, &cluster).seconds;
    cluster.window = 4;
    let together = run(Algorithm::RecursiveDoubling, &task, 16_000, &cluster).seconds;
    assert!(together < 0.6 * alone, "{together} against {alone}");
}

#[test]
fn ranks_of_a_host_share_its_interface() {
    let task = Task::new(Collective::AllToAll, 8);
    let spread = run(Algorithm::Direct, &task, 100_000, &flat(8)).seconds;
    let packed = Cluster { hosts: 2, ranks_per_host: 4, ..flat(8) };
    let shared = run(Algorithm::Direct, &task, 100_000, &packed).seconds;
    // Four ranks send four blocks each through one interface, compared with seven blocks of a rank with its own
    // interface.
    assert!(shared > 1.9 * spread, "{shared} against {spread}");
    let timing = run(Algorithm::Direct, &task, 100_000, &packed);
    assert_eq!((timing.intra.messages, timing.inter.messages), (8 * 3, 8 * 4));
    assert_eq!(timing.inter.bytes, 32 * 400_000);
}

#[test]
fn hierarchy_pays_between_hosts() {
    let cluster = Cluster { hosts: 8, ranks_per_host: 8, ..Cluster::default() };
    let task = Task::new(Collective::AllReduce, 64).with_hosts(cluster.hosts_of_ranks());
    let flat = run(Algorithm::Circulant, &task, 1 << 18, &cluster);
    let split = run(Algorithm::Hierarchical, &task, 1 << 18, &cluster);
    assert!(split.seconds < flat.seconds, "{} against {}", split.seconds, flat.seconds);
    // Each host sends and receives two vectors, less an eighth.
    assert_eq!(split.inter.bytes, 8 * 2 * (1 << 20) / 8 * 7);
}

#[test]
fn a_straggler_delays_all_and_is_on_the_critical_path() {
    let task = Task::new(Collective::AllReduce, 16);
    let on_time = run(Algorithm::Circulant, &task, 1600, &flat(16));
    let stragglers = vec![Straggler { rank: 11, delay_seconds: 1e-3 }];
    let late = run(Algorithm::Circulant, &task, 1600, &Cluster { stragglers, ..flat(16) });
    assert!(late.seconds > on_time.seconds + 0.9e-3);
    assert_eq!(late.critical_path[0].rank, 11);
    assert!(late.finished.iter().all(|at| at.expect("all finish") > 1e-3));
}

#[test]
fn a_dead_rank_leaves_others_waiting_and_says_for_whom() {
    let task = Task::new(Collective::Broadcast, 8);
    let killed = Some(Killed { rank: 4, at_seconds: 0.0 });
    let timing = run(Algorithm::Binomial, &task, 100, &Cluster { killed, ..flat(8) });
    let mut waiting: Vec<(u32, Option<u32>)> =
        timing.stuck.iter().map(|stuck| (stuck.rank, stuck.peer)).collect();
    waiting.sort_unstable();
    // Rank 4 feeds 5 and 6; rank 6 feeds 7.
    assert_eq!(waiting, [(5, Some(4)), (6, Some(4)), (7, Some(6))]);
    let through: Vec<bool> = timing.finished.iter().map(Option::is_some).collect();
    assert_eq!(through, [true, true, true, true, false, false, false, false]);
}

#[test]
fn oversubscription_slows_the_processors() {
    let task = Task::new(Collective::AllReduce, 8);
    let mut cluster = flat(8);
    let one = run(Algorithm::RecursiveDoubling, &task, 1000, &cluster).seconds;
    cluster.model.oversubscription = 4.0;
    let four = run(Algorithm::RecursiveDoubling, &task, 1000, &cluster).seconds;
    // In each of three rounds, two overheads and a reduction take four times as long, and three other ranks have a
    // turn.
    close(four - one, 3.0 * (3.0 * 3e-6 + 3.0 * 5e-6));
}

/// Ranks of one host whose messages cost processor time and nothing else.
fn packed(ranks_per_host: u32, oversubscription: f64) -> Cluster {
    let intra = LinkClass { latency_seconds: 0.0, overhead_seconds: 1e-6, bytes_per_second: 1e15 };
    let model = Model {
        intra,
        oversubscription,
        switch_seconds: 5e-6,
        move_bytes_per_second: 1e9,
        memory_bytes_per_second: 1e15,
        ..Model::TCP
    };
    Cluster { ranks_per_host, model, ..Cluster::default() }
}

#[test]
fn ranks_of_a_processor_take_turns() {
    // Each of two ranks sends and receives 4000 bytes, which takes 5 microseconds at each end.
    let task = Task::new(Collective::AllGather, 2).in_place();
    let apart = run(Algorithm::Ring, &task, 1000, &packed(2, 1.0)).seconds;
    close(apart, 10e-6);
    // One rank sends; the other sends, and receives what has arrived; then the first has its turn again.
    let shared = run(Algorithm::Ring, &task, 1000, &packed(2, 2.0)).seconds;
    close(shared, 5e-6 + 5e-6 + 10e-6 + 5e-6 + 5e-6);
}

#[test]
fn a_call_in_a_row_begins_where_the_last_one_ended() {
    let task = Task::new(Collective::AllGather, 4).in_place();
    let seconds = |calls| run(Algorithm::Ring, &task, 1000, &Cluster { calls, ..packed(4, 1.0) }).seconds;
    close(seconds(5), 5.0 * seconds(1));
    // A rank that has the processor goes on to the next call.
    let shared = |calls| run(Algorithm::Ring, &task, 1000, &Cluster { calls, ..packed(4, 2.0) }).seconds;
    assert!(shared(5) < 4.7 * shared(1), "{} against {}", shared(5), shared(1));
}

#[test]
fn what_caches_do_not_hold_is_slower_the_first_time_only() {
    let task = Task::new(Collective::AllReduce, 2).in_place();
    let mut cluster = Cluster { segment_bytes: 1 << 20, window: 1, ..packed(2, 1.0) };
    let count = 64 << 20 >> 2;
    let near = run(Algorithm::Ring, &task, count, &cluster).seconds;
    // The buffers of both ranks together have 64 MiB, of which a segment touches 2 MiB.
    for (place, factor) in cluster.model.caches.messages.0.iter_mut().enumerate() {
        *factor = if place > 6 { 3.0 } else { 1.0 };
    }
    let far = run(Algorithm::Ring, &task, count, &cluster).seconds;
    // Half of a segment is sent, and the other half is received and reduced; then both are moved once more. A
    // message is moved at both ends.
    let moved = 4.0 * f64::from(32 << 20) / 1e9;
    assert!((far - near - 2.0 * moved / 2.0).abs() < 0.02 * far, "{far} against {near}: {moved}");
}

#[test]
fn one_rank_stands_for_all_of_a_symmetric_plan() {
    for algorithm in [Algorithm::Ring, Algorithm::Circulant] {
        for p in [2, 3, 8, 13] {
            for collective in [Collective::AllReduce, Collective::AllGather] {
                let task = Task::new(collective, p).with_params(Params::default());
                let count = 1000 * p as usize;
                let plan = algorithm.plan(&task, 0);
                let shapes = uniform(std::slice::from_ref(&plan), count);
                let whole = run(algorithm, &task, count, &flat(p));
                let one = simulate_symmetric(&plan, &shapes[0], &flat(p), Symmetry::Circle);
                // Rank 0 never cuts a message where the blocks wrap; other ranks may, and then pay for two
                // messages.
                let ratio = one.seconds / whole.seconds;
                assert!((0.8..1.0 + 1e-9).contains(&ratio), "{algorithm} {p} {collective:?} {ratio}");
                assert_eq!(one.connections, whole.connections);
                assert_eq!(one.inter.bytes, whole.inter.bytes);
                if algorithm == Algorithm::Ring {
                    close(one.seconds, whole.seconds);
                }
            }
        }
    }
}

#[test]
fn one_rank_stands_for_all_that_exchange_in_pairs() {
    for (p, symmetry) in
        [(2, Symmetry::Pairs), (8, Symmetry::Pairs), (32, Symmetry::Pairs), (13, Symmetry::Circle)]
    {
        for task in [Task::new(Collective::AllToAll, p), Task::new(Collective::AllToAll, p).in_place()] {
            let plan = Algorithm::Direct.plan(&task, 0);
            let shapes = uniform(std::slice::from_ref(&plan), 1000);
            let whole = run(Algorithm::Direct, &task, 1000, &flat(p));
            let one = simulate_symmetric(&plan, &shapes[0], &flat(p), symmetry);
            close(one.seconds, whole.seconds);
            assert_eq!((one.connections, one.inter), (whole.connections, whole.inter), "{p} ranks");
            assert!(one.finished.iter().all(Option::is_some), "{p} ranks: {:?}", one.finished[0]);
        }
    }
}

#[test]
fn thousands_of_ranks() {
    let p = 4096;
    let cluster = flat(p);
    let task = Task::new(Collective::AllReduce, p);
    let doubling = run(Algorithm::RecursiveDoubling, &task, 1, &cluster);
    // One overhead at each end, latency, 4 bytes and their reduction.
    close(doubling.seconds, 12.0 * (12e-6 + 4e-9 + 1e-9));
    let large = run(Algorithm::Circulant, &task, 1 << 20, &cluster).seconds;
    let ring = Algorithm::Ring.plan(&task, 0);
    let shape = Shape::Vector { count: 1 << 20 };
    let ring = simulate_symmetric(&ring, &shape, &cluster, Symmetry::Circle).seconds;
    assert!(ring > 5.0 * large, "at this size a ring of {p} is bound by latency: {ring} against {large}");
}
