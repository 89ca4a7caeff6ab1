//! From all ranks' locations to one rank's share of the work.

use std::sync::Arc;

use kolo_collectives::plan::{Collective, Placement};

use super::Fault;
use super::locations::{BufferLocations, Place};
use super::memory::Allocation;
use super::work::{Item, Job};
use crate::call::{Call, Counts};

/// Shares begin at multiples of this: two cache lines, and a whole number of elements of any type.
const GRAIN: usize = 128;

/// Where a rank's contribution lies.
pub(super) fn input_of(call: &Call) -> *const u8 {
    match (call.collective, call.placement) {
        // In place, vectors live in the output.
        (Collective::AllReduce | Collective::Broadcast, Placement::InPlace) => call.output.cast_const(),
        (Collective::Reduce, Placement::InPlace) if call.input.is_null() => call.output.cast_const(),
        _ => call.input,
    }
}

/// Which buffer of a rank would have to be symmetric and is not.
pub(super) fn lacks(call: &Call, rank: usize, locations: &BufferLocations) -> Option<&'static str> {
    let is_root = rank == call.root as usize;
    let (input, output) = match call.collective {
        Collective::AllReduce => (true, true),
        Collective::Reduce => (true, is_root),
        // Others' outputs help if all are symmetric.
        Collective::Broadcast | Collective::Scatter => (is_root, false),
        _ => (true, false),
    };
    match (input && locations.input.is_none(), output && locations.output.is_none()) {
        (true, _) => Some("input"),
        (_, true) => Some("output"),
        _ => None,
    }
}

/// This rank's share of a call, and how it is shared out; or why the call goes another way. All ranks decide alike.
pub(super) fn plan(
    allocations: &[Arc<Allocation>],
    rank: usize,
    call: &Call,
    located: &[BufferLocations],
) -> Result<Result<(Job, &'static str), String>, Fault> {
    for (member, locations) in located.iter().enumerate() {
        if locations.is_on_gpu {
            return Ok(Err(format!("rank {member}'s memory is a GPU's")));
        }
        if let Some(what) = lacks(call, member, locations) {
            return Ok(Err(format!("rank {member}'s {what} is not in a symmetric buffer")));
        }
        if call.collective == Collective::AllToAll && locations.is_in_place {
            return Ok(Err(format!("rank {member} calls it in place")));
        }
    }
    let Counts::Even(count) = call.counts else { unreachable!("only even counts are considered") };
    let block = count * call.data_type.size();
    let mut planner = Planner { allocations, rank, call, located, block, job: Job::default() };
    let how = planner.run()?;
    Ok(Ok((planner.job, how)))
}

struct Planner<'a> {
    allocations: &'a [Arc<Allocation>],
    rank: usize,
    call: &'a Call,
    located: &'a [BufferLocations],
    /// Bytes of the vector, or of one rank's block.
    block: usize,
    job: Job,
}

impl Planner<'_> {
    fn run(&mut self) -> Result<&'static str, Fault> {
        let (rank, root, members, block) =
            (self.rank, self.call.root as usize, self.located.len(), self.block);
        let others = (1..=members).map(|step| (rank + step) % members);
        match self.call.collective {
            Collective::AllReduce => {
                let inputs = self.inputs(0)?;
                self.share(&inputs, &(0..members).collect::<Vec<_>>())?;
                return Ok("each rank reduces a slice of all buffers into all buffers");
            }
            Collective::Reduce => {
                let inputs = self.inputs(0)?;
                self.share(&inputs, &[root])?;
                return Ok("each rank reduces a slice of all buffers into the root's");
            }
            Collective::ReduceScatter => {
                let sources = self.inputs(rank)?;
                self.item(sources, block, self.call.output);
            }
            Collective::AllGather => {
                for member in others {
                    let from = self.input(member, 0)?;
                    self.item(vec![from], block, self.call.output.wrapping_add(member * block));
                }
            }
            Collective::AllToAll => {
                for member in others {
                    let from = self.input(member, rank)?;
                    self.item(vec![from], block, self.call.output.wrapping_add(member * block));
                }
            }
            Collective::Scatter => {
                let from = self.input(root, rank)?;
                self.item(vec![from], block, self.call.output);
            }
            Collective::Broadcast => {
                let from = self.input(root, 0)?;
                if self.located.iter().all(|locations| locations.output.is_some()) {
                    let is_in_place = self.located[root].is_in_place;
                    let to: Vec<usize> =
                        (0..members).filter(|member| *member != root || !is_in_place).collect();
                    self.share(&[from], &to)?;
                    return Ok("each rank copies a slice of the root's buffer into all others");
                }
                self.item(vec![from], block, self.call.output);
            }
            Collective::Gather | Collective::Scan | Collective::ExScan | Collective::Barrier => {
                unreachable!("not considered")
            }
        }
        Ok("each rank reads what it needs from the others' buffers")
    }

    /// This rank's slice, from the sources to the outputs of the members `to`. What is not in pages of its own at each of
    /// these, every one of them computes for itself, aside, and puts there at the end: others read it until then.
    fn share(&mut self, sources: &[*const u8], to: &[usize]) -> Result<(), Fault> {
        let (members, block) = (self.located.len(), self.block);
        let mut pages = 0..block;
        let mut targets = Vec::new();
        for member in to {
            let locations = &self.located[*member];
            let Some(place) = locations.output else { return Err(Fault::Corrupt { member: *member }) };
            targets.push(self.resolve(*member, place, block)?);
            let own = locations.pages_within(place, block);
            pages = pages.start.max(own.start)..pages.end.min(own.end);
        }
        let start = pages.start.next_multiple_of(GRAIN);
        let end = if pages.end == block { block } else { pages.end / GRAIN * GRAIN };
        let shared = if start < end { start..end } else { 0..0 };
        if let Some(index) = to.iter().position(|member| *member == self.rank) {
            for end in [0..shared.start, shared.end..block] {
                if !end.is_empty() {
                    let sources = sources.iter().map(|source| source.wrapping_add(end.start)).collect();
                    self.job.aside(sources, end.len(), targets[index].wrapping_add(end.start));
                }
            }
        }
        let grains = shared.len().div_ceil(GRAIN);
        let cut = |index: usize| (shared.start + grains * index / members * GRAIN).min(shared.end);
        let slice = cut(self.rank)..cut(self.rank + 1);
        if !slice.is_empty() {
            let sources = sources.iter().map(|source| source.wrapping_add(slice.start)).collect();
            let targets = targets.iter().map(|target| target.wrapping_add(slice.start)).collect();
            self.job.items.push(Item { sources, targets, bytes: slice.len() });
        }
        Ok(())
    }

    /// All members' input blocks of an index.
    fn inputs(&mut self, index: usize) -> Result<Vec<*const u8>, Fault> {
        (0..self.located.len()).map(|member| self.input(member, index)).collect()
    }

    /// Block `index` of a member's input.
    fn input(&mut self, member: usize, index: usize) -> Result<*const u8, Fault> {
        let Some(place) = self.located[member].input else { return Err(Fault::Corrupt { member }) };
        let at = self.resolve(member, place, (index + 1) * self.block)?;
        Ok(at.wrapping_add(index * self.block).cast_const())
    }

    fn resolve(&mut self, member: usize, place: Place, len: usize) -> Result<*mut u8, Fault> {
        let allocation =
            self.allocations.binary_search_by_key(&place.allocation, |allocation| allocation.id());
        let allocation = allocation.ok().map(|index| &self.allocations[index]);
        let at = allocation.and_then(|allocation| allocation.at(member, place.offset, len));
        let (Some(allocation), Some(at)) = (allocation, at) else { return Err(Fault::Corrupt { member }) };
        self.job.keep(allocation);
        Ok(at)
    }

    /// From the sources into this rank's own memory, unless it is there already.
    fn item(&mut self, sources: Vec<*const u8>, bytes: usize, to: *mut u8) {
        if sources != [to.cast_const()] {
            self.job.items.push(Item { sources, targets: vec![to], bytes });
        }
    }
}
