//! Stages in the simulator, compared with results computed by hand.

mod common;

use common::{plans, uniform};
use kolo_collectives::model::{LinkClass, Model};
use kolo_collectives::plan::{Collective, StepRef};
use kolo_collectives::simulate::{Cluster, Killed, Straggler, Stuck, Timing, simulate};
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Params, Task};

/// A cluster of one host, with round numbers.
fn host(ranks_per_host: u32) -> Cluster {
    let intra = LinkClass { latency_seconds: 1e-6, overhead_seconds: 0.1e-6, bytes_per_second: 1e9 };
    let model = Model {
        intra,
        reduce_bytes_per_second: 4e9,
        copy_bytes_per_second: 2e9,
        move_bytes_per_second: 1e9,
        memory_bytes_per_second: 1e15,
        ..Model::TCP
    };
    Cluster { hosts: 1, ranks_per_host, model, element_bytes: 4, window: 1, ..Cluster::default() }
}

fn run(algorithm: Algorithm, collective: Collective, count: usize, cluster: &Cluster) -> Timing {
    let params = Params { parts: 1, ..Params::default() };
    let task = Task::new(collective, cluster.world_size()).with_params(params).with_stages();
    let plans = plans(algorithm, &task);
    simulate(&plans, &uniform(&plans, count), cluster).expect("the plans fit together")
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected * 1e-9, "{found} is not {expected}");
}

#[test]
fn a_broadcast_is_a_copy_in_a_flag_and_a_copy_out() {
    let timing = run(Algorithm::Staged, Collective::Broadcast, 1000, &host(3));
    // The root copies its own block meanwhile; each other rank checks one flag.
    close(timing.finished[0].expect("it ends"), 4e-6 + 2e-6);
    close(timing.seconds, 4e-6 + 1e-6 + 0.1e-6 + 4e-6);
    assert_eq!((timing.intra.messages, timing.connections), (0, 0));
    assert_eq!(timing.critical_path[0].rank, 0);
}

#[test]
fn a_fold_reads_what_all_others_have() {
    // The blocks of two other ranks, 4000 bytes each, are fetched and added.
    let timing = run(Algorithm::StagedOneShot, Collective::AllReduce, 1000, &host(3));
    close(timing.seconds, 4e-6 + 1e-6 + 0.3e-6 + 2.0 * (4e-6 + 1e-6));
    // In two shots each rank handles slices: two thirds are copied in, a third is reduced and copied in, and two
    // thirds are copied out.
    let timing = run(Algorithm::StagedTwoShot, Collective::AllReduce, 3000, &host(3));
    close(timing.seconds, 8e-6 + 1.3e-6 + 2.0 * (4e-6 + 1e-6) + 4e-6 + 1.3e-6 + 2.0 * 4e-6);
}

#[test]
fn windows_are_read_and_written_where_they_lie() {
    let run = |collective, symmetric, count| {
        let task = Task::new(collective, 3).with_stages().with_symmetric(symmetric);
        let plans = plans(Algorithm::Window, &task);
        simulate(&plans, &uniform(&plans, count), &host(3)).expect("the plans fit together")
    };
    // Three ranks' flags are checked before and after.
    let rounds = 2.0 * (1e-6 + 0.3e-6);
    // Two other slices of 4000 bytes are fetched, and added meanwhile; the sum goes to two other ranks.
    let timing = run(Collective::AllReduce, Symmetric::All, 3000);
    close(timing.seconds, rounds + 2.0 * 4e-6 + 2.0 * 4e-6);
    assert_eq!((timing.intra.messages, timing.connections), (0, 0));
    // Each rank copies a slice to all, or reads everything itself.
    close(run(Collective::Broadcast, Symmetric::All, 3000).seconds, rounds + 3.0 * 4e-6);
    close(run(Collective::Broadcast, Symmetric::Inputs, 3000).seconds, rounds + 12e-6);
    // Two blocks of other ranks, and the rank's own, which needs no fetching.
    close(run(Collective::AllGather, Symmetric::Inputs, 1000).seconds, rounds + 2.0 * 4e-6 + 2e-6);
}

#[test]
fn the_memory_bus_is_shared() {
    let model = Model { memory_bytes_per_second: 1e9, ..host(4).model };
    let timing = run(Algorithm::Staged, Collective::AllGather, 1000, &Cluster { model, ..host(4) });
    // Four copies in and twelve copies out, one after another.
    assert!(timing.seconds > 16.0 * 4e-6, "{}", timing.seconds);
}

#[test]
fn ranks_of_a_processor_copy_one_after_the_other() {
    let model = Model { oversubscription: 4.0, switch_seconds: 0.0, ..host(4).model };
    let cluster = Cluster { model, ..host(4) };
    let timing = run(Algorithm::Staged, Collective::AllGather, 1000, &cluster);
    // Each rank copies in its own block, copies it for itself, and copies three blocks of others.
    let work = 4.0 * (4e-6 + 2e-6 + 3.0 * 4e-6);
    assert!((work..1.2 * work).contains(&timing.seconds), "{} of {work}", timing.seconds);
    let model = Model { switch_seconds: 5e-6, ..cluster.model };
    let slower = run(Algorithm::Staged, Collective::AllGather, 1000, &Cluster { model, ..cluster });
    assert!(slower.seconds > timing.seconds + 5e-6);
}

#[test]
fn a_root_runs_ahead_as_far_as_stages_hold() {
    let late = Straggler { rank: 1, delay_seconds: 1.0 };
    for (segments, waits) in [(1, false), (2, true), (5, true)] {
        let cluster = Cluster { segment_bytes: 4000, stragglers: vec![late], ..host(3) };
        let timing = run(Algorithm::Staged, Collective::Broadcast, 1000 * segments, &cluster);
        let root = timing.finished[0].expect("it ends");
        assert_eq!(root >= 1.0, waits, "{segments} segments: {root}");
    }
}

#[test]
fn who_waits_for_a_dead_rank_says_so() {
    let killed = Some(Killed { rank: 2, at_seconds: 0.0 });
    let timing = run(Algorithm::Staged, Collective::Barrier, 0, &Cluster { killed, ..host(3) });
    let stuck = |rank| Stuck { rank, segment: 0, step: StepRef { lane: 0, step: 1 }, peer: Some(2) };
    assert_eq!(timing.stuck, [stuck(0), stuck(1)]);
}
