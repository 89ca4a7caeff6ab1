//! A straight line through measured times.

/// What was measured at one size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sample {
    /// Bytes, or messages.
    pub amount: f64,
    /// What that took.
    pub seconds: f64,
}

/// seconds = fixed + each * amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Seconds for nothing.
    pub fixed: f64,
    /// Seconds for each byte, or message.
    pub each: f64,
    /// Root of the mean square of the relative errors.
    pub error: f64,
}

/// Least squares of the relative errors, so that a microsecond counts among the small sizes and not among the large. Neither
/// constant is negative. `None` for fewer than two amounts, or times that are not positive.
pub(crate) fn fit(samples: &[Sample]) -> Option<Line> {
    if samples.iter().any(|sample| !(sample.seconds.is_finite() && sample.seconds > 0.0)) {
        return None;
    }
    let first = samples.first()?;
    if samples.iter().all(|sample| sample.amount == first.amount) {
        return None;
    }
    // With weights w = 1 / seconds the relative error is w fixed + w amount each - 1.
    let (mut ww, mut wx, mut xx, mut w, mut x) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for sample in samples {
        let weight = 1.0 / sample.seconds;
        let weighted = weight * sample.amount;
        ww += weight * weight;
        wx += weight * weighted;
        xx += weighted * weighted;
        w += weight;
        x += weighted;
    }
    let determinant = ww * xx - wx * wx;
    let (mut fixed, mut each) = ((w * xx - x * wx) / determinant, (ww * x - wx * w) / determinant);
    if fixed < 0.0 {
        (fixed, each) = (0.0, x / xx);
    }
    if each < 0.0 {
        (fixed, each) = (w / ww, 0.0);
    }
    let squares = samples.iter().map(|sample| {
        let relative = (fixed + each * sample.amount) / sample.seconds - 1.0;
        relative * relative
    });
    Some(Line { fixed, each, error: (squares.sum::<f64>() / samples.len() as f64).sqrt() })
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len => (values[(len - 1) / 2] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fixed: f64, each: f64, noise: impl Fn(usize) -> f64) -> Vec<Sample> {
        (0..10)
            .map(|i| {
                let amount = 8.0 * 8_f64.powi(i);
                Sample { amount, seconds: (fixed + each * amount) * noise(i as usize) }
            })
            .collect()
    }

    #[test]
    fn a_line_is_found_again() {
        let found = fit(&line(2e-6, 1e-10, |_| 1.0)).unwrap();
        assert!(
            (found.fixed / 2e-6 - 1.0).abs() < 1e-9 && (found.each / 1e-10 - 1.0).abs() < 1e-9,
            "{found:?}"
        );
        assert!(found.error < 1e-9);
    }

    #[test]
    fn noise_of_a_tenth_moves_it_by_a_tenth_at_most() {
        let found = fit(&line(2e-6, 1e-10, |i| if i % 2 == 0 { 1.1 } else { 0.9 })).unwrap();
        assert!(
            (found.fixed / 2e-6 - 1.0).abs() < 0.1 && (found.each / 1e-10 - 1.0).abs() < 0.1,
            "{found:?}"
        );
        assert!((0.05..0.15).contains(&found.error));
    }

    #[test]
    fn constants_are_not_negative() {
        let falling = [Sample { amount: 1.0, seconds: 2.0 }, Sample { amount: 2.0, seconds: 1.0 }];
        assert_eq!(fit(&falling).unwrap().each, 0.0);
        let steep = [Sample { amount: 1.0, seconds: 1.0 }, Sample { amount: 2.0, seconds: 10.0 }];
        assert_eq!(fit(&steep).unwrap().fixed, 0.0);
    }

    #[test]
    fn nonsense_has_no_line() {
        let sample = |amount, seconds| Sample { amount, seconds };
        for bad in [
            vec![],
            vec![sample(8.0, 1.0)],
            vec![sample(8.0, 1.0); 2],
            vec![sample(8.0, 0.0), sample(9.0, 1.0)],
        ] {
            assert_eq!(fit(&bad), None);
        }
    }

    #[test]
    fn medians() {
        assert_eq!((median(&mut [3.0, 1.0, 2.0]), median(&mut [4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    }
}
