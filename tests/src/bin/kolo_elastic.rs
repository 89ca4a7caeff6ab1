//! One rank of a job that goes on after losses: sums until it is told to stop, and goes on with the remaining ranks
//! whenever a call fails. Reports lines that begin with "@", with the time of the machine's clock in nanoseconds where
//! it matters.
//!
//! Every rank adds the bit of its first rank, so the sum shows which ranks take part. The first argument is the number
//! of elements. Arguments such as "2:500" name ranks that kill themselves this many microseconds after their first
//! failed call; "2~500" names ranks that stop themselves once. With "run" the sums are steps of `Survivors`; with
//! "within=500" the steps have a limit in milliseconds. With "anew", a rank that may not go on tries again.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kolo::{AbortReason, Communicator, Error, ReduceOp, Result, Survivors};
use kolo_tests::system;

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Returns the time after which this rank kills or stops itself, if the arguments say so.
fn harms_itself_after(how: char, arguments: &[String], rank: u32) -> Option<Duration> {
    let mut of_ranks = arguments.iter().filter_map(|argument| argument.split_once(how));
    let (_, delay) = of_ranks.find(|(of, _)| of.parse() == Ok(rank))?;
    delay.parse().ok().map(Duration::from_micros)
}

static STOP: AtomicBool = AtomicBool::new(false);

/// A rank's contributions, and its reports of sums.
struct Sums {
    /// The rank that it had at first.
    first: u32,
    input: Vec<f32>,
    turn: u32,
    /// Epoch of the last sum.
    epoch: u64,
}

impl Sums {
    fn new(comm: &Communicator, elements: usize) -> Self {
        Self { first: comm.rank(), input: vec![1.0; elements], turn: 0, epoch: comm.epoch() }
    }

    fn input(&mut self) -> &[f32] {
        self.input[0] = if STOP.load(Ordering::Relaxed) { 1.0 } else { 0.0 };
        self.input[1] = (1_u32 << self.first) as f32;
        &self.input
    }

    /// Checks a sum over the ranks of `comm`. Returns whether it is the last.
    fn is_last(&mut self, comm: &Communicator, sum: &[f32]) -> bool {
        let size = comm.world_size() as f32;
        if sum[2..].iter().any(|value| *value != size) {
            report(&format!("@wrong {}: {} of {size}", self.turn, sum[2]));
        }
        if std::mem::replace(&mut self.epoch, comm.epoch()) != comm.epoch() {
            let (now, epoch) = (system::machine_time().as_nanos(), comm.epoch());
            report(&format!("@again {now} {} {size} {epoch} {}", sum[1] as u32, comm.rank()));
        }
        if self.turn == 3 {
            report("@running");
        }
        self.turn += 1;
        sum[0] > 0.0
    }
}

fn failed(error: &Error) {
    report(&format!("@failed {} {error}", system::machine_time().as_nanos()));
}

/// Goes on by calling the operations underneath `Survivors` directly.
fn shrink(mut comm: Communicator, elements: usize, arguments: &[String]) -> Result<()> {
    let mut sums = Sums::new(&comm, elements);
    let (first, mut sum) = (sums.first, vec![0.0; elements]);
    loop {
        match comm.all_reduce_into(sums.input(), &mut sum, ReduceOp::Sum) {
            Ok(()) if sums.is_last(&comm, &sum) => return Ok(()),
            Ok(()) => {}
            Err(error) => {
                failed(&error);
                if let Some(delay) = harms_itself_after(':', arguments, first) {
                    std::thread::spawn(move || system::end_by_kill(delay));
                }
                if let Some(delay) = harms_itself_after('~', arguments, first).filter(|_| comm.epoch() == 0) {
                    std::thread::spawn(move || system::stop(delay));
                }
                comm.revoke();
                comm = until_told(arguments, || comm.shrink())?;
                report(&format!("@shrunk {}", system::machine_time().as_nanos()));
            }
        }
    }
}

/// Goes on by `Survivors`, with a limit if one is given.
fn survive(comm: Communicator, elements: usize, limit: Option<Duration>, arguments: &[String]) -> Result<()> {
    let mut sums = Sums::new(&comm, elements);
    let (mut group, mut sum) = (Survivors::new(comm), vec![0.0; elements]);
    loop {
        let step = || match limit {
            Some(limit) => group.all_reduce_within(limit, sums.input(), &mut sum, ReduceOp::Sum),
            None => group
                .run(|comm| comm.all_reduce_into(sums.input(), &mut sum, ReduceOp::Sum).inspect_err(failed)),
        };
        match until_told(arguments, step) {
            Ok(()) if sums.is_last(group.comm(), &sum) => {
                report(&format!("@summary {}", group.comm().summary()));
                return Ok(());
            }
            Ok(()) => {}
            // The step is lost, but not the group.
            Err(error @ (Error::Timeout { .. } | Error::Aborted { kind: AbortReason::Timeout, .. }))
                if limit.is_some() =>
            {
                failed(&error);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Repeats a call while too few ranks answer, if the arguments ask for that.
fn until_told<T>(arguments: &[String], mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error @ Error::Aborted { kind: AbortReason::Minority, .. })
                if arguments.iter().any(|argument| argument == "anew") =>
            {
                report(&format!("@minority {error}"));
            }
            done => return done,
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let elements: usize = arguments.first().and_then(|a| a.parse().ok()).unwrap_or(3).max(3);
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return report(&format!("@error {error}")),
    };
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            STOP.store(line == "stop", Ordering::Relaxed);
        }
    });
    let limit = arguments.iter().find_map(|argument| argument.strip_prefix("within=")?.parse().ok());
    let done = match limit {
        None if !arguments.iter().any(|argument| argument == "run") => shrink(comm, elements, &arguments),
        limit => survive(comm, elements, limit.map(Duration::from_millis), &arguments),
    };
    report(&match done {
        Ok(()) => "@gone".to_owned(),
        Err(error @ Error::Aborted { kind: AbortReason::Fenced, .. }) => format!("@fenced {error}"),
        Err(error @ Error::Aborted { kind: AbortReason::Minority, .. }) => format!("@minority {error}"),
        Err(error) => format!("@error {error}"),
    });
}
