//! Compares all-reduce with the limit set by memory: `kolo run -n 2 -- memory_floor [MiB ...]`.
//!
//! An all-reduce of S bytes on n ranks must read n S and write n S bytes of memory, S of each per rank. The floor is
//! this traffic alone: each rank adds the halves of its own buffer into each other, without waiting for any other rank.
//! Symmetric buffers are compared with the floor. Private buffers are compared with a plain program that moves them
//! through shared staging (`kolo_benches::staged`) and pins its ranks to processors, as suits it. All are run in turn,
//! in memory of the same kind; times are medians over the slowest rank.

use std::error::Error;
use std::time::Instant;

use kolo::internal::reduce::kernel;
use kolo::{Communicator, DataType, ReduceOp};
use kolo_benches::limit::{HEAD, Row, Unit, median};
use kolo_benches::processors;
use kolo_benches::staged::Staged;

/// Bytes that the second form of the floor handles at a time: they stay in the first-level cache.
const BLOCK: usize = 8 << 10;

/// Blocks of the staged program. Which is better depends on ranks and machine, and the better one counts.
const STAGED_BLOCKS: [usize; 2] = [128 << 10, 512 << 10];

/// Share of the floor that symmetric buffers are to reach with one processor for each rank.
const SYMMETRIC_SHARE: f64 = 0.8;
/// The lengths from which the targets hold: that share, and being as fast as the staged program.
const SYMMETRIC_FROM: usize = 64 << 20;
const STAGED_FROM: usize = 32 << 20;

/// Kinds of measurement, made in turn.
#[derive(Clone, Copy)]
enum Kind {
    FusedFloor,
    BlockedFloor,
    Symmetric,
    Staged(usize),
    Private,
}

const KINDS: [Kind; 6] =
    [Kind::FusedFloor, Kind::BlockedFloor, Kind::Symmetric, Kind::Staged(0), Kind::Staged(1), Kind::Private];

fn main() -> Result<(), Box<dyn Error>> {
    let mut sizes: Vec<usize> = Vec::new();
    for argument in std::env::args().skip(1) {
        sizes.push(argument.parse::<usize>().map_err(|error| format!("{argument} MiB: {error}"))? << 20);
    }
    if sizes.is_empty() {
        sizes = (0..=8).map(|power| 1 << (20 + power)).collect();
    }
    let comm = Communicator::from_env()?;
    let staged = [Staged::new(&comm, STAGED_BLOCKS[0])?, Staged::new(&comm, STAGED_BLOCKS[1])?];
    let ranks = comm.world_size();
    if comm.rank() == 0 {
        println!("{HEAD}");
    }
    for bytes in sizes {
        let [fused, blocked, symmetric, one, other, private] = measure(&comm, &staged, bytes)?;
        if comm.rank() != 0 {
            continue;
        }
        let row = |what, possible, kolo, target| {
            println!("{}", Row { what, ranks, bytes, unit: Unit::Micros, possible, kolo, target });
        };
        let own_processor = ranks as usize <= std::thread::available_parallelism()?.get();
        let target = (own_processor && bytes >= SYMMETRIC_FROM).then_some(SYMMETRIC_SHARE);
        row("memory traffic: all_reduce, symmetric buffers", fused.min(blocked), symmetric, target);
        let target = (bytes >= STAGED_FROM).then_some(1.0);
        row("plain staging: all_reduce, private buffers", one.min(other), private, target);
    }
    Ok(())
}

/// Returns medians in microseconds, in the order of [`KINDS`].
fn measure(
    comm: &Communicator,
    staged: &[Staged; 2],
    bytes: usize,
) -> Result<[f64; KINDS.len()], Box<dyn Error>> {
    let mut shared = comm.alloc::<f32>(bytes / 4)?;
    let mut own = vec![1.0_f32; bytes / 4];
    let allowed = processors::allowed()?;
    let home = allowed[comm.rank() as usize % allowed.len()];
    shared.fill(1.0);
    let rounds = ((1 << 30) / bytes).clamp(15, 200);
    let mut times = [const { Vec::new() }; KINDS.len()];
    for round in 0..=rounds {
        for (kind, times) in KINDS.iter().zip(&mut times) {
            // The values are reset, since sums that grow without bound would become infinities, which are slow.
            match kind {
                Kind::Symmetric => shared.fill(0.0),
                Kind::Staged(_) | Kind::Private => own.fill(0.0),
                Kind::FusedFloor | Kind::BlockedFloor => {}
            }
            if matches!(kind, Kind::Staged(_)) {
                processors::pin(home)?;
            }
            comm.barrier()?;
            let begin = Instant::now();
            match *kind {
                Kind::FusedFloor => fused(&mut shared),
                Kind::BlockedFloor => blocked(&mut shared),
                Kind::Symmetric => comm.all_reduce(&mut shared, ReduceOp::Sum)?,
                Kind::Staged(which) => staged[which].all_reduce(&mut own),
                Kind::Private => comm.all_reduce(&mut own, ReduceOp::Sum)?,
            }
            // With more ranks than processors, each rank does its part in its turn.
            comm.barrier()?;
            let mut took = [begin.elapsed().as_secs_f64() * 1e6];
            if matches!(kind, Kind::Staged(_)) {
                processors::allow(&allowed)?;
            }
            comm.all_reduce(&mut took, ReduceOp::Max)?;
            if round > 0 {
                times.push(took[0]);
            }
        }
    }
    Ok(times.map(median))
}

/// Replaces both halves by their mean, in one loop.
fn fused(data: &mut [f32]) {
    let half = data.len() / 2;
    let (a, b) = data.split_at_mut(half);
    for (a, b) in a.iter_mut().zip(b) {
        // Halved, so that the values do not grow.
        let sum = (*a + *b) * 0.5;
        *a = sum;
        *b = sum;
    }
}

/// The same with the library's kernel and a copy from the cache.
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
