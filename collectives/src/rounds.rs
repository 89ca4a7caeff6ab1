//! Small integer arithmetic that several generators share.

/// Returns the number of rounds in which doubling reaches all of `p` ranks: ceil(log2 p).
pub(crate) fn ceil_log2(p: u32) -> u32 {
    u32::BITS - (p - 1).leading_zeros()
}

/// Returns floor(log2 p).
pub(crate) fn floor_log2(p: u32) -> u32 {
    p.ilog2()
}

/// Returns the active lengths of the circulant schedules: p, ceil(p/2), ..., 1. Each pair of neighbours is
/// one round.
pub(crate) fn halvings(p: u32) -> Vec<u32> {
    let mut lengths = vec![p];
    let mut length = p;
    while length > 1 {
        length = length.div_ceil(2);
        lengths.push(length);
    }
    lengths
}

/// The part of a rank in power-of-two exchanges among `p` ranks, if `p` is not a power of two. The first
/// `2 (p - 2^L)` ranks form pairs, in which the odd rank hands its contribution to the even one and gets the
/// result back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    /// The rank takes part as `index`, and first receives from `extra`, if any.
    Active { index: u32, extra: Option<u32> },
    /// The rank stays out, and `partner` acts for it.
    Extra { partner: u32 },
}

impl Fold {
    pub(crate) fn of(me: u32, p: u32) -> Self {
        let extras = p - (1 << floor_log2(p));
        if me >= 2 * extras {
            Self::Active { index: me - extras, extra: None }
        } else if me.is_multiple_of(2) {
            Self::Active { index: me / 2, extra: Some(me + 1) }
        } else {
            Self::Extra { partner: me - 1 }
        }
    }

    /// Returns the rank that takes part as `index`.
    pub(crate) fn rank_of(index: u32, p: u32) -> u32 {
        let extras = p - (1 << floor_log2(p));
        if index < extras { 2 * index } else { index + extras }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms() {
        for p in 1..5000_u32 {
            assert!(1 << ceil_log2(p) >= p && (ceil_log2(p) == 0 || 1 << (ceil_log2(p) - 1) < p));
            assert_eq!(halvings(p).len() as u32, ceil_log2(p) + 1);
        }
    }

    #[test]
    fn fold_numbers_the_active_ranks() {
        for p in 1..200 {
            let mut next = 0;
            for me in 0..p {
                if let Fold::Active { index, .. } = Fold::of(me, p) {
                    assert_eq!(index, next);
                    assert_eq!(Fold::rank_of(index, p), me);
                    next += 1;
                }
            }
            assert_eq!(next, 1 << floor_log2(p));
        }
    }
}
