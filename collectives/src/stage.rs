//! Stages: memory that the ranks of one host share, as plans see it.
//!
//! The ranks of a host that take part (the *members*, in rank order) each own a *stage*: memory that only its owner
//! writes and all members read. The members go through *rounds* together: in every round each member publishes data or
//! only its presence, and reads what others have published in the round that it published last itself. [`crate::plan`]
//! gives the rules.
//!
//! Every member's plan holds the same table of what each member publishes in each round. Each member therefore knows
//! how long the payloads of the others are and where a block lies in them, and the checker sees the whole picture.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::plan::{Blocks, Space};
use crate::window::Windows;

/// The ranks that share memory, with their payloads round by round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Stage {
    /// Ranks of the members, ascending. The plan's own rank is among them.
    pub members: Box<[u32]>,
    /// [`Space::Input`] or [`Space::Output`]: block i of a stage is as long as block i of this space.
    pub like: Space,
    /// The payloads of all members, for each round of a segment. [`Algorithm::plans`](crate::Algorithm::plans) makes one
    /// table for all members.
    pub rounds: Arc<[Box<[Payload]>]>,
    /// The members whose buffers others reach into.
    pub windows: Windows,
}

/// The payload of a member in a round: up to two runs of blocks, one after the other; without runs, the payload is only
/// the member's presence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The runs; they have no block in common.
    pub runs: [Option<Run>; 2],
}

/// Consecutive blocks of a stage, adjacent in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Number of the first block.
    pub first: u32,
    /// Number of blocks, at least one.
    pub count: u32,
}

/// A selection of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Members {
    /// All members.
    All,
    /// This member.
    One(u16),
    /// The members before this one, of which there is at least one.
    Below(u16),
}

/// Longest payload in bytes. Segments are chosen so that no member exceeds it in any round, and transports provide room
/// for it.
pub const PAYLOAD_BYTES_MAX: usize = 640 << 10;

/// The place of blocks in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The run that holds them.
    pub run: usize,
    /// Elements of the run before them.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl Run {
    /// One past the last block.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.first + self.count
    }

    const fn holds(&self, first: u32, count: u32) -> bool {
        self.first <= first && first + count <= self.end()
    }
}

impl Payload {
    /// A payload that only shows the member's presence.
    pub const PRESENCE: Self = Self { runs: [None; 2] };

    /// Returns a payload of the blocks `first..first + count`; presence only if `count` is 0.
    #[must_use]
    pub const fn run(first: u32, count: u32) -> Self {
        Self { runs: [if count > 0 { Some(Run { first, count }) } else { None }, None] }
    }

    /// Returns the same payload with other blocks behind the first run.
    #[must_use]
    pub const fn and(self, first: u32, count: u32) -> Self {
        let other = Self::run(first, count).runs[0];
        match self.runs[0] {
            None => Self { runs: [other, None] },
            Some(_) => Self { runs: [self.runs[0], other] },
        }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.runs.iter().flatten().map(|run| run.count).sum()
    }

    /// Returns the position in the payload of the block with this number.
    #[must_use]
    pub fn position(&self, number: u32) -> Option<usize> {
        let before = |index: usize| self.runs[..index].iter().flatten().map(|run| run.count).sum::<u32>();
        let index = self.run_of(number, 1)?;
        Some((before(index) + number - self.runs[index]?.first) as usize)
    }

    /// Returns the run that holds all of these consecutive blocks, if there is one.
    #[must_use]
    pub fn run_of(&self, first: u32, count: u32) -> Option<usize> {
        self.runs.iter().position(|run| run.is_some_and(|run| run.holds(first, count)))
    }
}

impl Members {
    /// Returns the selected member numbers, among `members` members.
    #[must_use]
    pub const fn range(self, members: usize) -> Range<usize> {
        match self {
            Self::All => 0..members,
            Self::One(member) => member as usize..member as usize + 1,
            Self::Below(end) => 0..end as usize,
        }
    }
}

impl Stage {
    /// Returns the member number of a rank.
    #[must_use]
    pub fn member(&self, rank: u32) -> Option<usize> {
        self.members.binary_search(&rank).ok()
    }

    /// Returns the payload of a member in a round.
    #[must_use]
    pub fn payload(&self, round: usize, member: usize) -> Payload {
        self.rounds[round][member]
    }

    /// Returns the elements of one run of a payload in a segment.
    #[must_use]
    pub fn run_elements(&self, layout: &Layout, run: Run, segment: usize) -> usize {
        layout.len(Blocks::range(self.like, run.first, run.count), segment)
    }

    /// Returns the place of consecutive blocks in a payload; `None` if they are not in it, or not in a single run.
    #[must_use]
    pub fn place(
        &self,
        layout: &Layout,
        payload: &Payload,
        (first, count): (u32, u32),
        segment: usize,
    ) -> Option<Place> {
        let index = payload.run_of(first, count)?;
        let run = payload.runs[index]?;
        let before = first - run.first;
        let elements = |first, count| match count {
            0 => 0,
            _ => layout.len(Blocks::range(self.like, first, count), segment),
        };
        Some(Place { run: index, offset: elements(run.first, before), len: elements(first, count) })
    }

    /// Returns the elements of each run of the longest payload of any member in any round, in the longest segment.
    #[must_use]
    pub fn longest(&self, layout: &Layout) -> [usize; 2] {
        let mut longest = [0; 2];
        for payload in self.rounds.iter().flatten() {
            let elements = payload.runs.map(|run| run.map_or(0, |run| self.run_elements(layout, run, 0)));
            if elements.iter().sum::<usize>() > longest.iter().sum() {
                longest = elements;
            }
        }
        longest
    }
}
