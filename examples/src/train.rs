//! Data-parallel training: every rank has the whole network and a share of every batch.
//!
//! The batches are those of a single rank. Each batch is cut into one piece per rank, gradients are summed over the
//! pieces, and every rank takes the same step. N ranks therefore compute the same as one, except for the rounding of
//! sums over a batch; and since all ranks get the same bits from the sum, their networks stay identical in every bit.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::Result;
use crate::buckets::Buckets;
use crate::dataset::Images;
use crate::group::Group;
use crate::mlp::{Mlp, Score, Step, Workspace};

/// Settings of the training.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Number of classes.
    pub classes: usize,
    /// Passes over the data.
    pub epochs: u32,
    /// Images per step, of all ranks together.
    pub batch: usize,
    /// Factor of the mean gradient in a step.
    pub learning_rate: f32,
    /// Factor of the previous step in a step (momentum).
    pub momentum: f32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Bytes of gradients that travel together.
    pub bucket_bytes: usize,
}

/// Result of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    /// Number of the epoch, from 1.
    pub number: u32,
    /// Mean cross-entropy over the training images, each computed before its own step.
    pub loss: f32,
    /// Share of the test images classified correctly.
    pub accuracy: f32,
    /// Training images per second, of all ranks together.
    pub images_per_second: f64,
    /// Share of the training time that this rank spent waiting for communication.
    pub waiting: f64,
}

/// A point in the training.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// All ranks together have taken a step on this many images.
    Step {
        /// The epoch, from 1.
        epoch: u32,
        /// Number of images.
        images: usize,
    },
    /// An epoch is over.
    Epoch(Epoch),
}

impl Settings {
    /// Returns the total number of steps, for this many training images.
    #[must_use]
    pub fn steps(&self, images: usize) -> usize {
        self.epochs as usize * images.div_ceil(self.batch.max(1))
    }
}

/// Trains, and returns the network. Every rank calls `report` after every step and every epoch.
///
/// # Errors
/// The error of the group.
///
/// # Panics
/// If a label is not less than `settings.classes`, or there are no training images.
pub fn train<G: Group>(
    group: &G,
    train: &Images,
    test: &Images,
    settings: &Settings,
    mut report: impl FnMut(Progress),
) -> Result<Mlp> {
    assert!(!train.is_empty(), "nothing to learn from");
    let widths: Vec<_> =
        [train.pixels].into_iter().chain(settings.hidden.iter().copied()).chain([settings.classes]).collect();
    let mut network = Mlp::new(&widths, settings.seed);
    // Equal seeds give equal networks; the broadcast makes rank 0's network count if a rank has another seed.
    for layer in network.layers_mut() {
        group.broadcast(&mut layer.parameters, 0)?;
    }
    let mut trainer = Trainer {
        group,
        settings,
        network,
        work: Workspace::default(),
        buckets: Buckets::new(settings.bucket_bytes),
        pixels: Vec::new(),
        labels: Vec::new(),
    };
    for number in 1..=settings.epochs {
        let (loss, elapsed) =
            trainer.epoch(train, number, |images| report(Progress::Step { epoch: number, images }))?;
        let waited = trainer.buckets.take_waited();
        report(Progress::Epoch(Epoch {
            number,
            loss,
            accuracy: trainer.accuracy(test)?,
            images_per_second: train.len() as f64 / elapsed.as_secs_f64(),
            waiting: waited.as_secs_f64() / elapsed.as_secs_f64(),
        }));
    }
    Ok(trainer.network)
}

struct Trainer<'a, G: Group> {
    group: &'a G,
    settings: &'a Settings,
    network: Mlp,
    work: Workspace,
    buckets: Buckets<G::Pending>,
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

impl<G: Group> Trainer<'_, G> {
    fn epoch(
        &mut self,
        images: &Images,
        number: u32,
        mut stepped: impl FnMut(usize),
    ) -> Result<(f32, Duration)> {
        let start = Instant::now();
        let order = shuffled(images.len(), self.settings.seed ^ (u64::from(number) << 32));
        let mut score = Score::default();
        for batch in order.chunks(self.settings.batch.max(1)) {
            let part = self.step(images, batch)?;
            score.loss += part.loss;
            stepped(batch.len());
        }
        let [loss] = self.sum([score.loss])?;
        Ok((loss / images.len() as f32, start.elapsed()))
    }

    /// Takes one step of all ranks: runs this rank's share of the batch forward and backward, sums the gradients, and
    /// updates the parameters.
    fn step(&mut self, images: &Images, batch: &[u32]) -> Result<Score> {
        let share = share(batch.len(), self.group.rank(), self.group.world_size());
        self.load(images, batch[share].iter().map(|&index| index as usize));
        let score = self.network.forward(&mut self.work, &self.pixels, &self.labels);
        let mut added = Ok(());
        self.network.backward(&mut self.work, |piece| {
            if added.is_ok() {
                added = self.buckets.add(self.group, piece);
            }
        });
        added?;
        let Settings { learning_rate, momentum, .. } = *self.settings;
        let step = Step { learning_rate, momentum, images: batch.len() };
        self.buckets.finish(self.group, |piece| self.network.step(piece, step))?;
        Ok(score)
    }

    /// Returns the share of images classified correctly; each rank classifies a part.
    fn accuracy(&mut self, images: &Images) -> Result<f32> {
        let mine = share(images.len(), self.group.rank(), self.group.world_size());
        let mut right = 0.0;
        for start in mine.clone().step_by(EVALUATED_TOGETHER) {
            self.load(images, start..mine.end.min(start + EVALUATED_TOGETHER));
            right += self.network.forward(&mut self.work, &self.pixels, &self.labels).right;
        }
        // The counts are whole numbers below 2^24, so the sum is exact.
        let [right] = self.sum([right])?;
        Ok(right / images.len().max(1) as f32)
    }

    fn load(&mut self, images: &Images, indices: impl Iterator<Item = usize>) {
        self.pixels.clear();
        self.labels.clear();
        for index in indices {
            let image = &images.data[index * images.pixels..][..images.pixels];
            self.pixels.extend(image.iter().map(|&byte| f32::from(byte) / 255.0));
            self.labels.push(images.labels[index]);
        }
    }

    fn sum<const N: usize>(&self, values: [f32; N]) -> Result<[f32; N]> {
        let sums = self.group.wait(self.group.start_all_reduce(values.to_vec())?)?;
        Ok(std::array::from_fn(|i| sums[i]))
    }
}

/// Images per forward pass when testing: enough to multiply matrices efficiently, and less than a megabyte at 784
/// pixels per image.
const EVALUATED_TOGETHER: usize = 256;

/// Returns a rank's share of `count` things. Shares are as equal as possible, follow each other in rank order, and
/// cover everything.
fn share(count: usize, rank: u32, world_size: u32) -> Range<usize> {
    let bound = |rank: u32| count * rank as usize / world_size as usize;
    bound(rank)..bound(rank + 1)
}

/// Returns the numbers below `count` in an order that depends on the seed alone (Fisher and Yates).
fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut state = seed;
    for last in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, ((u128::from(state) * (last as u128 + 1)) >> 64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use kolo::Cluster;

    use super::*;
    use crate::agreement::{distance, tolerance};
    use crate::group::Alone;

    /// Makes images whose class is the position of their bright spot.
    fn spots(count: usize) -> Images {
        let order = shuffled(count * 2, 5);
        let labels: Vec<u8> = order[..count].iter().map(|&x| (x % 4) as u8).collect();
        let pixel = |(i, &label): (usize, &u8)| {
            (0..16)
                .map(move |p| if p / 4 == usize::from(label) { 200 } else { ((i * 31 + p * 17) % 120) as u8 })
        };
        Images { pixels: 16, data: labels.iter().enumerate().flat_map(pixel).collect(), labels }
    }

    fn settings(bucket_bytes: usize) -> Settings {
        Settings {
            hidden: vec![24, 12],
            classes: 4,
            epochs: 3,
            batch: 50,
            learning_rate: 0.1,
            momentum: 0.9,
            seed: 7,
            bucket_bytes,
        }
    }

    fn run<G: Group>(group: &G, bucket_bytes: usize) -> (Mlp, f32, f32) {
        let mut last = (0.0, 0.0);
        let network = train(group, &spots(777), &spots(100), &settings(bucket_bytes), |progress| {
            if let Progress::Epoch(epoch) = progress {
                last = (epoch.loss, epoch.accuracy);
            }
        });
        (network.unwrap(), last.0, last.1)
    }

    #[test]
    fn many_ranks_do_what_one_does() {
        let (alone, loss, accuracy) = run(&Alone, 1 << 20);
        assert!(accuracy > 0.95, "accuracy {accuracy}");
        for (ranks, bucket_bytes) in [(2, 1 << 20), (3, 40), (4, 1000)] {
            let results = Cluster::local(ranks, |group| run(&group, bucket_bytes)).unwrap();
            for (network, their_loss, their_accuracy) in results.clone() {
                assert_eq!(network.fingerprint(), results[0].0.fingerprint(), "ranks differ");
                assert!((their_loss - loss).abs() < 1e-3, "{their_loss} against {loss}");
                assert!((their_accuracy - accuracy).abs() < 0.02);
                let distance = distance(&network, &alone);
                assert!(distance < tolerance(settings(0).steps(777)), "{ranks} ranks: {distance:e}");
            }
        }
    }

    #[test]
    fn runs_repeat() {
        assert_eq!(run(&Alone, 0).0.fingerprint(), run(&Alone, 1 << 20).0.fingerprint());
    }

    #[test]
    fn shares_are_a_partition() {
        for count in [0, 1, 7, 100] {
            for ranks in 1..9 {
                let all: Vec<_> = (0..ranks).flat_map(|rank| share(count, rank, ranks)).collect();
                assert_eq!(all, (0..count).collect::<Vec<_>>());
            }
        }
        let mut order = shuffled(1000, 3);
        assert_ne!(order, shuffled(1000, 4));
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
