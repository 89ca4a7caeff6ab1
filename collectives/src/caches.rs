//! Slowdown of data movement inside a host where the caches do not hold the buffers of a call.

use std::f64::consts::SQRT_2;

use serde::{Deserialize, Serialize};

/// Number of buffer sizes at which a [`Curve`] is sampled.
pub const POINTS: usize = 12;

/// The smallest of these sizes, in bytes; each further one is twice as large.
pub const FIRST_BYTES: f64 = (128 << 10) as f64;

/// Slowdown as a function of the bytes of buffers that all ranks of a host touch in a call: the time to move a byte,
/// relative to buffers that the nearest caches hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(pub [f64; POINTS]);

impl Curve {
    /// No slowdown at any size.
    pub const FLAT: Self = Self([1.0; POINTS]);

    /// Returns the factor for buffers of `bytes`, interpolated linearly in the logarithm of the size. All ranks get the same
    /// bits, which they would not from `log2`: libraries and processors differ in its last bit.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let last = f64::from(1_u32 << (POINTS - 1));
        let size = (bytes.max(FIRST_BYTES) / FIRST_BYTES).min(last);
        let below = (size as u32).ilog2().min(POINTS as u32 - 2);
        let beyond = size / f64::from(1_u32 << below) - 1.0;
        // Within 0.009 of log2(1 + beyond), and equal to it at 0, at sqrt(2) - 1 and at 1.
        let share = beyond + SQRT_2 / 4.0 * beyond * (1.0 - beyond);
        let below = below as usize;
        self.0[below] * (1.0 - share) + self.0[below + 1] * share
    }
}

/// Effect of the caches on everything that moves bytes inside a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Caches {
    /// Slowdown of messages between ranks of a host.
    pub messages: Curve,
    /// Slowdown of copies.
    pub copies: Curve,
    /// Slowdown of the time that a reduction takes beyond receiving its operand.
    pub reductions: Curve,
}

impl Caches {
    /// Caches that hold everything, or make no difference.
    pub const ENDLESS: Self = Self { messages: Curve::FLAT, copies: Curve::FLAT, reductions: Curve::FLAT };
}

impl Default for Caches {
    fn default() -> Self {
        Self::ENDLESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_sizes_and_beyond_the_last() {
        let mut curve = Curve::FLAT;
        curve.0[POINTS - 2] = 2.0;
        curve.0[POINTS - 1] = 4.0;
        let last = FIRST_BYTES * f64::from(1_u32 << (POINTS - 1));
        for (bytes, factor) in [
            (0.0, 1.0),
            (FIRST_BYTES, 1.0),
            (last / 2.0, 2.0),
            (last / 2_f64.sqrt(), 3.0),
            (last, 4.0),
            (8.0 * last, 4.0),
            (f64::NAN, 1.0),
        ] {
            assert!((curve.at(bytes) - factor).abs() < 1e-9, "{bytes}: {}", curve.at(bytes));
        }
        for step in 0..=1000 {
            let share = f64::from(step) / 1000.0;
            let factor = curve.at(last / 2.0 * share.exp2());
            assert!((factor - 2.0 - 2.0 * share).abs() < 0.018, "{share}: {factor}");
        }
    }
}
