//! Benchmarks Kolo's own overhead: selecting an algorithm, making and binding a plan; a call; and each step of a plan.
//!
//! `step/...` measures steps: many short segments turn a plan's few steps into many.
//! `cargo bench -p kolo-benches --bench steps`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kolo::{Cluster, Communicator, Config, ReduceOp, TransportKind, Transports};
use kolo_benches::pair::{in_pair, places};
use kolo_collectives::generator::Algorithm;
use kolo_collectives::layout::{Layout, Shape};
use kolo_collectives::model::Model;
use kolo_collectives::plan::{Collective, Plan};
use kolo_collectives::select::Request;
use kolo_collectives::task::Task;

/// Segments of a call whose steps are measured.
const SEGMENTS: usize = 1000;

/// Work that is done once for each kind of call, and then cached.
fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("planning");
    for ranks in [8, 64] {
        let task = Task::new(Collective::AllReduce, ranks).in_place();
        group.bench_function(BenchmarkId::new("select", ranks), |bencher| {
            bencher.iter(|| Request::new(black_box(&task), 1 << 20, 4).select(&Model::TCP));
        });
        group.bench_function(BenchmarkId::new("plan", ranks), |bencher| {
            bencher.iter(|| Algorithm::Ring.plan(black_box(&task), 1));
        });
        let plan = Algorithm::Ring.plan(&task, 1);
        group.bench_function(BenchmarkId::new("bind", ranks), |bencher| {
            bencher.iter(|| Layout::new(black_box(&plan), Shape::Vector { count: 1 << 18 }, 1 << 14));
        });
    }
}

/// Calls of a single rank: it waits for no other rank, so all of the time is Kolo's own.
fn calls(c: &mut Criterion) {
    let mut group = c.benchmark_group("call");
    // The plan is found in the cache, bound, and run by the engine, since a single rank has no exchange.
    let [alone] = communicators(&Config::default());
    group.bench_function("blocking/8", |bencher| {
        bencher.iter(|| alone.all_reduce(black_box(&mut [1.0_f64]), ReduceOp::Sum));
    });
    let mut buffer = Some(vec![1.0_f64]);
    group.bench_function("started/8", |bencher| {
        bencher.iter(|| {
            let work = alone.all_reduce_start(buffer.take().expect("given back"), ReduceOp::Sum);
            buffer = Some(work.and_then(kolo::Work::wait).expect("nobody else"));
        });
    });
}

/// Steps of a single rank, which copy; and steps of two ranks, which send, receive and add over shared memory.
fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    let config = Config::default().with(|config| {
        config.exchange_bytes = Some(0);
        config.segment_bytes = Some(size_of::<f64>());
    });
    let [alone] = communicators(&config);
    let (input, mut output) = (vec![1.0_f64; SEGMENTS], vec![0.0_f64; SEGMENTS]);
    // The algorithm does not matter with one rank: it copies its block.
    let task = Task::new(Collective::AllGather, 1);
    let plan = Request::new(&task, 8, 8).select(&Model::TCP).expect("some can").algorithm.plan(&task, 0);
    group.throughput(Throughput::Elements(steps_of(&plan)));
    group.bench_function("copy/8", |bencher| {
        bencher.iter(|| alone.all_gather(&input, &mut output).expect("nobody else"));
    });

    let Some((_, places)) = places().expect("the system tells the processors").pop() else {
        println!("step/shm: skipped: there is one processor");
        return;
    };
    let config = config.with(|config| {
        config.algorithms = "ring".to_owned();
        config.segment_bytes = Some(2 * size_of::<f64>());
        config.transports = Transports::Only(vec![TransportKind::Shm]);
    });
    let plan = Algorithm::Ring.plan(&Task::new(Collective::AllReduce, 2).in_place(), 0);
    group.throughput(Throughput::Elements(steps_of(&plan)));
    let [first, second] = communicators::<2>(&config).map(|comm| {
        let mut data = vec![0.0_f64; 2 * SEGMENTS];
        move || comm.all_reduce(&mut data, ReduceOp::Sum).expect("both are there")
    });
    in_pair(places, first, second, |run| {
        group.bench_function("shm/8", |bencher| bencher.iter_custom(&mut *run));
    });
}

/// Returns the number of steps of all segments.
fn steps_of(plan: &Plan) -> u64 {
    let steps: usize = plan.lanes.iter().map(|lane| lane.len()).sum();
    (steps * SEGMENTS) as u64
}

fn communicators<const N: usize>(config: &Config) -> [Communicator; N] {
    let ranks = Cluster::with_config(N as u32, config, |comm| comm).expect("a cluster of threads");
    ranks.try_into().expect("as many as asked for")
}

/// Short runs suffice, since the loops are regular.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .without_plots()
}

criterion_group! { name = all; config = config(); targets = planning, calls, steps }
criterion_main!(all);
