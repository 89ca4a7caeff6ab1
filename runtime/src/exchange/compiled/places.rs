//! Long calls that read the other ranks' buffers in place: one copy of each byte, where the exchange in parts makes
//! two.
//!
//! # A call
//! 1. **Asking.** In one exchange every rank says where its contribution lies, or declines. It declines if the call
//!    is in place, the kernel does not permit the access, or the rank's own copies show that it does not pay. All ranks
//!    see the same answers, so all agree. If one declines, the call goes on in parts.
//! 2. **Reading.** Every rank copies the data that it needs, a piece at each step.
//! 3. **End.** After another exchange contributions may change again. If a rank could not read, all ranks hear of it
//!    there, go on in parts, and do not ask again.
//!
//! # Access
//! 1. From the first exchange to the last, the other ranks' kernel reads the contribution, and nobody writes it: the
//!    caller has lent it, and this rank writes only to the output, which lies apart (calls whose buffers are the same
//!    decline).
//! 2. A call that fails takes the contribution back before it returns (`Core::abort`, [`CompiledExchange::withdraw`]),
//!    and so does a call that panics (all of such a call runs inside `drive/lent.rs`). Data that others read from then
//!    on is not used.

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::{Needs, StageMismatch};

use super::CompiledExchange;
use super::cursor::{ExchangeCursor, Part};
use super::judge::{Judge, Stopwatch, Way};
use crate::call::Call;

/// Shortest block that is read in place if that proves quicker. See docs/measurements.md, "Buffers read in place".
pub(super) const PLACES_MIN: usize = 16 << 10;

/// Shortest block of an all-to-all among few ranks, which gain less.
const EXCHANGED_MIN: usize = 32 << 10;
const EXCHANGED_MEMBERS_FEW: usize = 4;

/// Shortest block of an all-gather of two ranks.
const PAIR_GATHERED_MIN: usize = 64 << 10;

/// Shortest block for all-gathers of three and four ranks, where 128 KiB take 1.1 times as long. With more ranks, so
/// many of them read the same pages that 4 MiB of 8 ranks take 1.2 times as long.
const GATHERED_MIN: usize = 512 << 10;
const GATHERED_MEMBERS_MAX: usize = 4;

/// Most ranks whose places a call keeps. All-to-alls were measured among up to 16.
const MEMBERS_MAX: usize = 64;

/// Bytes that a rank reads between two checks of abort and deadline: 40 µs.
const READ_BYTES: usize = 512 << 10;

/// Answer of a rank that declines.
const NOWHERE: u64 = 0;

/// Progress of a call that may read in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The call does not.
    #[default]
    Never,
    /// The call has not had its turn.
    Fresh,
    /// This rank has given or will give this answer, and waits for the others'.
    Asking { answer: u64, is_published: bool },
    /// This many other ranks have been read, and `at` bytes of the next one.
    Reading { others: usize, at: usize },
    /// All has been read, or something could not be.
    Ending { has_read: bool },
    /// The call goes in parts, though it might have read in place.
    InParts,
}

/// State of a call that may read in place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InPlace {
    pub(super) phase: Phase,
    pub(super) watch: Stopwatch,
    /// Number of steps in which something was read.
    pub(super) turns: usize,
}

impl InPlace {
    /// Returns whether other ranks may come to read this rank's contribution.
    #[inline(always)]
    pub(super) fn is_possible(&self) -> bool {
        !matches!(self.phase, Phase::Never | Phase::InParts)
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The call waits, or has more to read.
    Waits,
    /// The call is over.
    Over,
    /// The call goes on in parts.
    Declined,
}

/// State of reading in place that outlives a call.
#[derive(Debug)]
pub(super) struct Places {
    judge: Judge,
    /// Whether a rank could not read although all ranks had given their places.
    has_failed: bool,
    /// Places given for the current call.
    answers: [u64; MEMBERS_MAX],
}

impl Default for Places {
    fn default() -> Self {
        Self { judge: Judge::default(), has_failed: false, answers: [NOWHERE; MEMBERS_MAX] }
    }
}

impl CompiledExchange {
    /// Returns whether calls with such blocks may read in place. The answer is the same on all ranks.
    pub(super) fn may_read_in_place(&self, collective: Collective, block: usize) -> bool {
        let (least, most) = match collective {
            Collective::AllToAll if self.members <= EXCHANGED_MEMBERS_FEW => (EXCHANGED_MIN, MEMBERS_MAX),
            Collective::AllToAll => (PLACES_MIN, MEMBERS_MAX),
            Collective::AllGather if self.members == 2 => (PAIR_GATHERED_MIN, 2),
            Collective::AllGather => (GATHERED_MIN, GATHERED_MEMBERS_MAX),
            _ => return false,
        };
        block >= least && (2..=most).contains(&self.members)
    }

    /// Advances a call that may read in place and that has the turn.
    ///
    /// # Safety
    /// See [`CompiledExchange::advance`].
    #[inline(never)]
    pub(super) unsafe fn advance_in_place(
        &mut self,
        call: &Call,
        cursor: &mut ExchangeCursor,
    ) -> Result<Outcome, StageMismatch> {
        loop {
            match cursor.in_place.phase {
                Phase::Never | Phase::InParts => return Ok(Outcome::Declined),
                Phase::Fresh => self.consider(call, cursor),
                Phase::Asking { answer, is_published } => {
                    let all_there = self.exchange(cursor.tag, &answer.to_ne_bytes(), Needs::All)?;
                    if !is_published && self.is_published() {
                        cursor.in_place.phase = Phase::Asking { answer, is_published: true };
                        if answer != NOWHERE {
                            // SAFETY: the caller's promise, passed on.
                            unsafe { self.keep_in_place(call, cursor) };
                        }
                    }
                    if !all_there {
                        return Ok(Outcome::Waits);
                    }
                    self.hear_answers(call, cursor);
                }
                Phase::Reading { others, at } => {
                    // SAFETY: the caller's promise, passed on.
                    cursor.in_place.phase = unsafe { self.read_some(call, cursor, others, at) };
                    cursor.in_place.turns += 1;
                    if matches!(cursor.in_place.phase, Phase::Reading { .. }) {
                        return Ok(Outcome::Waits);
                    }
                }
                Phase::Ending { has_read } => {
                    if !self.exchange(cursor.tag, &[u8::from(has_read)], Needs::All)? {
                        return Ok(Outcome::Waits);
                    }
                    return Ok(self.end_in_place(call, cursor));
                }
            }
        }
    }

    /// Decides whether a call whose turn has come asks, which is the same on all ranks, and chooses this rank's answer.
    fn consider(&mut self, call: &Call, cursor: &mut ExchangeCursor) {
        let opinion = self.places.judge.consider(call.collective, cursor.block, self.members);
        cursor.in_place.watch = Stopwatch::new(opinion.is_timed);
        if !opinion.asks || self.places.has_failed {
            cursor.in_place.phase = Phase::InParts;
            return;
        }
        // An in-place all-to-all overwrites its contribution.
        let lies_apart = call.collective != Collective::AllToAll || call.placement == Placement::OutOfPlace;
        let own = self.contribution(call).filter(|_| lies_apart && opinion.is_for_it);
        let place = own.and_then(|own| self.area.place(own));
        cursor.in_place.phase = Phase::Asking { answer: place.unwrap_or(NOWHERE), is_published: false };
    }

    /// Copies this rank's block for itself while the other ranks arrive.
    ///
    /// # Safety
    /// See [`CompiledExchange::advance`].
    unsafe fn keep_in_place(&mut self, call: &Call, cursor: &mut ExchangeCursor) {
        let own = self.contribution(call);
        let begun = cursor.in_place.watch.start();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.keep_part(call, cursor, own, Part { at: 0, len: cursor.block }) };
        cursor.in_place.watch.stop(begun);
    }

    fn answer_of(&self, member: usize) -> u64 {
        let mut answer = [0; size_of::<u64>()];
        self.heard(member).read(0, &mut answer);
        u64::from_ne_bytes(answer)
    }

    fn hear_answers(&mut self, call: &Call, cursor: &mut ExchangeCursor) {
        let mut answers = [NOWHERE; MEMBERS_MAX];
        for (member, answer) in answers.iter_mut().enumerate().take(self.members) {
            *answer = self.answer_of(member);
        }
        self.end_exchange();
        let all = !answers[..self.members].contains(&NOWHERE);
        self.places.judge.heard(call.collective, cursor.block, all);
        cursor.in_place.phase = if all { Phase::Reading { others: 0, at: 0 } } else { Phase::InParts };
        if all {
            self.places.answers = answers;
        } else {
            // A block that was kept is copied again, part by part.
            cursor.in_place.watch.reset();
        }
    }

    /// Reads a piece of the other ranks' buffers.
    ///
    /// # Safety
    /// As [`CompiledExchange::advance`]; all ranks have answered.
    unsafe fn read_some(
        &self,
        call: &Call,
        cursor: &mut ExchangeCursor,
        mut others: usize,
        mut at: usize,
    ) -> Phase {
        let block = cursor.block;
        let begun = cursor.in_place.watch.start();
        let mut left = READ_BYTES;
        let mut end = None;
        while end.is_none() && left > 0 {
            // Ranks begin with different members, so that not all of them read the same one at once.
            let member = (self.rank + 1 + others) % self.members;
            let len = left.min(block - at);
            let offset = if call.collective == Collective::AllToAll { self.rank * block } else { 0 };
            // SAFETY: the output has a block for each member, and the caller lends it.
            let has_read = unsafe {
                let to = call.output.add(member * block + at);
                self.area.fetch(member, self.places.answers[member], offset + at, to, len)
            };
            (at, left) = (at + len, left - len);
            if at == block {
                (others, at) = (others + 1, 0);
            }
            if !has_read || others + 1 == self.members {
                end = Some(Phase::Ending { has_read });
            }
        }
        cursor.in_place.watch.stop(begun);
        end.unwrap_or(Phase::Reading { others, at })
    }

    fn end_in_place(&mut self, call: &Call, cursor: &mut ExchangeCursor) -> Outcome {
        let mut all_have = true;
        for member in 0..self.members {
            let mut has_read = [0];
            self.heard(member).read(0, &mut has_read);
            all_have &= has_read == [1];
        }
        self.end_exchange();
        if all_have {
            self.note(call, cursor, Way::InPlace);
            return Outcome::Over;
        }
        self.places.has_failed = true;
        cursor.in_place.phase = Phase::InParts;
        cursor.in_place.watch.reset();
        Outcome::Declined
    }

    /// Notes the time that the copies of a finished call took.
    #[cold]
    pub(super) fn note(&mut self, call: &Call, cursor: &ExchangeCursor, way: Way) {
        if let Some(spent) = cursor.in_place.watch.spent() {
            self.places.judge.took(call.collective, cursor.block, way, spent);
        }
    }

    /// Returns whether a rank took its memory back before this rank's earlier reads were complete.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.area.is_withdrawn()
    }

    /// Takes back memory that others may be reading, when a communicator is given up: data that they read from now on
    /// is not used.
    pub(crate) fn withdraw(&self) {
        self.area.withdraw();
    }
}
