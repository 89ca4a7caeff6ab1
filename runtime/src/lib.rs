//! Kolo: collective communication for CPU and mixed clusters.

pub mod config;
pub mod error;
pub mod reduce;
pub mod types;
pub mod wait;

pub use error::{Context, Error, Result};
pub use types::{DataType, Element, ReduceOp};
