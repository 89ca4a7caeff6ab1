//! Stages: memory that the ranks of one host share, in which each rank publishes data for the others, round by round.
//!
//! # Contract
//! 1. The *members* of a stage are ranks of one host, in ascending order. All members share all of its *areas*. Each
//!    area counts its own rounds, and areas do not wait for each other.
//! 2. In every round of an area, every member publishes once: up to [`StageCaps::payload_max`] bytes of its own, or
//!    only its presence. Calls do not number rounds: the k-th publication of a member belongs to round k.
//! 3. Before a member fills its memory, it asks [`Stage::is_free`] until the answer is yes: others may still read its
//!    publication of some rounds ago from there. There is memory for at least two rounds of any length.
//! 4. Payloads of the round that this member published last may be read once [`Stage::has_published`] has returned
//!    `true` for them, and until this member publishes again.
//! 5. All members must agree on the tag and the digest of a round. Any difference is reported as a [`StageMismatch`]
//!    to at least one of the two members; the area is then unusable.
//! 6. Nothing blocks. A member whose answer was no may sleep, by [`Endpoint::arm`](crate::Endpoint::arm) of the
//!    endpoint that the stage belongs to: a member that publishes wakes it.
//! 7. Other processes can write to this memory at any time, so code reaches it by address and never makes a reference
//!    to it.

use std::fmt::Debug;

use crate::shm::Copier;

/// Capabilities of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageCaps {
    /// Number of areas.
    pub areas: u16,
    /// Maximum number of bytes that a member publishes in a round.
    pub payload_max: usize,
}

/// Set of members whose payload a member needs in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All members.
    All,
    /// One member.
    Only(usize),
    /// The members before this one.
    Below(usize),
    /// No member: this one only contributes.
    Nobody,
}

impl Needs {
    /// Returns whether a member belongs to the set.
    #[must_use]
    #[inline]
    pub fn include(self, member: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(other) => member == other,
            Self::Below(end) => member < end,
            Self::Nobody => false,
        }
    }
}

/// Report that another member published a different call than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMismatch {
    /// The other member, as an index.
    pub member: usize,
    /// The tag that it published, or one of a later round if it has gone on.
    pub tag: u64,
}

/// One member's end of a stage. The module documentation holds the contract.
pub trait Stage: Debug {
    /// Returns the ranks of the members, ascending.
    fn members(&self) -> &[u32];

    /// Returns this rank's index among the members.
    fn member(&self) -> usize;

    /// Returns whether this member may publish `len` bytes in the next round of an area.
    ///
    /// # Errors
    /// If a member published a different tag or digest in an earlier round.
    fn is_free(&mut self, area: u16, len: usize) -> Result<bool, StageMismatch>;

    /// Returns the address for the `len` bytes that this member publishes next. It is valid for writes of `len` bytes
    /// until then.
    ///
    /// # Panics
    /// Unless [`Stage::is_free`] has returned `true` for as many bytes.
    fn slot(&mut self, area: u16, len: usize) -> *mut u8;

    /// Returns the copier for slots, which chooses the stores that suit the readers.
    fn copier(&mut self) -> &mut Copier;

    /// Publishes the contents of the slot.
    ///
    /// # Panics
    /// As [`Stage::slot`].
    fn publish(&mut self, area: u16, tag: u64, digest: u64, len: usize);

    /// Returns whether these members have published the round that this member published last.
    ///
    /// # Errors
    /// If a member published a different tag or digest.
    fn has_published(&mut self, area: u16, needs: Needs) -> Result<bool, StageMismatch>;

    /// Returns the address of the `len` bytes that a member has published in that round. It is valid for reads of
    /// `len` bytes until this member publishes again. The reader must know the length.
    ///
    /// # Panics
    /// Unless [`Stage::has_published`] has returned `true` for this member, or the member is the caller itself.
    fn payload(&self, area: u16, member: usize, len: usize) -> *const u8;

    /// Returns the members, as indices, that a wait in an area depends on: those of `needs` that have not published
    /// the current round or, for a wait for room, those that are too far behind.
    fn waited_for(&self, area: u16, what: Awaited) -> Vec<usize>;
}

/// Object of a member's wait in an area, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Room to publish this many bytes.
    Room(usize),
    /// Publications of these members.
    Payloads(Needs),
}
