//! What is left of a communicator makes a new one.

use std::sync::Arc;
use std::time::Instant;

use super::connect::{Making, WORLD};
use super::shared::{Shared, World};
use crate::error::Result;

/// Where the members of a communicator come from that was made by survivors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// How many times the group has changed.
    pub(crate) epoch: u64,
    /// Each member's rank in the communicator before.
    pub(crate) ranks_before: Vec<u32>,
}

/// A control plane of these members (ranks of the communicator), and what is needed to make the communicator on it.
pub(crate) fn reunite(
    shared: &Shared,
    ranks_before: Vec<u32>,
    tag: [u8; 32],
    deadline: Instant,
) -> Result<Making> {
    let world_ranks: Vec<u32> =
        ranks_before.iter().map(|rank| shared.group.members[*rank as usize]).collect();
    let control = shared.world.control.reunite(&world_ranks, tag, shared.config.silent_after, deadline)?;
    let (rank, members): (u32, Arc<[u32]>) = (control.rank(), (0..control.world_size()).collect());
    let lineage = Lineage { epoch: shared.world.epoch() + 1, ranks_before };
    // What was measured still holds; measuring again would take longer than all the rest.
    let network = shared.world.network_of(&world_ranks);
    // A rank keeps the processor that it comes back to.
    let processor = shared.world.processor.clone();
    let world = Arc::new(World::of_survivors(control, lineage, processor, network));
    Ok(Making { world, id: WORLD, members, rank, config: shared.config.clone(), deadline })
}
