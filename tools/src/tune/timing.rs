//! Times collectives on all ranks together.

use std::time::Instant;

use kolo::{Collective, Communicator, ReduceOp};

use super::fit::median;
use crate::error::{CliError, Result};

/// Target duration of one round of a measurement: many wake-ups, but a short wait for the user.
const ROUND_SECONDS: f64 = 3e-3;

/// Limit on the calls in a round.
const CALLS_MAX: usize = 20_000;

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
        calls.push(calls_of_a_round(world, |count| time(thing, count))?);
    }
    let mut times = vec![Vec::with_capacity(rounds); things];
    for _ in 0..rounds {
        for thing in 0..things {
            times[thing].push(time(thing, calls[thing])?);
        }
    }
    Ok(times.iter_mut().map(|times| median(times)).collect())
}

/// Returns the number of calls that take [`ROUND_SECONDS`]. `time` makes some calls, and returns the seconds of each.
fn calls_of_a_round(world: usize, mut time: impl FnMut(usize) -> Result<f64>) -> Result<usize> {
    // The first call makes connections and plans.
    time(1)?;
    let mut each = time(1)?;
    let mut count = 1;
    while each * (count as f64) < ROUND_SECONDS / 4.0 && count < CALLS_MAX {
        count = (4 * count).min(CALLS_MAX);
        each = time(count)?;
    }
    let count = ((ROUND_SECONDS / each) as usize).clamp(1, CALLS_MAX);
    // Short broadcasts go through whole turns of roots.
    Ok(if count < world { count } else { count.next_multiple_of(world) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of calls of a round if the first call takes some seconds, and each later one takes others.
    fn calls(first: f64, later: f64) -> usize {
        let mut made = 0;
        let time = |count: usize| {
            let spent = if made == 0 { first + (count - 1) as f64 * later } else { count as f64 * later };
            made += count;
            Ok(spent / count as f64)
        };
        calls_of_a_round(2, time).unwrap()
    }

    #[test]
    fn a_round_takes_its_time_however_long_calls_are() {
        assert_eq!(calls(1e-3, 1e-6), 3000);
        assert_eq!(calls(1e-4, 1e-4), 30);
        assert_eq!(calls(5e-2, 5e-2), 1);
        assert_eq!(calls(1e-9, 1e-9), CALLS_MAX);
    }

    #[test]
    fn the_first_call_does_not_count() {
        assert_eq!(calls(1.0, 1e-6), 3000);
    }
}
