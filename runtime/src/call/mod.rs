//! A collective call as a value: checked, described and signed before anything moves.

mod forced;
mod gpus;
pub(crate) mod ranges;
mod summary;
mod waited;

pub(crate) use forced::Forced;
pub(crate) use gpus::{AdapterAccess, GpuBuffers};
pub use summary::{CallLabel, Summary};
pub(crate) use waited::{Message, Single, Waited};

use kolo_collectives::plan::{Collective, Placement};
use kolo_collectives::shards::of_rank as own_shards;

use crate::error::{Error, ErrorContext, Result};
use crate::mix::mix;
use crate::reduce::{Arithmetic, Combine};
use crate::types::{DataType, ReduceOp};
use ranges::Range;

/// A collective call on raw memory, for bindings and tools.
///
/// `count` has NCCL's meaning: elements of the vector for all-reduce, reduce, broadcast and scans; elements of one
/// rank's block for the others. The pointers say whether input and output share memory, as NCCL defines it: they are
/// equal for the vector collectives and all-to-all, and the shorter buffer is the rank's own block of the longer one
/// for the others. Ranks need not agree on it. Buffers that overlap in any other way are refused, and so are lengths of
/// more than `isize::MAX` bytes.
///
/// Buffers may be memory of an NVIDIA GPU, named by its CUDA address (a `CUdeviceptr` as a number), on any ranks and
/// for any of the buffers. The caller has synchronised the streams that wrote the input or use the output. When the
/// call or the wait for it has returned, all streams see the output. Managed memory counts as host memory.
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// The collective.
    pub collective: Collective,
    /// Send buffer; may be null where this rank sends nothing.
    pub input: *const u8,
    /// Receive buffer; may be null where this rank receives nothing.
    pub output: *mut u8,
    /// Number of elements; see above. Ignored for barriers, as the type is.
    pub count: usize,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, if the collective reduces; ignored otherwise.
    pub op: ReduceOp,
    /// Root, if the collective has one; ignored otherwise.
    pub root: u32,
}

/// A call with blocks of unequal length on raw memory, for bindings and tools: all-gather, reduce-scatter, gather, scatter
/// or all-to-all. Blocks lie one behind the other; input and output do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct RawCallV<'a> {
    /// The collective.
    pub collective: Collective,
    /// Send buffer; may be null where this rank sends nothing.
    pub input: *const u8,
    /// Elements of each block of the input: one entry per rank for reduce-scatter, all-to-all and the root of a
    /// scatter; none on a scatter's other ranks; otherwise one entry, for this rank.
    pub input_counts: &'a [usize],
    /// Receive buffer; may be null where this rank receives nothing.
    pub output: *mut u8,
    /// Elements of each block of the output: one entry per rank for all-gather, all-to-all and the root of a gather;
    /// none on a gather's other ranks; otherwise one entry, for this rank.
    pub output_counts: &'a [usize],
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, for reduce-scatter; ignored otherwise.
    pub op: ReduceOp,
    /// Root, if the collective has one; ignored otherwise.
    pub root: u32,
}

/// Lengths of the blocks of a call.
#[derive(Clone, Debug)]
pub(crate) enum Counts {
    /// All blocks have the same number of elements.
    Even(usize),
    /// The v-forms: numbers of elements of this rank's input blocks and output blocks.
    Uneven { input: Box<[usize]>, output: Box<[usize]> },
    /// An all-reduce over shards, each of this many elements. The input is this rank's run of them, one behind the
    /// other.
    Shards(usize),
}

/// Form of a call. Blocking and started calls do not match each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Blocking,
    Started,
}

/// A member of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    /// Number of members.
    pub(crate) world_size: u32,
}

/// Operator of calls that do not reduce. It is defined for every type, and does not scale.
pub(crate) const NO_OP: ReduceOp = ReduceOp::Sum;

/// A checked call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The caller.
    pub(crate) member: Member,
    pub(crate) collective: Collective,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    pub(crate) counts: Counts,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) placement: Placement,
    /// Number of shards of all ranks together, for an all-reduce over shards.
    pub(crate) shards: Option<u32>,
    /// GPUs that own the buffers, found out for calls on raw memory. In a box, since few calls have any.
    pub(crate) gpus: Option<Box<GpuBuffers>>,
}

impl Call {
    /// Checks a raw call. Inlined, since most callers know collective, type and operator, which leaves little to check.
    #[inline]
    pub(crate) fn check(raw: &RawCall, member: Member) -> Result<Self> {
        let call = Self::unchecked(raw, member);
        if call.is_sound() { Ok(call) } else { Err(call.refusal()) }
    }

    #[inline]
    fn unchecked(raw: &RawCall, member: Member) -> Self {
        // A barrier has no data. A count would be cut into segments, each of them a barrier.
        let (count, data_type) = match raw.collective {
            Collective::Barrier => (0, DataType::U8),
            _ => (raw.count, raw.data_type),
        };
        Self {
            member,
            collective: raw.collective,
            input: raw.input,
            output: raw.output,
            counts: Counts::Even(count),
            data_type,
            op: if reduces(raw.collective) { raw.op } else { NO_OP },
            root: if raw.collective.is_rooted() { raw.root } else { 0 },
            placement: placement(raw, member),
            shards: None,
            gpus: None,
        }
    }

    #[inline]
    fn is_sound(&self) -> bool {
        self.root < self.member.world_size
            && self.op.supports(self.data_type)
            && !self.is_prefix_of_averages()
            && self.is_addressable()
            && self.has_its_buffers()
            && self.lies_apart()
    }

    #[inline]
    fn is_prefix_of_averages(&self) -> bool {
        matches!(self.collective, Collective::Scan | Collective::ExScan)
            && matches!(self.op, ReduceOp::Avg | ReduceOp::PremulSum(_))
    }

    #[inline]
    fn is_addressable(&self) -> bool {
        let Counts::Even(count) = self.counts else { return true };
        let blocks = if self.collective.has_block_per_rank() { self.member.world_size as usize } else { 1 };
        let bytes = count.checked_mul(self.data_type.size()).and_then(|bytes| bytes.checked_mul(blocks));
        bytes.is_some_and(ranges::is_addressable)
    }

    #[inline]
    fn has_its_buffers(&self) -> bool {
        let (reads, writes) = self.touches();
        matches!(self.counts, Counts::Even(0))
            || !((reads && self.input.is_null()) || (writes && self.output.is_null()))
    }

    /// Returns whether input and output have no byte in common, or lie as an in-place call requires. Called after the
    /// checks above.
    #[inline]
    fn lies_apart(&self) -> bool {
        self.placement == Placement::InPlace || {
            let (input, output) = self.ranges();
            !input.meets(output)
        }
    }

    #[inline]
    fn ranges(&self) -> (Range, Range) {
        let (input, output) = self.bytes();
        (Range::new(self.input, input), Range::new(self.output, output))
    }

    /// Returns the call, if its buffers lie apart.
    pub(crate) fn apart(self) -> Result<Self> {
        if self.lies_apart() { Ok(self) } else { Err(self.refusal()) }
    }

    /// Returns the problem with a call that is not [sound](Self::is_sound).
    #[cold]
    fn refusal(&self) -> Error {
        let name = self.op.name();
        let Member { rank, world_size } = self.member;
        let problem = if self.root >= world_size {
            out_of_range("root", self.root, world_size)
        } else if !self.op.supports(self.data_type) {
            format!("operator {name} is not defined for {}", self.data_type)
        } else if self.is_prefix_of_averages() {
            format!("operator {name} is not defined for prefixes; use sum and scale the result")
        } else if !self.is_addressable() {
            let per_rank = if self.collective.has_block_per_rank() { " for each rank" } else { "" };
            let count = self.summary(Form::Blocking).count.unwrap_or(0);
            format!("{count} elements{per_rank} are more than can be addressed")
        } else if !self.has_its_buffers() {
            "a null pointer was given for a buffer that is not empty".to_owned()
        } else {
            let (input, output) = self.ranges();
            let rule = match self.shards {
                Some(_) => "with shards they must not overlap",
                None => in_place_rule(self.collective),
            };
            overlap(input, output, rule)
        };
        let operation = self.summary(Form::Blocking).to_string();
        Error::Usage { context: ErrorContext::unnumbered(rank, operation), problem }
    }

    /// Returns the GPUs that own the buffers.
    pub(crate) fn gpus(&self) -> &GpuBuffers {
        static NONE: GpuBuffers = GpuBuffers { input: None, output: None, access: AdapterAccess::Staged };
        self.gpus.as_deref().unwrap_or(&NONE)
    }

    /// Returns the factor of [`ReduceOp::PremulSum`].
    #[inline]
    pub(crate) const fn factor(&self) -> Option<f64> {
        if let ReduceOp::PremulSum(factor) = self.op { Some(factor) } else { None }
    }

    /// Returns how the call combines elements, with this kernel and order of reduction.
    #[inline]
    pub(crate) fn arithmetic(&self, combine: Combine, canonical: bool) -> Arithmetic {
        let is_average = matches!(self.op, ReduceOp::Avg);
        Arithmetic {
            combine,
            data_type: self.data_type,
            factor: self.factor(),
            divisor: is_average.then(|| self.shards.unwrap_or(self.member.world_size)),
            canonical,
        }
    }

    /// Returns whether the caller is the root.
    #[inline]
    fn is_root(&self) -> bool {
        self.member.rank == self.root
    }

    /// Returns whether the caller's input is read, and whether its output is written.
    #[inline]
    pub(crate) fn touches(&self) -> (bool, bool) {
        touches(self.collective, self.is_root())
    }

    /// Returns the bytes of the caller's input and output; 0 where it has none.
    #[inline]
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let Member { rank, world_size } = self.member;
        let size = self.data_type.size();
        let count = match &self.counts {
            Counts::Even(count) => *count,
            Counts::Uneven { input, output } => {
                return (input.iter().sum::<usize>() * size, output.iter().sum::<usize>() * size);
            }
            Counts::Shards(count) => {
                let own = own_shards(self.shards.unwrap_or(0), rank, world_size).len();
                return (own * count * size, count * size);
            }
        };
        let (is_root, all) = (usize::from(self.is_root()), world_size as usize);
        let (inputs, outputs) = match self.collective {
            Collective::AllReduce | Collective::Scan | Collective::ExScan => (1, 1),
            Collective::AllGather => (1, all),
            Collective::ReduceScatter => (all, 1),
            Collective::Broadcast => (is_root, 1),
            Collective::Reduce => (1, is_root),
            Collective::Gather => (1, is_root * all),
            Collective::Scatter => (is_root * all, 1),
            Collective::AllToAll => (all, all),
            Collective::Barrier => (0, 0),
        };
        (inputs * count * size, outputs * count * size)
    }

    #[inline]
    pub(crate) fn summary(&self, form: Form) -> Summary {
        Summary {
            collective: self.collective,
            count: match self.counts {
                Counts::Even(count) | Counts::Shards(count) => Some(count),
                Counts::Uneven { .. } => None,
            },
            data_type: self.data_type,
            op: reduces(self.collective).then_some(self.op),
            root: self.collective.is_rooted().then_some(self.root),
            shards: self.shards,
            asynchronous: form == Form::Started,
        }
    }
}

/// Returns the tag in the header of every message of a call. It reveals mismatched calls where their messages meet.
pub(crate) const fn tag(communicator: u64, sequence: u64, signature: u64) -> u64 {
    // An odd factor keeps the numbers distinct, and the golden ratio's spreads them.
    mix(signature ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ communicator)
}

/// Returns the tag of point-to-point messages. Its lower half is the caller's tag, by which they are matched.
pub(crate) const fn transfer_tag(communicator: u64, data_type: DataType, tag: u32) -> u64 {
    mix(communicator ^ mix(data_type as u64 + 1)) & !0xffff_ffff | tag as u64
}

pub(crate) const fn reduces(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::Reduce
            | Collective::Scan
            | Collective::ExScan
    )
}

/// Returns whether a rank reads its input and whether it writes its output.
const fn touches(collective: Collective, is_root: bool) -> (bool, bool) {
    match collective {
        Collective::Broadcast => (is_root, true),
        Collective::Reduce | Collective::Gather => (true, is_root),
        Collective::Scatter => (is_root, true),
        Collective::Barrier => (false, false),
        _ => (true, true),
    }
}

/// Describes a root or another rank that a communicator of this size does not have.
pub(crate) fn out_of_range(what: &str, rank: u32, world_size: u32) -> String {
    format!("{what} {rank} is out of range: ranks are 0 to {}", world_size - 1)
}

/// Describes buffers that overlap, with the rule that they break.
pub(crate) fn overlap(input: Range, output: Range, rule: &str) -> String {
    format!("the input ({input}) and the output ({output}) overlap; {rule}")
}

const fn in_place_rule(collective: Collective) -> &'static str {
    match collective {
        Collective::AllGather | Collective::Gather => {
            "they must not overlap, unless the input is this rank's block of the output"
        }
        Collective::ReduceScatter | Collective::Scatter => {
            "they must not overlap, unless the output is this rank's block of the input"
        }
        _ => "they must not overlap, unless they begin at the same address",
    }
}

#[inline]
fn placement(raw: &RawCall, Member { rank, world_size }: Member) -> Placement {
    let block = raw.count.wrapping_mul(raw.data_type.size());
    let own = block.wrapping_mul(rank as usize);
    let (input, output) = (raw.input, raw.output.cast_const());
    let is_root = rank == raw.root;
    let in_place = match raw.collective {
        Collective::AllGather => input == output.wrapping_add(own),
        Collective::ReduceScatter => output == input.wrapping_add(own),
        Collective::Gather => is_root && input == output.wrapping_add(own),
        Collective::Scatter => is_root && output == input.wrapping_add(own),
        // Only the root has two buffers. Other ranks have an input (reduce) or an output (broadcast) alone.
        Collective::Reduce | Collective::Broadcast => is_root && input == output,
        Collective::Barrier => true,
        _ => input == output,
    };
    // With a single rank every block is its own block, and empty buffers have no place.
    if in_place && (world_size > 1 || !input.is_null()) { Placement::InPlace } else { Placement::OutOfPlace }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 1 of 4.
    const MEMBER: Member = Member { rank: 1, world_size: 4 };

    fn raw(collective: Collective, input: usize, output: usize, count: usize) -> RawCall {
        RawCall {
            collective,
            input: input as *const u8,
            output: output as *mut u8,
            count,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
        }
    }

    #[test]
    fn in_place_is_what_nccl_calls_so() {
        let placement = |raw: RawCall| Call::check(&raw, MEMBER).unwrap().placement;
        assert_eq!(placement(raw(Collective::AllReduce, 64, 64, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::AllReduce, 64, 128, 8)), Placement::OutOfPlace);
        assert_eq!(placement(raw(Collective::AllGather, 96, 64, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::ReduceScatter, 64, 96, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::ReduceScatter, 64, 192, 8)), Placement::OutOfPlace);
    }

    #[test]
    fn buffers_lie_apart_or_exactly_in_place() {
        use Collective as C;
        // 8 elements are 32 bytes. The calls are those of rank 1 of 4, and of rank 0, which is the root.
        let check = |rank: u32, call: (Collective, usize, usize)| {
            Call::check(&raw(call.0, call.1, call.2, 8), Member { rank, ..MEMBER })
                .map_err(|error| error.to_string())
        };
        let far = 1 << 20;
        for collective in C::ALL.into_iter().filter(|collective| *collective != C::Barrier) {
            for rank in [0, 1] {
                check(rank, (collective, far, 2 * far)).unwrap();
                check(rank, (collective, 2 * far, far)).unwrap();
                let (reads, writes) = touches(collective, rank == 0);
                for (input, output) in [(far, far + 4), (far + 4, far)] {
                    let checked = check(rank, (collective, input, output));
                    assert_eq!(checked.is_err(), reads && writes, "{collective:?}, rank {rank}: {checked:?}");
                    if let Err(text) = checked {
                        let named = [format!("{input:#x}"), format!("{output:#x}"), "overlap".to_owned()];
                        assert!(named.iter().all(|word| text.contains(word)), "{text}");
                    }
                }
            }
        }
        // Right behind one another, and then with one byte in common.
        for (collective, input, output) in [(C::AllReduce, 32, 32), (C::AllGather, 32, 128)] {
            check(1, (collective, far, far + input)).unwrap();
            check(1, (collective, far, far + input - 1)).unwrap_err();
            check(1, (collective, far + output, far)).unwrap();
            check(1, (collective, far + output - 1, far)).unwrap_err();
        }
        // Placed as in place for another rank.
        check(1, (C::ReduceScatter, far, far)).unwrap_err();
        check(1, (C::AllGather, far + 64, far)).unwrap_err();
        check(1, (C::AllGather, far + 32, far)).unwrap();
    }

    #[test]
    fn no_buffer_is_longer_than_half_of_the_address_space() {
        let most = isize::MAX as usize / 4;
        let text = |call: RawCall| Call::check(&call, MEMBER).unwrap_err().to_string();
        // Three quarters of the values of a usize, in total.
        for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll] {
            let call = raw(collective, 64, 64, 3 * (usize::MAX / 64));
            assert!(text(call).contains("for each rank are more than can be addressed"), "{collective:?}");
        }
        assert!(text(raw(Collective::AllReduce, 64, 64, most + 1)).contains("more than can be addressed"));
        Call::check(&raw(Collective::AllReduce, 64, 64, most), MEMBER).unwrap();
    }

    #[test]
    fn nonsense_is_refused_with_the_remedy() {
        let text = |raw: RawCall| Call::check(&raw, MEMBER).unwrap_err().to_string();
        let mut call = raw(Collective::Broadcast, 64, 64, 8);
        call.root = 4;
        assert!(text(call).contains("root 4 is out of range: ranks are 0 to 3"));
        let mut call = raw(Collective::AllReduce, 64, 64, 8);
        call.op = ReduceOp::BitAnd;
        assert!(text(call).contains("operator bit_and is not defined for f32"));
        assert!(
            text(raw(Collective::AllToAll, 64, 64, usize::MAX / 8)).contains("more than can be addressed")
        );
        assert!(text(raw(Collective::AllReduce, 0, 64, 8)).contains("null"));
    }
}
