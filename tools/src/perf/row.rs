//! One line of the table as values, from which the text, the JSON file and the plot are made.

use super::stats::Spread;
use super::test::Bandwidth;

/// Measurement of one size in one placement (out of place or in place).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// Seconds per operation, combined over the ranks as `-a` says: until it is complete, or with `-C 1` until it
    /// is started.
    pub seconds: f64,
    /// Bandwidth until the operation is complete.
    pub bandwidth: Bandwidth,
    /// Wrong elements over all ranks; `None` when not checked.
    pub wrong: Option<u64>,
    /// The single iterations, if requested.
    pub iterations: Option<Iterations>,
}

/// Times of single iterations, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Iterations {
    /// For each iteration, the time of the slowest rank.
    pub slowest: Vec<f64>,
    /// For each rank, the time of each iteration.
    pub per_rank: Vec<Vec<f64>>,
    /// Spread of `slowest`, without the first ones.
    pub spread: Spread,
    /// Number of iterations at the start that the spread leaves out.
    pub skipped: usize,
}

impl Iterations {
    /// Summarises the times of each rank's iterations, except for the first `skipped`; `None` if no time is left.
    pub(crate) fn of(per_rank: Vec<Vec<f64>>, skipped: usize) -> Option<Self> {
        let slowest: Vec<f64> = (0..per_rank.first()?.len())
            .map(|index| per_rank.iter().map(|times| times[index]).fold(0.0, f64::max))
            .collect();
        let spread = Spread::of(slowest.get(skipped..)?)?;
        Some(Self { slowest, per_rank, spread, skipped })
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// The size column: the longer of send and receive buffer of one rank.
    pub bytes: u64,
    /// The count column.
    pub count: u64,
    /// The type column.
    pub type_name: &'static str,
    /// The redop column.
    pub op_name: &'static str,
    /// The root column.
    pub root: i64,
    /// The first half: out of place.
    pub out_of_place: Measurement,
    /// The second half: in place.
    pub in_place: Measurement,
    /// Number of timed iterations.
    pub iterations: usize,
    /// Local wall-clock time at its end.
    pub timestamp: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_iterations_are_kept_but_not_summarised() {
        let found = Iterations::of(vec![vec![9.0, 1.0, 2.0], vec![5.0, 3.0, 1.0]], 1).unwrap();
        assert_eq!((found.slowest, found.per_rank[0].len(), found.skipped), (vec![9.0, 3.0, 2.0], 3, 1));
        assert_eq!((found.spread.least, found.spread.greatest), (2.0, 3.0));
        assert_eq!(Iterations::of(vec![vec![1.0]], 1), None);
    }
}
