//! All-reduce in two shots: every rank reduces a slice of each part of the vector, and publishes it with the next part.
//!
//! In a single shot, every rank would reduce everything. Here a byte is copied in once and read by the one rank that
//! reduces it, and every rank copies its sum out once, all of it in the caches; the vector itself is read and written
//! once. Exchange `e` carries part `e` of every rank's vector, and every rank's reduced slice of part `e - 1`, so a
//! vector of `m` parts takes `m + 1` exchanges:
//!
//! ```text
//! payload of rank r:   part e of its vector        | its slice of the sum of part e - 1
//! after the exchange:  sums of part e - 1 -> output; slice r of part e, of all ranks, reduced -> output
//! ```
//! This is the direct reduce-scatter and all-gather through a stage in shared memory, with both halves in one exchange.
//!
//! Beside busy processes, each wait may cost a time slice, so a rank that has noticed some says so behind its part. If the
//! vector is a single part, all ranks then reduce all of it at once: they have all seen the same marks, and the bits are
//! the same.

use std::ops::Range;

use kolo_collectives::plan::Collective;
use kolo_transport::Needs;
use kolo_transport::shm::Slot;

use super::CompiledExchange;
use super::cursor::{ExchangeCursor, Part, part_max};
use super::limits::MEMBERS_MAX;
use crate::call::Call;
use crate::reduce::{GRAIN, scale};

/// Longest vector that every rank reduces as a whole, with more than two ranks that share processors.
pub(super) const ONE_SHOT_MAX: usize = 32 << 10;

/// Returns that length, in bytes. In two shots a rank reads two vectors instead of `members`, but waits twice, which is
/// short where every rank has a processor of its own. See docs/measurements.md, "One shot or two".
pub(super) fn one_shot_max(members: usize, shares_processors: bool) -> usize {
    if shares_processors || members < 3 { ONE_SHOT_MAX } else { ((24 << 10) / (members - 2)).max(2 << 10) }
}

/// Longest vector that is a single part.
const ONE_PART_MAX: usize = 512 << 10;

/// Most bytes of a part of a longer vector, over all ranks together. The sums of a part are copied out after the next
/// part has been copied in, and the memory that they replace should still be in the caches by then. See
/// docs/measurements.md, "Parts and rounds".
const ALL_PARTS_MAX: usize = 2 << 20;

/// Longest vectors, of all ranks together, that every rank reduces as a whole beside busy processes.
const AT_ONCE_MAX: usize = 2 << 20;

/// Bytes of the mark behind a part that says whether its rank has noticed busy processes.
const MARK_BYTES: usize = 8;

/// Shortest part of a long vector, however many there are.
const PART_MIN: usize = 128 << 10;

/// Offset within a page at which the sums begin.
const SUMS_IN_PAGE: usize = 2 * GRAIN;

/// Division of a part among the ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shots {
    members: usize,
    /// Bytes of a whole part. Together with a slice of the previous part it fits an exchange.
    pub(super) step: usize,
    /// Whether the first part has a mark behind it.
    has_marks: bool,
}

impl Shots {
    /// Returns the division of a call that takes two shots, if it does. With two ranks, each would still read
    /// everything.
    #[inline]
    pub(super) fn of(call: &Call, block: usize, members: usize, one_shot_max: usize) -> Option<Self> {
        let serves = call.collective == Collective::AllReduce
            && block > one_shot_max
            && (3..=MEMBERS_MAX).contains(&members);
        serves.then(|| {
            let part =
                if block <= ONE_PART_MAX { ONE_PART_MAX } else { (ALL_PARTS_MAX / members).max(PART_MIN) };
            let fits = part_max(call.collective, members) / (members + 1);
            let slice = (part / members).min(fits) / GRAIN * GRAIN;
            let step = slice * members;
            Self { members, step, has_marks: block <= step && block * members <= AT_ONCE_MAX }
        })
    }

    /// Returns the length of the longest slice of a part of `len` bytes.
    fn slice(self, len: usize) -> usize {
        len.div_ceil(self.members).next_multiple_of(GRAIN)
    }

    /// Returns the range of a part of `len` bytes that a member reduces.
    fn share(self, member: usize, len: usize) -> Range<usize> {
        let slice = self.slice(len);
        (member * slice).min(len)..((member + 1) * slice).min(len)
    }

    /// Returns the offset of the slices in a payload, after a part of `len` bytes. Parts begin with a page, which suits
    /// reductions. Sums are usually copied to a place shortly after the beginning of a page, so they must not lie
    /// shortly after one themselves (the arena's `LONGS_IN_PAGE` says why): 8 and 32 MiB with 4 and 8 ranks take 0.92
    /// to 0.96 times as long.
    fn sums_at(len: usize) -> usize {
        len.next_multiple_of(4096) + SUMS_IN_PAGE
    }

    /// Returns the bytes that each rank publishes in the current exchange. Behind short slices, some of them are
    /// meaningless.
    pub(super) fn published(self, cursor: &ExchangeCursor) -> usize {
        let len = cursor.part.len;
        match cursor.part_before() {
            Some(before) => Self::sums_at(len) + self.slice(before.len),
            None if self.has_marks => len + MARK_BYTES,
            None => len,
        }
    }
}

impl CompiledExchange {
    /// Publishes this rank's current part, and its slice of the sum of the previous one.
    ///
    /// # Safety
    /// As [`CompiledExchange::publish`] for `own`; the output holds the slice.
    pub(super) unsafe fn publish_shots(
        &mut self,
        call: &Call,
        cursor: &ExchangeCursor,
        shots: Shots,
        own: *const u8,
    ) {
        let (Part { at, len }, rank) = (cursor.part, self.rank);
        let marks = shots.has_marks && cursor.part_before().is_none();
        let mark = [u8::from(marks && self.is_beside_others()); MARK_BYTES];
        let fill = |mut slot: Slot<'_>| {
            // SAFETY: for the whole block: these are parts of the vectors, by the shape of the call.
            unsafe {
                match call.factor() {
                    // Only the sums of the last part are left.
                    _ if len == 0 => {}
                    Some(factor) => {
                        let part = slot.part(0, len);
                        scale(call.data_type, part, own.add(at), len / call.data_type.size(), factor);
                    }
                    None => slot.copy(0, own.add(at), len),
                }
                if let Some(before) = cursor.part_before()
                    && let share = shots.share(rank, before.len)
                    && !share.is_empty()
                {
                    let sums = call.output.add(before.at + share.start);
                    slot.copy(Shots::sums_at(len), sums, share.len());
                }
            }
            if marks {
                slot.write(len, &mark);
            }
        };
        self.area.publish(cursor.tag, cursor.published(), Needs::All, Some(fill));
    }

    /// Returns whether a rank has noticed busy processes, so that every rank reduces all of the vector in the current
    /// exchange. All ranks have the same answer.
    pub(super) fn is_at_once(&self, cursor: &ExchangeCursor, shots: Shots) -> bool {
        let len = cursor.part.len;
        let is_marked = |member| {
            let mut mark = [0; MARK_BYTES];
            self.area.payload(member).read(len, &mut mark);
            mark != [0; MARK_BYTES]
        };
        shots.has_marks && cursor.part_before().is_none() && (0..self.members).any(is_marked)
    }

    /// Takes the others' sums of the previous part, and reduces this rank's slice of the current one.
    ///
    /// # Safety
    /// See [`CompiledExchange::take`].
    pub(super) unsafe fn take_shots(&mut self, call: &Call, cursor: &ExchangeCursor, shots: Shots) {
        let Part { at, len } = cursor.part;
        if let Some(before) = cursor.part_before() {
            for member in (0..self.members).filter(|member| *member != self.rank) {
                let share = shots.share(member, before.len);
                let sums = self.area.payload(member).part(Shots::sums_at(len), share.len());
                if !share.is_empty() {
                    // SAFETY: the sums lie inside the vector, by the shape of the call.
                    unsafe { cursor.copy(sums, call.output.add(before.at + share.start), share.len()) };
                }
            }
        }
        let share = shots.share(self.rank, len);
        if share.is_empty() {
            return;
        }
        let own = self.own(call);
        // SAFETY: for the whole block: the addresses are inside the vectors, by the shape of the call, and inside the
        // payloads.
        unsafe {
            let payload = |member: usize| match own {
                Some(own) if member == self.rank => own.add(at + share.start),
                _ => self.area.payload(member).part(share.start, share.len()),
            };
            let output = call.output.add(at + share.start);
            self.fold(call, cursor, output, share.len(), 0..self.members, payload);
        }
    }
}
