//! Asynchronous collectives that own their buffers, including those on blocks of unequal length.
//!
//! Each method takes its buffer by value, a `Vec` or any other [`StableBuffer`], and [`Work::wait`] gives the output
//! back. The handle may therefore be dropped, leaked or forgotten. Operations started on a communicator overlap; all
//! ranks start them in the same order. For borrowed buffers see [`Communicator::scope`].
//!
//! An owner is put in its box before the address of its elements is taken, and stays there: moving a `Box<[T]>` asserts
//! that no other pointer accesses the elements.

use std::sync::Arc;

use kolo_collectives::plan::Collective;

use super::Communicator;
use super::stable::StableBuffer;
use super::work::{Kept, Work};
use crate::drive;
use crate::error::Result;
use crate::types::{Element, ReduceOp, zeros};

/// Defines methods that start an in-place call on an owned buffer, which the work gives back.
macro_rules! starts_in_place {
    ($($(#[$doc:meta])* $name:ident($buffer:ident $(, $arg:ident: $type:ty)*) as $blocking:ident
        => $call:ident($($given:expr),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As [`Communicator::", stringify!($blocking), "`].")]
        pub fn $name<B>(&self, $buffer: B $(, $arg: $type)*) -> Result<Work<B>>
        where
            B: StableBuffer<Item: Element> + Send + 'static,
        {
            let mut kept = Box::new($buffer);
            let call = {
                let $buffer = kept.elements();
                self.$call($($given),*)?
            };
            // SAFETY: the call is on these elements. The engine keeps their owner, which does not move any more, until
            // the operation is done.
            let ticket = unsafe { drive::start(&self.shared, &call, Some(kept)) }?;
            Ok(self.work(ticket))
        }
    )*};
}

/// Defines methods that start a call from an owned buffer into a new vector, which the work gives.
macro_rules! starts_into {
    ($($(#[$doc:meta])* $name:ident($comm:ident, $input:ident $(, $arg:ident: $type:ty)*) as $blocking:ident
        => $output:ident = $room:expr, $call:ident($($given:expr),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As [`Communicator::", stringify!($blocking), "`].")]
        pub fn $name<B>(&self, $input: B $(, $arg: $type)*) -> Result<Work<Vec<B::Item>>>
        where
            B: StableBuffer<Item: Element> + Send + 'static,
        {
            let $comm = self;
            let mut keep = Box::new(Pair { output: Vec::new(), input: $input });
            let Pair { output: $output, input: kept } = &mut *keep;
            let $input = kept.elements_ref();
            *$output = $room;
            let call = $comm.$call($($given),*)?;
            // SAFETY: the call is on these elements, whose owners the engine keeps, without moving them, until the
            // operation is done.
            let ticket = unsafe { drive::start(&self.shared, &call, Some(keep)) }?;
            let output = |kept: Kept, _| kept.downcast::<Pair<B>>().ok().map(|pair| pair.output);
            Ok(Work::extracting(Arc::clone(&self.shared), ticket, output))
        }
    )*};
}

/// # Asynchronous collectives
impl Communicator {
    starts_in_place! {
        /// Starts an in-place all-reduce.
        all_reduce_start(buffer, op: ReduceOp) as all_reduce
            => vector_call(Collective::AllReduce, buffer, op, 0);
        /// Starts a broadcast.
        broadcast_start(buffer, root: u32) as broadcast
            => vector_call(Collective::Broadcast, buffer, ReduceOp::Sum, root);
        /// Starts a reduce; the work gives the result on the root, and the unchanged buffer elsewhere.
        reduce_start(buffer, op: ReduceOp, root: u32) as reduce => reduce_in_place_call(buffer, op, root);
        /// Starts an in-place scan.
        scan_start(buffer, op: ReduceOp) as scan => vector_call(Collective::Scan, buffer, op, 0);
        /// Starts an in-place exclusive scan.
        exscan_start(buffer, op: ReduceOp) as exscan => vector_call(Collective::ExScan, buffer, op, 0);
    }

    starts_into! {
        /// Starts an all-gather; the work gives the blocks of all ranks in rank order.
        all_gather_start(comm, input) as all_gather
            => output = comm.room(Collective::AllGather, &vec![input.len(); comm.world_size() as usize])?,
            all_gather_call(input, output);
        /// Starts a gather; the work gives the blocks of all ranks on the root, and nothing elsewhere.
        gather_start(comm, input, root: u32) as gather
            => output = comm.room(Collective::Gather, &vec![input.len(); comm.blocks_at(root)])?,
            gather_call(input, output, root);
        /// Starts a scatter; the work gives this rank's block, of `count` elements. `input` is used on the root only.
        scatter_start(comm, input, count: usize, root: u32) as scatter
            => output = comm.room(Collective::Scatter, &[count])?, scatter_call(input, output, root);
        /// Starts a reduce-scatter; the work gives this rank's block. The input is cut into equal blocks.
        reduce_scatter_start(comm, input, op: ReduceOp) as reduce_scatter
            => output = zeros(input.len() / comm.world_size() as usize),
            reduce_scatter_call(input, output, op);
        /// Starts an all-to-all; the work gives the received blocks. The input is cut into equal blocks.
        all_to_all_start(comm, input) as all_to_all
            => output = zeros(input.len()), all_to_all_call(input, output);
        /// Starts an all-gather of blocks of `counts[r]` elements from each rank r; the work gives all of them in
        /// rank order.
        all_gather_v_start(comm, input, counts: &[usize]) as all_gather_v
            => output = comm.room(Collective::AllGather, counts)?,
            all_gather_v_call(input, output, counts);
        /// Starts a reduce-scatter of blocks of `counts[r]` elements for each rank r; the work gives this rank's
        /// block.
        reduce_scatter_v_start(comm, input, counts: &[usize], op: ReduceOp) as reduce_scatter_v
            => output = {
                comm.expect_counts(Collective::ReduceScatter, "counts", counts)?;
                comm.room(Collective::ReduceScatter, &counts[comm.rank() as usize..][..1])?
            },
            reduce_scatter_v_call(input, output, counts, op);
        /// Starts a gather of `counts[r]` elements from each rank r; the work gives all of them on the root, and
        /// nothing elsewhere. `counts` is used on the root only.
        gather_v_start(comm, input, counts: &[usize], root: u32) as gather_v
            => output = comm.room(Collective::Gather, if comm.rank() == root { counts } else { &[] })?,
            gather_v_call(input, output, counts, root);
        /// Starts a scatter that gives each rank r `counts[r]` elements of the root's input; the work gives this
        /// rank's `count` elements. `input` and `counts` are used on the root only.
        scatter_v_start(comm, input, counts: &[usize], count: usize, root: u32) as scatter_v
            => output = comm.room(Collective::Scatter, &[count])?,
            scatter_v_call(input, output, counts, root);
        /// Starts an all-to-all of `send_counts[s]` elements to each rank s and `recv_counts[r]` from each rank r;
        /// the work gives the received elements in rank order.
        all_to_all_v_start(comm, input, send_counts: &[usize], recv_counts: &[usize]) as all_to_all_v
            => output = comm.room(Collective::AllToAll, recv_counts)?,
            all_to_all_v_call(input, send_counts, output, recv_counts);
    }

    /// Starts a barrier: the work is done once every rank has started it.
    ///
    /// # Errors
    /// See [`Communicator::barrier`].
    pub fn barrier_start(&self) -> Result<Work<()>> {
        let call = self.barrier_call();
        // SAFETY: a barrier has no buffers.
        let ticket = unsafe { drive::start(&self.shared, &call, Some(Box::new(()))) }?;
        Ok(self.work(ticket))
    }

    /// Returns the number of blocks that a gather gives this rank.
    fn blocks_at(&self, root: u32) -> usize {
        if self.rank() == root { self.world_size() as usize } else { 0 }
    }

    /// Returns a vector of zeros for blocks of these lengths.
    fn room<T: Element>(&self, collective: Collective, counts: &[usize]) -> Result<Vec<T>> {
        let len = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        let addressable =
            |len: &usize| len.checked_mul(size_of::<T>()).is_some_and(|n| isize::try_from(n).is_ok());
        len.filter(addressable).map(zeros).ok_or_else(|| {
            let problem = "the counts add up to more than can be addressed".to_owned();
            self.usage(collective.name(), problem)
        })
    }
}

/// Input and output of one operation.
struct Pair<B: StableBuffer> {
    output: Vec<B::Item>,
    input: B,
}
