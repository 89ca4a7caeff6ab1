//! Asynchronous collectives that own their buffers.
//!
//! Each takes its buffers by value and gives the output back from [`Work::wait`]; nothing can go wrong if the handle is
//! dropped, leaked or forgotten. Operations started on a communicator overlap; all ranks start them in the same order.
//! For borrowed buffers see [`Communicator::scope`].

use std::sync::Arc;

use kolo_collectives::plan::Collective;

use super::Communicator;
use crate::call::{Call, RawCall};
use crate::error::Result;
use crate::types::{Element, ReduceOp};
use crate::work::{Kept, Work};

impl Communicator {
    /// Starts an in-place all-reduce.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_start<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        self.start_in_place(Collective::AllReduce, buffer, op, 0)
    }

    /// Starts a broadcast.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast_start<T: Element>(&self, buffer: Vec<T>, root: u32) -> Result<Work<Vec<T>>> {
        self.start_in_place(Collective::Broadcast, buffer, ReduceOp::Sum, root)
    }

    /// Starts an all-gather; the work gives the blocks of all ranks, one behind the other.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_gather_start<T: Element>(&self, input: Vec<T>) -> Result<Work<Vec<T>>> {
        let (count, ranks) = (input.len(), self.world_size() as usize);
        let output = vec_for::<T>(&input, count * ranks);
        self.start_into(Collective::AllGather, input, output, count, ReduceOp::Sum)
    }

    /// Starts a reduce-scatter; the work gives this rank's block.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`], and if the input cannot be cut into equal blocks.
    pub fn reduce_scatter_start<T: Element>(&self, input: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        let ranks = self.world_size() as usize;
        let count = input.len() / ranks;
        self.expect_len(Collective::ReduceScatter, "input", input.len(), count * ranks)?;
        let output = vec_for::<T>(&input, count);
        self.start_into(Collective::ReduceScatter, input, output, count, op)
    }

    /// Starts an all-to-all; the work gives the received blocks.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`], and if the input cannot be cut into equal blocks.
    pub fn all_to_all_start<T: Element>(&self, input: Vec<T>) -> Result<Work<Vec<T>>> {
        let ranks = self.world_size() as usize;
        let count = input.len() / ranks;
        self.expect_len(Collective::AllToAll, "input", input.len(), count * ranks)?;
        let output = vec_for::<T>(&input, input.len());
        self.start_into(Collective::AllToAll, input, output, count, ReduceOp::Sum)
    }

    /// Starts a barrier: the work is done once every rank has started it.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn barrier_start(&self) -> Result<Work<()>> {
        let call = RawCall {
            collective: Collective::Barrier,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            count: 0,
            data_type: u8::TYPE,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: there is no memory.
        unsafe { self.start_raw(&call) }
    }

    fn start_in_place<T: Element>(
        &self,
        collective: Collective,
        mut buffer: Vec<T>,
        op: ReduceOp,
        root: u32,
    ) -> Result<Work<Vec<T>>> {
        let at = buffer.as_mut_ptr();
        let call = RawCall {
            collective,
            input: at.cast(),
            output: at.cast(),
            count: buffer.len(),
            data_type: T::TYPE,
            op,
            root,
        };
        let call = Call::check(&call, self.rank(), self.world_size())?;
        // SAFETY: the engine keeps the vector until the operation is done; moving it does not move its elements.
        let ticket = unsafe { self.shared.start(&call, Some(Box::new(buffer))) }?;
        Ok(self.work(ticket))
    }

    fn start_into<T: Element>(
        &self,
        collective: Collective,
        input: Vec<T>,
        mut output: Vec<T>,
        count: usize,
        op: ReduceOp,
    ) -> Result<Work<Vec<T>>> {
        let call = RawCall {
            collective,
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            count,
            data_type: T::TYPE,
            op,
            root: 0,
        };
        let call = Call::check(&call, self.rank(), self.world_size())?;
        let keep = Box::new(Pair { output, _input: input });
        // SAFETY: as above, for both vectors.
        let ticket = unsafe { self.shared.start(&call, Some(keep)) }?;
        let output = |kept: Kept| kept.downcast::<Pair<T>>().ok().map(|pair| pair.output);
        Ok(Work::extracting(Arc::clone(&self.shared), ticket, output))
    }
}

/// Input and output of one operation.
#[derive(Debug)]
struct Pair<T> {
    output: Vec<T>,
    _input: Vec<T>,
}

/// A vector of the given length; the contents do not matter, since the operation overwrites them.
fn vec_for<T: Element>(like: &[T], len: usize) -> Vec<T> {
    like.first().map_or_else(Vec::new, |first| vec![*first; len])
}
