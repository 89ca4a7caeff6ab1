//! Multiplication by a factor before a reduction, for PreMulSum, and division after it, for Avg.

#[cfg(target_arch = "x86_64")]
use super::f16_blocks;
use super::half_bits::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::loops::Unary;
use super::operators::{Bf16, Bf16Pair, F16, quiet};
use super::{Isa, loops};
use crate::types::DataType;

/// Multiplies by a factor.
#[derive(Clone, Copy)]
struct Times<T>(T);

/// Divides by a number of ranks.
#[derive(Clone, Copy)]
struct Over<T>(T);

macro_rules! integer_functions {
    ($($type:ty),*) => {$(
        impl Unary<$type> for Times<$type> {
            #[inline(always)]
            fn apply(self, x: $type) -> $type {
                x.wrapping_mul(self.0)
            }
        }
    )*};
}
integer_functions!(u8, i8, u32, i32, u64, i64);

macro_rules! float_functions {
    ($($type:ty),*) => {$(
        impl Unary<$type> for Times<$type> {
            #[inline(always)]
            fn apply(self, x: $type) -> $type {
                quiet(x * self.0)
            }
        }
        impl Unary<$type> for Over<$type> {
            #[inline(always)]
            fn apply(self, x: $type) -> $type {
                quiet(x / self.0)
            }
        }
    )*};
}
float_functions!(f32, f64);

/// The 16-bit types by way of `f32`.
macro_rules! half_functions {
    ($($function:ident),*) => {$(
        impl Unary<F16> for $function<f32> {
            #[inline(always)]
            fn apply(self, x: F16) -> F16 {
                F16(f32_to_f16(<Self as Unary<f32>>::apply(self, f16_to_f32(x.0))))
            }
        }
        impl Unary<Bf16> for $function<f32> {
            #[inline(always)]
            fn apply(self, x: Bf16) -> Bf16 {
                Bf16(f32_to_bf16(<Self as Unary<f32>>::apply(self, bf16_to_f32(x.0))))
            }
        }
        impl Unary<Bf16Pair> for $function<f32> {
            #[inline(always)]
            fn apply(self, x: Bf16Pair) -> Bf16Pair {
                x.map(|x| <Self as Unary<f32>>::apply(self, x))
            }
        }
    )*};
}
half_functions!(Times, Over);

/// Integers of up to 32 bits are divided in floating point, which vectorises where integer division does not. It is
/// exact. Let x/d not be whole: it lies at least 1/d from a whole number. With a significand of s bits, rounding x/d
/// moves it by at most 2^-s x/d, less than 1/d if |x| < 2^s; so rounding never reaches the whole number that truncation
/// must not see. A divisor that is itself rounded exceeds 2^s > |x|, and the quotient is 0 either way.
macro_rules! divide_as_float {
    ($($type:ty as $float:ty, $whole:ty);*) => {$(
        impl Unary<$type> for Over<$float> {
            #[inline(always)]
            fn apply(self, x: $type) -> $type {
                let quotient = <$float>::from(x) / self.0;
                // SAFETY: the divisor is at least 1 (asserted in `divide_for`), so the quotient is finite and no larger
                // than `x`, which fits. Test: `scales_and_divides`.
                unsafe { quotient.to_int_unchecked::<$whole>() as $type }
            }
        }
    )*};
}
// Processors convert vectors to 32-bit integers, not to bytes.
divide_as_float!(u8 as f32, i32; i8 as f32, i32; u32 as f64, u32; i32 as f64, i32);

macro_rules! divide_as_integer {
    ($($type:ty),*) => {$(
        impl Unary<$type> for Over<$type> {
            #[inline(always)]
            fn apply(self, x: $type) -> $type {
                x / self.0
            }
        }
    )*};
}
divide_as_integer!(u64, i64);

/// Calls the instance of a loop for an instruction set.
macro_rules! call {
    ($isa:ident, bf16, $($argument:expr),+) => {
        call!(@ $isa, loops::avx2::map_pairs, loops::avx512::map_pairs, loops::baseline::map_pairs, $($argument),+)
    };
    ($isa:ident, f16, $($argument:expr),+) => {
        call!(@ $isa, f16_blocks::avx2::map, f16_blocks::avx512::map, loops::baseline::map::<F16, _>, $($argument),+)
    };
    ($isa:ident, $type:ty, $($argument:expr),+) => {
        call!(@ $isa, loops::avx2::map::<$type, _>, loops::avx512::map::<$type, _>,
            loops::baseline::map::<$type, _>, $($argument),+)
    };
    (@ $isa:ident, $avx2:expr, $avx512:expr, $baseline:expr, $($argument:expr),+) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => $avx2($($argument),+),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => $avx512($($argument),+),
            _ => $baseline($($argument),+),
        }
    };
}

/// `dst = src * factor`, over `count` elements.
///
/// Floating-point types multiply in their own precision, the 16-bit types in `f32`. For integers the factor is rounded
/// towards zero and limited to the range of the type; the product wraps.
///
/// # Safety
/// `src` is readable and `dst` writable for `count` elements; they are equal or do not overlap. Alignment does not
/// matter.
///
/// # Panics
/// For `bool`, for which no operator multiplies (see [`ReduceOp::supports`](crate::types::ReduceOp::supports)).
pub unsafe fn scale(data_type: DataType, dst: *mut u8, src: *const u8, count: usize, factor: f64) {
    // SAFETY: `best` is available; the caller vouches for the pointers.
    unsafe { scale_for(Isa::best(), data_type, dst, src, count, factor) }
}

/// [`scale()`] for one instruction set.
///
/// # Safety
/// As for [`scale()`], and the instruction set is available.
pub(super) unsafe fn scale_for(
    isa: Isa,
    data_type: DataType,
    dst: *mut u8,
    src: *const u8,
    count: usize,
    factor: f64,
) {
    // SAFETY: the caller vouches for the pointers and the instruction set. Test: `scales_and_divides`.
    unsafe {
        match data_type {
            DataType::Bool => panic!("bool cannot be multiplied"),
            DataType::U8 => call!(isa, u8, dst, src, count, Times(factor as u8)),
            DataType::I8 => call!(isa, i8, dst, src, count, Times(factor as i8)),
            DataType::U32 => call!(isa, u32, dst, src, count, Times(factor as u32)),
            DataType::I32 => call!(isa, i32, dst, src, count, Times(factor as i32)),
            DataType::U64 => call!(isa, u64, dst, src, count, Times(factor as u64)),
            DataType::I64 => call!(isa, i64, dst, src, count, Times(factor as i64)),
            DataType::F16 => call!(isa, f16, dst, src, count, Times(factor as f32)),
            DataType::BF16 => call!(isa, bf16, dst, src, count, Times(factor as f32)),
            DataType::F32 => call!(isa, f32, dst, src, count, Times(factor as f32)),
            DataType::F64 => call!(isa, f64, dst, src, count, Times(factor)),
        }
    }
}

/// `buf = buf / by`, over `count` elements: integers truncate towards zero, floating-point types divide in their own
/// precision, the 16-bit types in `f32`.
///
/// # Safety
/// `buf` is readable and writable for `count` elements. Alignment does not matter.
///
/// # Panics
/// If `by` is zero, or for `bool`, which has no average.
pub unsafe fn divide(data_type: DataType, buf: *mut u8, count: usize, by: u32) {
    // SAFETY: `best` is available; the caller vouches for the pointer.
    unsafe { divide_for(Isa::best(), data_type, buf, count, by) }
}

/// [`divide`] for one instruction set.
///
/// # Safety
/// As for [`divide`], and the instruction set is available.
pub(super) unsafe fn divide_for(isa: Isa, data_type: DataType, buf: *mut u8, count: usize, by: u32) {
    assert!(by > 0, "an average over no ranks");
    let src = buf.cast_const();
    // SAFETY: the caller vouches for the pointer and the instruction set. Test: `scales_and_divides`.
    unsafe {
        match data_type {
            DataType::Bool => panic!("bool has no average"),
            DataType::U8 => call!(isa, u8, buf, src, count, Over(by as f32)),
            DataType::I8 => call!(isa, i8, buf, src, count, Over(by as f32)),
            DataType::U32 => call!(isa, u32, buf, src, count, Over(f64::from(by))),
            DataType::I32 => call!(isa, i32, buf, src, count, Over(f64::from(by))),
            DataType::U64 => call!(isa, u64, buf, src, count, Over(u64::from(by))),
            DataType::I64 => call!(isa, i64, buf, src, count, Over(i64::from(by))),
            DataType::F16 => call!(isa, f16, buf, src, count, Over(by as f32)),
            DataType::BF16 => call!(isa, bf16, buf, src, count, Over(by as f32)),
            DataType::F32 => call!(isa, f32, buf, src, count, Over(by as f32)),
            DataType::F64 => call!(isa, f64, buf, src, count, Over(f64::from(by))),
        }
    }
}
