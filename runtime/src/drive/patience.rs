//! Decides when a wait looks for failures, asks the peers and gives up. It is told the time, so it needs no clock.

use std::time::{Duration, Instant};

use super::{End, News, Waiter};
use crate::communicator::Limit;
use crate::failure::Suspicion;
use crate::wait::{Next, Pacer};

/// Duration of a stall before the peers are asked what they are doing.
pub(super) const STALL: Duration = Duration::from_millis(250);

/// Interval between further questions.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After news that a needed peer was lost, an operation may still finish with data that was sent to this rank before.
/// It fails only once nothing has moved for this long.
pub(super) const LOSS_GRACE: Duration = Duration::from_millis(50);

/// Grace after the news of a loss where a wait needs only living peers, none of which has given up: a busy host may
/// delay them this long. It is shorter than a stall, since the cause is known.
pub(super) const LIVING_GRACE: Duration = Duration::from_millis(200);

/// Grace after the news of a loss where the lost peer itself is needed, over memory that it wrote before its end: a few
/// time slices of a busy host.
pub(super) const HOPELESS_GRACE: Duration = Duration::from_millis(2);

/// A gap between two checks counts towards these graces up to this limit. A thread that did not run for longer has looked
/// at nothing meanwhile, and its peers may have been held up by the same cause.
pub(super) const BETWEEN_CHECKS_MAX: Duration = Duration::from_millis(50);

/// Steps that move something between two checks of deadline and abort flag. A step takes some microseconds.
pub(super) const TURNS_PER_CHECK: u32 = 1024;

/// The state of one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Limit,
    pacer: Pacer,
    started: Option<Instant>,
    moved_at: Option<Instant>,
    checked_at: Option<Instant>,
    /// How long nothing has moved, as counted for the graces.
    waited: Duration,
    asked_at: Option<Instant>,
    /// The suspicion that the last look at the peers left, and since when it has lasted.
    suspected: Option<(Suspicion, Instant)>,
    /// News of the last check. A later step has seen all data that came before them.
    heard: Option<News>,
    /// Steps since the last check of deadline and abort flag.
    turns: u32,
}

impl Patience {
    /// Starts a wait of at most `limit`.
    pub(crate) const fn new(limit: Limit, pacer: Pacer) -> Self {
        Self {
            limit,
            pacer,
            started: None,
            moved_at: None,
            checked_at: None,
            waited: Duration::ZERO,
            asked_at: None,
            suspected: None,
            heard: None,
            turns: 0,
        }
    }

    /// Starts the next one of several waits, within what is left of the limit.
    pub(super) fn again(self, pacer: Pacer) -> Self {
        Self { started: self.started, ..Self::new(self.limit, pacer) }
    }

    pub(super) const fn pacer(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    /// Returns the action after a step that did not finish the wait.
    pub(super) fn pace(&mut self, moved: bool, now: impl FnOnce() -> Instant) -> Next {
        self.turns += 1;
        let mut next = if moved {
            self.moved();
            self.suspected = None;
            Next::Poll
        } else {
            self.pacer.idle(now)
        };
        // A long transfer moves at every step or every other step, and must notice aborts and deadlines too.
        if !next.is_a_while() && self.turns >= TURNS_PER_CHECK {
            next = Next::Check;
        }
        if next.is_a_while() {
            self.turns = 0;
        }
        next
    }

    /// Returns the action after a piece of work that needs nobody else.
    pub(super) fn works(&mut self, now: Instant) -> Next {
        self.moved();
        self.pacer.look(now);
        Next::Check
    }

    /// Returns the action while another thread has its turn.
    pub(super) fn stands_behind(&mut self, now: Instant) -> Next {
        self.pacer.look(now);
        Next::Queue
    }

    /// Notes that something moved, or that the wait is over.
    pub(super) fn moved(&mut self) {
        self.pacer.moved();
        (self.moved_at, self.waited) = (None, Duration::ZERO);
    }

    /// Checks whether the wait is over for another reason. Returns the action before the next step, which is `next` unless
    /// there are news.
    pub(super) fn check<W: Waiter>(&mut self, waiter: &mut W, next: Next) -> Result<Next, W::Error> {
        let now = self.pacer.now(|| waiter.now());
        let since = |at: Instant| now.saturating_duration_since(at);
        let age = since(*self.started.get_or_insert(now));
        let idle = since(*self.moved_at.get_or_insert(now));
        let unchecked = since(self.checked_at.replace(now).unwrap_or(now));
        self.waited = idle.min(self.waited + unchecked.min(BETWEEN_CHECKS_MAX));
        let news = waiter.news();
        // The last step may have been long ago, and what a lost peer sent may have come since.
        let are_new = std::mem::replace(&mut self.heard, news) != news;
        let is_over = match news {
            None => false,
            Some(News::Lost) => self.waited >= LIVING_GRACE,
            Some(News::Doomed) => self.waited >= LOSS_GRACE,
            Some(News::Hopeless) => self.waited >= HOPELESS_GRACE,
            Some(News::Aborted) => true,
        };
        if is_over && (!are_new || news == Some(News::Aborted)) {
            return Err(waiter.end(End::Failed));
        }
        if age >= self.limit.left {
            return Err(waiter.end(End::Deadline(self.limit.named)));
        }
        if idle >= STALL {
            waiter.look_for_peers()?;
        }
        let suspected = self.suspected.filter(|(what, at)| !waiter.is_outrun(*what, since(*at)));
        let is_due = match suspected {
            // Messages that the peer sent before have had their time.
            Some((_, at)) => since(at) >= LOSS_GRACE,
            None => idle >= STALL && self.asked_at.is_none_or(|at| since(at) >= ASK_AGAIN),
        };
        if is_due {
            self.asked_at = Some(now);
            let found = waiter.ask(suspected.map(|(what, _)| what))?;
            self.suspected = found.map(|what| match self.suspected {
                Some((before, at)) if before == what => (what, at),
                _ => (what, waiter.now()),
            });
        }
        Ok(if is_over { Next::Check } else { next })
    }
}
