//! The end of a communicator.

use std::time::{Duration, Instant};

use kolo_transport::{Error, ErrorKind};

use super::patience::LOSS_GRACE;
use super::{End, Patience, Step, Waiter, helper, until};
use crate::communicator::{Core, CoreGuard, Shared};
use crate::control::Departure;
use crate::wait::{self, Next, Pacer};

/// Longest time for which links are kept for threads that sleep on them.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// Interval between two checks of data that has not yet left.
const LOOK: Duration = Duration::from_micros(200);

/// Ends the helper thread, lets started operations finish and their data leave, for at most `limit`, and gives the
/// connections up. Returns whether everything has left, in which case the departure is orderly and may take the rest of the
/// limit. From then on, ranks that ask are told that this one has dropped the communicator.
///
/// A receive that the program has forgotten is waited for only while messages arrive: its message need not come.
pub(crate) fn close(shared: &Shared, limit: Duration) -> Departure {
    let begun = Instant::now();
    helper::stop(shared);
    let mut closing = Closing { shared, core: None, quiet_since: None };
    let mut patience = Patience::new(limit.into(), Pacer::new(shared.policy));
    let flushed = until(&mut closing, &mut patience).is_ok();
    let mut core = closing.core();
    let cause = Error::new(ErrorKind::Aborted, "kolo", None, "the communicator was dropped");
    let is_over = closing.is_over(&core);
    if !is_over {
        // Data that was reported as sent arrives, even if something else has not left within the limit.
        core.engine.links_mut().leave();
    }
    if is_over || core.engine.has_open_collectives() {
        core.abort(&cause);
    } else {
        core.close(&cause);
    }
    core.closed = true;
    drop(core);
    shared.membership.close();
    release_links(shared, &cause);
    helper::wake_all_tasks(shared);
    let patience = limit.saturating_sub(begun.elapsed());
    if flushed { Departure::Orderly { patience } } else { Departure::Abrupt }
}

struct Closing<'a> {
    shared: &'a Shared,
    core: Option<CoreGuard<'a>>,
    /// When nothing moved any more.
    quiet_since: Option<Instant>,
}

impl<'a> Closing<'a> {
    fn core(&mut self) -> CoreGuard<'a> {
        self.core.take().unwrap_or_else(|| self.shared.core())
    }

    fn is_over(&self, core: &Core) -> bool {
        core.closed || core.engine.failure().is_some() || self.shared.membership.abort_flag().is_raised()
    }
}

impl Waiter for Closing<'_> {
    type Error = ();

    fn step(&mut self) -> Result<Step, ()> {
        let mut core = self.core();
        let has_left = core.engine.needed_at_end() == 0 && core.engine.links().is_flushed();
        let step = if self.is_over(&core) || (has_left && core.engine.outstanding() == 0) {
            Step::Done
        } else {
            let moved = core.progress();
            if moved {
                self.quiet_since = None;
            }
            let is_quiet = self.quiet_since.get_or_insert_with(Instant::now).elapsed() >= LOSS_GRACE;
            if has_left && is_quiet { Step::Done } else { Step::Waits { moved } }
        };
        self.core = Some(core);
        Ok(step)
    }

    fn rest(&mut self, next: Next, _: &mut Pacer) {
        if next == Next::Poll {
            return;
        }
        self.core = None;
        match next {
            Next::Spin => wait::spin(),
            Next::Yield => wait::yield_now(),
            Next::Sleep => wait::sleep(LOOK),
            Next::Poll | Next::Check | Next::Queue => {}
        }
    }

    fn end(&mut self, _: End) {}
}

/// Drops the links once no thread that waits for a handle can be asleep on them. Such a thread finds the abort when it
/// wakes up. If it does not return, the links live as long as the handle.
fn release_links(shared: &Shared, cause: &Error) {
    let deadline = Instant::now() + RELEASE_MAX;
    while shared.attendance.is_driven() {
        if Instant::now() >= deadline {
            return;
        }
        wait::sleep(LOOK);
    }
    shared.core().engine.close(cause);
}
