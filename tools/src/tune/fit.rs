//! Fits a straight line to measured times.

/// Measurement at one size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sample {
    /// Bytes, or number of messages.
    pub amount: f64,
    /// Duration.
    pub seconds: f64,
}

/// seconds = fixed + each * amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Seconds for an amount of zero.
    pub fixed: f64,
    /// Seconds per byte, or per message.
    pub each: f64,
    /// Root mean square of the relative errors.
    pub error: f64,
}

impl Line {
    fn at(&self, amount: f64) -> f64 {
        self.fixed + self.each * amount
    }

    fn judged(self, samples: &[Sample]) -> Self {
        let squares: f64 =
            samples.iter().map(|sample| (self.at(sample.amount) / sample.seconds - 1.0).powi(2)).sum();
        Self { error: (squares / samples.len() as f64).sqrt(), ..self }
    }
}

/// Minimizes the squares of the relative errors, so that a microsecond counts at small sizes and not at large ones. No
/// constant is negative. Returns `None` for fewer than two amounts, or times that are not positive.
pub(crate) fn fit(samples: &[Sample]) -> Option<Line> {
    if samples.iter().any(|sample| !(sample.seconds.is_finite() && sample.seconds > 0.0)) {
        return None;
    }
    let first = samples.first()?;
    if samples.iter().all(|sample| sample.amount == first.amount) {
        return None;
    }
    let [mut fixed, mut each] = solve(samples, |sample| [1.0, sample.amount])?;
    if fixed < 0.0 {
        (fixed, each) = (0.0, mean(samples, |sample| sample.amount));
    }
    if each < 0.0 {
        (fixed, each) = (mean(samples, |_| 1.0), 0.0);
    }
    Some(Line { fixed, each, error: 0.0 }.judged(samples))
}

/// Returns the weight of one column that minimizes the sum of the squares of the relative errors.
fn mean(samples: &[Sample], column: impl Fn(&Sample) -> f64) -> f64 {
    let rows = samples.iter().map(|sample| column(sample) / sample.seconds);
    rows.clone().sum::<f64>() / rows.map(|row| row * row).sum::<f64>()
}

/// Returns the weights of two columns that minimize that sum, by the normal equations; `None` if the columns are
/// proportional.
fn solve(samples: &[Sample], columns: impl Fn(&Sample) -> [f64; 2]) -> Option<[f64; 2]> {
    // Columns are scaled to length 1, since bytes and messages differ by many orders of magnitude.
    let rows: Vec<[f64; 2]> =
        samples.iter().map(|sample| columns(sample).map(|value| value / sample.seconds)).collect();
    let dot = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>();
    let sum = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>();
    let scale = [dot(0, 0).sqrt(), dot(1, 1).sqrt()];
    let cross = dot(0, 1) / scale[0] / scale[1];
    let rest = 1.0 - cross * cross;
    if rest.is_nan() || rest < 1e-12 {
        return None;
    }
    let [a, b] = [sum(0) / scale[0], sum(1) / scale[1]];
    Some([(a - cross * b) / rest / scale[0], (b - cross * a) / rest / scale[1]])
}

/// Returns the median: the middle value, or the mean of the two middle ones.
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
