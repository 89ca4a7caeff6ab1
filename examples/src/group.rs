//! The communication that data-parallel training needs, as a trait that Kolo's communicators implement.

use kolo::{Communicator, ReduceOp, Work};

use crate::Result;

/// The ranks that train together. All ranks make the same calls in the same order.
pub trait Group {
    /// A sum in progress.
    type Pending;

    /// Returns this rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks.
    fn world_size(&self) -> u32;

    /// Starts to sum the ranks' values element by element, and returns at once.
    ///
    /// # Errors
    /// The error of the communication.
    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Self::Pending>;

    /// Waits for a sum. Every rank gets the same bits.
    ///
    /// # Errors
    /// The error of the communication.
    fn wait(&self, pending: Self::Pending) -> Result<Vec<f32>>;

    /// Copies the values of rank `root` to all ranks.
    ///
    /// # Errors
    /// The error of the communication.
    fn broadcast(&self, values: &mut [f32], root: u32) -> Result<()>;
}

/// A single rank without communication, as a reference for the others.
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
