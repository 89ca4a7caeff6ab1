//! Where the members of a communicator that was made from another one come from, and their slots.

use serde::{Deserialize, Serialize};

use super::connect::WORLD;
use super::shared::Shared;
use crate::control::GroupId;

/// Origin of the members of a communicator that was made from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lineage {
    /// Number of changes of the group.
    pub(crate) epoch: u64,
    /// Each member's rank in the previous communicator; `None` for a newcomer.
    pub(crate) ranks_before: Vec<Option<u32>>,
    pub(crate) group: GroupId,
    /// Each member's slot, in ascending order: its rank in the group's first communicator, or the slot of the rank that
    /// it replaces.
    pub(crate) slots: Vec<u32>,
    /// Greatest number of slots so far.
    pub(crate) slot_count: u32,
}

impl Lineage {
    /// Returns the lineage of members that come together again: their ranks in this communicator, and their slots.
    pub(super) fn after(shared: &Shared, ranks_before: Vec<Option<u32>>, slots: Vec<u32>) -> Self {
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
