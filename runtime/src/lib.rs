//! Kolo: collective communication for CPU and mixed clusters.

pub mod error;
pub mod reduce;
pub mod types;
pub mod verify;

pub use error::{Context, Error, Result};
pub use types::{DataType, Element, ReduceOp};
