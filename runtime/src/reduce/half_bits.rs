//! Conversions between the 16-bit floating-point types and `f32`, without branches, so that loops of them vectorise.
//!
//! They agree in every bit with the `half` crate and with F16C (test `conversions_exhaustively`), except for NaN:
//! narrowing expects the one NaN that [`quiet`](super::operators::quiet) leaves.

/// Bits of an `f16` or `bf16` without its sign.
pub(super) const MAGNITUDE: u16 = 0x7fff;
/// Infinity as `f16`.
pub(super) const F16_INFINITY: u16 = 0x7c00;
/// The NaN that kernels write as `f16`.
pub(super) const F16_NAN: u16 = 0x7e00;
/// Infinity as `bf16`.
pub(super) const BF16_INFINITY: u16 = 0x7f80;
/// The NaN that kernels write as `bf16`.
pub(super) const BF16_NAN: u16 = 0x7fc0;

/// Bits by which the significand of `f32` is longer than that of `f16`: 23 - 10.
const F16_SHIFT: u32 = 13;
/// Difference of the exponents' biases, 127 - 15, where `f32` keeps its exponent.
const F16_REBIAS: u32 = (127 - 15) << 23;
/// 2^16 as `f32`: from here on nothing is finite in `f16`.
const F16_TOO_LARGE: u32 = (127 + 16) << 23;
/// 2^-14 as `f32`: the least normal `f16`.
const F16_LEAST_NORMAL: u32 = (127 - 14) << 23;
/// 0.5, whose unit in the last place as `f32` is that of a subnormal `f16`, 2^-24: adding it rounds there.
const F16_SUBNORMAL_MAGIC: f32 = 0.5;
/// Unit in the last place of a subnormal `f16`: 2^-24.
const F16_SUBNORMAL_UNIT: f32 = f32::from_bits((127 - 24) << 23);

/// The value of an `f16`.
#[inline(always)]
pub(super) fn f16_to_f32(x: u16) -> f32 {
    let magnitude = u32::from(x & MAGNITUDE);
    let sign = u32::from(x & !MAGNITUDE) << 16;
    let shifted = magnitude << F16_SHIFT;
    let normal = shifted + F16_REBIAS;
    let not_finite = shifted | 0x7f80_0000;
    // Exact, and free of subnormal `f32`, so that no mode of the processor matters.
    let subnormal = ((magnitude as i32) as f32 * F16_SUBNORMAL_UNIT).to_bits();
    let bits = if magnitude >= u32::from(F16_INFINITY) {
        not_finite
    } else if magnitude < 0x0400 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(bits | sign)
}

/// The `f16` nearest to a value, ties to even. A NaN becomes the one that kernels write.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = ((bits >> 16) as u16) & !MAGNITUDE;
    // Half a unit less one, and one more if the last bit kept is odd. The carry into the exponent is right too.
    let round = (1 << (F16_SHIFT - 1)) - 1 + ((magnitude >> F16_SHIFT) & 1);
    let normal = (magnitude.wrapping_add(round).wrapping_sub(F16_REBIAS) >> F16_SHIFT) as u16;
    let subnormal = (f32::from_bits(magnitude) + F16_SUBNORMAL_MAGIC)
        .to_bits()
        .wrapping_sub(F16_SUBNORMAL_MAGIC.to_bits()) as u16;
    let number = if magnitude >= F16_TOO_LARGE {
        F16_INFINITY
    } else if magnitude < F16_LEAST_NORMAL {
        subnormal
    } else {
        normal
    };
    if magnitude > 0x7f80_0000 { F16_NAN } else { number | sign }
}

/// The value of a `bf16`.
#[inline(always)]
pub(super) fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// The `bf16` nearest to a value, ties to even, in the upper half of a word whose lower half is to be ignored.
/// `x` must not be a NaN other than the one of [`quiet`](super::operators::quiet).
#[inline(always)]
pub(super) fn round_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1)
}

/// The `bf16` nearest to a value, ties to even. NaN as for [`round_to_bf16`].
#[inline(always)]
pub(super) fn f32_to_bf16(x: f32) -> u16 {
    (round_to_bf16(x) >> 16) as u16
}
