//! Layout of blocks: the only code that cuts data into blocks and segments.
//!
//! The executor and the simulator both bind plans through this module, so the plan that was checked is the one that
//! runs. The one exception is a vector that other ranks write in place: see [`Cut::Vector`].

use crate::plan::{Blocks, Cut, Like, Plan, Space};

/// A run of elements inside one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

/// The length of a block in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Elements.
    pub(crate) len: usize,
    /// The part of a vector that the block is as long as. Parts differ by an element for some lengths of the vector,
    /// so blocks are equally long for every length only if they are as long as the same part. 0 without a vector.
    part: u32,
}

/// The shape of the caller's buffers, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One vector of `count` elements (for plans cut with [`Cut::Vector`]), or several such vectors (for
    /// [`Cut::Shards`]).
    Vector {
        /// Elements.
        count: usize,
    },
    /// Blocks of equal length, `count` elements each (for plans cut with [`Cut::PerRank`]).
    Blocks {
        /// Elements per block.
        count: usize,
    },
    /// Blocks of given lengths, one after the other (the v-forms).
    Irregular {
        /// Elements of each input block.
        input: Box<[usize]>,
        /// Elements of each output block.
        output: Box<[usize]>,
    },
}

/// Maps block names to element ranges, for every segment of one operation.
#[derive(Clone, Debug)]
pub struct Layout {
    cut: Cut,
    shape: Shape,
    scratch: Box<[Like]>,
    /// The space whose blocks give the blocks of stages their lengths. Blocks of windows are as long as those of an
    /// input.
    stages_like: Space,
    /// Start of each scratch block. It is the same in all segments, and leaves room for the first, which is the
    /// longest.
    scratch_offsets: Box<[usize]>,
    /// Prefix sums of the irregular block lengths; empty otherwise.
    input_offsets: Box<[usize]>,
    output_offsets: Box<[usize]>,
    segment_elements: usize,
    segments: usize,
}

impl Layout {
    /// Lays out `shape` for `plan`, in segments of at most `segment_elements` elements: of the vector for
    /// [`Cut::Vector`], of the longest block for [`Cut::PerRank`]. There is always at least one segment.
    ///
    /// # Panics
    /// If the shape does not fit the plan's cut, or `segment_elements` is 0.
    #[must_use]
    pub fn new(plan: &Plan, shape: Shape, segment_elements: usize) -> Self {
        assert!(segment_elements > 0, "a segment holds at least one element");
        match (&plan.cut, &shape) {
            (Cut::Vector { parts } | Cut::Shards { parts, .. }, Shape::Vector { .. }) => assert!(*parts > 0),
            (Cut::PerRank, Shape::Blocks { .. } | Shape::Irregular { .. }) => {}
            _ => panic!("shape {shape:?} does not fit cut {:?}", plan.cut),
        }
        let (input_offsets, output_offsets) = match &shape {
            Shape::Irregular { input, output } => (prefix_sums(input), prefix_sums(output)),
            Shape::Vector { .. } | Shape::Blocks { .. } => (Box::default(), Box::default()),
        };
        let longest = match &shape {
            Shape::Vector { count } | Shape::Blocks { count } => *count,
            Shape::Irregular { input, output } => input.iter().chain(output).copied().max().unwrap_or(0),
        };
        let mut layout = Self {
            cut: plan.cut,
            shape,
            scratch: plan.scratch.clone(),
            stages_like: plan.stage.as_ref().map_or(Space::Output, |stage| stage.like),
            scratch_offsets: Box::default(),
            input_offsets,
            output_offsets,
            segment_elements,
            segments: longest.div_ceil(segment_elements).max(1),
        };
        let lens: Box<[usize]> = layout.scratch.iter().map(|like| layout.like(*like, 0)).collect();
        layout.scratch_offsets = prefix_sums(&lens);
        layout
    }

    /// Returns the shape of the caller's buffers.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of segments, at least one.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Returns the element range of one block in one segment. For a block of a stage it is the range of the block in
    /// the space that gives stages their lengths; [`Stage::place`](crate::stage::Stage::place) returns its place in the
    /// stage.
    #[must_use]
    pub fn block(&self, space: Space, block: u32, segment: usize) -> Extent {
        let space = self.named(space);
        let block = block as usize;
        match space {
            Space::Scratch => {
                let offset = self.scratch_offsets[block];
                Extent { offset, len: self.like(self.scratch[block], segment) }
            }
            Space::Input | Space::Output | Space::Stage(_) | Space::Window(_) => {
                match (&self.cut, &self.shape) {
                    (Cut::Vector { parts }, Shape::Vector { count }) => {
                        let start = segment * self.segment_elements;
                        let len = self.segment_elements.min(count.saturating_sub(start));
                        let part = part(len, *parts as usize, block);
                        Extent { offset: start + part.offset, len: part.len }
                    }
                    (Cut::Shards { parts, .. }, Shape::Vector { count }) => {
                        let parts = *parts as usize;
                        let start = segment * self.segment_elements;
                        let len = self.segment_elements.min(count.saturating_sub(start));
                        let part = part(len, parts, block % parts);
                        Extent { offset: block / parts * count + start + part.offset, len: part.len }
                    }
                    (_, Shape::Blocks { count }) => self.slice_of_block(block * count, *count, segment),
                    (_, Shape::Irregular { input, output }) => {
                        let (offsets, lens) = match space {
                            Space::Input => (&self.input_offsets, input),
                            _ => (&self.output_offsets, output),
                        };
                        self.slice_of_block(offsets[block], lens[block], segment)
                    }
                    _ => unreachable!("checked in new"),
                }
            }
        }
    }

    /// Returns the length of one block in one segment.
    pub(crate) fn size(&self, space: Space, block: u32, segment: usize) -> Size {
        let index = match self.named(space) {
            Space::Scratch => match self.scratch[block as usize] {
                Like::Input(index) | Like::Output(index) => index,
            },
            _ => block,
        };
        let part = match self.cut {
            Cut::Vector { parts } | Cut::Shards { parts, .. } => index % parts,
            Cut::PerRank => 0,
        };
        Size { len: self.block(space, block, segment).len, part }
    }

    /// Calls `each` with the element ranges of consecutive blocks in one segment, adjacent ones merged, empty ones left
    /// out.
    pub fn extents(&self, blocks: Blocks, segment: usize, mut each: impl FnMut(Extent)) {
        // Plans name thousands of blocks at once; where these are adjacent in memory, they need no loop.
        let side_by_side = match self.shape {
            Shape::Vector { .. } => true,
            Shape::Blocks { .. } => self.segments == 1,
            Shape::Irregular { .. } => false,
        };
        if side_by_side && blocks.space != Space::Scratch {
            let offset = self.block(blocks.space, blocks.first, segment).offset;
            let len = self.len(blocks, segment);
            if len > 0 {
                each(Extent { offset, len });
            }
            return;
        }
        let mut pending = Extent { offset: 0, len: 0 };
        for block in blocks.first..blocks.first + blocks.count {
            let next = self.block(blocks.space, block, segment);
            if next.len == 0 {
                continue;
            }
            if pending.len > 0 && pending.offset + pending.len == next.offset {
                pending.len += next.len;
            } else {
                if pending.len > 0 {
                    each(pending);
                }
                pending = next;
            }
        }
        if pending.len > 0 {
            each(pending);
        }
    }

    /// Returns the number of elements in consecutive blocks in one segment.
    #[must_use]
    pub fn len(&self, blocks: Blocks, segment: usize) -> usize {
        let blocks = Blocks { space: self.named(blocks.space), ..blocks };
        let (first, last) = (blocks.first, blocks.first + blocks.count - 1);
        match (&self.shape, blocks.space) {
            (Shape::Vector { .. }, Space::Input | Space::Output) => {
                let (first, last) =
                    (self.block(blocks.space, first, segment), self.block(blocks.space, last, segment));
                return last.offset + last.len - first.offset;
            }
            (Shape::Blocks { .. }, Space::Input | Space::Output) => {
                return blocks.count as usize * self.block(blocks.space, first, segment).len;
            }
            _ => {}
        }
        (blocks.first..blocks.first + blocks.count).map(|b| self.block(blocks.space, b, segment).len).sum()
    }

    /// Returns the most elements of scratch that one segment needs.
    #[must_use]
    pub fn scratch_elements(&self) -> usize {
        // The first segment is the longest, for every block.
        self.scratch.iter().map(|like| self.like(*like, 0)).sum()
    }

    fn named(&self, space: Space) -> Space {
        match space {
            Space::Stage(_) => self.stages_like,
            Space::Window(_) => Space::Input,
            Space::Input | Space::Output | Space::Scratch => space,
        }
    }

    fn slice_of_block(&self, offset: usize, len: usize, segment: usize) -> Extent {
        let start = (segment * self.segment_elements).min(len);
        Extent { offset: offset + start, len: self.segment_elements.min(len - start) }
    }

    fn like(&self, like: Like, segment: usize) -> usize {
        match like {
            Like::Input(block) => self.block(Space::Input, block, segment).len,
            Like::Output(block) => self.block(Space::Output, block, segment).len,
        }
    }
}

/// Returns part `index` of `len` elements cut into `parts` nearly equal parts, the longer ones first.
fn part(len: usize, parts: usize, index: usize) -> Extent {
    let (base, longer) = (len / parts, len % parts);
    Extent { offset: index * base + index.min(longer), len: base + usize::from(index < longer) }
}

fn prefix_sums(lens: &[usize]) -> Box<[usize]> {
    lens.iter()
        .scan(0, |offset, len| {
            let start = *offset;
            *offset += len;
            Some(start)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vector() {
        for len in [0, 1, 5, 16, 17, 100] {
            for parts in 1..=9 {
                let mut next = 0;
                for index in 0..parts {
                    let part = part(len, parts, index);
                    assert_eq!(part.offset, next);
                    next += part.len;
                }
                assert_eq!(next, len);
            }
        }
    }
}
