//! A collective call as a value: checked, described and signed before anything moves.

use std::fmt;

use kolo_collectives::plan::{Collective, Placement};

use crate::control::Activity;
use crate::engine::{Reach, Sides};
use crate::error::{Context, Error, Result};
use crate::types::{DataType, ReduceOp};

/// A collective call on raw memory, for bindings and tools.
///
/// `count` is what NCCL calls so: elements of the vector for all-reduce, reduce, broadcast and scans; elements of one
/// rank's block for the others. Input and output share memory if the pointers say so, as NCCL defines it: equal for the
/// vector collectives and all-to-all, the rank's own block of the longer buffer for the others.
///
/// Buffers may be memory of an NVIDIA GPU, named by the address that CUDA gives (a `CUdeviceptr` is one, as a number), on any
/// ranks and for any of the buffers. The caller has synchronised the streams that wrote the input or use the output; when the
/// call or the wait for it has returned, all streams see the output. Managed memory counts as the host's.
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// What to do.
    pub collective: Collective,
    /// Send buffer; may be null where this rank sends nothing.
    pub input: *const u8,
    /// Receive buffer; may be null where this rank receives nothing.
    pub output: *mut u8,
    /// Elements; see above. Ignored, as the type is, for barriers.
    pub count: usize,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, where the collective reduces; else ignored.
    pub op: ReduceOp,
    /// Root, where the collective has one; else ignored.
    pub root: u32,
}

/// A call with blocks of unequal length on raw memory, for bindings and tools: all-gather, reduce-scatter, gather, scatter
/// or all-to-all. Blocks lie one behind the other; input and output do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct RawCallV<'a> {
    /// What to do.
    pub collective: Collective,
    /// Send buffer; may be null where this rank sends nothing.
    pub input: *const u8,
    /// Elements of each block of the input: one per rank for reduce-scatter, all-to-all and the root of a scatter; none on
    /// its other ranks; else this rank's one.
    pub input_counts: &'a [usize],
    /// Receive buffer; may be null where this rank receives nothing.
    pub output: *mut u8,
    /// Elements of each block of the output: one per rank for all-gather, all-to-all and the root of a gather; none on its
    /// other ranks; else this rank's one.
    pub output_counts: &'a [usize],
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, for reduce-scatter; else ignored.
    pub op: ReduceOp,
    /// Root, where the collective has one; else ignored.
    pub root: u32,
}

/// Lengths of the blocks of a call.
#[derive(Clone, Debug)]
pub(crate) enum Counts {
    /// All alike.
    Even(usize),
    /// The v-forms: elements of each of this rank's input and output blocks.
    Uneven { input: Box<[usize]>, output: Box<[usize]> },
}

/// A checked call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
    pub(crate) counts: Counts,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) placement: Placement,
    /// The GPUs whose memory the buffers are; found out for calls on raw memory. Apart, since few calls have any.
    pub(crate) gpus: Option<Box<Sides>>,
}

/// What tells one call from another, for messages and the flight recorder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// What was called.
    pub collective: Collective,
    /// Elements, as in [`RawCall`]; `None` for the v-forms, where ranks differ.
    pub count: Option<usize>,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Root, where the collective has one.
    pub root: Option<u32>,
    /// Whether the call was asynchronous.
    pub asynchronous: bool,
}

impl Call {
    /// Checks a raw call.
    pub(crate) fn check(raw: &RawCall, rank: u32, world_size: u32) -> Result<Self> {
        // A barrier has no data: a count would be cut into segments, each a barrier of its own.
        let raw = match raw.collective {
            Collective::Barrier => &RawCall { count: 0, data_type: DataType::U8, ..*raw },
            _ => raw,
        };
        let call = Self {
            collective: raw.collective,
            input: raw.input,
            output: raw.output,
            counts: Counts::Even(raw.count),
            data_type: raw.data_type,
            op: raw.op,
            root: if raw.collective.is_rooted() { raw.root } else { 0 },
            placement: placement(raw, rank, world_size),
            gpus: None,
        };
        let fail = |problem: String| {
            let operation = call.summary(false).to_string();
            Err(Error::Usage { context: Context { rank, operation, sequence: 0 }, problem })
        };
        if call.root >= world_size {
            return fail(format!("root {} is out of range: ranks are 0 to {}", call.root, world_size - 1));
        }
        if reduces(call.collective) && !call.op.supports(call.data_type) {
            return fail(format!("operator {} is not defined for {}", call.op.name(), call.data_type));
        }
        if matches!(call.collective, Collective::Scan | Collective::ExScan)
            && matches!(call.op, ReduceOp::Avg | ReduceOp::PremulSum(_))
        {
            return fail(format!(
                "operator {} is not defined for prefixes; use sum and scale the result",
                call.op.name()
            ));
        }
        let blocks = if call.collective.has_block_per_rank() { world_size as usize } else { 1 };
        if raw.count.checked_mul(call.data_type.size()).and_then(|b| b.checked_mul(blocks)).is_none() {
            return fail(format!(
                "{} elements for each of {blocks} blocks are more than can be addressed",
                raw.count
            ));
        }
        let (reads, writes) = touches(call.collective, rank == call.root);
        if raw.count > 0 && ((reads && raw.input.is_null()) || (writes && raw.output.is_null())) {
            return fail("a null pointer was given for a buffer that is not empty".to_owned());
        }
        Ok(call)
    }

    /// The GPUs whose memory the buffers are.
    pub(crate) fn sides(&self) -> &Sides {
        static NONE: Sides = Sides { input: None, output: None, reach: Reach::Staged };
        self.gpus.as_deref().unwrap_or(&NONE)
    }

    /// Bytes of a rank's input and output; 0 where it has none.
    pub(crate) fn bytes(&self, rank: u32, world_size: u32) -> (usize, usize) {
        let size = self.data_type.size();
        let count = match &self.counts {
            Counts::Even(count) => *count,
            Counts::Uneven { input, output } => {
                return (input.iter().sum::<usize>() * size, output.iter().sum::<usize>() * size);
            }
        };
        let (is_root, all) = (usize::from(rank == self.root), world_size as usize);
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

    pub(crate) fn summary(&self, asynchronous: bool) -> Summary {
        Summary {
            collective: self.collective,
            count: match self.counts {
                Counts::Even(count) => Some(count),
                Counts::Uneven { .. } => None,
            },
            data_type: self.data_type,
            op: reduces(self.collective).then_some(self.op),
            root: self.collective.is_rooted().then_some(self.root),
            asynchronous,
        }
    }
}

impl Summary {
    /// The same for the status board, which others read when they ask what this rank is doing.
    pub(crate) fn activity(&self) -> Activity {
        Activity {
            operation: full_name(self.collective, self.count.is_none(), self.asynchronous),
            count: self.count.map(|count| count as u64),
            data_type: Some(self.data_type),
            reduce: self.op,
            root: self.root,
        }
    }

    /// A number that differs, as good as surely, if anything that must agree across ranks does.
    pub(crate) fn signature(&self) -> u64 {
        let op = self.op.map_or(0, |op| match op {
            ReduceOp::Sum => 1,
            ReduceOp::Prod => 2,
            ReduceOp::Min => 3,
            ReduceOp::Max => 4,
            ReduceOp::Avg => 5,
            // The factor is each rank's own.
            ReduceOp::PremulSum(_) => 6,
            ReduceOp::BitAnd => 7,
            ReduceOp::BitOr => 8,
            ReduceOp::BitXor => 9,
            ReduceOp::LogicalAnd => 10,
            ReduceOp::LogicalOr => 11,
            ReduceOp::LogicalXor => 12,
        });
        let small = self.collective as u64
            | (self.data_type as u64) << 8
            | op << 16
            | u64::from(self.asynchronous) << 24
            | self.root.map_or(0, |root| u64::from(root) + 1) << 28;
        mix(mix(small) ^ self.count.map_or(u64::MAX, |count| count as u64))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.activity().fmt(f)
    }
}

/// Name with the endings of the API: `_v` with unequal blocks, `_start` where the call was asynchronous.
const fn full_name(collective: Collective, uneven: bool, asynchronous: bool) -> &'static str {
    match (collective, uneven, asynchronous) {
        (Collective::AllGather, true, false) => "all_gather_v",
        (Collective::ReduceScatter, true, false) => "reduce_scatter_v",
        (Collective::Gather, true, false) => "gather_v",
        (Collective::Scatter, true, false) => "scatter_v",
        (Collective::AllToAll, true, false) => "all_to_all_v",
        (Collective::AllGather, true, true) => "all_gather_v_start",
        (Collective::ReduceScatter, true, true) => "reduce_scatter_v_start",
        (Collective::Gather, true, true) => "gather_v_start",
        (Collective::Scatter, true, true) => "scatter_v_start",
        (Collective::AllToAll, true, true) => "all_to_all_v_start",
        (Collective::AllReduce, _, true) => "all_reduce_start",
        (Collective::AllGather, _, true) => "all_gather_start",
        (Collective::ReduceScatter, _, true) => "reduce_scatter_start",
        (Collective::Broadcast, _, true) => "broadcast_start",
        (Collective::Reduce, _, true) => "reduce_start",
        (Collective::Gather, _, true) => "gather_start",
        (Collective::Scatter, _, true) => "scatter_start",
        (Collective::AllToAll, _, true) => "all_to_all_start",
        (Collective::Scan, _, true) => "scan_start",
        (Collective::ExScan, _, true) => "exscan_start",
        (Collective::Barrier, _, true) => "barrier_start",
        _ => collective.name(),
    }
}

/// What the header of every message of a call carries, so that calls that do not match are noticed where they meet.
pub(crate) const fn tag(communicator: u64, sequence: u64, signature: u64) -> u64 {
    mix(signature ^ mix(sequence) ^ communicator)
}

/// The same for point-to-point messages: the caller's tag, by which they are matched, in the lower half.
pub(crate) const fn transfer_tag(communicator: u64, data_type: DataType, tag: u32) -> u64 {
    mix(communicator ^ mix(data_type as u64 + 1)) & !0xffff_ffff | tag as u64
}

/// Spreads the bits of a number: the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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

/// Whether a rank reads its input and writes its output.
pub(crate) const fn touches(collective: Collective, is_root: bool) -> (bool, bool) {
    match collective {
        Collective::Broadcast => (is_root, true),
        Collective::Reduce | Collective::Gather => (true, is_root),
        Collective::Scatter => (is_root, true),
        Collective::Barrier => (false, false),
        _ => (true, true),
    }
}

fn placement(raw: &RawCall, rank: u32, world_size: u32) -> Placement {
    let block = raw.count.wrapping_mul(raw.data_type.size());
    let own = block.wrapping_mul(rank as usize);
    let (input, output) = (raw.input, raw.output.cast_const());
    let is_root = rank == raw.root;
    let in_place = match raw.collective {
        Collective::AllGather => input == output.wrapping_add(own),
        Collective::ReduceScatter => output == input.wrapping_add(own),
        Collective::Gather => is_root && input == output.wrapping_add(own),
        Collective::Scatter => is_root && output == input.wrapping_add(own),
        // Only the root has two buffers; the others' one is input (reduce) or output (broadcast) alone.
        Collective::Reduce | Collective::Broadcast => is_root && input == output,
        Collective::Barrier => true,
        _ => input == output,
    };
    // With a single rank all blocks are "the own block", and empty buffers have no place.
    if in_place && (world_size > 1 || !input.is_null()) { Placement::InPlace } else { Placement::OutOfPlace }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let placement = |raw: RawCall| Call::check(&raw, 1, 4).unwrap().placement;
        assert_eq!(placement(raw(Collective::AllReduce, 64, 64, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::AllReduce, 64, 128, 8)), Placement::OutOfPlace);
        assert_eq!(placement(raw(Collective::AllGather, 96, 64, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::ReduceScatter, 64, 96, 8)), Placement::InPlace);
        assert_eq!(placement(raw(Collective::ReduceScatter, 64, 64, 8)), Placement::OutOfPlace);
    }

    #[test]
    fn nonsense_is_refused_with_the_remedy() {
        let text = |raw: RawCall| Call::check(&raw, 1, 4).unwrap_err().to_string();
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

    #[test]
    fn signatures_tell_calls_apart() {
        let base = Call::check(&raw(Collective::AllReduce, 64, 64, 8), 0, 4).unwrap().summary(false);
        let mut seen = vec![base.signature()];
        for other in [
            Summary { collective: Collective::AllGather, ..base },
            Summary { count: Some(9), ..base },
            Summary { data_type: DataType::I32, ..base },
            Summary { op: Some(ReduceOp::Max), ..base },
            Summary { root: Some(0), ..base },
            Summary { asynchronous: true, ..base },
        ] {
            seen.push(other.signature());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 7);
        assert_eq!(base.to_string(), "all_reduce(8 x f32, sum)");
    }
}
