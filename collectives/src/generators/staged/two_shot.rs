//! All-reduce and reduce in two shots: each rank reduces a slice of each part of the vector, and publishes the result
//! with the next part.
//!
//! A single round would need fewer waits, but each rank (or the root) would have to reduce everything. Here a byte is
//! copied in once, read by the one rank that reduces it, and its sum is copied out once by each rank that wants it, all
//! of it in the caches; the vector itself is read and written once. Round e carries part e of each rank's vector, and
//! the slices that all ranks have reduced of part e - 1, so m parts take m + 1 rounds:
//!
//! ```text
//! payload of rank r:  part e of its vector                  | its slice of the sum of part e - 1
//! after the round:    sums of part e - 1, of all -> output  ; slice r of part e, of all ranks, reduced -> output
//! ```
//! This is a direct reduce-scatter and all-gather through a stage, with both halves in one round.

use super::{may_read_own, named, on_one_host, payload_bytes, world};
use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::{Generator, StagedSegments};
use crate::model::Model;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::stage::{Members, PAYLOAD_BYTES_MAX, Payload};
use crate::task::Task;

/// Most parts of one segment: with this many parts, the one extra round hardly matters.
const PARTS_MAX: u32 = 16;

/// Longest vector that is a single part.
const ONE_PART_MAX: u64 = 512 << 10;

/// Limit on the length of a part of a longer vector, summed over all ranks. The sums of a part are copied out after the
/// next part has been copied in; until then the caches must still hold the memory that they overwrite. See
/// docs/measurements.md, "Parts and rounds".
const ALL_PARTS_MAX: u64 = 2 << 20;

/// Room for differences in the length of slices: an element of 16 bytes each, for more ranks than shared memory serves.
const UNEVEN_BYTES: u64 = 4 << 10;

/// Shortest part, whatever the number of parts.
const PART_MIN: u64 = 128 << 10;

pub(crate) struct StagedTwoShot;

impl Generator for StagedTwoShot {
    fn name(&self) -> &'static str {
        "staged_two_shot"
    }

    fn source(&self) -> &'static str {
        "two-shot kernels on GPUs; direct reduce-scatter and all-gather through shared memory"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce | Collective::Reduce => on_one_host(task),
            other => Err(format!("the staged two-shot form does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let (p, parts) = (task.world_size, task.params.parts.clamp(1, PARTS_MAX));
        let cut = Cut::Vector { parts: parts * p };
        let mut b = PlanBuilder::new(task, Algorithm::StagedTwoShot, rank, cut);
        b.lane(0);
        if p == 1 {
            crate::generators::copy_own(&mut b, task, 0, parts);
            return b.finish();
        }
        b.stage(world(task), Space::Output);
        let all = task.collective == Collective::AllReduce;
        // Whether this rank gets all sums. If not, the slices that it reduces are only published.
        let takes = all || rank == task.root;
        // The place of this rank's slice of the part before, if others want it.
        let mut sum = None;
        for part in 0..=parts {
            let (first, is_part) = (part * p, part < parts);
            let vector = if is_part { Payload::run(first, p) } else { Payload::PRESENCE };
            let payload = |member: u16| {
                let member = u32::from(member);
                let gives = part > 0 && (all || member != task.root);
                if gives { vector.and(first - p + member, 1) } else { vector }
            };
            let own = (is_part && (may_read_own(task, rank) || !takes))
                .then_some(Blocks::one(task.own(), first + rank));
            let [vector, _] = named(&vector, task.own());
            let src = if vector.is_some() { [vector, sum] } else { [sum, None] };
            b.publish(payload, src, (first + rank, u32::from(own.is_some())));
            if is_part || takes {
                b.await_members(Members::All);
            }
            if part > 0 && takes {
                for member in (0..p).filter(|member| *member != rank) {
                    let block = first - p + member;
                    b.copy(
                        Blocks::one(Space::Stage(member as u16), block),
                        Blocks::one(Space::Output, block),
                    );
                }
            }
            if is_part {
                let dst = match takes {
                    true => Blocks::one(Space::Output, first + rank),
                    false => b.scratch_like_own(task, first + rank),
                };
                b.fold(Members::All, (first + rank, 1), own, dst);
                sum = (all || rank != task.root).then_some(dst);
            }
        }
        b.finish()
    }

    fn cost(&self, task: &Task, n: f64, bill: &mut Bill) {
        let p = task.world_size;
        let slice = n / f64::from(p);
        bill.publish(p, n - slice);
        for _ in 0..=task.params.parts.clamp(1, PARTS_MAX) {
            bill.meet(p - 1);
        }
        bill.fold(p, p, slice);
        bill.publish(p, slice);
        bill.take(if task.collective == Collective::Reduce { 1 } else { p }, n - slice);
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        if task.collective == Collective::Reduce { 1.0 / f64::from(task.world_size) } else { 0.0 }
    }

    fn is_canonical(&self, _: &Task) -> bool {
        true
    }

    fn parts(&self, task: &Task, bytes: u64, _: &Model) -> u32 {
        let parts = bytes.div_ceil(part_bytes(task, bytes)).clamp(1, PARTS_MAX.into());
        // Rounded up, so that few plans serve all sizes.
        (parts as u32).next_power_of_two()
    }

    fn window(&self) -> Option<u32> {
        Some(1)
    }

    fn staged_segments(&self, task: &Task) -> Option<StagedSegments> {
        let best = part_bytes(task, u64::MAX) * u64::from(PARTS_MAX);
        let most = part_bytes_max(task, PAYLOAD_BYTES_MAX as u64);
        Some(StagedSegments { best, most: most * u64::from(task.params.parts.clamp(1, PARTS_MAX)) })
    }
}

/// Returns the best length of the parts of a segment of `bytes`, in bytes.
fn part_bytes(task: &Task, bytes: u64) -> u64 {
    let p = u64::from(task.world_size.max(1));
    let part = if bytes <= ONE_PART_MAX { ONE_PART_MAX } else { (ALL_PARTS_MAX / p).max(PART_MIN) };
    part.min(part_bytes_max(task, payload_bytes(Collective::AllReduce, task.world_size)))
}

/// Returns the longest part with which a payload of `bytes` has room for a slice of the part before.
fn part_bytes_max(task: &Task, bytes: u64) -> u64 {
    let p = u64::from(task.world_size.max(1));
    (bytes - UNEVEN_BYTES) / (p + 1) * p
}
