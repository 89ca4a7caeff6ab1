//! Waiting: polls, with pauses by Kolo's waiting policy.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo::internal::wait::{Next, Pacer, Policy, sleep, spin, yield_now};

use super::{Awaited, Finished, net};
use crate::collective::schedule;
use crate::error::Outcome;
use crate::world;

thread_local! {
    static POLICY: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// The longest nap. Naps grow up to this, since a wait that is already long can bear the delay.
const NAP_MAX: Duration = Duration::from_micros(500);
/// Looks at one peer's channel, some 10 ns each, between two polls of all channels.
const LOOKS: u32 = 16;
/// Naps between two checks whether the job has failed.
const NAPS_PER_LOOK: u32 = 200;

static SLEEPS: AtomicU64 = AtomicU64::new(0);

/// Returns how often threads of this process have gone to sleep, because nothing had arrived for long.
pub fn sleeps() -> u64 {
    SLEEPS.load(Ordering::Relaxed)
}

fn policy() -> Policy {
    POLICY.get().unwrap_or_else(|| {
        let policy = world::policy();
        POLICY.set(Some(policy));
        policy
    })
}

/// Advances messages once. Returns whether anything moved.
pub fn poll_once() -> bool {
    let moved = net().is_ok_and(|mut net| net.poll());
    schedule::advance_all() | moved
}

/// Advances messages until `ready` returns true.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_until(mut ready: impl FnMut() -> bool) -> Outcome {
    if ready() {
        return Ok(());
    }
    drive(|| {
        let moved = poll_once();
        (moved, ready().then_some(()))
    })
}

/// As [`wait_until`], for a caller that waits for several messages.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_until_all(mut ready: impl FnMut() -> bool) -> Outcome {
    if ready() {
        return Ok(());
    }
    drive(|| {
        let moved = net().is_ok_and(|mut net| net.poll_for_many());
        let moved = schedule::advance_all() | moved;
        (moved, ready().then_some(()))
    })
}

/// Advances messages until a receive is complete.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_for_receive(awaited: &mut Awaited) -> Outcome<Finished> {
    let looks = if policy().spin.is_zero() { 1 } else { LOOKS };
    drive(|| {
        let Ok(mut net) = net() else { return (false, None) };
        for _ in 0..looks {
            if let Some(found) = net.ended(awaited) {
                return (true, Some(found));
            }
            if !matches!(awaited, Awaited::Sought(_)) {
                break;
            }
        }
        let moved = net.poll();
        let found = if moved { net.ended(awaited) } else { None };
        drop(net);
        (if found.is_none() { schedule::advance_all() | moved } else { true }, found)
    })
}

/// Calls `step` until it ends the wait, with pauses after steps that move nothing.
fn drive<T>(mut step: impl FnMut() -> (bool, Option<T>)) -> Outcome<T> {
    let mut pacer = Pacer::new(policy());
    let (mut time, mut naps) = (Duration::from_micros(20), 0_u32);
    loop {
        let (moved, found) = step();
        if let Some(found) = found {
            return Ok(found);
        }
        if moved {
            pacer.moved();
            time = Duration::from_micros(20);
            continue;
        }
        match pacer.idle(Instant::now) {
            Next::Poll | Next::Check => {}
            Next::Spin => spin(),
            Next::Yield => {
                yield_now();
                pacer.yielded(Instant::now);
            }
            Next::Sleep | Next::Queue => {
                SLEEPS.fetch_add(1, Ordering::Relaxed);
                sleep(time);
                time = (2 * time).min(NAP_MAX);
                naps += 1;
                if naps.is_multiple_of(NAPS_PER_LOOK) {
                    world::check_job()?;
                }
            }
        }
    }
}

/// Pauses briefly, for programs that call Test or Iprobe in a loop.
pub fn nap() {
    if policy().spin.is_zero() {
        yield_now();
    }
}
