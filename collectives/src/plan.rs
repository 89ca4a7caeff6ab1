//! The step program of one rank: an algorithm as data.
//!
//! A [`Plan`] is data. It holds no sizes, no addresses and no pointers: blocks are named by index and become
//! byte ranges only when the executor (or the simulator) binds the plan to a buffer with a
//! [`Layout`](crate::layout::Layout). One plan therefore serves every message size, and can be printed,
//! checked and priced without moving a byte.
//!
//! # Semantics, which the executor and the simulator share
//!
//! 1. A plan has *lanes*. The steps of a lane run in order; lanes run concurrently.
//! 2. `Send` and `Signal` are asynchronous: the lane goes on as soon as they are posted. Every other step completes
//!    before its lane goes on. A lane is done when all its steps are complete, sends included.
//! 3. A step with `fence` first waits until no earlier `Send` of its lane reads its source any more. The builder sets
//!    `fence` where a step overwrites blocks that an earlier send may still be reading.
//! 4. A step with `after = (lane, step)` first waits until that step of that lane has completed (for a `Send`:
//!    has been posted) in the same segment.
//! 5. A channel is a FIFO from one rank to another: the i-th `Send`/`Signal` posted on it matches the i-th
//!    `Recv`/`RecvReduce`/`WaitSignal`. There are no tags. Within one plan a directed channel belongs to one lane.
//! 6. Lengths never steer control flow. A message of zero bytes is skipped on both sides; a `Signal` is always
//!    transmitted. A skipped step still waits for its `fence` and its `after`, since later steps rely on them, and
//!    other steps may name it in their `after`.
//! 7. A long message is run as many *segments*. Each segment is one run of the whole plan over its own part of
//!    the data; up to `window` segments are in flight, each on sub-channels and scratch of its own.
//!
//! # Stages
//!
//! The ranks of one host may share memory: see [`crate::stage`]. Each segment in flight has stages of its own.
//!
//! 8. `Publish` starts this rank's next round: it copies its sources into the rank's own stage, and completes when the
//!    other members can see them. No other step writes a stage. Every member publishes in every round of
//!    [`Stage::rounds`].
//! 9. A stage holds the payloads of `depth` rounds, at least 2. A `Publish` of round k therefore waits until every
//!    member has published round k - depth + 1.
//! 10. `Await` waits until the named members have published the round that this rank published last. From then until
//!     its next `Publish`, this rank may read their stages: by `Fold`, or as the source of `Copy`, `Reduce` and `Send`.
//!     A `Publish` after a `Send` from a stage needs a fence between them, as any step that overwrites the source of a
//!     send does.
//! 11. All steps that use stages are in one lane.
//!
//! # Windows
//! Members may also reach into each other's buffers: see [`crate::window`]. [`Stage::windows`] names the members whose
//! buffers are reached.
//!
//! 12. In the first round every member publishes the location of its windows. It awaits all members before it publishes
//!     again: a plan runs only if all windows are in memory that the members share, and no member knows that before it
//!     has heard from all.
//! 13. `Copy` from a window and `Spread` touch windows. A rank may touch a member's windows from its `Await` of that
//!     member until its own next `Publish`.
//! 14. Where steps of two ranks touch the same block of a window and one of them writes it, a round separates them: the
//!     first rank publishes after its step, and the second awaits that round before its own step. This includes a
//!     rank's steps on its own buffers.
//! 15. At the end of a rank's plan its buffers belong to the caller again. By then the rank has awaited a round that
//!     every rank that touches its windows published after its last touch.
//! 16. A plan with windows has one lane and no messages.

use serde::{Deserialize, Serialize};

use crate::stage::{Members, Stage};

/// The operations Kolo offers to a whole communicator. The v-forms (blocks of unequal size) are the same
/// collectives with an irregular [`Layout`](crate::layout::Layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with the reduction of all vectors.
    AllReduce,
    /// Every rank ends with the blocks of all ranks, in rank order.
    AllGather,
    /// Rank r ends with the reduction of block r of all ranks.
    ReduceScatter,
    /// Every rank ends with the root's vector.
    Broadcast,
    /// The root ends with the reduction of all vectors.
    Reduce,
    /// The root ends with the blocks of all ranks, in rank order.
    Gather,
    /// Rank r ends with the root's block r.
    Scatter,
    /// Rank r's output block s is rank s's input block r.
    AllToAll,
    /// Rank r ends with the reduction of the vectors of ranks 0..=r.
    Scan,
    /// Rank r ends with the reduction of the vectors of ranks 0..r; rank 0's output is left alone.
    ExScan,
    /// No rank returns before all ranks have called.
    Barrier,
}

impl Collective {
    /// All collectives. A collective's position is its number in C and Python.
    pub const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Scan,
        Self::ExScan,
        Self::Barrier,
    ];

    /// The name, as parsed and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Scan => "scan",
            Self::ExScan => "exscan",
            Self::Barrier => "barrier",
        }
    }

    /// Returns whether the collective has a root.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Returns whether the collective reduces contributions of several ranks.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce | Self::Scan | Self::ExScan)
    }

    /// Returns whether a buffer consists of one block per rank, rather than of one vector.
    #[must_use]
    pub const fn has_block_per_rank(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll)
    }
}

/// A directed FIFO between this rank and `peer`. `index` tells channels to the same peer apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// The rank at the other end.
    pub peer: u32,
    /// Which of the channels to that peer; small and dense, so that a transport may use it as an index.
    pub index: u16,
}

/// The memory that a step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    /// The caller's send buffer, never written. Absent in an in-place operation, except in reduce-scatter, gather and
    /// scatter: see [`Placement::InPlace`].
    Input,
    /// The caller's receive buffer.
    Output,
    /// Staging owned by the runtime, one instance per segment in flight.
    Scratch,
    /// The payload of this member in the round awaited last. [`Stage::rounds`] gives the numbers of its blocks.
    Stage(u16),
    /// The input of this member, read where it lies. Blocks are numbered as in an out-of-place input, even if an
    /// in-place call keeps them in its output.
    Window(u16),
}

impl Space {
    /// Returns whether the space is a member's stage.
    #[must_use]
    pub const fn is_stage(self) -> bool {
        matches!(self, Self::Stage(_))
    }

    /// Returns whether the space belongs to a member: a stage or a window.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Stage(_) | Self::Window(_))
    }
}

/// `count` consecutive blocks of a space, starting with block `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// The memory they lie in.
    pub space: Space,
    /// Index of the first block.
    pub first: u32,
    /// How many blocks, at least one.
    pub count: u32,
}

/// Where input and output lie relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Input and output do not overlap; the input is left as it was.
    OutOfPlace,
    /// Input and output share memory, as NCCL defines it: the whole vector for all-reduce, reduce, broadcast and
    /// scans; output block `rank` for all-gather, and for gather at the root; input block `rank` for
    /// reduce-scatter, and for scatter at the root; all blocks for all-to-all.
    InPlace,
}

/// The action of a step. By construction, both sides of a channel have equal lengths, and so have `src`/`with`/`dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send `src`; asynchronous.
    Send {
        /// The channel to the receiver.
        to: Channel,
        /// The data.
        src: Blocks,
    },
    /// Receive into `dst`.
    Recv {
        /// The channel from the sender.
        from: Channel,
        /// The destination.
        dst: Blocks,
    },
    /// `dst = with op incoming`. `with` and `dst` are either the same blocks or do not overlap.
    RecvReduce {
        /// The channel from the sender.
        from: Channel,
        /// The local operand.
        with: Blocks,
        /// The result.
        dst: Blocks,
    },
    /// `dst = src`.
    Copy {
        /// The source.
        src: Blocks,
        /// The destination.
        dst: Blocks,
    },
    /// `dst = a op b`. `dst` equals `a`, or `b`, or overlaps neither.
    Reduce {
        /// First operand.
        a: Blocks,
        /// Second operand.
        b: Blocks,
        /// The result.
        dst: Blocks,
    },
    /// Send a message of no bytes, always transmitted; asynchronous.
    Signal {
        /// The channel to the receiver.
        to: Channel,
    },
    /// Wait for a `Signal`.
    WaitSignal {
        /// The channel from the sender.
        from: Channel,
    },
    /// Start this rank's next round; copy its payload into its stage.
    Publish {
        /// The source of each run of the payload: as many blocks, of the same lengths.
        src: [Option<Blocks>; 2],
        /// Blocks of the rank's own stage that no other rank reads, so that they need not be copied.
        except: Option<Blocks>,
    },
    /// Wait until these members have published the round that this rank published last.
    Await {
        /// The members.
        of: Members,
    },
    /// `dst` = the reduction of the blocks that these members have published under these numbers, in the order of the
    /// members or along the canonical tree.
    Fold {
        /// The members whose blocks are reduced.
        of: Members,
        /// Number of the first block in their stages.
        first: u32,
        /// How many blocks.
        count: u32,
        /// Source of this rank's own blocks, if it is not its stage. Another source is faster, since the stage's cache
        /// lines are on their way to the other ranks. It may equal `dst` only if this rank is one of the first two of
        /// the members, because the running result is written before the other blocks are read; otherwise the two must
        /// not overlap.
        own: Option<Blocks>,
        /// The result.
        dst: Blocks,
    },
    /// Write the reduction of blocks of these members' inputs, in the order of the members or along the canonical tree,
    /// to the outputs of the members `to`, in one pass. With one input it is a copy. Where an input and an output are
    /// the same memory, their blocks are the same or do not overlap.
    Spread {
        /// The members whose inputs are read.
        of: Members,
        /// Number of the first block there.
        first: u32,
        /// How many blocks.
        count: u32,
        /// The members whose outputs are written.
        to: Members,
        /// Number of the first block there.
        at: u32,
    },
}

impl Action {
    /// Returns the blocks that the step reads, except those that a `Fold` takes from stages and a `Spread` from
    /// windows.
    #[must_use]
    pub const fn reads(&self) -> [Option<Blocks>; 2] {
        match *self {
            Self::Send { src, .. } | Self::Copy { src, .. } => [Some(src), None],
            Self::RecvReduce { with, .. } => [Some(with), None],
            Self::Reduce { a, b, .. } => [Some(a), Some(b)],
            Self::Publish { src, .. } => src,
            Self::Fold { own, .. } => [own, None],
            Self::Recv { .. }
            | Self::Signal { .. }
            | Self::WaitSignal { .. }
            | Self::Await { .. }
            | Self::Spread { .. } => [None, None],
        }
    }

    /// Returns the blocks that the step writes, except those of windows.
    #[must_use]
    pub const fn writes(&self) -> Option<Blocks> {
        match *self {
            Self::Recv { dst, .. }
            | Self::RecvReduce { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. }
            | Self::Fold { dst, .. } => Some(dst),
            Self::Send { .. }
            | Self::Signal { .. }
            | Self::WaitSignal { .. }
            | Self::Publish { .. }
            | Self::Await { .. }
            | Self::Spread { .. } => None,
        }
    }

    /// Returns whether the step uses stages or windows.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        self.reads().into_iter().flatten().any(|blocks| blocks.space.is_shared())
            || matches!(
                self,
                Self::Publish { .. } | Self::Await { .. } | Self::Fold { .. } | Self::Spread { .. }
            )
    }

    /// Returns the channel that the step posts a message to.
    #[must_use]
    pub const fn sends_to(&self) -> Option<Channel> {
        match *self {
            Self::Send { to, .. } | Self::Signal { to } => Some(to),
            _ => None,
        }
    }

    /// Returns the channel that the step takes a message from.
    #[must_use]
    pub const fn receives_from(&self) -> Option<Channel> {
        match *self {
            Self::Recv { from, .. } | Self::RecvReduce { from, .. } | Self::WaitSignal { from } => Some(from),
            _ => None,
        }
    }
}

/// Names a step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRef {
    /// Index of the lane.
    pub lane: u16,
    /// Index of the step in the lane.
    pub step: u16,
}

/// One step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// A step of another lane that must have completed first, in the same segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<StepRef>,
    /// Whether all earlier sends of this lane must have stopped reading their sources first.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fence: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Cached plans hold steps by the hundred, and the hot loop walks them: a step fits in a cache line.
const _: () = assert!(size_of::<Step>() <= 48);

/// A straight-line program.
pub type Lane = Box<[Step]>;

/// How the caller's buffers are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Input and output are one vector of the same length, cut into this many nearly equal parts (the first
    /// `count mod parts` parts are one element longer). Block i is part i, in both spaces. A barrier has a vector of no
    /// elements. Where other ranks write the outputs ([`Stage::windows`]), the executor moves the cuts so that parts
    /// consist of whole pages that hold nothing but outputs, and each rank computes what remains at both ends by
    /// itself.
    Vector {
        /// Number of parts, at least one.
        parts: u32,
    },
    /// Input and output consist of blocks whose lengths the caller gives: one per rank where the collective has a block
    /// for each rank, otherwise a single one.
    PerRank,
    /// The input is this rank's run of the shards, one vector after the other, and the output is one vector. All
    /// vectors are cut into this many parts, as by [`Cut::Vector`]. Part i of the k-th shard of the run is block k x
    /// parts + i of the input. See [`crate::shards`].
    Shards {
        /// Number of parts, at least one.
        parts: u32,
        /// Number of shards of all ranks.
        shards: u32,
    },
}

/// Length of a scratch block, given as that of a block of the caller's buffers in the same segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Like {
    /// As long as block i of the input.
    Input(u32),
    /// As long as block i of the output.
    Output(u32),
}

/// The program of one rank for one collective. It is independent of message size, shared and cached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Plan {
    /// The collective that the plan computes.
    pub collective: Collective,
    /// Name of the generator, for people to read.
    pub algorithm: &'static str,
    /// The rank whose program this is.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// The root, where the collective has one, else 0.
    pub root: u32,
    /// Whether input and output share memory.
    pub placement: Placement,
    /// How the caller's buffers are cut.
    pub cut: Cut,
    /// Length of each scratch block.
    pub scratch: Box<[Like]>,
    /// The ranks that share memory with this one, with their payloads and windows there, if the plan uses stages.
    pub stage: Option<Stage>,
    /// The lanes.
    pub lanes: Box<[Lane]>,
    /// One more than the highest channel index in use, 0 if none is.
    pub channels: u16,
}
