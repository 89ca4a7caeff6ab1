//! Slowdown of data movement inside a host where the caches do not hold the buffers of a call.

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

    /// Returns the factor for buffers of `bytes`, interpolated linearly in the logarithm of the size.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let place = (bytes.max(1.0) / FIRST_BYTES).log2().clamp(0.0, (POINTS - 1) as f64);
        let below = (place as usize).min(POINTS - 2);
        let share = place - below as f64;
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
        ] {
            assert!((curve.at(bytes) - factor).abs() < 1e-9, "{bytes}: {}", curve.at(bytes));
        }
    }
}
