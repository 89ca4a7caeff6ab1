//! Waiting: polls, with pauses by Kolo's waiting policy.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kolo::internal::wait::{Contention, Next, Pacer, Policy, spin, yield_now};

use super::{Awaited, Completion, Finished, Net, Wanted, net, rest, servant};
use crate::collective::schedule;
use crate::error::{Class, Fail, Outcome, fail};
use crate::world;

thread_local! {
    static POLICY: Cell<Option<Policy>> = const { Cell::new(None) };
    /// Contention that earlier waits of this thread have noticed.
    static CONTENTION: Cell<Contention> = const { Cell::new(Contention::NONE_BY_SHORT_CALLS) };
    static IDLE_LOOKS: Cell<IdleLooks> = const { Cell::new(IdleLooks { left: 1, stride: 1, well: None }) };
}

/// First sleep of a wait. Messages end a sleep; its length matters for events that other threads cause.
const NAP: Duration = Duration::from_micros(100);
/// Longest sleep; sleeps grow up to this.
const NAP_MAX: Duration = Duration::from_micros(500);
/// Looks at one peer's channel, some 10 ns each, between two polls of all channels.
const LOOKS: u32 = 16;
/// The longest time that messages under way get to end once the job has failed. Their peers notice the failure within about as long.
const LAST_TIME: Duration = Duration::from_secs(1);
/// The time between two checks whether the job has failed, in a program that polls.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Sleeps between two checks whether the job has failed, or the wait has reached its limit.
const NAPS_PER_LOOK: u32 = 200;

/// The largest number of looks between two readings of the clock.
const STRIDE_MAX: u32 = 64;

/// The looks of a thread that have found nothing. It reads the clock only now and then, since that takes as long as a look; but a
/// program that looks seldom learns of a failure at its next look.
#[derive(Clone, Copy)]
struct IdleLooks {
    /// Looks until it reads the clock.
    left: u32,
    stride: u32,
    /// The time when the job was last found well.
    well: Option<Instant>,
}

static SLEEPS: AtomicU64 = AtomicU64::new(0);
/// Threads that wait for messages.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a thread waits for messages, and so polls.
pub(super) fn somebody_polls() -> bool {
    POLLING.load(Ordering::Relaxed) > 0
}

/// A guard: while it exists, its thread polls.
struct Polling(());

impl Polling {
    fn begin() -> Self {
        POLLING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.fetch_sub(1, Ordering::Relaxed);
    }
}

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

/// Advances messages once, but calls no function of the program. Returns whether anything moved.
pub(super) fn poll_without_calls() -> bool {
    let moved = net().is_ok_and(|mut net| net.poll());
    schedule::advance_without_calls() | moved
}

/// Advances messages until `ready` returns true.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_until(mut ready: impl FnMut() -> bool) -> Outcome {
    if ready() {
        return Ok(());
    }
    let step = |(): &mut ()| {
        let moved = poll_once();
        (moved, ready().then_some(()))
    };
    drive(&mut (), step, |(), _| ())
}

/// As [`wait_until`], for a caller that waits for several messages.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_until_all(mut ready: impl FnMut() -> bool) -> Outcome {
    if ready() {
        return Ok(());
    }
    let step = |(): &mut ()| {
        let moved = net().is_ok_and(|mut net| net.poll_for_many());
        let moved = schedule::advance_all() | moved;
        (moved, ready().then_some(()))
    };
    drive(&mut (), step, |(), _| ())
}

/// Advances messages until `look` finds the message for which a probe waits.
///
/// # Errors
/// If the job has failed meanwhile.
pub fn wait_to_find<T>(wanted: Wanted, mut look: impl FnMut(&mut Net) -> Option<T>) -> Outcome<T> {
    if let Some(found) = look(&mut *net()?) {
        return Ok(found);
    }
    net()?.probed.push(wanted);
    let mut found = None;
    let outcome = wait_until(|| {
        found = net().ok().and_then(|mut net| look(&mut net));
        found.is_some()
    });
    if let Ok(mut net) = net()
        && let Some(at) = net.probed.iter().position(|other| *other == wanted)
    {
        net.probed.swap_remove(at);
    }
    outcome?;
    found.map_or_else(|| fail(Class::Intern, "a message is gone"), Ok)
}

/// Advances messages until a receive is complete.
///
/// # Errors
/// If the job has failed meanwhile. Nothing touches the memory of the receive after that.
pub fn wait_for_receive(mut awaited: Awaited) -> Outcome<Finished> {
    let looks = if policy().spin.is_zero() { 1 } else { LOOKS };
    let step = |awaited: &mut Awaited| {
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
    };
    let ended = drive(&mut awaited, step, |awaited, net| net.look_no_more(awaited));
    if let Err(why) = &ended {
        forsake_receive(awaited, why);
    }
    ended
}

/// Advances messages until an operation is complete.
///
/// # Errors
/// If the job has failed meanwhile. Nothing touches the memory of the operation after that.
pub fn wait_for(done: &Arc<Completion>) -> Outcome {
    wait_until(|| done.is_done()).inspect_err(|why| forsake(std::slice::from_ref(done), why))
}

fn forsake_receive(mut awaited: Awaited, why: &Fail) {
    if let Ok(mut net) = net() {
        net.take_back(&awaited);
    }
    let deadline = Instant::now() + LAST_TIME;
    while matches!(awaited, Awaited::Direct(_)) && Instant::now() < deadline {
        let Ok(mut net) = net() else { return };
        let moved = net.poll();
        if net.ended(&mut awaited).is_some() {
            return;
        }
        drop(net);
        if !moved {
            yield_now();
        }
    }
    match awaited {
        Awaited::Posted(_, done) => forsake(&[done], why),
        other => drop(net().map(|mut net| net.forsake(other, why))),
    }
}

/// Gives up the operations for which a wait has failed: nothing touches their memory after this. Messages that are moving already get some
/// time to end, since giving up one of them costs this rank its connection to the peer, which may have survived.
pub fn forsake(operations: &[Arc<Completion>], why: &Fail) {
    let all = |each: &dyn Fn(&mut Net, &Arc<Completion>)| {
        if let Ok(mut net) = net() {
            operations.iter().filter(|done| !done.is_done()).for_each(|done| each(&mut net, done));
        }
    };
    all(&|net, done| net.cancel(done, why));
    let deadline = Instant::now() + LAST_TIME;
    while !operations.iter().all(|done| done.is_done()) && Instant::now() < deadline {
        if !net().is_ok_and(|mut net| net.poll()) {
            yield_now();
        }
    }
    all(&|net, done| net.give_up(done, why));
}

/// Calls `step` until it ends the wait, with pauses after steps that move nothing. Before a sleep, `settle` hands the endpoints what the
/// steps check themselves.
fn drive<S, T>(
    state: &mut S,
    mut step: impl FnMut(&mut S) -> (bool, Option<T>),
    settle: impl Fn(&mut S, &mut Net),
) -> Outcome<T> {
    // Only the servant asks, and a wait must not pay for it where there is no work for the servant.
    let _polling = servant::may_poll().then(Polling::begin);
    let mut pacer = Pacer::new(policy());
    pacer.contention = CONTENTION.get();
    let (mut limit, mut naps, mut began) = (NAP, 0_u32, None);
    loop {
        let (moved, found) = step(state);
        if let Some(found) = found {
            CONTENTION.set(pacer.ended());
            return Ok(found);
        }
        if moved {
            pacer.moved();
            limit = NAP;
            continue;
        }
        if wants_sleep(&mut pacer) {
            SLEEPS.fetch_add(1, Ordering::Relaxed);
            let began = *began.get_or_insert_with(Instant::now);
            if rest::until_news(limit, |net| settle(state, net)) {
                pacer.moved();
            }
            limit = (2 * limit).min(NAP_MAX);
            naps += 1;
            if naps.is_multiple_of(NAPS_PER_LOOK) {
                world::check_job().map_err(with_own_wait)?;
                world::check_time(began)?;
            }
        }
    }
}

/// Adds to the text of an abort the messages for which this rank waits. If ranks wait for each other, the first to come to its limit ends
/// the others, and theirs may be the wrong calls.
fn with_own_wait(mut why: Fail) -> Fail {
    if why.class == Class::ProcAborted as c_int
        && let Some(own) = net().ok().and_then(|net| net.overdue())
    {
        why.text = format!("{own}; {}", why.text).into();
    }
    why
}

/// Pauses after a poll that moved nothing, as the pacer advises. Returns true instead if it advises to sleep.
#[inline]
pub(super) fn wants_sleep(pacer: &mut Pacer) -> bool {
    match pacer.idle(Instant::now) {
        Next::Poll | Next::Check => {}
        Next::Spin => spin(),
        Next::Yield => {
            policy().before_rest();
            yield_now();
            pacer.yielded(Instant::now);
        }
        Next::Sleep | Next::Queue => {
            policy().before_rest();
            return true;
        }
    }
    false
}

/// Advances messages once, and pauses briefly if nothing moves, for programs that call Test or Iprobe in a loop.
///
/// # Errors
/// If nothing moves and the job has failed. A program that only polls would never learn of it otherwise.
pub fn look() -> Outcome {
    if poll_once() {
        return Ok(());
    }
    if policy().spin.is_zero() {
        policy().before_rest();
        yield_now();
    }
    let IdleLooks { left, stride, well } = IDLE_LOOKS.get();
    if left > 1 {
        IDLE_LOOKS.set(IdleLooks { left: left - 1, stride, well });
        return Ok(());
    }
    let now = Instant::now();
    if well.is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY) {
        let stride = (2 * stride).min(STRIDE_MAX);
        IDLE_LOOKS.set(IdleLooks { left: stride, stride, well });
        return Ok(());
    }
    world::check_job()?;
    IDLE_LOOKS.set(IdleLooks { left: 1, stride: 1, well: Some(now) });
    Ok(())
}
