//! Operations that use the stage of the host. Each call of progress polls those that wait there for other ranks.

use super::Engine;
use super::operation::Operation;
use super::slot::Phase;

/// Polls of the stage for one poll of links that carry nothing. Such links only report the ends of peers, and polling
/// them costs several polls of the stage.
const LOOKS_AT_STAGE: u32 = 16;

impl Engine {
    /// Advances operations that waited for other ranks on the stage. Returns whether there were any.
    pub(super) fn look_at_stage(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while self.failure.is_none()
            && let Some(slot) = self.staged.get(at).copied()
        {
            let Phase::Running(operation) = &mut self.slots[slot as usize].phase else {
                unreachable!("operations are listed while they run")
            };
            let looked = operation.look_at_stage(&mut self.io);
            any |= *looked.as_ref().unwrap_or(&true);
            self.went_on(slot, looked.map(drop));
            at += usize::from(self.staged.get(at) == Some(&slot));
        }
        any
    }

    /// Returns whether the links need not be polled now, because nothing outstanding has messages.
    pub(super) fn skips_links(&mut self) -> bool {
        let is_quiet = self.running == self.staged.len()
            && self.transfers.active() == 0
            && self.staged_operations().all(Operation::is_silent);
        self.looks_left = if is_quiet && self.looks_left > 0 { self.looks_left - 1 } else { LOOKS_AT_STAGE };
        self.looks_left < LOOKS_AT_STAGE
    }

    /// Makes the next call of progress poll the links, whatever is outstanding.
    pub(super) const fn look_at_links(&mut self) {
        self.looks_left = 0;
    }

    /// Returns the ranks that have not published a round on the stage that something outstanding waits for.
    pub(crate) fn late_on_stage(&self) -> Vec<u32> {
        self.staged_operations().flat_map(|operation| operation.late_on_stage(&self.io.links)).collect()
    }

    fn staged_operations(&self) -> impl Iterator<Item = &Operation> {
        self.staged.iter().filter_map(|slot| self.slots[*slot as usize].operation())
    }

    /// Returns the ranks that share memory with this one, including it; empty if there are no others.
    pub(crate) fn stage_members(&self) -> &[u32] {
        self.io.links.stage().map_or(&[], |stage| stage.members())
    }
}
