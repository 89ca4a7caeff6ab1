//! Runs a call on symmetric buffers, or finds that another executor must run it.

use std::time::Duration;

use kolo_transport::ErrorKind;

use super::driver::{Fault, Goal, drive, patience};
use super::exchange::at_the_exchange;
use super::run::Begun;
use super::{Step, lend};
use crate::call::Form;
use crate::cancel::Whole;
use crate::communicator::{Attended, Core, CoreGuard};
use crate::dispatch::Executor;
use crate::error::Result;
use crate::symmetric::{self, SymmetricCall};

/// Runs a call that asks for symmetric buffers. Returns `None` if it is done. Otherwise `executor` must run it, in the
/// place that it has kept there: threads that call meanwhile come after it, as on all other ranks.
///
/// # Safety
/// Until this returns, the buffers of the call are valid and nobody else touches them.
#[inline(never)]
pub(super) unsafe fn run_symmetric<'a>(
    begun: &Begun<'a>,
    mut core: CoreGuard<'a>,
    executor: Executor,
    limit: Duration,
) -> Result<(CoreGuard<'a>, Option<Executor>)> {
    let Begun { shared, call, .. } = *begun;
    // Dropped last: taking the buffers back, after `lend`, is part of the call.
    let _whole = Whole::new();
    // If the call is dropped before it is done, it takes the buffers back. By then the communicator has been aborted: by
    // the error, or by `lend` if the call panics.
    let mut running = None;
    let running = &mut running;
    lend(shared, move || {
        let Core { engine, exchange: Some(exchange), symmetric, .. } = &mut *core else {
            unreachable!("there are symmetric buffers only where there is an exchange")
        };
        let running = running.insert(symmetric.enter(&mut exchange.compiled, call, begun.combine, begun.tag));
        let executor = match executor {
            Executor::Exchange { .. } => {
                Executor::Exchange { turn: Some(running.keep_next(&mut exchange.compiled)) }
            }
            Executor::Engine { .. } => Executor::Engine { reservation: Some(engine.reserve(Form::Blocking)) },
        };
        let mut is_declined = false;
        let goal = SymmetricGoal { running, is_declined: &mut is_declined };
        let _attended = Attended::new(&shared.attendance);
        let mut core = drive(shared, core, goal, begun.waited(), &mut patience(shared, limit))?;
        if is_declined {
            return Ok((core, Some(executor)));
        }
        if let Executor::Engine { reservation: Some(reservation) } = executor {
            core.engine.unreserve(reservation);
        }
        Ok((core, None))
    })
}

/// A call on symmetric buffers. Only [`run_symmetric`] makes one, and its caller lends the buffers until it returns.
struct SymmetricGoal<'a, 'call> {
    running: &'a mut SymmetricCall<'call>,
    is_declined: &'a mut bool,
}

impl Goal for SymmetricGoal<'_, '_> {
    fn step(&mut self, core: &mut Core) -> Result<Step, Fault> {
        let Core { exchange: Some(exchange), symmetric, .. } = core else {
            unreachable!("it was there when the call began")
        };
        // SAFETY: the caller of `run_symmetric` lends the buffers.
        let step = unsafe { symmetric.advance(&mut exchange.compiled, self.running) };
        // Before it comes here, another rank may be waiting for an earlier operation of this rank.
        match step.map_err(fault)? {
            symmetric::Step::Done => Ok(Step::Done),
            symmetric::Step::Declined => {
                *self.is_declined = true;
                Ok(Step::Done)
            }
            symmetric::Step::Works => {
                core.progress_others();
                Ok(Step::Works)
            }
            symmetric::Step::Waits => {
                let moved = core.progress_others();
                Ok(at_the_exchange(core, self.running.turn, moved))
            }
        }
    }

    fn waiting_for(&self, core: &Core) -> Vec<u32> {
        core.exchange_waits_for()
    }

    fn turn(&self) -> Option<u64> {
        Some(self.running.turn)
    }
}

fn fault(fault: symmetric::Fault) -> Fault {
    match fault {
        symmetric::Fault::Mismatch(found) => Fault::Mismatch(found),
        symmetric::Fault::Corrupt { member } => {
            let problem = "it claimed a symmetric buffer that there is not";
            let member = Some(member as u32);
            Fault::Transport(kolo_transport::Error::new(ErrorKind::Corrupt, "shm", member, problem))
        }
    }
}
