//! Memory of GPUs.

mod path;

pub use path::{GpuPath, Staged};
