//! A network of dense layers with a smooth ReLU between them and a softmax at the end: forward pass, backward pass, and
//! step.

use crate::matmul::{Matrix, multiply};

/// One dense layer: outputs = inputs · weights + biases.
#[derive(Clone, Debug)]
pub struct Layer {
    inputs: usize,
    outputs: usize,
    /// Weights, `inputs` rows of `outputs`, followed by the biases: in one vector, so that gradients travel in one
    /// piece.
    pub parameters: Vec<f32>,
    velocity: Vec<f32>,
}

/// A network.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Layer>,
}

/// Memory for the values between the layers, reused from batch to batch.
#[derive(Debug, Default)]
pub struct Workspace {
    /// `activations[0]` is the input, and `activations[l + 1]` the output of layer l.
    activations: Vec<Vec<f32>>,
    /// Gradients with respect to the outputs and to the inputs of the current layer.
    outer: Vec<f32>,
    inner: Vec<f32>,
    gradient: Vec<f32>,
}

/// Quality of the results on a batch, as sums over its images.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the cross-entropies.
    pub loss: f32,
    /// Number of images classified correctly.
    pub right: f32,
}

/// Settings of one step of gradient descent.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Factor of the mean gradient.
    pub learning_rate: f32,
    /// Factor of the previous step.
    pub momentum: f32,
    /// Number of images over which the gradient is summed.
    pub images: usize,
}

/// A part of the gradient of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// The first parameter of the layer that the piece covers.
    pub start: usize,
    /// The derivative of the loss with respect to each parameter, summed over images.
    pub gradient: &'a [f32],
}

/// Rows of weights whose gradient is computed at a time. It equals the number of rows that are packed at a time, so it
/// costs nothing; and it is small enough that the first rows of a large layer travel while the rest is computed.
const ROWS_AT_A_TIME: usize = 96;

/// Width of the bend of [`smooth_relu`].
const BEND: f32 = 0.25;

/// ReLU with a parabola in place of its kink: 0 up to 0, then x² / 2w up to the width w of the bend, then x - w/2.
///
/// For learning, ReLU itself would do, but its slope jumps. If two trainings differ in rounding alone, one of them will
/// sooner or later have a value just above 0 where the other has 0. That image then moves a unit's weights in one
/// training only, and within a few steps the difference is much larger than rounding. No comparison could then show
/// whether many ranks compute the same as one.
fn smooth_relu(x: f32) -> f32 {
    let bent = x.clamp(0.0, BEND);
    bent * bent / (2.0 * BEND) + (x - BEND).max(0.0)
}

/// Returns the slope of [`smooth_relu`] at the point where its value is `y`.
fn slope_at(y: f32) -> f32 {
    (y * (2.0 / BEND)).sqrt().min(1.0)
}

/// A reproducible stream of numbers from -1 to 1 (splitmix64).
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl Layer {
    fn new(inputs: usize, outputs: usize, random: &mut Uniform) -> Self {
        // He's uniform initialisation keeps the variance through ReLU, and the smooth ReLU is close to that.
        let bound = (6.0 / inputs as f32).sqrt();
        let weights = inputs * outputs;
        let mut parameters: Vec<f32> = (0..weights).map(|_| bound * random.next()).collect();
        parameters.resize(weights + outputs, 0.0);
        Self { inputs, outputs, velocity: vec![0.0; parameters.len()], parameters }
    }

    fn weights(&self) -> Matrix<'_> {
        Matrix::new(&self.parameters[..self.inputs * self.outputs], self.inputs, self.outputs)
    }

    fn forward(&self, inputs: &[f32], outputs: &mut Vec<f32>, images: usize) {
        outputs.resize(images * self.outputs, 0.0);
        multiply(Matrix::new(inputs, images, self.inputs), self.weights(), outputs);
        let biases = &self.parameters[self.inputs * self.outputs..];
        for line in outputs.chunks_exact_mut(self.outputs) {
            line.iter_mut().zip(biases).for_each(|(x, bias)| *x += bias);
        }
    }

    /// Computes the gradient with respect to the parameters, summed over the images, and hands it over piece by piece
    /// with the index where each piece starts, weights first.
    fn gradient(
        &self,
        inputs: &[f32],
        outer: &[f32],
        images: usize,
        gradient: &mut Vec<f32>,
        mut finished: impl FnMut(usize, &[f32]),
    ) {
        let inputs = Matrix::new(inputs, images, self.inputs).transposed();
        for first in (0..self.inputs).step_by(ROWS_AT_A_TIME) {
            let rows = first..self.inputs.min(first + ROWS_AT_A_TIME);
            gradient.resize(rows.len() * self.outputs, 0.0);
            multiply(inputs.rows(rows), Matrix::new(outer, images, self.outputs), gradient);
            finished(first * self.outputs, gradient);
        }
        gradient.clear();
        gradient.resize(self.outputs, 0.0);
        for line in outer.chunks_exact(self.outputs) {
            gradient.iter_mut().zip(line).for_each(|(sum, x)| *sum += x);
        }
        finished(self.inputs * self.outputs, gradient);
    }
}

impl Mlp {
    /// Makes a network with layers between the given widths. Equal seeds give equal networks.
    #[must_use]
    pub fn new(widths: &[usize], seed: u64) -> Self {
        let mut random = Uniform(seed);
        Self { layers: widths.windows(2).map(|pair| Layer::new(pair[0], pair[1], &mut random)).collect() }
    }

    /// Returns the layers, first to last.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the layers, first to last, mutably.
    pub fn layers_mut(&mut self) -> &mut [Layer] {
        &mut self.layers
    }

    /// Returns the number of parameters of all layers.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.layers.iter().map(|layer| layer.parameters.len()).sum()
    }

    /// Returns a hash of the bits of all parameters (FNV-1a): equal networks have equal hashes, and unequal ones almost
    /// never do.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let bytes = self.layers.iter().flat_map(|l| &l.parameters).flat_map(|p| p.to_bits().to_le_bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Classifies images, and leaves the activations that [`backward`](Self::backward) needs in the workspace.
    pub fn forward(&self, work: &mut Workspace, images: &[f32], labels: &[u8]) -> Score {
        work.activations.resize(self.layers.len() + 1, Vec::new());
        work.activations[0].clear();
        work.activations[0].extend_from_slice(images);
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = work.activations.split_at_mut(index + 1);
            layer.forward(&before[index], &mut after[0], labels.len());
            if index + 1 < self.layers.len() {
                after[0].iter_mut().for_each(|x| *x = smooth_relu(*x));
            }
        }
        self.score(work, labels)
    }

    /// Computes softmax and cross-entropy, and their gradient with respect to the last layer's outputs.
    fn score(&self, work: &mut Workspace, labels: &[u8]) -> Score {
        let classes = self.layers.last().map_or(0, |layer| layer.outputs);
        let logits = &work.activations[self.layers.len()];
        work.outer.clear();
        let mut score = Score::default();
        for (line, &label) in logits.chunks_exact(classes).zip(labels) {
            let label = usize::from(label);
            let greatest = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = line.iter().map(|x| (x - greatest).exp()).sum();
            score.loss += sum.ln() - (line[label] - greatest);
            score.right += if line.iter().position(|&x| x == greatest) == Some(label) { 1.0 } else { 0.0 };
            let shares = line.iter().map(|x| (x - greatest).exp() / sum);
            work.outer.extend(shares.enumerate().map(|(i, p)| if i == label { p - 1.0 } else { p }));
        }
        score
    }

    /// Hands over the gradient, summed over the images of the last [`forward`](Self::forward), in pieces as soon as
    /// they are known: the last layer first, while the layers before it are still to be computed.
    pub fn backward(&self, work: &mut Workspace, mut finished: impl FnMut(Piece<'_>)) {
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let inputs = &work.activations[index];
            let images = inputs.len() / layer.inputs;
            layer.gradient(inputs, &work.outer, images, &mut work.gradient, |start, gradient| {
                finished(Piece { layer: index, start, gradient });
            });
            if index > 0 {
                work.inner.resize(inputs.len(), 0.0);
                let outer = Matrix::new(&work.outer, images, layer.outputs);
                multiply(outer, layer.weights().transposed(), &mut work.inner);
                work.inner.iter_mut().zip(inputs).for_each(|(g, &y)| *g *= slope_at(y));
                std::mem::swap(&mut work.outer, &mut work.inner);
            }
        }
    }

    /// Moves parameters against their gradient, which is a sum over `step.images` images.
    ///
    /// # Panics
    /// If the network has no such parameters.
    pub fn step(&mut self, piece: Piece<'_>, step: Step) {
        let Layer { parameters, velocity, .. } = &mut self.layers[piece.layer];
        let range = piece.start..piece.start + piece.gradient.len();
        let moving = parameters[range.clone()].iter_mut().zip(&mut velocity[range]);
        let scale = step.learning_rate / step.images as f32;
        for ((parameter, velocity), gradient) in moving.zip(piece.gradient) {
            *velocity = step.momentum * *velocity - scale * gradient;
            *parameter += *velocity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smooth_relu_has_no_kink() {
        for (x, y) in [(-3.0, 0.0), (0.0, 0.0), (BEND, BEND / 2.0), (2.0, 2.0 - BEND / 2.0)] {
            assert_eq!(smooth_relu(x), y);
        }
        let mut last = 0.0;
        for i in -100..=1000 {
            let x = i as f32 * 1e-3;
            let slope = slope_at(smooth_relu(x));
            assert!((slope - (x / BEND).clamp(0.0, 1.0)).abs() < 1e-5, "at {x}: {slope}");
            assert!((slope - last).abs() < 1.1e-3 / BEND, "a jump at {x}");
            last = slope;
        }
    }

    fn gradients(network: &Mlp, work: &mut Workspace) -> Vec<Vec<f32>> {
        let mut gradients = vec![Vec::new(); network.layers.len()];
        network.backward(work, |piece| {
            assert_eq!(gradients[piece.layer].len(), piece.start, "pieces follow one another");
            gradients[piece.layer].extend_from_slice(piece.gradient);
        });
        gradients
    }

    #[test]
    fn gradient_is_the_slope_of_the_loss() {
        // The second layer's gradient comes in two pieces, plus one for its biases.
        let mut network = Mlp::new(&[5, ROWS_AT_A_TIME + 1, 4, 3], 1);
        let mut random = Uniform(2);
        let images: Vec<f32> = (0..6 * 5).map(|_| random.next()).collect();
        let labels = [0, 1, 2, 2, 1, 0];
        let mut work = Workspace::default();
        network.forward(&mut work, &images, &labels);
        for (layer, gradient) in gradients(&network, &mut work).iter().enumerate() {
            for (index, &slope) in gradient.iter().enumerate() {
                let mut loss_at = |shift: f32| {
                    network.layers[layer].parameters[index] += shift;
                    let loss = network.forward(&mut work, &images, &labels).loss;
                    network.layers[layer].parameters[index] -= shift;
                    loss
                };
                // The step is small enough for the loss to be linear, and large enough compared to its rounding.
                let measured = (loss_at(2e-3) - loss_at(-2e-3)) / 4e-3;
                assert!(
                    (measured - slope).abs() < 2e-2,
                    "layer {layer}, {index}: {slope}, measured {measured}"
                );
            }
        }
    }

    #[test]
    fn learns_a_small_set_by_heart() {
        let mut network = Mlp::new(&[8, 32, 4], 3);
        let mut random = Uniform(4);
        let images: Vec<f32> = (0..16 * 8).map(|_| random.next()).collect();
        let labels: Vec<u8> = (0..16).map(|i| i % 4).collect();
        let mut work = Workspace::default();
        let mut score = Score::default();
        for _ in 0..300 {
            score = network.forward(&mut work, &images, &labels);
            let step = Step { learning_rate: 0.3, momentum: 0.9, images: 16 };
            for (layer, gradient) in gradients(&network, &mut work).iter().enumerate() {
                network.step(Piece { layer, start: 0, gradient }, step);
            }
        }
        assert_eq!(score.right, 16.0, "{score:?}");
    }
}
