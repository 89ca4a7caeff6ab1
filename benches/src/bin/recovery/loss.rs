//! The loss of one rank by `kill -9`.

use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp, Survivors};

use crate::job::{Job, machine_time, say};
use crate::{Outcome, PATIENCE, STEPS_BEFORE};

/// Argument that makes this program a rank.
pub(crate) const WORD: &str = "--rank";

/// Milestones of the survivors, in order.
pub(crate) const MARKS: [&str; 4] = [
    "a call fails",
    "the others have a new communicator",
    "they have summed again",
    "they know that all have",
];

/// Runs a job of which one rank is killed; returns for each milestone when the last of the others reached it,
/// in ms.
pub(crate) fn one_loss(way: &str, ranks: u32, victim: u32) -> Outcome<[f64; MARKS.len()]> {
    let mut job = Job::start(WORD, way, ranks)?;
    for rank in 0..ranks as usize {
        job.line(rank)?;
    }
    let killed = job.kill(victim as usize)?;
    let mut worst = [0.0_f64; MARKS.len()];
    for rank in (0..ranks as usize).filter(|rank| *rank != victim as usize) {
        for (worst, word) in worst.iter_mut().zip(job.line(rank)?.split_whitespace()) {
            let after = Duration::from_nanos(word.parse()?).saturating_sub(killed);
            *worst = worst.max(after.as_secs_f64() * 1e3);
        }
    }
    job.end()?;
    Ok(worst)
}

/// Runs a rank of such a job.
pub(crate) fn rank() -> Outcome<()> {
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
            say("running")?;
        }
        if let (Some(anew), Some(summed)) = (anew, summed) {
            let agreed = machine_time();
            // A rank may learn of the loss only through the agreement after its step.
            let marks =
                [failed.unwrap_or(anew), anew, summed, agreed].map(|time| time.as_nanos().to_string());
            return say(&marks.join(" "));
        }
    }
    Ok(())
}
