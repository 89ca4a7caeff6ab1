//! Send and receive: a token that goes once round the ring, and an all-reduce made of sends and receives alone.
//!
//! ```text
//! ring --ranks 4
//! kolo run -n 4 -- ring
//! ```

use std::ops::Range;
use std::process::ExitCode;

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

fn main() -> ExitCode {
    cluster::main("Passes a token around the ring, and all-reduces with send and receive alone", ring)
}

/// The work of each rank.
fn ring(ranks: &Communicator) -> Result<()> {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    println!("rank {rank}: the token came with {}", pass_token(ranks)?);

    // The values are whole numbers, so the order of additions does not matter.
    let mut own: Vec<f32> = (0..1000).map(|i| (i * (rank + 1)) as f32).collect();
    let mut expected = own.clone();
    ring_all_reduce(ranks, &mut own)?;
    ranks.all_reduce(&mut expected, ReduceOp::Sum)?;
    if own != expected {
        return Err(format!("rank {rank}: the ring's sums differ from all_reduce's").into());
    }
    println!("rank {rank}: {} sums over {world_size} ranks agree with all_reduce", own.len());
    Ok(())
}

/// Rank 0 sends 1 to its right; each rank adds 1 and passes the token on, until rank 0 has it back.
fn pass_token(ranks: &Communicator) -> Result<u32> {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    let (left, right) = ((rank + world_size - 1) % world_size, (rank + 1) % world_size);
    let mut token = [1_u32];
    if rank == 0 && world_size > 1 {
        ranks.send(&token, right)?;
        ranks.recv(&mut token, left)?;
    } else if world_size > 1 {
        ranks.recv(&mut token, left)?;
        ranks.send(&[token[0] + 1], right)?;
    }
    Ok(token[0])
}

/// The classic ring all-reduce: in `world_size - 1` steps each rank gets the sum of one block, and in as many more
/// steps all ranks get all blocks.
fn ring_all_reduce(ranks: &Communicator, values: &mut [f32]) -> Result<()> {
    let (rank, n) = (ranks.rank() as usize, ranks.world_size() as usize);
    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let len = values.len();
    // The block of the rank that is `steps` places to the left of `from`, as blocks travel right.
    let block = |from: usize, steps: usize| -> Range<usize> {
        let index = (from + n - steps % n) % n;
        len * index / n..len * (index + 1) / n
    };
    let mut received = vec![0.0; len.div_ceil(n)];
    for step in 0..2 * (n - 1) {
        let (out, into) = (block(rank, step), block(left, step));
        let received = &mut received[..into.len()];
        ranks.send_recv(&values[out], right as u32, received, left as u32)?;
        for (value, received) in values[into].iter_mut().zip(received) {
            *value = if step < n - 1 { *value + *received } else { *received };
        }
    }
    Ok(())
}
