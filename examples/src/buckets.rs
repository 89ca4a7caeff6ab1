//! Gradients in buckets, which are summed over the ranks while the backward pass goes on.
//!
//! One call per layer would pay the latency of a call even for layers of a few bytes, and the call for a large layer
//! could not start before its whole gradient is known. One call for all layers would start when nothing is left to
//! compute meanwhile. Gradients therefore stream into buckets of one size, whatever the sizes of the layers.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::Result;
use crate::group::Group;
use crate::mlp::Piece;

/// The gradients of a backward pass.
#[derive(Debug)]
pub struct Buckets<P> {
    /// Gradients in a full bucket, at least 1.
    len: usize,
    open: Bucket,
    under_way: Vec<(P, Vec<Place>)>,
    /// Buffers that have been returned and can be filled again.
    spare: Vec<Vec<f32>>,
    waited: Duration,
}

/// Gradients in one contiguous buffer.
#[derive(Debug, Default)]
struct Bucket {
    values: Vec<f32>,
    places: Vec<Place>,
}

/// The place of a piece in a bucket.
#[derive(Debug)]
struct Place {
    layer: usize,
    start: usize,
    range: Range<usize>,
}

impl<P> Buckets<P> {
    /// Makes buckets of this many bytes each; only the last of a pass may be shorter. All ranks must use the same
    /// size.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            len: (bytes / size_of::<f32>()).max(1),
            open: Bucket::default(),
            under_way: Vec::new(),
            spare: Vec::new(),
            waited: Duration::ZERO,
        }
    }

    /// Adds a piece of gradient, and starts to sum the buckets that it fills.
    ///
    /// # Errors
    /// The group's.
    pub fn add<G: Group<Pending = P>>(&mut self, group: &G, piece: Piece<'_>) -> Result<()> {
        let Piece { layer, mut start, mut gradient } = piece;
        while !gradient.is_empty() {
            let at = self.open.values.len();
            let (fitting, rest) = gradient.split_at(gradient.len().min(self.len - at));
            self.open.values.extend_from_slice(fitting);
            self.open.places.push(Place { layer, start, range: at..at + fitting.len() });
            start += fitting.len();
            gradient = rest;
            if self.open.values.len() == self.len {
                self.start(group)?;
            }
        }
        Ok(())
    }

    fn start<G: Group<Pending = P>>(&mut self, group: &G) -> Result<()> {
        let mut next = self.spare.pop().unwrap_or_default();
        next.clear();
        let full = std::mem::replace(&mut self.open, Bucket { values: next, places: Vec::new() });
        self.under_way.push((group.start_all_reduce(full.values)?, full.places));
        Ok(())
    }

    /// Starts the last bucket, waits bucket by bucket, and hands over the sums as they arrive.
    ///
    /// # Errors
    /// The group's.
    pub fn finish<G: Group<Pending = P>>(
        &mut self,
        group: &G,
        mut summed: impl FnMut(Piece<'_>),
    ) -> Result<()> {
        if !self.open.values.is_empty() {
            self.start(group)?;
        }
        for (pending, places) in std::mem::take(&mut self.under_way) {
            let start = Instant::now();
            let values = group.wait(pending)?;
            self.waited += start.elapsed();
            for Place { layer, start, range } in places {
                summed(Piece { layer, start, gradient: &values[range] });
            }
            self.spare.push(values);
        }
        Ok(())
    }

    /// Returns the time spent waiting in [`finish`](Self::finish) since the last call of this method.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Alone;

    #[test]
    fn every_gradient_comes_back_once() {
        // Layers of 4, 3, 2 and 1 elements: all in one bucket; one bucket each; three buckets with the last not
        // full; no bucket across layers.
        for (len, calls) in [(1000, 1), (0, 10), (1, 10), (4, 3), (5, 2)] {
            let mut buckets = Buckets::new(len * size_of::<f32>());
            for _pass in 0..3 {
                for layer in (0..4).rev() {
                    let gradient: Vec<f32> = (0..=layer).map(|i| (10 * layer + i) as f32).collect();
                    buckets.add(&Alone, Piece { layer, start: 0, gradient: &gradient }).unwrap();
                }
                let rest = usize::from(!buckets.open.values.is_empty());
                assert_eq!(buckets.under_way.len() + rest, calls, "buckets of {len}");
                let mut seen = Vec::new();
                let note = |piece: Piece<'_>| {
                    for (i, &value) in piece.gradient.iter().enumerate() {
                        assert_eq!(value, (10 * piece.layer + piece.start + i) as f32);
                        seen.push(value);
                    }
                };
                buckets.finish(&Alone, note).unwrap();
                assert_eq!(seen, [30., 31., 32., 33., 20., 21., 22., 10., 11., 0.]);
            }
        }
    }
}
