//! Transports of Kolo: the [`Endpoint`] trait and its implementations over TCP, shared memory and RDMA. They move
//! bytes between two ranks and know nothing about collectives.

mod arm;
pub mod conformance;
mod endpoint;
mod error;
pub mod foreign;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod kinds;
mod memory;
mod pieces;
mod proof;
pub mod rdma;
pub mod shm;
mod stage;
mod sys;
pub mod tcp;
mod unpoisoned;

pub use arm::{Armed, ParkBy, arm_all};
pub use endpoint::{
    Caps, Channel, Consumer, Endpoint, Envelope, Event, Fits, GRAIN_BYTES, OnMisfit, Paced, Packer, Piece,
    Posted, Rail, Reach, Short, Sink, Token,
};
pub use error::{Error, ErrorKind};
pub use kinds::{Features, Options, TransportKind};
pub use memory::{Backing, DeviceAccess, DeviceCopier, MemoryCounters, Registered, RegistrationPolicy};
pub use pieces::Cursor;
pub use rdma::{RdmaEndpoint, RdmaOptions};
pub use shm::{ShmEndpoint, ShmOptions};
pub use stage::{Awaited, Needs, Stage, StageCaps, StageMismatch};
pub use sys::credentials::{Peer, peer_of};
pub use sys::futex::{wait_word, wait_word_for, wait_words};
pub use sys::process::Process;
pub use sys::unshared::Unshared;
pub use tcp::{TcpEndpoint, TcpOptions};
pub use unpoisoned::Unpoisoned;
