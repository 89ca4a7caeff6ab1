//! The memory of a call as ranges of addresses: which lengths are possible, and which ranges must not overlap.

use std::fmt;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    start: usize,
    bytes: usize,
}

impl Range {
    pub(crate) fn new(start: *const u8, bytes: usize) -> Self {
        Self { start: start.addr(), bytes }
    }

    /// Returns whether two ranges have a byte in common. Both are [addressable](is_addressable).
    #[inline]
    pub(crate) const fn meets(self, other: Self) -> bool {
        // Distances are taken upwards, wrapping at the end of the address space: either the other range begins inside
        // this one, or this one inside the other. Empty ranges meet nothing, even inside another.
        let up = other.start.wrapping_sub(self.start) < self.bytes;
        let down = self.start.wrapping_sub(other.start) < other.bytes;
        (up || down) && self.bytes > 0 && other.bytes > 0
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.start)
    }
}

/// Returns whether memory can be this long: no object of Rust or C is longer than `isize::MAX` bytes.
#[inline]
pub(crate) const fn is_addressable(bytes: usize) -> bool {
    bytes <= isize::MAX as usize
}

/// Returns the numbers of the first two ranges that overlap and of which at least one is written. Each range comes with
/// whether it is written.
pub(crate) fn first_conflict(ranges: &[(Range, bool)]) -> Option<(usize, usize)> {
    if let [(a, a_written), (b, b_written)] = ranges {
        return ((*a_written || *b_written) && a.meets(*b)).then_some((0, 1));
    }
    // In the order of addresses, a range that begins before the end of an earlier one overlaps it.
    let mut order: Vec<usize> = (0..ranges.len()).filter(|at| ranges[*at].0.bytes > 0).collect();
    order.sort_unstable_by_key(|at| ranges[*at].0.start);
    let (mut furthest, mut furthest_written): (Option<usize>, Option<usize>) = (None, None);
    for at in order {
        let (range, is_written) = ranges[at];
        let before = if is_written { furthest } else { furthest_written };
        if let Some(before) = before.filter(|before| ranges[*before].0.meets(range)) {
            return Some((before.min(at), before.max(at)));
        }
        let end = |at: usize| ranges[at].0.start.saturating_add(ranges[at].0.bytes);
        let further = |known: Option<usize>| known.is_none_or(|known| end(known) < end(at));
        if further(furthest) {
            furthest = Some(at);
        }
        if is_written && further(furthest_written) {
            furthest_written = Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, bytes: usize) -> Range {
        Range { start, bytes }
    }

    #[test]
    fn ranges_meet_if_they_have_a_byte_in_common() {
        let cases = [
            ((100, 10), (110, 10), false),
            ((100, 10), (109, 10), true),
            ((100, 10), (100, 10), true),
            ((100, 10), (103, 2), true),
            ((100, 0), (100, 10), false),
            ((105, 0), (100, 10), false),
            ((100, isize::MAX as usize), (90, 10), false),
            ((usize::MAX - 4, 10), (2, 1), true),
        ];
        for ((a, a_bytes), (b, b_bytes), meet) in cases {
            let (a, b) = (range(a, a_bytes), range(b, b_bytes));
            assert_eq!((a.meets(b), b.meets(a)), (meet, meet), "{a}, {b}");
        }
    }

    #[test]
    fn what_is_only_read_may_be_read_twice() {
        let all = |list: &[(usize, usize, bool)]| {
            let list: Vec<_> =
                list.iter().map(|(at, bytes, written)| (range(*at, *bytes), *written)).collect();
            first_conflict(&list)
        };
        assert_eq!(all(&[]), None);
        assert_eq!(all(&[(0, 10, true)]), None);
        assert_eq!(all(&[(0, 10, false), (5, 10, false)]), None);
        assert_eq!(all(&[(0, 10, false), (5, 10, true)]), Some((0, 1)));
        assert_eq!(all(&[(0, 10, false), (0, 10, false), (10, 5, true)]), None);
        assert_eq!(all(&[(0, 100, true), (200, 10, false), (50, 1, false)]), Some((0, 2)));
        assert_eq!(all(&[(50, 1, true), (200, 10, false), (0, 100, false), (60, 4, false)]), Some((0, 2)));
        assert_eq!(all(&[(0, 100, false), (10, 10, false), (99, 5, true)]), Some((0, 2)));
        assert_eq!(all(&[(0, 0, true), (0, 10, true), (5, 0, true)]), None);
    }

    #[test]
    fn the_sweep_finds_what_comparing_all_pairs_finds() {
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = crate::mix::mix(state);
            (state % below) as usize
        };
        for _ in 0..2000 {
            let list: Vec<(Range, bool)> =
                (0..draw(7)).map(|_| (range(draw(60), draw(9)), draw(2) == 1)).collect();
            let pairs = (0..list.len()).flat_map(|a| (0..a).map(move |b| (b, a)));
            let conflict = |(a, b): (usize, usize)| (list[a].1 || list[b].1) && list[a].0.meets(list[b].0);
            let found = first_conflict(&list);
            assert_eq!(found.is_some(), pairs.clone().any(conflict), "{list:?}");
            assert!(found.is_none_or(conflict), "{list:?}: {found:?}");
        }
    }
}
