//! When a wait looks for failures, asks the peers, and gives up: from the time that it is told, so without a clock.

use std::time::{Duration, Instant};

use super::{End, News, Suspicion, Waiter};
use crate::wait::{Next, Pacer};

/// Duration of a stall before the peers are asked what they are doing.
pub(super) const STALL: Duration = Duration::from_millis(250);

/// Between further questions.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After news of a lost peer that is waited for, an operation may still finish with what has already been sent to this rank:
/// it fails only once nothing has moved for so long.
pub(super) const LOSS_GRACE: Duration = Duration::from_millis(50);

/// The same where only others are waited for, and none of them has given up: a busy host may keep them that long. Shorter than a
/// stall, since the cause is known.
pub(super) const LIVING_GRACE: Duration = Duration::from_millis(200);

/// The same where the lost peer itself is waited for, over memory that it has written before its end: some turns of a busy host.
pub(super) const HOPELESS_GRACE: Duration = Duration::from_millis(2);

/// Turns that move something, between two looks at deadline and abort flag: a turn takes some microseconds.
pub(super) const TURNS_PER_CHECK: u32 = 1024;

/// The state of one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    pacer: Pacer,
    started: Option<Instant>,
    moved_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// When a peer that is waited for was first seen to have left.
    suspected_at: Option<Instant>,
    /// Turns since deadline and abort flag were looked at.
    turns: u32,
}

impl Patience {
    /// At most for `limit`.
    pub(crate) const fn new(limit: Duration, pacer: Pacer) -> Self {
        Self { limit, pacer, started: None, moved_at: None, asked_at: None, suspected_at: None, turns: 0 }
    }

    /// Also at most so long.
    pub(super) fn end_within(&mut self, limit: Duration) {
        self.limit = self.limit.min(limit);
    }

    pub(super) const fn pacer(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    /// The next step after one that did not finish the wait.
    pub(super) fn pace(&mut self, moved: bool, now: impl FnOnce() -> Instant) -> Next {
        self.turns += 1;
        let mut next = if moved {
            self.moved();
            self.suspected_at = None;
            Next::Poll
        } else {
            self.pacer.idle(now)
        };
        // A long transfer moves all the time, or every other turn; it must see aborts and deadlines too.
        if !next.is_a_while() && self.turns >= TURNS_PER_CHECK {
            next = Next::Check;
        }
        if next.is_a_while() {
            self.turns = 0;
        }
        next
    }

    /// The next step after a piece of work that nobody else is needed for.
    pub(super) fn works(&mut self, now: Instant) -> Next {
        self.moved();
        self.pacer.look(now);
        Next::Check
    }

    /// The next step while another thread has its turn.
    pub(super) fn stands_behind(&mut self, now: Instant) -> Next {
        self.pacer.look(now);
        Next::Queue
    }

    fn moved(&mut self) {
        self.pacer.moved();
        self.moved_at = None;
    }

    /// Looks whether the wait is over for another reason.
    pub(super) fn check<W: Waiter>(&mut self, waiter: &mut W) -> Result<(), W::Error> {
        let now = self.pacer.now(|| waiter.now());
        let since = |at: Instant| now.saturating_duration_since(at);
        let age = since(*self.started.get_or_insert(now));
        let idle = since(*self.moved_at.get_or_insert(now));
        let is_over = match waiter.news() {
            None => false,
            Some(News::Lost) => idle >= LIVING_GRACE,
            Some(News::Doomed) => idle >= LOSS_GRACE,
            Some(News::Hopeless) => idle >= HOPELESS_GRACE,
            Some(News::Aborted) => true,
        };
        if is_over {
            return Err(waiter.end(End::Failed));
        }
        if age >= self.limit {
            return Err(waiter.end(End::Deadline(self.limit)));
        }
        if idle >= STALL {
            waiter.look_for_peers()?;
        }
        let suspected_at = self.suspected_at.filter(|at| !waiter.is_outrun(since(*at)));
        let is_due = match suspected_at {
            // Messages it sent before it left have had their time.
            Some(at) => since(at) >= LOSS_GRACE,
            None => idle >= STALL && self.asked_at.is_none_or(|at| since(at) >= ASK_AGAIN),
        };
        if is_due {
            self.asked_at = Some(now);
            let found = waiter.ask(suspected_at.is_some())?;
            let first = self.suspected_at.unwrap_or_else(|| waiter.now());
            self.suspected_at = (found == Suspicion::HasLeft).then_some(first);
        }
        Ok(())
    }
}
