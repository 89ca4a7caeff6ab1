//! The arguments of calls on addresses, in a form that may be used without the interpreter's lock.

use kolo_rs::{Collective, DataType, RawCall, RawCallV, RawMessage, ReduceOp};
use pyo3::prelude::*;

use crate::errors::usage;
use crate::numbers;

/// A collective with equal blocks as Python gives it: collective, addresses of input and output, count, type, operator,
/// factor, root. Addresses are 0 where there is no buffer.
pub(crate) type Plain = (u8, usize, usize, usize, u8, u8, f64, u32);

/// A collective with equal blocks, parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses(RawCall);

// SAFETY: the closure that captures this value runs on the calling thread. pyo3 demands `Send` to keep out values bound to the
// interpreter's lock, and addresses are not.
unsafe impl Send for Addresses {}

impl Addresses {
    pub(crate) fn new(
        (collective, input, output, count, data_type, op, factor, root): Plain,
    ) -> PyResult<Self> {
        Ok(Self(RawCall {
            collective: numbers::collective(collective)?,
            input: input as *const u8,
            output: output as *mut u8,
            count,
            data_type: numbers::data_type(data_type)?,
            op: numbers::op(op, factor)?,
            root,
        }))
    }

    /// Wraps a call that this crate has made.
    pub(crate) fn of(call: RawCall) -> Self {
        Self(call)
    }

    pub(crate) fn get(self) -> RawCall {
        self.0
    }
}

/// A collective with blocks of unequal length as Python gives it: collective, address and counts of input and of output,
/// type, operator, factor, root.
pub(crate) type Uneven = (u8, usize, Vec<usize>, usize, Vec<usize>, u8, u8, f64, u32);

/// A collective with blocks of unequal length, parsed.
#[derive(Debug)]
pub(crate) struct Irregular {
    collective: Collective,
    input: (usize, Vec<usize>),
    output: (usize, Vec<usize>),
    data_type: DataType,
    op: ReduceOp,
    root: u32,
}

impl Irregular {
    pub(crate) fn new(given: Uneven) -> PyResult<Self> {
        let (collective, from, input_counts, to, output_counts, data_type, op, factor, root) = given;
        let data_type = numbers::data_type(data_type)?;
        let (input, output) = ((from, input_counts), (to, output_counts));
        let bytes = |(_, counts): &(usize, Vec<usize>)| {
            let add = |sum: usize, count: &usize| sum.checked_add(count.checked_mul(data_type.size())?);
            let sum = counts.iter().try_fold(0, add);
            sum.ok_or_else(|| usage("the counts add up to more than can be addressed"))
        };
        let (reads, writes) = (bytes(&input)?, bytes(&output)?);
        let ends = (input.0.saturating_add(reads), output.0.saturating_add(writes));
        if reads > 0 && writes > 0 && input.0 < ends.1 && output.0 < ends.0 {
            return Err(usage(
                "input and output overlap, which is not allowed with blocks of unequal length",
            ));
        }
        let collective = numbers::collective(collective)?;
        Ok(Self { collective, input, output, data_type, op: numbers::op(op, factor)?, root })
    }

    pub(crate) fn get(&self) -> RawCallV<'_> {
        RawCallV {
            collective: self.collective,
            input: self.input.0 as *const u8,
            input_counts: &self.input.1,
            output: self.output.0 as *mut u8,
            output_counts: &self.output.1,
            data_type: self.data_type,
            op: self.op,
            root: self.root,
        }
    }
}

/// A message as Python gives it: whether it is sent, the other end or `None` for any, address, bytes, type, tag.
pub(crate) type Transfer = (bool, Option<u32>, usize, usize, u8, u32);

/// A message, parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) send: bool,
    pub(crate) peer: Option<u32>,
    address: usize,
    bytes: usize,
    data_type: DataType,
    tag: u32,
}

impl Message {
    pub(crate) fn new((send, peer, address, bytes, data_type, tag): Transfer) -> PyResult<Self> {
        if send && peer.is_none() {
            return Err(usage("a send needs the rank to send to"));
        }
        Ok(Self::of(send, peer, (address, bytes), numbers::data_type(data_type)?, tag))
    }

    /// Makes a message of `bytes` bytes at `address`. A send must have a peer.
    pub(crate) fn of(
        send: bool,
        peer: Option<u32>,
        (address, bytes): (usize, usize),
        data_type: DataType,
        tag: u32,
    ) -> Self {
        Self { send, peer, address, bytes, data_type, tag }
    }

    pub(crate) fn memory(&self) -> RawMessage {
        RawMessage {
            data: self.address as *mut u8,
            bytes: self.bytes,
            data_type: self.data_type,
            tag: self.tag,
        }
    }
}
