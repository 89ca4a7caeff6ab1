//! Conversions between the 16-bit floating-point types and `f32`, without branches, so that loops over them vectorise.
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
/// Difference of the exponents' biases, 127 - 15, at the position of the exponent in `f32`.
const F16_REBIAS: u32 = (127 - 15) << 23;
/// 2^16 as `f32`, from which on no number is finite in `f16`.
const F16_TOO_LARGE: i32 = (127 + 16) << 23;
/// 2^-14 as `f32`: the least normal `f16`.
const F16_LEAST_NORMAL: i32 = (127 - 14) << 23;
/// Unit in the last place of a subnormal `f16`: 2^-24.
const F16_SUBNORMAL_UNIT: f32 = f32::from_bits((127 - 24) << 23);

/// Selects one of two words by a condition, with arithmetic: a chain of `if` would become branches, and the loop would
/// stay scalar.
#[inline(always)]
fn select(condition: bool, yes: u32, no: u32) -> u32 {
    let mask = u32::from(condition).wrapping_neg();
    (yes & mask) | (no & !mask)
}

/// Returns the value of an `f16`.
#[inline(always)]
pub(super) fn f16_to_f32(x: u16) -> f32 {
    let word = u32::from(x);
    let magnitude = (word & u32::from(MAGNITUDE)) as i32;
    let sign = (word ^ magnitude as u32) << 16;
    let shifted = (magnitude as u32) << F16_SHIFT;
    // This is exact and never a subnormal `f32`, so the processor's mode for subnormals does not matter.
    let subnormal = (magnitude as f32 * F16_SUBNORMAL_UNIT).to_bits();
    let finite = select(magnitude < 0x0400, subnormal, shifted + F16_REBIAS);
    let to_infinity = select(magnitude >= i32::from(F16_INFINITY), 0x7f80_0000, 0);
    f32::from_bits(finite | to_infinity | sign)
}

/// Returns the `f16` nearest to a value, ties to even. A NaN becomes the one that kernels write.
///
/// Adding 2^(e+13) to a number with exponent e makes the processor round it to units of 2^(e-10), the units of `f16`.
/// The sum's bits minus the power's bits are the significand, with its leading 1 unless it is subnormal.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let magnitude = (x.to_bits() & 0x7fff_ffff) as i32;
    let sign = (x.to_bits() ^ magnitude as u32) >> 16;
    // From 2^16 on, every value becomes infinity.
    let limited = magnitude.min(F16_TOO_LARGE);
    let exponent = (limited & 0x7f80_0000).max(F16_LEAST_NORMAL);
    let power = f32::from_bits((exponent + (13 << 23)) as u32);
    let significand = (f32::from_bits(limited as u32) + power).to_bits() - power.to_bits();
    // The significand's leading 1 adds 1 to the exponent field. Therefore the least normal exponent is subtracted here,
    // not the one below it.
    let number = (((exponent - F16_LEAST_NORMAL) as u32) >> F16_SHIFT) + significand;
    select(magnitude > 0x7f80_0000, u32::from(F16_NAN), number | sign) as u16
}

/// Returns the value of a `bf16`.
#[inline(always)]
pub(super) fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Returns the `bf16` nearest to a value, ties to even, in the upper half of a word. The lower half must be ignored.
/// `x` must not be a NaN other than the one of [`quiet`](super::operators::quiet).
#[inline(always)]
pub(super) fn round_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1)
}

/// Returns the `bf16` nearest to a value, ties to even. NaN as for [`round_to_bf16`].
#[inline(always)]
pub(super) fn f32_to_bf16(x: f32) -> u16 {
    (round_to_bf16(x) >> 16) as u16
}
