//! One process of a group that shrinks and grows: sums until it is told to stop, shrinks when a call fails, and
//! admits newcomers that wait. With KOLO_JOIN it is a newcomer itself. Reports lines that begin with "@".
//!
//! Arguments: the number of this process, which is the bit that it adds, so that sums show which processes take
//! part; a folder for its invitation; the most ranks. Further arguments such as "2:500" name processes that kill
//! themselves this many microseconds after they have begun to grow.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kolo::{AbortReason, Communicator, Error, ReduceOp, Result};
use kolo_tests::system;

static STOP: AtomicBool = AtomicBool::new(false);

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Returns the time after which this process kills itself, if the arguments say so.
fn dies_after(arguments: &[String], number: &str) -> Option<Duration> {
    let mut of_all = arguments.iter().filter_map(|argument| argument.split_once(':'));
    let (_, delay) = of_all.find(|(of, _)| *of == number)?;
    delay.parse().ok().map(Duration::from_micros)
}

/// Puts the invitation where newcomers look for it, in one atomic step.
fn invite(comm: &Communicator, folder: &str, number: &str) -> Result<()> {
    let text = comm.accept()?.to_string();
    let system = |error| Error::system("writing the invitation", error);
    std::fs::write(format!("{folder}/.{number}"), text).map_err(system)?;
    std::fs::rename(format!("{folder}/.{number}"), format!("{folder}/{number}")).map_err(system)
}

fn run(arguments: &[String]) -> Result<()> {
    let [number, folder, most, ..] = arguments else { panic!("three arguments") };
    let bit: u32 = 1 << number.parse::<u32>().expect("a number");
    let most: u32 = most.parse().expect("a number");
    let mut comm = Communicator::from_env()?;
    report(&format!("@in {}", comm.rank()));
    invite(&comm, folder, number)?;
    let mut seen = 0.0;
    loop {
        let mut data = vec![1.0_f32; 1000];
        data[0] = if STOP.load(Ordering::Relaxed) { 1.0 } else { 0.0 };
        data[1] = bit as f32;
        data[2] = comm.waiting() as f32;
        let done = comm.all_reduce(&mut data, ReduceOp::Sum);
        if done.is_err() {
            comm.revoke();
        }
        if comm.agree(u64::from(done.is_ok()))?.flags != 1 {
            comm = comm.shrink()?;
            continue;
        }
        let size = comm.world_size();
        if data[3..].iter().any(|value| *value != size as f32) {
            report(&format!("@wrong: {} of {size}", data[3]));
        }
        if data[1] != seen {
            seen = data[1];
            report(&format!("@sum {} {} {}", seen as u32, size, comm.epoch()));
        }
        if data[0] > 0.0 {
            return Ok(());
        }
        if data[2] > 0.0 && size < most {
            if let Some(delay) = dies_after(arguments, number) {
                std::thread::spawn(move || system::end_by_kill(delay));
            }
            report("@growing");
            let begun = Instant::now();
            match comm.grow(most) {
                Ok(next) => {
                    comm = next;
                    report(&format!("@grown {} {}", begun.elapsed().as_micros(), comm.world_size()));
                }
                Err(error @ Error::Aborted { kind: AbortReason::Fenced | AbortReason::Minority, .. }) => {
                    return Err(error);
                }
                Err(error) => report(&format!("@ungrown {error}")),
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            STOP.store(line == "stop", Ordering::Relaxed);
        }
    });
    match run(&arguments) {
        Ok(()) => report("@gone"),
        Err(Error::Aborted { kind: AbortReason::Fenced, .. }) => report("@fenced"),
        Err(error) => report(&format!("@error {error}")),
    }
}
