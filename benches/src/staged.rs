//! All-reduce of private buffers through shared staging, the plain way: what a short program does without tuning.
//!
//! Block by block, each rank copies its data into its part of the staging, reduces its slice of the block over the
//! parts of all ranks, and copies the whole reduced block out. A barrier follows the first two steps. Two halves of the
//! staging in turn do without a third: who writes a half again has passed a barrier of the block between, before which
//! everybody was done with that half.

use std::error::Error;
use std::ptr;

use kolo::internal::reduce::{Kernel, kernel};
use kolo::{Communicator, DataType, ReduceOp};

use crate::shared::Shared;

/// No job here has more ranks.
const RANKS_MAX: usize = 64;

/// The staging of a job, and how to add.
#[derive(Debug)]
pub struct Staged {
    shared: Shared,
    kernel: Kernel,
    rank: usize,
    ranks: usize,
    block: usize,
}

impl Staged {
    /// Staging for blocks of `block_bytes`. A collective call; all ranks are on one host.
    ///
    /// # Errors
    /// If there are too many ranks, or the memory is not to be had.
    pub fn new(comm: &Communicator, block_bytes: usize) -> Result<Self, Box<dyn Error>> {
        let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
        if ranks > RANKS_MAX {
            return Err(format!("{ranks} ranks; staging is for at most {RANKS_MAX}").into());
        }
        // Two halves of a part for each rank, and of the result.
        let shared = Shared::new(comm, 2 * (ranks + 1) * block_bytes)?;
        Ok(Self {
            shared,
            kernel: kernel(DataType::F32, ReduceOp::Sum)?,
            rank,
            ranks,
            block: block_bytes / size_of::<f32>(),
        })
    }

    /// Sums `data` over all ranks, in place. A collective call; all give the same length.
    pub fn all_reduce(&self, data: &mut [f32]) {
        for (turn, piece) in data.chunks_mut(self.block).enumerate() {
            let (half, len) = (turn % 2, piece.len());
            let (from, to) = (len * self.rank / self.ranks, len * (self.rank + 1) / self.ranks);
            let mut sources = [ptr::null(); RANKS_MAX];
            for (rank, source) in sources[..self.ranks].iter_mut().enumerate() {
                *source = self.part(rank, half).wrapping_add(from).cast::<u8>().cast_const();
            }
            let result = self.part(self.ranks, half);
            // SAFETY: all parts hold a block, which `piece` does not exceed, and are memory of their own. Nobody writes
            // what another one reads: the barriers, and the two halves (module).
            unsafe {
                ptr::copy_nonoverlapping(piece.as_ptr(), self.part(self.rank, half), len);
                self.shared.wait();
                self.kernel.combine_many(result.add(from).cast(), &sources[..self.ranks], to - from);
                self.shared.wait();
                ptr::copy_nonoverlapping(result, piece.as_mut_ptr(), len);
            }
        }
    }

    /// A half of a rank's part; the part after the last is the result's.
    fn part(&self, rank: usize, half: usize) -> *mut f32 {
        self.shared.base().cast::<f32>().wrapping_add((2 * rank + half) * self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_all_ranks_with_blocks_that_do_not_fit() {
        for ranks in [1, 2, 3] {
            kolo::Cluster::local(ranks, |comm| {
                let staged = Staged::new(&comm, 64).expect("staging");
                for len in [0, 1, 15, 16, 17, 100] {
                    let own = |rank: u32, at: usize| (rank as usize * 1000 + at) as f32;
                    let mut data: Vec<f32> = (0..len).map(|at| own(comm.rank(), at)).collect();
                    staged.all_reduce(&mut data);
                    let sums: Vec<f32> =
                        (0..len).map(|at| (0..ranks).map(|rank| own(rank, at)).sum()).collect();
                    assert_eq!(data, sums, "{ranks} ranks, {len} elements");
                }
            })
            .expect("a cluster of threads");
        }
    }
}
