//! Overlap: buckets are computed one after another, and each is all-reduced while the next ones are being computed.
//!
//! ```text
//! overlap --ranks 2
//! kolo run -n 2 -- overlap
//! ```
//!
//! Overlap helps if processors are idle in the blocking version: with fewer ranks than processors, or with a network
//! between the ranks.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

/// Number of buckets, and elements in each: 1 MiB.
const BUCKETS: u32 = 16;
const LEN: u32 = 1 << 18;

fn main() -> ExitCode {
    cluster::main("All-reduces buckets while computing the next ones, and compares the time", overlap)
}

/// The work of each rank.
fn overlap(ranks: &Communicator) -> Result<()> {
    one_after_another(ranks)?; // Makes connections, so that neither version pays for them.
    ranks.barrier()?;
    let (expected, blocking) = one_after_another(ranks)?;
    ranks.barrier()?;
    let (sums, overlapped) = at_the_same_time(ranks)?;
    let difference = greatest_difference(&sums, &expected);
    // Blocking and started calls may add in different orders.
    if difference > 1e-6 {
        return Err(format!("rank {}: the sums differ by {difference:e}", ranks.rank()).into());
    }
    if ranks.rank() == 0 {
        let rounding =
            if difference == 0.0 { "" } else { " but for rounding (KOLO_DETERMINISM=canonical: none)" };
        println!("{BUCKETS} buckets of {} KiB, the same sums both times{rounding}", LEN >> 8);
        println!("one after another: {:6.1} ms", 1e3 * blocking.as_secs_f64());
        println!("at the same time:  {:6.1} ms", 1e3 * overlapped.as_secs_f64());
    }
    Ok(())
}

fn one_after_another(ranks: &Communicator) -> Result<(Vec<Vec<f32>>, Duration)> {
    let start = Instant::now();
    let mut sums = Vec::new();
    for index in 0..BUCKETS {
        let mut bucket = compute(index, ranks.rank());
        ranks.all_reduce(&mut bucket, ReduceOp::Sum)?;
        sums.push(bucket);
    }
    Ok((sums, start.elapsed()))
}

fn at_the_same_time(ranks: &Communicator) -> Result<(Vec<Vec<f32>>, Duration)> {
    let start = Instant::now();
    let mut works = Vec::new();
    for index in 0..BUCKETS {
        works.push(ranks.all_reduce_start(compute(index, ranks.rank()), ReduceOp::Sum)?);
    }
    let sums = works.into_iter().map(|work| Ok(work.wait()?)).collect::<Result<_>>()?;
    Ok((sums, start.elapsed()))
}

/// Returns the greatest relative difference between the sums and the expected values.
fn greatest_difference(sums: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let pairs = sums.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f32::max)
}

/// Computes a bucket's values on a rank.
fn compute(index: u32, rank: u32) -> Vec<f32> {
    let scale = 1e-6 * (1 + index + rank) as f32;
    (0..LEN).map(|i| (0..16).fold(i as f32 * scale, |x, _| (x * 1.1 + 0.3).sqrt())).collect()
}
