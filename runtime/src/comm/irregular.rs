//! The v-forms: blocks of unequal length.
//!
//! Blocks lie one behind the other. Where every rank must know all lengths (`all_gather_v`, `reduce_scatter_v`) all pass
//! the same list; elsewhere a rank knows its own, and those of its peers must fit.

use kolo_collectives::plan::{Collective, Placement};

use super::Communicator;
use crate::call::{Call, Counts};
use crate::error::Result;
use crate::types::{Element, ReduceOp};

impl Communicator {
    /// Puts blocks of `counts[r]` elements of each rank r behind one another in `output`.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        self.expect_counts(Collective::AllGather, "counts", counts)?;
        self.expect_len(Collective::AllGather, "input", input.len(), counts[self.rank() as usize])?;
        self.expect_len(Collective::AllGather, "output", output.len(), counts.iter().sum())?;
        let counts = Counts::Uneven { input: Box::new([input.len()]), output: counts.into() };
        // SAFETY: the slices have been checked against the counts; the output is exclusively ours.
        unsafe {
            self.uneven::<T>(
                Collective::AllGather,
                input.as_ptr(),
                output.as_mut_ptr(),
                counts,
                ReduceOp::Sum,
                0,
            )
        }
    }

    /// Gives rank r the reduction of everybody's block r, which has `counts[r]` elements.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.expect_counts(Collective::ReduceScatter, "counts", counts)?;
        self.expect_len(Collective::ReduceScatter, "input", input.len(), counts.iter().sum())?;
        self.expect_len(Collective::ReduceScatter, "output", output.len(), counts[self.rank() as usize])?;
        let counts = Counts::Uneven { input: counts.into(), output: Box::new([output.len()]) };
        // SAFETY: as above.
        unsafe {
            self.uneven::<T>(Collective::ReduceScatter, input.as_ptr(), output.as_mut_ptr(), counts, op, 0)
        }
    }

    /// Gives the root the blocks of all ranks, `counts[r]` elements from rank r. `output` and `counts` are used on
    /// the root only.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<()> {
        let (to, outputs): (*mut T, Box<[usize]>) = if self.rank() == root {
            self.expect_counts(Collective::Gather, "counts", counts)?;
            self.expect_len(Collective::Gather, "input", input.len(), counts[root as usize])?;
            self.expect_len(Collective::Gather, "output", output.len(), counts.iter().sum())?;
            (output.as_mut_ptr(), counts.into())
        } else {
            (std::ptr::null_mut(), Box::default())
        };
        let counts = Counts::Uneven { input: Box::new([input.len()]), output: outputs };
        // SAFETY: as above.
        unsafe { self.uneven::<T>(Collective::Gather, input.as_ptr(), to, counts, ReduceOp::Sum, root) }
    }

    /// Gives rank r the root's block r, of `counts[r]` elements. `input` and `counts` are used on the root only.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<()> {
        let (from, inputs): (*const T, Box<[usize]>) = if self.rank() == root {
            self.expect_counts(Collective::Scatter, "counts", counts)?;
            self.expect_len(Collective::Scatter, "output", output.len(), counts[root as usize])?;
            self.expect_len(Collective::Scatter, "input", input.len(), counts.iter().sum())?;
            (input.as_ptr(), counts.into())
        } else {
            (std::ptr::null(), Box::default())
        };
        let counts = Counts::Uneven { input: inputs, output: Box::new([output.len()]) };
        // SAFETY: as above.
        unsafe {
            self.uneven::<T>(Collective::Scatter, from, output.as_mut_ptr(), counts, ReduceOp::Sum, root)
        }
    }

    /// Sends `send_counts[s]` elements to each rank s and receives `recv_counts[r]` from each rank r.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        self.expect_counts(Collective::AllToAll, "send counts", send_counts)?;
        self.expect_counts(Collective::AllToAll, "receive counts", recv_counts)?;
        self.expect_len(Collective::AllToAll, "input", input.len(), send_counts.iter().sum())?;
        self.expect_len(Collective::AllToAll, "output", output.len(), recv_counts.iter().sum())?;
        let counts = Counts::Uneven { input: send_counts.into(), output: recv_counts.into() };
        // SAFETY: as above.
        unsafe {
            self.uneven::<T>(
                Collective::AllToAll,
                input.as_ptr(),
                output.as_mut_ptr(),
                counts,
                ReduceOp::Sum,
                0,
            )
        }
    }

    /// # Safety
    /// The buffers are as long as the counts say, and exclusively ours.
    unsafe fn uneven<T: Element>(
        &self,
        collective: Collective,
        input: *const T,
        output: *mut T,
        counts: Counts,
        op: ReduceOp,
        root: u32,
    ) -> Result<()> {
        if root >= self.world_size() {
            let problem = format!("root {root} is out of range: ranks are 0 to {}", self.world_size() - 1);
            return Err(self.usage(collective.name(), problem));
        }
        if crate::call::reduces(collective) && !op.supports(T::TYPE) {
            let problem = format!("operator {} is not defined for {}", op.name(), T::TYPE);
            return Err(self.usage(collective.name(), problem));
        }
        let call = Call {
            collective,
            input: input.cast(),
            output: output.cast(),
            counts,
            data_type: T::TYPE,
            op,
            root,
            placement: Placement::OutOfPlace,
        };
        // SAFETY: the caller's promise.
        unsafe { self.shared.run(&call, self.shared.config.timeout) }
    }

    fn expect_counts(&self, collective: Collective, what: &str, counts: &[usize]) -> Result<()> {
        if counts.len() == self.world_size() as usize {
            return Ok(());
        }
        let problem =
            format!("{} {what} were given, one per rank is needed: {}", counts.len(), self.world_size());
        Err(self.usage(collective.name(), problem))
    }
}
