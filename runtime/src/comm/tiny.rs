//! The tiny path: any collective of a few kilobytes inside one host as a single exchange over shared memory.
//!
//! All ranks publish what they contribute, wait for what they need, and compute their own result from it. One exchange
//! costs one cache line per rank and one wait, where messages would cost a wait per round. With more ranks than
//! processors that is worth more than the reduction that every rank repeats. The reduction runs in rank order, or
//! along the balanced tree of the canonical order, so all ranks get the same bits.

use std::sync::atomic::AtomicU32;

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::shm::{FLAT_MAX, Flat, FlatMismatch, Needs};

use crate::call::{Call, Counts};
use crate::reduce::{Combine, divide, scale};
use crate::types::ReduceOp;

/// The exchange area of the host, with what is needed to compute from it.
#[derive(Debug)]
pub(crate) struct Tiny {
    flat: Flat,
    rank: usize,
    members: usize,
    bytes_max: usize,
    canonical: bool,
    step: Step,
    /// Turns given out: threads of one rank may call while another one's exchange is not over.
    turns: u64,
    /// Turns that are over; the call that has the next one has the exchange.
    turns_over: u64,
    /// For the canonical tree: its partial results.
    scratch: Vec<u8>,
}

/// How far the exchange at hand is.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// There is none.
    Idle,
    /// It waits until this rank may publish so many bytes.
    Queued(usize),
    /// It waits for what others publish.
    Published,
}

impl Tiny {
    pub(crate) fn new(flat: Flat, rank: u32, members: u32, bytes_max: usize, canonical: bool) -> Self {
        let bytes_max = bytes_max.min(FLAT_MAX);
        Self {
            flat,
            rank: rank as usize,
            members: members as usize,
            bytes_max,
            canonical,
            step: Step::Idle,
            turns: 0,
            turns_over: 0,
            scratch: Vec::new(),
        }
    }

    /// Bytes that each rank publishes for a call, if it is one for this path. The same answer on all ranks.
    pub(crate) fn serves(&self, call: &Call) -> Option<usize> {
        let Counts::Even(count) = call.counts else { return None };
        let bytes = count * call.data_type.size();
        let published = match call.collective {
            Collective::AllGather | Collective::Gather => bytes,
            collective if collective.has_block_per_rank() => bytes * self.members,
            Collective::Barrier => 0,
            _ => bytes,
        };
        (published <= self.bytes_max).then_some(published)
    }

    /// Takes a turn.
    pub(crate) fn enqueue(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Moves the exchange of the call with this turn on: publishes when it may, and tells whether what others publish has
    /// come.
    ///
    /// # Safety
    /// The buffers of the call are valid.
    #[inline]
    pub(crate) unsafe fn advance(
        &mut self,
        turn: u64,
        call: &Call,
        bytes: usize,
        tag: u64,
    ) -> Result<bool, FlatMismatch> {
        if !matches!(self.step, Step::Published) {
            if turn != self.turns_over + 1 {
                return Ok(false);
            }
            let own = self.contribution(call, bytes);
            let given = if own.is_some() { bytes } else { 0 };
            if !self.flat.is_free(given)? {
                self.step = Step::Queued(given);
                return Ok(false);
            }
            // SAFETY: handed on.
            unsafe { self.publish(call, own, bytes, tag) };
        } else if turn != self.turns_over + 1 {
            return Ok(false);
        }
        self.flat.poll()
    }

    /// Publishes this rank's contribution.
    ///
    /// # Safety
    /// It is `bytes` long.
    unsafe fn publish(&mut self, call: &Call, own: Option<*const u8>, bytes: usize, tag: u64) {
        let factor = match call.op {
            ReduceOp::PremulSum(factor) if crate::call::reduces(call.collective) => Some(factor),
            _ => None,
        };
        self.step = Step::Published;
        let fill = own.map(|own| {
            move |slot: &mut [u8]| {
                let len = slot.len();
                // SAFETY: a contribution is `bytes` long by the shape of the call, and so is the slot.
                unsafe {
                    match factor {
                        Some(factor) => {
                            let count = len / call.data_type.size();
                            scale(call.data_type, slot.as_mut_ptr(), own, count, factor);
                        }
                        None => own.copy_to_nonoverlapping(slot.as_mut_ptr(), len),
                    }
                }
            }
        });
        self.flat.publish(tag, bytes, self.needs(call), fill);
    }

    /// Whom this rank waits for.
    fn needs(&self, call: &Call) -> Needs {
        let (root, rank) = (call.root as usize, self.rank);
        match call.collective {
            Collective::Broadcast | Collective::Scatter if rank == root => Needs::Nobody,
            Collective::Broadcast | Collective::Scatter => Needs::Only(root),
            Collective::Reduce | Collective::Gather if rank != root => Needs::Nobody,
            Collective::Scan | Collective::ExScan => Needs::Below(rank),
            _ => Needs::All,
        }
    }

    /// Whether a sleeper has reason to look.
    pub(crate) fn has_arrived(&mut self) -> bool {
        match self.step {
            Step::Idle => false,
            Step::Queued(given) => !matches!(self.flat.is_free(given), Ok(false)),
            Step::Published => !matches!(self.flat.poll(), Ok(false)),
        }
    }

    /// Ranks that have not published what is waited for.
    pub(crate) fn waiting_for(&self) -> Vec<u32> {
        let given = if let Step::Queued(given) = self.step { given } else { 0 };
        self.flat.waiting_for(given).into_iter().map(|member| member as u32).collect()
    }

    pub(crate) fn arm(&mut self) -> Option<(*const AtomicU32, u32)> {
        if matches!(self.step, Step::Idle) {
            return None;
        }
        let (word, value) = self.flat.arm();
        Some((std::ptr::from_ref(word), value))
    }

    pub(crate) fn disarm(&mut self) {
        self.flat.disarm();
    }

    /// Computes this rank's result from what was published, and ends the exchange.
    ///
    /// # Safety
    /// The buffers of the call are valid, and `advance` has returned true for it.
    pub(crate) unsafe fn finish(&mut self, call: &Call, bytes: usize, combine: Combine) {
        let Counts::Even(count) = call.counts else { unreachable!("`serves` takes even counts only") };
        let block = count * call.data_type.size();
        let (rank, members, output) = (self.rank, self.members, call.output);
        // SAFETY: for the whole block: outputs are as long as the collective defines; payloads are `bytes` long.
        unsafe {
            match call.collective {
                Collective::AllReduce => self.reduce(call, combine, 0, bytes, 0..members),
                Collective::Reduce if rank == call.root as usize => {
                    self.reduce(call, combine, 0, bytes, 0..members);
                }
                Collective::ReduceScatter => self.reduce(call, combine, rank * block, block, 0..members),
                Collective::Scan => self.reduce(call, combine, 0, bytes, 0..rank + 1),
                Collective::ExScan if rank > 0 => self.reduce(call, combine, 0, bytes, 0..rank),
                // The root's output is its input, or a buffer of its own.
                Collective::Broadcast if rank == call.root as usize => {
                    if call.placement == Placement::OutOfPlace {
                        output.copy_from_nonoverlapping(call.input, bytes);
                    }
                }
                Collective::Broadcast => self.fetch(call.root as usize, 0, output, bytes),
                Collective::Scatter => self.fetch(call.root as usize, rank * block, output, block),
                Collective::AllGather => {
                    (0..members).for_each(|m| self.fetch(m, 0, output.add(m * block), block))
                }
                Collective::Gather if rank == call.root as usize => {
                    (0..members).for_each(|m| self.fetch(m, 0, output.add(m * block), block));
                }
                Collective::AllToAll => {
                    (0..members).for_each(|m| self.fetch(m, rank * block, output.add(m * block), block));
                }
                Collective::Reduce | Collective::Gather | Collective::ExScan | Collective::Barrier => {}
            }
        }
        self.step = Step::Idle;
        self.turns_over += 1;
        self.flat.finish();
    }

    /// Where this rank's contribution lies; `None` where it contributes nothing but its presence.
    fn contribution(&self, call: &Call, bytes: usize) -> Option<*const u8> {
        if bytes == 0 {
            return None;
        }
        let in_place = call.placement == Placement::InPlace;
        match call.collective {
            Collective::Broadcast | Collective::Scatter if self.rank != call.root as usize => None,
            // In place, the input of these is a part of the output.
            Collective::AllGather | Collective::Gather | Collective::ReduceScatter | Collective::Scatter => {
                Some(call.input)
            }
            _ if in_place => Some(call.output.cast_const()),
            _ => Some(call.input),
        }
    }

    unsafe fn fetch(&self, member: usize, offset: usize, to: *mut u8, bytes: usize) {
        let from = &self.flat.payload(member)[offset..][..bytes];
        // SAFETY: the caller's promise for `to`; the exchange area is not the caller's memory.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), bytes) };
    }

    /// Reduces `bytes` at `offset` of the given members' payloads into the output.
    unsafe fn reduce(
        &mut self,
        call: &Call,
        combine: Combine,
        offset: usize,
        bytes: usize,
        members: std::ops::Range<usize>,
    ) {
        let (output, count) = (call.output, bytes / call.data_type.size());
        let flat = &self.flat;
        let payload = |member: usize| flat.payload(member)[offset..][..bytes].as_ptr();
        let (first, len) = (members.start, members.len());
        // SAFETY: for the whole block: the output has room for `bytes`, payloads were checked to be as long.
        unsafe {
            if len == 1 {
                output.copy_from_nonoverlapping(payload(first), bytes);
            } else if self.canonical && len > 2 {
                let leaves = 1 << len.ilog2();
                self.scratch.resize(leaves * bytes, 0);
                tree(combine, count, bytes, |leaf| payload(first + leaf), len, &mut self.scratch);
                output.copy_from_nonoverlapping(self.scratch.as_ptr(), bytes);
            } else {
                combine(output, payload(first), payload(first + 1), count);
                for member in first + 2..first + len {
                    combine(output, output, payload(member), count);
                }
            }
            if matches!(call.op, ReduceOp::Avg) {
                divide(call.data_type, output, count, self.members as u32);
            }
        }
    }
}

/// Reduces `len` payloads along the canonical tree, as the canonical generators do: of `len` = 2^k + e ranks the first 2e
/// are added in pairs, and the 2^k values that there are then in a balanced tree. The result is the first block of
/// `scratch`, which has room for 2^k.
///
/// # Safety
/// Payloads hold `count` elements in `bytes` bytes; `len` is at least 2.
unsafe fn tree(
    combine: Combine,
    count: usize,
    bytes: usize,
    payload: impl Fn(usize) -> *const u8,
    len: usize,
    scratch: &mut [u8],
) {
    let leaves = 1 << len.ilog2();
    let pairs = len - leaves;
    let blocks = scratch.as_mut_ptr();
    // SAFETY: for the whole block: blocks are below `leaves`; a destination is one of its operands or neither.
    unsafe {
        for leaf in 0..leaves {
            let to = blocks.add(leaf * bytes);
            if leaf < pairs {
                combine(to, payload(2 * leaf), payload(2 * leaf + 1), count);
            } else {
                to.copy_from_nonoverlapping(payload(leaf + pairs), bytes);
            }
        }
        let mut width = 1;
        while width < leaves {
            for left in (0..leaves).step_by(2 * width) {
                let to = blocks.add(left * bytes);
                combine(to, to, blocks.add((left + width) * bytes), count);
            }
            width *= 2;
        }
    }
}
