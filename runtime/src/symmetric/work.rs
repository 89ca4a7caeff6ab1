//! One rank's work in a call on symmetric buffers, piece by piece.

use std::cell::RefCell;
use std::sync::Arc;

use kolo_transport::Needs;
use kolo_transport::shm::{STREAMING_BYTES, copy_streaming};

use super::locations::BufferLocations;
use super::memory::Allocation;
use crate::call::Call;
use crate::reduce::{Arithmetic, Combine, DefaultFloats, scale};

/// Bytes of each buffer between two checks of abort and deadline: some tens of microseconds.
const PIECE_BYTES: usize = 128 << 10;

/// Bytes of each buffer handled at a time. A reduced block is still in the first-level cache when it is copied to the
/// other outputs. See docs/measurements.md, "Symmetric and private buffers".
const BLOCK_BYTES: usize = 4 << 10;

/// Everything needed to combine elements.
#[derive(Debug)]
pub(super) struct Combiner {
    arithmetic: Arithmetic,
    /// Each member's factor, for pre-multiplied sums.
    factors: Vec<f64>,
    /// Partial results of the canonical tree.
    partial: RefCell<Vec<u8>>,
}

impl Combiner {
    pub(super) fn new(call: &Call, combine: Combine, members: usize, canonical: bool) -> Self {
        let arithmetic = call.arithmetic(combine, canonical && members > 2);
        Self { arithmetic, factors: Vec::new(), partial: RefCell::default() }
    }

    /// Takes the members' factors from their locations.
    pub(super) fn factors(&mut self, located: &[BufferLocations]) {
        if self.arithmetic.factor.is_some() {
            self.factors = located.iter().map(|locations| locations.factor).collect();
        }
    }
}

/// A piece of work: the reduction of the sources, or the only source, goes to all targets.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) sources: Vec<*const u8>,
    pub(super) targets: Vec<*mut u8>,
    /// Length of each source and target.
    pub(super) bytes: usize,
}

/// Bytes for this rank's output that are written once nobody reads there any more.
#[derive(Debug)]
struct Patch {
    /// Item that produces it.
    item: usize,
    /// Offset of the data set aside.
    from: usize,
    to: *mut u8,
    bytes: usize,
}

/// All work of a rank in a call.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) items: Vec<Item>,
    /// Members that this rank awaits at the end, if any.
    pub(super) needs: Option<Needs>,
    /// Number of items done.
    done: usize,
    /// Bytes done of the next item.
    at: usize,
    streams: bool,
    patches: Vec<Patch>,
    /// Data set aside for patches.
    aside: Vec<u8>,
    /// Allocations that stay mapped for the job.
    allocations: Vec<Arc<Allocation>>,
}

impl Job {
    /// Keeps an allocation mapped until the job is gone.
    pub(super) fn keep(&mut self, allocation: &Arc<Allocation>) {
        if !self.allocations.iter().any(|kept| Arc::ptr_eq(kept, allocation)) {
            self.allocations.push(Arc::clone(allocation));
        }
    }

    /// Adds a reduction of `bytes` bytes that goes to `to` at the end.
    pub(super) fn aside(&mut self, sources: Vec<*const u8>, bytes: usize, to: *mut u8) {
        let from = self.aside.len();
        self.aside.resize(from + bytes, 0);
        self.patches.push(Patch { item: self.items.len(), from, to, bytes });
        self.items.push(Item { sources, targets: vec![std::ptr::null_mut()], bytes });
    }

    /// Prepares the job once all items are added.
    pub(super) fn prepare(&mut self, combiner: &Combiner, scratch: &mut Vec<u8>) {
        let base = self.aside.as_mut_ptr();
        for patch in &self.patches {
            self.items[patch.item].targets[0] = base.wrapping_add(patch.from);
        }
        let touched: usize =
            self.items.iter().map(|item| item.bytes * (item.sources.len() + item.targets.len())).sum();
        self.streams = touched >= STREAMING_BYTES;
        scratch.resize((1 + combiner.factors.len()) * BLOCK_BYTES, 0);
    }

    /// Does a piece of the work. Returns true once all is done.
    ///
    /// # Safety
    /// Sources are readable and targets writable for the length of their item. Nobody else writes either or reads the
    /// targets. A target is one of its item's sources, or overlaps no source of any item.
    pub(super) unsafe fn step(&mut self, combiner: &Combiner, scratch: &mut [u8]) -> bool {
        let _floats = DefaultFloats::enter();
        let mut left = PIECE_BYTES;
        while let Some(item) = self.items.get(self.done) {
            let len = BLOCK_BYTES.min(item.bytes - self.at);
            if len > 0 {
                // SAFETY: the caller's promise, passed on; the block is inside the item.
                unsafe { combiner.block(item, self.at, len, self.streams, scratch) };
            }
            self.at += len;
            if self.at == item.bytes {
                self.done += 1;
                self.at = 0;
            }
            left = left.saturating_sub(len.max(1));
            if left == 0 {
                return self.done == self.items.len();
            }
        }
        true
    }

    /// Copies the data set aside into this rank's output.
    ///
    /// # Safety
    /// The output is this rank's own again.
    pub(super) unsafe fn patch(&self) {
        for patch in &self.patches {
            let from = self.aside[patch.from..][..patch.bytes].as_ptr();
            // SAFETY: the target is a part of the output, by its binding.
            unsafe { patch.to.copy_from_nonoverlapping(from, patch.bytes) };
        }
    }
}

impl Combiner {
    /// Does bytes `at..at + len` of an item.
    ///
    /// # Safety
    /// See [`Job::step`].
    unsafe fn block(&self, item: &Item, at: usize, len: usize, streams: bool, scratch: &mut [u8]) {
        let is_cached = |target: &*mut u8| !streams || item.sources.contains(&target.cast_const());
        // SAFETY: for the whole block: the addresses are inside the item, and scratch overlaps no buffer.
        unsafe {
            let result = if let [source] = item.sources[..] {
                source.add(at)
            } else {
                let first = item.targets.iter().find(|target| is_cached(target));
                let to = first.map_or(scratch.as_mut_ptr(), |first| first.add(at));
                self.fold(to, &item.sources, at, len, scratch);
                self.arithmetic.divide(to, len);
                to.cast_const()
            };
            for target in &item.targets {
                let to = target.add(at);
                if to.cast_const() == result {
                    continue;
                }
                if is_cached(target) {
                    to.copy_from_nonoverlapping(result, len);
                } else {
                    copy_streaming(result, to, len);
                }
            }
        }
    }

    /// Reduces `len` bytes at `at` of all sources into `to`, in their order or along the canonical tree.
    ///
    /// # Safety
    /// As [`Job::step`]; `to` is writable. It is one of the sources' blocks, the first block of `scratch`, or apart
    /// from all of them.
    unsafe fn fold(&self, to: *mut u8, sources: &[*const u8], at: usize, len: usize, scratch: &mut [u8]) {
        let Arithmetic { combine, data_type, canonical, .. } = self.arithmetic;
        let count = len / data_type.size();
        let (acc, scaled) = scratch.split_at_mut(BLOCK_BYTES);
        // SAFETY: for the whole block: scratch has a block for each purpose, which overlaps no buffer. The tree writes
        // its result after it has read everything, and so does the last step in rank order.
        unsafe {
            for (index, factor) in self.factors.iter().enumerate() {
                let to = scaled[index * BLOCK_BYTES..][..len].as_mut_ptr();
                scale(data_type, to, sources[index].add(at), count, *factor);
            }
            let is_scaled = !self.factors.is_empty();
            let source = |index: usize| match is_scaled {
                true => scaled[index * BLOCK_BYTES..].as_ptr(),
                false => sources[index].add(at),
            };
            let how = self.arithmetic.folding(&self.partial);
            let last = sources.len() - 1;
            if last == 1 {
                combine(to, source(0), source(1), count);
            } else if canonical {
                how.fold(to, len, sources.len(), source);
            } else {
                how.fold(acc.as_mut_ptr(), len, last, source);
                combine(to, acc.as_ptr(), source(last), count);
            }
        }
    }
}
