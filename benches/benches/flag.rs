//! Benchmarks communication between two processors: a bare flag, the exchange of a host, and calls over it.
//!
//! The time of `bare` is that of a round trip; all others are times of one exchange. Each thread has a processor of its
//! own. With more than two processors, neighbours and the two most distant ones are measured.
//! `cargo bench -p kolo-benches --bench flag`.

use std::hint;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kolo::{Cluster, Communicator, Config, ReduceOp, TransportKind, Transports};
use kolo_benches::bare_flag::BareFlag;
use kolo_benches::pair::{in_pair, places};
use kolo_transport::Needs;
use kolo_transport::shm::{Exchange, Slot};
use kolo_transport::{Endpoint, ShmEndpoint, ShmOptions};

const PATIENCE: Duration = Duration::from_secs(30);

fn flags(c: &mut Criterion) {
    let places = places().expect("the system tells the processors");
    if places.is_empty() {
        println!("flag: skipped: there is one processor");
    }
    for (distance, places) in places {
        let mut in_turn =
            |name: &str, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)| {
                let mut group = c.benchmark_group(format!("flag/{distance}"));
                in_pair(places, first, second, |run| {
                    group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                        bencher.iter_custom(&mut *run)
                    });
                });
            };
        let flag = BareFlag::default();
        let (mut begins, mut answers) = (flag.side(0), flag.side(1));
        in_turn("bare", &mut || begins.round_trip(), &mut || answers.round_trip());
        let [mut first, mut second] = exchanges();
        in_turn("exchange/8", &mut || exchange(&mut first), &mut || exchange(&mut second));
        let [mut first, mut second] = communicators().map(|comm| move || all_reduce(&comm));
        in_turn("all_reduce/8", &mut first, &mut second);
        let [mut first, mut second] =
            communicators().map(|comm| move || comm.barrier().expect("both are there"));
        in_turn("barrier", &mut first, &mut second);
    }
}

/// Makes two members of an exchange.
fn exchanges() -> [Exchange; 2] {
    let mut world = [0, 1].map(|rank| ShmEndpoint::new(rank, 2, ShmOptions::default()).expect("an endpoint"));
    let addresses = world.each_ref().map(|endpoint| endpoint.address().to_vec());
    for (rank, endpoint) in world.iter_mut().enumerate() {
        endpoint.introduce(1 - rank as u32, &addresses[1 - rank]).expect("on one host");
    }
    std::thread::scope(|scope| {
        for endpoint in &mut world {
            scope.spawn(|| endpoint.establish(&|| false, Instant::now() + PATIENCE).expect("both are there"));
        }
    });
    world.map(|mut endpoint| endpoint.exchange().expect("all on one host"))
}

/// Makes one exchange of 8 bytes.
fn exchange(exchange: &mut Exchange) {
    while !exchange.is_free(8).expect("all agree") {
        hint::spin_loop();
    }
    exchange.publish(7, 8, Needs::All, Some(|mut to: Slot<'_>| to.write(0, &[1; 8])));
    while !exchange.poll().expect("all agree") {
        hint::spin_loop();
    }
    let mut first = [0; 2];
    exchange.payload(0).read(0, &mut first[..1]);
    exchange.payload(1).read(0, &mut first[1..]);
    hint::black_box(first);
    exchange.finish();
}

/// Makes two ranks over shared memory.
fn communicators() -> [Communicator; 2] {
    let config =
        Config::default().with(|config| config.transports = Transports::Only(vec![TransportKind::Shm]));
    let ranks = Cluster::with_config(2, &config, |comm| comm).expect("a cluster of threads");
    ranks.try_into().expect("two")
}

fn all_reduce(comm: &Communicator) {
    comm.all_reduce(&mut [1.0_f64], ReduceOp::Sum).expect("both are there");
}

/// Runs are longer than for a kernel, since the host of a virtual machine moves its processors within seconds.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
}

criterion_group! { name = all; config = config(); targets = flags }
criterion_main!(all);
