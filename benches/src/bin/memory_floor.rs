//! How near all-reduce comes to what memory permits: `kolo run -n 2 -- memory_floor`.
//!
//! An all-reduce of S bytes on n ranks must read n S and write n S bytes of memory, S of each per rank. The floor is that
//! traffic without anything else: each rank adds the halves of its own buffer into each other, with nobody to wait for.
//! Floor, symmetric and private buffers are measured in turn in the same run, in memory of the same kind; the times are
//! the slowest rank's, and medians.

use std::error::Error;
use std::time::Instant;

use kolo::reduce::kernel;
use kolo::{Communicator, DataType, ReduceOp};

/// Handled at a time by the floor's second form: stays in the first-level cache.
const BLOCK: usize = 8 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut sizes: Vec<usize> = Vec::new();
    for argument in std::env::args().skip(1) {
        sizes.push(argument.parse::<usize>().map_err(|error| format!("{argument} MiB: {error}"))? << 20);
    }
    if sizes.is_empty() {
        sizes = (0..=8).map(|power| 1 << (20 + power)).collect();
    }
    let comm = Communicator::from_env()?;
    if comm.rank() == 0 {
        println!("{} ranks; microseconds, and the floor's time as a share of each", comm.world_size());
        println!("| MiB | floor | symmetric | | private | |");
        println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    }
    for bytes in sizes {
        let [floor, symmetric, private] = measure(&comm, bytes)?;
        if comm.rank() == 0 {
            let share = |time: f64| 100.0 * floor / time;
            println!(
                "| {} | {floor:.0} | {symmetric:.0} | {:.0}% | {private:.0} | {:.0}% |",
                bytes >> 20,
                share(symmetric),
                share(private)
            );
        }
    }
    Ok(())
}

/// Medians of the floor, of symmetric and of private buffers, in microseconds.
fn measure(comm: &Communicator, bytes: usize) -> kolo::Result<[f64; 3]> {
    let mut shared = comm.alloc::<f32>(bytes / 4)?;
    let mut own = vec![1.0_f32; bytes / 4];
    shared.fill(1.0);
    let rounds = ((1 << 30) / bytes).clamp(15, 200);
    let mut times = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        for (kind, times) in times.iter_mut().enumerate() {
            // Sums that grow without bound would become slow infinities.
            if kind == 2 || kind == 3 {
                if kind == 2 { &mut shared[..] } else { &mut own[..] }.fill(0.0);
            }
            comm.barrier()?;
            let begin = Instant::now();
            match kind {
                0 => fused(&mut shared),
                1 => blocked(&mut shared),
                2 => comm.all_reduce(&mut shared, ReduceOp::Sum)?,
                _ => comm.all_reduce(&mut own, ReduceOp::Sum)?,
            }
            // With more ranks than processors each does its part when it is its turn.
            comm.barrier()?;
            let mut took = [begin.elapsed().as_secs_f64() * 1e6];
            comm.all_reduce(&mut took, ReduceOp::Max)?;
            if round > 0 {
                times.push(took[0]);
            }
        }
    }
    let [fused, blocked, symmetric, private] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    Ok([fused.min(blocked), symmetric, private])
}

/// Both halves become their sum, in one loop.
fn fused(data: &mut [f32]) {
    let half = data.len() / 2;
    let (a, b) = data.split_at_mut(half);
    for (a, b) in a.iter_mut().zip(b) {
        // Halved, so that the values stay as they are.
        let sum = (*a + *b) * 0.5;
        *a = sum;
        *b = sum;
    }
}

/// The same with the library's kernel and a copy out of the cache.
fn blocked(data: &mut [f32]) {
    let Ok(kernel) = kernel(DataType::F32, ReduceOp::Max) else { return };
    let half = data.len() / 2;
    let (a, b) = data.split_at_mut(half);
    for (a, b) in a.chunks_mut(BLOCK / 4).zip(b.chunks_mut(BLOCK / 4)) {
        kernel.accumulate(bytes_of(a), bytes_of(b));
        b.copy_from_slice(a);
    }
}

fn bytes_of(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: floats have no padding, and every pattern of bits is a float.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
