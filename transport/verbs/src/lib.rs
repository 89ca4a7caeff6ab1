//! RDMA verbs for Kolo: libibverbs, found at run time.
//!
//! Nothing of RDMA is needed to build this, and nothing but the kernel and libibverbs to run it. A program that
//! uses it starts on any machine; [`probe`] says what there is, or why there is nothing and what to do.
//!
//! | module | holds |
//! | --- | --- |
//! | [`sys`] | our own mirrors of libibverbs' structures, their layout asserted, and the loader |
//! | `library`, `context`, `port`, `gid` | devices, and what they say of themselves |
//! | `memory` | protection domains and registered memory |
//! | `completion`, `status` | completion queues, and failed completions in plain words |
//! | `connection`, `queue_pair`, `work` | reliable connected queue pairs, their states, posting |
//! | `probe` | whether it works, to the end |
//!
//! # Rules
//!
//! 1. Whatever is made of something keeps it: a queue pair holds its domain and queues, a region its domain, all of
//!    them the device, the device the library. The order in which a program drops them does not matter.
//! 2. Handles are `Send` and `Sync`, since the verbs are thread-safe. Nothing here has state of its own beside them,
//!    and nothing blocks but making, connecting and dropping.
//! 3. Memory that is posted is the poster's promise, which is why posting and registering are `unsafe`. The device
//!    lets go of it at the completion, or when the queue pair is dropped.
//! 4. The data path (`post_send`, `post_receive`, `poll`) does not allocate, lock or call the kernel on its own
//!    account; providers of hardware do not either.
//! 5. Enumerations that come from the library keep values that this version does not know.
//!
//! No part of it may be used in a child after `fork`; see [`Library::fork_safety`] for the parent's sake.

mod completion;
mod connection;
mod context;
mod error;
mod gid;
mod library;
mod memlock;
mod memory;
mod port;
mod probe;
mod queue_pair;
mod status;
pub mod sys;
mod work;

pub use completion::{Completion, CompletionChannel, CompletionQueue, Kind, Wake};
pub use connection::{Address, Path, Reliability};
pub use context::{AsyncEvent, Context, DeviceAttributes, QueuePairFault};
pub use error::{Absence, Error};
pub use gid::{Gid, GidEntry, GidKind};
pub use library::{Device, DeviceList, ForkSafety, LIBRARY_NAME, LIBRARY_VARIABLE, Library, Transport};
pub use memlock::MemoryLock;
pub use memory::{Access, DmaBufSupport, MemoryRegion, PinnedBuffer, ProtectionDomain};
pub use port::{LinkLayer, Mtu, Port, PortState};
pub use probe::{DeviceReport, PortReport, Probe, Trouble, probe, probe_library};
pub use queue_pair::{BATCH_MAX, Capacity, PostError, QueuePair, QueuePairSpec, State};
pub use status::{Blame, Failure, Status};
pub use work::{Flags, Local, Operation, Remote, Report, Send};
