//! Cache effects on the bytes that a step moves.
//!
//! If the caches do not hold all buffers of a call, a byte is slow when its segment touches it for the first time;
//! after that it is as fast as the data of the segments in flight allow. Segments use the same scratch and stages one
//! after another.

use std::collections::HashSet;

use crate::caches::Caches;
use crate::layout::Layout;
use crate::memory::Memory as Caller;
use crate::model::Model;
use crate::plan::{Action, Blocks, Plan, Space};

use super::Cluster;

/// Rates for bytes that a segment touches for the first time, and for all others.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    first: Model,
    again: Model,
    /// Share of first-time bytes of each step, by rank and lane; empty if all rates are the same.
    shares: Vec<Vec<Vec<f64>>>,
}

impl Memory {
    pub(super) fn new(plans: &[Plan], layouts: &[Layout], cluster: &Cluster) -> Self {
        let model = cluster.model;
        if model.caches == Caches::ENDLESS {
            return Self { first: model, again: model, shares: Vec::new() };
        }
        let (mut whole, mut in_flight) = (0.0, 0.0);
        let mut shares = Vec::with_capacity(plans.len());
        for (rank, (plan, layout)) in plans.iter().zip(layouts).enumerate() {
            let (own, touched) = first_shares(plan);
            shares.push(own);
            // All hosts have the same number of ranks.
            if cluster.host(rank as u32) == 0 {
                let segments = layout.segments().max(1);
                let window = cluster.window.clamp(1, segments) as f64;
                let elements =
                    |segment| -> usize { touched.iter().map(|blocks| layout.len(*blocks, segment)).sum() };
                let user = (0..segments).map(elements).sum::<usize>() as f64;
                let stage = plan.stage.as_ref().map_or(0, |stage| stage.longest(layout).iter().sum());
                let scratch = (layout.scratch_elements() + stage) as f64 * window;
                whole += (user + scratch) * cluster.element_bytes as f64;
                in_flight += (user * window / segments as f64 + scratch) * cluster.element_bytes as f64;
            }
        }
        Self { first: model.with_footprint(whole), again: model.with_footprint(in_flight), shares }
    }

    /// Returns the mean seconds per byte of a step, given the rate of each model.
    pub(super) fn seconds_per_byte(
        &self,
        (rank, lane, step): (usize, u16, u16),
        rate: impl Fn(&Model) -> f64,
    ) -> f64 {
        let first = match self.shares.get(rank) {
            Some(lanes) => lanes[usize::from(lane)][usize::from(step)],
            None => 1.0,
        };
        first / rate(&self.first) + (1.0 - first) / rate(&self.again)
    }
}

/// Returns the share of each step's blocks in the callers' buffers that no earlier step has touched, if lanes advance
/// in step; and all these blocks, each once.
fn first_shares(plan: &Plan) -> (Vec<Vec<f64>>, Vec<Blocks>) {
    let mut been = HashSet::new();
    let mut touched = Vec::new();
    let mut shares: Vec<Vec<f64>> = plan.lanes.iter().map(|lane| vec![0.0; lane.len()]).collect();
    for number in 0..plan.lanes.iter().map(|lane| lane.len()).max().unwrap_or(0) {
        for (lane, shares) in plan.lanes.iter().zip(&mut shares) {
            let Some(step) = lane.get(number) else { continue };
            let ends = ends(&step.action);
            let mut share = 0.0;
            for blocks in ends.iter().flatten().filter(|blocks| is_users(blocks.space)) {
                for first in blocks.first..blocks.first + blocks.count {
                    if been.insert((blocks.space, first)) {
                        touched.push(Blocks { first, count: 1, ..*blocks });
                        share += 1.0 / f64::from(blocks.count);
                    }
                }
            }
            shares[number] = share / ends.iter().flatten().count().max(1) as f64;
        }
    }
    if plan.stage.as_ref().is_some_and(|stage| !stage.windows.is_empty()) {
        touched = all_blocks(plan);
    }
    (shares, touched)
}

/// Returns all blocks of the caller's buffers. Where ranks reach into each other's buffers, some rank touches every
/// byte.
fn all_blocks(plan: &Plan) -> Vec<Blocks> {
    let memory = Caller::of(plan);
    [(Space::Input, memory.input_blocks()), (Space::Output, memory.output_blocks())]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(space, count)| Blocks::range(space, 0, count))
        .collect()
}

/// Returns whether the space is a buffer of a caller.
const fn is_users(space: Space) -> bool {
    matches!(space, Space::Input | Space::Output | Space::Window(_))
}

/// Returns the blocks that a step reads or writes, each once.
fn ends(action: &Action) -> [Option<Blocks>; 2] {
    match *action {
        Action::Send { src, .. } => [Some(src), None],
        Action::Recv { dst, .. } => [Some(dst), None],
        Action::Copy { src, dst } => [Some(src), Some(dst)],
        Action::RecvReduce { with, dst, .. } => [Some(with), (dst != with).then_some(dst)],
        Action::Reduce { a, b, .. } => [Some(a), Some(b)],
        Action::Publish { src, .. } => src,
        Action::Fold { own, dst, .. } => [own.filter(|own| *own != dst), Some(dst)],
        Action::Spread { first, count, at, .. } => {
            [Some(Blocks::range(Space::Input, first, count)), Some(Blocks::range(Space::Output, at, count))]
        }
        Action::Signal { .. } | Action::WaitSignal { .. } | Action::Await { .. } => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Collective;
    use crate::{Algorithm, Task};

    #[test]
    fn what_was_reduced_or_sent_is_near_when_it_is_sent_or_received() {
        let task = Task::new(Collective::AllReduce, 2).in_place();
        let (shares, touched) = first_shares(&Algorithm::Ring.plan(&task, 0));
        assert_eq!((shares, touched.len()), (vec![vec![1.0, 1.0, 0.0, 0.0]], 2));
        // Scratch is always in the caches.
        let (shares, _) = first_shares(&Algorithm::RecursiveDoubling.plan(&task, 0));
        assert_eq!(shares, [[0.5, 0.0, 0.0]]);
    }
}
