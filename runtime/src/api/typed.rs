//! Builds checked calls from typed slices, for blocking calls, scopes and operations that own their buffers.
//!
//! Building a call touches no memory. The code that runs a call promises that the slices stay as they are until it is
//! over.

use kolo_collectives::plan::{Collective, Placement};

use super::Communicator;
use crate::call::ranges::{Range, is_addressable};
use crate::call::{Call, Counts, Member, NO_OP, RawCall, RawCallV, out_of_range, overlap, reduces};
use crate::error::Result;
use crate::types::{DataType, Element, ReduceOp};

impl Communicator {
    /// Builds an in-place call on one vector per rank.
    pub(super) fn vector_call<T: Element>(
        &self,
        collective: Collective,
        buffer: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<Call> {
        let at = buffer.as_mut_ptr();
        self.even::<T>(collective, at, at, buffer.len(), op, root)
    }

    /// Builds an out-of-place call on one vector per rank.
    pub(super) fn vector_call_into<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<Call> {
        self.expect_len(collective, "output", output.len(), input.len())?;
        self.even(collective, input.as_ptr(), output.as_mut_ptr(), input.len(), op, 0)
    }

    pub(super) fn all_gather_call<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<Call> {
        self.expect_len(Collective::AllGather, "output", output.len(), self.blocks_of(input.len()))?;
        self.even(Collective::AllGather, input.as_ptr(), output.as_mut_ptr(), input.len(), NO_OP, 0)
    }

    pub(super) fn reduce_scatter_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<Call> {
        self.expect_len(Collective::ReduceScatter, "input", input.len(), self.blocks_of(output.len()))?;
        self.even(Collective::ReduceScatter, input.as_ptr(), output.as_mut_ptr(), output.len(), op, 0)
    }

    pub(super) fn reduce_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<Call> {
        let to = self.at_root(Collective::Reduce, output, input.len(), root)?;
        self.even(Collective::Reduce, input.as_ptr(), to, input.len(), op, root)
    }

    pub(super) fn reduce_in_place_call<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<Call> {
        let at = buffer.as_mut_ptr();
        let to = if self.rank() == root { at } else { std::ptr::null_mut() };
        self.even(Collective::Reduce, at, to, buffer.len(), op, root)
    }

    pub(super) fn gather_call<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<Call> {
        let to = self.at_root(Collective::Gather, output, self.blocks_of(input.len()), root)?;
        self.even(Collective::Gather, input.as_ptr(), to, input.len(), NO_OP, root)
    }

    pub(super) fn scatter_call<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<Call> {
        let from = if self.rank() == root {
            self.expect_len(Collective::Scatter, "input", input.len(), self.blocks_of(output.len()))?;
            input.as_ptr()
        } else {
            std::ptr::null()
        };
        self.even(Collective::Scatter, from, output.as_mut_ptr(), output.len(), NO_OP, root)
    }

    pub(super) fn all_to_all_call<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<Call> {
        self.expect_len(Collective::AllToAll, "output", output.len(), input.len())?;
        let count = self.divided(Collective::AllToAll, input.len())?;
        self.even(Collective::AllToAll, input.as_ptr(), output.as_mut_ptr(), count, NO_OP, 0)
    }

    /// Builds a barrier. Its call is sound, since it has no buffers.
    #[inline]
    pub(super) fn barrier_call(&self) -> Call {
        Call {
            member: self.member(),
            collective: Collective::Barrier,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            counts: Counts::Even(0),
            data_type: DataType::U8,
            op: NO_OP,
            root: 0,
            placement: if self.world_size() > 1 { Placement::InPlace } else { Placement::OutOfPlace },
            shards: None,
            gpus: None,
        }
    }

    pub(super) fn all_gather_v_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<Call> {
        self.expect_counts(Collective::AllGather, "counts", counts)?;
        let own = [counts[self.rank() as usize]];
        self.uneven(Collective::AllGather, (input, &own), (output, counts), NO_OP, 0)
    }

    pub(super) fn reduce_scatter_v_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Call> {
        self.expect_counts(Collective::ReduceScatter, "counts", counts)?;
        let own = [counts[self.rank() as usize]];
        self.uneven(Collective::ReduceScatter, (input, counts), (output, &own), op, 0)
    }

    pub(super) fn gather_v_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<Call> {
        if self.rank() != root {
            return self.uneven(Collective::Gather, (input, &[input.len()]), (&mut [], &[]), NO_OP, root);
        }
        self.expect_counts(Collective::Gather, "counts", counts)?;
        let own = [counts[root as usize]];
        self.uneven(Collective::Gather, (input, &own), (output, counts), NO_OP, root)
    }

    pub(super) fn scatter_v_call<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<Call> {
        if self.rank() != root {
            let own = [output.len()];
            return self.uneven(Collective::Scatter, (&[], &[]), (output, &own), NO_OP, root);
        }
        self.expect_counts(Collective::Scatter, "counts", counts)?;
        let own = [counts[root as usize]];
        self.uneven(Collective::Scatter, (input, counts), (output, &own), NO_OP, root)
    }

    pub(super) fn all_to_all_v_call<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<Call> {
        self.expect_counts(Collective::AllToAll, "send counts", send_counts)?;
        self.expect_counts(Collective::AllToAll, "receive counts", recv_counts)?;
        self.uneven(Collective::AllToAll, (input, send_counts), (output, recv_counts), NO_OP, 0)
    }

    /// Checks and builds a call with blocks of unequal length (a v-form) on raw memory.
    pub(super) fn uneven_call(&self, raw: &RawCallV<'_>) -> Result<Call> {
        let (collective, member) = (raw.collective, self.member());
        check_uneven(raw, member).map_err(|problem| self.usage(collective.name(), problem))?;
        Ok(Call {
            member,
            collective,
            input: raw.input,
            output: raw.output,
            counts: Counts::Uneven { input: raw.input_counts.into(), output: raw.output_counts.into() },
            data_type: raw.data_type,
            op: if reduces(collective) { raw.op } else { NO_OP },
            root: if collective.is_rooted() { raw.root } else { 0 },
            placement: Placement::OutOfPlace,
            shards: None,
            gpus: None,
        })
    }

    fn uneven<T: Element>(
        &self,
        collective: Collective,
        (input, input_counts): (&[T], &[usize]),
        (output, output_counts): (&mut [T], &[usize]),
        op: ReduceOp,
        root: u32,
    ) -> Result<Call> {
        self.expect_sum(collective, "input", input.len(), input_counts)?;
        self.expect_sum(collective, "output", output.len(), output_counts)?;
        self.uneven_call(&RawCallV {
            collective,
            input: input.as_ptr().cast(),
            input_counts,
            output: output.as_mut_ptr().cast(),
            output_counts,
            data_type: T::TYPE,
            op,
            root,
        })
    }

    fn expect_sum(&self, collective: Collective, what: &str, found: usize, counts: &[usize]) -> Result<()> {
        // No slice is as long as a saturated sum.
        let sum = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
        self.expect_len(collective, what, found, sum)
    }

    pub(super) fn even<T: Element>(
        &self,
        collective: Collective,
        input: *const T,
        output: *mut T,
        count: usize,
        op: ReduceOp,
        root: u32,
    ) -> Result<Call> {
        let raw = RawCall {
            collective,
            input: input.cast(),
            output: output.cast(),
            count,
            data_type: T::TYPE,
            op,
            root,
        };
        Call::check(&raw, self.member())
    }

    /// Returns the root's output, of `count` elements; null on the other ranks.
    fn at_root<T>(&self, of: Collective, output: &mut [T], count: usize, root: u32) -> Result<*mut T> {
        if self.rank() != root {
            return Ok(std::ptr::null_mut());
        }
        self.expect_len(of, "output", output.len(), count)?;
        Ok(output.as_mut_ptr())
    }

    fn blocks_of(&self, count: usize) -> usize {
        count.saturating_mul(self.world_size() as usize)
    }

    pub(super) fn expect_counts(&self, collective: Collective, what: &str, counts: &[usize]) -> Result<()> {
        if counts.len() == self.world_size() as usize {
            return Ok(());
        }
        let problem =
            format!("{} {what} were given, but one per rank is needed: {}", counts.len(), self.world_size());
        Err(self.usage(collective.name(), problem))
    }
}

/// Checks a call with blocks of unequal length.
///
/// # Errors
/// A text that says what is wrong.
fn check_uneven(raw: &RawCallV<'_>, member: Member) -> std::result::Result<(), String> {
    if raw.collective.is_rooted() && raw.root >= member.world_size {
        return Err(out_of_range("root", raw.root, member.world_size));
    }
    check_counts(raw, member)?;
    if reduces(raw.collective) && !raw.op.supports(raw.data_type) {
        return Err(format!("operator {} is not defined for {}", raw.op.name(), raw.data_type));
    }
    let range = |what: &str, start: *const u8, counts: &[usize]| {
        let elements = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        let bytes = elements.and_then(|elements| elements.checked_mul(raw.data_type.size()));
        match bytes.filter(|bytes| is_addressable(*bytes)) {
            None => Err(format!("the {what} counts add up to more than can be addressed")),
            Some(bytes) if start.is_null() && bytes > 0 => {
                Err(format!("the {what} is null, but should hold {bytes} bytes"))
            }
            Some(bytes) => Ok(Range::new(start, bytes)),
        }
    };
    let input = range("input", raw.input, raw.input_counts)?;
    let output = range("output", raw.output.cast_const(), raw.output_counts)?;
    if input.meets(output) {
        return Err(overlap(input, output, "with blocks of unequal length they must not overlap"));
    }
    own_block_differs(raw, member).map_or(Ok(()), Err)
}

/// Checks the numbers of counts.
fn check_counts(raw: &RawCallV<'_>, Member { rank, world_size }: Member) -> std::result::Result<(), String> {
    let (ranks, at_root) = (world_size as usize, rank == raw.root);
    let (reads, writes) = match raw.collective {
        Collective::AllGather => (1, ranks),
        Collective::ReduceScatter => (ranks, 1),
        Collective::Gather => (1, if at_root { ranks } else { 0 }),
        Collective::Scatter => (if at_root { ranks } else { 0 }, 1),
        Collective::AllToAll => (ranks, ranks),
        _ => return Err("it does not support blocks of unequal length".to_owned()),
    };
    let (input, output) = (raw.input_counts, raw.output_counts);
    for (what, found, wanted) in [("input", input.len(), reads), ("output", output.len(), writes)] {
        if found != wanted {
            return Err(format!("{found} {what} counts were given, but {wanted} are needed"));
        }
    }
    Ok(())
}

/// Returns what is wrong if the rank's own block is not as long in its input as in its output.
fn own_block_differs(raw: &RawCallV<'_>, Member { rank, world_size }: Member) -> Option<String> {
    let block_of = |counts: &[usize]| {
        let own = if counts.len() == world_size as usize { rank as usize } else { 0 };
        counts.get(own).copied()
    };
    let (input, output) = (block_of(raw.input_counts)?, block_of(raw.output_counts)?);
    (input != output).then(|| {
        format!("this rank's own block has {input} elements in the input, but {output} in the output")
    })
}
