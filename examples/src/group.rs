//! Data-parallel training's needs of communication; Kolo's communicators have it.

use kolo::{Communicator, ReduceOp, Work};

use crate::Result;

/// The ranks that train together. All ranks make the same calls in the same order.
pub trait Group {
    /// A sum under way.
    type Pending;

    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Starts to sum the ranks' values element by element, and returns at once.
    ///
    /// # Errors
    /// As the communication has it.
    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Self::Pending>;

    /// Waits for a sum. Every rank gets the same bits.
    ///
    /// # Errors
    /// As the communication has it.
    fn wait(&self, pending: Self::Pending) -> Result<Vec<f32>>;

    /// Gives all ranks the values of rank `root`.
    ///
    /// # Errors
    /// As the communication has it.
    fn broadcast(&self, values: &mut [f32], root: u32) -> Result<()>;
}

/// One rank, which has nobody to talk to: what others are to agree with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Group for Alone {
    type Pending = Vec<f32>;

    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn wait(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn broadcast(&self, _values: &mut [f32], _root: u32) -> Result<()> {
        Ok(())
    }
}

impl Group for Communicator {
    type Pending = Work<Vec<f32>>;

    fn rank(&self) -> u32 {
        self.rank()
    }

    fn world_size(&self) -> u32 {
        self.world_size()
    }

    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Work<Vec<f32>>> {
        Ok(self.all_reduce_start(values, ReduceOp::Sum)?)
    }

    fn wait(&self, pending: Work<Vec<f32>>) -> Result<Vec<f32>> {
        Ok(pending.wait()?)
    }

    fn broadcast(&self, values: &mut [f32], root: u32) -> Result<()> {
        Ok(self.broadcast(values, root)?)
    }
}
