//! Benchmarks the reduction kernels: bytes of one operand per second, for each type and instruction set.
//!
//! The sizes fit into the first-level cache, into the second, and only into memory.
//! `cargo bench -p kolo-benches --bench reduce` runs everything; a filter such as `sum/bf16` runs a part.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kolo::internal::reduce::{Isa, Kernel, divide, kernel_for, scale};
use kolo::{DataType, ReduceOp};

/// Sizes of an operand in bytes.
const SIZES: [usize; 3] = [16 << 10, 512 << 10, 64 << 20];

/// Memory aligned to a page, as allocators align large buffers, with values that are ordinary numbers in every type.
struct Buffer(Vec<u64>, usize);

impl Buffer {
    fn new(bytes: usize) -> Self {
        let mut words = vec![0x3d80_3d80_3d80_3d80_u64; bytes / 8 + 512];
        let skip = words.as_mut_ptr().cast::<u8>().align_offset(4096);
        Self(words, skip)
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(self.1)
    }
}

fn name(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{}MiB", bytes >> 20) } else { format!("{}KiB", bytes >> 10) }
}

fn kernels(op: ReduceOp, types: &[DataType]) -> Vec<Kernel> {
    let every = types.iter().flat_map(|&data_type| Isa::ALL.map(|isa| (isa, data_type)));
    every.filter_map(|(isa, data_type)| kernel_for(isa, data_type, op).ok()).collect()
}

/// `a op= b` for every type and instruction set.
fn in_place(c: &mut Criterion) {
    use DataType::{BF16, F16, F32, F64, I32, U8};
    let ops = [
        (ReduceOp::Sum, &DataType::ALL[..]),
        (ReduceOp::Max, &[F32, F64, F16, BF16, I32, U8]),
        (ReduceOp::Prod, &[F32, BF16, U8]),
    ];
    for bytes in SIZES {
        let (mut a, mut b) = (Buffer::new(bytes), Buffer::new(bytes));
        let (a, b) = (a.as_mut_ptr(), b.as_mut_ptr());
        for (op, types) in ops {
            let mut group = c.benchmark_group(format!("{}/in_place/{}", op.name(), name(bytes)));
            group.throughput(Throughput::Bytes(bytes as u64));
            for kernel in kernels(op, types) {
                let id = BenchmarkId::new(kernel.data_type().name(), kernel.isa());
                let count = bytes / kernel.element_bytes();
                group.bench_function(id, |bencher| {
                    // SAFETY: both buffers hold `bytes`.
                    bencher.iter(|| unsafe { kernel.combine(black_box(a), a, black_box(b), count) });
                });
            }
        }
    }
}

/// `dst = a op b` with ordinary and with streaming stores.
fn apart(c: &mut Criterion) {
    for bytes in SIZES {
        let [mut dst, mut a, mut b] = [(); 3].map(|()| Buffer::new(bytes));
        let (dst, a, b) = (dst.as_mut_ptr(), a.as_mut_ptr(), b.as_mut_ptr());
        let mut group = c.benchmark_group(format!("sum/apart/{}", name(bytes)));
        group.throughput(Throughput::Bytes(bytes as u64));
        for kernel in kernels(ReduceOp::Sum, &[DataType::F32, DataType::BF16]) {
            let count = bytes / kernel.element_bytes();
            let id = BenchmarkId::new(kernel.data_type().name(), kernel.isa());
            group.bench_function(id, |bencher| {
                // SAFETY: all buffers hold `bytes`.
                bencher.iter(|| unsafe { kernel.combine(black_box(dst), black_box(a), black_box(b), count) });
            });
            let id = BenchmarkId::new(kernel.data_type().name(), format!("{}-streaming", kernel.isa()));
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    // SAFETY: all buffers hold `bytes`.
                    unsafe { kernel.combine_streaming(black_box(dst), black_box(a), black_box(b), count) }
                });
            });
        }
    }
}

/// Reduces four operands into one: one after another, and all together.
fn many(c: &mut Criterion) {
    for bytes in SIZES {
        let mut buffers: [_; 5] = std::array::from_fn(|_| Buffer::new(bytes));
        let [dst, sources @ ..] = buffers.each_mut().map(Buffer::as_mut_ptr);
        let sources = sources.map(<*mut u8>::cast_const);
        let mut group = c.benchmark_group(format!("sum/four/{}", name(bytes)));
        group.throughput(Throughput::Bytes(4 * bytes as u64));
        for data_type in [DataType::F32, DataType::BF16] {
            let Ok(kernel) = kernel_for(Isa::best(), data_type, ReduceOp::Sum) else { continue };
            let count = bytes / kernel.element_bytes();
            group.bench_function(BenchmarkId::new("in_turn", data_type), |bencher| {
                // SAFETY: all buffers hold `bytes`.
                bencher.iter(|| unsafe {
                    kernel.combine(black_box(dst), sources[0], sources[1], count);
                    kernel.combine(dst, dst, sources[2], count);
                    kernel.combine(dst, dst, sources[3], count);
                });
            });
            group.bench_function(BenchmarkId::new("together", data_type), |bencher| {
                // SAFETY: all buffers hold `bytes`.
                bencher.iter(|| unsafe { kernel.combine_many(black_box(dst), &sources, count) });
            });
        }
    }
}

/// Additional cost of Avg and PreMulSum.
fn scaling(c: &mut Criterion) {
    let bytes = SIZES[1];
    let mut a = Buffer::new(bytes);
    let a = a.as_mut_ptr();
    let mut group = c.benchmark_group(format!("scaling/{}", name(bytes)));
    group.throughput(Throughput::Bytes(bytes as u64));
    for data_type in DataType::ALL.into_iter().filter(|&t| t != DataType::Bool) {
        let count = bytes / data_type.size();
        group.bench_function(BenchmarkId::new("divide", data_type), |bencher| {
            // SAFETY: the buffer holds `bytes`.
            bencher.iter(|| unsafe { divide(data_type, black_box(a), count, 1) });
        });
        group.bench_function(BenchmarkId::new("scale", data_type), |bencher| {
            // SAFETY: the buffer holds `bytes`.
            bencher.iter(|| unsafe { scale(data_type, black_box(a), a, count, 1.0) });
        });
    }
}

/// Short runs suffice, since the kernels are regular and there are many of them.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .without_plots()
}

criterion_group! { name = all; config = config(); targets = in_place, apart, many, scaling }
criterion_main!(all);
