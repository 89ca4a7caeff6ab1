//! Threads: two threads of each rank communicate at the same time, each on a communicator of its own.
//!
//! ```text
//! threads --ranks 4
//! kolo run -n 4 -- threads
//! ```

use std::process::ExitCode;

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

const CALLS: u32 = 100;

fn main() -> ExitCode {
    cluster::main("Communicates from two threads of each rank", threads)
}

/// The work of each rank.
fn threads(ranks: &Communicator) -> Result<()> {
    // Calls on one communicator must come in the same order on all ranks, but the order of two threads is not known.
    // The second thread therefore gets a communicator of its own, with the same ranks.
    let second = ranks.split(Some(0), ranks.rank())?.ok_or("a rank with a color has a group")?;
    let (sums, products) = std::thread::scope(|scope| {
        let products = scope.spawn(|| reduce_often(&second, ReduceOp::Prod));
        let sums = reduce_often(ranks, ReduceOp::Sum);
        (sums, products.join().expect("the thread does not panic"))
    });
    println!("rank {}: {CALLS} sums of {}, {CALLS} products of {}", ranks.rank(), sums?, products?);
    Ok(())
}

fn reduce_often(ranks: &Communicator, op: ReduceOp) -> kolo::Result<u64> {
    let mut value = [0];
    for _ in 0..CALLS {
        value = [2];
        ranks.all_reduce(&mut value, op)?;
    }
    Ok(value[0])
}
