//! Joining, and the ranks that take part.

use super::{Communicator, CommunicatorBuilder};
use crate::config::Config;
use crate::control::PeerInfo;
use crate::error::Result;

/// # Joining, and the ranks that take part
impl Communicator {
    /// Joins the other ranks as the environment says: `KOLO_*`; `RANK`, `MASTER_ADDR` and so on, as torchrun sets
    /// them; or the variables of Open MPI, MPICH, Cray PALS or Slurm. Blocks until all ranks have joined.
    ///
    /// # Errors
    /// [`crate::Error::Configuration`] or [`crate::Error::Join`], with the reason and a remedy.
    pub fn from_env() -> Result<Self> {
        Self::builder().connect()
    }

    /// Returns a builder, for joining with explicit settings.
    #[must_use]
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Returns the rank of this process (or thread).
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.group.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.shared.group.size
    }

    /// Returns this rank's number among the ranks of its host.
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        let host = self.shared.group.hosts[self.rank() as usize];
        self.shared.group.hosts[..self.rank() as usize].iter().filter(|h| **h == host).count() as u32
    }

    /// Returns the host index of each rank. Ranks with the same index share memory.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.shared.group.hosts
    }

    /// Returns process, host and version of each rank.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        let all = self.shared.world.control.peer_info();
        self.shared.group.members.iter().map(|rank| all[*rank as usize].clone()).collect()
    }

    /// Returns the settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }
}
