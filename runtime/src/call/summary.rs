//! The identity of a call, for messages, error texts and the flight recorder.

use std::fmt;

use kolo_collectives::plan::Collective;

use crate::mix::mix;
use crate::types::{DataType, ReduceOp};

/// The facts that distinguish one call from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The collective.
    pub collective: Collective,
    /// Number of elements, as in [`RawCall`](crate::RawCall); `None` for the v-forms, where ranks differ.
    pub count: Option<usize>,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator, if the collective reduces.
    pub op: Option<ReduceOp>,
    /// Root, if the collective has one.
    pub root: Option<u32>,
    /// Number of shards, for a reduction over shards instead of one vector per rank.
    pub shards: Option<u32>,
    /// Whether the call was asynchronous.
    pub asynchronous: bool,
}

/// The part of a call on which all ranks must agree, in two words, which are cheap to keep for each call and to pass
/// between threads.
///
/// ```text
/// kind:   collective | data type << 8 | (op.code() + 1, or 0) << 16 | asynchronous << 24 | even << 25 | sharded << 26
///         | (root + 1, or shards + 1, or 0) << 28
/// count:  elements, where all ranks have as many
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLabel {
    pub(crate) kind: u64,
    pub(crate) count: u64,
}

const OP_AT: u32 = 16;
const ASYNCHRONOUS: u64 = 1 << 24;
const EVEN: u64 = 1 << 25;
const SHARDED: u64 = 1 << 26;
const ROOT_AT: u32 = 28;

impl Summary {
    /// Returns the part on which all ranks must agree.
    #[must_use]
    #[inline]
    pub fn label(&self) -> CallLabel {
        let op = self.op.map_or(0, |op| u64::from(op.code()) + 1);
        let kind = self.collective as u64
            | (self.data_type as u64) << 8
            | op << OP_AT
            | if self.asynchronous { ASYNCHRONOUS } else { 0 }
            | if self.count.is_some() { EVEN } else { 0 }
            | if self.shards.is_some() { SHARDED } else { 0 }
            | self.root.or(self.shards).map_or(0, |number| u64::from(number) + 1) << ROOT_AT;
        CallLabel { kind, count: self.count.map_or(0, |count| count as u64) }
    }

    /// Returns the signature of the label.
    pub(crate) fn signature(&self) -> u64 {
        self.label().signature()
    }
}

impl CallLabel {
    /// Returns a hash of the label. Different labels practically never have the same one.
    #[must_use]
    #[inline]
    pub const fn signature(self) -> u64 {
        mix(mix(self.kind) ^ self.count)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.label().fmt(f)
    }
}

impl fmt::Display for CallLabel {
    /// Writes forms such as "all_reduce(1024 x f32, sum)" and "barrier()".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count } = *self;
        // Labels come from summaries only, so an unknown number here is a bug.
        let byte = |at: u32| (kind >> at & 0xff) as usize;
        let (Some(collective), Some(data_type)) = (Collective::ALL.get(byte(0)), DataType::ALL.get(byte(8)))
        else {
            return write!(f, "an unknown call ({kind:#x})");
        };
        write!(f, "{}", full_name(*collective, kind & EVEN == 0, kind & ASYNCHRONOUS != 0))?;
        if kind & SHARDED != 0 {
            f.write_str("_shards")?;
        }
        f.write_str("(")?;
        if *collective == Collective::Barrier {
            return f.write_str(")");
        }
        if kind & EVEN != 0 {
            write!(f, "{count} x ")?;
        }
        write!(f, "{data_type}")?;
        if let Some(op) = byte(OP_AT).checked_sub(1).and_then(|place| ReduceOp::ALL.get(place)) {
            write!(f, ", {}", op.name())?;
        }
        match (kind >> ROOT_AT).checked_sub(1) {
            Some(shards) if kind & SHARDED != 0 => write!(f, ", {shards} shards")?,
            Some(root) => write!(f, ", root {root}")?,
            None => {}
        }
        f.write_str(")")
    }
}

/// Returns the name with the endings of the API: `_v` with blocks of unequal length, `_start` if the call was
/// asynchronous.
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

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Summary = Summary {
        collective: Collective::AllReduce,
        count: Some(8),
        data_type: DataType::F32,
        op: Some(ReduceOp::Sum),
        root: None,
        shards: None,
        asynchronous: false,
    };

    #[test]
    fn signatures_tell_calls_apart() {
        let mut seen = vec![BASE.signature()];
        for other in [
            Summary { collective: Collective::AllGather, ..BASE },
            Summary { count: Some(9), ..BASE },
            Summary { count: Some(0), ..BASE },
            Summary { count: None, ..BASE },
            Summary { data_type: DataType::I32, ..BASE },
            Summary { op: Some(ReduceOp::Max), ..BASE },
            Summary { root: Some(0), ..BASE },
            Summary { root: Some(u32::MAX), ..BASE },
            Summary { shards: Some(0), ..BASE },
            Summary { shards: Some(8), ..BASE },
            Summary { asynchronous: true, ..BASE },
        ] {
            seen.push(other.signature());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 12);
    }

    #[test]
    fn labels_tell_in_words_what_was_called() {
        assert_eq!(BASE.to_string(), "all_reduce(8 x f32, sum)");
        let sharded = Summary { shards: Some(64), ..BASE };
        assert_eq!(sharded.to_string(), "all_reduce_shards(8 x f32, sum, 64 shards)");
        let rooted = Summary { collective: Collective::Reduce, root: Some(3), asynchronous: true, ..BASE };
        assert_eq!(rooted.to_string(), "reduce_start(8 x f32, sum, root 3)");
        let barrier =
            Summary { collective: Collective::Barrier, count: Some(0), op: None, root: None, ..rooted };
        assert_eq!(barrier.to_string(), "barrier_start()");
        let uneven = Summary { collective: Collective::AllGather, count: None, op: None, ..BASE };
        assert_eq!(uneven.to_string(), "all_gather_v(f32)");
    }

    #[test]
    fn everything_has_the_number_that_its_table_gives_it() {
        for op in ReduceOp::ALL {
            assert!(Summary { op: Some(op), ..BASE }.to_string().ends_with(&format!("{})", op.name())));
        }
        for data_type in DataType::ALL {
            assert_eq!(
                Summary { data_type, ..BASE }.to_string(),
                format!("all_reduce(8 x {data_type}, sum)")
            );
        }
        for collective in Collective::ALL {
            assert!(Summary { collective, ..BASE }.to_string().starts_with(collective.name()));
        }
    }
}
