//! The one loop over elements, compiled once per instruction set.
//!
//! The compiler vectorises a loop only if it can tell that a store does not change a later load. So there is one loop
//! for a destination apart from both operands, and one for a destination that is an operand. Operators are commutative,
//! so it does not matter which operand.

use super::operators::{Bf16, Bf16Pair, Operator};

/// An element without alignment.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Loose<T>(T);

/// A function of one element.
pub(super) trait Unary<T>: Copy {
    /// Returns the function's value.
    fn apply(self, x: T) -> T;
}

/// Computes `dst = a op b`.
///
/// # Safety
/// As for [`Combine`](super::Combine); `T` is valid for any bits.
#[inline(always)]
pub(super) unsafe fn combine<T: Copy, O: Operator<T>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    let (to, a, b) = (dst.cast::<Loose<T>>(), a.cast::<Loose<T>>(), b.cast::<Loose<T>>());
    // SAFETY: the caller vouches for `count` elements behind each pointer, and `Loose` needs no alignment. The mutable
    // slice overlaps no other: an operand that is `dst` itself gets no slice of its own. Test:
    // `any_alignment_and_length`, under all three relations of `dst` to the operands.
    unsafe {
        if to.cast_const() == a && to.cast_const() == b {
            for x in std::slice::from_raw_parts_mut(to, count) {
                x.0 = O::apply(x.0, x.0);
            }
        } else if to.cast_const() == a || to.cast_const() == b {
            let other = if to.cast_const() == a { b } else { a };
            in_place::<T, O>(
                std::slice::from_raw_parts_mut(to, count),
                std::slice::from_raw_parts(other, count),
            );
        } else {
            apart::<T, O>(
                std::slice::from_raw_parts_mut(to, count),
                std::slice::from_raw_parts(a, count),
                std::slice::from_raw_parts(b, count),
            );
        }
    }
}

#[inline(always)]
fn in_place<T: Copy, O: Operator<T>>(acc: &mut [Loose<T>], other: &[Loose<T>]) {
    for (x, y) in acc.iter_mut().zip(other) {
        x.0 = O::apply(x.0, y.0);
    }
}

#[inline(always)]
fn apart<T: Copy, O: Operator<T>>(dst: &mut [Loose<T>], a: &[Loose<T>], b: &[Loose<T>]) {
    for ((to, x), y) in dst.iter_mut().zip(a).zip(b) {
        to.0 = O::apply(x.0, y.0);
    }
}

/// Computes `dst = a op b` for `bf16`, two elements at a time.
///
/// # Safety
/// As for [`Combine`](super::Combine).
#[inline(always)]
pub(super) unsafe fn combine_pairs<O: Operator<Bf16Pair> + Operator<Bf16>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
) {
    let paired_bytes = count / 2 * size_of::<Bf16Pair>();
    // SAFETY: the two calls share out the caller's elements between them.
    unsafe {
        combine::<Bf16Pair, O>(dst, a, b, count / 2);
        combine::<Bf16, O>(dst.add(paired_bytes), a.add(paired_bytes), b.add(paired_bytes), count % 2);
    }
}

/// Computes `dst = f(src)`.
///
/// # Safety
/// `src` is readable and `dst` writable for `count` elements; they are equal or do not overlap. `T` is valid for any
/// bits.
#[inline(always)]
pub(super) unsafe fn map<T: Copy, F: Unary<T>>(dst: *mut u8, src: *const u8, count: usize, f: F) {
    let (to, from) = (dst.cast::<Loose<T>>(), src.cast::<Loose<T>>());
    // SAFETY: the caller vouches for `count` elements behind each pointer, and `Loose` needs no alignment. Two slices
    // are made only if their memory does not overlap. Test: `scales_and_divides`.
    unsafe {
        let dst = std::slice::from_raw_parts_mut(to, count);
        if to.cast_const() == from {
            for x in dst {
                x.0 = f.apply(x.0);
            }
        } else {
            for (to, x) in dst.iter_mut().zip(std::slice::from_raw_parts(from, count)) {
                to.0 = f.apply(x.0);
            }
        }
    }
}

/// Computes `dst = f(src)` for `bf16`, two elements at a time.
///
/// # Safety
/// As for [`map`].
#[inline(always)]
pub(super) unsafe fn map_pairs<F: Unary<Bf16Pair> + Unary<Bf16>>(
    dst: *mut u8,
    src: *const u8,
    count: usize,
    f: F,
) {
    let paired_bytes = count / 2 * size_of::<Bf16Pair>();
    // SAFETY: the two calls share out the caller's elements between them.
    unsafe {
        map::<Bf16Pair, F>(dst, src, count / 2, f);
        map::<Bf16, F>(dst.add(paired_bytes), src.add(paired_bytes), count % 2, f);
    }
}

/// Compiles the loops with some processor features enabled.
macro_rules! compiled_with {
    ($module:ident $(, $features:literal)?) => {
        pub(super) mod $module {
            use super::super::operators::{Bf16, Bf16Pair, Operator};
            use super::Unary;

            /// As [`super::combine`]; the processor has the features of this module.
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn combine<T: Copy, O: Operator<T>>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                // SAFETY: same contract.
                unsafe { super::combine::<T, O>(dst, a, b, count) }
            }

            /// As [`super::combine_pairs`]; the processor has the features of this module.
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn combine_pairs<O: Operator<Bf16Pair> + Operator<Bf16>>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                // SAFETY: same contract.
                unsafe { super::combine_pairs::<O>(dst, a, b, count) }
            }

            /// As [`super::map`]; the processor has the features of this module.
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn map<T: Copy, F: Unary<T>>(
                dst: *mut u8,
                src: *const u8,
                count: usize,
                f: F,
            ) {
                // SAFETY: same contract.
                unsafe { super::map::<T, F>(dst, src, count, f) }
            }

            /// As [`super::map_pairs`]; the processor has the features of this module.
            $(#[target_feature(enable = $features)])?
            pub(in super::super) unsafe fn map_pairs<F: Unary<Bf16Pair> + Unary<Bf16>>(
                dst: *mut u8,
                src: *const u8,
                count: usize,
                f: F,
            ) {
                // SAFETY: same contract.
                unsafe { super::map_pairs::<F>(dst, src, count, f) }
            }
        }
    };
}

compiled_with!(baseline);
#[cfg(target_arch = "x86_64")]
compiled_with!(avx2, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
compiled_with!(avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
