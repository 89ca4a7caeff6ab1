//! RDMA verbs for Kolo: libibverbs, found at run time.
//!
//! Building needs no part of RDMA, and running needs only the kernel and libibverbs. A program that uses this crate
//! starts on any machine; [`probe`] reports the devices, or the reason why there are none and the remedy.
//!
//! | module | contents |
//! | --- | --- |
//! | [`sys`] | mirrors of libibverbs' structures with asserted layouts, and the loader |
//! | `library`, `context`, `port`, `gid` | devices and their properties |
//! | `memory` | protection domains and registered memory |
//! | `completion`, `status` | completion queues, and failed completions in plain words |
//! | `connection`, `queue_pair`, `work` | reliable connected queue pairs, their states, posting |
//! | `probe` | a test whether RDMA really works |
//!
//! # Rules
//!
//! 1. An object keeps the objects alive that it was made from: a queue pair keeps its domain and queues, a region its
//!    domain, all of them the device, and the device the library. A program may drop them in any order.
//! 2. Handles are `Send` and `Sync`, because the verbs are thread-safe. The crate has no state besides the handles,
//!    and blocks only in making, connecting and dropping.
//! 3. The poster answers for posted memory, so posting and registering are `unsafe`. The device has finished with the
//!    memory at the completion, or when the queue pair is dropped.
//! 4. The data path (`post_send`, `post_receive`, `poll`) does not allocate, lock or call the kernel itself; neither
//!    do hardware providers.
//! 5. Enumerations from the library keep values that this version does not know.
//!
//! No part of the crate may be used in a child after `fork`; for the parent's side, see [`Library::fork_safety`].

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
