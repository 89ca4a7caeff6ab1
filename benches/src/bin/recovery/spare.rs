//! The loss of one rank, whose slot a waiting spare takes.

use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp, Survivors};

use crate::job::{Job, machine_time, say};
use crate::{Outcome, PATIENCE, STEPS_BEFORE};

/// Argument that makes this program a member, or the spare.
pub(crate) const WORD: &str = "--member";

/// Figures, in order.
pub(crate) const MARKS: [&str; 2] =
    ["the others' loss as the spare comes in", "full again and summed, after `kill -9`"];

/// Steps that all ranks take once the group is full again.
const STEPS_AFTER: u32 = 20;

/// Runs a job of which one rank is killed while a spare waits; returns the greatest times of all others, in
/// ms.
pub(crate) fn one_loss(way: &str, ranks: u32, victim: u32) -> Outcome<[f64; MARKS.len()]> {
    let mut job = Job::start(WORD, way, ranks)?;
    let mut invitation = String::new();
    for rank in 0..ranks as usize {
        let text = job.line(rank)?;
        if rank != victim as usize {
            invitation = text;
        }
    }
    let settings = crate::job::settings(way, victim, ranks)?;
    job.add(WORD, settings.into_iter().chain([("KOLO_JOIN", invitation)]))?;
    let others = || (0..ranks as usize).filter(|rank| *rank != victim as usize);
    // The member at whose port the spare waits reports it.
    let member = others().next_back().ok_or("two ranks at least")?;
    job.line(member)?;
    let killed = job.kill(victim as usize)?;
    let mut worst = [0.0_f64; MARKS.len()];
    for rank in others() {
        let text = job.line(rank)?;
        let mut words = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?.into_iter();
        let mut next = || words.next().map(Duration::from_nanos).ok_or("two numbers");
        let (loss, full) = (next()?, next()?.saturating_sub(killed));
        worst[0] = worst[0].max(loss.as_secs_f64() * 1e3);
        worst[1] = worst[1].max(full.as_secs_f64() * 1e3);
    }
    job.end()?;
    Ok(worst)
}

/// Runs a member of such a job, or the spare.
pub(crate) fn member() -> Outcome<()> {
    let comm = Communicator::from_env()?;
    let is_spare = comm.epoch() > 0;
    let (invitation, most) = (comm.accept()?.to_string(), comm.world_size());
    let mut group = Survivors::new(comm).at_least(1).up_to(most);
    let mut data = vec![0.0_f32; 1000];
    let mut turns = Vec::new();
    let (mut has_waited, mut steps_after) = (false, 0);
    let since = Instant::now();
    for step in 0.. {
        let (began, epoch) = (Instant::now(), group.comm().epoch());
        // The spare has just been admitted and skips this.
        if !(is_spare && step == 0) {
            group.admit()?;
        }
        let is_full_again = group.comm().epoch() > epoch && group.comm().world_size() == most;
        group.run(|comm| {
            data.fill(1.0);
            comm.all_reduce(&mut data, ReduceOp::Sum)
        })?;
        let took = began.elapsed();
        if since.elapsed() > PATIENCE {
            return Err(format!("step {step}: no spare has come").into());
        }
        if is_full_again && !is_spare {
            turns.sort();
            let usual = turns.get(turns.len() / 2).copied().unwrap_or_default();
            say(&format!("{} {}", took.saturating_sub(usual).as_nanos(), machine_time().as_nanos()))?;
        }
        turns.push(took);
        if step == STEPS_BEFORE && !is_spare {
            say(&invitation)?;
        }
        if !has_waited && group.comm().waiting() > 0 && group.comm().world_size() == most {
            has_waited = true;
            say("it waits")?;
        }
        if is_full_again || is_spare || steps_after > 0 {
            steps_after += 1;
            if steps_after == STEPS_AFTER {
                return Ok(());
            }
        }
    }
    Ok(())
}
