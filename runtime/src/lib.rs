//! Kolo: collective communication for CPU and mixed clusters.

pub mod call;
pub mod config;
mod engine;
pub mod error;
mod recorder;
pub mod reduce;
pub mod types;
pub mod wait;
pub use error::{Context, Error, Result};
pub use types::{DataType, Element, ReduceOp};
