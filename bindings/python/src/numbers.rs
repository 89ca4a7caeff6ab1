//! The numbers of types, operators and collectives that Python passes: their positions in `ALL`. `kolo/numbers.py` names them.

use std::time::Duration;

use kolo_rs::{Collective, DataType, ReduceOp};
use pyo3::prelude::*;

use crate::errors::usage;

pub(crate) fn data_type(number: u8) -> PyResult<DataType> {
    known(&DataType::ALL, number, "type")
}

pub(crate) fn collective(number: u8) -> PyResult<Collective> {
    known(&Collective::ALL, number, "collective")
}

pub(crate) fn op(number: u8, factor: f64) -> PyResult<ReduceOp> {
    Ok(match known(&ReduceOp::ALL, number, "operator")? {
        ReduceOp::PremulSum(_) => ReduceOp::PremulSum(factor),
        op => op,
    })
}

fn known<T: Copy>(all: &[T], number: u8, what: &str) -> PyResult<T> {
    all.get(usize::from(number)).copied().ok_or_else(|| usage(format!("{number} is not a valid {what}")))
}

/// Returns the names of collectives, operators and types, in the order of their numbers, for the test that compares them.
pub(crate) fn names() -> [(&'static str, Vec<&'static str>); 3] {
    [
        ("COLLECTIVES", Collective::ALL.map(Collective::name).to_vec()),
        ("OPERATORS", ReduceOp::ALL.map(ReduceOp::name).to_vec()),
        ("TYPES", DataType::ALL.map(DataType::name).to_vec()),
    ]
}

/// The longest time-out, ten years: clocks do not overflow, and no wait takes longer.
const PATIENCE_MOST: Duration = Duration::from_secs(315_360_000);

/// Converts a time-out in seconds. Zero or less fails at the first look at the clock; longer ones are cut to ten years.
pub(crate) fn limit(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(PATIENCE_MOST).min(PATIENCE_MOST)
}
