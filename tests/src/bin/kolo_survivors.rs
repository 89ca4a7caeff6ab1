//! One rank of a job whose steps outlive losses. Does as many steps as the first argument says and then tells what came of them, in lines
//! that begin with "@". With a second argument it reports each step in good time to be killed there.
//!
//! Each step reduces 24 shards into a state, so the state at the end is the same bits whoever died; and adds the bit of the rank that it
//! was at first, so that the sum tells whose it is.

use std::io::Write;
use std::time::Duration;

use kolo::{AbortReason, Communicator, Error, ReduceOp, Result, Survivors};

const SHARDS: u32 = 24;

const LEN: usize = 1000;

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// What a shard makes of the state: sums of it depend on the order.
fn shard(step: u64, shard: u32, state: &[f32]) -> impl Iterator<Item = f32> {
    let scale = 1.0 / (1.0 + shard as f32 + (step % 7) as f32);
    state.iter().enumerate().map(move |(i, x)| (x + i as f32 * 0.37).sin() * scale)
}

/// FNV-1a.
fn hash(seed: u64, words: impl Iterator<Item = u32>) -> u64 {
    words.fold(seed, |hash, word| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3))
}

fn run(steps: u64) -> Result<()> {
    let comm = Communicator::from_env()?;
    let first = comm.rank();
    let mut group = Survivors::new(comm);
    let (mut state, mut mean) = (vec![0.5_f32; LEN], vec![0.0_f32; LEN]);
    let mut history = 0xcbf2_9ce4_8422_2325;
    for step in 0..steps {
        let mut runs = 0;
        group.run(|comm| {
            runs += 1;
            let own: Vec<f32> = comm.own_shards(SHARDS).flat_map(|of| shard(step, of, &state)).collect();
            comm.all_reduce_shards(&own, &mut mean, SHARDS, ReduceOp::Avg)
        })?;
        let mut members = [0_u32];
        group.all_reduce(&[1 << first], &mut members, ReduceOp::Sum)?;
        state.iter_mut().zip(&mean).for_each(|(x, g)| *x -= 0.01 * g);
        history = hash(history, members.into_iter());
        if members[0] >> first & 1 == 0 {
            report(&format!("@wrong: a sum over {:b} without rank {first}", members[0]));
        }
        if runs > 1 {
            report(&format!("@repeated {step} {runs} {:b}", members[0]));
        }
        if step == 3 {
            report("@running");
        }
        // The job lasts long enough for all deaths.
        std::thread::sleep(Duration::from_micros(100));
    }
    let bits = hash(0xcbf2_9ce4_8422_2325, state.iter().map(|x| x.to_bits()));
    report(&format!("@state {bits:x}"));
    report(&format!("@history {history:x} {}", group.comm().world_size()));
    Ok(())
}

fn main() {
    let steps = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(100);
    match run(steps) {
        Ok(()) => report("@gone"),
        Err(Error::Aborted { kind: AbortReason::Fenced, .. }) => report("@fenced"),
        Err(error) => report(&format!("@error {error}")),
    }
}
