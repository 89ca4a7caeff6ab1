//! Benchmarks copies as the shared-memory transport makes them: ordinary copies into and out of its rings, and
//! streaming copies out of them for long messages.
//!
//! The sizes fit into the first-level cache, into the second, and only into memory.
//! `cargo bench -p kolo-benches --bench copy`.

use std::hint::black_box;
use std::ptr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kolo_transport::shm::copy_streaming;

/// Length of the memory through which copies walk, as source or destination.
const SPANS: [usize; 3] = [16 << 10, 512 << 10, 64 << 20];
/// Bytes of one copy: those of a slot, and those of a block of staged calls.
const PIECES: [usize; 2] = [16 << 10, 128 << 10];

type Copy = unsafe fn(*const u8, *mut u8, usize);

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
unsafe fn ordinary(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

fn copies(c: &mut Criterion) {
    for span in SPANS {
        let from = vec![1_u8; span];
        let mut to = vec![2_u8; span];
        for piece in PIECES.into_iter().filter(|piece| *piece <= span) {
            let mut group = c.benchmark_group(format!("copy/{}KiB", span >> 10));
            group.throughput(Throughput::Bytes(span as u64));
            for (name, copy) in [("ordinary", ordinary as Copy), ("streaming", copy_streaming as Copy)] {
                group.bench_function(BenchmarkId::new(name, format!("{}KiB", piece >> 10)), |bencher| {
                    bencher.iter(|| {
                        for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
                            // SAFETY: both are pieces of one length, of two vectors.
                            unsafe { copy(black_box(from.as_ptr()), to.as_mut_ptr(), from.len()) }
                        }
                    });
                });
            }
        }
    }
}

/// Short runs suffice, since the loops are regular.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(300))
        .without_plots()
}

criterion_group! { name = all; config = config(); targets = copies }
criterion_main!(all);
