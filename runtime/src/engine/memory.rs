//! Addresses of blocks: a plan bound to the caller's buffers.
//!
//! A plan may work on a bounce buffer in place of a caller's buffer: a copy of one segment, which lies in scratch. The
//! blocks that the plan reads are copied in before the segment, and the blocks that it writes are copied out after it.
//! Where input and output share memory, so do their bounce buffers.

use std::sync::Arc;

use kolo_collectives::layout::{Extent, Layout, Shape};
use kolo_collectives::memory::Memory;
use kolo_collectives::plan::{Action, Blocks, Cut, Plan, Space};
use kolo_collectives::plan_set::SCRATCH_ALIGN;
use kolo_transport::Piece;

/// Length from which a scratch block has cache lines of its own. Shorter blocks that are sent together are one piece of
/// memory; longer ones are cheap to send as several, and sums are faster where they begin with a line.
const JOINED_BYTES: usize = 4096;

/// The caller's memory for one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// Send buffer. It is not written, in spite of its type.
    pub(crate) input: *mut u8,
    /// Receive buffer.
    pub(crate) output: *mut u8,
}

// SAFETY: these are addresses; the code that uses them answers for the memory (see the contract of `Engine::start`).
unsafe impl Send for Buffers {}

/// The caller's buffers for which a plan works on a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounced {
    pub(crate) input: bool,
    pub(crate) output: bool,
}

/// Position of a bounce buffer in an instance's scratch.
#[derive(Debug)]
struct BounceBuffer {
    base: usize,
    /// Byte offset of each block in scratch; empty where blocks lie side by side, as in the buffer.
    offsets: Box<[usize]>,
}

/// A plan with its layout, computed once for many runs of the same call.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) plan: Arc<Plan>,
    pub(crate) shape: Shape,
    pub(crate) layout: Layout,
    pub(crate) segment_elements: usize,
    pub(crate) element_bytes: usize,
    /// Byte offset of each scratch block in an instance's scratch, valid for every segment.
    scratch_offsets: Box<[usize]>,
    memory: Memory,
    bounced: Bounced,
    input_bounce: Option<BounceBuffer>,
    output_bounce: Option<BounceBuffer>,
    /// Blocks of bounced buffers with data that the plan reads.
    loads: Box<[Blocks]>,
    /// Blocks of bounced buffers that the plan writes.
    stores: Box<[Blocks]>,
    /// Bytes of scratch per instance, including bounce buffers.
    pub(crate) scratch_bytes: usize,
    /// Most pieces that all steps of one segment need together.
    pub(crate) pieces_max: usize,
}

impl Binding {
    /// Binds a plan.
    pub(crate) fn new(
        plan: Arc<Plan>,
        shape: Shape,
        segment_elements: usize,
        element_bytes: usize,
        bounced: Bounced,
    ) -> Self {
        let layout = Layout::new(&plan, shape.clone(), segment_elements);
        let memory = Memory::of(&plan);
        // Segment 0 is the longest one for every block.
        let mut bytes = 0_usize;
        let mut place_behind = |elements: usize, joined: bool| {
            let offset = if joined { bytes } else { bytes.next_multiple_of(SCRATCH_ALIGN) };
            bytes = offset + elements * element_bytes;
            offset
        };
        let scratch_offsets = (0..)
            .zip(joined(&plan))
            .map(|(block, joined)| {
                let elements = layout.block(Space::Scratch, block, 0).len;
                place_behind(elements, joined && elements * element_bytes < JOINED_BYTES)
            })
            .collect();
        let mut place = |elements| place_behind(elements, false);
        let side_by_side = matches!(shape, Shape::Vector { .. }) || layout.segments() == 1;
        let mut bounce_buffer = |space, blocks: u32| {
            let has_name = |block: &u32| memory.physical(Blocks::one(space, *block)).space == space;
            let lens = (0..blocks).map(|block| match has_name(&block) {
                true => layout.block(space, block, 0).len,
                // Its bytes are those of the other buffer.
                false => 0,
            });
            if side_by_side {
                return BounceBuffer { base: place(lens.sum()), offsets: Box::default() };
            }
            BounceBuffer { base: 0, offsets: lens.map(&mut place).collect() }
        };
        let input_bounce = bounced.input.then(|| bounce_buffer(Space::Input, memory.input_blocks()));
        let output_bounce = bounced.output.then(|| bounce_buffer(Space::Output, memory.output_blocks()));
        let (loads, stores) = touched(&plan, memory, bounced);
        let pieces_max = plan.lanes.iter().flatten().map(|step| pieces_of(&step.action)).sum();
        Self {
            plan,
            shape,
            layout,
            segment_elements,
            element_bytes,
            scratch_offsets,
            memory,
            bounced,
            input_bounce,
            output_bounce,
            loads,
            stores,
            scratch_bytes: bytes.next_multiple_of(SCRATCH_ALIGN),
            pieces_max,
        }
    }

    /// Returns the bytes of the whole input and of the whole output.
    pub(crate) fn buffer_bytes(&self) -> (usize, usize) {
        let (input, output) = (self.memory.input_blocks(), self.memory.output_blocks());
        let (input, output) = match &self.shape {
            Shape::Vector { count } if matches!(self.plan.cut, Cut::Shards { .. }) => {
                ((input / output) as usize * count, *count)
            }
            Shape::Vector { count } => (input.min(1) as usize * count, output.min(1) as usize * count),
            Shape::Blocks { count } => (input as usize * count, output as usize * count),
            Shape::Irregular { input, output } => (input.iter().sum(), output.iter().sum()),
        };
        (input * self.element_bytes, output * self.element_bytes)
    }

    /// Returns whether any buffer is bounced.
    pub(crate) fn is_bounced(&self) -> bool {
        self.bounced != Bounced::default()
    }

    /// Returns whether this binding also serves a call with these parameters.
    pub(crate) fn serves(
        &self,
        plan: &Arc<Plan>,
        shape: &Shape,
        segment_elements: usize,
        element_bytes: usize,
        bounced: Bounced,
    ) -> bool {
        Arc::ptr_eq(&self.plan, plan)
            && self.shape == *shape
            && self.segment_elements == segment_elements
            && self.element_bytes == element_bytes
            && self.bounced == bounced
    }

    /// Appends the memory of consecutive blocks in one segment, with adjacent blocks merged and empty ones left out.
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
        // Merged before it is pushed. Endpoints hold pointers to the earlier pieces, and a reference to the last one,
        // taken from the vector, would invalidate them (seen by Miri on `engine::tests`).
        let mut last = Piece { ptr: std::ptr::null_mut(), len: 0 };
        let mut push = |ptr: *mut u8, len: usize| {
            bytes += len;
            if last.len > 0 && last.ptr.wrapping_add(last.len) == ptr {
                last.len += len;
                return;
            }
            if last.len > 0 {
                out.push(last);
            }
            last = Piece { ptr, len };
        };
        let size = self.element_bytes;
        let blocks = if self.is_bounced() { self.memory.physical(blocks) } else { blocks };
        match self.origin(blocks.space, segment, buffers, scratch) {
            Origin::Table(offsets) => self.each_compact(blocks, segment, offsets, scratch, &mut push),
            Origin::Buffer(base) => self.layout.extents(blocks, segment, |Extent { offset, len }| {
                push(base.wrapping_add(offset * size), len * size);
            }),
        }
        if last.len > 0 {
            out.push(last);
        }
        bytes
    }

    /// Returns how to locate the blocks of a space.
    fn origin(&self, space: Space, segment: usize, buffers: Buffers, scratch: *mut u8) -> Origin<'_> {
        let (bounce, buffer) = match space {
            Space::Scratch => return Origin::Table(&self.scratch_offsets),
            Space::Input => (&self.input_bounce, buffers.input),
            Space::Output => (&self.output_bounce, buffers.output),
            Space::Stage(_) | Space::Window(_) => unreachable!("it is no memory of this caller's"),
        };
        match bounce {
            None => Origin::Buffer(buffer),
            Some(BounceBuffer { base, offsets }) if offsets.is_empty() => {
                // Treated as the whole buffer, of which only this segment exists.
                let start = self.layout.block(space, 0, segment).offset * self.element_bytes;
                Origin::Buffer(scratch.wrapping_add(*base).wrapping_sub(start))
            }
            Some(BounceBuffer { offsets, .. }) => Origin::Table(offsets),
        }
    }

    /// Returns the memory of one block in one segment, as the plan sees it.
    fn place(&self, block: Blocks, segment: usize, buffers: Buffers, scratch: *mut u8) -> Piece {
        let block = if self.is_bounced() { self.memory.physical(block) } else { block };
        let Extent { offset, len } = self.layout.block(block.space, block.first, segment);
        let ptr = match self.origin(block.space, segment, buffers, scratch) {
            Origin::Table(offsets) => scratch.wrapping_add(offsets[block.first as usize]),
            Origin::Buffer(base) => base.wrapping_add(offset * self.element_bytes),
        };
        Piece { ptr, len: len * self.element_bytes }
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

    /// Returns whether a segment's bounce buffers are filled from the caller's buffers.
    pub(crate) fn has_loads(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Returns whether a segment's bounce buffers are copied back.
    pub(crate) fn has_stores(&self) -> bool {
        !self.stores.is_empty()
    }

    /// Returns the copies (from, to, bytes) from the caller's buffers that fill the bounce buffers of a segment.
    pub(crate) fn loads(
        &self,
        segment: usize,
        buffers: Buffers,
        scratch: *mut u8,
    ) -> impl Iterator<Item = Part> {
        let parts = self.loads.iter().map(move |block| {
            let Piece { ptr, len } = self.place(*block, segment, buffers, scratch);
            (self.original(*block, segment, buffers).cast_const(), ptr, len)
        });
        Merged { parts, pending: None }
    }

    /// Returns the copies (from, to, bytes) of a segment's results from its bounce buffers to the caller's buffers.
    pub(crate) fn stores(
        &self,
        segment: usize,
        buffers: Buffers,
        scratch: *mut u8,
    ) -> impl Iterator<Item = Part> {
        let parts = self.stores.iter().map(move |block| {
            let Piece { ptr, len } = self.place(*block, segment, buffers, scratch);
            (ptr.cast_const(), self.original(*block, segment, buffers), len)
        });
        Merged { parts, pending: None }
    }

    /// Returns the address of one segment's block in the caller's buffer.
    fn original(&self, block: Blocks, segment: usize, buffers: Buffers) -> *mut u8 {
        let base = if block.space == Space::Input { buffers.input } else { buffers.output };
        let Extent { offset, .. } = self.layout.block(block.space, block.first, segment);
        base.wrapping_add(offset * self.element_bytes)
    }

    /// Calls `each(memory, bytes)` for all of the output that one segment covers, as the plan sees it.
    pub(crate) fn each_output(
        &self,
        segment: usize,
        buffers: Buffers,
        scratch: *mut u8,
        mut each: impl FnMut(*mut u8, usize),
    ) {
        for block in 0..self.memory.output_blocks() {
            let Piece { ptr, len } = self.place(Blocks::one(Space::Output, block), segment, buffers, scratch);
            if len > 0 {
                each(ptr, len);
            }
        }
    }
}

/// How blocks are located.
enum Origin<'a> {
    /// By a table of offsets in scratch.
    Table(&'a [usize]),
    /// As the layout says, from this address.
    Buffer(*mut u8),
}

/// A copy: source, target, bytes.
pub(crate) type Part = (*const u8, *mut u8, usize);

/// Iterator that merges copies that are adjacent on both sides, and leaves out empty ones.
struct Merged<I> {
    parts: I,
    pending: Option<Part>,
}

impl<I: Iterator<Item = Part>> Iterator for Merged<I> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        for part in self.parts.by_ref().filter(|part| part.2 > 0) {
            match &mut self.pending {
                Some((from, to, len))
                    if from.wrapping_add(*len) == part.0 && to.wrapping_add(*len) == part.1 =>
                {
                    *len += part.2;
                }
                Some(_) => return self.pending.replace(part),
                None => self.pending = Some(part),
            }
        }
        self.pending.take()
    }
}

/// Returns, for each scratch block, whether it lies right behind the one before it if it is short, so that they are one
/// piece of memory: some step names both at once.
fn joined(plan: &Plan) -> Vec<bool> {
    let mut joined = vec![false; plan.scratch.len()];
    for step in plan.lanes.iter().flatten() {
        let named = step.action.reads().into_iter().chain([step.action.writes()]).flatten();
        for blocks in named.filter(|blocks| blocks.space == Space::Scratch) {
            joined[blocks.first as usize + 1..blocks.end() as usize].fill(true);
        }
    }
    joined
}

/// Returns the blocks of bounced buffers that hold data and are read, and those that are written.
fn touched(plan: &Plan, memory: Memory, bounced: Bounced) -> (Box<[Blocks]>, Box<[Blocks]>) {
    let of_bounced = |blocks: Blocks| {
        let singles = (blocks.first..blocks.end()).map(move |b| Blocks::one(blocks.space, b));
        singles.map(move |block| memory.physical(block)).filter(move |block| match block.space {
            Space::Input => bounced.input,
            Space::Output => bounced.output,
            Space::Scratch | Space::Stage(_) | Space::Window(_) => false,
        })
    };
    let collect = |blocks: Vec<Blocks>| {
        let mut blocks = blocks;
        blocks.sort_unstable_by_key(|block| (block.space, block.first));
        blocks.dedup();
        blocks.into_boxed_slice()
    };
    if bounced == Bounced::default() {
        return Default::default();
    }
    let actions = || plan.lanes.iter().flatten().map(|step| &step.action);
    let holds = |block: &Blocks| block.space == Space::Input || memory.starts_in_output(block.first);
    let reads = actions().flat_map(Action::reads).flatten().flat_map(of_bounced).filter(holds);
    let writes = actions().filter_map(Action::writes).flat_map(of_bounced);
    (collect(reads.collect()), collect(writes.collect()))
}

fn pieces_of(action: &Action) -> usize {
    let count = |blocks: &Blocks| blocks.count as usize;
    match action {
        Action::Send { src, .. } => count(src),
        Action::Recv { dst, .. } => count(dst),
        Action::RecvReduce { with, dst, .. } => count(with) + count(dst),
        Action::Copy { src, dst } => count(src) + count(dst),
        Action::Reduce { a, b, dst } => count(a) + count(b) + count(dst),
        Action::Publish { src, .. } => src.iter().flatten().map(count).sum(),
        Action::Fold { own, dst, .. } => own.as_ref().map_or(0, count) + count(dst),
        Action::Signal { .. } | Action::WaitSignal { .. } | Action::Await { .. } | Action::Spread { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kolo_collectives::{Algorithm, Task, plan::Collective};

    #[test]
    fn short_blocks_that_are_sent_together_are_one_piece() {
        let task = |ranks: u32, of_host: u32| {
            let hosts: Vec<u32> = (0..ranks).map(|rank| rank / of_host).collect();
            Task::new(Collective::AllToAll, ranks).with_hosts(hosts).with_stages()
        };
        let memory = std::ptr::without_provenance_mut(1 << 20);
        let buffers = Buffers { input: memory, output: memory };
        for (algorithm, task) in [(Algorithm::Bruck, task(16, 1)), (Algorithm::LeaderStaged, task(12, 4))] {
            let (plan, shape) = (Arc::new(algorithm.plan(&task, 0)), Shape::Blocks { count: 3 });
            let binding = Binding::new(Arc::clone(&plan), shape, 3, 4, Bounced::default());
            assert!(binding.scratch_bytes.is_multiple_of(SCRATCH_ALIGN));
            for step in plan.lanes.iter().flatten() {
                if let Action::Send { src, .. } = step.action {
                    let mut pieces = Vec::new();
                    let bytes = binding.pieces(src, 0, buffers, memory, &mut pieces);
                    assert_eq!((pieces.len(), bytes), (1, 12 * src.count as usize), "{algorithm}: {src:?}");
                    assert!((pieces[0].ptr as usize).is_multiple_of(4));
                }
            }
        }
    }

    #[test]
    fn long_blocks_begin_on_cache_lines() {
        let task = Task::new(Collective::AllToAll, 16);
        let memory = std::ptr::without_provenance_mut(1 << 20);
        let buffers = Buffers { input: memory, output: memory };
        let plan = Arc::new(Algorithm::Bruck.plan(&task, 0));
        let count = JOINED_BYTES / 4 + 1;
        let binding = Binding::new(Arc::clone(&plan), Shape::Blocks { count }, count, 4, Bounced::default());
        let mut pieces = Vec::new();
        for blocks in plan.lanes.iter().flatten().flat_map(|step| step.action.reads()).flatten() {
            if blocks.space == Space::Scratch {
                binding.pieces(blocks, 0, buffers, memory, &mut pieces);
            }
        }
        assert!(!pieces.is_empty());
        assert!(pieces.iter().all(|piece| (piece.ptr as usize).is_multiple_of(SCRATCH_ALIGN)), "{pieces:?}");
    }
}
