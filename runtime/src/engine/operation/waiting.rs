//! Finds the peers that an operation waits for.

use kolo_collectives::plan::Action;

use super::super::links::Links;
use super::Operation;
use super::instance::Phase;

impl Operation {
    /// Returns the peers of outstanding messages, and the ranks that have not published an awaited round on the stage.
    pub(crate) fn waiting_for(&self, links: &Links) -> Vec<u32> {
        let mut peers = self.late_on_stage(links);
        for instance in self.instances.iter().filter(|i| i.phase == Phase::Running) {
            for (lane, steps) in instance.lanes.iter().zip(&self.bound.binding.plan.lanes) {
                let at = lane.cursor as usize;
                if lane.receiving {
                    peers.extend(steps.get(at).and_then(|step| source(&step.action)));
                }
                // Sends to several ranks end in any order. Of those to one rank, the latest are the likeliest to be stuck.
                let sends = steps[..at].iter().rev().filter_map(|step| destination(&step.action));
                let sends = sends.filter(|peer| links.is_sending(*peer));
                peers.extend(sends.take(lane.sends_pending as usize));
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Returns the ranks that have not published an awaited round on the stage.
    pub(crate) fn late_on_stage(&self, links: &Links) -> Vec<u32> {
        let Some(stage) = links.stage() else { return Vec::new() };
        let running = self.instances.iter().filter(|instance| instance.phase == Phase::Running);
        let late = running.flat_map(|instance| {
            let late = |awaited| stage.waited_for(self.bound.area(instance.segment), awaited);
            instance.awaited.map_or_else(Vec::new, late)
        });
        late.filter_map(|member| stage.members().get(member).copied()).collect()
    }
}

/// Returns the rank from which a step receives.
pub(super) fn source(action: &Action) -> Option<u32> {
    match action {
        Action::Recv { from, .. } | Action::RecvReduce { from, .. } | Action::WaitSignal { from } => {
            Some(from.peer)
        }
        _ => None,
    }
}

/// Returns the rank to which a step sends.
fn destination(action: &Action) -> Option<u32> {
    match action {
        Action::Send { to, .. } | Action::Signal { to } => Some(to.peer),
        _ => None,
    }
}
