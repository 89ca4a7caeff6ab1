//! Kolo: collective communication for CPU and mixed clusters.

pub mod call;
pub mod cancel;
mod cluster;
mod comm;
pub mod config;
pub mod control;
mod engine;
pub mod error;
mod forced;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu;
mod home;
mod job;
pub mod join;
mod mix;
mod planner;
pub mod profile;
mod ranges;
mod recorder;
pub mod reduce;
mod sides;
mod summary;
mod supply;
mod ticks;
pub mod types;
pub mod verify;
pub mod wait;
mod work;

pub use call::{RawCall, RawCallV};
pub use cluster::Cluster;
pub use comm::{
    Batch, Builder, Communicator, GpuCounters, RawMessage, RegisteredBuffer, Registration, Scope, Stable,
    Standing, Symmetric,
};
pub use config::{Config, Determinism, TransportKind, Transports};
pub use engine::Route;
pub use error::{Context, Error, Result};
pub use gpu::{GpuPath, Staged};
pub use kolo_collectives::plan::Collective;
pub use kolo_gdr::Wish as GpuDirectWish;
pub use kolo_transport::MemoryCounters;
pub use recorder::Record;
pub use summary::{Label, Summary};
pub use types::{Bool, DataType, Element, ReduceOp};
pub use work::Work;
