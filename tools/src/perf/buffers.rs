//! The memory on which `kolo perf` measures, and the calls on it. This file contains `unsafe` because it turns
//! slices into the addresses that a [`Call`] holds.

use std::ops::Range;

use super::choice::{NamedOp, NamedType};
use super::data::Inputs;
use super::pieces::{Blocks, pieces};
use super::test::{Counts, Test};
use crate::backend::{Call, Comm, Incoming, Memory, Outgoing};
use crate::error::{CliError, Result};

/// Buffers start at a page, so that measurements do not depend on where the allocator put them.
const ALIGNMENT_BYTES: usize = 4096;

/// Byte that fills memory for results, so that a call that does nothing is detected. The pattern is odd: as a
/// float of any type it is a negative number.
const POISON: u8 = 0xA5;

/// One operation of the table: a test with a size, a type, an operator and a root.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// The test.
    pub test: Test,
    /// Number of elements.
    pub counts: Counts,
    /// Type of the elements.
    pub element: NamedType,
    /// Operator that combines them.
    pub op: NamedOp,
    /// Root, if the test has one.
    pub root: u32,
    /// The blocks of `alltoallv`.
    pub blocks: Blocks,
}

/// Whether input and output are the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// They are different memory.
    OutOfPlace,
    /// They are the same memory, as NCCL defines it for the collective.
    InPlace,
}

impl Operation {
    fn element_bytes(&self) -> usize {
        self.element.data_type.size()
    }

    /// Returns the value of the size column: the length of the longer of the two buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.counts.send.max(self.counts.receive) * self.element_bytes() as u64
    }

    /// Returns the contents of the ranks' inputs.
    fn inputs(&self, seed: u64, ranks: u32) -> Result<Inputs> {
        Inputs::new(seed, self.element.data_type, self.test.reduces().then_some(self.op), ranks)
    }
}

/// The place of one iteration, as offsets in bytes into the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Offset into the send buffer, or into the receive buffer if the operation is in place.
    input: usize,
    /// Offset into the receive buffer.
    output: usize,
    in_place: bool,
}

/// Send and receive buffers of one rank.
#[derive(Debug)]
pub(crate) struct Buffers {
    send: Region,
    receive: Region,
    max_bytes: usize,
}

impl Buffers {
    /// Allocates buffers for operations of up to `max_bytes`, shifted by `unalign_bytes`. All pages are touched,
    /// so that page faults are not measured.
    pub(crate) fn new(max_bytes: u64, unalign_bytes: u64) -> Result<Self> {
        let (len, shift) = (max_bytes as usize, unalign_bytes as usize);
        Ok(Self { send: Region::new(len, shift)?, receive: Region::new(len, shift)?, max_bytes: len })
    }

    /// As [`Buffers::new`], in memory that the ranks of `comm` reach directly. All of them must call.
    pub(crate) fn symmetric(comm: &dyn Comm, max_bytes: u64, unalign_bytes: u64) -> Result<Self> {
        let (len, shift) = (max_bytes as usize, unalign_bytes as usize);
        // Symmetric memory starts at a page.
        let region = || -> Result<Region> {
            let mut memory = comm.symmetric(len + shift)?;
            memory.fill(1);
            Ok(Region { memory, range: shift..shift + len })
        };
        Ok(Self { send: region()?, receive: region()?, max_bytes: len })
    }

    /// Returns the number of operations that fit side by side. Iterations use these places in turn, so that
    /// caches do not help.
    fn positions(&self, operation: &Operation) -> usize {
        match operation.bytes() as usize {
            0 => 1,
            bytes => (self.max_bytes / bytes).max(1),
        }
    }

    fn place(&self, operation: &Operation, rank: u32, placement: Placement, iteration: usize) -> Place {
        let (element_bytes, rank) = (operation.element_bytes(), rank as usize);
        let shift = operation.bytes() as usize * (iteration % self.positions(operation));
        let counts = &operation.counts;
        match placement {
            // Received data must not overlap sent data.
            _ if operation.test.lies_apart() => Place { input: shift, output: shift, in_place: false },
            Placement::OutOfPlace => Place { input: shift, output: shift, in_place: false },
            Placement::InPlace => Place {
                input: shift + counts.send_offset_in_place as usize * element_bytes * rank,
                output: shift + counts.receive_offset_in_place as usize * element_bytes * rank,
                in_place: true,
            },
        }
    }

    /// Fills the inputs of the first iteration, and spoils the memory that will be overwritten.
    pub(crate) fn fill(
        &mut self,
        operation: &Operation,
        placement: Placement,
        rank: u32,
        ranks: u32,
        seed: u64,
    ) -> Result<()> {
        let place = self.place(operation, rank, placement, 0);
        let element_bytes = operation.element_bytes();
        let receive_len = operation.counts.receive as usize * element_bytes;
        self.receive.bytes_mut()[place.output..place.output + receive_len].fill(POISON);
        let input_len = operation.counts.send as usize * element_bytes;
        let region = if place.in_place { &mut self.receive } else { &mut self.send };
        let input = &mut region.bytes_mut()[place.input..place.input + input_len];
        operation.inputs(seed, ranks)?.fill(rank, 0, input);
        Ok(())
    }

    /// Counts the wrong elements in the result of the first iteration.
    pub(crate) fn count_wrong(
        &self,
        operation: &Operation,
        placement: Placement,
        rank: u32,
        ranks: u32,
        seed: u64,
    ) -> Result<u64> {
        let place = self.place(operation, rank, placement, 0);
        let len = operation.counts.receive as usize * operation.element_bytes();
        let result = &self.receive.bytes()[place.output..place.output + len];
        let pieces =
            pieces(operation.test, &operation.counts, rank, ranks, operation.root, &operation.blocks);
        Ok(operation.inputs(seed, ranks)?.count_wrong(&pieces, result))
    }

    /// Runs one operation to its end.
    pub(crate) fn run(
        &mut self,
        comm: &dyn Comm,
        operation: &Operation,
        placement: Placement,
        iteration: usize,
    ) -> Result<()> {
        let place = self.place(operation, comm.rank(), placement, iteration);
        if let Some(call) = self.call(comm, operation, place) {
            // SAFETY: `call` points into the buffers with the lengths that `Counts` gives the collective (test
            // `places_stay_within_the_buffers`); they are borrowed mutably until this returns.
            return unsafe { comm.call(&call) };
        }
        match operation.test {
            Test::Hypercube => self.hypercube(comm, operation, place),
            Test::SendRecv => self.send_to_next(comm, operation, place),
            _ => self.exchange_blocks(comm, operation, place),
        }
    }

    /// Returns the way that the library takes for an operation, if it is a single call.
    pub(crate) fn way(&mut self, comm: &dyn Comm, operation: &Operation) -> Option<String> {
        let place = self.place(operation, comm.rank(), Placement::OutOfPlace, 0);
        comm.way(&self.call(comm, operation, place)?)
    }

    /// Starts the operations of some iterations together, then waits for all of them. Returns the seconds until
    /// all were started. Operations on the same memory are never in flight together.
    pub(crate) fn run_together(
        &mut self,
        comm: &dyn Comm,
        operation: &Operation,
        placement: Placement,
        iterations: Range<usize>,
        now: impl Fn() -> f64,
    ) -> Result<f64> {
        let positions = self.positions(operation);
        let mut seconds = 0.0;
        let mut first = iterations.start;
        while first < iterations.end {
            let last = iterations.end.min(first + positions);
            let began = now();
            let mut started = Vec::with_capacity(last - first);
            for iteration in first..last {
                let place = self.place(operation, comm.rank(), placement, iteration);
                let Some(call) = self.call(comm, operation, place) else {
                    self.run(comm, operation, placement, iteration)?;
                    continue;
                };
                // SAFETY: as in `run`; at most `positions` operations are in flight, each on memory of its own,
                // and all are waited for below, before the borrow ends.
                match unsafe { comm.start(&call) } {
                    Ok(pending) => started.push(pending),
                    Err(error) => {
                        // The buffers must outlive the operations that were started.
                        for pending in started {
                            let _ = pending.wait();
                        }
                        return Err(error);
                    }
                }
            }
            seconds += now() - began;
            let mut outcome = Ok(());
            for pending in started {
                outcome = pending.wait().and(outcome);
            }
            outcome?;
            first = last;
        }
        Ok(seconds)
    }

    fn call(&mut self, comm: &dyn Comm, operation: &Operation, place: Place) -> Option<Call> {
        let collective = operation.test.collective()?;
        let output = self.receive.bytes_mut().as_mut_ptr();
        let input = if place.in_place { output.cast_const() } else { self.send.bytes().as_ptr() };
        Some(Call {
            collective,
            input: input.wrapping_add(place.input),
            output: output.wrapping_add(place.output),
            count: operation.counts.argument,
            data_type: operation.element.data_type,
            op: operation.op.on_rank(comm.rank()),
            root: operation.root,
        })
    }

    /// Sends to the next rank and receives from the previous one.
    fn send_to_next(&mut self, comm: &dyn Comm, operation: &Operation, place: Place) -> Result<()> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let len = operation.counts.argument as usize * operation.element_bytes();
        let (input, output) = self.addresses(place);
        let send = Outgoing { to: (rank + 1) % ranks, bytes: input, len };
        let receive = Incoming { from: (rank + ranks - 1) % ranks, bytes: output, len };
        // SAFETY: both lie in the buffers (test `places_stay_within_the_buffers`), which are borrowed mutably
        // until this returns.
        unsafe { comm.exchange(&[send], &[receive]) }
    }

    /// Exchanges blocks of unequal length, which lie side by side.
    fn exchange_blocks(&mut self, comm: &dyn Comm, operation: &Operation, place: Place) -> Result<()> {
        let (rank, element_bytes) = (comm.rank(), operation.element_bytes());
        let (input, output) = self.addresses(place);
        let blocks = &operation.blocks;
        let bytes = |elements: u64| elements as usize * element_bytes;
        let sends: Vec<_> = (0..comm.world_size())
            .map(|to| Outgoing {
                to,
                bytes: input.wrapping_add(bytes(blocks.place_sent(rank, to))),
                len: bytes(blocks.len(rank, to)),
            })
            .collect();
        let receives: Vec<_> = (0..comm.world_size())
            .map(|from| Incoming {
                from,
                bytes: output.wrapping_add(bytes(blocks.place_received(from, rank))),
                len: bytes(blocks.len(from, rank)),
            })
            .collect();
        // SAFETY: as in `send_to_next`; the blocks fill `counts.send` and `counts.receive` elements and do not overlap
        // (test `blocks_lie_side_by_side`).
        unsafe { comm.exchange(&sends, &receives) }
    }

    /// All-gather in which partners at doubling distance exchange all blocks that they have.
    fn hypercube(&mut self, comm: &dyn Comm, operation: &Operation, place: Place) -> Result<()> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        operation.test.check_ranks(ranks)?;
        let block = operation.counts.argument as usize * operation.element_bytes();
        if !place.in_place {
            let own = place.output + rank as usize * block;
            let input = &self.send.bytes()[place.input..place.input + block];
            self.receive.bytes_mut()[own..own + block].copy_from_slice(input);
        }
        let (_, output) = self.addresses(place);
        for bit in 0..ranks.trailing_zeros() {
            let distance = 1 << bit;
            let (mine, partner) = (rank & !(distance - 1), rank ^ distance);
            let theirs = mine ^ distance;
            let len = block * distance as usize;
            let send = Outgoing { to: partner, bytes: output.wrapping_add(mine as usize * block), len };
            let receive =
                Incoming { from: partner, bytes: output.wrapping_add(theirs as usize * block), len };
            // SAFETY: as in `send_to_next`; `mine` and `theirs` are distinct runs of `distance` blocks.
            unsafe { comm.exchange(&[send], &[receive])? };
        }
        Ok(())
    }

    fn addresses(&mut self, place: Place) -> (*const u8, *mut u8) {
        let output = self.receive.bytes_mut().as_mut_ptr();
        let input = if place.in_place { output.cast_const() } else { self.send.bytes().as_ptr() };
        (input.wrapping_add(place.input), output.wrapping_add(place.output))
    }
}

/// Memory that starts at a page, or a little after one if requested.
#[derive(Debug)]
struct Region {
    memory: Box<dyn Memory>,
    range: Range<usize>,
}

impl Region {
    fn new(len: usize, shift: usize) -> Result<Self> {
        let mut memory = Vec::new();
        let total = len + shift + ALIGNMENT_BYTES;
        memory.try_reserve_exact(total).map_err(|error| {
            CliError::failure(
                format!("a buffer of {total} bytes could not be allocated ({error})"),
                "Use less with -e, or start fewer ranks",
            )
        })?;
        // Not filled with 0: pages of zeros could all be the same physical page.
        memory.resize(total, 1);
        let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES) + shift;
        Ok(Self { memory: Box::new(memory), range: start..start + len })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::FLOAT;
    use super::super::pieces::Skew;
    use super::*;

    fn operation(test: Test, bytes: u64, ranks: u32) -> Operation {
        let (counts, blocks) = test.counts_and_blocks(bytes, 4, ranks, Skew::DISTANCE);
        Operation { test, counts, element: FLOAT, op: NamedOp::Sum, root: 0, blocks }
    }

    #[test]
    fn places_stay_within_the_buffers() {
        let max_bytes = 4096;
        let buffers = Buffers::new(max_bytes, 12).unwrap();
        assert_eq!(buffers.send.bytes().as_ptr() as usize % ALIGNMENT_BYTES, 12);
        for test in Test::ALL {
            for ranks in [1u32, 2, 3, 8] {
                for bytes in [0, 4, 100, 1000, 4096] {
                    let operation = operation(test, bytes, ranks);
                    for (rank, iteration) in (0..ranks).flat_map(|rank| (0..9).map(move |i| (rank, i))) {
                        for placement in [Placement::OutOfPlace, Placement::InPlace] {
                            let place = buffers.place(&operation, rank, placement, iteration);
                            assert!(place.input as u64 + operation.counts.send * 4 <= max_bytes);
                            assert!(place.output as u64 + operation.counts.receive * 4 <= max_bytes);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn iterations_advance_through_the_memory() {
        let buffers = Buffers::new(4096, 0).unwrap();
        let operation = operation(Test::AllReduce, 1024, 2);
        let inputs: Vec<_> =
            (0..5).map(|i| buffers.place(&operation, 0, Placement::OutOfPlace, i).input).collect();
        assert_eq!(inputs, [0, 1024, 2048, 3072, 0]);
    }

    #[test]
    fn poison_is_found() {
        let mut buffers = Buffers::new(4096, 0).unwrap();
        for placement in [Placement::OutOfPlace, Placement::InPlace] {
            let operation = operation(Test::Broadcast, 400, 2);
            buffers.fill(&operation, placement, 1, 2, 5).unwrap();
            assert_eq!(buffers.count_wrong(&operation, placement, 1, 2, 5).unwrap(), 100);
        }
    }
}
