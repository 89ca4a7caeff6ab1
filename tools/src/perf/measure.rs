//! Measures one cell of the table: times an operation, then checks its data.

use std::time::Instant;

use super::buffers::{Buffers, Operation, Placement};
use super::row::{Iterations, Measurement};
use super::settings::{Average, Blocking, Settings};
use super::test::Bandwidth;
use crate::backend::Comm;
use crate::error::Result;

/// Seed of the data that is timed, as in nccl-tests; the seeds of checks count up from 1.
const TIMED_SEED: u64 = 99;

/// State of the measurements on one rank.
pub(crate) struct Bench<'a> {
    /// The options.
    pub settings: &'a Settings,
    /// The communicator of all ranks.
    pub world: &'a dyn Comm,
    /// The ranks that work together: all, or a part of them.
    pub group: &'a dyn Comm,
    /// Its buffers.
    pub buffers: Buffers,
    /// Origin of the timestamps.
    pub epoch: Instant,
    /// Checks made so far.
    pub checks: u64,
    /// Checks that found something wrong, on this rank.
    pub failed_checks: u64,
}

/// One rank's times in seconds: per operation, and per iteration if requested.
struct Timing {
    /// Until an operation is complete.
    completed: f64,
    /// Until an operation is started, with the waits that `-z` puts between operations.
    started: f64,
    iterations: Vec<f64>,
}

impl Bench<'_> {
    /// Runs an operation without timing it.
    pub(crate) fn warm_up(&mut self, operation: &Operation) -> Result<()> {
        for iteration in 0..self.settings.warmups {
            self.buffers.run(self.group, operation, Placement::OutOfPlace, iteration)?;
        }
        Ok(())
    }

    /// Times and checks an operation in one placement.
    pub(crate) fn measure(&mut self, operation: &Operation, placement: Placement) -> Result<Measurement> {
        let (rank, ranks) = (self.group.rank(), self.group.world_size());
        if self.settings.checks > 0 {
            self.buffers.fill(operation, placement, rank, ranks, TIMED_SEED)?;
        }
        self.buffers.run(self.group, operation, placement, 0)?;
        self.world.barrier()?;
        let timing = self.time(operation, placement)?;
        let everybody = self.share_times(&timing)?;
        let (seconds, bandwidth) = time_and_bandwidth(self.settings, operation, ranks, &everybody);
        self.world.barrier()?;
        let wrong = self.check(operation, placement)?;
        Ok(Measurement { seconds, bandwidth, wrong, iterations: self.iterations(everybody) })
    }

    fn time(&mut self, operation: &Operation, placement: Placement) -> Result<Timing> {
        let settings = self.settings;
        let detailed = settings.per_iteration.wanted();
        let is_cut_out = settings.blocking == Blocking::UntimedBarrier;
        let mut timing = Timing { completed: 0.0, started: 0.0, iterations: Vec::new() };
        let began = self.now();
        for iteration in 0..settings.iterations {
            if !detailed && !is_cut_out {
                // Reading the clock takes as long as an exchange of a few bytes.
                timing.started += self.iterate(operation, placement, iteration)?;
                continue;
            }
            let iteration_began = self.now();
            timing.started += self.iterate(operation, placement, iteration)?;
            let seconds = self.now() - iteration_began;
            if detailed {
                timing.iterations.push(seconds / settings.aggregated as f64);
            }
            if is_cut_out {
                timing.completed += seconds;
                self.world.barrier()?;
            }
        }
        if !is_cut_out {
            timing.completed = self.now() - began;
        }
        if settings.blocking != Blocking::No {
            // The next operation is started when this one is complete.
            timing.started = timing.completed;
        }
        let operations = (settings.iterations * settings.aggregated) as f64;
        timing.completed /= operations;
        timing.started /= operations;
        Ok(timing)
    }

    /// Runs one timed iteration. Returns the seconds that starting the operations took, if that is measured
    /// separately.
    fn iterate(&mut self, operation: &Operation, placement: Placement, iteration: usize) -> Result<f64> {
        let settings = self.settings;
        let (group, epoch) = (self.group, self.epoch);
        let numbers = iteration * settings.aggregated..(iteration + 1) * settings.aggregated;
        let each_alone = matches!(settings.blocking, Blocking::WaitAndBarrier | Blocking::Wait);
        if !each_alone && (settings.aggregated > 1 || settings.start_time) {
            let now = || epoch.elapsed().as_secs_f64();
            return self.buffers.run_together(group, operation, placement, numbers, now);
        }
        for number in numbers {
            self.buffers.run(group, operation, placement, number)?;
            if settings.blocking == Blocking::WaitAndBarrier {
                self.world.barrier()?;
            }
        }
        Ok(0.0)
    }

    /// Returns the number of wrong elements over all ranks; `None` if nothing is checked. Stops at the first
    /// pass that finds some.
    fn check(&mut self, operation: &Operation, placement: Placement) -> Result<Option<u64>> {
        if self.settings.checks == 0 || !operation.test.checks(placement == Placement::InPlace) {
            return Ok(None);
        }
        let (rank, ranks) = (self.group.rank(), self.group.world_size());
        for _ in 0..self.settings.checks {
            self.checks += 1;
            self.buffers.fill(operation, placement, rank, ranks, self.checks)?;
            self.buffers.run(self.group, operation, placement, 0)?;
            let own = self.buffers.count_wrong(operation, placement, rank, ranks, self.checks)?;
            self.failed_checks += u64::from(own > 0);
            let wrong = self.sum(own)?;
            if wrong > 0 {
                return Ok(Some(wrong));
            }
        }
        Ok(Some(0))
    }

    /// Returns the sum of all ranks' numbers.
    pub(crate) fn sum(&self, own: u64) -> Result<u64> {
        Ok(self.world.share(&own.to_le_bytes())?.iter().map(|bytes| number(bytes)).sum())
    }

    /// Returns the least of all ranks' numbers.
    pub(crate) fn least(&self, own: u64) -> Result<u64> {
        Ok(self.world.share(&own.to_le_bytes())?.iter().map(|bytes| number(bytes)).min().unwrap_or(own))
    }

    fn share_times(&self, timing: &Timing) -> Result<Vec<Timing>> {
        let times = [timing.completed, timing.started].into_iter().chain(timing.iterations.iter().copied());
        let bytes: Vec<u8> = times.flat_map(f64::to_le_bytes).collect();
        let everybody = self.world.share(&bytes)?;
        Ok(everybody
            .iter()
            .map(|bytes| {
                let mut times = bytes.chunks(8).map(|bytes| f64::from_bits(number(bytes)));
                let mut next = || times.next().unwrap_or(0.0);
                Timing { completed: next(), started: next(), iterations: times.collect() }
            })
            .collect())
    }

    fn iterations(&self, everybody: Vec<Timing>) -> Option<Iterations> {
        let per_rank: Vec<Vec<f64>> = everybody.into_iter().map(|timing| timing.iterations).collect();
        Iterations::of(per_rank, self.settings.per_iteration.skip)
    }

    fn now(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64()
    }
}

/// Returns the time that the table shows, and the bandwidth, which is that of complete operations also if their start is
/// shown.
fn time_and_bandwidth(
    settings: &Settings,
    operation: &Operation,
    ranks: u32,
    everybody: &[Timing],
) -> (f64, Bandwidth) {
    let combined = |time: fn(&Timing) -> f64| average(settings.average, everybody.iter().map(time));
    let completed = combined(|timing| timing.completed);
    let shown = if settings.start_time { combined(|timing| timing.started) } else { completed };
    let element_bytes = operation.element.data_type.size() as u64;
    let bandwidth = operation.test.bandwidth(&operation.counts, element_bytes, completed, u64::from(ranks));
    (shown, bandwidth)
}

fn average(how: Average, times: impl ExactSizeIterator<Item = f64>) -> f64 {
    let ranks = times.len() as f64;
    match how {
        Average::Rank0 => times.into_iter().next().unwrap_or(0.0),
        Average::Mean => times.sum::<f64>() / ranks,
        Average::Least => times.fold(f64::INFINITY, f64::min),
        Average::Greatest => times.fold(0.0, f64::max),
    }
}

/// Reads eight bytes as a number; missing bytes count as zero.
fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    let len = bytes.len().min(8);
    whole[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(whole)
}

#[cfg(test)]
mod tests {
    use super::super::pieces::Skew;
    use super::*;
    use crate::cli::parse_perf;

    #[test]
    fn times_of_the_ranks_become_one() {
        let times = || [2.0, 1.0, 6.0].into_iter();
        assert_eq!(average(Average::Rank0, times()), 2.0);
        assert_eq!(average(Average::Mean, times()), 3.0);
        assert_eq!(average(Average::Least, times()), 1.0);
        assert_eq!(average(Average::Greatest, times()), 6.0);
    }

    #[test]
    fn start_times_have_the_bandwidth_of_complete_operations() {
        let measured = |line: &str| {
            let settings = Settings::new(&parse_perf(line.split(' ')).unwrap(), None).unwrap();
            let (counts, blocks) = settings.test.counts_and_blocks(1_000_000, 4, 2, Skew { spread: 0.0 });
            let (element, op) = (settings.types[0], settings.ops[0]);
            let operation = Operation { test: settings.test, counts, element, op, root: 0, blocks };
            let timing = |started, completed| Timing { completed, started, iterations: Vec::new() };
            let (seconds, bandwidth) =
                time_and_bandwidth(&settings, &operation, 2, &[timing(1e-3, 4e-3), timing(3e-3, 6e-3)]);
            (seconds, bandwidth.algorithm)
        };
        // A megabyte in the mean of 4 and 6 ms, and in the greatest time.
        assert_eq!(measured("all_reduce"), (5e-3, 0.2));
        assert_eq!(measured("all_reduce -C 1"), (2e-3, 0.2));
        assert_eq!(measured("all_reduce -C 1 -a 3"), (3e-3, 1e6 / 6e-3 / 1e9));
    }
}
