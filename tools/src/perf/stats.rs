//! Statistics on the times of single iterations.

/// Statistics over the iterations of one measurement; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it all")]
pub(crate) struct Spread {
    pub least: f64,
    pub greatest: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub deviation: f64,
}

impl Spread {
    /// Computes the spread of at least one time.
    #[must_use]
    pub(crate) fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let variance = sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        Some(Self {
            least,
            greatest,
            mean,
            p50: sorted[sorted.len() / 2],
            p90: percentile(&sorted, 90.0),
            p95: percentile(&sorted, 95.0),
            p99: percentile(&sorted, 99.0),
            p999: percentile(&sorted, 99.9),
            deviation: variance.sqrt(),
        })
    }

    /// Returns the coefficient of variation, in per cent.
    #[must_use]
    pub(crate) fn variation_percent(&self) -> f64 {
        if self.mean > 0.0 { self.deviation / self.mean * 100.0 } else { 0.0 }
    }
}

/// Returns the least time that at least this percentage of the times does not exceed.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&times).unwrap();
        assert_eq!((spread.least, spread.greatest, spread.mean), (1.0, 100.0, 50.5));
        assert_eq!((spread.p50, spread.p90, spread.p95, spread.p99), (51.0, 90.0, 95.0, 99.0));
        assert_eq!(spread.p999, 100.0);
        assert!((spread.variation_percent() - 57.16).abs() < 0.01);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[2.0]).unwrap().p50, 2.0);
    }
}
