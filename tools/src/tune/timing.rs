//! Times collectives on all ranks together.

use std::time::Instant;

use kolo::{Collective, Communicator, ReduceOp};

use super::fit::median;
use crate::error::{CliError, Result};

/// Target duration of one round of a measurement: many wake-ups, but a short wait for the user.
const ROUND_SECONDS: f64 = 3e-3;

/// Limit on the calls in a round.
const CALLS_MAX: usize = 200;

/// Memory that calls read and write. All pages are present, and its values are no slower to sum than others.
#[derive(Debug)]
pub(crate) struct Buffers {
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Buffers {
    /// Allocates memory for calls of up to `bytes` bytes, as [`call`] counts them.
    pub(crate) fn new(bytes: usize) -> Self {
        let some = vec![1.0; bytes.div_ceil(4).max(64)];
        Self { input: some.clone(), output: some }
    }

    /// Returns the addresses of input and output of [`call`], to ask which way a call would take. `own` is the offset
    /// of a rank's block, in bytes.
    pub(crate) fn places(&self, collective: Collective, own: usize) -> (*const u8, *mut u8) {
        let output = self.output.as_ptr().cast::<u8>();
        let input = match collective {
            Collective::AllReduce | Collective::Broadcast => output,
            Collective::AllGather => output.wrapping_add(own),
            _ => self.input.as_ptr().cast(),
        };
        (input, output.cast_mut())
    }
}

/// Runs a collective of `bytes` bytes: of the vector, or of the blocks of all ranks together. It is in place except for
/// reduce_scatter and all_to_all. `number` counts calls: the roots of broadcasts go round the ranks backwards, so that
/// the next root is as far from the last one as possible, and waits for it.
pub(crate) fn call(
    comm: &Communicator,
    collective: Collective,
    bytes: usize,
    number: usize,
    buffers: &mut Buffers,
) -> Result<()> {
    let ranks = comm.world_size() as usize;
    let block = (bytes / 4 / ranks).max(1);
    let vector = (bytes / 4).max(1);
    let Buffers { input, output } = buffers;
    match collective {
        Collective::AllReduce => comm.all_reduce(&mut output[..vector], ReduceOp::Sum)?,
        Collective::AllGather => comm.all_gather_in_place(&mut output[..block * ranks])?,
        Collective::ReduceScatter => {
            comm.reduce_scatter(&input[..block * ranks], &mut output[..block], ReduceOp::Sum)?;
        }
        Collective::Broadcast => {
            let root = (ranks - number % ranks) % ranks;
            comm.broadcast(&mut output[..vector], root as u32)?;
        }
        Collective::AllToAll => comm.all_to_all(&input[..block * ranks], &mut output[..block * ranks])?,
        other => {
            return Err(CliError::failure(format!("{other} is not measured"), "Please report this as a bug"));
        }
    }
    Ok(())
}

/// Returns the seconds that each of several things takes, measured in turn over several rounds: the median of the
/// rounds, in each of which the slowest rank counts. The result is the same on all ranks. `run(i, n)` does thing i for
/// the n-th time; `control` serves for the agreement.
pub(crate) fn in_turn(
    control: &Communicator,
    things: usize,
    rounds: usize,
    mut run: impl FnMut(usize, usize) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut time = |thing: usize, calls: usize| -> Result<f64> {
        control.barrier()?;
        let began = Instant::now();
        for number in 0..calls {
            run(thing, number)?;
        }
        let own = began.elapsed().as_secs_f64() / calls as f64;
        let mut all = vec![0.0; control.world_size() as usize];
        control.all_gather(&[own], &mut all)?;
        Ok(all.into_iter().fold(0.0, f64::max))
    };
    let world = control.world_size() as usize;
    let mut calls = Vec::with_capacity(things);
    for thing in 0..things {
        // The first calls make connections and plans; if calls are short, a few more show how long they take. Short
        // broadcasts go through whole turns of roots.
        let mut each = time(thing, 1)?;
        if each < ROUND_SECONDS {
            time(thing, world)?;
            each = time(thing, world)?;
        }
        let count = ((ROUND_SECONDS / each) as usize).clamp(1, CALLS_MAX);
        calls.push(if count < world { count } else { count.next_multiple_of(world) });
    }
    let mut times = vec![Vec::with_capacity(rounds); things];
    for _ in 0..rounds {
        for thing in 0..things {
            times[thing].push(time(thing, calls[thing])?);
        }
    }
    Ok(times.iter_mut().map(|times| median(times)).collect())
}
