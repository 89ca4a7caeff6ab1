//! Running a call on symmetric buffers, or finding out that it must go another way.

use std::sync::MutexGuard;
use std::time::Duration;

use kolo_transport::ErrorKind;

use super::direct::{Fault, Passage, Step};
use super::failure::Poison;
use super::run::POLLS_FIRST;
use super::shared::{Core, Shared};
use super::waited::Waited;
use super::watch::{Attended, Watch};
use crate::call::Call;
use crate::error::{Error, Result};

impl Shared {
    /// Runs a call that was considered for the direct path; false if it must go another way.
    ///
    /// # Safety
    /// The buffers of the call are valid and not touched by anybody else until this returns.
    pub(super) unsafe fn run_direct<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        call: &Call,
        tag: u64,
        (waited, limit): (Waited, Duration),
    ) -> Result<(MutexGuard<'a, Core>, bool)> {
        let combine = self.combine(call)?;
        self.lend(move || {
            let Core { tiny: Some(tiny), direct, .. } = &mut *core else {
                unreachable!("there are symmetric buffers only where there is a tiny path")
            };
            // Dropped before it is done, after an error or by unwinding, it takes the buffers back.
            let mut passage = direct.enter(tiny, call, combine, tag);
            // SAFETY: handed on.
            unsafe { self.pass(core, &mut passage, (waited, limit)) }
        })
    }

    /// # Safety
    /// As [`Direct::advance`](super::direct::Direct::advance).
    unsafe fn pass<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        passage: &mut Passage<'_>,
        (waited, limit): (Waited, Duration),
    ) -> Result<(MutexGuard<'a, Core>, bool)> {
        let mut watch: Option<(Attended<'_>, Watch<'_>)> = None;
        let polls_first = if self.policy.spin.is_zero() { 0 } else { POLLS_FIRST };
        let mut polls = polls_first;
        loop {
            let Core { tiny: Some(tiny), direct, .. } = &mut *core else {
                unreachable!("the caller found it")
            };
            // SAFETY: handed on.
            let step = match unsafe { direct.advance(tiny, passage) } {
                Ok(Step::Done) => return Ok((core, true)),
                Ok(Step::Declined) => return Ok((core, false)),
                Ok(step) => step,
                Err(fault) => {
                    drop(core);
                    return Err(self.direct_fault(fault, waited));
                }
            };
            if step == Step::Waits && polls > 0 && !self.is_wanted() && core.engine.outstanding() == 0 {
                polls -= 1;
                std::hint::spin_loop();
                continue;
            }
            // Somebody may be waiting for an earlier operation of ours before coming here.
            let moved = core.engine.outstanding() > 0 && core.turn();
            let turn = passage.turn();
            let (_, watch) =
                watch.get_or_insert_with(|| (Attended::new(self), Watch::of_turn(self, waited, limit, turn)));
            if step == Step::Works {
                polls = polls_first;
                core = watch.between_pieces(core)?;
                continue;
            }
            core = if core.is_behind_a_thread(turn) {
                watch.until_turn(core)?
            } else {
                watch.pause(core, moved, |core| {
                    core.tiny.as_ref().map_or_else(Vec::new, |t| t.waiting_for())
                })?
            };
        }
    }

    fn direct_fault(&self, fault: Fault, waited: Waited) -> Error {
        let member = match fault {
            Fault::Mismatch(found) => return self.tiny_mismatch(found, waited),
            Fault::Corrupt { member } => member as u32,
        };
        let problem = "it claimed a symmetric buffer that there is not";
        let error = kolo_transport::Error::new(ErrorKind::Corrupt, "shm", Some(member), problem);
        self.poison_with(Poison::Transport(error));
        self.fail(waited)
    }
}
