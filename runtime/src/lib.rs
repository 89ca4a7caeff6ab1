//! Kolo: collective communication for CPU and mixed clusters.

pub mod control;
pub mod error;
pub mod join;
pub mod types;

pub use error::{Context, Error, Result};
pub use types::{DataType, Element, ReduceOp};
