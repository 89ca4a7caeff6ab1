//! Failure: the last rank leaves early, and the others learn which rank it was, why it left, and that the job is
//! over.
//!
//! ```text
//! failure --ranks 4
//! kolo run -n 4 -- failure
//! ```

use std::process::ExitCode;

use kolo::{Communicator, Error, LossCause, ReduceOp};
use kolo_examples::{Result, cluster};

fn main() -> ExitCode {
    cluster::main("Lets the last rank leave early, and shows the errors of the others", failure)
}

/// The work of each rank.
fn failure(ranks: &Communicator) -> Result<()> {
    let rank = ranks.rank();
    // An error of usage: no data was sent, so this rank may go on.
    let error = ranks.broadcast(&mut [0_u8], ranks.world_size()).expect_err("the root is out of range");
    println!("rank {rank}: fatal: {}: {error}", error.is_fatal());

    if rank + 1 == ranks.world_size() {
        return Ok(());
    }
    let Err(error) = ranks.all_reduce(&mut [1.0_f32], ReduceOp::Sum) else {
        return Err("an all-reduce without the last rank cannot succeed".into());
    };
    println!("rank {rank}: fatal: {}: {error}", error.is_fatal());
    // A supervisor decides by the fields of the error, not by its text.
    match error {
        Error::PeerLost { peer, cause: LossCause::Left, .. } if peer + 1 == ranks.world_size() => Ok(()),
        other => Err(other.into()),
    }
}
