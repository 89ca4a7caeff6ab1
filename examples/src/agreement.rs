//! Compares networks: bit by bit, or within rounding.

use kolo::Communicator;

use crate::Result;
use crate::mlp::Mlp;

/// Returns whether all ranks hold the same bits. All ranks get the same answer.
///
/// # Errors
/// The communicator's.
pub fn identical(ranks: &Communicator, network: &Mlp) -> Result<bool> {
    let mut all = vec![0; ranks.world_size() as usize];
    ranks.all_gather(&[network.fingerprint()], &mut all)?;
    Ok(all.windows(2).all(|pair| pair[0] == pair[1]))
}

/// Returns the distance of two networks of the same shape: for each layer, the norm of the difference of its
/// parameters relative to the norm of the second network's, and of these the greatest.
///
/// # Panics
/// If the shapes differ.
#[must_use]
pub fn distance(network: &Mlp, reference: &Mlp) -> f64 {
    assert_eq!(network.layers().len(), reference.layers().len(), "networks of one shape");
    let layers = network.layers().iter().zip(reference.layers());
    layers.map(|(a, b)| relative(&a.parameters, &b.parameters)).fold(0.0, greater)
}

/// Returns the largest effect of rounding on the distance between two trainings of `steps` steps that sum in
/// different orders.
///
/// In either training, every step rounds every weight by at most half a unit in its last place. Steps that pass a
/// difference on without enlarging it therefore keep the distance below one unit per step. Roundings average out,
/// so in fact the distance is far smaller: 12 units after 1,175 steps with the program's settings. Learning rates
/// at the edge of stability do enlarge differences, without any limit.
#[must_use]
pub fn tolerance(steps: usize) -> f64 {
    f64::from(f32::EPSILON) * steps as f64
}

fn relative(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "layers of one shape");
    let square_of_difference: f64 =
        a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let square: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
    if square_of_difference == 0.0 { 0.0 } else { (square_of_difference / square).sqrt() }
}

/// Returns the greater of two numbers, or NaN if either is NaN.
fn greater(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use kolo::Cluster;

    use super::*;

    #[test]
    fn distance_is_relative_to_the_layer() {
        let reference = Mlp::new(&[3, 4, 2], 1);
        assert_eq!(distance(&reference, &reference), 0.0);
        let mut other = reference.clone();
        other.layers_mut()[0].parameters.iter_mut().for_each(|p| *p *= 1.25);
        other.layers_mut()[1].parameters.iter_mut().for_each(|p| *p *= 1.125);
        assert!((distance(&other, &reference) - 0.25).abs() < 1e-6);
        other.layers_mut()[1].parameters[0] = f32::NAN;
        assert!(distance(&other, &reference).is_nan(), "nothing is near to what is not a number");
    }

    #[test]
    fn one_bit_is_noticed_by_all() {
        for odd in [None, Some(0), Some(2)] {
            let answers = Cluster::local(3, |ranks| {
                let mut network = Mlp::new(&[3, 4, 2], 1);
                if odd == Some(ranks.rank()) {
                    let last = &mut network.layers_mut()[1].parameters[7];
                    *last = f32::from_bits(last.to_bits() ^ 1);
                }
                identical(&ranks, &network).unwrap()
            });
            assert_eq!(answers.unwrap(), [odd.is_none(); 3]);
        }
    }
}
