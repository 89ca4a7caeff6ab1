//! Measures the memory that all-reduce takes beside the caller's buffer:
//! `kolo run -n 4 -- staging_memory tcp [bytes ...]`.
//!
//! The figure is the peak resident memory of the process while it all-reduced, less the buffer and less the memory
//! resident before it joined. It consists of staging, rings, plans and threads of the runtime. Rings that two ranks
//! share count for both. The kernel's memory for sockets is not included. The greatest figure of all ranks is shown.

use std::error::Error;
use std::fs;

use kolo::config::parse_transports;
use kolo::{Communicator, Config, ReduceOp};
use kolo_benches::limit::{HEAD, Row, Unit};
use kolo_benches::status;

/// Limit on the memory of a rank, at any length.
const MEBIBYTES_MAX: f64 = 32.0;
const TURNS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let mut sizes: Vec<usize> = arguments.map(|bytes| bytes.parse()).collect::<Result<_, _>>()?;
    if sizes.is_empty() {
        sizes = vec![8, 32 << 10, 1 << 20, 32 << 20, 256 << 20];
    }
    let transports = parse_transports(&transport)?;
    let config = Config::from_env()?.with(|config| config.transports = transports);
    let before = status::kib("VmRSS:")? << 10;
    let comm = Communicator::builder().config(config).connect()?;
    let what = format!("memory beside the buffer: all_reduce, {transport}");
    if comm.rank() == 0 {
        println!("{HEAD}");
    }
    for bytes in sizes {
        let mut data = vec![1.0_f32; bytes / 4];
        forget_peak()?;
        for _ in 0..TURNS {
            data.fill(1.0);
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
        }
        let mut peak = [(status::kib("VmHWM:")? << 10).saturating_sub(before + bytes as u64)];
        comm.all_reduce(&mut peak, ReduceOp::Max)?;
        if comm.rank() == 0 {
            let row = Row {
                what: &what,
                ranks: comm.world_size(),
                bytes,
                unit: Unit::Mebibytes,
                possible: MEBIBYTES_MAX,
                kolo: peak[0] as f64 / f64::from(1 << 20),
                target: Some(1.0),
            };
            println!("{row}");
        }
    }
    Ok(())
}

/// Resets the peak of resident memory.
fn forget_peak() -> Result<(), Box<dyn Error>> {
    const RESET_PEAK: &str = "5";
    fs::write("/proc/self/clear_refs", RESET_PEAK)
        .map_err(|error| format!("/proc/self/clear_refs: {error}").into())
}
