#![doc = include_str!("guide.md")]

mod call;
mod cancel;
mod cluster;
mod comm;
pub mod config;
mod control;
mod engine;
pub mod error;
mod forced;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu;
mod home;
mod job;
mod join;
mod mix;
mod planner;
mod profile;
mod ranges;
mod recorder;
mod reduce;
mod sides;
mod summary;
mod supply;
mod ticks;
pub mod types;
mod verify;
mod wait;
mod work;

/// For Kolo's own tools, bindings, tests and benchmarks. Not part of the stable interface: anything in here may change in
/// any version.
#[doc(hidden)]
pub mod internal {
    pub mod cancel {
        pub use crate::cancel::*;
    }
    pub mod control {
        pub use crate::control::*;
    }
    pub mod join {
        pub use crate::join::*;
    }
    pub mod profile {
        pub use crate::profile::*;
    }
    pub mod reduce {
        pub use crate::reduce::*;
    }
    pub mod verify {
        pub use crate::verify::*;
    }
    pub mod wait {
        pub use crate::wait::*;
    }
}

pub use call::{RawCall, RawCallV};
pub use cluster::Cluster;
pub use comm::{
    Batch, Builder, Communicator, GpuCounters, RawMessage, RegisteredBuffer, Registration, Scope, Stable,
    Standing, Symmetric,
};
pub use config::{Config, Determinism, TransportKind, Transports};
pub use control::{ControlRuntime, JobSecret, PeerInfo};
pub use engine::Route;
pub use error::{AbortReason, Context, Error, LossCause, Result};
pub use gpu::{GpuPath, Staged};
pub use join::{JoinSpec, Locator};
pub use kolo_collectives::plan::Collective;
pub use kolo_gdr::Wish as GpuDirectWish;
pub use kolo_transport::MemoryCounters;
pub use profile::Loaded as LoadedProfile;
pub use recorder::Record;
pub use summary::{Label, Summary};
pub use types::{Bool, DataType, Element, ReduceOp};
pub use work::Work;
