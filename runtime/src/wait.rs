//! Waiting: the policy by which threads spin, yield and sleep. The test `tidy` lists the few other places that wait.
//!
//! A waiting thread polls, and between polls it asks a [`Pacer`] what to do. The time for which it spins and yields
//! depends on whether every rank of this host has a processor of its own. If not, spinning takes the processor from the
//! very rank that is waited for: a single 8-byte all-reduce of 8 ranks on 2 processors then takes tens of milliseconds
//! instead of tens of microseconds, so an oversubscribed rank yields at once. If every rank has a processor, a rank
//! spins and yields for much longer first, since waking up from a sleep costs 15 to 30 us on a virtual machine.

use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod contention;
mod slices;
mod turnstile;

pub use contention::Contention;
use contention::{HANDED_OVER, SPIN_BESIDE_OTHERS};
pub(crate) use turnstile::Turnstile;

/// Actions of a waiting thread, by the age of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Time during which the thread polls with only a pause instruction in between.
    pub spin: Duration,
    /// Time of such polling beside [others that compute](Contention).
    pub spin_beside_others: Duration,
    /// Whether the thread spins even after earlier spins without success.
    pub always_spins: bool,
    /// Age of the wait up to which the thread then polls with a `sched_yield` in between.
    pub yield_until: Duration,
    /// The longest sleep.
    pub sleep_max: Duration,
    /// Whether threads that wait ask the scheduler for short time slices.
    pub short_slices: bool,
}

/// Ranks per processor that may each wake up every [`SLEEP_MAX`] to look around. A look takes some 10 us, so
/// all of them use 3 % of the processor's time.
const SLEEPERS_PER_PROCESSOR: usize = 16;

/// Longest sleep where there are more ranks than that. A failure for which nothing wakes a rank may be noticed this
/// late.
const LONG_SLEEP_MAX: Duration = Duration::from_millis(100);

impl Policy {
    /// For ranks that each have a processor: spin for about ten times a small operation over loopback TCP, then yield
    /// for many times the cost of two wake-ups.
    pub const OWN_PROCESSOR: Self = Self {
        spin: Duration::from_micros(50),
        spin_beside_others: SPIN_BESIDE_OTHERS,
        always_spins: false,
        yield_until: Duration::from_millis(2),
        sleep_max: SLEEP_MAX,
        short_slices: true,
    };

    /// For more ranks than processors: never spin. Yielding is bounded, since beside a busy foreign thread each yield
    /// may cost a scheduler tick.
    pub const OVERSUBSCRIBED: Self = Self {
        spin: Duration::ZERO,
        spin_beside_others: Duration::ZERO,
        always_spins: false,
        yield_until: Duration::from_micros(300),
        sleep_max: SLEEP_MAX,
        short_slices: true,
    };

    /// Chooses a policy by the number of ranks on this host and of the processors that they may use together.
    #[must_use]
    pub fn for_host(local_ranks: usize, processors: usize, spin: Option<Duration>) -> Self {
        let mut policy = if local_ranks <= processors { Self::OWN_PROCESSOR } else { Self::OVERSUBSCRIBED };
        let times = local_ranks / (SLEEPERS_PER_PROCESSOR * processors.max(1));
        let times = u32::try_from(times).unwrap_or(u32::MAX).max(1);
        policy.sleep_max = SLEEP_MAX.saturating_mul(times).min(LONG_SLEEP_MAX);
        if let Some(spin) = spin {
            (policy.spin, policy.spin_beside_others, policy.always_spins) = (spin, spin, true);
            policy.yield_until = policy.yield_until.max(spin);
        }
        policy
    }

    /// Returns the policy for ranks that also wait for other hosts. Such a wait lasts longer than the turns of other ranks,
    /// and a rank that sleeps must be woken by the one that talks to the network: see docs/measurements.md, "Hosts that
    /// share processors".
    #[must_use]
    pub fn for_network(self) -> Self {
        Self { yield_until: self.yield_until.max(Self::OWN_PROCESSOR.yield_until), ..self }
    }

    /// Prepares the calling thread for a yield or a sleep: it is to run soon after it is woken, also beside busy threads.
    /// Threads that only yield ask too, since those with longer slices would get fewer turns: see docs/measurements.md,
    /// "Ranks that take turns".
    pub fn before_rest(&self) {
        if self.short_slices {
            slices::ask();
        }
    }
}

/// Sleep of a thread that nothing wakes: short, since nobody knows when something comes.
pub const BLIND_NAP: Duration = Duration::from_millis(1);

/// Longest sleep where ranks are few for their processors. It lets a rank notice deadlines and aborts even if every
/// wake-up is lost.
pub const SLEEP_MAX: Duration = Duration::from_millis(5);

/// Waiting ranks give the processor back within microseconds. If a helper's yield takes longer than this, a foreign
/// thread computes, and may go on until the scheduler tick. The helper then sleeps, since a sleeping thread is
/// scheduled when it is woken. A step of `gradient_overlap --compute processor` with 4 ranks on 2 processors takes 76
/// to 86 ms if helpers yield all the same, and 50 ms otherwise.
const GAP_OF_RANKS: Duration = Duration::from_micros(500);

/// Number of polls for which a foreign thread is then assumed.
const SLEEPS: u32 = 64;

/// Polls between two reads of the clock while spinning. A read costs about as much as a few polls.
const POLLS_PER_CLOCK_READ: u32 = 32;

/// Next action of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Poll again at once.
    Poll,
    /// [`spin`], and poll again.
    Spin,
    /// Poll again, and check deadline and abort flag too, since some time has passed.
    Check,
    /// [`yield_now`], then the same as [`Next::Check`].
    Yield,
    /// Sleep for at most [`Policy::sleep_max`], since nothing has come for long.
    Sleep,
    /// Sleep until the calls of other threads before this one are over.
    Queue,
}

impl Next {
    /// Returns whether some time has passed, so that deadline and abort flag are to be checked.
    #[must_use]
    pub const fn is_a_while(self) -> bool {
        !matches!(self, Self::Poll | Self::Spin)
    }
}

/// Paces one wait.
#[derive(Debug)]
pub struct Pacer {
    /// Contention as known so far. Callers carry it on from [the end](Pacer::ended) of a wait to the next.
    pub contention: Contention,
    policy: Policy,
    polls: u32,
    /// Whether the wait is still in its first phase.
    spins: bool,
    idle_since: Option<Instant>,
    now: Option<Instant>,
    /// When the last yield ended, until the clock is next needed.
    fresh: Option<Instant>,
    /// Whether the last advised yield is to be timed.
    times_yield: bool,
    /// Whether the wait began with a yield although there is a processor for each rank.
    began_with_yield: bool,
    /// Whether that yield was the last action, and another thread ran meanwhile.
    handed_over: bool,
    gap: Duration,
    /// Whether others may compute on this processor.
    beside_computation: bool,
    /// Number of following polls that lead to a sleep at once, because a foreign thread computes.
    sleeps: u32,
    /// Whether the last advice was to sleep, so that the time since then says nothing of foreign threads.
    slept: bool,
}

impl Pacer {
    /// Starts a wait.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self {
            contention: Contention::NONE,
            policy,
            polls: 0,
            spins: false,
            idle_since: None,
            now: None,
            fresh: None,
            times_yield: false,
            began_with_yield: false,
            handed_over: false,
            gap: Duration::ZERO,
            beside_computation: false,
            sleeps: 0,
            slept: false,
        }
    }

    /// Starts a wait of a helper thread, whose processor may be the one that the program computes on.
    #[must_use]
    pub fn beside_computation(policy: Policy) -> Self {
        Self { beside_computation: true, ..Self::new(policy) }
    }

    /// Ends the wait; returns the contention for the next one, which depends on whether this one did well to spin.
    pub fn ended(&mut self) -> Contention {
        self.moved();
        self.contention
    }

    /// Notes a poll that moved something.
    pub fn moved(&mut self) {
        if self.spins {
            self.contention.spun_well();
            self.spins = false;
        }
        if std::mem::take(&mut self.began_with_yield) {
            self.contention.hand_overs = if self.handed_over { self.contention.hand_overs + 1 } else { 0 };
        }
        self.polls = 0;
        self.idle_since = None;
        self.fresh = None;
        self.now = None;
        self.gap = Duration::ZERO;
    }

    /// Returns the action that the policy wants after a poll that moved nothing.
    pub fn idle(&mut self, now: impl FnOnce() -> Instant) -> Next {
        if self.polls == 0 && self.policy.spin > Duration::ZERO {
            self.spins = self.policy.always_spins || self.contention.lets_spin();
        }
        self.polls = self.polls.saturating_add(1);
        self.handed_over = false;
        if self.spins && !self.polls.is_multiple_of(POLLS_PER_CLOCK_READ) {
            return Next::Spin;
        }
        let now = self.fresh.take().unwrap_or_else(now);
        self.gap = self.now.map_or(Duration::ZERO, |before| now - before);
        self.now = Some(now);
        let age = now - *self.idle_since.get_or_insert(now);
        if self.beside_computation && !std::mem::take(&mut self.slept) && self.gap > GAP_OF_RANKS {
            self.sleeps = SLEEPS;
        }
        if self.sleeps > 0 {
            self.sleeps -= 1;
            self.slept = true;
            return Next::Sleep;
        }
        let is_contended = self.contention.is_present(now);
        let spin = if is_contended { self.policy.spin_beside_others } else { self.policy.spin };
        if self.spins && age < spin {
            return Next::Check;
        }
        if std::mem::take(&mut self.spins) {
            self.contention.spun_in_vain();
        }
        if is_contended {
            Next::Sleep
        } else if age < self.policy.yield_until {
            let is_first = self.polls == 1 && self.policy.spin > Duration::ZERO;
            self.began_with_yield |= is_first;
            self.times_yield = self.contention.is_in_question(now) || is_first;
            Next::Yield
        } else {
            Next::Sleep
        }
    }

    /// Notes the end of a [`Next::Yield`].
    pub fn yielded(&mut self, now: impl FnOnce() -> Instant) {
        if !self.times_yield {
            return;
        }
        let now = now();
        let gap = self.now.map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        self.contention.yielded(gap, now);
        self.handed_over = self.polls == 1 && gap > HANDED_OVER && gap < GAP_OF_RANKS;
        // Kept for the next look, since reading the clock again would cost as much as the rest of the yield.
        self.fresh = Some(now);
    }

    /// Notes the time after a wait of another kind.
    pub fn look(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// Returns whether a peer seems to be on this rank's processor although there is one for each, so that the rank should
    /// move. Asked before a yield; the answer is true only now and then.
    pub fn shares_with_a_peer(&mut self) -> bool {
        self.began_with_yield && self.polls == 1 && self.contention.shares_with_a_peer()
    }

    /// Returns the time between the last two reads of the clock, which includes what other threads did meanwhile. Zero
    /// after something has moved.
    #[must_use]
    pub fn gap(&self) -> Duration {
        self.gap
    }

    /// Returns the time of the last read of the clock.
    #[must_use]
    pub fn now(&self, now: impl FnOnce() -> Instant) -> Instant {
        self.now.unwrap_or_else(now)
    }
}

/// Pauses between two polls in quick succession.
#[inline]
pub fn spin() {
    std::hint::spin_loop();
}

/// Gives the processor to other threads.
pub fn yield_now() {
    std::thread::yield_now();
}

/// Sleeps while `word` holds `value`, until woken with one of `bits`, at most `limit`.
pub fn sleep_on_word(word: &AtomicU32, value: u32, bits: NonZeroU32, limit: Duration) {
    // Whether it was woken, the word changed, time ran out or a signal came: the caller polls again.
    let _ = kolo_transport::wait_word_for(word, value, bits, limit);
}

/// Sleeps while every one of `words` holds its value, until any of them is woken, at most `limit`.
pub fn sleep_on_words(words: &[(&AtomicU32, u32)], limit: Duration) {
    if kolo_transport::wait_words(words, limit).is_err() {
        sleep(BLIND_NAP);
    }
}

/// Sleeps until one of the descriptors is readable, at most `limit`.
pub fn sleep_on_fds(fds: &[BorrowedFd<'_>], limit: Duration) {
    let mut set: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let _ = poll(&mut set, Some(&timespec(limit)));
}

/// Sleeps for a fixed time, without an event to wake it.
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

fn timespec(limit: Duration) -> Timespec {
    // The limits used here are below a second; the conversion cannot fail.
    Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 1_000_000 })
}

/// Returns the number of processors that this process may use: its affinity mask, cut by the CPU quota of its control
/// group.
#[must_use]
pub fn usable_processors() -> usize {
    // The standard library considers both.
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::contention::{FIRST_SPELL, HAND_OVERS, LATE, SPELL_MAX, VAIN_SPINS, WAITS_PER_SPIN};
    use super::*;

    #[test]
    fn oversubscribed_ranks_never_spin() {
        let mut pacer = Pacer::new(Policy::for_host(8, 2, None));
        assert_eq!(pacer.idle(Instant::now), Next::Yield);
    }

    #[test]
    fn a_wait_that_ends_while_it_spins_makes_the_next_ones_spin() {
        let vain = Contention { vain_spins: VAIN_SPINS - 1, ..Contention::NONE };
        let mut pacer = Pacer { contention: vain, ..Pacer::new(Policy::OWN_PROCESSOR) };
        assert_eq!(pacer.idle(Instant::now), Next::Spin);
        assert_eq!(pacer.ended().vain_spins, 0);
        let vain = Contention { vain_spins: VAIN_SPINS, ..Contention::NONE };
        let mut pacer = Pacer { contention: vain, ..Pacer::new(Policy::OWN_PROCESSOR) };
        assert_eq!(pacer.idle(Instant::now), Next::Yield);
        assert_eq!(pacer.ended().vain_spins, VAIN_SPINS + 1, "this one did not spin");
    }

    #[test]
    fn a_helper_does_not_yield_to_who_computes() {
        let policy = Policy { spin: Duration::ZERO, yield_until: Duration::MAX, ..Policy::OVERSUBSCRIBED };
        let mut pacer = Pacer::beside_computation(policy);
        let began = Instant::now();
        assert_eq!(pacer.idle(|| began), Next::Yield);
        // A foreign thread has computed meanwhile.
        let (start, nap) = (began + 2 * GAP_OF_RANKS, SLEEP_MAX);
        assert_eq!(pacer.idle(|| start), Next::Sleep);
        // The naps themselves are not taken for computation, and the clock goes on.
        for nth in 1..SLEEPS {
            assert_eq!(pacer.idle(|| start + nth * nap), Next::Sleep, "for a while");
            assert_eq!(pacer.now(|| unreachable!("it is known")), start + nth * nap);
        }
        assert_eq!(pacer.idle(|| start + SLEEPS * nap), Next::Yield, "perhaps they compute no more");
        let mut waiting = Pacer::new(policy);
        assert_eq!(waiting.idle(Instant::now), Next::Yield);
        waiting.now = waiting.now.and_then(|now| now.checked_sub(2 * GAP_OF_RANKS));
        assert_eq!(waiting.idle(Instant::now), Next::Yield, "its own call is what the program waits for");
    }

    #[test]
    fn a_wait_ends_in_sleep_and_progress_restarts_it() {
        let policy = Policy { spin: Duration::ZERO, yield_until: Duration::ZERO, ..Policy::OVERSUBSCRIBED };
        let mut pacer = Pacer::new(policy);
        assert_eq!(pacer.idle(Instant::now), Next::Sleep);
        let mut pacer = Pacer::new(Policy::OWN_PROCESSOR);
        assert_eq!(pacer.idle(Instant::now), Next::Spin);
        pacer.moved();
        assert_eq!(pacer.idle(Instant::now), Next::Spin);
    }

    #[test]
    fn beside_others_that_compute_ranks_sleep_in_place_of_yielding() {
        let policy =
            Policy { spin: Duration::ZERO, yield_until: Duration::from_secs(1), ..Policy::OVERSUBSCRIBED };
        let (start, us) = (Instant::now(), Duration::from_micros(1));
        let next = |contention, now| {
            let mut pacer = Pacer { contention, ..Pacer::new(policy) };
            let next = pacer.idle(|| now);
            (next, pacer)
        };
        // Other ranks give the processor back.
        let (yields, mut pacer) = next(Contention::default(), start);
        assert_eq!(yields, Next::Yield);
        pacer.yielded(|| start + 100 * us);
        assert!(!pacer.contention.is_present(start + 100 * us));
        // A foreign thread does not. Further waits remember that, whether something came meanwhile or not.
        let late = start + 2 * LATE;
        pacer.yielded(|| late);
        pacer.moved();
        assert_eq!(next(pacer.contention, late + FIRST_SPELL - us).0, Next::Sleep);
        // Then a yield tries again. If it is late too, contention is assumed for longer.
        let again = late + FIRST_SPELL;
        let (yields, mut pacer) = next(pacer.contention, again);
        assert_eq!(yields, Next::Yield);
        pacer.yielded(|| again + 2 * LATE);
        assert!(pacer.contention.is_present(again + 2 * LATE + 2 * FIRST_SPELL - us));
        // After a time without contention the spell begins anew.
        pacer.contention.notice(again + SPELL_MAX);
        assert_eq!(pacer.contention.spell, FIRST_SPELL);
        // Without contention, most yields are not timed.
        let (_, mut calm) = next(Contention { yields: 1, ..Contention::NONE }, start);
        calm.yielded(|| unreachable!("the clock is not read"));
        // Ranks with processors of their own spin first, since the ranks that they wait for may be running.
        let own = Pacer::new(Policy::OWN_PROCESSOR);
        let mut own =
            Pacer { contention: pacer.contention, polls: POLLS_PER_CLOCK_READ - 1, spins: true, ..own };
        assert_eq!(own.idle(|| again + SPELL_MAX), Next::Check);
        own.polls = POLLS_PER_CLOCK_READ - 1;
        assert_eq!(own.idle(|| again + SPELL_MAX + SPIN_BESIDE_OTHERS), Next::Sleep, "but not for long");
        let asked = Duration::from_micros(70);
        assert_eq!(Policy::for_host(2, 2, Some(asked)).spin_beside_others, asked, "unless that is asked for");
    }

    #[test]
    fn short_calls_yield_on_if_they_run_between_late_yields() {
        let (start, late) = (Instant::now(), LATE + LATE / 2);
        let short = Contention::NONE_BY_SHORT_CALLS;
        let lates = |mut contention: Contention, between: Duration| {
            (1..100).find(|_| {
                contention.yielded(between, start);
                contention.yielded(late, start);
                contention.is_present(start)
            })
        };
        assert_eq!(lates(short, LATE), None, "half of the time");
        assert_eq!(lates(short, LATE / 50), Some(3), "hardly any time");
        assert_eq!(lates(Contention::NONE, LATE), Some(1), "long calls have no patience");
        // Once short calls have noticed it, one more late yield is enough after each spell.
        let mut short = short;
        (0..2).for_each(|_| short.yielded(late, start));
        let again = start + FIRST_SPELL;
        assert!(short.is_present(start) && !short.is_present(again));
        short.yielded(LATE / 50, again);
        short.yielded(late, again);
        assert!(short.is_present(again + FIRST_SPELL));
    }

    #[test]
    fn what_long_calls_notice_short_ones_ask_a_yield_about() {
        let (start, us) = (Instant::now(), Duration::from_micros(1));
        let mut by_long = Contention::NONE;
        (0..4).for_each(|n| by_long.notice(start + n * us));
        let later = start + FIRST_SPELL;
        assert!(by_long.is_present(later));
        let mut by_short = Contention::NONE.in_question(by_long, || later);
        assert!(
            !by_short.is_present(later) && by_short.is_in_question(later) && by_short.is_in_question(later)
        );
        // After one late yield it assumes the contention for which long calls needed several.
        by_short.notice(later + us);
        assert!(by_short.is_present(later + 2 * by_long.spell - us));
        let before = by_short.until;
        assert_eq!(by_short.in_question(by_long, || unreachable!("it knows better")).until, before);
        // Contention noticed by short calls holds for long ones.
        assert!(Contention::NONE.or_later(by_short).is_present(later + us));
        assert_eq!(by_short.or_later(by_long).until, before);
        assert!(Contention::NONE.in_question(Contention::NONE, || start).until.is_none());
    }

    #[test]
    fn who_spins_in_vain_yields_at_once_and_tries_again_now_and_then() {
        let (start, us) = (Instant::now(), Duration::from_micros(1));
        let mut pacer = Pacer::new(Policy::OWN_PROCESSOR);
        // Simulates one wait. Returns whether it began with spinning.
        let wait = |pacer: &mut Pacer, comes_at_once: bool| {
            let first = pacer.idle(|| start);
            if comes_at_once {
                pacer.moved();
                return first == Next::Spin;
            }
            let mut next = first;
            for poll in 0.. {
                if next == Next::Yield {
                    break;
                }
                next = pacer.idle(|| start + poll * us);
            }
            pacer.moved();
            first == Next::Spin
        };
        for _ in 0..VAIN_SPINS {
            assert!(wait(&mut pacer, false));
        }
        for _ in 0..2 {
            for _ in 1..WAITS_PER_SPIN {
                assert!(!wait(&mut pacer, false));
            }
            assert!(wait(&mut pacer, false), "a try");
        }
        // Spinning pays again.
        let tried = (0..WAITS_PER_SPIN).position(|_| wait(&mut pacer, true));
        assert_eq!(tried, Some(WAITS_PER_SPIN as usize - 1));
        assert!(wait(&mut pacer, true));
        // A setting that asks for spinning is obeyed.
        let mut asked = Pacer::new(Policy::for_host(2, 2, Some(50 * us)));
        assert!((0..2 * VAIN_SPINS).all(|_| wait(&mut asked, false)));
    }

    #[test]
    fn a_rank_whose_peer_is_on_its_processor_notices() {
        let (start, us) = (Instant::now(), Duration::from_micros(1));
        let mut pacer = Pacer::new(Policy::OWN_PROCESSOR);
        pacer.contention.vain_spins = VAIN_SPINS;
        // Simulates a wait whose first yield takes this long. Returns whether the rank should move.
        let wait = |pacer: &mut Pacer, yielded: Duration| {
            while pacer.idle(|| start) != Next::Yield {
                pacer.spins = false;
            }
            let shares = pacer.shares_with_a_peer();
            pacer.yielded(|| start + yielded);
            pacer.moved();
            shares
        };
        let moves = |pacer: &mut Pacer, yielded| (0..100).position(|_| wait(pacer, yielded));
        assert_eq!(moves(&mut pacer, us / 2), None, "nobody else ran");
        assert_eq!(moves(&mut pacer, GAP_OF_RANKS), None, "who runs for so long is no peer");
        assert_eq!(moves(&mut pacer, 3 * us), Some(HAND_OVERS as usize));
        let again = moves(&mut pacer, 3 * us).expect("moving has not helped");
        assert!(again >= 2 * HAND_OVERS as usize, "{again}");
        pacer.contention.spun_well();
        pacer.contention.vain_spins = VAIN_SPINS;
        assert_eq!(moves(&mut pacer, 3 * us), Some(HAND_OVERS as usize), "once spinning has paid");
    }

    #[test]
    fn sleeping_on_a_changed_word_returns_at_once() {
        let word = AtomicU32::new(1);
        let start = Instant::now();
        sleep_on_word(&word, 0, NonZeroU32::MAX, Duration::from_secs(5));
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
