//! One line of the table as values: what the text, the JSON file and the plot are made from.

use super::stats::Spread;
use super::test::Bandwidth;

/// Measurement of one placement (out of place or in place) of one size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// Seconds per operation, over the ranks as `-a` says.
    pub seconds: f64,
    /// From that time.
    pub bandwidth: Bandwidth,
    /// Wrong elements over all ranks; `None` when not checked.
    pub wrong: Option<u64>,
    /// The iterations one by one, where asked for.
    pub iterations: Option<Iterations>,
}

/// Times of single iterations, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Iterations {
    /// Of each iteration, the slowest rank.
    pub slowest: Vec<f64>,
    /// Of each rank, each iteration.
    pub per_rank: Vec<Vec<f64>>,
    /// How the former spread.
    pub spread: Spread,
    /// Iterations left out at the start.
    pub skipped: usize,
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
    /// First half.
    pub out_of_place: Measurement,
    /// Second half.
    pub in_place: Measurement,
    /// Iterations timed.
    pub iterations: usize,
    /// Wall-clock time at its end, local.
    pub timestamp: String,
}
