//! What a loss costs: from `kill -9` of a process until the others have summed again. `recovery [shm|tcp|HOSTS] [ranks] [rounds]`, for
//! example `recovery shm 4 100`. A number of hosts deals the ranks out to as many hosts of one machine. `recovery threads [shm|tcp]
//! [ranks] [rounds]` is the same with thread ranks, of which every other one panics, rank 0 too.
//!
//! Each round is a job of its own, whose ranks sum in steps of `Survivors` until one of them is killed, each in turn. A figure is the time
//! from the kill to the moment at which the last survivor has come so far.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, ReduceOp, Survivors, TransportKind, Transports};
use rustix::process::{Pid, Signal, kill_process};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What survivors come to, in order.
const MARKS: [&str; 4] = [
    "a call fails",
    "the others have a new communicator",
    "they have summed again",
    "they know that all have",
];

/// Steps before the loss.
const STEPS_BEFORE: u32 = 20;

/// Longest wait for a job.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| arguments.get(at).map_or_else(|| default.to_owned(), Clone::clone);
    if word(0, "") == "--rank" {
        return rank();
    }
    if word(0, "") == "threads" {
        return threads(&word(1, "shm"), word(2, "256").parse()?, word(3, "5").parse()?);
    }
    let (way, ranks, rounds): (_, u32, u32) = (word(0, "shm"), word(1, "4").parse()?, word(2, "50").parse()?);
    let mut all: [Vec<f64>; MARKS.len()] = Default::default();
    for round in 0..rounds {
        let times = one_loss(&way, ranks, round % ranks)?;
        if arguments.len() > 3 {
            println!("rank {} killed: {times:.1?}", round % ranks);
        }
        all.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
    }
    println!("{way}, {ranks} processes, {rounds} rounds, ms after kill -9");
    println!("| the last survivor | median | p90 | p99 | most |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (mark, times) in MARKS.iter().zip(&mut all) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times.get(((times.len() as f64 * part) as usize).min(times.len() - 1));
        if let (Some(median), Some(p90), Some(p99), Some(most)) = (at(0.5), at(0.9), at(0.99), times.last()) {
            println!("| {mark} | {median:.1} | {p90:.1} | {p99:.1} | {most:.1} |");
        }
    }
    Ok(())
}

/// A job of which one rank is killed: when the last of the others has come to each mark, in ms.
fn one_loss(way: &str, ranks: u32, victim: u32) -> Outcome<[f64; MARKS.len()]> {
    let meeting = std::env::temp_dir().join(format!(
        "kolo-recovery-{}-{}",
        std::process::id(),
        machine_time().as_nanos()
    ));
    let mut children: Vec<(Child, BufReader<ChildStdout>)> = Vec::new();
    for rank in 0..ranks {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--rank")
            .env("KOLO_RENDEZVOUS", format!("file://{}", meeting.display()))
            .env("KOLO_RANK", rank.to_string())
            .env("KOLO_WORLD_SIZE", ranks.to_string())
            .envs(settings(way, rank, ranks)?)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("its output is piped")?);
        children.push((child, out));
    }
    for (_, out) in &mut children {
        line(out)?;
    }
    let killed = machine_time();
    kill_process(Pid::from_child(&children[victim as usize].0), Signal::KILL)?;
    let mut worst = [0.0_f64; MARKS.len()];
    for (rank, (_, out)) in children.iter_mut().enumerate() {
        if rank != victim as usize {
            let text = line(out)?;
            for (worst, word) in worst.iter_mut().zip(text.split_whitespace()) {
                let after = Duration::from_nanos(word.parse()?).saturating_sub(killed);
                *worst = worst.max(after.as_secs_f64() * 1e3);
            }
        }
    }
    for (child, _) in &mut children {
        child.wait()?;
    }
    let _ = std::fs::remove_file(meeting);
    Ok(worst)
}

fn line(out: &mut BufReader<ChildStdout>) -> Outcome<String> {
    let mut text = String::new();
    out.read_line(&mut text)?;
    if text.is_empty() { Err("a rank has ended early".into()) } else { Ok(text) }
}

fn settings(way: &str, rank: u32, ranks: u32) -> Outcome<Vec<(&'static str, String)>> {
    Ok(match way {
        "shm" | "tcp" => vec![("KOLO_TRANSPORT", way.to_owned())],
        hosts => {
            let per_host = ranks.div_ceil(hosts.parse::<u32>()?);
            vec![("KOLO_HOST_ID", format!("host-{}", rank / per_host))]
        }
    })
}

fn rank() -> Outcome<()> {
    let comm = Communicator::from_env()?;
    let before = comm.world_size();
    let mut group = Survivors::new(comm);
    let mut data = vec![0.0_f32; 1000];
    let (mut failed, mut anew, mut summed) = (None, None, None);
    let since = Instant::now();
    for step in 0.. {
        group.run(|comm| {
            if comm.world_size() < before {
                anew.get_or_insert_with(machine_time);
            }
            data.fill(1.0);
            let done = comm.all_reduce(&mut data, ReduceOp::Sum);
            match &done {
                Ok(()) if comm.world_size() < before => drop(summed.get_or_insert_with(machine_time)),
                Ok(()) => {}
                Err(_) => drop(failed.get_or_insert_with(machine_time)),
            }
            done
        })?;
        if data[0] as u32 != group.comm().world_size() || since.elapsed() > PATIENCE {
            return Err(format!("step {step}: a sum of {}", data[0]).into());
        }
        if step == STEPS_BEFORE {
            println!("running");
            std::io::stdout().flush()?;
        }
        if let (Some(anew), Some(summed)) = (anew, summed) {
            let agreed = machine_time();
            // A rank may learn of the loss by the agreement after its step.
            let marks =
                [failed.unwrap_or(anew), anew, summed, agreed].map(|time| time.as_nanos().to_string());
            println!("{}", marks.join(" "));
            return Ok(());
        }
    }
    Ok(())
}

/// Half of many thread ranks die at once, again and again in a new cluster.
fn threads(way: &str, ranks: u32, rounds: u32) -> Outcome<()> {
    let kind = if way == "tcp" { TransportKind::Tcp } else { TransportKind::Shm };
    let mut config = Config::from_env()?;
    config.transports = Transports::Only(vec![kind]);
    println!(
        "{way}, {ranks} thread ranks, every other one dies; ms until the last survivor has summed again"
    );
    for _ in 0..rounds {
        let all = Barrier::new(ranks as usize);
        let died_at = OnceLock::new();
        let times = Cluster::with_configs(
            ranks,
            |_| config.clone(),
            |comm| {
                let dies = comm.rank().is_multiple_of(2);
                comm.all_reduce(&mut [1_u64], ReduceOp::Sum)?;
                all.wait();
                let died_at = *died_at.get_or_init(Instant::now);
                if dies {
                    // A panic whose thread drops its communicator on the way, without a word on the terminal.
                    let panics = AssertUnwindSafe(|| {
                        let _of_this_rank = comm;
                        resume_unwind(Box::new("it was to die"));
                    });
                    return catch_unwind(panics).map_or(Ok(None), |()| Ok(None));
                }
                let mut group = Survivors::new(comm);
                let mut sum = [0_u64];
                while sum != [u64::from(ranks / 2)] {
                    group.all_reduce(&[1], &mut sum, ReduceOp::Sum)?;
                }
                Ok(Some((died_at.elapsed(), group.comm().epoch())))
            },
        )?;
        let times: Vec<_> =
            times.into_iter().collect::<kolo::Result<Vec<_>>>()?.into_iter().flatten().collect();
        let last = times.iter().max().ok_or("somebody is left")?;
        println!("{:.0} ms, after {} shrinks", last.0.as_secs_f64() * 1e3, last.1);
    }
    Ok(())
}

/// A clock that all processes of this machine share.
fn machine_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
