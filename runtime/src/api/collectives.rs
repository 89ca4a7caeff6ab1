//! The blocking collectives on typed slices.

use kolo_collectives::plan::Collective;

use super::Communicator;
use crate::drive;
use crate::error::{Error, ErrorContext, Result};
use crate::types::{Element, ReduceOp};

/// Defines methods that run the call which a helper function builds from the same arguments.
macro_rules! runs {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $call:ident($($given:expr),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// See [errors of calls](Communicator#errors-of-calls).
        pub fn $name<T: Element>(&self, $($argument: $type),*) -> Result<()> {
            let call = self.$call($($given),*)?;
            // SAFETY: the slices are as long as the call says, which was checked, and borrowed until it is over.
            unsafe { $crate::drive::run(&self.shared, &call) }
        }
    )*};
}
pub(super) use runs;

/// # Collectives
impl Communicator {
    runs! {
        /// Replaces `buffer` on every rank by the element-wise reduction over all ranks. All ranks give equal
        /// lengths.
        all_reduce(buffer: &mut [T], op: ReduceOp)
            => vector_call(Collective::AllReduce, buffer, op, 0);
        /// Like [`Communicator::all_reduce`], out of place.
        all_reduce_into(input: &[T], output: &mut [T], op: ReduceOp)
            => vector_call_into(Collective::AllReduce, input, output, op);
        /// Concatenates the blocks of all ranks in rank order: `output` is `world_size` times as long as `input`.
        all_gather(input: &[T], output: &mut [T]) => all_gather_call(input, output);
        /// Gives rank r the reduction of block r over all ranks: `input` is `world_size` times as long as `output`.
        reduce_scatter(input: &[T], output: &mut [T], op: ReduceOp)
            => reduce_scatter_call(input, output, op);
        /// Makes `buffer` on every rank a copy of the root's.
        broadcast(buffer: &mut [T], root: u32)
            => vector_call(Collective::Broadcast, buffer, ReduceOp::Sum, root);
        /// Gives the root the element-wise reduction over all ranks. `output` is used on the root only, and may be
        /// empty elsewhere.
        reduce(input: &[T], output: &mut [T], op: ReduceOp, root: u32)
            => reduce_call(input, output, op, root);
        /// Like [`Communicator::reduce`], with the root's result in its own `buffer`; the other ranks' buffers are
        /// unchanged.
        reduce_in_place(buffer: &mut [T], op: ReduceOp, root: u32)
            => reduce_in_place_call(buffer, op, root);
        /// Gives the root the blocks of all ranks, in rank order. `output` is used on the root only, where it is
        /// `world_size` times as long as `input`.
        gather(input: &[T], output: &mut [T], root: u32)
            => gather_call(input, output, root);
        /// Gives rank r the root's block r. `input` is used on the root only, where it is `world_size` times as long
        /// as `output`.
        scatter(input: &[T], output: &mut [T], root: u32)
            => scatter_call(input, output, root);
        /// Sends block s of `input` to rank s, and receives block r of `output` from rank r. Both have `world_size`
        /// blocks of equal length.
        all_to_all(input: &[T], output: &mut [T])
            => all_to_all_call(input, output);
        /// Replaces `buffer` on rank r by the reduction over ranks 0 to r.
        scan(buffer: &mut [T], op: ReduceOp) => vector_call(Collective::Scan, buffer, op, 0);
        /// Like [`Communicator::scan`], out of place.
        scan_into(input: &[T], output: &mut [T], op: ReduceOp)
            => vector_call_into(Collective::Scan, input, output, op);
        /// Replaces `buffer` on rank r by the reduction over ranks 0 to r - 1; rank 0's is unchanged.
        exscan(buffer: &mut [T], op: ReduceOp) => vector_call(Collective::ExScan, buffer, op, 0);
        /// Like [`Communicator::exscan`], out of place.
        exscan_into(input: &[T], output: &mut [T], op: ReduceOp)
            => vector_call_into(Collective::ExScan, input, output, op);
    }

    /// Like [`Communicator::all_gather`], with this rank's block already at its place in `buffer`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.divided(Collective::AllGather, buffer.len())?;
        let at = buffer.as_mut_ptr();
        let own = at.wrapping_add(count * self.rank() as usize);
        let call = self.even(Collective::AllGather, own, at, count, ReduceOp::Sum, 0)?;
        // SAFETY: as above; the input is a part of the buffer, which this collective allows.
        unsafe { drive::run(&self.shared, &call) }
    }

    /// Like [`Communicator::all_to_all`], within one buffer.
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

    /// Blocks until every rank has called it.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn barrier(&self) -> Result<()> {
        let call = self.barrier_call();
        // SAFETY: a barrier has no buffers.
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
        let problem = format!("the {what} holds {found} elements, but {wanted} are needed");
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
        Error::Usage { context: self.context(operation), problem }
    }

    /// Returns the context of an operation without a number.
    pub(super) fn context(&self, operation: &str) -> ErrorContext {
        ErrorContext::unnumbered(self.rank(), operation)
    }
}
