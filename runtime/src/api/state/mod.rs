//! Transfer of state to newcomers: ranks that have the state of a job send it to those that lack it.
//!
//! A program names the memory that makes up its state ([`Part`]), and the step that the state is of ([`State`]).
//! Ranks that have the latest step send it to all others, in chunks, from several ranks at a time, the nearest first.
//! If several ranks have the state, each chunk is checked against a hash that another rank has made.
//!
//! ```
//! use kolo::state::{Part, State};
//! use kolo::{Communicator, ReduceOp, Result, Survivors};
//!
//! fn train(comm: Communicator) -> Result<Vec<f32>> {
//!     let mut state = State::of(&comm); // of step 0; a newcomer has none yet
//!     let mut group = Survivors::new(comm).up_to(8);
//!     let (mut weights, mut mean) = (vec![0.5_f32; 100], vec![0.0_f32; 100]);
//!     while state.version() < Some(10) {
//!         group.admit()?; // newcomers come in here, and nowhere else
//!         group.run(|comm| {
//!             // Does nothing unless members have come or gone.
//!             state.share(comm, &mut [Part::new("weights", &mut weights)])?;
//!             let own: Vec<f32> = comm.own_shards(64).flat_map(|_| weights.clone()).collect();
//!             comm.all_reduce_shards(&own, &mut mean, 64, ReduceOp::Avg)
//!         })?;
//!         weights.iter_mut().zip(&mean).for_each(|(x, g)| *x -= 0.1 * g);
//!         state.advance();
//!     }
//!     Ok(weights)
//! }
//! # for weights in kolo::Cluster::local(2, train).unwrap() { assert!(weights.unwrap()[0] < 0.2) }
//! ```

mod beside;
mod orders;
mod schedule;

use std::sync::{Arc, Weak};

use sha2::{Digest, Sha256};

use super::Communicator;
use crate::communicator;
use crate::control::{Hash, SnapshotServer};
use crate::error::{Error, Result};
use crate::job::Cookie;
use crate::types::{Element, ReduceOp, bytes_of_mut};
use schedule::{Delivery, batches, deliveries, hasher};

/// Bytes of a chunk: long enough to use the full rate of any network, short enough that many ranks share the work for
/// a small state.
const CHUNK_BYTES: usize = 1 << 20;

/// Tag of these messages, which a program's own should not have.
const TAG: u32 = 0x4b53_7461;

/// Least attempts at a chunk that fails its hash, even if a single rank has it.
const ATTEMPTS_LEAST: usize = 3;

const HASH_BYTES: usize = size_of::<Hash>();

/// Memory that is part of a program's state.
#[derive(Debug)]
pub struct Part<'a> {
    name: &'a str,
    bytes: &'a mut [u8],
}

impl<'a> Part<'a> {
    /// Makes a part of the state from any elements. The name tells people which part it is. Name and length are the
    /// same on all ranks.
    pub fn new<T: Element>(name: &'a str, data: &'a mut [T]) -> Self {
        Self { name, bytes: bytes_of_mut(data) }
    }
}

/// Outcome of [`State::share`] on this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shared {
    /// Bytes that this rank has received.
    pub received: u64,
    /// Bytes that this rank has sent.
    pub sent: u64,
    /// Chunks that failed their hash and were fetched from another rank, each as the rank that had sent it.
    pub refetched: Vec<u32>,
}

/// Version of a rank's state, and the communicators whose ranks share it.
#[derive(Clone, Debug, Default)]
pub struct State {
    version: Option<u64>,
    /// The communicators on which sharing has succeeded. Their ranks know that in common, whatever other communicators
    /// each of them has shared the state on since.
    settled: Vec<Weak<communicator::Shared>>,
    /// An earlier attempt has failed, so some chunks may already be right.
    is_begun: bool,
    /// Server from which newcomers fetch copies, with the communicator for which it was opened.
    server: Option<((Cookie, u64), Arc<SnapshotServer>)>,
}

impl State {
    /// State of a rank that has nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { version: None, settled: Vec::new(), is_begun: false, server: None }
    }

    /// State of a rank whose memory is that of this step.
    #[must_use]
    pub const fn at(version: u64) -> Self {
        Self { version: Some(version), settled: Vec::new(), is_begun: false, server: None }
    }

    /// State of a program that begins: of step 0, or of nothing on a newcomer.
    #[must_use]
    pub fn of(comm: &Communicator) -> Self {
        let is_newcomer = comm.ranks_before()[comm.rank() as usize].is_none();
        if is_newcomer { Self::new() } else { Self::at(0) }
    }

    /// Returns the step that this rank's memory is of; `None` if it has nothing.
    #[must_use]
    pub const fn version(&self) -> Option<u64> {
        self.version
    }

    /// Declares the memory to be of this step from now on.
    pub const fn set_version(&mut self, version: u64) {
        self.version = Some(version);
    }

    /// Declares the memory to be of the next step from now on; of step 0 if it was of none.
    pub fn advance(&mut self) {
        self.version = Some(self.version.map_or(0, |version| version + 1));
    }

    /// Sends the latest version from the ranks that have it to those that do not, so that all have it. If it has
    /// succeeded on this communicator before, it does nothing, at the cost of a comparison, even if some ranks have shared
    /// it on other communicators since.
    ///
    /// All ranks call it, with parts of the same names and lengths in the same order. Blocks as collectives do. If it
    /// fails because a rank is lost, it can be called again on the communicator of the ranks that live; chunks that
    /// have arrived are kept. In a step of [`Survivors::run`](crate::Survivors::run) this happens by itself.
    ///
    /// # Errors
    /// As for the collectives. [`Error::Usage`], on all ranks, if the parts differ, if no rank has the state, or if a
    /// chunk fails its hash from every sender, since the ranks that have the version then have different bytes. After
    /// an error, the version of ranks that lack it is `None`, since a part of it may have arrived. [`Error::Usage`] on
    /// such a rank, if sharing has succeeded on this communicator before, so that the others send nothing.
    pub fn share(&mut self, comm: &Communicator, parts: &mut [Part<'_>]) -> Result<Shared> {
        self.share_hashed(comm, parts, CHUNK_BYTES, &|bytes| Sha256::digest(bytes).into())
    }

    fn share_hashed(
        &mut self,
        comm: &Communicator,
        parts: &mut [Part<'_>],
        chunk_bytes: usize,
        hash: &dyn Fn(&[u8]) -> Hash,
    ) -> Result<Shared> {
        if self.settled.iter().any(|settled| settled.as_ptr() == Arc::as_ptr(&comm.shared)) {
            let problem = "this rank has lost its state in an attempt on another communicator, and the ranks of \
                           this one have shared theirs; share it on a new communicator";
            return self.version.map(|_| Shared::default()).ok_or_else(|| usage(comm, problem.to_owned()));
        }
        let (latest, holders, needers) = self.who(comm, parts, chunk_bytes)?;
        let mut shared = Shared::default();
        if !needers.is_empty() {
            let is_needer = needers.contains(&comm.rank());
            let compares = is_needer && (self.is_begun || self.version.is_some());
            if is_needer {
                (self.version, self.is_begun) = (None, true);
            }
            let names: Vec<String> = describe(parts, chunk_bytes);
            let chunks = parts.iter_mut().flat_map(|part| part.bytes.chunks_mut(chunk_bytes)).collect();
            let mut transfer = Transfer { comm, holders, needers, chunks, names, hash, shared };
            let hashes = transfer.hashes()?;
            transfer.run(&hashes, compares)?;
            shared = transfer.shared;
        }
        (self.version, self.is_begun) = (Some(latest), false);
        self.settled.retain(|settled| settled.strong_count() > 0);
        self.settled.push(Arc::downgrade(&comm.shared));
        Ok(shared)
    }

    /// Returns the latest version, the ranks that have it, and those that do not.
    fn who(
        &self,
        comm: &Communicator,
        parts: &[Part<'_>],
        chunk_bytes: usize,
    ) -> Result<(u64, Vec<u32>, Vec<u32>)> {
        const WORDS: usize = 5;
        let mut own = [0_u64; WORDS];
        own[0] = self.version.map_or(0, |version| version.saturating_add(1));
        for (word, bytes) in own[1..].iter_mut().zip(digest(parts, chunk_bytes).chunks(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        let mut all = vec![0_u64; WORDS * comm.world_size() as usize];
        comm.all_gather(&own, &mut all)?;
        let told: Vec<&[u64]> = all.chunks(WORDS).collect();
        if let Some(other) = told.iter().position(|other| other[1..] != told[0][1..]) {
            let own: Vec<String> =
                parts.iter().map(|p| format!("{} of {} bytes", p.name, p.bytes.len())).collect();
            let problem = format!(
                "ranks 0 and {other} have registered different parts; this rank has {}",
                if own.is_empty() { "none".to_owned() } else { own.join(", ") }
            );
            return Err(usage(comm, problem));
        }
        let latest = told.iter().map(|told| told[0]).max().unwrap_or_default();
        let Some(version) = latest.checked_sub(1) else {
            return Err(usage(comm, "no rank has the state: all are newcomers".to_owned()));
        };
        let (holders, needers) = (0..comm.world_size()).partition(|rank| told[*rank as usize][0] == latest);
        Ok((version, holders, needers))
    }
}

/// Returns a digest that tells lists of parts apart.
fn digest(parts: &[Part<'_>], chunk_bytes: usize) -> Hash {
    let mut digest = Sha256::new();
    digest.update((chunk_bytes as u64).to_le_bytes());
    for part in parts {
        digest.update((part.name.len() as u64).to_le_bytes());
        digest.update(part.name.as_bytes());
        digest.update((part.bytes.len() as u64).to_le_bytes());
    }
    digest.finalize().into()
}

/// Describes each chunk for people.
fn describe(parts: &[Part<'_>], chunk_bytes: usize) -> Vec<String> {
    let chunks = |part: &Part<'_>| {
        let (name, len) = (part.name.to_owned(), part.bytes.len());
        let starts = (0..len).step_by(chunk_bytes);
        starts.map(move |at| format!("bytes {at} to {} of {name}", len.min(at + chunk_bytes)))
    };
    parts.iter().flat_map(chunks).collect()
}

fn usage(comm: &Communicator, problem: String) -> Error {
    comm.usage("share", problem)
}

/// One call of [`State::share`] in which some ranks lack the state.
struct Transfer<'a, 'b> {
    comm: &'a Communicator,
    holders: Vec<u32>,
    needers: Vec<u32>,
    chunks: Vec<&'b mut [u8]>,
    names: Vec<String>,
    hash: &'a dyn Fn(&[u8]) -> Hash,
    shared: Shared,
}

impl Transfer<'_, '_> {
    /// Returns the hash of each chunk, made by one of the ranks that have it.
    fn hashes(&self) -> Result<Vec<u8>> {
        let mut own = vec![0_u8; self.chunks.len() * HASH_BYTES];
        for (chunk, place) in own.chunks_mut(HASH_BYTES).enumerate() {
            if hasher(&self.holders, chunk) == self.comm.rank() {
                place.copy_from_slice(&(self.hash)(self.chunks[chunk]));
            }
        }
        // All other ranks contribute zeros.
        self.comm.all_reduce(&mut own, ReduceOp::Max)?;
        Ok(own)
    }

    fn is_right(&self, chunk: usize, hashes: &[u8]) -> bool {
        (self.hash)(self.chunks[chunk])[..] == hashes[chunk * HASH_BYTES..][..HASH_BYTES]
    }

    /// Delivers chunks until all ranks have those that they need.
    fn run(&mut self, hashes: &[u8], compares: bool) -> Result<()> {
        let (rank, count) = (self.comm.rank(), self.chunks.len());
        let own = self.needers.iter().position(|needer| *needer == rank);
        let mut needs = vec![0_u8; self.needers.len() * count];
        if let Some(own) = own {
            for chunk in 0..count {
                needs[own * count + chunk] = u8::from(!compares || !self.is_right(chunk, hashes));
            }
        }
        for attempt in 0.. {
            self.comm.all_reduce(&mut needs, ReduceOp::Max)?;
            let all = deliveries(&self.holders, &self.needers, self.comm.hosts(), &needs, attempt);
            let Some(first) = all.first() else { break };
            if attempt >= self.holders.len().max(ATTEMPTS_LEAST) {
                return Err(usage(
                    self.comm,
                    format!(
                        "{} do not match their hash on rank {}, whichever rank sends them: ranks {:?} have \
                         this version, and their bytes differ",
                        self.names[first.chunk], first.to, self.holders
                    ),
                ));
            }
            needs.fill(0);
            for now in batches(&all, self.needers.len()) {
                self.deliver(now)?;
                for delivery in now.iter().filter(|delivery| delivery.to == rank) {
                    if !self.is_right(delivery.chunk, hashes) {
                        let (from, what) = (delivery.from, &self.names[delivery.chunk]);
                        tracing::error!(
                            rank,
                            from,
                            "{what} do not match their hash and will be fetched from another rank"
                        );
                        self.shared.refetched.push(from);
                        needs[own.unwrap_or_default() * count + delivery.chunk] = 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Does this rank's part of some deliveries.
    fn deliver(&mut self, all: &[Delivery]) -> Result<()> {
        let rank = self.comm.rank();
        let mine = all.iter().filter(|delivery| delivery.from == rank || delivery.to == rank);
        let mine: Vec<&Delivery> = mine.collect();
        let (Some(first), Some(last)) = (mine.first(), mine.last()) else { return Ok(()) };
        let base = first.chunk;
        let mut batch = self.comm.batch();
        if self.needers.contains(&rank) {
            let mut mine = mine.iter().peekable();
            for (chunk, slice) in self.chunks[base..=last.chunk].iter_mut().enumerate() {
                if let Some(delivery) = mine.next_if(|delivery| delivery.chunk == base + chunk) {
                    self.shared.received += slice.len() as u64;
                    batch = batch.recv_tagged(slice, delivery.from, TAG);
                }
            }
        } else {
            for delivery in mine {
                let slice = &*self.chunks[delivery.chunk];
                self.shared.sent += slice.len() as u64;
                batch = batch.send_tagged(slice, delivery.to, TAG);
            }
        }
        batch.run()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
