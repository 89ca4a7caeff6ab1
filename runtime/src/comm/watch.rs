//! The pauses of a wait: pace, deadline, abort, and questions when it takes long.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::failure::Suspicion;
use super::shared::{Core, Shared};
use super::waited::Waited;
use crate::error::Result;
use crate::home::{Home, TURN_MAX};
use crate::wait::{Next, Pacer};

/// How long a stalled wait lasts before the peers are asked what they are doing, and between further questions.
const STALL: Duration = Duration::from_millis(250);

/// After news of a lost peer, an operation may still finish with what has already been sent to this rank: it fails only
/// once nothing has moved for so long.
const LOSS_GRACE: Duration = Duration::from_millis(50);

/// Turns that move something, between two looks at deadline and abort flag: a turn takes some microseconds.
const TURNS_PER_CHECK: u32 = 1024;

/// Calls of less than so many bytes are over when all ranks of a processor have had some turns of microseconds.
const SHORT_BYTES: usize = 64 << 10;

/// Counts a thread that drives for itself, so that the helper stands back.
#[derive(Debug)]
pub(crate) struct Attended<'a>(&'a Shared);

impl<'a> Attended<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        shared.drivers.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        if self.0.drivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.helper.look();
        }
    }
}

/// The pauses of one wait: pace, deadline, abort, and questions when it takes long.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    shared: &'a Shared,
    waited: Waited,
    limit: Duration,
    /// The turn of the call that is waited for, if it is one of the tiny or the direct path.
    turn: Option<u64>,
    pacer: Pacer,
    started: Option<Instant>,
    moved_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// When a peer that is waited for was first seen to have left.
    suspected_at: Option<Instant>,
    /// Turns since deadline and abort flag were looked at.
    turns: u32,
    /// Whether this thread has come back to its processor, unless it was moved since.
    at_home: bool,
    /// Whether no rank needs a processor for long.
    is_short: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(shared: &'a Shared, waited: Waited, limit: Duration) -> Self {
        Self {
            shared,
            waited,
            limit,
            turn: None,
            pacer: Pacer::new(shared.policy),
            started: None,
            moved_at: None,
            asked_at: None,
            suspected_at: None,
            turns: 0,
            at_home: false,
            is_short: waited.summary().is_some_and(|call| {
                call.count.is_some_and(|count| count * call.data_type.size() < SHORT_BYTES)
            }),
        }
    }

    /// The same for a call with this turn.
    pub(crate) fn of_turn(shared: &'a Shared, waited: Waited, limit: Duration, turn: u64) -> Self {
        let mut watch = Self::new(shared, waited, limit);
        watch.turn = Some(turn);
        watch
    }

    /// The pauses of the helper, whose processor may be the one that the program computes on.
    pub(crate) fn beside_computation(shared: &'a Shared, waited: Waited) -> Self {
        Self { pacer: Pacer::beside_computation(shared.policy), ..Self::new(shared, waited, Duration::MAX) }
    }

    /// What to do after a turn that did not finish the wait. Fails when the wait is over for another reason.
    pub(crate) fn pause(
        &mut self,
        mut core: MutexGuard<'a, Core>,
        moved: bool,
        waiting_for: impl Fn(&Core) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, Core>> {
        #[cfg(test)]
        super::lent::injected::pause();
        self.turns += 1;
        let mut next = if moved {
            self.pacer.moved();
            self.moved_at = None;
            self.suspected_at = None;
            Next::Poll
        } else {
            self.pacer.idle()
        };
        // A long transfer moves all the time, or every other turn; it must see aborts and deadlines too.
        if next == Next::Poll && self.turns >= TURNS_PER_CHECK {
            next = Next::Check;
        }
        if next == Next::Poll {
            return Ok(if self.shared.is_wanted() { self.shared.give_way(core) } else { core });
        }
        self.turns = 0;
        if let Some(home) = &mut core.home {
            self.stay_at(home, next);
        }
        core = self.check(core, waiting_for)?;
        Ok(match next {
            Next::Sleep => self.shared.sleep(core, self.turn),
            _ if self.shared.is_wanted() => self.shared.give_way(core),
            _ => core,
        })
    }

    /// Waits for the end of the turn at hand, which is another thread's: that thread drives, and needs the core to do so.
    pub(crate) fn until_turn(&mut self, core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>> {
        self.pacer.look();
        let core = self.check(core, |core| core.tiny.as_ref().map_or_else(Vec::new, |t| t.waiting_for()))?;
        Ok(self.shared.sleep_until_turn(core))
    }

    /// Comes back to this rank's processor before the first pause, and after a sleep; and notices if others do not share it.
    fn stay_at(&mut self, home: &mut Home, next: Next) {
        let came_back = std::mem::replace(&mut self.at_home, next != Next::Sleep);
        if !came_back {
            home.come_back();
        } else if self.is_short && self.pacer.turn() > TURN_MAX {
            home.held_up(self.pacer.now());
        }
    }

    /// Between two pieces of work that nobody else is needed for. Gives way, and fails at the deadline or once the
    /// communicator is aborted: others' parts of the same operation will not come then.
    pub(crate) fn between_pieces(&mut self, core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>> {
        self.pacer.moved();
        self.moved_at = None;
        if self.abort_cause().is_some() {
            drop(core);
            return Err(self.shared.fail(self.waited));
        }
        let core = self.check(core, |_| Vec::new())?;
        Ok(if self.shared.is_wanted() { self.shared.give_way(core) } else { core })
    }

    fn check(
        &mut self,
        core: MutexGuard<'a, Core>,
        waiting_for: impl Fn(&Core) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, Core>> {
        let now = self.pacer.now();
        let started = *self.started.get_or_insert(now);
        let idle = now.saturating_duration_since(*self.moved_at.get_or_insert(now));
        self.shared.hear_last_words(&core, self.waited);
        if let Some(cause) = self.abort_cause()
            && (idle >= LOSS_GRACE || !cause)
        {
            drop(core);
            return Err(self.shared.fail(self.waited));
        }
        if now.saturating_duration_since(started) >= self.limit {
            let peers = waiting_for(&core);
            drop(core);
            return Err(self.shared.time_out(self.waited, self.limit, &peers));
        }
        let core = if idle >= STALL { self.shared.look_for_the_gone(core, self.waited)? } else { core };
        let since = |at: Instant| now.saturating_duration_since(at);
        // A network that is broken for good tells nothing, so this is believed for some time only.
        let is_outrun = self.suspected_at.is_some_and(|at| {
            since(at) < self.shared.world.control.dead_after()
                && self.shared.is_outrun(&core, &waiting_for(&core))
        });
        let suspected_at = self.suspected_at.filter(|_| !is_outrun);
        let is_due = match suspected_at {
            // What it sent before it left has had its time.
            Some(at) => since(at) >= LOSS_GRACE,
            None => idle >= STALL && self.asked_at.is_none_or(|at| since(at) >= 4 * STALL),
        };
        if is_due {
            self.asked_at = Some(now);
            if self.waited.is_message() {
                self.shared.membership.board().waits_in(Some(self.waited.to_string()));
            }
            self.shared.note_unheard(&core);
            let peers = waiting_for(&core);
            drop(core);
            let found = self.shared.examine(self.waited, &peers, suspected_at.is_some())?;
            let first = self.suspected_at.unwrap_or_else(Instant::now);
            self.suspected_at = (found == Suspicion::HasLeft).then_some(first);
            return Ok(self.shared.core());
        }
        Ok(core)
    }

    /// `Some(true)` if the communicator was aborted because a peer was lost, `Some(false)` for another reason.
    fn abort_cause(&self) -> Option<bool> {
        let flag = self.shared.membership.abort_flag();
        if !flag.is_raised() {
            return None;
        }
        Some(flag.cause().is_some_and(|cause| super::failure::is_loss(&cause)))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.asked_at.is_some() {
            let board = self.shared.membership.board();
            board.unheard_by(Vec::new());
            if self.waited.is_message() {
                board.waits_in(None);
            }
        }
    }
}
