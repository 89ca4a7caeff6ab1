//! The RDMA transport, over InfiniBand, RoCE or soft-RoCE.
//!
//! # How it works
//!
//! * **libibverbs is found at run time** (crate `kolo-verbs`). If it is missing, or no adapter works, making an
//!   endpoint fails with the reason and a remedy.
//! * **One link per peer**: one queue pair for short messages, and at least one per pair of adapters for long ones.
//!   All channels to the peer share them. [`RdmaEndpoint::try_paths`] connects them; the runtime calls it for all
//!   peers when it makes a communicator. Otherwise the first use connects them. Either way, the ends introduce their
//!   queue pairs over a TCP connection beside the link (the side connection). Its end also reports the end of the
//!   peer, which adapters notice much later or never.
//! * **Failures of an adapter** (a reset, a port that goes down) are read from the adapter's own descriptor, because
//!   completions do not report them.
//! * **Short messages** are written into slots of the receiver. Each channel has slots of its own, so a channel that
//!   is not read delays no other. The sender knows how many slots are free.
//! * **Long messages** use rendezvous: the receiver writes grants (address, key, length, and the expected message) to
//!   the sender, in advance. The sender writes straight from the caller's memory into the receiving caller's memory,
//!   and announces the end with the last bytes. Data for a consumer, and memory that cannot be registered, goes
//!   through staging memory of the receiver.
//! * **The caller drives.** No thread and no lock takes part in a message; a poll reads memory, and looks at the side
//!   connection now and then.
//!
//! # Rules that the files below rely on
//!
//! 1. Every note consumes a receive of the queue pair, which is posted again when the note is taken. There are as
//!    many receives as notes can be outstanding: slots and grants bound each kind per channel, so a note always finds
//!    a receive.
//! 2. Each grant is answered once, filled or not, in order. Its place is therefore overwritten only after the peer
//!    has read it.
//! 3. A slot in this side's half of a block is overwritten only when the peer has freed its own copy of the slot.
//! 4. The adapter has finished with memory when a request is settled, or the lane is dropped. Links are dropped
//!    before the memory of channels, and before tokens fail.
//! 5. Bytes from a peer are parsed in `wire`, `hello` and `address`, and their bounds are checked there or where they
//!    are counted.

mod address;
mod channel;
mod device_copiers;
mod devices;
mod endpoint;
mod failure;
mod hello;
mod lane;
mod lent;
mod link;
mod memory;
mod memory_watcher;
mod options;
mod posting;
mod progress;
mod rails;
mod reach;
mod receiving;
mod registrations;
mod sending;
mod side;
mod small;
mod stats;
mod trouble;
mod wire;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::kinds::{Features, Options};

pub use endpoint::RdmaEndpoint;
pub use options::{Keep, RdmaOptions};
pub use registrations::CacheCounters;
pub use stats::Counters;

/// The transport's name, in errors and capabilities.
pub(crate) const NAME: &str = "rdma";

/// See [`TransportKind::features`](crate::TransportKind::features).
pub(crate) const FEATURES: Features =
    Features { name: NAME, shares_memory: false, uses_adapters: true, tries_paths: true };

/// See [`TransportKind::channels_max`](crate::TransportKind::channels_max).
pub(crate) const fn channels_max(_: u32) -> u16 {
    wire::CHANNELS as u16
}

/// See [`TransportKind::open`](crate::TransportKind::open).
pub(crate) fn open(rank: u32, world_size: u32, options: &Options) -> Result<Box<dyn Endpoint>, Error> {
    Ok(Box::new(RdmaEndpoint::new(rank, world_size, options.rdma.clone())?))
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let mut whole = [0; hello::HELLO_BYTES];
    let most = bytes.len().min(whole.len());
    whole[..most].copy_from_slice(&bytes[..most]);
    if let Ok(hello) = hello::Hello::decode(&whole) {
        let mut again = [0; hello::HELLO_BYTES];
        hello.encode(&mut again);
        assert!(hello::Hello::decode(&again).is_ok());
    }
    if let Ok(address) = address::Address::decode(bytes) {
        assert_eq!(address::Address::decode(&address.encode()), Ok(address));
    }
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_wire(bytes: &[u8]) {
    if let Some(word) = bytes.first_chunk() {
        let _ = wire::Note::decode(u32::from_le_bytes(*word));
    }
    let _ = bytes.first_chunk().map(wire::Header::decode);
    let _ = bytes.first_chunk().map(wire::Grant::decode);
    let _ = bytes.first_chunk().map(wire::Place::decode);
}
