//! The shared-memory transport: ranks of one host exchange messages through sealed memory files.
//!
//! # Map
//! | file | contents |
//! | --- | --- |
//! | `options` | the options, and the staging budget that follows from them |
//! | `host`, `address`, `hello` | which ranks are on this host, how they find each other, and how they identify themselves |
//! | `establish`, `arena`, `board` | the memory that a local group shares: doorbells, abort word, areas of exchanges |
//! | `endpoint`, `posts`, `progress`, `link`, `peer`, `pending` | posts and polls; links, which are made on first use and may break |
//! | `lane`, `recv_lane`, `cursor` | messages that wait on a channel |
//! | `copier`, `copy` | copies into memory that others read, and copies past the caches |
//! | `segment`, `ring`, `producer` | one sender's memory for one receiver, and the ring of each channel in it |
//! | `shuttles` | memory that passes between both ends, so that an answer lies where the message lay |
//! | `rendezvous`, `pages`, `remote`, `get` | long messages, read straight from their sender's memory |
//! | `exposed` | the same, where the owner itself tells its peer where a message lies |
//! | `tried` | which messages are read that way, where length and pages do not tell |
//! | `places` | callers' buffers, which the members of an exchange read in place |
//! | `sharing` | memory of the program that all members map |
//! | `rounds`, `buffers` | rounds of an area: which data each member publishes, when it may do so, and where |
//! | `exchange`, `stage` | the compiled exchange on area 0; the stage on the other areas |
//!
//! `unsafe` is confined to `ring`, `producer`, `lane`, `recv_lane`, `cursor`, `copier`, `copy`, `remote`, `get`,
//! `pages`, `places`, `rounds`, `exchange`, `sharing`, `sys::map` and `sys::credentials`; `endpoint` and `exposed`
//! only pass their caller's promises on.
//!
//! # How an owner waits
//! *Messages*: post, then [`poll`](crate::Endpoint::poll) until the events have come. To sleep: `arm`, then `poll`.
//! If the poll brought nothing, `arm` again (it returns the same word or descriptor and changes nothing), sleep,
//! `disarm`. The word lies in shared memory: sleep on it with [`wait_word`](crate::wait_word), not with a private
//! futex.
//!
//! *Compiled exchange*: call [`Endpoint::exchange`] once. For each round, call [`Exchange::is_free`] until it is
//! true, [`Exchange::publish`], [`Exchange::poll`] until it is true, [`Exchange::payload`] for every member that is
//! needed, and [`Exchange::finish`]. To sleep, use [`Exchange::arm`] in the same way as for messages. Rounds and
//! messages are independent of each other.
//!
//! *Stage*: [`Endpoint::stage`], by the contract of [`Stage`](crate::Stage). An owner that waits on it sleeps as for
//! messages.
//!
//! *Abort*: check [`Board::abort_word`] in every waiting loop. [`Board::abort`] wakes all sleeping ranks of the host,
//! in whichever of these ways they sleep.
//!
//! # A peer's death
//! A peer's death shows as the end of its streams. An owner that polls, or sleeps on its descriptor
//! ([`ParkBy::Fd`](crate::ParkBy::Fd)), notices it at once. An owner that sleeps on its word
//! ([`ParkBy::Word`](crate::ParkBy::Word)) is woken by messages and goodbyes, but not by a crash. It should therefore
//! wake by itself now and then (every 100 ms, say); its first poll after sleeping checks the streams.

mod address;
mod arena;
mod board;
mod buffers;
mod copier;
mod copy;
mod cursor;
mod endpoint;
mod establish;
mod exchange;
mod exposed;
mod get;
mod hello;
mod host;
mod lane;
mod link;
#[cfg(all(test, kolo_model))]
mod models;
mod options;
mod pages;
mod peer;
mod pending;
mod places;
mod posts;
mod producer;
mod progress;
mod recv_lane;
mod remote;
mod rendezvous;
mod ring;
mod rounds;
mod segment;
mod sharing;
mod shuttles;
mod stage;
#[cfg(test)]
mod tests;
mod tried;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::kinds::{Features, Options};

pub use arena::EXCHANGE_MAX;
pub use board::Board;
pub use buffers::{EXCHANGE_LONG, EXCHANGE_ROW_BYTES};
pub use copier::{Copier, Stores};
pub use copy::{STREAMING_BYTES, copy_streaming};
pub use endpoint::ShmEndpoint;
pub use exchange::{Exchange, Payload, Slot};
pub(crate) use options::channels_max;
pub use options::{ShmOptions, SingleCopy};
pub use rounds::EXCHANGE_INLINE;
pub use sharing::{MemorySharing, SharedMemory};

/// See [`TransportKind::features`](crate::TransportKind::features).
pub(crate) const FEATURES: Features =
    Features { name: establish::NAME, shares_memory: true, uses_adapters: false, tries_paths: false };

/// See [`TransportKind::open`](crate::TransportKind::open).
pub(crate) fn open(rank: u32, world_size: u32, options: &Options) -> Result<Box<dyn Endpoint>, Error> {
    Ok(Box::new(ShmEndpoint::new(rank, world_size, options.shm.clone())?))
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    if let Some(greeting) = bytes.first_chunk().and_then(hello::Hello::decode) {
        let ends = hello::Ends { caller: &[1; 16], callee: &[2; 16] };
        assert!(!greeting.is_between(ends), "a proof without the key");
        assert_eq!(hello::Hello::decode(&greeting.hello.encode(ends)).map(|g| g.hello), Some(greeting.hello));
    }
    if let Ok(address) = address::Address::decode(bytes) {
        assert_eq!(address::Address::decode(&address.encode()), Ok(address));
    }
    sharing::fuzz_address(bytes);
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_control(bytes: &[u8]) {
    ring::fuzz_control(bytes);
}
