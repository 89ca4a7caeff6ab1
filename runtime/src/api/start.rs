//! Asynchronous collectives that own their buffers.
//!
//! Each takes its buffers by value and gives the output back from [`Work::wait`]; nothing can go wrong if the handle is
//! dropped, leaked or forgotten. Operations started on a communicator overlap; all ranks start them in the same order.
//! For borrowed buffers see [`Communicator::scope`].

use std::sync::Arc;

use kolo_collectives::plan::Collective;

use super::Communicator;
use super::work::{Kept, Work};
use crate::call::Call;
use crate::drive;
use crate::error::Result;
use crate::types::{Element, ReduceOp, zeros};

impl Communicator {
    /// Starts an in-place all-reduce.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_start<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        let call = self.vector_call(Collective::AllReduce, &mut buffer, op, 0)?;
        // SAFETY: the call was made from this vector.
        unsafe { self.start_in_place(&call, buffer) }
    }

    /// Starts a broadcast.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast_start<T: Element>(&self, mut buffer: Vec<T>, root: u32) -> Result<Work<Vec<T>>> {
        let call = self.vector_call(Collective::Broadcast, &mut buffer, ReduceOp::Sum, root)?;
        // SAFETY: as above.
        unsafe { self.start_in_place(&call, buffer) }
    }

    /// Starts a reduce; the work gives the result on the root, and the buffer as it was elsewhere.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce_start<T: Element>(
        &self,
        mut buffer: Vec<T>,
        op: ReduceOp,
        root: u32,
    ) -> Result<Work<Vec<T>>> {
        let call = self.reduce_in_place_call(&mut buffer, op, root)?;
        // SAFETY: as above.
        unsafe { self.start_in_place(&call, buffer) }
    }

    /// Starts an in-place scan.
    ///
    /// # Errors
    /// As [`Communicator::scan`].
    pub fn scan_start<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        let call = self.vector_call(Collective::Scan, &mut buffer, op, 0)?;
        // SAFETY: as above.
        unsafe { self.start_in_place(&call, buffer) }
    }

    /// Starts an in-place exclusive scan.
    ///
    /// # Errors
    /// As [`Communicator::exscan`].
    pub fn exscan_start<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        let call = self.vector_call(Collective::ExScan, &mut buffer, op, 0)?;
        // SAFETY: as above.
        unsafe { self.start_in_place(&call, buffer) }
    }

    /// Starts an all-gather; the work gives the blocks of all ranks, one behind the other.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_gather_start<T: Element>(&self, input: Vec<T>) -> Result<Work<Vec<T>>> {
        let mut output = self.room(Collective::AllGather, &vec![input.len(); self.world_size() as usize])?;
        let call = self.all_gather_call(&input, &mut output)?;
        // SAFETY: the call was made from these vectors.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a gather; the work gives the blocks of all ranks on the root, and nothing elsewhere.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    pub fn gather_start<T: Element>(&self, input: Vec<T>, root: u32) -> Result<Work<Vec<T>>> {
        let blocks = if self.rank() == root { self.world_size() as usize } else { 0 };
        let mut output = self.room(Collective::Gather, &vec![input.len(); blocks])?;
        let call = self.gather_call(&input, &mut output, root)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a scatter; the work gives this rank's block, of `count` elements. `input` is used on the root only.
    ///
    /// # Errors
    /// As [`Communicator::scatter`].
    pub fn scatter_start<T: Element>(&self, input: Vec<T>, count: usize, root: u32) -> Result<Work<Vec<T>>> {
        let mut output = self.room(Collective::Scatter, &[count])?;
        let call = self.scatter_call(&input, &mut output, root)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a reduce-scatter; the work gives this rank's block.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`], and if the input cannot be cut into equal blocks.
    pub fn reduce_scatter_start<T: Element>(&self, input: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        let mut output = zeros(input.len() / self.world_size() as usize);
        let call = self.reduce_scatter_call(&input, &mut output, op)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts an all-to-all; the work gives the received blocks.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`], and if the input cannot be cut into equal blocks.
    pub fn all_to_all_start<T: Element>(&self, input: Vec<T>) -> Result<Work<Vec<T>>> {
        let mut output = zeros(input.len());
        let call = self.all_to_all_call(&input, &mut output)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a barrier: the work is done once every rank has started it.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn barrier_start(&self) -> Result<Work<()>> {
        let call = self.barrier_call();
        // SAFETY: there is no memory.
        let ticket = unsafe { drive::start(&self.shared, &call, Some(Box::new(()))) }?;
        Ok(self.work(ticket))
    }

    /// # Safety
    /// The call is on this vector.
    unsafe fn start_in_place<T: Element>(&self, call: &Call, buffer: Vec<T>) -> Result<Work<Vec<T>>> {
        // SAFETY: the engine keeps the vector until the operation is done; moving it does not move its elements.
        let ticket = unsafe { drive::start(&self.shared, call, Some(Box::new(buffer))) }?;
        Ok(self.work(ticket))
    }

    /// # Safety
    /// The call is on these vectors.
    pub(super) unsafe fn start_into<T: Element>(
        &self,
        call: &Call,
        input: Vec<T>,
        output: Vec<T>,
    ) -> Result<Work<Vec<T>>> {
        let keep = Box::new(Pair { output, _input: input });
        // SAFETY: as above, for both vectors.
        let ticket = unsafe { drive::start(&self.shared, call, Some(keep)) }?;
        let output = |kept: Kept, _| kept.downcast::<Pair<T>>().ok().map(|pair| pair.output);
        Ok(Work::extracting(Arc::clone(&self.shared), ticket, output))
    }
}

/// Input and output of one operation.
#[derive(Debug)]
struct Pair<T> {
    output: Vec<T>,
    _input: Vec<T>,
}
