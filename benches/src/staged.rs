//! All-reduce of private buffers through shared staging, as a short program without tuning would do it.
//!
//! Block by block, each rank copies its data into its part of the staging, reduces its slice of the block over the
//! parts of all ranks, and copies the whole reduced block out. A barrier follows the first two steps. A third barrier
//! is not needed, because blocks alternate between two halves of the staging: a rank that writes a half again has
//! passed a barrier of the block in between, and all ranks were done with that half before that barrier.

use std::error::Error;
use std::ptr;

use kolo::internal::reduce::{Kernel, kernel};
use kolo::{Communicator, DataType, ReduceOp};

use crate::shared::Shared;

/// Limit on the number of ranks.
const RANKS_MAX: usize = 64;

/// The staging of a job, and the kernel that adds.
#[derive(Debug)]
pub struct Staged {
    shared: Shared,
    kernel: Kernel,
    rank: usize,
    ranks: usize,
    block: usize,
}

impl Staged {
    /// Makes staging for blocks of `block_bytes`. This is a collective call of ranks on one host.
    ///
    /// # Errors
    /// If there are too many ranks, or the memory is not available.
    pub fn new(comm: &Communicator, block_bytes: usize) -> Result<Self, Box<dyn Error>> {
        let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
        if ranks > RANKS_MAX {
            return Err(format!("{ranks} ranks; staging is for at most {RANKS_MAX}").into());
        }
        // Two halves, each with a part for every rank and one for the result.
        let shared = Shared::new(comm, 2 * (ranks + 1) * block_bytes)?;
        Ok(Self {
            shared,
            kernel: kernel(DataType::F32, ReduceOp::Sum)?,
            rank,
            ranks,
            block: block_bytes / size_of::<f32>(),
        })
    }

    /// Sums `data` over all ranks, in place. This is a collective call; all ranks pass the same length.
    pub fn all_reduce(&self, data: &mut [f32]) {
        for (turn, piece) in data.chunks_mut(self.block).enumerate() {
            let (half, len) = (turn % 2, piece.len());
            let (from, to) = (len * self.rank / self.ranks, len * (self.rank + 1) / self.ranks);
            let mut sources = [ptr::null(); RANKS_MAX];
            for (rank, source) in sources[..self.ranks].iter_mut().enumerate() {
                *source = self.part(rank, half).wrapping_add(from).cast::<u8>().cast_const();
            }
            let result = self.part(self.ranks, half);
            // SAFETY: all parts hold a block, which `piece` does not exceed, and are memory of their own. No rank
            // writes memory that another one reads, because of the barriers and the two halves (see the module).
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
