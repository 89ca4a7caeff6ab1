//! State of the event loop: ranks, hosts, segments in flight, events.

use std::cmp::Ordering;

use super::Cluster;
use crate::layout::Layout;
use crate::plan::{Plan, Step, StepRef};

/// The end of a step, and its cause: the record of the step before it on the critical path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) rank: u32,
    pub(super) segment: u32,
    pub(super) step: StepRef,
    pub(super) at: f64,
    pub(super) cause: Option<u32>,
}

/// One step with its cost, the same for all segments except perhaps the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compiled {
    pub(super) step: Step,
    pub(super) channel: u32,
    /// For sends, the peer, and whether it is on another host.
    pub(super) peer: u32,
    pub(super) inter: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// Time at which the receiver may begin, and at which the last byte has arrived.
    pub(super) begins: f64,
    pub(super) arrived: f64,
    pub(super) record: u32,
}

/// A lane of a segment in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) next: u16,
    /// Time at which the last of its sends has been read.
    pub(super) read_out: f64,
    pub(super) last: Option<u32>,
    /// Time at which each step was done, if another lane may ask for it.
    pub(super) done: Vec<(f64, u32)>,
    pub(super) waiting_after: bool,
}

/// The place of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here {
    pub(super) rank: usize,
    pub(super) slot: u16,
    pub(super) lane: u16,
}

/// Begin and end of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Time from which the link of a sender may begin.
    pub(super) begin: f64,
    pub(super) end: f64,
}

/// A segment in flight on one rank.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) segment: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) unfinished: usize,
}

pub(super) struct Rank {
    pub(super) host: usize,
    pub(super) processor: usize,
    /// Position among the ranks of the processor.
    pub(super) place: usize,
    pub(super) link_out: f64,
    pub(super) link_in: f64,
    pub(super) instances: Vec<Instance>,
    /// Calls yet to begin, segments in progress, and segments of a call.
    pub(super) calls: usize,
    pub(super) under_way: usize,
    pub(super) segments: usize,
    pub(super) finished: f64,
    pub(super) last_record: Option<u32>,
    pub(super) dies: f64,
    pub(super) has_after: bool,
}

impl Rank {
    pub(super) fn new(
        rank: u32,
        plan: &Plan,
        layout: &Layout,
        cluster: &Cluster,
        processors_per_host: u32,
    ) -> Self {
        let (host, place) = (cluster.host(rank), cluster.place(rank));
        let death = cluster.killed.filter(|killed| killed.rank == rank);
        Self {
            host: host as usize,
            processor: (host * processors_per_host + place % processors_per_host) as usize,
            place: (place / processors_per_host) as usize,
            link_out: 0.0,
            link_in: 0.0,
            instances: Vec::new(),
            calls: cluster.calls.max(1),
            under_way: 0,
            segments: if plan.lanes.is_empty() { 0 } else { layout.segments() },
            finished: 0.0,
            last_record: None,
            dies: death.map_or(f64::INFINITY, |death| death.at_seconds),
            has_after: plan.lanes.iter().any(|lane| lane.iter().any(|step| step.after.is_some())),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) out: f64,
    pub(super) inward: f64,
    pub(super) memory: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A lane may be able to go on.
    Lane(Here),
    /// A processor that ranks share has finished its work.
    Turn {
        processor: u32,
    },
    Depart(Departure),
    Arrive(Arrival),
}

/// The first byte of a message leaves the sender's link. The message occupies shared resources of the host from now, not
/// from when it was posted, so that a message that waits for its link does not keep others from the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) rank: u32,
    pub(super) slot: u16,
    pub(super) step: StepRef,
    pub(super) bytes: f64,
    /// Time at which the sender's processor is done with the message.
    pub(super) sent: f64,
    pub(super) record: u32,
}

/// The first byte of a message reaches the receiver's side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) rank: u32,
    pub(super) slot: u16,
    pub(super) channel: u32,
    pub(super) bytes: f64,
    /// Whether the message comes from another host.
    pub(super) inter: bool,
    pub(super) link_seconds: f64,
    /// Time at which the last byte can be there.
    pub(super) left: f64,
    pub(super) record: u32,
}

/// An event with its time. Times are never NaN. Ties go by order of scheduling, so that runs repeat; turns come last,
/// since a rank that has a processor goes on while it has something to do.
pub(super) struct Timed {
    pub(super) at: f64,
    pub(super) order: u64,
    pub(super) event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.order.cmp(&other.order))
    }
}
