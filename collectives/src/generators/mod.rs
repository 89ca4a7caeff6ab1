//! The generators, one file each. [`Algorithm`](crate::Algorithm) is the door.

pub(crate) mod binomial;
pub(crate) mod bruck;
pub(crate) mod chain;
pub(crate) mod circulant;
mod circulant_pipelined;
mod circulant_schedule;
pub(crate) mod direct;
pub(crate) mod dissemination;
pub(crate) mod halving;
pub(crate) mod hierarchical;
pub(crate) mod leader;
pub(crate) mod one_shot;
pub(crate) mod recursive_doubling;
pub(crate) mod ring;
pub(crate) mod tree;

use crate::builder::PlanBuilder;
use crate::plan::{Blocks, Space};
use crate::task::Task;

/// What a world of one rank does: the result is the own contribution.
pub(crate) fn copy_own(b: &mut PlanBuilder, task: &Task, first: u32, count: u32) {
    if task.out_of_place() {
        b.copy(Blocks::range(Space::Input, first, count), Blocks::range(Space::Output, first, count));
    }
}
