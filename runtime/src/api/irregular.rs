//! Collectives on blocks of unequal length (v-forms).
//!
//! Blocks lie one behind the other. Where every rank must know all lengths (`all_gather_v`, `reduce_scatter_v`), all
//! ranks pass the same list. In the other calls a rank passes its own lengths, and its peers' must fit them.

use super::Communicator;
use super::collectives::runs;
use crate::error::Result;
use crate::types::{Element, ReduceOp};

/// # Collectives on blocks of unequal length
impl Communicator {
    runs! {
        /// Concatenates the blocks of all ranks in `output`, `counts[r]` elements from rank r.
        all_gather_v(input: &[T], output: &mut [T], counts: &[usize])
            => all_gather_v_call(input, output, counts);
        /// Gives rank r the reduction of block r, of `counts[r]` elements, over all ranks.
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
