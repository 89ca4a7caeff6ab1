//! The functions f of a hash and a pattern, one for each group of operators and each kind of number.
//!
//! Each is a few instructions without branches, so that loops over it vectorise.

use crate::reduce::f32_to_f16;
use crate::types::data_types;

/// Arithmetic and storage of a type. Signed integers are computed as unsigned ones; `bool` is a byte.
pub(super) trait Lane: 'static {
    /// The type in which patterns and values are computed.
    type Word: Copy + Default;
    /// Random bits.
    type Hash: Copy;
    /// The element in memory: an unsigned integer of its size.
    type Stored: Copy + Default;

    /// Returns random bits for element `j` of a tile.
    fn hash(key: u64, j: u32) -> Self::Hash;
    /// Converts a value to its form in memory.
    fn store(value: Self::Word) -> Self::Stored;
    /// Converts a pattern of integers, or of floating-point numbers, to a word.
    fn word(integer: u64, float: f64) -> Self::Word;
}

/// A function f.
pub(super) trait Formula<L: Lane> {
    /// Returns f(hash, pattern). The meaning of p and m depends on the formula.
    fn value(hash: L::Hash, p: L::Word, m: L::Word) -> L::Word;
}

/// h·p, for sums, since h·p + h·q = h·(p + q).
pub(super) struct Scaled;
/// p, times a random number where m is set, for products. m is set for one rank only, so a product contains that number
/// once.
pub(super) struct Factor;
/// h + p, without overflow, for min and max, since min(h + p, h + q) = h + min(p, q).
pub(super) struct Shifted;
/// The bits of both h and p, for bitwise or and exclusive or.
pub(super) struct Masked;
/// The bits of h or p, for bitwise and.
pub(super) struct Covered;
/// p where h and m are set, else 0, for logical or and exclusive or. p is any number but 0.
pub(super) struct TrueIf;
/// 0 where h and m are set, else p, for logical and. p is any number but 0.
pub(super) struct TrueUnless;
/// h alone, for data that is only moved.
pub(super) struct Raw;

pub(super) struct LaneF16;
pub(super) struct LaneBf16;
pub(super) struct LaneF32;
pub(super) struct LaneF64;

/// 2^64 and 2^32 divided by the golden ratio, made odd. As steps, they spread consecutive numbers.
const STEP_64: u64 = 0x9e37_79b9_7f4a_7c15;
const STEP_32: u32 = 0x9e37_79b9;

/// Mixes all bits of a number into all others (the finaliser of splitmix64).
#[inline(always)]
pub(super) fn mix_64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Mixes several numbers into one.
#[inline(always)]
pub(super) fn mix(numbers: [u64; 3]) -> u64 {
    numbers.into_iter().fold(0, |state, x| mix_64(state.wrapping_add(STEP_64) ^ x))
}

/// Mixes all bits of a number into all others (Wellons' lowbias32; vectors have 32-bit multiplication everywhere).
#[inline(always)]
fn mix_32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[inline(always)]
fn hash_32(key: u64, j: u32) -> u32 {
    mix_32((key as u32).wrapping_add(j.wrapping_mul(STEP_32)))
}

#[inline(always)]
fn hash_64(key: u64, j: u32) -> u64 {
    mix_64(key.wrapping_add(u64::from(j).wrapping_mul(STEP_64)))
}

macro_rules! lane {
    ($lane:ident, $word:ty, $hash:ty, $stored:ty, |$key:ident, $j:ident| $bits:expr, |$value:ident| $store:expr,
        |$integer:ident, $float:ident| $pattern:expr) => {
        impl Lane for $lane {
            type Word = $word;
            type Hash = $hash;
            type Stored = $stored;
            #[inline(always)]
            fn hash($key: u64, $j: u32) -> $hash {
                $bits
            }
            #[inline(always)]
            fn store($value: $word) -> $stored {
                $store
            }
            fn word($integer: u64, $float: f64) -> $word {
                $pattern
            }
        }
    };
}
lane!(LaneF16, f32, u32, u16, |key, j| hash_32(key, j), |x| f32_to_f16(x), |_integer, float| float as f32);
lane!(
    LaneBf16,
    f32,
    u32,
    u16,
    |key, j| hash_32(key, j),
    |x| (x.to_bits() >> 16) as u16,
    |_integer, float| float as f32
);
lane!(LaneF32, f32, u32, u32, |key, j| hash_32(key, j), |x| x.to_bits(), |_integer, float| float as f32);
lane!(LaneF64, f64, u64, u64, |key, j| hash_64(key, j), |x| x.to_bits(), |_integer, float| float);

macro_rules! formula {
    ($formula:ident, $lane:ident, |$h:ident, $p:ident, $m:ident| $value:expr) => {
        impl Formula<$lane> for $formula {
            #[inline(always)]
            fn value(
                $h: <$lane as Lane>::Hash,
                $p: <$lane as Lane>::Word,
                $m: <$lane as Lane>::Word,
            ) -> <$lane as Lane>::Word {
                $value
            }
        }
    };
}

macro_rules! integer_formulas {
    ($($lane:ident),*) => {$(
        formula!(Scaled, $lane, |h, p, _m| h.wrapping_mul(p));
        // Both the pattern p and the number are odd, so no product loses bits at the top for being even.
        formula!(Factor, $lane, |h, p, m| p.wrapping_mul(1 | (h & m)));
        // Both terms are less than half of the range. For signed types, m is the sign bit, which maps 0 to the least
        // value.
        formula!(Shifted, $lane, |h, p, m| ((h >> 1) + p) ^ m);
        formula!(Masked, $lane, |h, p, _m| h & p);
        formula!(Covered, $lane, |h, p, _m| h | p);
        formula!(TrueIf, $lane, |h, p, m| if h & m & 1 != 0 { p } else { 0 });
        formula!(TrueUnless, $lane, |h, p, m| if h & m & 1 != 0 { 0 } else { p });
    )*};
}

/// Makes the lanes of integers, which are those of the table's unsigned types.
macro_rules! make_lanes {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {$(
        make_lanes!(@ $class $rust, $lane);
    )+};
    (@ Unsigned $type:ty, $lane:ident) => {
        pub(super) struct $lane;
        lane!(
            $lane,
            $type,
            $type,
            $type,
            |key, j| match <$type>::BITS {
                ..=32 => (hash_32(key, j) >> (32 - <$type>::BITS.min(32))) as $type,
                _ => hash_64(key, j) as $type,
            },
            |x| x,
            |integer, _float| integer as $type
        );
        integer_formulas!($lane);
    };
    (@ $class:ident $type:ty, $lane:ident) => {};
}
data_types!(make_lanes);
formula!(Raw, LaneU64, |h, p, _m| h.wrapping_add(p));

macro_rules! float_formulas {
    ($lane:ident, $float:ident, $bits:ident, exponent $least:literal, fraction $sum_bits:literal $type_bits:expr,
        range $range_bits:expr) => {
        // This is ±1.xxx·2^e: a random sign, one of 16 exponents, and as many bits after the point as the pattern
        // leaves room for.
        formula!(Scaled, $lane, |h, p, _m| {
            let sign = h & (1 << ($bits::BITS - 1));
            let exponent =
                (((h >> ($bits::BITS - 8)) & 15) + ($float::MAX_EXP - 1 + $least) as $bits) << FRACTION;
            let fraction = (h & ((1 << $sum_bits) - 1)) << (FRACTION - $sum_bits);
            // Adding 0.0 gives +0 where p is 0, as sums do whose terms cancel.
            $float::from_bits(sign | exponent | fraction) * p + 0.0
        });
        // This is ±1.xxx with as many bits as the type has.
        formula!(Factor, $lane, |h, p, m| {
            let sign = h & (1 << ($bits::BITS - 1));
            let fraction = (h & ((1 << $type_bits) - 1)) << (FRACTION - $type_bits);
            let number = $float::from_bits(sign | $float::to_bits(1.0) | fraction);
            p * if m != 0.0 { number } else { 1.0 }
        });
        // This is a whole number of `range` bits, made by filling the low bits of a power of two. p is from -2^range to
        // -1.
        formula!(Shifted, $lane, |h, p, _m| {
            const POWER: $float = (1_u64 << FRACTION) as $float;
            ($float::from_bits(POWER.to_bits() | (h >> ($bits::BITS - $range_bits))) - POWER) + p
        });
        formula!(TrueIf, $lane, |h, p, m| if (h & 1 != 0) & (m != 0.0) { p } else { 0.0 });
        formula!(TrueUnless, $lane, |h, p, m| if (h & 1 != 0) & (m != 0.0) { 0.0 } else { p });
    };
}

/// Constants of [`super::pattern::Limits`] for `f32`, in which the 16-bit types are computed too.
mod single {
    use super::super::pattern::Limits;
    use super::*;
    const FRACTION: u32 = f32::MANTISSA_DIGITS - 1;
    float_formulas!(LaneF16, f32, u32, exponent -18, fraction 0 10, range Limits::F16.range_bits);
    float_formulas!(LaneBf16, f32, u32, exponent -8, fraction 0 7, range Limits::BF16.range_bits);
    float_formulas!(LaneF32, f32, u32, exponent -8, fraction 11 23, range Limits::F32.range_bits);
}

mod double {
    use super::super::pattern::Limits;
    use super::*;
    const FRACTION: u32 = f64::MANTISSA_DIGITS - 1;
    float_formulas!(LaneF64, f64, u64, exponent -8, fraction 31 52, range Limits::F64.range_bits);
}
