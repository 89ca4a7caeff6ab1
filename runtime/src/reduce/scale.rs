//! Multiplication by a factor before a reduction, for PreMulSum, and division after it, for Avg.

#[cfg(target_arch = "x86_64")]
use super::f16_blocks;
use super::half_bits::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::loops::Unary;
use super::operators::{Bf16, Bf16Pair, F16, quiet};
use super::{Isa, loops};
use crate::types::{DataType, data_types};

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

/// Implements the functions for the 16-bit types by way of `f32`.
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

/// Divides integers of up to 32 bits in floating point, which vectorises where integer division does not. The result is
/// exact. Suppose that x/d is not whole: then it differs from every whole number by at least 1/d. With a significand of
/// s bits, rounding changes x/d by at most 2^-s x/d, which is less than 1/d if |x| < 2^s. So rounding never reaches the
/// next whole number, and truncation is right. A divisor that is itself rounded exceeds 2^s > |x|, and the quotient is
/// 0 either way.
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

macro_rules! make_functions {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {$(
        make_functions!(@ $kernels);
    )+};
    // Processors convert vectors of floats to 32-bit integers, not to bytes. Hence the last type.
    (@ [integer $type:ty as $bits:ty, over $float:ty as $whole:ty]) => {
        integer_functions!($type);
        divide_as_float!($type as $float, $whole);
    };
    (@ [integer $type:ty as $bits:ty, over $whole:ty]) => {
        integer_functions!($type);
        divide_as_integer!($type);
    };
    (@ $kernels:tt) => {};
}
data_types!(make_functions);

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

/// Computes `dst = src * factor` over `count` elements.
///
/// Floating-point types multiply in their own precision, and the 16-bit types in `f32`. For integers, the factor is
/// rounded towards zero and limited to the range of the type, and the product wraps.
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

/// Computes `buf = buf / by` over `count` elements. Integers truncate towards zero, floating-point types divide in
/// their own precision, and the 16-bit types divide in `f32`.
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

/// Makes the call for a type, by the kernels that the table of types names.
macro_rules! times {
    ([boolean], $isa:ident, $dst:ident, $src:ident, $count:ident, $factor:ident) => {
        panic!("bool cannot be multiplied")
    };
    ([integer $type:ty as $($rest:tt)+], $isa:ident, $dst:ident, $src:ident, $count:ident, $factor:ident) => {
        call!($isa, $type, $dst, $src, $count, Times($factor as $type))
    };
    ([f16], $isa:ident, $dst:ident, $src:ident, $count:ident, $factor:ident) => {
        call!($isa, f16, $dst, $src, $count, Times($factor as f32))
    };
    ([bf16], $isa:ident, $dst:ident, $src:ident, $count:ident, $factor:ident) => {
        call!($isa, bf16, $dst, $src, $count, Times($factor as f32))
    };
    ([float $type:ty], $isa:ident, $dst:ident, $src:ident, $count:ident, $factor:ident) => {
        call!($isa, $type, $dst, $src, $count, Times($factor as $type))
    };
}

macro_rules! over {
    ([boolean], $isa:ident, $buf:ident, $src:ident, $count:ident, $by:ident) => {
        panic!("bool has no average")
    };
    ([integer $type:ty as $bits:ty, over $divisor:ty $(as $whole:ty)?], $isa:ident, $buf:ident, $src:ident,
        $count:ident, $by:ident) => {
        call!($isa, $type, $buf, $src, $count, Over($by as $divisor))
    };
    ([f16], $isa:ident, $buf:ident, $src:ident, $count:ident, $by:ident) => {
        call!($isa, f16, $buf, $src, $count, Over($by as f32))
    };
    ([bf16], $isa:ident, $buf:ident, $src:ident, $count:ident, $by:ident) => {
        call!($isa, bf16, $buf, $src, $count, Over($by as f32))
    };
    ([float $type:ty], $isa:ident, $buf:ident, $src:ident, $count:ident, $by:ident) => {
        call!($isa, $type, $buf, $src, $count, Over($by as $type))
    };
}

macro_rules! make_scale {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {
        /// Does the work of [`scale()`] for one instruction set.
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
                    $(DataType::$kolo => times!($kernels, isa, dst, src, count, factor),)+
                }
            }
        }

        /// Does the work of [`divide`] for one instruction set.
        ///
        /// # Safety
        /// As for [`divide`], and the instruction set is available.
        pub(super) unsafe fn divide_for(isa: Isa, data_type: DataType, buf: *mut u8, count: usize, by: u32) {
            assert!(by > 0, "an average over no ranks");
            let src = buf.cast_const();
            // SAFETY: the caller vouches for the pointer and the instruction set. Test: `scales_and_divides`.
            unsafe {
                match data_type {
                    $(DataType::$kolo => over!($kernels, isa, buf, src, count, by),)+
                }
            }
        }
    };
}
data_types!(make_scale);
