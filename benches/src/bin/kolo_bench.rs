//! Kolo's side of the comparison with its peers: the loop of `benches/peers/mpi_bench.c`, over Kolo.
//!
//! `kolo run -n 4 -- kolo_bench --collectives all_reduce --sizes 8,1048576` prints one JSON object for each point.
//! `benches/peers/README.md` describes the method, which all programs of the comparison share.

use std::error::Error;
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp, Result};
use rustix::time::{ClockId, clock_gettime};

/// Least duration of a sample, so that reading the clock does not matter.
const SAMPLE_SECONDS: f64 = 300e-6;
/// Least operations of a sample, if they are shorter than [`SINGLE_SECONDS`]. Ranks that are out of step by the way of
/// a message hand that lead to and fro, so the slowest rank's time of a single operation would count it each time.
const LEAST_BATCH: usize = 4;
const SINGLE_SECONDS: f64 = 150e-3;
/// A sample this long needs no further samples, and no second attempt.
const SLOW_SECONDS: f64 = 50e-3;
/// No further estimates are made after this time.
const ESTIMATE_SECONDS: f64 = 0.25;
/// Limit on the number of estimates.
const ESTIMATES: usize = 5;
/// Limits on the samples of a point: least, least for slow operations, and most.
const MIN_SAMPLES: usize = 5;
const MIN_SLOW_SAMPLES: usize = 2;
const MAX_SAMPLES: usize = 200;
/// Share of the machine's processor time used by other processes above which a point counts as disturbed.
const DISTURBED: f64 = 0.10;
/// Each batch of a long sample takes at most this part (an eighth) of the time that is left.
const LASTING_PARTS: f64 = 8.0;
/// Results are checked up to this size.
const CHECKED_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    AllToAll,
    Barrier,
}

impl Operation {
    const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::Barrier,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        }
    }

    fn parse(name: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.name() == name)
            .ok_or_else(|| format!("there is no collective {name:?}"))
    }
}

/// The command line.
struct Options {
    operations: Vec<Operation>,
    sizes: Vec<usize>,
    /// Time for all samples of one point.
    budget: Duration,
    /// Number of times that a disturbed point is repeated.
    retries: usize,
    /// If given, a point is one sample that lasts at least this long: if other processes want the processors, ranks are
    /// absent for milliseconds, which short samples do not show.
    mean: Option<Duration>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> std::result::Result<Self, Box<dyn Error>> {
        let mut options = Self {
            operations: Operation::ALL.to_vec(),
            sizes: vec![8, 1 << 10, 1 << 20],
            budget: Duration::from_millis(60),
            retries: 2,
            mean: None,
        };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--collectives" => {
                    options.operations =
                        value.split(',').map(Operation::parse).collect::<std::result::Result<_, _>>()?;
                }
                "--sizes" => {
                    options.sizes =
                        value.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
                }
                "--budget-ms" => options.budget = Duration::from_secs_f64(value.parse::<f64>()? * 1e-3),
                "--retries" => options.retries = value.parse()?,
                "--mean-ms" => options.mean = Some(Duration::from_secs_f64(value.parse::<f64>()? * 1e-3)),
                _ => return Err(format!("there is no option {name:?}").into()),
            }
        }
        Ok(options)
    }
}

/// One rank: its communicator, its buffers, and a count of operations that determines the root of broadcasts.
struct Bench {
    comm: Communicator,
    ranks: usize,
    send: Vec<f32>,
    receive: Vec<f32>,
    turn: usize,
}

#[derive(Clone, Copy, Debug)]
enum Sampling {
    /// This many samples of this many operations.
    Short { batch: usize, samples: usize },
    /// One sample that lasts at least this long.
    Long(Duration),
}

/// The samples of one attempt in ascending order, in seconds per operation, and the operations of one sample; the
/// processor seconds per operation, of all ranks together; and how disturbed the attempt was.
struct Attempt {
    samples: Vec<f64>,
    batch: usize,
    processor_seconds: f64,
    foreign: f64,
    /// Begin and end, by the monotonic clock, in seconds.
    from: f64,
    to: f64,
}

impl Bench {
    fn new(comm: Communicator, max_bytes: usize) -> Self {
        let ranks = comm.world_size() as usize;
        let elements = (max_bytes / 4).max(ranks);
        Self { comm, ranks, send: vec![0.0; elements], receive: vec![0.0; elements], turn: 0 }
    }

    /// Returns the elements of one rank's part; if a size has less than one element per rank, the part is one element.
    fn part(&self, bytes: usize) -> usize {
        (bytes / 4 / self.ranks).max(1)
    }

    /// Sets the memory that an operation of this size touches.
    fn fill(&mut self, bytes: usize, value: f32) {
        let elements = (bytes / 4).max(self.part(bytes) * self.ranks);
        self.send[..elements].fill(value);
        self.receive[..elements].fill(value);
    }

    fn once(&mut self, operation: Operation, bytes: usize) -> Result<()> {
        let (whole, part) = ((bytes / 4).max(1), self.part(bytes));
        let parts = part * self.ranks;
        let root = (self.turn % self.ranks) as u32;
        self.turn += 1;
        match operation {
            Operation::AllReduce => self.comm.all_reduce(&mut self.receive[..whole], ReduceOp::Sum),
            Operation::ReduceScatter => {
                self.comm.reduce_scatter(&self.send[..parts], &mut self.receive[..part], ReduceOp::Sum)
            }
            Operation::AllGather => self.comm.all_gather(&self.send[..part], &mut self.receive[..parts]),
            Operation::Broadcast => self.comm.broadcast(&mut self.receive[..whole], root),
            Operation::AllToAll => self.comm.all_to_all(&self.send[..parts], &mut self.receive[..parts]),
            Operation::Barrier => self.comm.barrier(),
        }
    }

    /// Returns the seconds per operation on this rank.
    fn timed(&mut self, operation: Operation, bytes: usize, batch: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..batch {
            self.once(operation, bytes)?;
        }
        Ok(start.elapsed().as_secs_f64() / batch as f64)
    }

    /// As [`Self::timed`], for at least `limit`; also returns the number of operations. Rank 0 decides when to stop,
    /// which it checks a few times per sample.
    fn lasting(&mut self, operation: Operation, bytes: usize, limit: Duration) -> Result<(usize, f64)> {
        let start = Instant::now();
        let (mut count, mut batch) = (0, [1_u64]);
        while batch[0] > 0 {
            self.timed(operation, bytes, batch[0] as usize)?;
            count += batch[0] as usize;
            let (elapsed, limit) = (start.elapsed().as_secs_f64(), limit.as_secs_f64());
            let wanted = (limit - elapsed) * count as f64 / elapsed / LASTING_PARTS;
            batch[0] = if elapsed < limit { (wanted as u64 + 1).min(2 * batch[0]) } else { 0 };
            self.comm.broadcast(&mut batch, 0)?;
        }
        Ok((count, start.elapsed().as_secs_f64() / count as f64))
    }

    /// As [`Self::timed`] on the slowest rank; all ranks get the same number.
    fn agreed(&mut self, operation: Operation, bytes: usize, batch: usize) -> Result<f64> {
        let mut seconds = [self.timed(operation, bytes, batch)?];
        self.comm.all_reduce(&mut seconds, ReduceOp::Max)?;
        Ok(seconds[0])
    }

    /// Runs the operation once on data whose result is known, and returns whether the result is right.
    fn check(&mut self, operation: Operation, bytes: usize) -> Result<bool> {
        let own = (self.comm.rank() + 1) as f32;
        let (whole, part, ranks) = ((bytes / 4).max(1), self.part(bytes), self.ranks);
        self.fill(bytes, own);
        self.turn = 0;
        self.once(operation, bytes)?;
        let total = (ranks * (ranks + 1) / 2) as f32;
        let all = |values: &[f32], expected: f32| values.iter().all(|&value| value == expected);
        let right = match operation {
            Operation::AllReduce => all(&self.receive[..whole], total),
            Operation::ReduceScatter => all(&self.receive[..part], total),
            Operation::Broadcast => all(&self.receive[..whole], 1.0),
            Operation::AllGather | Operation::AllToAll => {
                (0..ranks).all(|rank| all(&self.receive[rank * part..(rank + 1) * part], (rank + 1) as f32))
            }
            Operation::Barrier => true,
        };
        Ok(right)
    }

    /// Returns the operations of one sample, and the seconds of one operation: the least of some tries, since an
    /// interrupted one would cost the point its samples.
    fn estimate(&mut self, operation: Operation, bytes: usize) -> Result<(usize, f64)> {
        let mut seconds = self.agreed(operation, bytes, 1)?;
        let mut spent = seconds;
        for _ in 1..ESTIMATES {
            if spent >= ESTIMATE_SECONDS {
                break;
            }
            let batch = (1e-3 / seconds) as usize + 1;
            let again = self.agreed(operation, bytes, batch)?;
            spent += again * batch as f64;
            seconds = seconds.min(again);
        }
        let mut batch = (SAMPLE_SECONDS / seconds) as usize + 1;
        if operation == Operation::Broadcast {
            if seconds < SLOW_SECONDS {
                batch = batch.next_multiple_of(self.ranks);
            }
        } else if seconds < SINGLE_SECONDS {
            batch = batch.max(LEAST_BATCH);
        }
        Ok((batch, seconds))
    }

    fn attempt(&mut self, operation: Operation, bytes: usize, sampling: Sampling) -> Result<Attempt> {
        let (machine, own, from) = (machine_seconds(), process_seconds(), seconds_of(ClockId::Monotonic));
        self.comm.barrier()?;
        let (batch, mut times) = match sampling {
            Sampling::Short { batch, samples } => {
                let mut times = Vec::with_capacity(samples);
                for _ in 0..samples {
                    // A root leaves its broadcast early, and would count the rest of it as time of the next one.
                    if operation == Operation::Broadcast && batch < self.ranks {
                        self.comm.barrier()?;
                    }
                    times.push(self.timed(operation, bytes, batch)?);
                }
                (batch, times)
            }
            Sampling::Long(limit) => {
                let (batch, seconds) = self.lasting(operation, bytes, limit)?;
                (batch, vec![seconds])
            }
        };
        self.comm.barrier()?;
        let mut ours = [process_seconds() - own];
        let (busy, to) = (machine_seconds() - machine, seconds_of(ClockId::Monotonic));
        self.comm.all_reduce(&mut ours, ReduceOp::Sum)?;
        self.comm.all_reduce(&mut times, ReduceOp::Max)?;
        times.sort_by(f64::total_cmp);
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        // All ranks must agree on whether to try again.
        let mut foreign = [((busy - ours[0]) / (to - from) / processors).max(0.0)];
        self.comm.broadcast(&mut foreign, 0)?;
        let processor_seconds = ours[0] / (times.len() * batch) as f64;
        Ok(Attempt { samples: times, batch, processor_seconds, foreign: foreign[0], from, to })
    }

    /// Returns how a point is measured, and whether it may be repeated.
    fn sampling(
        &mut self,
        operation: Operation,
        bytes: usize,
        options: &Options,
    ) -> Result<(Sampling, bool)> {
        if let Some(limit) = options.mean {
            self.lasting(operation, bytes, limit.div_f64(LASTING_PARTS))?;
            return Ok((Sampling::Long(limit), true));
        }
        let (batch, seconds) = self.estimate(operation, bytes)?;
        let wanted = options.budget.as_secs_f64() / (batch as f64 * seconds);
        let least = if seconds < SLOW_SECONDS { MIN_SAMPLES } else { MIN_SLOW_SAMPLES };
        let samples = (wanted as usize).clamp(least, MAX_SAMPLES);
        Ok((Sampling::Short { batch, samples }, seconds < SLOW_SECONDS))
    }

    /// Measures one point and prints it on rank 0.
    fn point(
        &mut self,
        operation: Operation,
        bytes: usize,
        options: &Options,
    ) -> std::result::Result<(), Box<dyn Error>> {
        if bytes <= CHECKED_BYTES && !self.check(operation, bytes)? {
            return Err(format!("wrong result: {}, {bytes} bytes", operation.name()).into());
        }
        self.fill(bytes, 0.0);
        let (sampling, may_repeat) = self.sampling(operation, bytes, options)?;
        let mut best = self.attempt(operation, bytes, sampling)?;
        let mut attempts = 1;
        while best.foreign > DISTURBED && attempts <= options.retries && may_repeat {
            let next = self.attempt(operation, bytes, sampling)?;
            attempts += 1;
            if next.foreign < best.foreign {
                best = next;
            }
        }
        if self.comm.rank() == 0 {
            let (batch, samples) = (best.batch, best.samples.len());
            let micros = |index: usize| best.samples[index.min(samples - 1)] * 1e6;
            println!(
                "{{\"collective\":\"{}\",\"ranks\":{},\"bytes\":{bytes},\"batch\":{batch},\"samples\":{samples},\
                 \"median_us\":{:.3},\"min_us\":{:.3},\"p95_us\":{:.3},\"cpu_us\":{:.3},\"foreign\":{:.3},\"attempts\":{attempts},\
                 \"from_s\":{:.4},\"to_s\":{:.4}}}",
                operation.name(),
                self.ranks,
                (micros((samples - 1) / 2) + micros(samples / 2)) / 2.0,
                micros(0),
                micros(samples * 95 / 100),
                best.processor_seconds * 1e6,
                best.foreign,
                best.from,
                best.to,
            );
        }
        Ok(())
    }
}

/// Processor time of this process so far.
fn process_seconds() -> f64 {
    seconds_of(ClockId::ProcessCPUTime)
}

fn seconds_of(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Processor time of all processes so far, including time stolen by the host; 0 if it is not known.
fn machine_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.take(8).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal, in hundredths of a second on every Linux that reports here.
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (ticks.iter().sum::<f64>() - idle) / 100.0
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let max_bytes = options.sizes.iter().copied().max().unwrap_or(0);
    let mut bench = Bench::new(Communicator::from_env()?, max_bytes);
    for &operation in &options.operations {
        if operation == Operation::Barrier {
            bench.point(operation, 0, &options)?;
            continue;
        }
        for &bytes in &options.sizes {
            bench.point(operation, bytes, &options)?;
        }
    }
    bench.comm.barrier()?;
    Ok(())
}
