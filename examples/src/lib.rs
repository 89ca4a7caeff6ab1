//! Common parts of the example programs: ranks to run on, and data-parallel training of a small network in plain Rust.
//!
//! * [`cluster`] gives an example its ranks: a launcher's processes, or threads.
//! * [`idx`] reads the file format of MNIST and similar sets; [`dataset`] finds and loads such files.
//! * [`matmul`] multiplies matrices; [`mlp`] is a network of dense layers with its gradients.
//! * [`group`] is the interface between training and communication; [`buckets`] overlaps the two.
//! * [`train`](mod@train) is the training loop: the same program for one rank and for many. [`agreement`] checks that
//!   they end with the same network, and [`console`] shows their progress.

pub mod agreement;
pub mod buckets;
mod bundled;
pub mod cluster;
pub mod console;
pub mod dataset;
pub mod group;
pub mod idx;
pub mod matmul;
pub mod mlp;
pub mod train;

/// A result whose error is only printed.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
