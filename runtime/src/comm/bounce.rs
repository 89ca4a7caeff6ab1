//! A call of the tiny path on a GPU's memory: it runs on copies in pinned memory of the host.
//!
//! Ranks whose memory is the host's take the same path, and see no difference.

use std::sync::MutexGuard;

use kolo_collectives::plan::{Collective, Placement};
use kolo_gdr::Copies;
use kolo_transport::Error;

use super::failure::Poison;
use super::shared::{Core, Shared};
use super::waited::Waited;
use super::watch::Watch;
use crate::call::Call;
use crate::engine::{Staging, failed};
use crate::error::Result;

/// Starts of buffers: two cache lines.
const ALIGN: usize = 128;

/// Pinned memory, and the stream that fills and empties it. Kept between calls.
#[derive(Debug)]
pub(crate) struct Bounce {
    // Settles before the memory goes.
    copies: Option<Copies<()>>,
    memory: Staging,
}

/// A copy: from, to, bytes.
type Part = (*const u8, *mut u8, usize);

/// A call on the host's memory in the place of one on a GPU's.
#[derive(Debug)]
pub(super) struct Bounced {
    pub(super) call: Call,
    /// What is to be copied before, and after.
    pub(super) load: Option<Part>,
    pub(super) store: Option<Part>,
}

impl Bounce {
    pub(super) const fn new() -> Self {
        Self { copies: None, memory: Staging::new() }
    }

    /// Makes room for the buffers of a call that are a GPU's, and a call on that room.
    pub(super) fn prepare(&mut self, call: &Call, rank: u32, members: u32) -> Result<Bounced, Error> {
        let (input, output) = call.bytes(rank, members);
        let in_place = call.placement == Placement::InPlace;
        let mut bounced = Bounced { call: call.clone(), load: None, store: None };
        bounced.call.gpus = None;
        let Some(gpu) = call.sides().any() else { return Ok(bounced) };
        // In place, one buffer lies in the other.
        let room = if in_place { input.max(output) } else { input.next_multiple_of(ALIGN) + output };
        self.memory.reserve(room.max(1));
        self.memory.pin(gpu)?;
        if self.copies.as_ref().is_none_or(|copies| copies.gpu().number() != gpu.number()) {
            self.copies = Some(Copies::new(gpu).map_err(failed)?);
        }
        let start = self.memory.ptr();
        let (from, to) = if in_place {
            let longer = if input > output { call.input } else { call.output.cast_const() };
            let at = |address: *const u8| start.wrapping_add(address.addr().wrapping_sub(longer.addr()));
            (at(call.input), at(call.output))
        } else {
            (start, start.wrapping_add(input.next_multiple_of(ALIGN)))
        };
        if call.sides().input.is_some() {
            bounced.call.input = from;
            bounced.load = Some((call.input, from, input)).filter(|part| part.2 > 0);
        }
        if call.sides().output.is_some() {
            bounced.call.output = to;
            let left_alone = call.collective == Collective::ExScan && rank == 0;
            bounced.store =
                Some((to.cast_const(), call.output, output)).filter(|part| part.2 > 0 && !left_alone);
        }
        Ok(bounced)
    }
}

impl Shared {
    /// Copies a part, and waits for it.
    ///
    /// # Safety
    /// The part is of the call that `bounce` was prepared for, whose buffers are valid.
    pub(super) unsafe fn carry<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        bounce: &mut Bounce,
        part: Part,
        watch: &mut Watch<'a>,
        waited: Waited,
    ) -> Result<MutexGuard<'a, Core>> {
        let Some(copies) = &mut bounce.copies else { return Ok(core) };
        // SAFETY: the host's side is pinned memory of ours, long enough; the copies are settled before it goes.
        let mut result = unsafe { copies.start([part], ()) };
        core.bouncing += 1;
        while result.is_ok() && !copies.is_idle() {
            result = copies.poll().map(|_| ());
            let turned = core.engine.outstanding() > 0 && core.turn();
            core = match watch.pause(core, turned, |_| Vec::new()) {
                Ok(core) => core,
                Err(error) => {
                    copies.settle();
                    self.core().bouncing -= 1;
                    return Err(error);
                }
            };
        }
        core.bouncing -= 1;
        let Err(words) = result else { return Ok(core) };
        copies.settle();
        drop(core);
        self.poison_with(Poison::Transport(failed(words)));
        Err(self.fail(waited))
    }
}
