//! A straight line through measured times.

/// What was measured at one size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Sample {
    /// Bytes, or messages.
    pub amount: f64,
    /// What that took.
    pub seconds: f64,
}

/// seconds = fixed + each * amount + beyond * (amount - knee), the last only above the knee.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Seconds for nothing.
    pub fixed: f64,
    /// Seconds for each byte, or message.
    pub each: f64,
    /// Where each begins to cost more; infinite if nowhere.
    pub knee: f64,
    /// How many seconds more.
    pub beyond: f64,
    /// Root of the mean square of the relative errors.
    pub error: f64,
}

impl Line {
    fn at(&self, amount: f64) -> f64 {
        let beyond = if amount > self.knee { self.beyond * (amount - self.knee) } else { 0.0 };
        self.fixed + self.each * amount + beyond
    }

    fn judged(self, samples: &[Sample]) -> Self {
        let squares: f64 =
            samples.iter().map(|sample| (self.at(sample.amount) / sample.seconds - 1.0).powi(2)).sum();
        Self { error: (squares / samples.len() as f64).sqrt(), ..self }
    }
}

/// Least squares of the relative errors, so that a microsecond counts among the small sizes and not among the large. No
/// constant is negative. `None` for fewer than two amounts, or times that are not positive.
pub(crate) fn fit(samples: &[Sample]) -> Option<Line> {
    if samples.iter().any(|sample| !(sample.seconds.is_finite() && sample.seconds > 0.0)) {
        return None;
    }
    let first = samples.first()?;
    if samples.iter().all(|sample| sample.amount == first.amount) {
        return None;
    }
    let columns = |sample: &Sample| [1.0, sample.amount, 0.0];
    let [mut fixed, mut each, _] = solve(samples, 2, columns)?;
    if fixed < 0.0 {
        [_, each, _] =
            solve(samples, 1, |sample| [sample.amount, 0.0, 0.0]).map(|[each, ..]| [0.0, each, 0.0])?;
        fixed = 0.0;
    }
    if each < 0.0 {
        [fixed, ..] = solve(samples, 1, |_| [1.0, 0.0, 0.0])?;
        each = 0.0;
    }
    Some(Line { fixed, each, knee: f64::INFINITY, beyond: 0.0, error: 0.0 }.judged(samples))
}

/// As [`fit`], with the knee, at one of the amounts or between two, that makes the error least.
pub(crate) fn fit_bent(samples: &[Sample]) -> Option<Line> {
    let mut best = fit(samples)?;
    let knees = samples.windows(2).flat_map(|two| [two[0].amount, (two[0].amount * two[1].amount).sqrt()]);
    for knee in knees {
        let columns = |sample: &Sample| [1.0, sample.amount, (sample.amount - knee).max(0.0)];
        let Some([fixed, each, beyond]) = solve(samples, 3, columns) else { continue };
        if fixed >= 0.0 && each > 0.0 && beyond > 0.0 {
            let bent = Line { fixed, each, knee, beyond, error: 0.0 }.judged(samples);
            if bent.error < best.error {
                best = bent;
            }
        }
    }
    Some(best)
}

/// The weights of the first `len` columns that make the sum of the squares of the relative errors least: the normal
/// equations, by elimination.
fn solve(samples: &[Sample], len: usize, columns: impl Fn(&Sample) -> [f64; 3]) -> Option<[f64; 3]> {
    // Columns are scaled to length 1, since bytes and messages differ by many orders.
    let rows: Vec<[f64; 3]> =
        samples.iter().map(|sample| columns(sample).map(|value| value / sample.seconds)).collect();
    let mut scale = [1.0; 3];
    for (column, scale) in scale.iter_mut().enumerate().take(len) {
        *scale = rows.iter().map(|row| row[column] * row[column]).sum::<f64>().sqrt();
        if *scale == 0.0 {
            return None;
        }
    }
    let mut matrix = [[0.0; 4]; 3];
    for row in &rows {
        for i in 0..len {
            for j in 0..len {
                matrix[i][j] += row[i] / scale[i] * row[j] / scale[j];
            }
            matrix[i][3] += row[i] / scale[i];
        }
    }
    // Positive definite: the diagonal needs no search for a pivot.
    for i in 0..len {
        let pivot = matrix[i];
        if pivot[i] < 1e-12 {
            return None;
        }
        for other in (0..len).filter(|other| *other != i) {
            let factor = matrix[other][i] / pivot[i];
            for (value, above) in matrix[other].iter_mut().zip(pivot) {
                *value -= factor * above;
            }
        }
    }
    let mut found = [0.0; 3];
    for i in 0..len {
        found[i] = matrix[i][3] / matrix[i][i] / scale[i];
    }
    Some(found)
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
    fn a_knee_is_found_again() {
        let truth = Line { fixed: 2e-6, each: 1e-10, knee: 8.0 * 8_f64.powi(7), beyond: 2e-10, error: 0.0 };
        let samples: Vec<_> = line(0.0, 1.0, |_| 1.0)
            .into_iter()
            .map(|sample| Sample { seconds: truth.at(sample.amount), ..sample })
            .collect();
        let found = fit_bent(&samples).unwrap();
        for (found, truth) in
            [(found.each, truth.each), (found.beyond, truth.beyond), (found.knee, truth.knee)]
        {
            assert!((found / truth - 1.0).abs() < 1e-6, "{found} {truth}");
        }
        assert!(fit(&samples).unwrap().error > 0.1);
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
