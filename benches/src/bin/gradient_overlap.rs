//! Measures how much of the communication of a training step is hidden by computation, and its cost in processor time.
//!
//! `kolo run -n 2 -- gradient_overlap` makes the 161 gradients of ResNet-50 (He et al. 2016; 25.6 million numbers, 102
//! MB), last layer first, and all-reduces each as soon as it is there, or in buckets as DistributedDataParallel does.
//! It prints, as medians of several steps on the slowest rank:
//!
//! - the computation alone, the communication alone, and both at once;
//! - the share of the communication that was hidden: (computation + communication - both) / communication;
//! - processor seconds of all ranks per step, and those beyond the computation's.
//!
//! The computation is either that of a device (`--compute device`, the default): the thread sleeps for the gradient's
//! share of the time, like a process whose GPU works. Or it is this processor's (`--compute processor`): a fixed amount
//! of arithmetic, which takes longer if communication takes the processor away from it. `--fuse KIB` collects gradients
//! into buckets.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp, Result};
use rustix::time::{ClockId, clock_gettime};

/// Returns the elements of each gradient, in the order in which the backward pass makes them.
fn gradients() -> Vec<usize> {
    let mut sizes = vec![64 * 3 * 7 * 7, 64, 64];
    let mut inputs = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            sizes.extend([inputs * width, width, width]);
            sizes.extend([width * width * 9, width, width]);
            sizes.extend([width * width * 4, width * 4, width * 4]);
            if block == 0 {
                sizes.extend([inputs * width * 4, width * 4, width * 4]);
            }
            inputs = width * 4;
        }
    }
    sizes.extend([1000 * inputs, 1000]);
    sizes.reverse();
    sizes
}

/// Joins neighbouring gradients until a bucket has at least `least` elements.
fn fused(sizes: &[usize], least: usize) -> Vec<usize> {
    let mut buckets = Vec::new();
    let mut open = 0;
    for size in sizes {
        open += size;
        if open >= least {
            buckets.push(std::mem::take(&mut open));
        }
    }
    if open > 0 {
        buckets.push(open);
    }
    buckets
}

#[derive(Clone, Copy, PartialEq)]
enum Compute {
    Device,
    Processor,
}

/// Work of a backward pass, distributed by the size of the gradients.
struct Work {
    compute: Compute,
    step: Duration,
    /// Rounds of arithmetic per second of this processor, measured at the start.
    rounds_per_second: f64,
}

impl Work {
    fn new(compute: Compute, step: Duration) -> Self {
        let begin = Instant::now();
        let rounds = 20_000_000;
        arithmetic(rounds);
        Self { compute, step, rounds_per_second: rounds as f64 / begin.elapsed().as_secs_f64() }
    }

    /// Computes from one share of the step to another; `begin` is the time at which the step began.
    fn advance(&self, begin: Instant, from: f64, to: f64) {
        match self.compute {
            Compute::Device => {
                let until = begin + self.step.mul_f64(to);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            Compute::Processor => {
                arithmetic((self.step.as_secs_f64() * (to - from) * self.rounds_per_second) as u64);
            }
        }
    }
}

fn arithmetic(rounds: u64) {
    let mut x = black_box(1.000_000_1_f64);
    for _ in 0..rounds {
        x = x.mul_add(0.999_999_9, 1e-9);
    }
    black_box(x);
}

/// Time of one kind of step.
struct Took {
    seconds: f64,
    processor_seconds: f64,
}

/// Runs a kind of step several times. All ranks get the same medians.
fn measure(comm: &Communicator, steps: usize, mut step: impl FnMut() -> Result<()>) -> Result<Took> {
    step()?;
    let mut seconds = Vec::new();
    let own = process_seconds();
    for _ in 0..steps {
        comm.barrier()?;
        let begin = Instant::now();
        step()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    let mut spent = [process_seconds() - own];
    comm.all_reduce(&mut spent, ReduceOp::Sum)?;
    comm.all_reduce(&mut seconds, ReduceOp::Max)?;
    seconds.sort_by(f64::total_cmp);
    Ok(Took { seconds: seconds[steps / 2], processor_seconds: spent[0] / steps as f64 })
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let (mut compute, mut step, mut least, mut steps) = (Compute::Device, None, 0, 11);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match (name.as_str(), value.as_str()) {
            ("--compute", "device") => compute = Compute::Device,
            ("--compute", "processor") => compute = Compute::Processor,
            ("--step-ms", _) => step = Some(Duration::from_secs_f64(value.parse::<f64>()? * 1e-3)),
            ("--fuse", _) => least = value.parse::<usize>()? * 1024 / size_of::<f32>(),
            ("--steps", _) => steps = value.parse::<usize>()?.max(1),
            _ => return Err(format!("there is no option {name} {value}").into()),
        }
    }
    let comm = Communicator::from_env()?;
    let sizes = gradients();
    let buckets = fused(&sizes, least);
    let total: usize = sizes.iter().sum();
    let mut memory: Vec<Vec<f32>> = buckets.iter().map(|size| vec![1.0; *size]).collect();

    let mut communicate = |work: Option<&Work>| {
        let begin = Instant::now();
        comm.scope(|scope| {
            let mut done = 0;
            for bucket in &mut memory {
                let from = done as f64 / total as f64;
                done += bucket.len();
                if let Some(work) = work {
                    work.advance(begin, from, done as f64 / total as f64);
                }
                scope.all_reduce(bucket, ReduceOp::Avg)?;
            }
            Ok(())
        })
    };
    let alone = measure(&comm, steps, || communicate(None))?;
    // By default computation takes as long as communication, so that all communication could just be hidden.
    let work = Work::new(compute, step.unwrap_or(Duration::from_secs_f64(alone.seconds)));
    let computing = measure(&comm, steps, || {
        work.advance(Instant::now(), 0.0, 1.0);
        Ok(())
    })?;
    let both = measure(&comm, steps, || communicate(Some(&work)))?;
    if comm.rank() == 0 {
        let kind = if compute == Compute::Device { "a device" } else { "this processor" };
        println!(
            "{} gradients of {:.1} MB in {} all-reduces, {} ranks, {}, computed by {kind}",
            sizes.len(),
            (total * size_of::<f32>()) as f64 * 1e-6,
            buckets.len(),
            comm.world_size(),
            comm.summary(),
        );
        for (name, took) in [("computation", &computing), ("communication", &alone), ("both at once", &both)]
        {
            println!(
                "{name:>14}: {:8.2} ms, {:8.2} ms of processors",
                took.seconds * 1e3,
                took.processor_seconds * 1e3
            );
        }
        let hidden = (computing.seconds + alone.seconds - both.seconds) / alone.seconds;
        let cost = both.processor_seconds - computing.processor_seconds;
        println!("        hidden: {:.0} % of the communication", hidden * 100.0);
        println!("          cost: {:.2} ms of processors per step beyond the computation", cost * 1e3);
    }
    Ok(())
}

/// Processor time of this process, over all threads.
fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_those_of_resnet_50() {
        assert_eq!((gradients().len(), gradients().iter().sum::<usize>()), (161, 25_557_032));
    }

    #[test]
    fn buckets_keep_everything() {
        let sizes = gradients();
        for least in [0, 1, 1 << 20, usize::MAX] {
            assert_eq!(fused(&sizes, least).iter().sum::<usize>(), 25_557_032);
        }
        assert_eq!(fused(&sizes, 0).len(), 161);
        assert_eq!(fused(&sizes, usize::MAX).len(), 1);
    }
}
