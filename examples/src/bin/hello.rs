//! The smallest program: join, sum the ranks, and print how the ranks reach each other.
//!
//! ```text
//! hello --ranks 4
//! kolo run -n 4 -- hello
//! ```

use std::process::ExitCode;

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

fn main() -> ExitCode {
    cluster::main("Sums the ranks, and says how they reach each other", hello)
}

/// The work of each rank.
fn hello(ranks: &Communicator) -> Result<()> {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    let mut sum = [rank];
    ranks.all_reduce(&mut sum, ReduceOp::Sum)?;
    println!("rank {rank} of {world_size}: the sum of all ranks is {}", sum[0]);
    ranks.barrier()?;
    if rank == 0 {
        println!("{}", ranks.summary().trim_end());
    }
    Ok(())
}
