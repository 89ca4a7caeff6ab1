//! Definition of each operator, for one pair of elements.
//!
//! Everything here is small, safe and inlined into the loop of [`super::loops`], and has no branches where the loop
//! should vectorise.

use super::half_bits::{
    BF16_INFINITY, BF16_NAN, F16_INFINITY, F16_NAN, MAGNITUDE, bf16_to_f32, f16_to_f32, f32_to_bf16,
    f32_to_f16, round_to_bf16,
};
use crate::types::data_types;

/// An operator on elements of type `T`, commutative in bits.
pub(super) trait Operator<T> {
    /// Computes `a op b`.
    fn apply(a: T, b: T) -> T;
}

/// An `f16`, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(pub(super) u16);

/// A `bf16`, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(pub(super) u16);

/// Two neighbouring `bf16` in one word. Each is extracted by a shift or a mask, so a vector of pairs needs no
/// unpacking: twice as fast as one element at a time.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16Pair(pub(super) u32);

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct BitAnd;
pub(super) struct BitOr;
pub(super) struct BitXor;
pub(super) struct LogicalAnd;
pub(super) struct LogicalOr;
pub(super) struct LogicalXor;

/// A floating-point type whose NaN results can be replaced by a single NaN.
pub(super) trait Quiet {
    /// Returns the number itself, or the one NaN that kernels write.
    fn quiet(self) -> Self;
}

macro_rules! quiet {
    ($float:ty, $nan:expr) => {
        impl Quiet for $float {
            #[inline(always)]
            fn quiet(self) -> Self {
                // This uses bits because the language does not guarantee the sign and payload of `Self::NAN`.
                if self.is_nan() { Self::from_bits($nan) } else { self }
            }
        }
    };
}
quiet!(f32, 0x7fc0_0000);
quiet!(f64, 0x7ff8_0000_0000_0000);

/// Calls [`Quiet::quiet`], as a function.
#[inline(always)]
pub(super) fn quiet<T: Quiet>(x: T) -> T {
    x.quiet()
}

macro_rules! operator {
    ($op:ident, $type:ty, |$a:ident, $b:ident| $body:expr) => {
        impl Operator<$type> for $op {
            #[inline(always)]
            fn apply($a: $type, $b: $type) -> $type {
                $body
            }
        }
    };
}

macro_rules! unsigned_operators {
    ($($type:ty),*) => {$(
        // Wrapping arithmetic is the same for signed and unsigned numbers, so signed types use these operators too.
        operator!(Sum, $type, |a, b| a.wrapping_add(b));
        operator!(Prod, $type, |a, b| a.wrapping_mul(b));
        operator!(BitAnd, $type, |a, b| a & b);
        operator!(BitOr, $type, |a, b| a | b);
        operator!(BitXor, $type, |a, b| a ^ b);
        operator!(LogicalAnd, $type, |a, b| <$type>::from((a != 0) & (b != 0)));
        operator!(LogicalOr, $type, |a, b| <$type>::from((a | b) != 0));
        operator!(LogicalXor, $type, |a, b| <$type>::from((a != 0) ^ (b != 0)));
    )*};
}

macro_rules! ordered_operators {
    ($($type:ty),*) => {$(
        operator!(Min, $type, |a, b| if a < b { a } else { b });
        operator!(Max, $type, |a, b| if a > b { a } else { b });
    )*};
}

macro_rules! make_operators {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {$(
        make_operators!(@ $class $kernels);
    )+};
    (@ Unsigned [integer $type:ty as $($rest:tt)+]) => {
        unsigned_operators!($type);
        ordered_operators!($type);
    };
    (@ Signed [integer $type:ty as $($rest:tt)+]) => {
        ordered_operators!($type);
    };
    (@ $class:ident $kernels:tt) => {};
}
data_types!(make_operators);

macro_rules! float_operators {
    ($($type:ty),*) => {$(
        operator!(Sum, $type, |a, b| quiet(a + b));
        operator!(Prod, $type, |a, b| quiet(a * b));
        operator!(Min, $type, |a, b| {
            let less = if a < b { a } else { b };
            // Equal numbers differ at most in the sign of zero. The sign bit of either makes the result the lesser one.
            let less = if a == b { <$type>::from_bits(a.to_bits() | b.to_bits()) } else { less };
            if a.is_nan() | b.is_nan() { quiet(<$type>::NAN) } else { less }
        });
        operator!(Max, $type, |a, b| {
            let more = if a > b { a } else { b };
            let more = if a == b { <$type>::from_bits(a.to_bits() & b.to_bits()) } else { more };
            if a.is_nan() | b.is_nan() { quiet(<$type>::NAN) } else { more }
        });
        operator!(LogicalAnd, $type, |a, b| truth((a != 0.0) & (b != 0.0)));
        operator!(LogicalOr, $type, |a, b| truth((a != 0.0) | (b != 0.0)));
        operator!(LogicalXor, $type, |a, b| truth((a != 0.0) ^ (b != 0.0)));
    )*};
}
float_operators!(f32, f64);

/// Converts a truth value to 1 or 0.
#[inline(always)]
fn truth<T: From<bool>>(x: bool) -> T {
    T::from(x)
}

/// Maps the bits of a 16-bit floating-point number to an integer of the same order, with -0 before +0. The map is its
/// own inverse.
#[inline(always)]
fn order(bits: u16) -> i16 {
    let signed = bits as i16;
    signed ^ ((signed >> 15) & MAGNITUDE as i16)
}

macro_rules! half_operators {
    ($type:ident, $widen:ident, $narrow:ident, $infinity:ident, $nan:ident, $one:expr) => {
        operator!(Sum, $type, |a, b| $type($narrow(<Self as Operator<f32>>::apply(
            $widen(a.0),
            $widen(b.0)
        ))));
        operator!(Prod, $type, |a, b| $type($narrow(<Self as Operator<f32>>::apply(
            $widen(a.0),
            $widen(b.0)
        ))));
        // No conversion is needed, because the numbers are ordered like their integers.
        operator!(Min, $type, |a, b| {
            let (x, y) = (order(a.0), order(b.0));
            let less = order((if x < y { x } else { y }) as u16) as u16;
            let nan = (a.0 & MAGNITUDE > $infinity) | (b.0 & MAGNITUDE > $infinity);
            $type(if nan { $nan } else { less })
        });
        operator!(Max, $type, |a, b| {
            let (x, y) = (order(a.0), order(b.0));
            let more = order((if x > y { x } else { y }) as u16) as u16;
            let nan = (a.0 & MAGNITUDE > $infinity) | (b.0 & MAGNITUDE > $infinity);
            $type(if nan { $nan } else { more })
        });
        operator!(LogicalAnd, $type, |a, b| {
            $type(if (a.0 & MAGNITUDE != 0) & (b.0 & MAGNITUDE != 0) { $one } else { 0 })
        });
        operator!(LogicalOr, $type, |a, b| $type(if (a.0 | b.0) & MAGNITUDE != 0 { $one } else { 0 }));
        operator!(LogicalXor, $type, |a, b| {
            $type(if (a.0 & MAGNITUDE != 0) ^ (b.0 & MAGNITUDE != 0) { $one } else { 0 })
        });
    };
}
half_operators!(F16, f16_to_f32, f32_to_f16, F16_INFINITY, F16_NAN, 0x3c00);
half_operators!(Bf16, bf16_to_f32, f32_to_bf16, BF16_INFINITY, BF16_NAN, 0x3f80);

const UPPER: u32 = 0xffff_0000;

impl Bf16Pair {
    /// Applies a function to both elements.
    #[inline(always)]
    pub(super) fn map(self, f: impl Fn(f32) -> f32) -> Self {
        let upper = f(f32::from_bits(self.0 & UPPER));
        let lower = f(f32::from_bits(self.0 << 16));
        Self((round_to_bf16(upper) & UPPER) | (round_to_bf16(lower) >> 16))
    }

    #[inline(always)]
    fn zip<O: Operator<f32>>(self, other: Self) -> Self {
        let upper = O::apply(f32::from_bits(self.0 & UPPER), f32::from_bits(other.0 & UPPER));
        let lower = O::apply(f32::from_bits(self.0 << 16), f32::from_bits(other.0 << 16));
        Self((round_to_bf16(upper) & UPPER) | (round_to_bf16(lower) >> 16))
    }
}

operator!(Sum, Bf16Pair, |a, b| a.zip::<Self>(b));
operator!(Prod, Bf16Pair, |a, b| a.zip::<Self>(b));
