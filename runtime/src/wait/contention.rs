//! Other threads on the processors of waiting ranks, as far as a rank has noticed them.

use std::time::{Duration, Instant};

/// Time for which ranks spin beside others that compute. Two ranks then often share a processor, however many
/// processors there are, and the one that spins keeps the other from running. Ranks that do run side by side answer
/// within this time. An all-reduce of 8 bytes between 2 ranks beside ten busy processes on 2 processors takes 74 us if
/// they spin for 50, and 26 us with this value.
pub(super) const SPIN_BESIDE_OTHERS: Duration = Duration::from_micros(15);

/// Successive waits with useless spinning after which ranks yield at once. Even if there is a processor for each, two
/// ranks may share one while a foreign thread keeps the other; then nothing comes while a rank spins. An all-gather of
/// 64 KiB between 2 such ranks takes 72 us if they spin first.
pub(super) const VAIN_SPINS: u32 = 4;

/// One wait in this many nevertheless begins with spinning, to find out whether it pays again.
pub(super) const WAITS_PER_SPIN: u32 = 64;

/// Duration of a yield after which another thread has run on this processor.
pub(super) const HANDED_OVER: Duration = Duration::from_micros(1);

/// Successive waits that end with such a yield after which a rank assumes that a peer is on its processor although there
/// is one for each. The scheduler leaves two threads that only yield to each other there for some ten milliseconds, and
/// for longer if the processors share no cache. All-reduces of 8 bytes between 2 ranks take 0.3 us on two processors and
/// 4 us on one.
pub(super) const HAND_OVERS: u32 = 8;

/// Longest such limit. It doubles when moving has not helped.
const HAND_OVERS_MAX: u32 = 4096;

/// Foreign threads that compute on the processors of waiting ranks, as far as a rank has noticed. Between ranks a yield
/// is over within microseconds. Beside such threads each yield costs one of their time slices (1 to 4 ms), and the rank
/// is not there when its data comes. A sleeping thread is scheduled soon after it is woken.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    pub(super) until: Option<Instant>,
    pub(super) spell: Duration,
    pub(super) yields: u32,
    /// Successive waits in which spinning has not paid.
    pub(super) vain_spins: u32,
    /// Successive waits that ended with a yield to a peer.
    pub(super) hand_overs: u32,
    /// Number of them that shows that a peer is on the same processor.
    pub(super) hand_overs_limit: u32,
    /// Time of late yields, less [`WORTH`] times that of other yields.
    pub(super) debt: Duration,
    /// Debt from which on contention is assumed.
    pub(super) patience: Duration,
}

/// A yield that takes longer than this gave the processor to a thread that computes. Ranks reduce for less than this at
/// a time.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// Time for which contention is assumed at first, until a yield tries again. The time doubles whenever contention is
/// found again.
pub(super) const FIRST_SPELL: Duration = Duration::from_millis(20);

/// Longest such time: a try then costs less than a hundredth of the time.
pub(super) const SPELL_MAX: Duration = Duration::from_secs(1);

/// Debt from which on short calls assume contention: that of two or three late yields in a row.
const PATIENCE_OF_SHORT_CALLS: Duration = Duration::from_millis(6);

/// Weight of yields that are not late against those that are. If ranks and foreign threads are in one group of the
/// scheduler, a rank that yields loses its share of the processor, and hardly runs between late yields. If they are in
/// different groups, each group gets its share: short calls then run at full speed between late yields, and sleeps cost
/// more than they save. See docs/measurements.md, "Alongside busy processes".
const WORTH: u32 = 4;

/// Of this many yields one is timed while no contention has been noticed: reading the clock takes as long as the rest
/// of a short yield.
const YIELDS_PER_LOOK: u32 = 8;

impl Default for Contention {
    fn default() -> Self {
        Self::NONE
    }
}

impl Contention {
    /// No contention has been noticed.
    pub(crate) const NONE: Self = Self {
        until: None,
        spell: Duration::ZERO,
        yields: 0,
        vain_spins: 0,
        hand_overs: 0,
        hand_overs_limit: HAND_OVERS,
        debt: Duration::ZERO,
        patience: Duration::ZERO,
    };

    /// No contention has been noticed by short calls.
    pub const NONE_BY_SHORT_CALLS: Self = Self { patience: PATIENCE_OF_SHORT_CALLS, ..Self::NONE };

    /// Returns whether the yield that begins is to be timed.
    pub(super) fn is_in_question(&mut self, now: Instant) -> bool {
        self.yields = self.yields.wrapping_add(1);
        let looks = self.yields % YIELDS_PER_LOOK == 1 || !self.debt.is_zero();
        looks || self.until.is_some_and(|until| now < until + SPELL_MAX)
    }

    /// Returns whether contention is assumed.
    #[must_use]
    pub fn is_present(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns until when contention is assumed.
    #[must_use]
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the same state, with the contention that is assumed for longer.
    #[must_use]
    pub(crate) fn or_later(self, other: Self) -> Self {
        if other.until > self.until { Self { until: other.until, spell: other.spell, ..self } } else { self }
    }

    /// Returns the same state. If `other` assumes contention for longer, the next yield decides, and a late one counts
    /// for as long.
    #[must_use]
    pub(crate) fn in_question(self, other: Self, now: impl FnOnce() -> Instant) -> Self {
        let Some(until) = other.until.filter(|until| self.until < Some(*until)) else { return self };
        Self { until: self.until.max(Some(until.min(now()))), spell: self.spell.max(other.spell), ..self }
    }

    /// Returns whether a wait is to begin with spinning.
    pub(super) fn lets_spin(&mut self) -> bool {
        if self.vain_spins < VAIN_SPINS {
            return true;
        }
        self.vain_spins += 1;
        let tries = self.vain_spins == VAIN_SPINS + WAITS_PER_SPIN;
        if tries {
            self.vain_spins = VAIN_SPINS;
        }
        tries
    }

    /// Notes that nothing came while the rank spun.
    pub(super) fn spun_in_vain(&mut self) {
        self.vain_spins = (self.vain_spins + 1).min(VAIN_SPINS);
    }

    /// Notes that something came while the rank spun.
    pub(super) fn spun_well(&mut self) {
        self.vain_spins = 0;
        (self.hand_overs, self.hand_overs_limit) = (0, HAND_OVERS);
    }

    /// Returns whether a peer seems to be on this rank's processor. The next wait then finds out whether it still is.
    pub(super) fn shares_with_a_peer(&mut self) -> bool {
        let shares = self.hand_overs >= self.hand_overs_limit;
        if shares {
            self.hand_overs = 0;
            self.hand_overs_limit = (2 * self.hand_overs_limit).min(HAND_OVERS_MAX);
            self.vain_spins = VAIN_SPINS + WAITS_PER_SPIN - 1;
        }
        shares
    }

    /// Notes the duration of a yield, and contention if too much time has gone to late ones.
    pub(super) fn yielded(&mut self, gap: Duration, now: Instant) {
        if gap <= LATE {
            self.debt = self.debt.saturating_sub(WORTH * gap);
            return;
        }
        self.debt = (self.debt + gap).min(self.patience);
        if self.debt == self.patience {
            self.notice(now);
        }
    }

    /// Notes contention.
    pub(super) fn notice(&mut self, now: Instant) {
        let again = self.until.is_some_and(|until| now < until + self.spell);
        self.spell = if again { (2 * self.spell).min(SPELL_MAX) } else { FIRST_SPELL };
        self.until = Some(now + self.spell);
    }
}
