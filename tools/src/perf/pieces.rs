//! Splits a rank's result into parts: parts of a rank's input, or of the reduction of all inputs.

use super::test::{Counts, Test};

/// The origin of a run of elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The input of a rank, unchanged.
    Input {
        /// The rank.
        rank: u32,
        /// First element in its input.
        offset: u64,
    },
    /// The reduction of all inputs.
    Reduction {
        /// First element in the reduction.
        offset: u64,
    },
}

/// A run of elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First element in the result.
    pub at: u64,
    /// Number of elements.
    pub len: u64,
    /// Their origin.
    pub origin: Origin,
}

/// Lengths of the blocks of `alltoallv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Skew {
    /// Ratio of the longest to the shortest block, at least 1.
    pub spread: f64,
}

impl Skew {
    /// All blocks are equal.
    pub(crate) const NONE: Self = Self { spread: 1.0 };

    /// Returns the number of elements that `from` sends to `to` if the longest block has `longest`; the same
    /// on all ranks.
    #[must_use]
    pub(crate) fn block(self, longest: u64, from: u32, to: u32) -> u64 {
        if self.spread <= 1.0 {
            return longest;
        }
        // Lengths are distributed evenly between the longest, and the longest divided by the spread.
        let place = mix(u64::from(from) << 32 | u64::from(to)) >> 40;
        let share = place as f64 / (1u64 << 24) as f64;
        let least = 1.0 / self.spread;
        (longest as f64 * (least + (1.0 - least) * share)) as u64
    }
}

/// A bijection of 64 bits that mixes well (the finaliser of SplitMix64).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the parts of the result of `rank`.
#[must_use]
pub(crate) fn pieces(
    test: Test,
    counts: &Counts,
    rank: u32,
    ranks: u32,
    root: u32,
    skew: Skew,
) -> Vec<Piece> {
    let block = counts.argument;
    let gathered = || {
        (0..ranks)
            .map(|from| Piece {
                at: u64::from(from) * block,
                len: block,
                origin: Origin::Input { rank: from, offset: 0 },
            })
            .collect()
    };
    let whole = |origin| vec![Piece { at: 0, len: block, origin }];
    match test {
        Test::AllReduce => whole(Origin::Reduction { offset: 0 }),
        Test::ReduceScatter => whole(Origin::Reduction { offset: u64::from(rank) * block }),
        Test::Reduce if rank == root => whole(Origin::Reduction { offset: 0 }),
        Test::Broadcast => whole(Origin::Input { rank: root, offset: 0 }),
        Test::Scatter => whole(Origin::Input { rank: root, offset: u64::from(rank) * block }),
        Test::AllGather | Test::Hypercube => gathered(),
        Test::Gather if rank == root => gathered(),
        Test::AllToAll | Test::AllToAllV => (0..ranks)
            .map(|from| Piece {
                at: u64::from(from) * block,
                len: if test == Test::AllToAllV { skew.block(block, from, rank) } else { block },
                origin: Origin::Input { rank: from, offset: u64::from(rank) * block },
            })
            .collect(),
        Test::SendRecv => whole(Origin::Input { rank: (rank + ranks - 1) % ranks, offset: 0 }),
        Test::Reduce | Test::Gather | Test::Barrier => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_covered() {
        for test in Test::ALL {
            for ranks in [1, 2, 5] {
                let counts = test.counts(1000, 4, u64::from(ranks));
                for rank in 0..ranks {
                    let pieces = pieces(test, &counts, rank, ranks, 0, Skew::NONE);
                    let covered: u64 = pieces.iter().map(|piece| piece.len).sum();
                    let nothing = match test {
                        Test::Reduce | Test::Gather => rank != 0,
                        _ => test == Test::Barrier,
                    };
                    assert_eq!(
                        covered,
                        if nothing { 0 } else { counts.receive },
                        "{test:?} on {rank}/{ranks}"
                    );
                }
            }
        }
    }

    #[test]
    fn skewed_blocks_stay_within_bounds() {
        let skew = Skew { spread: 4.0 };
        let lengths: Vec<u64> =
            (0..8).flat_map(|from| (0..8).map(move |to| skew.block(1000, from, to))).collect();
        assert!(lengths.iter().all(|len| (250..=1000).contains(len)));
        assert!(lengths.iter().any(|len| *len < 400) && lengths.iter().any(|len| *len > 850));
    }
}
