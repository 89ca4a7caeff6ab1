//! Ranks that an operation waits for.

use kolo_collectives::plan::Action;

use super::super::links::Links;
use super::Operation;
use super::instance::Phase;

impl Operation {
    /// Ranks that a message is outstanding from or to, or that have not come as far on the stage as is waited for.
    pub(crate) fn waiting_for(&self, links: &Links) -> Vec<u32> {
        let Some(binding) = &self.binding else { return Vec::new() };
        let mut peers = self.late_on_stage(links);
        for instance in self.instances.iter().filter(|i| i.phase == Phase::Running) {
            for (lane, steps) in instance.lanes.iter().zip(&binding.plan.lanes) {
                let at = lane.cursor as usize;
                if lane.receiving {
                    peers.extend(steps.get(at).and_then(|step| source(&step.action)));
                }
                // The latest posted sends are the likeliest to be stuck; naming all would name everybody.
                let sends = steps[..at].iter().rev().filter_map(|step| destination(&step.action));
                peers.extend(sends.take(lane.sends_pending as usize));
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Ranks that have not come as far on the stage as is waited for.
    pub(crate) fn late_on_stage(&self, links: &Links) -> Vec<u32> {
        let Some(stage) = links.stage() else { return Vec::new() };
        let running = self.instances.iter().filter(|instance| instance.phase == Phase::Running);
        let late = running.flat_map(|instance| {
            let late = |awaited| stage.waited_for(self.area(instance.segment), awaited);
            instance.awaited.map_or_else(Vec::new, late)
        });
        late.filter_map(|member| stage.members().get(member).copied()).collect()
    }
}

/// The rank that a step receives from.
pub(super) fn source(action: &Action) -> Option<u32> {
    match action {
        Action::Recv { from, .. } | Action::RecvReduce { from, .. } | Action::WaitSignal { from } => {
            Some(from.peer)
        }
        _ => None,
    }
}

/// The rank that a step sends to.
fn destination(action: &Action) -> Option<u32> {
    match action {
        Action::Send { to, .. } | Action::Signal { to } => Some(to.peer),
        _ => None,
    }
}
