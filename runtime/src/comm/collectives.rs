//! The blocking collectives on typed slices.

use kolo_collectives::plan::Collective;

use super::Communicator;
use crate::call::{Call, RawCall};
use crate::error::{Context, Error, Result};
use crate::types::{Element, ReduceOp};

impl Communicator {
    /// Replaces `buffer` on every rank by the element-wise reduction over all ranks. Equal lengths everywhere.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let at = buffer.as_mut_ptr();
        // SAFETY: the slice is exclusively ours and as long as `count` says.
        unsafe { self.blocking::<T>(Collective::AllReduce, at, at, buffer.len(), op, 0) }
    }

    /// As [`Communicator::all_reduce`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.expect_len(Collective::AllReduce, "output", output.len(), input.len())?;
        // SAFETY: both slices are as long as `count` says, and the output is exclusively ours.
        unsafe {
            self.blocking::<T>(Collective::AllReduce, input.as_ptr(), output.as_mut_ptr(), input.len(), op, 0)
        }
    }

    /// Puts the blocks of all ranks behind one another: `output` is `world_size` times as long as `input`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.expect_len(
            Collective::AllGather,
            "output",
            output.len(),
            input.len() * self.world_size() as usize,
        )?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::AllGather, from, to, input.len(), ReduceOp::Sum, 0) }
    }

    /// As [`Communicator::all_gather`], with this rank's block already at its place in `buffer`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.divided(Collective::AllGather, buffer.len())?;
        let at = buffer.as_mut_ptr();
        let own = at.wrapping_add(count * self.rank() as usize);
        // SAFETY: as above; the input is a part of the buffer, which the collective allows.
        unsafe { self.blocking::<T>(Collective::AllGather, own, at, count, ReduceOp::Sum, 0) }
    }

    /// Gives rank r the reduction of everybody's block r: `input` is `world_size` times as long as `output`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let want = output.len() * self.world_size() as usize;
        self.expect_len(Collective::ReduceScatter, "input", input.len(), want)?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::ReduceScatter, from, to, output.len(), op, 0) }
    }

    /// Makes `buffer` on every rank a copy of the root's.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        let at = buffer.as_mut_ptr();
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::Broadcast, at, at, buffer.len(), ReduceOp::Sum, root) }
    }

    /// Gives the root the element-wise reduction over all ranks. `output` is used on the root only, and may be
    /// empty elsewhere.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let to = if self.rank() == root {
            self.expect_len(Collective::Reduce, "output", output.len(), input.len())?;
            output.as_mut_ptr()
        } else {
            std::ptr::null_mut()
        };
        // SAFETY: as above; only the root's output is written.
        unsafe { self.blocking::<T>(Collective::Reduce, input.as_ptr(), to, input.len(), op, root) }
    }

    /// As [`Communicator::reduce`], with the root's result in its own `buffer`; the others' are left as they were.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: u32) -> Result<()> {
        let at = buffer.as_mut_ptr();
        let to = if self.rank() == root { at } else { std::ptr::null_mut() };
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::Reduce, at, to, buffer.len(), op, root) }
    }

    /// Gives the root the blocks of all ranks, in rank order. `output` is used on the root only, where it is
    /// `world_size` times as long as `input`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let to = if self.rank() == root {
            self.expect_len(
                Collective::Gather,
                "output",
                output.len(),
                input.len() * self.world_size() as usize,
            )?;
            output.as_mut_ptr()
        } else {
            std::ptr::null_mut()
        };
        // SAFETY: as above.
        unsafe {
            self.blocking::<T>(Collective::Gather, input.as_ptr(), to, input.len(), ReduceOp::Sum, root)
        }
    }

    /// Gives rank r the root's block r. `input` is used on the root only, where it is `world_size` times as long
    /// as `output`.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        let from = if self.rank() == root {
            self.expect_len(
                Collective::Scatter,
                "input",
                input.len(),
                output.len() * self.world_size() as usize,
            )?;
            input.as_ptr()
        } else {
            std::ptr::null()
        };
        let (to, count) = (output.as_mut_ptr(), output.len());
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::Scatter, from, to, count, ReduceOp::Sum, root) }
    }

    /// Sends block s of `input` to rank s, and receives block r of `output` from rank r. Both have `world_size`
    /// blocks of equal length.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.expect_len(Collective::AllToAll, "output", output.len(), input.len())?;
        let count = self.divided(Collective::AllToAll, input.len())?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::AllToAll, from, to, count, ReduceOp::Sum, 0) }
    }

    /// As [`Communicator::all_to_all`], within one buffer.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.divided(Collective::AllToAll, buffer.len())?;
        let at = buffer.as_mut_ptr();
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::AllToAll, at, at, count, ReduceOp::Sum, 0) }
    }

    /// Replaces `buffer` on rank r by the reduction over ranks 0 to r.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let at = buffer.as_mut_ptr();
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::Scan, at, at, buffer.len(), op, 0) }
    }

    /// As [`Communicator::scan`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn scan_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.expect_len(Collective::Scan, "output", output.len(), input.len())?;
        // SAFETY: as above.
        unsafe {
            self.blocking::<T>(Collective::Scan, input.as_ptr(), output.as_mut_ptr(), input.len(), op, 0)
        }
    }

    /// Replaces `buffer` on rank r by the reduction over ranks 0 to r - 1; rank 0's is left as it was.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn exscan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let at = buffer.as_mut_ptr();
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::ExScan, at, at, buffer.len(), op, 0) }
    }

    /// As [`Communicator::exscan`], out of place.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn exscan_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.expect_len(Collective::ExScan, "output", output.len(), input.len())?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        // SAFETY: as above.
        unsafe { self.blocking::<T>(Collective::ExScan, from, to, input.len(), op, 0) }
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn barrier(&self) -> Result<()> {
        let none = std::ptr::null_mut::<u8>();
        // SAFETY: there is no memory.
        unsafe { self.blocking::<u8>(Collective::Barrier, none, none, 0, ReduceOp::Sum, 0) }
    }

    /// # Safety
    /// As [`Communicator::call_raw`].
    unsafe fn blocking<T: Element>(
        &self,
        collective: Collective,
        input: *const T,
        output: *mut T,
        count: usize,
        op: ReduceOp,
        root: u32,
    ) -> Result<()> {
        let call = RawCall {
            collective,
            input: input.cast(),
            output: output.cast(),
            count,
            data_type: T::TYPE,
            op,
            root,
        };
        let call = Call::check(&call, self.rank(), self.world_size())?;
        // SAFETY: the caller's promise.
        unsafe { self.shared.run(&call, self.shared.config.timeout) }
    }

    pub(super) fn expect_len(
        &self,
        collective: Collective,
        what: &str,
        found: usize,
        wanted: usize,
    ) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        Err(self
            .usage(collective.name(), format!("the {what} holds {found} elements where {wanted} are needed")))
    }

    fn divided(&self, collective: Collective, len: usize) -> Result<usize> {
        let ranks = self.world_size() as usize;
        if len.is_multiple_of(ranks) {
            return Ok(len / ranks);
        }
        let problem =
            format!("a buffer of {len} elements cannot be cut into {ranks} equal blocks, one per rank");
        Err(self.usage(collective.name(), problem))
    }

    pub(super) fn usage(&self, operation: &str, problem: String) -> Error {
        let context = Context { rank: self.rank(), operation: operation.to_owned(), sequence: 0 };
        Error::Usage { context, problem }
    }
}
