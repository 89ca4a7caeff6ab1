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

/// How the lengths of the blocks of `alltoallv` differ, as in nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Skew {
    /// From 0, where all blocks are equal, to 1, where their lengths are proportional to the distance of the ranks.
    pub spread: f64,
}

/// Blocks are cut to a multiple of this length, as those of the other tests.
const BLOCK_UNIT_BYTES: u64 = 16;

impl Skew {
    /// The default of nccl-tests.
    pub(crate) const DISTANCE: Self = Self { spread: 1.0 };

    /// Returns the blocks of ranks that would send each other `count` elements if all blocks were equal.
    #[must_use]
    pub(crate) fn blocks(self, count: u64, element_bytes: u64, ranks: u32) -> Blocks {
        let bytes = (count * element_bytes) as f64;
        let len = |distance: u32| {
            // The distances of a rank to all others sum to n (n - 1) / 2, and it sends n times the equal length. A rank
            // alone sends all to itself.
            let proportional = match ranks {
                1 => bytes,
                _ => f64::from(distance) * bytes * 2.0 / f64::from(ranks - 1),
            };
            let exact = (1.0 - self.spread) * bytes + self.spread * proportional;
            exact as u64 / BLOCK_UNIT_BYTES * BLOCK_UNIT_BYTES / element_bytes
        };
        let mut before = vec![0];
        before.extend((0..ranks).scan(0, |sum, distance| {
            *sum += len(distance);
            Some(*sum)
        }));
        Blocks { before }
    }
}

/// Lengths and places of the blocks of `alltoallv`, in elements. The length depends on how many ranks the receiver comes
/// after the sender, so all ranks send and receive equally much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// For each distance, the sum of the lengths of all shorter ones; at the end, the sum of all.
    before: Vec<u64>,
}

impl Blocks {
    /// Returns the number of elements that each rank sends, and receives.
    #[must_use]
    pub(crate) fn total(&self) -> u64 {
        self.before[self.ranks()]
    }

    /// Returns the length of the block from one rank to another.
    #[must_use]
    pub(crate) fn len(&self, from: u32, to: u32) -> u64 {
        self.sum(self.distance(from, to), 1)
    }

    /// Returns the place of the block to a rank in the input of `from`, behind those to the ranks before it.
    #[must_use]
    pub(crate) fn place_sent(&self, from: u32, to: u32) -> u64 {
        self.sum(self.distance(from, 0), to as usize)
    }

    /// Returns the place of the block from a rank in the result of `to`, behind those from the ranks before it.
    #[must_use]
    pub(crate) fn place_received(&self, from: u32, to: u32) -> u64 {
        // From one sender to the next, the distance falls by one.
        self.sum((self.distance(from, to) + 1) % self.ranks(), from as usize)
    }

    fn ranks(&self) -> usize {
        self.before.len() - 1
    }

    fn distance(&self, from: u32, to: u32) -> usize {
        (to as usize + self.ranks() - from as usize) % self.ranks()
    }

    /// Returns the sum of the lengths of `count` distances, of which the one after the last is 0.
    fn sum(&self, first: usize, count: usize) -> u64 {
        match (first + count).checked_sub(self.ranks()) {
            None => self.before[first + count] - self.before[first],
            Some(wrapped) => self.total() - self.before[first] + self.before[wrapped],
        }
    }
}

/// Returns the parts of the result of `rank`.
#[must_use]
pub(crate) fn pieces(
    test: Test,
    counts: &Counts,
    rank: u32,
    ranks: u32,
    root: u32,
    blocks: &Blocks,
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
        Test::AllToAll => (0..ranks)
            .map(|from| Piece {
                at: u64::from(from) * block,
                len: block,
                origin: Origin::Input { rank: from, offset: u64::from(rank) * block },
            })
            .collect(),
        Test::AllToAllV => (0..ranks)
            .map(|from| Piece {
                at: blocks.place_received(from, rank),
                len: blocks.len(from, rank),
                origin: Origin::Input { rank: from, offset: blocks.place_sent(from, rank) },
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
                let (counts, blocks) = test.counts_and_blocks(1000, 4, ranks, Skew::DISTANCE);
                for rank in 0..ranks {
                    let pieces = pieces(test, &counts, rank, ranks, 0, &blocks);
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
    fn lengths_are_those_of_nccl_tests() {
        let lengths = |spread, ranks| {
            let blocks = Skew { spread }.blocks(1024, 4, ranks);
            (0..ranks).map(|to| blocks.len(1 % ranks, to) * 4).collect::<Vec<_>>()
        };
        // 16 KiB in all, in sixths to the ranks 2, 3 and 0, and nothing to rank 1 itself.
        assert_eq!(lengths(1.0, 4), [8192, 0, 2720, 5456]);
        assert_eq!(lengths(0.0, 4), [4096; 4]);
        assert_eq!(lengths(0.5, 4), [6144, 2048, 3408, 4768]);
        assert_eq!((lengths(1.0, 2), lengths(1.0, 1)), (vec![8192, 0], vec![4096]));
    }

    #[test]
    fn blocks_lie_side_by_side() {
        for (ranks, spread) in [(1, 1.0), (2, 1.0), (5, 0.0), (5, 0.3), (8, 1.0)] {
            let blocks = Skew { spread }.blocks(1000, 4, ranks);
            for rank in 0..ranks {
                let (mut sent, mut received) = (0, 0);
                for other in 0..ranks {
                    assert_eq!(blocks.place_sent(rank, other), sent);
                    assert_eq!(blocks.place_received(other, rank), received);
                    sent += blocks.len(rank, other);
                    received += blocks.len(other, rank);
                }
                assert_eq!((sent, received), (blocks.total(), blocks.total()));
                assert!(sent <= 1000 * u64::from(ranks));
            }
        }
    }
}
