//! The blocking collectives on typed slices.

use kolo_collectives::plan::Collective;

use super::Communicator;
use crate::drive;
use crate::error::{Context, Error, Result};
use crate::types::{Element, ReduceOp};

impl Communicator {
    /// Replaces `buffer` on every rank by the element-wise reduction over all ranks. Equal lengths everywhere.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call(Collective::AllReduce, buffer, op, 0)?;
        // SAFETY: the slices are as long as the call says, which was checked, and borrowed until it is over.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::all_reduce`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call_into(Collective::AllReduce, input, output, op)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Puts the blocks of all ranks behind one another: `output` is `world_size` times as long as `input`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let call = self.all_gather_call(input, output)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::all_gather`], with this rank's block already at its place in `buffer`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.divided(Collective::AllGather, buffer.len())?;
        let at = buffer.as_mut_ptr();
        let own = at.wrapping_add(count * self.rank() as usize);
        let call = self.even(Collective::AllGather, own, at, count, ReduceOp::Sum, 0)?;
        // SAFETY: as above; the input is a part of the buffer, which the collective allows.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Gives rank r the reduction of everybody's block r: `input` is `world_size` times as long as `output`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.reduce_scatter_call(input, output, op)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Makes `buffer` on every rank a copy of the root's.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let call = self.vector_call(Collective::Broadcast, buffer, ReduceOp::Sum, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Gives the root the element-wise reduction over all ranks. `output` is used on the root only, and may be
    /// empty elsewhere.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let call = self.reduce_call(input, output, op, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::reduce`], with the root's result in its own `buffer`; the others' are left as they were.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let call = self.reduce_in_place_call(buffer, op, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Gives the root the blocks of all ranks, in rank order. `output` is used on the root only, where it is
    /// `world_size` times as long as `input`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let call = self.gather_call(input, output, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Gives rank r the root's block r. `input` is used on the root only, where it is `world_size` times as long
    /// as `output`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let call = self.scatter_call(input, output, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Sends block s of `input` to rank s, and receives block r of `output` from rank r. Both have `world_size`
    /// blocks of equal length.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let call = self.all_to_all_call(input, output)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::all_to_all`], within one buffer.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.divided(Collective::AllToAll, buffer.len())?;
        let at = buffer.as_mut_ptr();
        let call = self.even(Collective::AllToAll, at, at, count, ReduceOp::Sum, 0)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Replaces `buffer` on rank r by the reduction over ranks 0 to r.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call(Collective::Scan, buffer, op, 0)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::scan`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scan_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call_into(Collective::Scan, input, output, op)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Replaces `buffer` on rank r by the reduction over ranks 0 to r - 1; rank 0's is left as it was.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn exscan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call(Collective::ExScan, buffer, op, 0)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// As [`Communicator::exscan`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn exscan_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.vector_call_into(Collective::ExScan, input, output, op)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn barrier(&self) -> Result<()> {
        let call = self.barrier_call();
        // SAFETY: there is no memory.
        unsafe { drive::run(&self.shared, &call) }
    }

    #[inline]
    pub(super) fn expect_len(
        &self,
        collective: Collective,
        what: &str,
        found: usize,
        wanted: usize,
    ) -> Result<()> {
        if found == wanted { Ok(()) } else { Err(self.wrong_len(collective, what, found, wanted)) }
    }

    #[cold]
    fn wrong_len(&self, collective: Collective, what: &str, found: usize, wanted: usize) -> Error {
        let problem = format!("the {what} holds {found} elements where {wanted} are needed");
        self.usage(collective.name(), problem)
    }

    #[inline]
    pub(super) fn divided(&self, collective: Collective, len: usize) -> Result<usize> {
        let ranks = self.world_size() as usize;
        if len.is_multiple_of(ranks) { Ok(len / ranks) } else { Err(self.indivisible(collective, len)) }
    }

    #[cold]
    fn indivisible(&self, collective: Collective, len: usize) -> Error {
        let ranks = self.world_size();
        let problem =
            format!("a buffer of {len} elements cannot be cut into {ranks} equal blocks, one per rank");
        self.usage(collective.name(), problem)
    }

    pub(super) fn usage(&self, operation: &str, problem: String) -> Error {
        let context = Context { rank: self.rank(), operation: operation.to_owned(), sequence: 0 };
        Error::Usage { context, problem }
    }
}
