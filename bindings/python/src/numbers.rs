//! The numbers that stand for types, operators and collectives between Python and here; `kolo/numbers.py` has the same.

use std::time::Duration;

use kolo_rs::{Collective, DataType, ReduceOp};
use pyo3::prelude::*;

use crate::errors::usage;

/// The place of a type in `DataType::ALL`.
pub(crate) fn data_type(number: u8) -> PyResult<DataType> {
    let known = DataType::ALL.get(usize::from(number)).copied();
    known.ok_or_else(|| usage(format!("{number} stands for no type")))
}

pub(crate) fn collective(number: u8) -> PyResult<Collective> {
    Ok(match number {
        0 => Collective::AllReduce,
        1 => Collective::AllGather,
        2 => Collective::ReduceScatter,
        3 => Collective::Broadcast,
        4 => Collective::Reduce,
        5 => Collective::Gather,
        6 => Collective::Scatter,
        7 => Collective::AllToAll,
        8 => Collective::Scan,
        9 => Collective::ExScan,
        10 => Collective::Barrier,
        _ => return Err(usage(format!("{number} stands for no collective"))),
    })
}

pub(crate) fn op(number: u8, factor: f64) -> PyResult<ReduceOp> {
    Ok(match number {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Prod,
        2 => ReduceOp::Min,
        3 => ReduceOp::Max,
        4 => ReduceOp::Avg,
        5 => ReduceOp::PremulSum(factor),
        6 => ReduceOp::BitAnd,
        7 => ReduceOp::BitOr,
        8 => ReduceOp::BitXor,
        9 => ReduceOp::LogicalAnd,
        10 => ReduceOp::LogicalOr,
        11 => ReduceOp::LogicalXor,
        _ => return Err(usage(format!("{number} stands for no operator"))),
    })
}

/// Ten years: no wait is longer, and clocks do not overflow.
const PATIENCE_MOST: Duration = Duration::from_secs(315_360_000);

/// A time-out in seconds. Zero or less fails at the first look at the clock; more than ten years are ten years.
pub(crate) fn limit(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(PATIENCE_MOST).min(PATIENCE_MOST)
}
