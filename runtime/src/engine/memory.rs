//! Where blocks lie in memory: a plan bound to the caller's buffers.

use std::alloc::{Layout as AllocLayout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use kolo_collectives::layout::{Extent, Layout, Shape};
use kolo_collectives::memory::Memory;
use kolo_collectives::plan::{Action, Blocks, Plan, Space};
use kolo_transport::Piece;

/// Blocks of scratch start on their own cache lines.
const SCRATCH_ALIGN: usize = 64;

/// The caller's memory for one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// Send buffer; not written, in spite of its type.
    pub(crate) input: *mut u8,
    /// Receive buffer.
    pub(crate) output: *mut u8,
}

// SAFETY: these are addresses; whoever uses them answers for the memory (see the contract of `Engine::start`).
unsafe impl Send for Buffers {}

/// A plan with a layout: what can be computed once for many runs of the same call.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) layout: Layout,
    pub(crate) segment_elements: usize,
    pub(crate) element_bytes: usize,
    /// Byte offset of each scratch block in an instance's scratch, valid for every segment.
    scratch_offsets: Box<[usize]>,
    /// Byte offset of each input block in an instance's staged input, if there is one.
    staged_offsets: Box<[usize]>,
    /// Bytes of scratch per instance, staged input included.
    pub(crate) scratch_bytes: usize,
    /// Most pieces that all steps of one segment can need together.
    pub(crate) pieces_max: usize,
}

impl Binding {
    /// Binds a plan. With `staged_input`, input blocks are read from a copy in scratch.
    pub(crate) fn new(
        plan: Arc<Plan>,
        shape: Shape,
        segment_elements: usize,
        element_bytes: usize,
        staged_input: bool,
    ) -> Self {
        let layout = Layout::new(&plan, shape.clone(), segment_elements);
        // Segment 0 is the longest one of every block.
        let mut bytes = 0;
        let mut place = |elements: usize| {
            let offset = bytes;
            bytes += (elements * element_bytes).next_multiple_of(SCRATCH_ALIGN);
            offset
        };
        let scratch_offsets =
            (0..plan.scratch.len() as u32).map(|b| place(layout.block(Space::Scratch, b, 0).len)).collect();
        let staged_offsets = if staged_input {
            (0..Memory::of(&plan).input_blocks())
                .map(|b| place(layout.block(Space::Input, b, 0).len))
                .collect()
        } else {
            Box::default()
        };
        let pieces_max = plan.lanes.iter().flatten().map(|step| pieces_of(&step.action)).sum();
        Self {
            plan,
            shape,
            layout,
            segment_elements,
            element_bytes,
            scratch_offsets,
            staged_offsets,
            scratch_bytes: bytes,
            pieces_max,
        }
    }

    /// Whether input blocks are read from a copy in scratch.
    pub(crate) fn is_staged(&self) -> bool {
        !self.staged_offsets.is_empty()
    }

    /// Whether this binding serves a call with these parameters too.
    pub(crate) fn serves(
        &self,
        plan: &Arc<Plan>,
        shape: &Shape,
        segment_elements: usize,
        element_bytes: usize,
        staged_input: bool,
    ) -> bool {
        Arc::ptr_eq(&self.plan, plan)
            && self.shape == *shape
            && self.segment_elements == segment_elements
            && self.element_bytes == element_bytes
            && self.is_staged() == staged_input
    }

    /// Appends the memory of consecutive blocks in one segment, adjacent blocks merged, empty ones left out.
    /// Returns the number of bytes.
    pub(crate) fn pieces(
        &self,
        blocks: Blocks,
        segment: usize,
        buffers: Buffers,
        scratch: *mut u8,
        out: &mut Vec<Piece>,
    ) -> usize {
        let mut bytes = 0;
        let mut push = |ptr: *mut u8, len: usize| {
            bytes += len;
            if let Some(last) = out.last_mut()
                && bytes > len
                && last.ptr.wrapping_add(last.len) == ptr
            {
                last.len += len;
            } else {
                out.push(Piece { ptr, len });
            }
        };
        let size = self.element_bytes;
        match blocks.space {
            Space::Scratch => self.each_compact(blocks, segment, &self.scratch_offsets, scratch, &mut push),
            Space::Input if self.is_staged() => {
                self.each_compact(blocks, segment, &self.staged_offsets, scratch, &mut push);
            }
            Space::Input | Space::Output => {
                let base = if blocks.space == Space::Input { buffers.input } else { buffers.output };
                self.layout.extents(blocks, segment, |Extent { offset, len }| {
                    push(base.wrapping_add(offset * size), len * size);
                });
            }
        }
        bytes
    }

    fn each_compact(
        &self,
        blocks: Blocks,
        segment: usize,
        offsets: &[usize],
        base: *mut u8,
        push: &mut impl FnMut(*mut u8, usize),
    ) {
        for block in blocks.first..blocks.first + blocks.count {
            let len = self.layout.block(blocks.space, block, segment).len * self.element_bytes;
            if len > 0 {
                push(base.wrapping_add(offsets[block as usize]), len);
            }
        }
    }

    /// Calls `each(from, to, bytes)` for the memory that the staged copy of one segment's input is made from.
    pub(crate) fn each_staged(
        &self,
        segment: usize,
        buffers: Buffers,
        scratch: *mut u8,
        mut each: impl FnMut(*const u8, *mut u8, usize),
    ) {
        for (block, offset) in self.staged_offsets.iter().enumerate() {
            let extent = self.layout.block(Space::Input, block as u32, segment);
            if extent.len > 0 {
                each(
                    buffers.input.wrapping_add(extent.offset * self.element_bytes),
                    scratch.wrapping_add(*offset),
                    extent.len * self.element_bytes,
                );
            }
        }
    }

    /// Calls `each(memory, bytes)` for all of the output that one segment covers.
    pub(crate) fn each_output(&self, segment: usize, buffers: Buffers, mut each: impl FnMut(*mut u8, usize)) {
        for block in 0..Memory::of(&self.plan).output_blocks() {
            let extent = self.layout.block(Space::Output, block, segment);
            if extent.len > 0 {
                each(
                    buffers.output.wrapping_add(extent.offset * self.element_bytes),
                    extent.len * self.element_bytes,
                );
            }
        }
    }
}

fn pieces_of(action: &Action) -> usize {
    let count = |blocks: &Blocks| blocks.count as usize;
    match action {
        Action::Send { src, .. } => count(src),
        Action::Recv { dst, .. } => count(dst),
        Action::RecvReduce { with, dst, .. } => count(with) + count(dst),
        Action::Copy { src, dst } => count(src) + count(dst),
        Action::Reduce { a, b, dst } => count(a) + count(b) + count(dst),
        Action::Signal { .. } | Action::WaitSignal { .. } => 0,
    }
}

/// Page-aligned memory that grows and is reused.
#[derive(Debug)]
pub(crate) struct Staging {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: Staging owns its allocation; nothing else refers to it but through its owner.
unsafe impl Send for Staging {}

impl Staging {
    const ALIGN: usize = 4096;

    pub(crate) const fn new() -> Self {
        Self { ptr: NonNull::dangling(), bytes: 0 }
    }

    /// Makes sure of at least `bytes`; the contents are lost when it grows.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if bytes <= self.bytes {
            return;
        }
        *self = Self::new();
        let layout = Self::layout(bytes);
        // SAFETY: the size is not zero, since it is above `self.bytes`.
        let ptr = unsafe { alloc(layout) };
        self.ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        self.bytes = bytes;
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn layout(bytes: usize) -> AllocLayout {
        AllocLayout::from_size_align(bytes, Self::ALIGN).expect("staging is far below isize::MAX")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated in `reserve` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.bytes)) };
        }
    }
}
