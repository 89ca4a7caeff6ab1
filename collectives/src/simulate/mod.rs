//! The simulator: predicts the time of plans on a described cluster, without a socket.
//!
//! It is a discrete-event simulation in the spirit of LogGP (Alexandrov et al., 1995) and LogGOPSim (Hoefler et al.,
//! 2010). The model:
//!
//! - Each rank has one processor. Posting and taking a message cost overhead on it, and reductions and copies cost time
//!   per byte; the lanes of a rank share it, first come first served. If a host has more ranks than processors, they
//!   take turns (`processor.rs`).
//! - The caches determine the speed of copies, reductions and messages inside a host (`memory.rs`).
//! - Inside a host the processors at both ends also move the bytes; the receiver starts with the first of them.
//! - Each rank has a full-duplex link. A message occupies the sender's link and, one latency later, the receiver's. It
//!   cuts through: it has arrived when its last byte has passed both.
//! - Messages between hosts also pass the network interface of both hosts; messages within a host pass its memory bus
//!   twice. Interfaces and buses have their own bandwidth, shared by the ranks of the host. Hosts may have interfaces
//!   of different rates, and pairs of hosts slower links.
//! - The processor of a rank moves the bytes that it publishes in a stage, or takes from one, once, over the memory
//!   bus. A flag becomes visible one latency later, and checking it costs overhead. Stages hold two rounds. The same
//!   holds for bytes in other ranks' buffers that are windows.
//! - Sends are eager. A fence waits until the sender's link has read the message.
//! - Up to `window` segments are in flight on each rank, each with sub-channels of its own. If several calls follow
//!   each other, a rank that is done with one goes on to the next.
//!
//! A simulation takes a few events per message and segment, at some millions of events per second. An algorithm with
//! log p rounds is quick at any size. Those with p rounds have p² messages: beyond a few hundred ranks, use
//! [`simulate_symmetric`], which runs one rank of a plan in which all ranks do the same relative to their neighbours.

mod cluster;
mod engine;
mod memory;
mod processor;
mod report;
mod stages;
mod state;
mod work;

use serde::Serialize;

use crate::check::{Violation, stage::Groups, wiring::Wiring};
use crate::layout::{Layout, Shape};
use crate::plan::{Plan, StepRef};

pub use cluster::{Cluster, Killed, Straggler};

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Time at which the last rank was done, among those that finished.
    pub seconds: f64,
    /// Time at which each rank was done; `None` for those that never were.
    pub finished: Vec<Option<f64>>,
    /// The chain of steps that determined `seconds`, first to last.
    pub critical_path: Vec<CriticalStep>,
    /// Messages and bytes between ranks of a host.
    pub intra: Traffic,
    /// Messages and bytes between hosts.
    pub inter: Traffic,
    /// The most peers that any rank communicates with.
    pub connections: u32,
    /// The most bytes of scratch on any rank, over all segments in flight together.
    pub scratch_bytes: usize,
    /// Ranks that never finished, and what they wait for. Empty unless a rank is killed.
    pub stuck: Vec<Stuck>,
}

/// The traffic over one class of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Messages, signals included.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

/// A step on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CriticalStep {
    /// The rank.
    pub rank: u32,
    /// The segment.
    pub segment: usize,
    /// Lane and index of the step.
    pub step: StepRef,
    /// Time at which the step was done.
    pub at_seconds: f64,
}

/// A lane that waits forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The rank.
    pub rank: u32,
    /// The segment.
    pub segment: usize,
    /// Its next step.
    pub step: StepRef,
    /// The rank that it waits for, if any.
    pub peer: Option<u32>,
}

/// Simulates the plans of all ranks; rank r binds its plan to `shapes[r]`.
///
/// # Errors
/// If the plans do not fit together; the [checker](crate::check) reports more.
///
/// # Panics
/// If the numbers of shapes, of plans and of the cluster's ranks differ.
pub fn simulate(plans: &[Plan], shapes: &[Shape], cluster: &Cluster) -> Result<Timing, Violation> {
    assert_eq!(plans.len(), shapes.len(), "a shape per rank");
    assert_eq!(
        plans.len(),
        cluster.world_size() as usize,
        "the cluster has as many ranks as there are plans"
    );
    let wiring = Wiring::new(plans)?;
    let connections = wiring.connections(plans);
    let layouts = bind(plans, shapes, cluster);
    let channels = |number: usize, _: &crate::plan::Action| wiring.of_step(number);
    let groups = Groups::new(plans)?;
    let mut timing = engine::Engine::new(plans, &layouts, cluster, wiring.len(), &channels, groups).run();
    timing.connections = connections;
    Ok(timing)
}

/// The way in which all ranks of an algorithm do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// Rank r does to rank r + d what rank 0 does to rank d, as on a ring. A message that rank 0 receives from -d arrives
    /// when its own message to d does.
    Circle,
    /// Rank r does to rank r ^ d what rank 0 does to rank d. A message that rank 0 receives from d arrives when its own
    /// message to d does.
    Pairs,
}

/// Simulates one rank of an algorithm with such a symmetry (ring, circulant, dissemination; direct all-to-all,
/// all-gather). All ranks then advance in step. There is one rank per host, so nothing is shared; stragglers, deaths and
/// differences between hosts would break the symmetry and are ignored. Block lengths that differ by one element between
/// ranks are taken from rank 0. Traffic is that of the whole world.
///
/// # Panics
/// If the plan has stages, or is not that of rank 0.
#[must_use]
pub fn simulate_symmetric(plan: &Plan, shape: &Shape, cluster: &Cluster, symmetry: Symmetry) -> Timing {
    assert!(plan.rank == 0, "rank 0 stands for all");
    let p = plan.world_size;
    let mut distances: Vec<(u32, u16)> = Vec::new();
    for (_, action) in crate::check::wiring::steps(plan) {
        if let Some(to) = action.sends_to() {
            distances.push((to.peer, to.index));
        }
    }
    distances.sort_unstable();
    distances.dedup();
    let channels = |_: usize, action: &crate::plan::Action| {
        let key = match (action.sends_to(), action.receives_from()) {
            (Some(to), _) => (to.peer, to.index),
            (None, Some(from)) if symmetry == Symmetry::Circle => (p - from.peer, from.index),
            (None, Some(from)) => (from.peer, from.index),
            (None, None) => return None,
        };
        distances.binary_search(&key).ok()
    };
    let alone = Cluster {
        hosts: 1,
        ranks_per_host: 1,
        rates: Vec::new(),
        pairs: Vec::new(),
        stragglers: Vec::new(),
        killed: None,
        ..cluster.clone()
    };
    let plans = std::slice::from_ref(plan);
    let layouts = bind(plans, std::slice::from_ref(shape), cluster);
    assert!(plan.stage.is_none(), "{} shares memory within hosts: simulate all ranks", plan.algorithm);
    let groups = Groups::default();
    let mut timing = engine::Engine::new(plans, &layouts, &alone, distances.len(), &channels, groups).run();
    timing.inter =
        Traffic { messages: timing.inter.messages * u64::from(p), bytes: timing.inter.bytes * u64::from(p) };
    timing.finished = vec![timing.finished[0]; p as usize];
    let senders = distances.iter().map(|(d, _)| if symmetry == Symmetry::Circle { p - d } else { *d });
    let mut peers: Vec<u32> = distances.iter().map(|(d, _)| *d).chain(senders).collect();
    peers.sort_unstable();
    peers.dedup();
    timing.connections = peers.len() as u32;
    timing
}

fn bind(plans: &[Plan], shapes: &[Shape], cluster: &Cluster) -> Vec<Layout> {
    let elements = (cluster.segment_bytes / cluster.element_bytes.max(1)).max(1);
    plans.iter().zip(shapes).map(|(plan, shape)| Layout::new(plan, shape.clone(), elements)).collect()
}
