//! A scope: asynchronous all-reduces on borrowed buffers, which are all done when the scope ends.
//!
//! ```text
//! scope --ranks 4
//! kolo run -n 4 -- scope
//! ```

use std::process::ExitCode;

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

/// Elements of each layer of a small model.
const LAYERS: [usize; 3] = [100_000, 10_000, 10];

fn main() -> ExitCode {
    cluster::main("Sums the layers of a model asynchronously, in place", scope)
}

/// The work of each rank.
fn scope(ranks: &Communicator) -> Result<()> {
    let mut layers = LAYERS.map(|elements| vec![1.0_f32; elements]);
    // The layers are borrowed, not moved: until the scope ends, the compiler forbids all other uses of them.
    ranks.scope(|scope| {
        // The last layer comes first, as in a backward pass.
        layers.iter_mut().rev().try_for_each(|layer| scope.all_reduce(layer, ReduceOp::Sum))
    })?;
    let expected = ranks.world_size() as f32;
    if layers.iter().flatten().any(|sum| *sum != expected) {
        return Err(format!("rank {}: a sum is not {expected}", ranks.rank()).into());
    }
    println!("rank {}: {} layers summed in one scope", ranks.rank(), layers.len());
    Ok(())
}
