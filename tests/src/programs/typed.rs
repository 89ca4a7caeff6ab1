//! Calls on typed slices and vectors: in scopes, and started with owned buffers.

use kolo::{Communicator, ReduceOp, Result, Scope};

use super::calls::{Finish, delay, wait};
use super::data::length;
use super::failure;
use crate::random::Random;

/// A call of one rank: its kind, its elements for each rank, and its buffers.
#[derive(Clone, Debug)]
struct Typed {
    kind: usize,
    number: i64,
    count: usize,
    input: Vec<i64>,
    output: Vec<i64>,
}

/// Returns a rank's element.
fn element(number: i64, rank: usize, at: usize) -> i64 {
    number + (rank as i64 + 1) * (at as i64 % 1009 + 1)
}

fn elements(number: i64, rank: usize, range: std::ops::Range<usize>) -> impl Iterator<Item = i64> {
    range.map(move |at| element(number, rank, at))
}

/// Adds up the first `ranks` ranks' elements.
fn sums(number: i64, ranks: usize, range: std::ops::Range<usize>) -> impl Iterator<Item = i64> {
    let factor = (ranks * (ranks + 1) / 2) as i64;
    range.map(move |at| number * ranks as i64 + factor * (at as i64 % 1009 + 1))
}

impl Typed {
    fn draw(random: &mut Random, comm: &Communicator, halved: u32, number: i64) -> Self {
        let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
        let kind = random.index(8);
        let count = length(random, 8, halved + 1) / if kind > 3 { ranks } else { 1 };
        let blocks = |is_per_rank: bool| if is_per_rank { ranks * count } else { count };
        let (inputs, outputs) = (blocks(matches!(kind, 4 | 5)), blocks(matches!(kind, 5 | 6)));
        let mut typed =
            Self { kind, number: number << 20, count, input: Vec::new(), output: vec![-1; outputs] };
        typed.input.extend(elements(typed.number, rank, 0..inputs));
        if kind < 3 {
            typed.output.clone_from(&typed.input);
        }
        typed
    }

    fn root(&self, ranks: u32) -> u32 {
        (self.number >> 20) as u32 % ranks
    }

    fn start<'b>(&'b mut self, scope: &Scope<'b, '_>, comm: &Communicator, tag: u32) -> Result<()> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let root = self.root(ranks);
        let (input, output) = (&self.input, &mut self.output[..]);
        match self.kind {
            0 => scope.all_reduce(output, ReduceOp::Sum),
            1 => scope.broadcast(output, root),
            2 => scope.scan(output, ReduceOp::Sum),
            3 => {
                scope.recv_tagged(output, (rank + ranks - 1) % ranks, tag)?;
                scope.send_tagged(input, (rank + 1) % ranks, tag)
            }
            4 => scope.reduce_scatter(input, output, ReduceOp::Sum),
            5 => scope.all_to_all(input, output),
            6 => scope.all_gather(input, output),
            _ => scope.barrier(),
        }
    }

    /// Starts the call with owned buffers.
    fn start_owned(mut self, comm: &Communicator) -> Result<Finish> {
        let (input, output) = (std::mem::take(&mut self.input), std::mem::take(&mut self.output));
        let (rank, ranks) = (comm.rank() as usize, comm.world_size());
        let work = match self.kind {
            0 => comm.all_reduce_start(output, ReduceOp::Sum),
            1 => comm.broadcast_start(output, self.root(ranks)),
            2 => comm.scan_start(output.into_boxed_slice().into_vec(), ReduceOp::Sum),
            4 => comm.reduce_scatter_start(input, ReduceOp::Sum),
            5 => comm.all_to_all_start(input),
            6 => comm.all_gather_start(input),
            _ => {
                let work = comm.barrier_start()?;
                return Ok(Box::new(move |own: &mut Random| Ok(wait(work, own).map(drop)?)));
            }
        }?;
        Ok(Box::new(move |own: &mut Random| {
            if let Some(output) = wait(work, own)? {
                self.output = output;
                self.check(rank, ranks)?;
            }
            Ok(())
        }))
    }

    fn check(&self, rank: usize, ranks: u32) -> failure::Result {
        let (number, count, all) = (self.number, self.count, ranks as usize);
        let wanted: Vec<i64> = match self.kind {
            0 => sums(number, all, 0..count).collect(),
            1 => elements(number, self.root(ranks) as usize, 0..count).collect(),
            2 => sums(number, rank + 1, 0..count).collect(),
            3 => elements(number, (rank + all - 1) % all, 0..count).collect(),
            4 => sums(number, all, rank * count..(rank + 1) * count).collect(),
            5 => (0..all).flat_map(|from| elements(number, from, rank * count..(rank + 1) * count)).collect(),
            6 => (0..all).flat_map(|from| elements(number, from, 0..count)).collect(),
            _ => return Ok(()),
        };
        if self.output == wanted {
            return Ok(());
        }
        let wrong = self.output.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        let text =
            format!("typed call {}, {count} elements, number {}: {wrong} wrong", self.kind, number >> 20);
        Err(text.into())
    }
}

/// Runs calls in a scope, or starts them with owned buffers.
pub(super) fn typed(
    comm: &Communicator,
    common: &mut Random,
    own: &mut Random,
    (halved, tag): (u32, u32),
) -> failure::Result<Vec<Finish>> {
    let mut calls: Vec<Typed> =
        (0..1 + common.index(8)).map(|number| Typed::draw(common, comm, halved, number as i64)).collect();
    if common.index(2) == 0 {
        let owned = calls.into_iter().filter(|call| call.kind != 3);
        return owned.map(|call| Ok(call.start_owned(comm)?)).collect();
    }
    let has_barrier = common.index(2) == 0;
    let result = comm.scope(|scope| {
        for call in &mut calls {
            call.start(scope, comm, tag)?;
            delay(own);
        }
        if has_barrier { comm.barrier() } else { Ok(()) }
    });
    result?;
    calls.iter().try_for_each(|call| call.check(comm.rank() as usize, comm.world_size())).map(|()| Vec::new())
}
