//! Layout of a member's payload buffers in an area: one row of buffers per length, used in turn.
//!
//! # Number of buffers
//! Other ranks have the payloads that a member wrote some rounds ago in their second-level caches, and overwriting
//! bytes there is expensive. A copy takes half the time if the next payload lies in memory that those caches have
//! lost meanwhile, but that the shared third-level cache still holds. Two processes ran on two processors that share
//! a third-level cache (1 MiB of second-level cache each). Each copied into shared memory and out of the other's;
//! times in us:
//!
//! | payload | 128 KiB of buffers | 512 KiB | 1 MiB | 2 MiB | 4 MiB | 8 MiB | 16 MiB |
//! | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
//! | 16 KiB | 2.5 | 2.5 | 1.9 | 1.3 | 1.2 | 1.3 | 1.7 |
//! | 64 KiB | 10 | 12 | 6.2 | 4.7 | 4.5 | 4.9 | 7.3 |
//! | 256 KiB | | 22 | 18 | 20 | 19 | 22 | 31 |
//!
//! The buffers of all members together therefore take [`EXCHANGE_ROW_BYTES`] bytes for each length. With many
//! members, each has the smallest number of buffers that keeps rounds going. Where processors share no cache, the
//! number makes no difference to [streaming stores](super::copier).
//!
//! The first rounds use few of the buffers, and later ones more and more. A page that no payload has used yet costs up to
//! 2 us at each end, so that with all buffers from the beginning, the first 128 all-gathers of 16 KiB would take 10 us
//! each instead of 2.

use super::arena::{EXCHANGE_DEPTH, EXCHANGE_MAX, IS_MODEL, PAGE};

/// Longest payload in bytes for which a member has many buffers. A longer call is cut into parts where that is
/// faster.
pub const EXCHANGE_LONG: usize = 64 * 1024;

/// Length up to which payloads are brief: a few lines, which stay in the first-level caches.
const EXCHANGE_BRIEF: usize = 2 * 1024;

/// Size of the buffers of brief payloads. Processors that read one buffer prefetch the memory behind it, which should
/// not be the buffer that is written next. All-gathers of 2 ranks with 2 KiB each take 0.5 us instead of 0.7.
const BRIEF_APART: usize = 8 * 1024;

/// Number of buffer lengths: powers of two from [`EXCHANGE_BRIEF`] on, and [`EXCHANGE_MAX`].
const ROWS: usize = 10;

/// Longest payload that has a buffer in each of [`EXCHANGE_DEPTH`] rounds, for any number of members.
const EXCHANGE_SHORT: usize = 8 * 1024;

/// Minimum number of a member's buffers for long payloads. With four instead of two, a root that publishes part after
/// part waits for the others a third as often (broadcast to 4 ranks on 2 processors: 32 KiB 1.25, 512 KiB 1.35, 8 MiB
/// 1.15 times as fast).
const LONGS_LEAST: usize = 4;

/// Size of all members' buffers of one length together: more than their second-level caches, and a small part of the
/// third-level cache.
pub const EXCHANGE_ROW_BYTES: usize = 5 << 20;

/// Offset within a page at which long buffers begin. Callers' buffers begin at or shortly after the beginning of a
/// page. A copy to an address that lies 1 to 63 bytes beyond its source, modulo a page, takes 1.3 times as long (Zen
/// 5, 64 KiB in the second-level cache), because the processor cannot tell soon enough that the bytes it reads are
/// not those that it has just written. Buffers of more than [`EXCHANGE_LONG`] begin at a page: in the middle of a page,
/// broadcasts of 512 KiB among 8 ranks take 1.1 times as long, and reduce_scatters of 2 MiB and more among 4 ranks
/// 1.04 times.
const LONGS_IN_PAGE: usize = PAGE / 2;

/// A member's buffers in an area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    rows: [Row; ROWS],
    bytes: usize,
}

/// Buffers of one length.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: usize,
    each: usize,
    /// A power of two.
    count: usize,
}

impl Buffers {
    /// Returns the layout for an area of `members` members.
    pub(crate) fn new(members: u32) -> Self {
        let mut rows = [Row { at: 0, each: 0, count: 0 }; ROWS];
        let mut at = 0;
        for index in (0..ROWS).rev() {
            let each = if index == ROWS - 1 { EXCHANGE_MAX } else { EXCHANGE_BRIEF << index };
            let (least, longest) = if each <= EXCHANGE_SHORT {
                (EXCHANGE_DEPTH, EXCHANGE_SHORT)
            } else if each <= EXCHANGE_LONG {
                (LONGS_LEAST, EXCHANGE_LONG)
            } else {
                (2, EXCHANGE_MAX)
            };
            let (each, count) = match each {
                EXCHANGE_BRIEF => (BRIEF_APART, least),
                _ => (each, count(members, each, least)),
            };
            rows[index] = if index > 0 && each < longest && count == least {
                // These payloads can use the longer buffers.
                rows[index + 1]
            } else {
                let in_page = if longest == EXCHANGE_LONG { LONGS_IN_PAGE } else { 0 };
                let row = Row { at: at + in_page, each, count };
                at = (row.at + each * count).next_multiple_of(PAGE);
                row
            };
        }
        Self { rows, bytes: at }
    }

    /// Returns the size of all buffers of a member.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the offset of a payload of `len` bytes in a round.
    #[inline]
    pub(crate) fn place(&self, round: u64, len: usize) -> usize {
        let row = self.row(len);
        let count = row.count.min(in_use(round));
        row.at + (round as usize & (count - 1)) * row.each
    }

    /// Returns the number of rounds for which a payload of `len` bytes stays in place.
    #[inline]
    pub(crate) fn depth(&self, len: usize) -> u64 {
        self.row(len).count.min(EXCHANGE_DEPTH) as u64
    }

    #[inline]
    fn row(&self, len: usize) -> &Row {
        if len <= EXCHANGE_BRIEF {
            return &self.rows[0];
        }
        let row = (len - 1).ilog2() - EXCHANGE_BRIEF.ilog2() + 1;
        &self.rows[(row as usize).min(ROWS - 1)]
    }
}

/// Number of rounds for each buffer in use: the cost of touching new buffers is spread over as many calls.
const ROUNDS_PER_BUFFER: u64 = 32;

/// Returns how many buffers of a row are in use in a round, if it has so many: a power of two, at least
/// [`EXCHANGE_DEPTH`]. A step to twice as many comes at a multiple of that number, so that each buffer still rests for
/// [`EXCHANGE_DEPTH`] rounds.
#[inline]
fn in_use(round: u64) -> usize {
    1 << ((round / ROUNDS_PER_BUFFER) | EXCHANGE_DEPTH as u64).ilog2()
}

/// Returns the number of buffers per member for one length. Models use few buffers, so that they soon reuse them.
fn count(members: u32, each: usize, least: usize) -> usize {
    let share = EXCHANGE_ROW_BYTES / each / members.max(2) as usize;
    let most = if IS_MODEL { 2 } else { usize::MAX };
    (1 << share.max(least).ilog2()).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_payload_lies_where_one_lies_that_may_be_read() {
        for members in [1, 2, 3, 4, 8, 100, 4096] {
            let buffers = Buffers::new(members);
            let mut places: Vec<(usize, usize)> = Vec::new();
            for len in (0..ROWS - 1).map(|row| EXCHANGE_BRIEF << row).chain([EXCHANGE_MAX]) {
                let (row, depth) = (*buffers.row(len), buffers.depth(len) as usize);
                assert!(
                    row.each >= len && (2..=EXCHANGE_DEPTH).contains(&depth),
                    "{members}, {len}: {row:?}"
                );
                // Any consecutive rounds, as many as may be read at a time.
                for first in (0..1100).chain(2000..2100).chain(65_400..65_600) {
                    let mut at: Vec<_> =
                        (first..).take(depth).map(|round| buffers.place(round, len)).collect();
                    at.sort_unstable();
                    assert!(at.windows(2).all(|pair| pair[0] + row.each <= pair[1]), "{at:?}");
                    places.extend(at.iter().map(|at| (*at, row.each)));
                }
            }
            places.sort_unstable();
            places.dedup();
            assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{members} members");
            assert!(places.iter().all(|(at, each)| at + each <= buffers.bytes()), "{members} members");
        }
    }

    #[test]
    #[cfg(not(kolo_model))]
    fn many_members_have_few() {
        let counts = |members| Buffers::new(members).rows.map(|row| row.count);
        assert_eq!(counts(2), [8, 512, 256, 128, 64, 32, 16, 8, 4, 2]);
        assert_eq!(counts(4), [8, 256, 128, 64, 32, 16, 8, 4, 2, 2]);
        assert_eq!(counts(8), [8, 128, 64, 32, 16, 8, 4, 2, 2, 2]);
        assert_eq!(counts(256), [8, 8, 8, 4, 4, 4, 2, 2, 2, 2]);
        assert!(Buffers::new(256).bytes() < 2 << 20);
    }
}
