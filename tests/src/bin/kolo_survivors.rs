//! One rank of a job whose steps outlive losses. It makes as many steps as the first argument says and then
//! reports the result, in lines that begin with "@". Further arguments are its number, the most ranks, and a
//! folder for its invitation; then newcomers join, and get the state. A newcomer with KOLO_TEST_FETCH in its
//! environment fetches a copy of the state before it joins, while the members go on.
//!
//! Each step reduces 24 shards into a state, so the state at the end has the same bits whichever ranks died. Each
//! step also adds the bit of each rank's first rank, so that the sum shows which ranks took part.

use std::io::Write;
use std::time::Duration;

use kolo::state::{Part, State};
use kolo::{AbortReason, Communicator, Error, ReduceOp, Result, Survivors};
use kolo_tests::system;

const SHARDS: u32 = 24;

const LEN: usize = 1000;

/// Size of additional state, so that the state of newcomers takes several chunks.
const BALLAST: usize = 3 << 18;

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// A shard's contribution as a function of the state; its sum depends on the order.
fn shard(step: u64, shard: u32, state: &[f32]) -> impl Iterator<Item = f32> {
    let scale = 1.0 / (1.0 + shard as f32 + (step % 7) as f32);
    state.iter().enumerate().map(move |(i, x)| (x + i as f32 * 0.37).sin() * scale)
}

/// Computes an FNV-1a hash.
fn hash(seed: u64, words: impl Iterator<Item = u32>) -> u64 {
    words.fold(seed, |hash, word| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3))
}

/// Puts the invitation where newcomers look for it, in one atomic step.
fn invite(comm: &Communicator, folder: &str, number: u32) -> Result<()> {
    let text = comm.accept()?.to_string();
    let system = |error| Error::system("writing the invitation", error);
    std::fs::write(format!("{folder}/.{number}"), text).map_err(system)?;
    std::fs::rename(format!("{folder}/.{number}"), format!("{folder}/{number}")).map_err(system)
}

/// The first rank of each present rank.
struct Names {
    of: Vec<u32>,
    epoch: u64,
}

impl Names {
    fn follow(&mut self, comm: &Communicator) {
        if std::mem::replace(&mut self.epoch, comm.epoch()) != comm.epoch() {
            let name = |before: Option<u32>| self.of.get(before? as usize).copied();
            self.of =
                comm.ranks_before().into_iter().map(|before| name(before).unwrap_or(u32::MAX)).collect();
        }
    }

    /// Reports which rank an error blames, by its first rank.
    fn blame(&self, error: &Error) {
        if let Error::PeerLost { peer, .. } = error {
            let now = system::machine_time().as_nanos();
            report(&format!("@blames {} {now} {error}", self.of[*peer as usize]));
        }
    }
}

/// Fetches a copy of the state, on a newcomer that has not joined yet.
fn fetch(parts: &mut [Part<'_>]) -> Result<Option<State>> {
    let (Ok(join), Ok(_)) = (std::env::var("KOLO_JOIN"), std::env::var("KOLO_TEST_FETCH")) else {
        return Ok(None);
    };
    let join = match join.strip_prefix("file://") {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| Error::system("reading the invitation", e))?
        }
        None => join,
    };
    let mut state = State::new();
    match state.fetch(&join.parse()?, parts, Duration::from_secs(2)) {
        Ok(fetched) => report(&format!("@fetched {} of {:?}", fetched.received, state.version())),
        // All members that it knows of may have died.
        Err(error @ Error::Join { .. }) => report(&format!("@unfetched {error}")),
        Err(error) => return Err(error),
    }
    Ok(Some(state))
}

fn run(steps: u64, more: &[String]) -> Result<()> {
    let (mut state, mut mean) = (vec![0.5_f32; LEN], vec![0.0_f32; LEN]);
    let mut ballast = vec![0_u32; BALLAST];
    let mut history = [0xcbf2_9ce4_8422_2325_u64];
    let mut parts = [
        Part::new("state", &mut state),
        Part::new("ballast", &mut ballast),
        Part::new("history", &mut history),
    ];
    let fetched = fetch(&mut parts)?;
    let comm = Communicator::from_env()?;
    let number = |at: usize, usual| more.get(at).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let first: u32 = number(0, comm.rank());
    if let Some(folder) = more.get(2) {
        invite(&comm, folder, first)?;
    }
    let mut position = fetched.unwrap_or_else(|| State::of(&comm));
    let mut names = Names { of: (0..comm.world_size()).collect(), epoch: comm.epoch() };
    let mut group = Survivors::new(comm).up_to(number(1, 0)).on_change(|change| {
        report(&format!("@change {} {:?} {:?}", change.epoch, change.left, change.came));
    });
    let mut done = 0;
    while position.version() < Some(steps) {
        group.admit()?;
        let mut runs = 0;
        let parts = [
            Part::new("state", &mut state),
            Part::new("ballast", &mut ballast),
            Part::new("history", &mut history),
        ];
        if position.offer(&group, &parts) {
            report(&format!("@offered {:?}", position.version()));
        }
        group.run(|comm| {
            runs += 1;
            names.follow(comm);
            let mut parts = [
                Part::new("state", &mut state),
                Part::new("ballast", &mut ballast),
                Part::new("history", &mut history),
            ];
            let shared = position.share(comm, &mut parts)?;
            if shared.received > 0 {
                report(&format!("@received {} of {:?}", shared.received, position.version()));
            }
            let step = position.version().unwrap_or_default();
            let own: Vec<f32> = comm.own_shards(SHARDS).flat_map(|of| shard(step, of, &state)).collect();
            comm.all_reduce_shards(&own, &mut mean, SHARDS, ReduceOp::Avg)
                .inspect_err(|error| names.blame(error))
        })?;
        let step = position.version().unwrap_or_default();
        let mut members = [0_u32];
        group.run(|comm| {
            names.follow(comm);
            let sum = comm.all_reduce_into(&[1 << first], &mut members, ReduceOp::Sum);
            sum.inspect_err(|error| names.blame(error))
        })?;
        state.iter_mut().zip(&mean).for_each(|(x, g)| *x -= 0.01 * g);
        for (i, x) in state.iter().enumerate() {
            ballast[(step as usize * 9973 + i * 761) % BALLAST] ^= x.to_bits();
        }
        history[0] = hash(history[0], members.into_iter());
        position.advance();
        if members[0] >> first & 1 == 0 {
            report(&format!("@wrong: a sum over {:b} without rank {first}", members[0]));
        }
        if runs > 1 {
            report(&format!("@repeated {step} {runs} {:b}", members[0]));
        }
        done += 1;
        if done == 4 {
            report("@running");
        }
        // The job lasts long enough for all deaths.
        std::thread::sleep(Duration::from_micros(100));
    }
    let all = state.iter().map(|x| x.to_bits()).chain(ballast);
    report(&format!("@state {:x}", hash(0xcbf2_9ce4_8422_2325, all)));
    report(&format!("@history {:x} {}", history[0], group.comm().world_size()));
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let steps = arguments.first().and_then(|a| a.parse().ok()).unwrap_or(100);
    match run(steps, arguments.get(1..).unwrap_or_default()) {
        Ok(()) => report("@gone"),
        Err(Error::Aborted { kind: AbortReason::Fenced, .. }) => report("@fenced"),
        Err(error) => report(&format!("@error {error}")),
    }
}
