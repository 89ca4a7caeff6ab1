//! The patterns of the ranks, and how they combine.
//!
//! # Why floating-point results are exact in every order
//! * **Sums.** At each index, all ranks hold multiples p·B of one number B = ±1.xxx·2^e, with whole p. The patterns of
//!   an index satisfy sum |p| <= `budget`, so whichever ranks have been added so far, the sum is a multiple of B by at
//!   most `budget`. B has `log2(significand / budget)` bits, so such a multiple fits into the significand, and nothing
//!   is ever rounded. If there are more ranks than `budget`, only `budget` of them hold a non-zero value at each index,
//!   and others do at the next.
//! * **Products.** All ranks hold ±2^k with k of -1, 0 or 1, and k is not 0 for at most `powers` of them. One rank also
//!   holds a random number of the type as a factor. Multiplication by a power of two is exact, and no partial product
//!   leaves the range of normal numbers.
//! * **Min, max.** All values are whole numbers that the type represents.
//! * **Averages.** The sum is exact and is divided once.

use super::formula::mix;
use crate::types::{Class, DataType, ReduceOp, data_types};

/// The ranks that a pattern belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ranks {
    /// One rank's contribution.
    One(u32),
    /// The first ranks, this many, combined.
    First(u32),
}

/// Bits and ranks that a floating-point type has room for.
pub(super) struct Limits {
    /// Greatest sum of |p| over the ranks, a power of two.
    budget: u64,
    /// Greatest number of ranks with a factor other than ±1 in a product.
    powers: u64,
    /// Bits of the whole numbers used for min and max.
    pub(super) range_bits: u32,
}

impl Limits {
    /// 11 bits of significand, all for the patterns. Powers of two from 2^-14 to 2^15.
    pub(super) const F16: Self = Self { budget: 1 << 11, powers: 8, range_bits: 10 };
    /// 8 bits of significand, all for the patterns.
    pub(super) const BF16: Self = Self { budget: 1 << 8, powers: 64, range_bits: 7 };
    /// 24 bits of significand: 12 for the patterns, 12 for B.
    pub(super) const F32: Self = Self { budget: 1 << 12, powers: 64, range_bits: 22 };
    /// 53 bits of significand: 20 for the patterns, 32 for B.
    pub(super) const F64: Self = Self { budget: 1 << 20, powers: 64, range_bits: 50 };
}

macro_rules! make_limits {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {
        impl Limits {
            /// Returns the limits of a floating-point type. Integers do not use them.
            fn of(data_type: DataType) -> &'static Self {
                match data_type {
                    $(DataType::$kolo => make_limits!(@ $class $kolo),)+
                }
            }
        }
    };
    (@ Float $kolo:ident) => {
        &Self::$kolo
    };
    (@ $class:ident $kolo:ident) => {
        &Self::F32
    };
}
data_types!(make_limits);

/// The patterns p and m of a formula. Integers use the first of each pair, floating-point types the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pattern {
    pub(super) p: (u64, f64),
    pub(super) m: (u64, f64),
}

/// Groups of operators by their effect on patterns. For `bool`, all are logical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Sum,
    Prod,
    Min,
    Max,
    BitAnd,
    BitOr,
    BitXor,
    LogicalAnd,
    LogicalOr,
    LogicalXor,
}

impl Group {
    pub(super) fn of(data_type: DataType, op: ReduceOp) -> Self {
        let group = match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => Self::Sum,
            ReduceOp::Prod => Self::Prod,
            ReduceOp::Min => Self::Min,
            ReduceOp::Max => Self::Max,
            ReduceOp::BitAnd => Self::BitAnd,
            ReduceOp::BitOr => Self::BitOr,
            ReduceOp::BitXor => Self::BitXor,
            ReduceOp::LogicalAnd => Self::LogicalAnd,
            ReduceOp::LogicalOr => Self::LogicalOr,
            ReduceOp::LogicalXor => Self::LogicalXor,
        };
        match group {
            group if data_type != DataType::Bool => group,
            Self::Sum | Self::Max | Self::BitOr => Self::LogicalOr,
            Self::Prod | Self::Min | Self::BitAnd => Self::LogicalAnd,
            Self::BitXor => Self::LogicalXor,
            logical => logical,
        }
    }
}

/// Returns the factor of a rank under `PremulSum`.
pub(super) fn premul_factor(rank: u32) -> u64 {
    1 + u64::from(rank % 2)
}

/// Generator of a problem's patterns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patterns {
    pub(super) data_type: DataType,
    pub(super) op: ReduceOp,
    pub(super) world_size: u32,
    pub(super) seed: u64,
}

impl Patterns {
    /// Returns the pattern at position `j` of the period.
    pub(super) fn at(&self, ranks: Ranks, j: usize) -> Pattern {
        match ranks {
            Ranks::One(rank) => self.of_rank(rank, j as u64),
            Ranks::First(count) => {
                let first = self.in_sum(0, j as u64);
                (1..count).map(|rank| self.in_sum(rank, j as u64)).fold(first, |a, b| self.combine(a, b))
            }
        }
    }

    /// Returns a rank's pattern as it enters the result.
    fn in_sum(&self, rank: u32, j: u64) -> Pattern {
        let mut pattern = self.of_rank(rank, j);
        if matches!(self.op, ReduceOp::PremulSum(_)) {
            let factor = premul_factor(rank);
            pattern.p.0 = pattern.p.0.wrapping_mul(factor);
            pattern.p.1 *= factor as f64;
        }
        pattern
    }

    /// Combines two patterns: the ∘ of the module's documentation.
    fn combine(&self, a: Pattern, b: Pattern) -> Pattern {
        let m = (a.m.0 | b.m.0, a.m.1.max(b.m.1));
        let p = match Group::of(self.data_type, self.op) {
            Group::Sum => (a.p.0.wrapping_add(b.p.0), a.p.1 + b.p.1),
            Group::Prod => (a.p.0.wrapping_mul(b.p.0), a.p.1 * b.p.1),
            Group::Min => (a.p.0.min(b.p.0), a.p.1.min(b.p.1)),
            Group::Max => (a.p.0.max(b.p.0), a.p.1.max(b.p.1)),
            Group::BitAnd => (a.p.0 & b.p.0, 0.0),
            Group::BitOr => (a.p.0 | b.p.0, 0.0),
            Group::BitXor => (a.p.0 ^ b.p.0, 0.0),
            Group::LogicalAnd | Group::LogicalOr => (1, 1.0),
            Group::LogicalXor => {
                return Pattern { p: (1, 1.0), m: (a.m.0 ^ b.m.0, if a.m.1 == b.m.1 { 0.0 } else { 1.0 }) };
            }
        };
        Pattern { p, m }
    }

    fn of_rank(&self, rank: u32, j: u64) -> Pattern {
        let random = mix([self.seed, u64::from(rank), j]);
        let owner = self.is_among(1, rank, j);
        let set = |yes: bool| if yes { (u64::MAX, 1.0) } else { (0, 0.0) };
        let limits = Limits::of(self.data_type);
        let bits = 8 * self.data_type.size() as u32;
        match Group::of(self.data_type, self.op) {
            Group::Sum => Pattern { p: (random, self.summand(limits, rank, j, random)), m: (0, 0.0) },
            Group::Prod => {
                let power = if self.is_among(limits.powers, rank, j) {
                    if random & 2 == 0 { 2.0 } else { 0.5 }
                } else {
                    1.0
                };
                let power = if random & 4 == 0 { power } else { -power };
                Pattern { p: (random | 1, power), m: set(owner) }
            }
            Group::Min | Group::Max => {
                // Flipping the sign bit turns the order of unsigned numbers into that of signed ones.
                let signed = self.data_type.class() == Class::Signed;
                let flip = if signed { 1 << (bits - 1) } else { 0 };
                let below_zero =
                    (random >> (64 - limits.range_bits)) as f64 - (1_u64 << limits.range_bits) as f64;
                Pattern { p: (random >> (65 - bits), below_zero), m: (flip, 0.0) }
            }
            Group::BitAnd => Pattern { p: (!self.owned_bits(bits, rank, j), 0.0), m: (0, 0.0) },
            Group::BitOr => Pattern { p: (self.owned_bits(bits, rank, j), 0.0), m: (0, 0.0) },
            Group::BitXor => Pattern { p: (random, 0.0), m: (0, 0.0) },
            Group::LogicalAnd | Group::LogicalOr => Pattern { p: self.truth(rank, random), m: set(owner) },
            Group::LogicalXor => Pattern { p: self.truth(rank, random), m: set(random & 8 != 0) },
        }
    }

    /// Whether a rank is one of `count` at a position. These ranks are neighbours, and move on from position to
    /// position, so that every rank is among them somewhere.
    fn is_among(&self, count: u64, rank: u32, j: u64) -> bool {
        let turn = u64::from(rank) + (j + self.seed % 1024) * count;
        turn % u64::from(self.world_size.max(1)) < count
    }

    /// Returns a whole number for a rank. The ranks' absolute values add up to at most `budget`.
    fn summand(&self, limits: &Limits, rank: u32, j: u64, random: u64) -> f64 {
        // Factors of up to 2 use half of the budget.
        let budget =
            if matches!(self.op, ReduceOp::PremulSum(_)) { limits.budget / 2 } else { limits.budget };
        let share = budget / u64::from(self.world_size.max(1));
        let magnitude =
            if share > 0 { 1 + (random >> 8) % share } else { u64::from(self.is_among(budget, rank, j)) };
        let magnitude = magnitude as f64;
        if random & 1 == 0 { magnitude } else { -magnitude }
    }

    /// Returns the bits that only this rank has. Every bit belongs to some rank.
    fn owned_bits(&self, bits: u32, rank: u32, j: u64) -> u64 {
        let ranks = u64::from(self.world_size.max(1));
        let first_bit_of_j = (j + self.seed % 1024) * u64::from(bits);
        // This is the least b with (first_bit_of_j + b) mod ranks = rank.
        let least = (u64::from(rank) + ranks - first_bit_of_j % ranks) % ranks;
        (least..u64::from(bits)).step_by(ranks as usize).fold(0, |owned, bit| owned | 1 << bit)
    }

    /// Returns a number that counts as true. Rank 0 has 1 itself, because in a scan its values are already results.
    fn truth(&self, rank: u32, random: u64) -> (u64, f64) {
        if rank == 0 || self.data_type == DataType::Bool {
            return (1, 1.0);
        }
        let magnitude = (1 + (random >> 16) % 7) as f64;
        (random | 1, if random & 1 == 0 { magnitude } else { -magnitude })
    }
}
