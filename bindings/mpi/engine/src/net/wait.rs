//! Waiting: polls, with the pauses that Kolo's policy gives.

use std::cell::Cell;
use std::time::{Duration, Instant};

use kolo::internal::wait::{Next, Pacer, Policy, sleep, spin, yield_now};

use super::net;
use crate::collective::schedule;
use crate::error::Outcome;
use crate::world;

thread_local! {
    static POLICY: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// Sleeps grow up to this: the scheduler's answer to a wait that is long anyway.
const NAP_MAX: Duration = Duration::from_micros(500);
/// Naps between two looks at whether the job has failed.
const NAPS_PER_LOOK: u32 = 200;

fn policy() -> Policy {
    POLICY.get().unwrap_or_else(|| {
        let policy = world::policy();
        POLICY.set(Some(policy));
        policy
    })
}

/// Advances messages once. Whether anything moved.
pub fn poll_once() -> bool {
    let moved = net().is_ok_and(|mut net| net.poll());
    schedule::advance_all() | moved
}

/// Advances messages until `ready` says so.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_until(mut ready: impl FnMut() -> bool) -> Outcome {
    if ready() {
        return Ok(());
    }
    let mut pacer = Pacer::new(policy());
    let (mut time, mut naps) = (Duration::from_micros(20), 0_u32);
    loop {
        let moved = poll_once();
        if ready() {
            return Ok(());
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

/// A pause between two looks of a program at something that has not come: Test and Iprobe in a loop.
pub fn nap() {
    if policy().spin.is_zero() {
        yield_now();
    }
}
