//! The layout: blocks are disjoint and complete, for all shapes and segments.

use kolo_collectives::layout::{Extent, Layout, Shape};
use kolo_collectives::plan::{Blocks, Collective, Cut, Like, Placement, Plan, Space};
use proptest::prelude::*;

fn plan(cut: Cut, scratch: Vec<Like>) -> Plan {
    Plan {
        collective: Collective::AllToAll,
        algorithm: "none",
        rank: 0,
        world_size: 1,
        root: 0,
        placement: Placement::OutOfPlace,
        cut,
        scratch: scratch.into(),
        stage: None,
        lanes: Box::default(),
        channels: 0,
    }
}

/// Returns the blocks of all segments, in order of their offset, without empty ones.
fn all(layout: &Layout, space: Space, blocks: u32) -> Vec<Extent> {
    let mut extents: Vec<Extent> = (0..layout.segments())
        .flat_map(|segment| (0..blocks).map(move |block| (segment, block)))
        .map(|(segment, block)| layout.block(space, block, segment))
        .filter(|extent| extent.len > 0)
        .collect();
    extents.sort_by_key(|extent| extent.offset);
    extents
}

fn cover(extents: &[Extent], total: usize) -> Result<(), TestCaseError> {
    let mut next = 0;
    for extent in extents {
        prop_assert_eq!(extent.offset, next);
        next += extent.len;
    }
    prop_assert_eq!(next, total);
    Ok(())
}

/// Checks that `len` and `extents` of a range agree with those of its blocks, one by one.
fn range_agrees(layout: &Layout, range: Blocks, segment: usize) -> Result<(), TestCaseError> {
    let blocks: Vec<Extent> = (range.first..range.first + range.count)
        .map(|block| layout.block(range.space, block, segment))
        .filter(|extent| extent.len > 0)
        .collect();
    prop_assert_eq!(layout.len(range, segment), blocks.iter().map(|extent| extent.len).sum::<usize>());
    let mut merged: Vec<Extent> = Vec::new();
    layout.extents(range, segment, |extent| merged.push(extent));
    let elements = |extents: &[Extent]| -> Vec<usize> {
        extents.iter().flat_map(|extent| extent.offset..extent.offset + extent.len).collect()
    };
    prop_assert_eq!(elements(&merged), elements(&blocks));
    for pair in merged.windows(2) {
        prop_assert!(pair[0].offset + pair[0].len != pair[1].offset, "adjacent ranges are merged");
    }
    Ok(())
}

proptest! {
    #[test]
    fn vectors(count in 0..2000_usize, parts in 1..40_u32, segment in 1..700_usize, first in 0..40_u32) {
        let layout = Layout::new(&plan(Cut::Vector { parts }, vec![]), Shape::Vector { count }, segment);
        cover(&all(&layout, Space::Input, parts), count)?;
        prop_assert_eq!(all(&layout, Space::Input, parts), all(&layout, Space::Output, parts));
        let first = first.min(parts - 1);
        for segment in 0..layout.segments() {
            range_agrees(&layout, Blocks::range(Space::Output, first, parts - first), segment)?;
        }
    }

    #[test]
    fn equal_blocks(count in 0..300_usize, blocks in 1..20_u32, segment in 1..100_usize) {
        let layout = Layout::new(&plan(Cut::PerRank, vec![]), Shape::Blocks { count }, segment);
        cover(&all(&layout, Space::Input, blocks), count * blocks as usize)?;
        for segment in 0..layout.segments() {
            range_agrees(&layout, Blocks::range(Space::Input, 0, blocks), segment)?;
        }
    }

    #[test]
    fn unequal_blocks_and_their_scratch(
        input in prop::collection::vec(0..50_usize, 1..12),
        output in prop::collection::vec(0..50_usize, 1..12),
        segment in 1..60_usize,
    ) {
        let scratch: Vec<Like> = (0..input.len() as u32).map(Like::Input)
            .chain((0..output.len() as u32).rev().map(Like::Output)).collect();
        let staged = scratch.len() as u32;
        let shape = Shape::Irregular { input: input.clone().into(), output: output.clone().into() };
        let layout = Layout::new(&plan(Cut::PerRank, scratch.clone()), shape, segment);
        cover(&all(&layout, Space::Input, input.len() as u32), input.iter().sum())?;
        cover(&all(&layout, Space::Output, output.len() as u32), output.iter().sum())?;
        for segment in 0..layout.segments() {
            let mut next = 0;
            for (block, like) in scratch.iter().enumerate() {
                let found = layout.block(Space::Scratch, block as u32, segment);
                let wanted = match *like {
                    Like::Input(block) => layout.block(Space::Input, block, segment),
                    Like::Output(block) => layout.block(Space::Output, block, segment),
                };
                prop_assert_eq!(found.len, wanted.len);
                prop_assert!(found.offset >= next, "scratch blocks do not overlap");
                next = found.offset + found.len;
            }
            prop_assert!(next <= layout.scratch_elements());
            range_agrees(&layout, Blocks::range(Space::Scratch, 0, staged), segment)?;
        }
        // A segment beyond the last one is empty, so ranks that count fewer segments than others miss
        // nothing.
        let beyond = layout.segments();
        prop_assert_eq!(layout.len(Blocks::range(Space::Input, 0, input.len() as u32), beyond), 0);
    }
}
