//! Worlds of up to 4096 ranks.
//!
//! Two kinds of checks keep memory small. The run without values, on full lengths, proves that all ranks finish without
//! credits and that lengths agree. The run with values, on a vector so short that only its first few parts have
//! elements, proves the results. Algorithms with p rounds have p² steps in all and are checked with up to five hundred
//! ranks.

mod common;

use common::{COLLECTIVES, PLACEMENTS, expect, plans, uniform};
use kolo_collectives::check::{Credits, Options, Schedule};
use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Collective, Cut, Plan};
use kolo_collectives::{Algorithm, Params, Task};

fn control() -> Options {
    Options { values: false, hazard_stride: 97, ..Options::quick() }
}

fn sampled() -> Options {
    Options { hazard_stride: u32::MAX, ..Options::quick() }
}

fn steps(plans: &[Plan]) -> usize {
    plans[..1].iter().flat_map(|plan| plan.lanes.iter()).map(|lane| lane.len()).sum::<usize>() * plans.len()
}

/// Returns whether some rank's plan has about as many steps, or scratch blocks, as there are ranks. If any does, the
/// root's has the most.
fn is_linear(algorithm: Algorithm, task: &Task) -> bool {
    [task.root, task.world_size - 1].into_iter().any(|rank| {
        let plan = algorithm.plan(task, rank);
        let steps = plan.lanes.iter().map(|lane| lane.len()).sum::<usize>();
        steps >= task.world_size as usize / 2 || plan.scratch.len() >= task.world_size as usize
    })
}

fn sweep(worlds: &[u32], each_linear: bool) -> usize {
    let mut checked = 0;
    for &p in worlds {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                let root = if collective.is_rooted() { p / 3 } else { 0 };
                let params = Params { parts: 5, ..Params::default() };
                let task = Task { placement, params, ..Task::new(collective, p).with_root(root) };
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(&task).is_err() || is_linear(algorithm, &task) != each_linear {
                        continue;
                    }
                    let plans = plans(algorithm, &task);
                    assert!(each_linear || p < 2000 || steps(&plans) < 1 << 19, "{algorithm} {collective}");
                    expect(algorithm, &task, &plans, &uniform(&plans, 2 * p as usize + 1), &control());
                    // All blocks if they are few; the first seven parts of a vector.
                    let blocks_follow = collective.has_block_per_rank() && p > 300;
                    if !blocks_follow {
                        expect(algorithm, &task, &plans, &uniform(&plans, 7), &sampled());
                    }
                    checked += 1;
                }
            }
        }
    }
    checked
}

#[test]
fn logarithmic_algorithms_up_to_4096() {
    let start = std::time::Instant::now();
    let checked = sweep(&[100, 127, 128, 129, 1000, 1023, 1024, 1025, 4096], false);
    // About 6 seconds on one idle core.
    println!("{checked} sets of plans in {:?}", start.elapsed());
    assert!(checked > 300, "only {checked}");
}

#[test]
fn linear_algorithms_up_to_257() {
    let checked = sweep(&[100, 127, 128, 129, 257], true);
    assert!(checked > 80, "only {checked}");
}

#[test]
fn linear_algorithms_in_five_hundred() {
    // Each phase has a quarter of a million messages, so these are checked without values, and in one placement.
    for (algorithm, collective) in [
        (Algorithm::Ring, Collective::AllReduce),
        (Algorithm::Ring, Collective::AllGather),
        (Algorithm::Direct, Collective::AllToAll),
    ] {
        let task = Task::new(collective, 500);
        let plans = plans(algorithm, &task);
        expect(algorithm, &task, &plans, &uniform(&plans, 1000), &control());
    }
}

#[test]
fn values_of_all_blocks_in_five_hundred() {
    for (algorithm, collective, ranks) in [
        (Algorithm::Circulant, Collective::ReduceScatter, 501),
        (Algorithm::Circulant, Collective::AllGather, 501),
        (Algorithm::Circulant, Collective::AllReduce, 501),
        (Algorithm::Bruck, Collective::AllGather, 501),
        (Algorithm::Halving, Collective::AllReduce, 501),
        (Algorithm::Halving, Collective::ReduceScatter, 512),
        (Algorithm::Halving, Collective::AllGather, 512),
        (Algorithm::Binomial, Collective::Gather, 501),
        (Algorithm::Binomial, Collective::Scatter, 501),
    ] {
        let task = Task::new(collective, ranks).in_place();
        let plans = plans(algorithm, &task);
        expect(algorithm, &task, &plans, &uniform(&plans, 1000), &sampled());
    }
}

#[test]
fn random_orders_on_a_shared_stream() {
    for seed in 1..4 {
        for collective in COLLECTIVES {
            let task = Task::new(collective, 100);
            for algorithm in Algorithm::ALL {
                if algorithm.supports(&task).is_ok() && !is_linear(algorithm, &task) {
                    let plans = plans(algorithm, &task);
                    let runs = vec![(Credits::SharedStream, Schedule::Random(seed))];
                    let options = Options { runs, hazard_stride: u32::MAX, ..Options::default() };
                    expect(algorithm, &task, &plans, &uniform(&plans, 10), &options);
                }
            }
        }
    }
}

#[test]
fn messages_and_volume_are_what_the_papers_say() {
    // With p parts of one element each, the circulant all-reduce sends 2 (p-1) elements per rank, in at most two
    // messages per round; an odd p costs one more message.
    for p in [2, 3, 16, 17, 100, 1000, 1024] {
        let log = f64::from(p).log2().ceil() as u64;
        let task = Task::new(Collective::AllReduce, p);
        let plans = plans(Algorithm::Circulant, &task);
        let report = expect(Algorithm::Circulant, &task, &plans, &uniform(&plans, p as usize), &control());
        assert_eq!(report.elements, 2 * u64::from(p) * u64::from(p - 1));
        assert_eq!(report.elements_per_rank, 2 * u64::from(p - 1));
        assert!(report.messages <= u64::from(p) * (4 * log + 1), "{p}");
        assert!(report.messages >= u64::from(p) * 2 * log, "{p}");
        // The skips of the second phase lead to the same ranks as those of the first, in reverse.
        assert!(u64::from(report.connections) <= 2 * log, "{p}");
        assert_eq!(report.scratch_elements, 0);
    }
}

#[test]
fn one_huge_block_among_many_empty_ones() {
    let p = 1025;
    for (algorithm, collective) in
        [(Algorithm::Circulant, Collective::AllGather), (Algorithm::Circulant, Collective::ReduceScatter)]
    {
        let task = Task::new(collective, p);
        let plans = plans(algorithm, &task);
        assert!(plans.iter().all(|plan| plan.cut == Cut::PerRank));
        let lens: Box<[usize]> = (0..p).map(|rank| if rank == 700 { 1 << 30 } else { 0 }).collect();
        let shape = |rank: u32| {
            let one: Box<[usize]> = Box::from([lens[rank as usize]]);
            match collective {
                Collective::AllGather => Shape::Irregular { input: one, output: lens.clone() },
                _ => Shape::Irregular { input: lens.clone(), output: one },
            }
        };
        let shapes: Vec<Shape> = (0..p).map(shape).collect();
        expect(algorithm, &task, &plans, &shapes, &sampled());
    }
}
