//! Measures the cost of a loss: the time from `kill -9` of a process until the others have summed again.
//! `recovery [shm|tcp|HOSTS] [ranks] [rounds]`, for example `recovery shm 4 100`. A number HOSTS distributes the ranks
//! over as many simulated hosts on one machine. In `recovery spare [shm|tcp|HOSTS] [ranks] [rounds]` a waiting spare
//! takes the slot. `recovery threads [shm|tcp] [ranks] [rounds]` measures a loss among thread ranks, of which every
//! other one panics, rank 0 included.
//!
//! Each round is a job of its own, whose ranks sum in steps of `Survivors` until one of them is killed, a different one
//! each round. A figure is that of the last survivor.

mod job;
mod loss;
mod spare;
mod threads;

use std::error::Error;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Steps before the loss.
const STEPS_BEFORE: u32 = 20;

/// Time limit of a job.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| arguments.get(at).map_or_else(|| default.to_owned(), Clone::clone);
    let several = |at: usize| -> Outcome<(String, u32, u32)> {
        Ok((word(at, "shm"), word(at + 1, "4").parse()?, word(at + 2, "50").parse()?))
    };
    match word(0, "").as_str() {
        loss::WORD => loss::rank(),
        spare::WORD => spare::member(),
        "threads" => threads::threads(&word(1, "shm"), word(2, "256").parse()?, word(3, "5").parse()?),
        "spare" => table(several(1)?, spare::MARKS, spare::one_loss),
        _ => table(several(0)?, loss::MARKS, loss::one_loss),
    }
}

/// Runs `rounds` jobs, and prints a row for each milestone.
fn table<const N: usize>(
    (way, ranks, rounds): (String, u32, u32),
    marks: [&str; N],
    one_loss: impl Fn(&str, u32, u32) -> Outcome<[f64; N]>,
) -> Outcome<()> {
    let mut all: [Vec<f64>; N] = [const { Vec::new() }; N];
    for round in 0..rounds {
        let times = one_loss(&way, ranks, round % ranks)?;
        all.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
    }
    println!("{way}, {ranks} processes, {rounds} rounds, ms");
    println!("| | median | p90 | p99 | most |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (mark, times) in marks.iter().zip(&mut all) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times.get(((times.len() as f64 * part) as usize).min(times.len() - 1));
        if let (Some(median), Some(p90), Some(p99), Some(most)) = (at(0.5), at(0.9), at(0.99), times.last()) {
            println!("| {mark} | {median:.1} | {p90:.1} | {p99:.1} | {most:.1} |");
        }
    }
    Ok(())
}
