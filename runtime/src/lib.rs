#![doc = include_str!("guide.md")]

mod affinity;
mod api;
mod call;
mod cancel;
mod communicator;
pub mod config;
mod control;
mod dispatch;
mod drive;
mod engine;
pub mod error;
mod exchange;
mod failure;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu;
mod job;
mod join;
mod mix;
mod network;
mod plans;
mod profile;
mod reduce;
mod supply;
mod symmetric;
mod ticks;
pub mod types;
mod verify;
mod wait;

/// Internals for Kolo's own tools, bindings, tests and benchmarks. Not part of the stable interface: anything in here
/// may change in any version.
#[doc(hidden)]
pub mod internal {
    pub mod cancel {
        pub use crate::cancel::*;
    }
    pub mod control {
        pub use crate::control::*;
    }
    pub mod gpu {
        pub use crate::gpu::{InstalledGpus, installed};
    }
    pub mod join {
        pub use crate::join::*;
    }
    pub mod network {
        pub use crate::network::*;
    }
    pub mod plans {
        pub use crate::plans::*;
    }
    pub mod profile {
        pub use crate::profile::*;
    }
    pub mod reduce {
        pub use crate::reduce::*;
    }
    pub mod selection {
        pub use crate::communicator::model_inside;
        pub use crate::dispatch::{apply_settings, offered_channels, serving_plans};
    }
    pub mod supply {
        pub use crate::supply::bytes_left;
    }
    pub mod verify {
        pub use crate::verify::*;
    }
    pub mod wait {
        pub use crate::wait::*;
    }
    pub use crate::api::SecondWait;
    pub use kolo_transport::Unpoisoned;
}

#[cfg(feature = "ndarray")]
pub use api::DenseArray;
#[cfg(feature = "bytemuck")]
pub use api::Plain;
pub use api::state;
pub use api::{
    Agreement, Batch, Change, Cluster, Communicator, CommunicatorBuilder, RawMessage, RegisteredBuffer,
    Registration, RegistrationStatus, Scope, StableBuffer, Survivors, SymmetricBuffer, WaitingMessage, Work,
};
pub use call::{CallLabel, RawCall, RawCallV, Summary};
pub use communicator::Record;
pub use config::{Config, Determinism, TransportKind, Transports};
pub use control::{ControlRuntime, Invitation, JobSecret, PeerInfo};
pub use engine::Route;
pub use error::{
    AbortReason, AwaitedRank, Error, ErrorContext, JoinFailure, LossCause, PeerCall, PeerState, Result,
};
pub use gpu::{GpuCounters, GpuPath, StagingReason};
pub use job::Liveness;
pub use join::{Board, JoinSpec, Locator, UniqueId};
pub use kolo_collectives::plan::Collective;
pub use kolo_gdr::Mode as GpuDirectMode;
pub use kolo_transport::rdma::Keep as RegistrationCache;
pub use kolo_transport::shm::Stores as ShmStores;
pub use kolo_transport::{Error as TransportError, MemoryCounters, Rail};
pub use plans::LoadedPlans;
pub use profile::Loaded as LoadedProfile;
pub use types::{Bool, DataType, Element, ReduceOp};
