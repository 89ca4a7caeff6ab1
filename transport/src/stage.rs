//! A stage: memory that the ranks of one host share, in which each shows the others what it has, round by round.
//!
//! # Contract
//! 1. The *members* of a stage are ranks of one host, in ascending order. All of them share all of its *areas*, each of which
//!    counts its own rounds. Areas do not wait for each other.
//! 2. In every round of an area every member publishes once: bytes of its own, as many as it likes up to
//!    [`StageCaps::payload_max`], or only that it is there. Rounds have no numbers in calls: the k-th publication of a member
//!    belongs to round k.
//! 3. Before it fills its memory a member asks [`Stage::is_free`] until that says yes: somebody may still read what lay there
//!    some rounds ago. There is memory for at least two rounds of any length.
//! 4. Payloads of the round that this member published last may be read once [`Stage::has_published`] has said yes for them, and until
//!    this member publishes again.
//! 5. Tag and digest are what all members must agree on in a round. A difference is a [`StageMismatch`] to at least one of the
//!    two; the area is of no use then.
//! 6. Nothing blocks. A member that was told no may sleep, by [`Endpoint::arm`](crate::Endpoint::arm) of the endpoint that the
//!    stage belongs to: whoever publishes wakes it.
//! 7. Other processes can write to this memory at any time, so it is reached by address and nobody makes a reference to it.

use std::fmt::Debug;

use crate::shm::Copier;

/// Capabilities of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageCaps {
    /// How many areas there are.
    pub areas: u16,
    /// Most bytes that a member publishes in a round.
    pub payload_max: usize,
}

/// Members whose payload a member needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Everybody's.
    All,
    /// That of one member.
    Only(usize),
    /// That of the members before this one.
    Below(usize),
    /// Nobody's: it only gives.
    Nobody,
}

impl Needs {
    /// Whether a member is among them.
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

/// A member called something else than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMismatch {
    /// The member, as an index.
    pub member: usize,
    /// The tag it published, or one of a later round if it has gone on.
    pub tag: u64,
}

/// One member's end of a stage. See the module for the contract.
pub trait Stage: Debug {
    /// Ranks of the members, ascending.
    fn members(&self) -> &[u32];

    /// This rank's index among the members.
    fn member(&self) -> usize;

    /// Whether this member may publish so many bytes in the next round of an area.
    ///
    /// # Errors
    /// If a member published something else in an earlier round.
    fn is_free(&mut self, area: u16, len: usize) -> Result<bool, StageMismatch>;

    /// Where this member puts the `len` bytes that it publishes next: valid for writes of as much until then.
    ///
    /// # Panics
    /// Unless [`Stage::is_free`] has said yes for as much.
    fn slot(&mut self, area: u16, len: usize) -> *mut u8;

    /// The copier for slots, which suits those who read them.
    fn copier(&mut self) -> &mut Copier;

    /// Publishes what lies in the slot.
    ///
    /// # Panics
    /// As [`Stage::slot`].
    fn publish(&mut self, area: u16, tag: u64, digest: u64, len: usize);

    /// Whether these members have published the round that this one published last.
    ///
    /// # Errors
    /// If a member published something else.
    fn has_published(&mut self, area: u16, needs: Needs) -> Result<bool, StageMismatch>;

    /// The `len` bytes that a member has published in that round: valid for reads of as much until this member publishes again.
    /// The length is for the reader to know.
    ///
    /// # Panics
    /// Unless [`Stage::has_published`] has said yes for this member, or it is this one.
    fn payload(&self, area: u16, member: usize, len: usize) -> *const u8;

    /// Members, as indices, that are waited for in an area: those of `needs` that have not published the round at hand, or,
    /// with a length to publish, those that are too far behind for it.
    fn waited_for(&self, area: u16, what: Awaited) -> Vec<usize>;
}

/// A member's wait in an area, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// That it may publish so many bytes.
    Room(usize),
    /// That these publish.
    Payloads(Needs),
}
