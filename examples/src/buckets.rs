//! Gradients on their way: collected into buckets, summed over the ranks while the backward pass goes on.
//!
//! One call per layer would pay the latency of a call for layers of a few bytes; one call for all layers would start
//! when there is nothing left to compute meanwhile. So finished gradients are collected until they fill a bucket.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::Result;
use crate::group::Group;

/// The gradients of a backward pass.
#[derive(Debug)]
pub struct Buckets<P> {
    least_len: usize,
    open: Bucket,
    under_way: Vec<(P, Layers)>,
    /// Buffers that have come back, to be filled again.
    spare: Vec<Vec<f32>>,
    waited: Duration,
}

/// Which layer's gradient lies where in a bucket.
type Layers = Vec<(usize, Range<usize>)>;

/// Gradients side by side.
#[derive(Debug, Default)]
struct Bucket {
    values: Vec<f32>,
    layers: Layers,
}

impl<P> Buckets<P> {
    /// Buckets of at least so many bytes each, but for the last.
    #[must_use]
    pub fn new(least_bytes: usize) -> Self {
        Self {
            least_len: least_bytes / size_of::<f32>(),
            open: Bucket::default(),
            under_way: Vec::new(),
            spare: Vec::new(),
            waited: Duration::ZERO,
        }
    }

    /// Adds a layer's gradient; if that fills the bucket, starts to sum it.
    ///
    /// # Errors
    /// The group's.
    pub fn add<G: Group<Pending = P>>(&mut self, group: &G, layer: usize, gradient: &[f32]) -> Result<()> {
        let at = self.open.values.len();
        self.open.values.extend_from_slice(gradient);
        self.open.layers.push((layer, at..at + gradient.len()));
        if self.open.values.len() >= self.least_len { self.start(group) } else { Ok(()) }
    }

    fn start<G: Group<Pending = P>>(&mut self, group: &G) -> Result<()> {
        let mut next = self.spare.pop().unwrap_or_default();
        next.clear();
        let full = std::mem::replace(&mut self.open, Bucket { values: next, layers: Vec::new() });
        self.under_way.push((group.start_all_reduce(full.values)?, full.layers));
        Ok(())
    }

    /// Starts what is left, waits for all, and hands over the sums, layer by layer.
    ///
    /// # Errors
    /// The group's.
    pub fn finish<G: Group<Pending = P>>(
        &mut self,
        group: &G,
        mut summed: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        if !self.open.layers.is_empty() {
            self.start(group)?;
        }
        for (pending, layers) in std::mem::take(&mut self.under_way) {
            let start = Instant::now();
            let values = group.wait(pending)?;
            self.waited += start.elapsed();
            for (layer, range) in layers {
                summed(layer, &values[range]);
            }
            self.spare.push(values);
        }
        Ok(())
    }

    /// Time spent waiting in all calls of [`finish`](Self::finish) since the last call of this.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Alone;

    #[test]
    fn every_layer_comes_back_once() {
        // In floats: all in one, one each, and in between.
        for (least_len, calls) in [(1000, 1), (0, 4), (6, 2)] {
            let mut buckets = Buckets::new(least_len * 4);
            for _pass in 0..3 {
                let mut started = 0;
                for layer in (0..4).rev() {
                    buckets.add(&Alone, layer, &vec![layer as f32; layer + 1]).unwrap();
                    started = buckets.under_way.len();
                }
                let rest = usize::from(!buckets.open.layers.is_empty());
                assert_eq!(started + rest, calls, "buckets of {least_len}");
                let mut seen = Vec::new();
                let note = |layer, sum: &[f32]| {
                    assert_eq!(sum, vec![layer as f32; layer + 1]);
                    seen.push(layer);
                };
                buckets.finish(&Alone, note).unwrap();
                assert_eq!(seen, [3, 2, 1, 0]);
            }
        }
    }
}
