//! Turns the steps of a plan on windows into addresses: the work of one rank.
//!
//! Blocks lie where [`Layout`] says, with one exception. Other ranks write only whole pages of which the call owns
//! every byte on every rank, so where they write the outputs, the cuts between the parts of a vector are moved to such
//! pages. Each rank with an output computes the rest at the two ends for itself. It sets that rest aside, and puts it
//! into its output at the end, since others read there until then.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use kolo_collectives::layout::{Layout, Shape};
use kolo_collectives::plan::{Action, Blocks, Cut, Plan, Space};
use kolo_collectives::stage::Members;

use super::Fault;
use super::locations::{BufferLocations, Location};
use super::memory::Allocation;
use super::work::{Item, Job};
use crate::call::{Call, Counts};
use crate::engine::needs;
use crate::reduce::GRAIN;

/// Binds the work of a plan after its first round, in which all ranks have said where their buffers lie.
pub(super) fn bind(
    (allocations, rank, page): (&[Arc<Allocation>], usize, usize),
    call: &Call,
    plan: &Plan,
    located: &[BufferLocations],
) -> Result<Box<Job>, Fault> {
    let Counts::Even(count) = call.counts else { unreachable!("only even counts are considered") };
    let layout = OnceCell::new();
    let mut binder =
        Binder { allocations, rank, call, count, plan, located, layout, page, job: Box::default() };
    let mut rounds = 0;
    for action in plan.lanes.iter().flatten().map(|step| step.action) {
        match action {
            Action::Publish { .. } => {
                rounds += 1;
                binder.job.needs = None;
            }
            Action::Await { of } => binder.job.needs = Some(needs(of)),
            Action::Copy { src, dst } if rounds == 1 => binder.copy(src, dst)?,
            Action::Spread { of, first, count, to, at } if rounds == 1 => {
                binder.spread(of, (first, count), to, at)?;
            }
            other => unreachable!("{other}: a plan on windows has two rounds, and its work is between them"),
        }
    }
    Ok(binder.job)
}

struct Binder<'a> {
    allocations: &'a [Arc<Allocation>],
    rank: usize,
    call: &'a Call,
    count: usize,
    plan: &'a Plan,
    located: &'a [BufferLocations],
    layout: OnceCell<Layout>,
    page: usize,
    job: Box<Job>,
}

impl Binder<'_> {
    fn copy(&mut self, src: Blocks, dst: Blocks) -> Result<(), Fault> {
        let from = match src.space {
            Space::Window(member) => self.input(usize::from(member), self.bytes(src))?,
            _ => self.own(src).cast_const(),
        };
        self.take(vec![from], dst);
        Ok(())
    }

    fn spread(&mut self, of: Members, (first, count): (u32, u32), to: Members, at: u32) -> Result<(), Fault> {
        let Cut::Vector { parts } = self.plan.cut else {
            // Where each rank has one block, no other rank writes it.
            debug_assert_eq!(to.range(self.located.len()), self.rank..self.rank + 1);
            let bytes = self.bytes(Blocks::range(Space::Input, first, count));
            let members = of.range(self.located.len());
            let source = |member| self.input(member, bytes.clone());
            let sources = members.map(source).collect::<Result<_, _>>()?;
            self.take(sources, Blocks::range(Space::Output, at, count));
            return Ok(());
        };
        debug_assert_eq!(first, at, "parts keep their places");
        let (members, located) = (self.located.len(), self.located);
        let block = self.count * self.call.data_type.size();
        let mut shared = 0..block;
        let mut targets = Vec::with_capacity(members);
        let to = || to.range(members).filter(|member| !has_it(located, of, *member));
        let is_mine = to().any(|member| member == self.rank);
        for member in to() {
            let locations = &located[member];
            let Some(location) = locations.output else { return Err(Fault::Corrupt { member }) };
            targets.push(self.resolve(member, location, block)?);
            let pages = locations.pages_within(location, block, self.page);
            shared = shared.start.max(pages.start)..shared.end.min(pages.end);
        }
        let start = shared.start.next_multiple_of(GRAIN);
        let end = if shared.end == block { block } else { shared.end / GRAIN * GRAIN };
        let shared = if start < end { start..end } else { 0..0 };
        let source = |member| self.input(member, 0..block);
        let sources = of.range(members).map(source).collect::<Result<Vec<_>, _>>()?;
        let part =
            |range: &Range<usize>| sources.iter().map(|source| source.wrapping_add(range.start)).collect();
        let ends = [0..shared.start, shared.end..block].into_iter();
        for end in ends.filter(|end| is_mine && !end.is_empty()) {
            self.job.aside(part(&end), end.len(), self.call.output.wrapping_add(end.start));
        }
        let grains = shared.len().div_ceil(GRAIN);
        let cut =
            |part: u32| (shared.start + grains * part as usize / parts as usize * GRAIN).min(shared.end);
        let slice = cut(first)..cut(first + count);
        if !slice.is_empty() {
            let targets = targets.iter().map(|target| target.wrapping_add(slice.start)).collect();
            self.job.items.push(Item { sources: part(&slice), targets, bytes: slice.len() });
        }
        Ok(())
    }

    /// Returns the address of these bytes of a member's input.
    fn input(&mut self, member: usize, bytes: Range<usize>) -> Result<*const u8, Fault> {
        let Some(location) = self.located[member].input else { return Err(Fault::Corrupt { member }) };
        Ok(self.resolve(member, location, bytes.end)?.wrapping_add(bytes.start).cast_const())
    }

    fn resolve(&mut self, member: usize, location: Location, len: usize) -> Result<*mut u8, Fault> {
        let allocation =
            self.allocations.binary_search_by_key(&location.allocation, |allocation| allocation.id());
        let allocation = allocation.ok().map(|index| &self.allocations[index]);
        let at = allocation.and_then(|allocation| allocation.at(member, location.offset, len));
        let (Some(allocation), Some(at)) = (allocation, at) else { return Err(Fault::Corrupt { member }) };
        self.job.keep(allocation);
        Ok(at)
    }

    /// Returns the address of blocks in this rank's buffers.
    fn own(&self, blocks: Blocks) -> *mut u8 {
        let base = if blocks.space == Space::Input { self.call.input.cast_mut() } else { self.call.output };
        base.wrapping_add(self.bytes(blocks).start)
    }

    /// Returns the positions of blocks in their buffer. They lie side by side, since there is one segment.
    fn bytes(&self, blocks: Blocks) -> Range<usize> {
        let (size, count) = (self.call.data_type.size(), self.count);
        let shape = || match self.plan.cut {
            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
            Cut::PerRank => Shape::Blocks { count },
        };
        let layout = self.layout.get_or_init(|| Layout::new(self.plan, shape(), usize::MAX));
        let start = layout.block(blocks.space, blocks.first, 0).offset * size;
        start..start + layout.len(blocks, 0) * size
    }

    /// Adds a reduction of the sources into this rank's own memory, unless it is there already.
    fn take(&mut self, sources: Vec<*const u8>, dst: Blocks) {
        let to = self.own(dst);
        if sources != [to.cast_const()] {
            self.job.items.push(Item { sources, targets: vec![to], bytes: self.bytes(dst).len() });
        }
    }
}

/// Returns whether a member's output is the one input itself.
fn has_it(located: &[BufferLocations], of: Members, member: usize) -> bool {
    matches!(of, Members::One(only) if usize::from(only) == member)
        && located[member].input == located[member].output
}
