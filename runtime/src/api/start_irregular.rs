//! Asynchronous v-forms that own their buffers.

use kolo_collectives::plan::Collective;

use super::Communicator;
use super::work::Work;
use crate::error::Result;
use crate::types::{Element, ReduceOp, zeros};

impl Communicator {
    /// Starts an all-gather of blocks of `counts[r]` elements of each rank r; the work gives all of them, one behind the
    /// other.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn all_gather_v_start<T: Element>(&self, input: Vec<T>, counts: &[usize]) -> Result<Work<Vec<T>>> {
        let mut output = self.room(Collective::AllGather, counts)?;
        let call = self.all_gather_v_call(&input, &mut output, counts)?;
        // SAFETY: the call was made from these vectors.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a reduce-scatter of blocks of `counts[r]` elements for each rank r; the work gives this rank's.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v_start<T: Element>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Work<Vec<T>>> {
        self.expect_counts(Collective::ReduceScatter, "counts", counts)?;
        let own = &counts[self.rank() as usize..][..1];
        let mut output = self.room(Collective::ReduceScatter, own)?;
        let call = self.reduce_scatter_v_call(&input, &mut output, counts, op)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a gather of `counts[r]` elements from each rank r; the work gives all of them on the root and nothing
    /// elsewhere. `counts` is used on the root only.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    pub fn gather_v_start<T: Element>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        root: u32,
    ) -> Result<Work<Vec<T>>> {
        let blocks = if self.rank() == root { counts } else { &[] };
        let mut output = self.room(Collective::Gather, blocks)?;
        let call = self.gather_v_call(&input, &mut output, counts, root)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts a scatter that gives each rank r its `counts[r]` elements of the root's input; the work gives this rank's,
    /// of which there are `count`. `input` and `counts` are used on the root only.
    ///
    /// # Errors
    /// As [`Communicator::scatter_v`].
    pub fn scatter_v_start<T: Element>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        count: usize,
        root: u32,
    ) -> Result<Work<Vec<T>>> {
        let mut output = self.room(Collective::Scatter, &[count])?;
        let call = self.scatter_v_call(&input, &mut output, counts, root)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// Starts an all-to-all of `send_counts[s]` elements to each rank s and `recv_counts[r]` from each rank r; the work
    /// gives the latter, one behind the other.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_v`].
    pub fn all_to_all_v_start<T: Element>(
        &self,
        input: Vec<T>,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Work<Vec<T>>> {
        let mut output = self.room(Collective::AllToAll, recv_counts)?;
        let call = self.all_to_all_v_call(&input, send_counts, &mut output, recv_counts)?;
        // SAFETY: as above.
        unsafe { self.start_into(&call, input, output) }
    }

    /// A vector for blocks of these lengths.
    pub(super) fn room<T: Element>(&self, collective: Collective, counts: &[usize]) -> Result<Vec<T>> {
        let len = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        let addressable =
            |len: &usize| len.checked_mul(size_of::<T>()).is_some_and(|n| isize::try_from(n).is_ok());
        len.filter(addressable).map(zeros).ok_or_else(|| {
            let problem = "the counts add up to more than can be addressed".to_owned();
            self.usage(collective.name(), problem)
        })
    }
}
