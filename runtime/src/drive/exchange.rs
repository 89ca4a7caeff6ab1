//! Runs a call through the exchange of the host, on this thread.

use std::time::Duration;

use super::driver::{Fault, Goal, drive, patience};
use super::lent::Lent;
use super::run::Begun;
use super::{Step, lend};
use crate::call::Call;
use crate::communicator::{Attended, Core, CoreGuard, Shared};
use crate::error::Result;
use crate::exchange::compiled::ExchangeCursor;
use crate::wait;

/// Polls of an exchange before the full wait begins, where spinning is wanted: about a microsecond, which is enough for
/// most exchanges.
const POLLS_FIRST: u32 = 64;

/// Runs a call through the exchange, in this turn or in the next one that is free.
///
/// # Safety
/// See [`run_within`](super::run_within).
#[inline(always)]
pub(super) unsafe fn run_exchange<'a>(
    begun: &Begun<'a>,
    mut core: CoreGuard<'a>,
    turn: Option<u64>,
    limit: Duration,
) -> Result<CoreGuard<'a>> {
    let Begun { shared, call, .. } = *begun;
    let Some(exchange) = &mut core.exchange else { unreachable!("it was decided for") };
    let cursor = exchange.compiled.enter(call, begun.combine, begun.tag, turn);
    let mut goal = ExchangeGoal { call, cursor, has_just_looked: true };
    if goal.cursor.may_lend() {
        // All of it runs inside `lend`, which takes the buffers back after a panic.
        goal.has_just_looked = false;
        return watched(begun, core, goal, limit);
    }
    let (core, outcome) = poll_first(shared, core, &mut goal);
    match outcome {
        Ok(true) => Ok(core),
        Ok(false) => watched(begun, core, goal, limit),
        Err(fault) => {
            drop(core);
            Err(fault.error(shared, begun.waited()))
        }
    }
}

/// Polls a call for about a microsecond. A panic has the consequences that it has in `lend`; nothing here can unwind once
/// the guard has ended, so the guard costs nothing.
#[inline(always)]
fn poll_first<'a>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    goal: &mut ExchangeGoal<'_>,
) -> (CoreGuard<'a>, Result<bool, Fault>) {
    let lent = Lent::new(shared);
    // Dropped before the guard, which needs it.
    let mut core = core;
    let mut polls = if shared.policy.spin.is_zero() { 0 } else { POLLS_FIRST };
    #[cfg(test)]
    super::injected::first_poll();
    let outcome = loop {
        match goal.advance(&mut core) {
            Ok(false) if polls > 0 && !shared.is_wanted() && core.engine.outstanding() == 0 => {}
            outcome => break outcome,
        }
        polls -= 1;
        // No more often than this: each poll takes the cache line from the rank that is about to write it.
        wait::spin();
    };
    lent.take_back();
    (core, outcome)
}

/// Goes on with a call that takes longer, or beside which other work is outstanding.
#[inline(never)]
fn watched<'a>(
    begun: &Begun<'a>,
    core: CoreGuard<'a>,
    goal: ExchangeGoal<'_>,
    limit: Duration,
) -> Result<CoreGuard<'a>> {
    let shared = begun.shared;
    lend(shared, move || {
        let _attended = Attended::new(&shared.attendance);
        drive(shared, core, goal, begun.waited(), &mut patience(shared, limit))
    })
}

/// A call on its way through the exchange. Only [`run_exchange`] makes one, and its caller lends the buffers until it
/// returns.
struct ExchangeGoal<'c> {
    call: &'c Call,
    cursor: ExchangeCursor,
    /// Whether the loop's first step would only poll again, and take the cache lines from the ranks about to write
    /// them.
    has_just_looked: bool,
}

impl ExchangeGoal<'_> {
    #[inline(always)]
    fn advance(&mut self, core: &mut Core) -> Result<bool, Fault> {
        let Some(exchange) = &mut core.exchange else { unreachable!("it was decided for") };
        // SAFETY: this is the call that entered, and the caller of `run_exchange` lends the buffers.
        unsafe { exchange.compiled.advance(self.call, &mut self.cursor) }.map_err(Fault::Mismatch)
    }
}

impl Goal for ExchangeGoal<'_> {
    fn step(&mut self, core: &mut Core) -> Result<Step, Fault> {
        let before = self.cursor.position();
        if !std::mem::take(&mut self.has_just_looked) && self.advance(core)? {
            return Ok(Step::Done);
        }
        // Before it comes here, another rank may be waiting for an earlier operation of this rank.
        let moved = core.progress_others() || self.cursor.position() > before;
        Ok(at_the_exchange(core, self.cursor.turn, moved))
    }

    fn waiting_for(&self, core: &Core) -> Vec<u32> {
        core.exchange_waits_for()
    }

    fn turn(&self) -> Option<u64> {
        Some(self.cursor.turn)
    }
}

/// Returns the result of a step of a call that has this turn at the exchange and has not advanced.
pub(super) fn at_the_exchange(core: &Core, turn: u64, moved: bool) -> Step {
    match &core.exchange {
        Some(exchange) if exchange.is_stuck(&core.engine) => Step::Failed,
        Some(exchange) if exchange.is_behind_a_thread(turn) => Step::Behind,
        _ => Step::Waits { moved },
    }
}
