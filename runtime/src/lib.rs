//! Kolo: collective communication for CPU and mixed clusters.

pub mod call;
mod cluster;
mod comm;
mod communicator;
pub mod config;
pub mod control;
mod dispatch;
mod drive;
mod engine;
pub mod error;
mod exchange;
mod failure;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu;
mod home;
mod job;
pub mod join;
mod mix;
pub mod profile;
mod ranges;
pub mod reduce;
mod sides;
mod summary;
mod supply;
mod ticks;
pub mod types;
pub mod verify;
pub mod wait;
mod waited;
mod work;

pub use call::{RawCall, RawCallV};
pub use cluster::Cluster;
pub use comm::{
    Batch, Builder, Communicator, RawMessage, RegisteredBuffer, Registration, Scope, Stable, Standing,
    Symmetric,
};
pub use communicator::Record;
pub use config::{Config, Determinism, TransportKind, Transports};
pub use engine::Route;
pub use error::{Context, Error, Result};
pub use gpu::{GpuCounters, GpuPath, Staged};
pub use kolo_collectives::plan::Collective;
pub use kolo_gdr::Wish as GpuDirectWish;
pub use kolo_transport::MemoryCounters;
pub use summary::{Label, Summary};
pub use types::{Bool, DataType, Element, ReduceOp};
pub use work::Work;
