//! A thread that drives the engine until its own goal is reached.

use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use kolo_transport::{Armed, ParkBy, StageMismatch};

use super::asking::{self, Awaits};
use super::patience::STALL;
use super::{
    End, News, Patience, Step, Ticket, Waiter, fail, orphans, time_out, timed_out, until, wake_tasks,
};
use crate::affinity::{GAP_MAX, SoftAffinity};
use crate::call::Waited;
use crate::cancel::Whole;
use crate::communicator::{Attended, Core, CoreGuard, Shared};
use crate::engine::{Id, Route};
use crate::error::{Error, Result};
use crate::failure::{Suspicion, is_loss};
use crate::wait::{self, Next, Pacer};

/// A call of fewer bytes is over once all ranks on a processor have run a few times for some microseconds.
const SHORT_BYTES: usize = 64 << 10;

/// Pause between two polls of copies that send no notification: about the duration of a segment's copy.
const COPY_NAP: Duration = Duration::from_micros(50);

/// Grace for the last data of a peer that shares memory and has finished the call. The data can be read before the peer
/// finishes, so the grace covers only a busy host.
const COUNTS_GRACE: Duration = Duration::from_secs(3);

/// A goal to which a thread drives the engine.
pub(super) trait Goal {
    /// Advances the goal and all other outstanding work.
    ///
    /// # Errors
    /// A mismatch in the exchange, or a failure of a transport.
    fn step(&mut self, core: &mut Core) -> Result<Step, Fault>;

    /// Returns the ranks that the goal waits for.
    fn waiting_for(&self, core: &Core) -> Vec<u32>;

    /// Returns whether any one of these ranks is enough.
    fn is_from_any(&self, _core: &Core) -> bool {
        false
    }

    /// Returns the operation that is awaited, if it is one.
    fn operation(&self) -> Option<Id> {
        None
    }

    /// Returns the goal's turn at the exchange, if it has one.
    fn turn(&self) -> Option<u64> {
        None
    }
}

/// A fault that a goal can meet.
pub(super) enum Fault {
    /// A member made another call.
    Mismatch(StageMismatch),
    /// A transport failed, or a member sent invalid data.
    Transport(kolo_transport::Error),
}

impl Fault {
    /// Makes the fault the communicator's, and returns the error of the call that met it. The caller must not hold the
    /// core.
    #[cold]
    pub(super) fn error(self, shared: &Shared, waited: Waited) -> Error {
        let _whole = Whole::new();
        match self {
            Self::Mismatch(found) => fail::mismatch(shared, found, waited),
            Self::Transport(error) => fail::give_up(shared, crate::failure::Cause::Transport(error), waited),
        }
    }
}

/// Drives until operation `id` is done. When this returns, the engine no longer touches the caller's memory.
pub(crate) fn wait_for<'a>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    id: Id,
    waited: Waited,
    limit: Duration,
) -> Result<CoreGuard<'a>> {
    if core.engine.is_done(id) {
        return Ok(core);
    }
    let _attended = Attended::new(&shared.attendance);
    drive(shared, core, OperationGoal(id), waited, &mut patience(shared, limit))
}

/// Drives until all of these operations are done, within one limit, and calls `over` for each.
pub(crate) fn wait_for_all<'a>(
    shared: &'a Shared,
    mut core: CoreGuard<'a>,
    tickets: impl IntoIterator<Item = Ticket>,
    limit: Duration,
    mut over: impl FnMut(&mut Core, Id),
) -> Result<CoreGuard<'a>> {
    let mut before: Option<Patience> = None;
    for Ticket { id, waited } in tickets {
        if !core.engine.is_done(id) {
            let _attended = Attended::new(&shared.attendance);
            let again = |before: Patience| before.again(Pacer::new(shared.policy));
            let mut patience = before.map_or_else(|| patience(shared, limit), again);
            core = drive(shared, core, OperationGoal(id), waited, &mut patience)?;
            before = Some(patience);
        }
        over(&mut core, id);
    }
    Ok(core)
}

/// Returns the patience of a thread that waits for a call with this limit, or until the limit for several calls.
pub(super) fn patience(shared: &Shared, limit: Duration) -> Patience {
    Patience::new(shared.time_limit.within(limit.into()), Pacer::new(shared.policy))
}

/// Asks the peers for which operation `id` waits, as a wait does that has suspected one of them for long enough.
#[cfg(test)]
pub(crate) fn ask_for<'a>(shared: &'a Shared, core: CoreGuard<'a>, id: Id, waited: Waited) -> Result<()> {
    Driver::new(shared, core, OperationGoal(id), waited).ask(Some(Suspicion::HasLeft)).map(|_| ())
}

/// An operation that the engine knows.
struct OperationGoal(Id);

impl Goal for OperationGoal {
    fn step(&mut self, core: &mut Core) -> Result<Step, Fault> {
        let moved = core.progress();
        let Core { engine, exchange, .. } = core;
        let is_moving = || exchange.as_ref().is_some_and(|exchange| exchange.queue_is_moving());
        Ok(if engine.is_done(self.0) {
            Step::Done
        } else if engine.failure().is_some() {
            Step::Failed
        } else if engine.is_elsewhere(self.0) && !is_moving() {
            Step::Behind
        } else {
            Step::Waits { moved }
        })
    }

    fn waiting_for(&self, core: &Core) -> Vec<u32> {
        core.waiting_for(self.0)
    }

    fn is_from_any(&self, core: &Core) -> bool {
        core.engine.is_from_any(self.0)
    }

    fn operation(&self) -> Option<Id> {
        Some(self.0)
    }
}

/// Returns whether no rank needs a processor for long in this call.
fn is_short(waited: Waited) -> bool {
    let bytes = waited.summary().and_then(|call| Some(call.count? * call.data_type.size()));
    bytes.is_some_and(|bytes| bytes < SHORT_BYTES)
}

/// Drives until the goal is reached.
pub(super) fn drive<'a, G: Goal>(
    shared: &'a Shared,
    core: CoreGuard<'a>,
    goal: G,
    waited: Waited,
    patience: &mut Patience,
) -> Result<CoreGuard<'a>> {
    let is_short = is_short(waited);
    let contention = core.processor.contention.of(is_short, Instant::now);
    let mut driver = Driver::new(shared, core, goal, waited);
    patience.pacer().contention = contention;
    until(&mut driver, patience)?;
    let mut core = driver.core();
    let contention = patience.pacer().contention;
    core.processor.contention.keep(is_short, contention);
    if let Some(exchange) = &mut core.exchange {
        exchange.compiled.note_others(contention.until());
    }
    Ok(core)
}

struct Driver<'a, G> {
    shared: &'a Shared,
    /// `None` while the driver rests or asks, and after an error.
    core: Option<CoreGuard<'a>>,
    goal: G,
    waited: Waited,
    /// Whether this thread has returned to its processor, unless the scheduler has moved it since.
    has_returned: bool,
    /// Whether no rank needs a processor for long.
    is_short: bool,
    /// Time of the first question.
    asked_at: Option<Instant>,
    /// Whether the board shows other ranks what this thread waits for.
    shows_wait: bool,
    /// Whether the last question has found that a rank has left which only other operations need: awaited or polled ones.
    suspects_others: bool,
}

impl<'a, G: Goal> Driver<'a, G> {
    fn new(shared: &'a Shared, core: CoreGuard<'a>, goal: G, waited: Waited) -> Self {
        Self {
            shared,
            core: Some(core),
            goal,
            waited,
            has_returned: false,
            is_short: is_short(waited),
            asked_at: None,
            shows_wait: false,
            suspects_others: false,
        }
    }

    fn core(&mut self) -> CoreGuard<'a> {
        self.core.take().unwrap_or_else(|| self.shared.core())
    }

    /// Shows other ranks what this thread waits for, unless it is the call that was started last: the board shows that.
    fn show_wait(&mut self) {
        let board = self.shared.membership.board();
        let text = match self.waited {
            Waited::Call(summary, Some(number)) if number < board.started() => format!("#{number} {summary}"),
            Waited::Message(..) => self.waited.to_string(),
            Waited::Call(..) | Waited::Other(_) => return,
        };
        self.shows_wait = true;
        board.waits_in(Some(text));
    }

    /// Returns the ranks that the goal waits for, and releases the core.
    fn peers(&mut self) -> Vec<u32> {
        let core = self.core();
        self.goal.waiting_for(&core)
    }
}

impl<G: Goal> Waiter for Driver<'_, G> {
    type Error = Error;

    fn step(&mut self) -> Result<Step> {
        let core = self.core.get_or_insert_with(|| self.shared.core());
        let step = self.goal.step(core);
        step.map_err(|fault| {
            self.core = None;
            fault.error(self.shared, self.waited)
        })
    }

    fn news(&mut self) -> Option<News> {
        let mut core = self.core.get_or_insert_with(|| self.shared.core());
        if let Some(word) = orphans::last_word(self.shared, core) {
            self.core = None;
            orphans::adopt_last_word(self.shared, word, self.waited);
            core = self.core.insert(self.shared.core());
        }
        let flag = self.shared.membership.abort_flag();
        if !flag.is_raised() {
            // The helper thread stands back while this one drives.
            let (id, waited, limit) = core.awaited.overdue()?;
            let peers = core.waiting_for(id);
            self.core = None;
            drop(time_out(self.shared, waited, limit, &peers));
            return Some(News::Aborted);
        }
        let Some(lost) = flag.cause().filter(|cause| is_loss(cause) && !flag.is_revoked()) else {
            return Some(News::Aborted);
        };
        let by_memory = self.shared.group.route(lost.by).is_some_and(Route::shares_memory);
        Some(match self.goal.waiting_for(core).contains(&lost.by) {
            true if by_memory => News::Hopeless,
            true => News::Doomed,
            // Without a control plane, possibly no rank passes the word on.
            false
                if flag.is_given_up() || orphans::has_word(core) || self.shared.world.control.is_closed() =>
            {
                News::Doomed
            }
            false => News::Lost,
        })
    }

    fn rest(&mut self, next: Next, pacer: &mut Pacer) {
        #[cfg(test)]
        super::injected::pause();
        let mut core = self.core();
        if core.awaited.has_to_wake() {
            wake_tasks(core);
            core = self.shared.core();
        }
        let resettles = next == Next::Yield && core.processor.resettles(|| pacer.now(|| self.now()));
        let next = if resettles { Next::Sleep } else { next };
        if next.is_a_while()
            && next != Next::Queue
            && let Some(affinity) = &mut core.processor.affinity
        {
            if !affinity.is_shared() {
                if next == Next::Yield && pacer.shares_with_a_peer() {
                    affinity.come_back();
                }
            } else if !pacer.contention.is_present(pacer.now(|| self.now())) {
                keep_affinity(affinity, &mut self.has_returned, next, self.is_short.then_some(&*pacer));
            }
        }
        match next {
            Next::Spin => wait::spin(),
            Next::Yield => {
                self.shared.policy.before_rest();
                wait::yield_now();
                pacer.yielded(|| self.now());
            }
            Next::Poll | Next::Check | Next::Sleep | Next::Queue => {}
        }
        self.core = Some(match next {
            Next::Sleep => sleep(self.shared, core, self.goal.operation(), self.goal.turn()),
            Next::Queue => sleep_until_turn(self.shared, core),
            _ if self.shared.is_wanted() => self.shared.give_way(core),
            _ => core,
        });
    }

    fn end(&mut self, why: End) -> Error {
        match why {
            End::Failed => {
                self.core = None;
                fail(self.shared, self.waited)
            }
            End::Deadline(limit) => {
                let peers = self.peers();
                time_out(self.shared, self.waited, limit, &peers)
            }
        }
    }

    fn look_for_peers(&mut self) -> Result<()> {
        let core = self.core();
        self.core = Some(orphans::look_for_the_gone(self.shared, core, self.waited)?);
        Ok(())
    }

    fn ask(&mut self, suspected: Option<Suspicion>) -> Result<Option<Suspicion>> {
        let asked_at = *self.asked_at.get_or_insert_with(Instant::now);
        self.show_wait();
        let mut core = self.core();
        let (shared, goal, waited) = (self.shared, &self.goal, self.waited);
        let unheard = timed_out::note_unheard(shared, &core);
        if unheard.into_iter().any(|peer| core.engine.links_mut().black_hole(peer).is_some()) {
            let peers = goal.waiting_for(&core);
            drop(core);
            return Err(time_out(shared, waited, STALL + asked_at.elapsed(), &peers));
        }
        let needs = if goal.is_from_any(&core) { Awaits::Any } else { Awaits::All };
        drop(core);
        let suspects_others = std::mem::take(&mut self.suspects_others);
        let is_over = |core: &Core| goal.operation().is_some_and(|id| core.engine.is_done(id));
        let own = |core: &Core| if is_over(core) { Vec::new() } else { goal.waiting_for(core) };
        let found = asking::examine(shared, waited, needs, own, suspected.filter(|_| !suspects_others))?;
        if found.is_some() {
            return Ok(found);
        }
        // No thread waits for the operations that tasks await or the program polls.
        let suspected = suspected.filter(|_| suspects_others);
        let found = asking::examine(shared, waited, Awaits::Others, Core::awaited_wait_for, suspected)?;
        self.suspects_others = found.is_some();
        Ok(found)
    }

    /// The peer's word over the control plane overtakes bytes that are sent again after a packet loss. The end of
    /// its connection comes behind these bytes. A network that is broken for good never reports that end, so it is
    /// waited for only up to a limit.
    fn is_outrun(&mut self, suspicion: Suspicion, for_so_long: Duration) -> bool {
        let core = self.core();
        let shared = self.shared;
        if suspicion == Suspicion::HasFinished {
            let peers = self.goal.waiting_for(&core);
            let share_memory = |peer: &u32| shared.group.route(*peer).is_some_and(Route::shares_memory);
            let limit =
                if peers.iter().all(share_memory) { COUNTS_GRACE } else { shared.world.control.dead_after() };
            self.core = Some(core);
            return for_so_long < limit;
        }
        let peers = if self.suspects_others { core.awaited_wait_for() } else { self.goal.waiting_for(&core) };
        let is_outrun = for_so_long < shared.world.control.dead_after()
            && peers
                .iter()
                .any(|peer| core.engine.links().is_hearing(*peer) && shared.membership.departed(*peer));
        self.core = Some(core);
        is_outrun
    }
}

impl<G> Drop for Driver<'_, G> {
    fn drop(&mut self) {
        if self.asked_at.is_some() {
            let board = self.shared.membership.board();
            board.unheard_by(Vec::new());
            if self.shows_wait {
                board.waits_in(None);
            }
        }
    }
}

/// Returns to this rank's processor before the first pause and after a sleep. Notices if other threads do not give the
/// processor back.
fn keep_affinity(affinity: &mut SoftAffinity, has_returned: &mut bool, next: Next, short: Option<&Pacer>) {
    let came_back = std::mem::replace(has_returned, next != Next::Sleep);
    if !came_back {
        affinity.come_back();
    } else if let Some(pacer) = short.filter(|pacer| pacer.gap() > GAP_MAX) {
        affinity.held_up(pacer.now(Instant::now));
    }
}

/// Sleeps until an endpoint has something, until the exchange has something for the call with this turn, until another
/// thread has ended the operation, or briefly.
///
/// Several threads may sleep at once. The first to wake leaves the links armed for the others. An event disarms the links
/// and wakes all threads. A thread that is about to sleep therefore disarms and arms again, since arming armed links has no
/// effect.
fn sleep<'a>(
    shared: &'a Shared,
    mut core: CoreGuard<'a>,
    operation: Option<Id>,
    turn: Option<u64>,
) -> CoreGuard<'a> {
    if core.engine.has_released() {
        // An owner may have the last handle of the communicator, whose end frees the words to sleep on.
        drop(core);
        return shared.core();
    }
    if core.engine.is_copying() || core.exchange.as_ref().is_some_and(|exchange| exchange.is_copying()) {
        // Copies send no notification of their end.
        drop(core);
        wait::sleep(COPY_NAP);
        return shared.core();
    }
    if core.sleepers.are_waking() {
        // A thread that is not yet in its sleep would take a new announcement for its own, and sleep after its event.
        return shared.give_way(core);
    }
    let mut moved = false;
    if !core.sleepers.is_empty() {
        core.engine.disarm();
        moved = core.progress();
    }
    let (by, mut words, fds) = arm(&mut core);
    if by == ParkBy::Fd && core.sleepers.sleep_on_words() {
        // Peers would wake them by descriptor, so they announce their sleep anew, by descriptor too.
        core.engine.disarm();
        core.engine.rouse();
        return shared.give_way(core);
    }
    let at_exchange = core.exchange.as_mut().and_then(|exchange| exchange.arm(turn));
    words.extend(at_exchange);
    let has_arrived =
        |core: &mut Core| core.exchange.as_mut().is_some_and(|exchange| exchange.has_arrived(turn));
    let is_over = |core: &Core| operation.is_some_and(|id| core.engine.is_done(id));
    let has_moved = core.progress() || moved || core.engine.has_released();
    if has_moved || is_over(&core) || has_arrived(&mut core) {
        core.disarm();
        return if shared.is_wanted() { shared.give_way(core) } else { core };
    }
    let bits = match (&core.exchange, at_exchange) {
        (Some(exchange), Some(_)) => exchange.compiled.awaited(),
        _ => NonZeroU32::MAX,
    };
    let limit = shared.policy.sleep_max;
    core.sleepers.add(operation, by);
    release_armed(core);
    shared.policy.before_rest();
    // SAFETY: the words lie in mappings that the endpoints hold, and the endpoints live in the core of `shared` until
    // `close::release_links`, which waits until no other thread drives. This thread itself closes only where it drops
    // owners, and it has dropped none since it armed (test: `owner_tests`).
    let words: Vec<_> = words.iter().map(|(word, value)| (unsafe { &**word }, *value)).collect();
    // SAFETY: as above: the endpoints own the descriptors.
    let fds: Vec<_> = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
    match by {
        ParkBy::Word => sleep_on(&words, bits, limit),
        ParkBy::Fd if !fds.is_empty() => wait::sleep_on_fds(&fds, limit),
        ParkBy::Fd => wait::sleep(wait::BLIND_NAP),
    }
    let mut core = shared.core();
    core.sleepers.remove(operation);
    core.disarm();
    core
}

/// Arms the links. Returns how the thread sleeps, and on which words or descriptors.
fn arm(core: &mut Core) -> (ParkBy, Vec<(*const AtomicU32, u32)>, Vec<RawFd>) {
    let (mut words, mut fds): (Vec<(*const AtomicU32, u32)>, Vec<RawFd>) = (Vec::new(), Vec::new());
    let by = core.engine.arm(|armed| match armed {
        Armed::Idle => {}
        Armed::Word(word, value) => words.push((word, value)),
        Armed::Fd(fd) => fds.push(AsRawFd::as_raw_fd(&fd)),
    });
    (by, words, fds)
}

/// Releases the core of a thread that is about to sleep, in which no owner waits to be dropped.
fn release_armed(core: CoreGuard<'_>) {
    #[cfg(test)]
    armed::set(true);
    drop(core);
    #[cfg(test)]
    armed::set(false);
}

/// Sleeps until one of these words changes, or briefly if there is none. The bits count where there is one word.
fn sleep_on(words: &[(&AtomicU32, u32)], bits: NonZeroU32, limit: Duration) {
    match *words {
        [] => wait::sleep(wait::BLIND_NAP),
        [(word, value)] => wait::sleep_on_word(word, value, bits, limit),
        _ => wait::sleep_on_words(words, limit),
    }
}

/// Sleeps without the core until the current turn at the exchange is over, or briefly. Another thread drives meanwhile,
/// and needs the core for that.
fn sleep_until_turn<'a>(shared: &'a Shared, core: CoreGuard<'a>) -> CoreGuard<'a> {
    let Some(exchange) = &core.exchange else { return core };
    let (over, turnstile) = exchange.compiled.turns_over();
    let turnstile = std::sync::Arc::clone(turnstile);
    turnstile.announce();
    drop(core);
    shared.policy.before_rest();
    turnstile.sleep(over);
    shared.core()
}

#[cfg(test)]
pub(crate) mod armed {
    //! Whether this thread has taken words to sleep on, and releases the core for its sleep.

    use std::cell::Cell;

    thread_local! {
        static IS_ARMED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn set(is_armed: bool) {
        IS_ARMED.set(is_armed);
    }

    pub(crate) fn is() -> bool {
        IS_ARMED.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_on_two_words_is_not_cut_short() {
        let (a, b) = (AtomicU32::new(0), AtomicU32::new(0));
        let words = [(&a, 0), (&b, 0)];
        if kolo_transport::wait_words(&words, Duration::ZERO).is_err() {
            eprintln!("skipped: this kernel cannot wait for several words");
            return;
        }
        let limit = 10 * wait::BLIND_NAP;
        let begin = Instant::now();
        sleep_on(&words, NonZeroU32::MAX, limit);
        assert!(begin.elapsed() >= limit, "{:?}", begin.elapsed());
        // Either of them may have changed already.
        for words in [[(&a, 1), (&b, 0)], [(&a, 0), (&b, 1)]] {
            let begin = Instant::now();
            sleep_on(&words, NonZeroU32::MAX, Duration::from_secs(60));
            assert!(begin.elapsed() < Duration::from_secs(30));
        }
    }
}
