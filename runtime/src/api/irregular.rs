//! The v-forms: blocks of unequal length.
//!
//! Blocks lie one behind the other. Where every rank must know all lengths (`all_gather_v`, `reduce_scatter_v`) all pass
//! the same list; elsewhere a rank knows its own, and those of its peers must fit.

use super::Communicator;
use crate::drive;
use crate::error::Result;
use crate::types::{Element, ReduceOp};

impl Communicator {
    /// Puts blocks of `counts[r]` elements of each rank r behind one another in `output`.
    ///
    /// # Errors
    /// As the other collectives.
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        let call = self.all_gather_v_call(input, output, counts)?;
        // SAFETY: the slices are as long as the call says, which was checked, and borrowed until it is over.
        unsafe { drive::run(&self.shared, &call) }
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
        let call = self.reduce_scatter_v_call(input, output, counts, op)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
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
        let call = self.gather_v_call(input, output, counts, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
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
        let call = self.scatter_v_call(input, output, counts, root)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
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
        let call = self.all_to_all_v_call(input, send_counts, output, recv_counts)?;
        // SAFETY: as above.
        unsafe { drive::run(&self.shared, &call) }
    }
}
