//! Benchmarks the making and comparing of checkable data, for each type.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kolo::internal::verify::{Problem, fill_bytes};
use kolo::{DataType, ReduceOp};

const BYTES: usize = 512 << 10;
const RANKS: u32 = 4;

fn verify(c: &mut Criterion) {
    let mut buffer = vec![0; BYTES];
    let mut group = c.benchmark_group("verify");
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("fill_bytes", |b| b.iter(|| fill_bytes(1, 2, 0, black_box(&mut buffer))));
    for data_type in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Prod] {
            let problem = Problem::new(data_type, op, RANKS, 1).unwrap();
            group.bench_function(BenchmarkId::new(format!("fill/{}", op.name()), data_type), |b| {
                b.iter(|| problem.fill(1, 0, black_box(&mut buffer)));
            });
        }
        let problem = Problem::new(data_type, ReduceOp::Sum, RANKS, 1).unwrap();
        problem.expected(RANKS, 0, &mut buffer);
        group.bench_function(BenchmarkId::new("count_wrong/sum", data_type), |b| {
            b.iter(|| assert_eq!(problem.count_wrong(RANKS, 0, black_box(&buffer)), 0));
        });
    }
}

/// Short runs suffice, since the loops are regular and there are many of them.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .without_plots()
}

criterion_group! { name = all; config = config(); targets = verify }
criterion_main!(all);
