//! Measures the cost, without losses, of calls in a group that can go on after losses.
//! `group_cost [shm|tcp] [ranks] [rounds]`, for example `group_cost tcp 4 10`. In each round one job calls on a
//! communicator of its own, and another one in steps of `Survivors`. A figure is the median over the rounds of the
//! least of several batches. The agreement at the end of a step has a column of its own.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp, Survivors};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a call, and number of calls in a batch.
const CALLS: [(usize, u32); 2] = [(8, 4000), (1 << 20, 100)];

/// Batches of a job.
const BATCHES: u32 = 20;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| arguments.get(at).map_or_else(|| default.to_owned(), Clone::clone);
    if word(0, "") == "--rank" {
        return rank(&word(1, ""));
    }
    let (way, ranks, rounds): (_, u32, u32) = (word(0, "shm"), word(1, "2").parse()?, word(2, "10").parse()?);
    let (mut alone, mut group): (Vec<Vec<f64>>, Vec<Vec<f64>>) = Default::default();
    for round in 0..rounds {
        for turn in 0..2 {
            if (round + turn).is_multiple_of(2) {
                alone.push(job(&way, ranks, "alone")?);
            } else {
                group.push(job(&way, ranks, "group")?);
            }
        }
    }
    println!("{way}, {ranks} processes, {rounds} rounds, us of an all_reduce");
    println!("| bytes | communicator | in a step | ratio | agreement |");
    println!("| ---: | ---: | ---: | ---: | ---: |");
    for (at, (bytes, _)) in CALLS.iter().enumerate() {
        let [alone, in_step, agreed] =
            [median(&alone, at), median(&group, at), median(&group, CALLS.len() + at)];
        println!("| {bytes} | {alone:.3} | {in_step:.3} | {:.3} | {agreed:.0} |", in_step / alone);
    }
    Ok(())
}

fn median(jobs: &[Vec<f64>], at: usize) -> f64 {
    let mut values: Vec<f64> = jobs.iter().filter_map(|job| job.get(at).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the measurements of rank 0 of a job: the time of a call for each length, and of the agreement after a step.
fn job(way: &str, ranks: u32, kind: &str) -> Outcome<Vec<f64>> {
    let meeting = std::env::temp_dir().join(format!("kolo-group-cost-{}", std::process::id()));
    let start = |rank: u32| {
        Command::new(std::env::current_exe()?)
            .args(["--rank", kind])
            .env("KOLO_RENDEZVOUS", format!("file://{}", meeting.display()))
            .env("KOLO_RANK", rank.to_string())
            .env("KOLO_WORLD_SIZE", ranks.to_string())
            .env("KOLO_TRANSPORT", way)
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .spawn()
    };
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    let first = children.remove(0).wait_with_output()?;
    for child in &mut children {
        child.wait()?;
    }
    let _ = std::fs::remove_file(meeting);
    let text = String::from_utf8(first.stdout)?;
    let times: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    Ok(times.ok().filter(|times| !times.is_empty()).ok_or("a job has failed")?)
}

fn rank(kind: &str) -> Outcome<()> {
    let mut comm = Some(Communicator::from_env()?);
    let mut group = if kind == "group" { comm.take().map(Survivors::new) } else { None };
    let (mut calls, mut agreements) = (Vec::new(), Vec::new());
    for (bytes, count) in CALLS {
        let mut data = vec![1_u8; bytes];
        let (mut least, mut agreement) = (Duration::MAX, Duration::MAX);
        for _ in 0..BATCHES {
            let since = Instant::now();
            let took = match (&mut group, &comm) {
                (Some(group), _) => group.run(|comm| batch(comm, &mut data, count))?,
                (None, Some(comm)) => batch(comm, &mut data, count)?,
                (None, None) => return Err("there is one or the other".into()),
            };
            least = least.min(took);
            agreement = agreement.min(since.elapsed().saturating_sub(took));
        }
        calls.push(least.as_secs_f64() * 1e6 / f64::from(count));
        agreements.push(agreement.as_secs_f64() * 1e6);
    }
    calls.append(&mut agreements);
    println!("{}", calls.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}

fn batch(comm: &Communicator, data: &mut [u8], count: u32) -> kolo::Result<Duration> {
    comm.barrier()?;
    let since = Instant::now();
    for _ in 0..count {
        comm.all_reduce(data, ReduceOp::Max)?;
    }
    Ok(since.elapsed())
}
