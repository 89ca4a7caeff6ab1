//! Test data that checks a collective exactly, for any algorithm, order and number of ranks.
//!
//! The value that rank r holds at index i is a pure function of (seed, r, i, operator, type, world size), and so is the
//! result of the reduction. No rank has to communicate to know the result, and results are compared bit by bit,
//! including floating point.
//!
//! # Method
//! Rank r's value at index i is `f(h(i), p(r, j))`. Here h is a hash of the index, p is a pattern of the rank that
//! repeats every [`PERIOD`] indices, and j = i mod `PERIOD`. For each operator, f is chosen so that combining values
//! combines patterns:
//!
//! > f(h, p(0, j)) op f(h, p(1, j)) op ... = f(h, p(0, j) ∘ p(1, j) ∘ ...)
//!
//! (for a sum: h·p + h·q = h·(p + q)). The expected result therefore costs as much as one rank's input, however many
//! ranks there are: combine the patterns once, then run the same loop. `pattern` has the patterns, and explains why
//! floating-point results are exact in every order; `formula` has the functions f.
//!
//! The idea of exactly checkable data, with floating-point sums of small integers that share an exponent, comes from
//! nccl-tests.
//!
//! # Detection
//! A value that was lost, counted twice, or taken from another index or rank changes the result at most indices; a
//! rank's value may be neutral at a few. With thousands of ranks and an operator that keeps little information
//! (`LogicalAnd`, `BitOr` of a byte, sums of `bf16`), each rank affects only some indices of a period, so checks should
//! cover whole periods.

mod emit;
mod formula;
mod pattern;
#[cfg(test)]
mod tests;

use crate::reduce::Unsupported;
use crate::types::{DataType, ReduceOp};

/// Number of elements after which the patterns of the ranks repeat.
pub const PERIOD: usize = 256;

/// A reduction whose result is known in advance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    data_type: DataType,
    op: ReduceOp,
    world_size: u32,
    seed: u64,
}

/// An element with a wrong value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its index, counted like `offset`.
    pub index: u64,
    /// The value that was found, as bytes in memory order.
    pub got: Vec<u8>,
    /// The expected value.
    pub want: Vec<u8>,
}

impl Problem {
    /// Makes a problem for `world_size` ranks. The factor of `PremulSum` is ignored, since each rank has [its
    /// own](Self::op_of).
    ///
    /// # Errors
    /// [`Unsupported`] if the operator is not defined for the type.
    pub fn new(data_type: DataType, op: ReduceOp, world_size: u32, seed: u64) -> Result<Self, Unsupported> {
        if op.supports(data_type) {
            Ok(Self { data_type, op, world_size, seed })
        } else {
            Err(Unsupported::Operator { op, data_type })
        }
    }

    /// Returns the operator that a rank passes to the collective. With `PremulSum`, the factor is 1 for even ranks and
    /// 2 for odd ones; otherwise the operator is the same for all ranks.
    #[must_use]
    pub fn op_of(&self, rank: u32) -> ReduceOp {
        match self.op {
            ReduceOp::PremulSum(_) => ReduceOp::PremulSum(pattern::premul_factor(rank) as f64),
            op => op,
        }
    }

    /// Writes a rank's contribution, from element `offset` on.
    ///
    /// # Panics
    /// If `out` is not a whole number of elements.
    pub fn fill(&self, rank: u32, offset: u64, out: &mut [u8]) {
        let start = self.start(offset, out.len());
        emit::fill(*self, pattern::Ranks::One(rank), start, out);
    }

    /// Writes the result of reducing the first `ranks` ranks, from element `offset` on. With `ranks` = world size it is
    /// the result of an all-reduce, and with fewer that of a scan.
    ///
    /// # Panics
    /// If `out` is not a whole number of elements, or `ranks` is 0 or greater than the world size.
    pub fn expected(&self, ranks: u32, offset: u64, out: &mut [u8]) {
        let start = self.start(offset, out.len());
        emit::fill(*self, self.first(ranks), start, out);
    }

    /// Returns the number of elements of `got` that differ in any bit from those that [`expected`](Self::expected)
    /// writes. The expected result is not stored.
    ///
    /// # Panics
    /// As for [`expected`](Self::expected).
    #[must_use]
    pub fn count_wrong(&self, ranks: u32, offset: u64, got: &[u8]) -> u64 {
        let start = self.start(offset, got.len());
        let mut wrong = 0;
        emit::visit(*self, self.first(ranks), start, got.len(), |range, want| {
            wrong += count_wrong(self.data_type, &got[range], want);
        });
        wrong
    }

    /// Returns the first element of `got` that is wrong, for a message to a person.
    ///
    /// # Panics
    /// As for [`expected`](Self::expected).
    #[must_use]
    pub fn first_wrong(&self, ranks: u32, offset: u64, got: &[u8]) -> Option<Wrong> {
        let (start, size) = (self.start(offset, got.len()), self.data_type.size());
        let mut first = None;
        emit::visit(*self, self.first(ranks), start, got.len(), |range, want| {
            let at = range.start;
            if first.is_some() || &got[range.clone()] == want {
                return;
            }
            let mut pairs = got[range].chunks_exact(size).zip(want.chunks_exact(size)).enumerate();
            first = pairs.find(|(_, (got, want))| got != want).map(|(i, (got, want))| Wrong {
                index: offset + (at / size + i) as u64,
                got: got.to_vec(),
                want: want.to_vec(),
            });
        });
        first
    }

    fn start(&self, offset: u64, bytes: usize) -> u64 {
        assert_eq!(bytes % self.data_type.size(), 0, "not a whole number of elements");
        offset * self.data_type.size() as u64
    }

    fn first(&self, ranks: u32) -> pattern::Ranks {
        assert!((1..=self.world_size).contains(&ranks), "{ranks} of {} ranks", self.world_size);
        pattern::Ranks::First(ranks)
    }
}

/// Returns the number of elements that differ in any bit.
///
/// # Panics
/// If the lengths differ, or are not whole elements.
#[must_use]
pub fn count_wrong(data_type: DataType, got: &[u8], want: &[u8]) -> u64 {
    fn count<const SIZE: usize>(got: &[u8], want: &[u8]) -> u64 {
        let (got, rest) = got.as_chunks::<SIZE>();
        assert!(rest.is_empty(), "not a whole number of elements");
        got.iter().zip(want.as_chunks::<SIZE>().0).map(|(got, want)| u64::from(got != want)).sum()
    }
    assert_eq!(got.len(), want.len(), "results of different lengths");
    if got == want {
        return 0;
    }
    match data_type.size() {
        1 => count::<1>(got, want),
        2 => count::<2>(got, want),
        4 => count::<4>(got, want),
        _ => count::<8>(got, want),
    }
}

/// Writes bytes that a rank holds for a collective that only moves data, from byte `offset` on. Different ranks and
/// seeds give different bytes.
pub fn fill_bytes(seed: u64, rank: u32, offset: u64, out: &mut [u8]) {
    emit::visit_bytes(seed, rank, offset, out.len(), |range, want| out[range].copy_from_slice(want));
}

/// Returns the number of bytes of `got` that differ from those that [`fill_bytes`] writes.
#[must_use]
pub fn count_wrong_bytes(seed: u64, rank: u32, offset: u64, got: &[u8]) -> u64 {
    let mut wrong = 0;
    emit::visit_bytes(seed, rank, offset, got.len(), |range, want| {
        wrong += count_wrong(DataType::U8, &got[range], want);
    });
    wrong
}
