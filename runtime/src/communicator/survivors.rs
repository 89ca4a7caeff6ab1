//! Makes a new communicator of the survivors of one.

use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::connect::{Making, WORLD};
use super::growth::making;
use super::renumbering::renumbered;
use super::shared::{Shared, World};
use crate::control::{GroupId, RegroupSpec};
use crate::error::{Error, Result};

/// Origin of the members of a communicator that was made from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lineage {
    /// Number of changes of the group.
    pub(crate) epoch: u64,
    /// Each member's rank in the previous communicator; [`NEWCOMER`] for a newcomer.
    pub(crate) ranks_before: Vec<u32>,
    pub(crate) group: GroupId,
    /// Each member's slot, in ascending order: its rank in the group's first communicator, or the slot of the rank that
    /// it replaces.
    pub(crate) slots: Vec<u32>,
    /// Greatest number of slots so far.
    pub(crate) slot_count: u32,
}

impl Lineage {
    /// Returns the lineage of members that come together again: their ranks in this communicator, and their slots.
    pub(super) fn after(shared: &Shared, ranks_before: Vec<u32>, slots: Vec<u32>) -> Self {
        let highest = slots.iter().map(|slot| slot + 1).max().unwrap_or_default();
        Self {
            epoch: shared.world.epoch() + 1,
            ranks_before,
            group: shared.group_id(),
            slots,
            slot_count: shared.slot_count().max(highest),
        }
    }
}

/// The launcher's settings for a group whose members come and go. Each process has its own, and all later communicators
/// inherit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elastic {
    /// The least and the greatest number of ranks: `KOLO_ELASTIC`, such as `2:4`.
    pub(crate) bounds: Option<(u32, u32)>,
    /// File in which this rank keeps an invitation for newcomers, perhaps shared with other ranks: `KOLO_INVITE`.
    pub(crate) invite: Option<PathBuf>,
}

impl Elastic {
    /// # Errors
    /// [`Error::Configuration`] if a variable is not understood.
    pub(crate) fn from_lookup(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name| environment(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let bounds = |text: String| {
            let (least, most) = text.split_once(':').unwrap_or((&text, "0"));
            let bounds = least.parse().ok().zip(most.parse().ok());
            let bounds = bounds.filter(|(least, most)| *least > 0 && (*most == 0 || least <= most));
            let remedy = "Set it to the minimum and maximum number of ranks, such as 2:4, as kolo run \
                          --elastic does";
            bounds.ok_or_else(|| {
                Error::configuration("KOLO_ELASTIC", format!("'{text}' is not a pair of numbers"), remedy)
            })
        };
        let invite = set("KOLO_INVITE").map(PathBuf::from);
        Ok(Self { bounds: set("KOLO_ELASTIC").map(bounds).transpose()?, invite })
    }
}

pub use crate::error::NEWCOMER;

impl Shared {
    /// Returns the name of the group, which stays the same when its members change.
    pub(crate) fn group_id(&self) -> GroupId {
        match self.world.lineage() {
            Some(lineage) if self.group.id == WORLD => lineage.group,
            _ => self.world.control.name_group(self.group.id),
        }
    }

    /// Returns these members' slots.
    pub(super) fn slots_of(&self, ranks: &[u32]) -> Vec<u32> {
        let slots = self.slots();
        ranks.iter().map(|rank| slots[*rank as usize]).collect()
    }

    /// Returns each member's slot.
    pub(crate) fn slots(&self) -> Vec<u32> {
        match self.world.lineage() {
            Some(lineage) if self.group.id == WORLD => lineage.slots.clone(),
            _ => (0..self.group.size).collect(),
        }
    }

    /// Returns the greatest number of slots so far.
    pub(crate) fn slot_count(&self) -> u32 {
        match self.world.lineage() {
            Some(lineage) if self.group.id == WORLD => lineage.slot_count,
            _ => self.group.size,
        }
    }

    /// Returns these members' ranks in the control plane.
    pub(super) fn world_ranks(&self, ranks: &[u32]) -> Vec<u32> {
        ranks.iter().map(|rank| self.group.members[*rank as usize]).collect()
    }
}

/// Makes a control plane of these members (ranks of the communicator), and returns what is needed to make the
/// communicator on it. Its errors name ranks of this communicator.
pub(crate) fn regroup(
    shared: &Shared,
    ranks_before: &[u32],
    regroup_id: [u8; 32],
    deadline: Instant,
) -> Result<Making> {
    let world_ranks = shared.world_ranks(ranks_before);
    let control = &shared.world.control;
    let own = world_ranks.iter().position(|rank| *rank == control.rank()).unwrap_or_default();
    let next = control.regroup(RegroupSpec {
        ranks: &world_ranks,
        place: own as u32,
        world_size: world_ranks.len() as u32,
        at: world_ranks.first().and_then(|first| control.member_address(*first)),
        regroup_id,
        later: shared.membership.later(),
        silent_after: shared.config.silent_after,
        deadline,
        alarm: None,
    });
    let next = next.map_err(|error| renumbered(error, shared.group.rank, ranks_before))?;
    let lineage = Lineage::after(shared, ranks_before.to_vec(), shared.slots_of(ranks_before));
    // The measurements still hold, and measuring again would take longer than all the rest.
    let network = shared.world.network_of(&world_ranks);
    // A rank keeps the processor to which it returns.
    let processor = shared.world.processor.clone();
    shared.note_relayed();
    let relayed = shared.world.relayed_of(&world_ranks).into_iter().collect();
    let elastic = shared.world.elastic.clone();
    let world = World::changed(next, lineage, elastic, processor, network, relayed);
    Ok(making(world, shared.config.clone(), deadline))
}
