//! The shared-memory transport: ranks of one host talk through sealed memory files.
//!
//! # Map
//! | file | what |
//! | --- | --- |
//! | `options` | what can be chosen, and the budget of staging that follows |
//! | `host`, `address`, `hello` | who is on this host, how it is found, how it introduces itself |
//! | `establish`, `arena`, `board` | the memory that a local group shares: doorbells, abort word, areas of exchanges |
//! | `endpoint`, `progress`, `link`, `peer`, `pending` | posts and polls; links made on first use, and broken |
//! | `lane`, `recv_lane`, `cursor` | messages that wait on a channel |
//! | `copier`, `copy` | copies into memory that others read, and past the caches |
//! | `segment`, `ring`, `producer` | one sender's memory to one receiver, and the ring of a channel in it |
//! | `rendezvous`, `pages`, `remote`, `get` | long messages, read straight from their sender's memory |
//! | `places` | callers' buffers, read in place by the members of an exchange |
//! | `sharing` | memory of the program, which all members map |
//! | `rounds`, `buffers` | rounds of an area: what each member publishes, when it may do so, and where |
//! | `exchange`, `stage` | the compiled exchange on area 0; the stage, which is the other areas |
//!
//! `unsafe` is confined to `ring`, `producer`, `lane`, `recv_lane`, `cursor`, `copier`, `copy`, `remote`, `get`, `pages`, `places`, `rounds`,
//! `exchange`, `sharing`, `sys::map` and `sys::credentials`; `endpoint` only passes its caller's
//! promises on.
//!
//! # How an owner waits
//! *Messages*: post, then [`poll`](crate::Endpoint::poll) until the events are there. To sleep: `arm`, `poll`; if that
//! brought nothing, `arm` again (which gives the word or the descriptor once more and changes nothing), sleep,
//! `disarm`. The word lies in shared memory: sleep on it with [`wait_word`](crate::wait_word), not with a private futex.
//!
//! *Compiled exchange*: [`Endpoint::exchange`] once, then for each round [`Exchange::is_free`] until true,
//! [`Exchange::publish`], [`Exchange::poll`] until true,
//! [`Exchange::payload`] of everybody, [`Exchange::finish`]; asleep with [`Exchange::arm`] in the same way. Rounds and messages
//! are independent of each other.
//!
//! *Stage*: [`Endpoint::stage`], whose contract says how. An owner that waits on it sleeps as for messages.
//!
//! *Abort*: look at [`Board::abort_word`] in every waiting loop; [`Board::abort`] wakes all sleepers of the host,
//! whichever of these ways they sleep.
//!
//! # A peer's death
//! Seen as the end of its streams: at once by an owner that sleeps on its descriptor
//! ([`ParkBy::Fd`](crate::ParkBy::Fd)) or polls. An owner that sleeps on its word
//! ([`ParkBy::Word`](crate::ParkBy::Word)) is woken by messages and good-byes, but not by a crash: it should wake by
//! itself now and then (100 ms, say); the first poll after sleeping looks.

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
mod get;
mod hello;
mod host;
mod lane;
mod link;
#[cfg(all(test, kolo_model = "transport"))]
mod models;
mod options;
mod pages;
mod peer;
mod pending;
mod places;
mod producer;
mod progress;
mod recv_lane;
mod remote;
mod rendezvous;
mod ring;
mod rounds;
mod segment;
mod sharing;
mod stage;
#[cfg(test)]
mod tests;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::kinds::{Features, Options};

pub use arena::FLAT_MAX;
pub use board::Board;
pub use buffers::FLAT_LONG;
pub use copier::{Copier, Stores};
pub use copy::copy_streaming;
pub use endpoint::ShmEndpoint;
pub use exchange::{Exchange, Payload, Slot};
pub use host::probe;
pub use options::{ShmOptions, SingleCopy};
pub use rounds::FLAT_INLINE;
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
