//! Tuning: shows the algorithm that a call takes and the costs of the others, with and without settings; and the flight
//! recorder.
//!
//! ```text
//! explain --ranks 4
//! kolo run -n 4 -- explain
//! ```

use std::process::ExitCode;

use kolo::{Collective, Communicator, DataType, RawCall, ReduceOp};
use kolo_examples::{Result, cluster};

/// 4 MiB of `f32`.
const LEN: usize = 1 << 20;

fn main() -> ExitCode {
    cluster::main("Shows which algorithm an all-reduce takes, and how long calls took", explain)
}

/// The work of each rank.
fn explain(ranks: &Communicator) -> Result<()> {
    // The same ranks with other settings, as `KOLO_ALGO=all_reduce:ring` would set them for the whole job.
    let mut config = ranks.config().clone();
    config.algorithms = "all_reduce:ring".to_owned();
    let by_ring = ranks.duplicate(config)?;
    for (name, comm) in [("as chosen", ranks), ("by the ring", &by_ring)] {
        let mut data = vec![1.0_f32; LEN];
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if ranks.rank() == 0 {
            println!("{name}: {}", comm.explain(&call(&mut data))?);
            for record in comm.recent() {
                println!(
                    "  #{} {} took {:?}",
                    record.sequence,
                    record.summary,
                    record.took.unwrap_or_default()
                );
            }
        }
    }
    Ok(())
}

/// Describes an in-place all-reduce as a value.
fn call(data: &mut [f32]) -> RawCall {
    RawCall {
        collective: Collective::AllReduce,
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
        count: data.len(),
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: 0,
    }
}
