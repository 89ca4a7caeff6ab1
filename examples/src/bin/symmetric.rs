//! Symmetric buffers: an all-reduce in memory that all ranks of the host reach, compared with the same call on a
//! vector.
//!
//! ```text
//! symmetric --ranks 4
//! kolo run -n 4 -- symmetric
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

/// 16 MiB of `f32`.
const LEN: usize = 1 << 22;

const ROUNDS: u32 = 5;

fn main() -> ExitCode {
    cluster::main("All-reduces in symmetric buffers, and compares with ordinary memory", symmetric)
}

/// The work of each rank.
fn symmetric(ranks: &Communicator) -> Result<()> {
    let mut ordinary = vec![0.0; LEN];
    let without = time(ranks, &mut ordinary)?;
    // All ranks make this call, with the same length.
    let mut shared = ranks.alloc::<f32>(LEN)?;
    let with = time(ranks, &mut shared)?;
    if ordinary != shared[..] {
        return Err(format!("rank {}: the sums differ", ranks.rank()).into());
    }
    if ranks.rank() == 0 {
        println!("{} MiB, the same sums both times", (LEN * size_of::<f32>()) >> 20);
        println!("ordinary memory:   {:6.1} ms", 1e3 * without.as_secs_f64());
        println!("symmetric buffers: {:6.1} ms", 1e3 * with.as_secs_f64());
    }
    Ok(())
}

/// Returns the time of one all-reduce: the best of several.
fn time(ranks: &Communicator, buffer: &mut [f32]) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        buffer.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 1000) as f32);
        ranks.barrier()?;
        let start = Instant::now();
        ranks.all_reduce(buffer, ReduceOp::Sum)?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}
