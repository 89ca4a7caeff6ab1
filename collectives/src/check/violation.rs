//! Defects of plans, with enough detail to find them.

use std::fmt;

use crate::plan::{Plan, Step, StepRef};

use super::{Credits, Schedule};

/// A step of one rank's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The lane.
    pub lane: u16,
    /// The step within the lane.
    pub step: u16,
    /// The step itself, as text.
    pub text: String,
}

impl Place {
    pub(crate) fn of(plan: &Plan, at: StepRef) -> Self {
        let step: Option<&Step> =
            plan.lanes.get(usize::from(at.lane)).and_then(|lane| lane.get(usize::from(at.step)));
        let text = step.map_or_else(|| "end of lane".to_owned(), ToString::to_string);
        Self { rank: plan.rank, lane: at.lane, step: at.step, text }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} lane {} step {} ({})", self.rank, self.lane, self.step, self.text)
    }
}

/// A defect in a set of plans.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The plans are not one set: plan i must be that of rank i, and all must agree on the operation.
    Mismatched {
        /// The plan that differs.
        rank: u32,
    },
    /// A step names a block, peer, channel or step that does not exist.
    Index {
        /// The step.
        at: Place,
        /// The index that is out of range.
        what: &'static str,
    },
    /// A step writes the caller's input.
    WritesInput {
        /// The step.
        at: Place,
    },
    /// Operands overlap in a way the semantics forbid.
    Operands {
        /// The step.
        at: Place,
    },
    /// Two lanes of one rank use the same directed channel.
    SharedChannel {
        /// A step of the second lane.
        at: Place,
        /// The first lane.
        other_lane: u16,
    },
    /// The numbers of messages sent to and received from a channel differ.
    Unmatched {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// The channel's index.
        index: u16,
        /// Messages sent.
        sent: u32,
        /// Messages received.
        received: u32,
    },
    /// The sent and the received blocks differ in length, or a signal meets a message.
    Lengths {
        /// The receiving step.
        at: Place,
        /// The sending step.
        sender: Place,
    },
    /// The plans of the members of a stage contradict each other.
    Stage {
        /// The rank whose plan it is.
        rank: u32,
        /// The contradiction.
        what: &'static str,
    },
    /// Steps that use stages are in two lanes.
    StageLane {
        /// A step of the second lane.
        at: Place,
        /// The first lane.
        other_lane: u16,
    },
    /// A step uses memory of a member without having awaited its round, or publishes the second round without
    /// having awaited the first.
    NotAwaited {
        /// The step.
        at: Place,
        /// The member whose memory it is.
        member: u16,
    },
    /// A step touches a buffer of a member that the plans do not declare as a window.
    NotAWindow {
        /// The step.
        at: Place,
        /// The member whose buffer it is.
        member: u16,
    },
    /// A step may still be using a buffer of another rank when that rank is done.
    Outlived {
        /// The step.
        at: Place,
        /// The other rank.
        owner: u32,
    },
    /// A step reads blocks that a member does not publish in this round.
    Unpublished {
        /// The step.
        at: Place,
        /// The member whose stage it is.
        member: u16,
    },
    /// A rank may be done with a barrier before another rank has called.
    Early {
        /// The rank.
        rank: u32,
        /// The other one.
        missing: u32,
    },
    /// Two steps may touch the same block at the same time, and one of them writes.
    Hazard {
        /// The writing step.
        writer: Place,
        /// The other step.
        other: Place,
        /// The block, by its physical name.
        block: String,
    },
    /// A step reads blocks that no step has written.
    Undefined {
        /// The step.
        at: Place,
    },
    /// An output block ends with the wrong contents.
    Wrong {
        /// The rank.
        rank: u32,
        /// The output block.
        block: u32,
        /// The number of contributions it has.
        contributions: u32,
        /// The number it should have.
        expected: u32,
    },
    /// A block was written that must stay untouched.
    Touched {
        /// The rank.
        rank: u32,
        /// The output block.
        block: u32,
    },
    /// Ranks reduce an element in different orders, and so may end with different bits.
    Order {
        /// The rank that differs from rank 0.
        rank: u32,
        /// The output block.
        block: u32,
    },
    /// No step can proceed.
    Deadlock {
        /// The first lane that is stuck.
        at: Place,
        /// Number of stuck lanes.
        stuck: usize,
        /// The credits of the run.
        credits: Credits,
        /// The schedule of the run.
        schedule: Schedule,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatched { rank } => write!(f, "plan {rank} does not belong to this set"),
            Self::Index { at, what } => write!(f, "{at}: {what} out of range"),
            Self::WritesInput { at } => write!(f, "{at}: writes the input"),
            Self::Operands { at } => write!(f, "{at}: operands overlap"),
            Self::SharedChannel { at, other_lane } => {
                write!(f, "{at}: the channel already belongs to lane {other_lane}")
            }
            Self::Unmatched { from, to, index, sent, received } => write!(
                f,
                "channel {index} from rank {from} to rank {to}: {sent} messages sent, {received} received"
            ),
            Self::Lengths { at, sender } => write!(f, "{at}: lengths differ from those of {sender}"),
            Self::Stage { rank, what } => write!(f, "stages of rank {rank}: wrong {what}"),
            Self::StageLane { at, other_lane } => {
                write!(f, "{at}: the stages already belong to lane {other_lane}")
            }
            Self::NotAwaited { at, member } => {
                write!(f, "{at}: member {member} has not been awaited in this round")
            }
            Self::NotAWindow { at, member } => {
                write!(f, "{at}: this buffer of member {member} is not a window")
            }
            Self::Outlived { at, owner } => {
                write!(f, "{at}: may still use a buffer of rank {owner} after that rank has finished")
            }
            Self::Unpublished { at, member } => {
                write!(f, "{at}: reads data that member {member} does not publish in this round")
            }
            Self::Early { rank, missing } => {
                write!(f, "rank {rank} can finish before rank {missing} has called")
            }
            Self::Hazard { writer, other, block } => {
                write!(f, "{writer} may write {block} while {other} uses it")
            }
            Self::Undefined { at } => write!(f, "{at}: reads a block that nobody has written"),
            Self::Wrong { rank, block, contributions, expected } => write!(
                f,
                "rank {rank} output block {block} is wrong: {contributions} contributions, not the right {expected}"
            ),
            Self::Touched { rank, block } => write!(f, "rank {rank} output block {block} must be left alone"),
            Self::Order { rank, block } => {
                write!(f, "rank {rank} output block {block} is reduced in another order than on rank 0")
            }
            Self::Deadlock { at, stuck, credits, schedule } => {
                write!(f, "deadlock with {credits:?}, {schedule:?}: {at} and {} more lanes", stuck - 1)
            }
        }
    }
}

impl std::error::Error for Violation {}
