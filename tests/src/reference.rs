//! Expected result of every collective, computed serially from the inputs of all ranks.

use kolo::internal::verify::Problem;
use kolo::{Collective, Communicator, DataType, RawCall, ReduceOp, Result};

/// A call on byte buffers, where every rank knows the data of all.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The collective.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator of a reduction.
    pub op: ReduceOp,
    /// Number of elements, as NCCL counts.
    pub count: usize,
    /// Root, if the collective has one.
    pub root: u32,
    /// Whether input and output share memory.
    pub in_place: bool,
}

/// A buffer: its address and its length in bytes.
pub type Memory = (*mut u8, usize);

/// Fill byte of memory that has not been written.
const UNTOUCHED: u8 = 0xA5;

/// Seed of all data: any constant does, since cases differ in type, size and rank.
const SEED: u64 = 99;

impl Case {
    /// Runs the case on one rank, and counts the elements that differ from the serial reference. Changed bytes outside
    /// the output count, too.
    ///
    /// # Errors
    /// The call's result.
    ///
    /// # Panics
    /// If the operator is not defined for the type.
    pub fn run(&self, comm: &Communicator) -> Result<u64> {
        let (inputs, outputs) = self.bytes(comm);
        self.run_in(comm, &mut vec![UNTOUCHED; inputs], &mut vec![UNTOUCHED; outputs])
    }

    /// Returns the bytes of this rank's input and output.
    #[must_use]
    pub fn bytes(&self, comm: &Communicator) -> (usize, usize) {
        let (inputs, outputs) = blocks(self.collective, comm.rank() == self.root, comm.world_size() as usize);
        let block = self.count * self.data_type.size();
        (inputs * block, outputs * block)
    }

    /// As [`Case::run`], in memory of the caller, whose length is given by [`Case::bytes`].
    ///
    /// # Errors
    /// The call's result.
    ///
    /// # Panics
    /// As [`Case::run`], and if the memory has another length.
    pub fn run_in(&self, comm: &Communicator, input: &mut [u8], output: &mut [u8]) -> Result<u64> {
        // SAFETY: the buffers are as long as the collective defines, and live until the call returns.
        self.run_by(comm, input, output, |call, _| unsafe { comm.call_raw(call) })
    }

    /// As [`Case::run_in`], with a function that makes the call: on these buffers (input and output), or on copies of
    /// them that are copied back.
    ///
    /// # Errors
    /// The call's result.
    ///
    /// # Panics
    /// As [`Case::run_in`].
    pub fn run_by(
        &self,
        comm: &Communicator,
        input: &mut [u8],
        output: &mut [u8],
        make: impl FnOnce(&RawCall, [Memory; 2]) -> Result<()>,
    ) -> Result<u64> {
        let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
        let size = self.data_type.size();
        let data =
            Problem::new(self.data_type, self.op, comm.world_size(), SEED).expect("a defined operator");
        let (inputs, outputs) = blocks(self.collective, rank == self.root as usize, ranks);
        let block = self.count * size;
        assert_eq!((input.len(), output.len()), (inputs * block, outputs * block), "the wrong memory");
        input.fill(UNTOUCHED);
        output.fill(UNTOUCHED);
        self.fill(&data, rank, input);
        let before = input.to_vec();
        // In place, the shorter buffer is part of the longer one, at this rank's block.
        let at = rank * block;
        let (from, to) = match (self.in_place, self.collective) {
            (false, _) => (input.as_ptr(), output.as_mut_ptr()),
            (true, Collective::AllGather | Collective::Gather) if outputs > 0 => {
                output[at..at + block].copy_from_slice(input);
                (output[at..].as_ptr(), output.as_mut_ptr())
            }
            (true, Collective::ReduceScatter | Collective::Scatter) if inputs > 0 => {
                (input.as_ptr(), input[at..].as_mut_ptr())
            }
            (true, _) if inputs > 0 && outputs > 0 => {
                output.copy_from_slice(input);
                (output.as_ptr(), output.as_mut_ptr())
            }
            (true, _) => (input.as_ptr(), output.as_mut_ptr()),
        };
        let op = if let ReduceOp::PremulSum(_) = self.op { data.op_of(comm.rank()) } else { self.op };
        let call = RawCall {
            collective: self.collective,
            input: if inputs == 0 { std::ptr::null() } else { from },
            output: if outputs == 0 { std::ptr::null_mut() } else { to },
            count: self.count,
            data_type: self.data_type,
            op,
            root: self.root,
        };
        make(&call, [(input.as_mut_ptr(), input.len()), (output.as_mut_ptr(), output.len())])?;
        let inside_input =
            self.in_place && matches!(self.collective, Collective::ReduceScatter | Collective::Scatter);
        if inside_input && inputs > 0 {
            output.copy_from_slice(&input[at..at + block]);
            input[at..at + block].copy_from_slice(&before[at..at + block]);
        }
        // Out of place the input must not change. In place it may change, except for the other blocks in
        // reduce-scatter.
        let input_changed = !self.in_place && input != before;
        Ok(self.wrong(&data, rank, ranks, output) + u64::from(input_changed))
    }

    fn fill(&self, data: &Problem, rank: usize, input: &mut [u8]) {
        if reduces(self.collective) {
            data.fill(rank as u32, 0, input);
        } else {
            kolo::internal::verify::fill_bytes(SEED, rank as u32, 0, input);
            booleans(self.data_type, input);
        }
    }

    fn wrong(&self, data: &Problem, rank: usize, ranks: usize, output: &[u8]) -> u64 {
        let block = self.count * self.data_type.size();
        let all = ranks as u32;
        // Block `index` of the input of `from`.
        let moved = |from: usize, index: usize| {
            let mut bytes = vec![0; (index + 1) * block];
            kolo::internal::verify::fill_bytes(SEED, from as u32, 0, &mut bytes);
            booleans(self.data_type, &mut bytes);
            bytes.split_off(index * block)
        };
        let differing =
            |got: &[u8], want: &[u8]| kolo::internal::verify::count_wrong(self.data_type, got, want);
        let root = self.root as usize;
        match self.collective {
            Collective::AllReduce => data.count_wrong(all, 0, output),
            Collective::Reduce if rank == root => data.count_wrong(all, 0, output),
            Collective::ReduceScatter => data.count_wrong(all, (rank * self.count) as u64, output),
            Collective::Scan => data.count_wrong(rank as u32 + 1, 0, output),
            Collective::ExScan if rank > 0 => data.count_wrong(rank as u32, 0, output),
            // In place, rank 0 keeps its own values.
            Collective::ExScan if self.in_place => {
                let mut own = vec![0; output.len()];
                data.fill(0, 0, &mut own);
                differing(output, &own)
            }
            Collective::ExScan => output.iter().filter(|byte| **byte != UNTOUCHED).count() as u64,
            Collective::Broadcast => differing(output, &moved(root, 0)),
            Collective::AllGather => each(ranks, block, output, |from| moved(from, 0), differing),
            Collective::Gather if rank == root => {
                each(ranks, block, output, |from| moved(from, 0), differing)
            }
            Collective::Scatter => differing(output, &moved(root, rank)),
            Collective::AllToAll => each(ranks, block, output, |from| moved(from, rank), differing),
            Collective::Reduce | Collective::Gather | Collective::Barrier => 0,
        }
    }
}

fn each(
    ranks: usize,
    block: usize,
    output: &[u8],
    want: impl Fn(usize) -> Vec<u8>,
    differing: impl Fn(&[u8], &[u8]) -> u64,
) -> u64 {
    (0..ranks).map(|from| differing(&output[from * block..][..block], &want(from))).sum()
}

/// Turns bytes into booleans if the type is bool: 0 or 1.
fn booleans(data_type: DataType, bytes: &mut [u8]) {
    if data_type == DataType::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
}

/// Returns the number of input and output blocks of `count` elements.
fn blocks(collective: Collective, is_root: bool, ranks: usize) -> (usize, usize) {
    match collective {
        Collective::AllReduce | Collective::Scan | Collective::ExScan => (1, 1),
        Collective::AllGather => (1, ranks),
        Collective::ReduceScatter => (ranks, 1),
        Collective::Broadcast => (usize::from(is_root), 1),
        Collective::Reduce => (1, usize::from(is_root)),
        Collective::Gather => (1, if is_root { ranks } else { 0 }),
        Collective::Scatter => (if is_root { ranks } else { 0 }, 1),
        Collective::AllToAll => (ranks, ranks),
        Collective::Barrier => (0, 0),
    }
}

/// Returns whether the collective reduces values.
#[must_use]
pub fn reduces(collective: Collective) -> bool {
    use Collective as C;
    matches!(collective, C::AllReduce | C::Reduce | C::ReduceScatter | C::Scan | C::ExScan)
}

/// Returns whether the operator is defined for the collective on the type.
#[must_use]
pub fn is_defined(collective: Collective, op: ReduceOp, data_type: DataType) -> bool {
    let prefix = matches!(collective, Collective::Scan | Collective::ExScan);
    op.supports(data_type) && !(prefix && matches!(op, ReduceOp::Avg | ReduceOp::PremulSum(_)))
}
