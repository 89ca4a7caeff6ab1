//! The v-forms: blocks of unequal length.
//!
//! Blocks lie one behind the other. Where every rank must know all lengths (`all_gather_v`, `reduce_scatter_v`) all pass
//! the same list; elsewhere a rank knows its own, and those of its peers must fit.

use super::Communicator;
use super::collectives::runs;
use crate::error::Result;
use crate::types::{Element, ReduceOp};

impl Communicator {
    runs! {
        /// Puts blocks of `counts[r]` elements of each rank r behind one another in `output`.
        all_gather_v(input: &[T], output: &mut [T], counts: &[usize])
            => all_gather_v_call(input, output, counts);
        /// Gives rank r the reduction of everybody's block r, which has `counts[r]` elements.
        reduce_scatter_v(input: &[T], output: &mut [T], counts: &[usize], op: ReduceOp)
            => reduce_scatter_v_call(input, output, counts, op);
        /// Gives the root the blocks of all ranks, `counts[r]` elements from rank r. `output` and `counts` are used on
        /// the root only.
        gather_v(input: &[T], output: &mut [T], counts: &[usize], root: u32)
            => gather_v_call(input, output, counts, root);
        /// Gives rank r the root's block r, of `counts[r]` elements. `input` and `counts` are used on the root only.
        scatter_v(input: &[T], output: &mut [T], counts: &[usize], root: u32)
            => scatter_v_call(input, output, counts, root);
        /// Sends `send_counts[s]` elements to each rank s and receives `recv_counts[r]` from each rank r.
        all_to_all_v(input: &[T], send_counts: &[usize], output: &mut [T], recv_counts: &[usize])
            => all_to_all_v_call(input, send_counts, output, recv_counts);
    }
}
