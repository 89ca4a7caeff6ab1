//! Conversion of a file's programs to plans. All numbers are bounded first, so that neither reading nor proving
//! them takes long.

use std::sync::Arc;

use super::{PlanFile, Program, Serves, SharedMemory, bounded};
use crate::plan::{Action, Blocks, Cut, Placement, Plan, Space};
use crate::stage::Stage;
use crate::window::Windows;

const LANES_MAX: usize = 64;
const STEPS_PER_RANK_MAX: usize = 1 << 14;
const STEPS_MAX: usize = 1 << 18;
/// Limit on the blocks that all steps together touch: the checker goes through all of them.
const TOUCHED_MAX: u64 = 1 << 22;
/// Limit on the blocks of all ranks' memories: the checker keeps a value for each.
const CELLS_MAX: u64 = 1 << 21;
const CHANNELS_MAX: u16 = 64;

/// Returns the number of blocks that the buffers are cut into.
pub(super) fn blocks_of(cut: Cut, serves: &Serves) -> Result<u32, String> {
    match cut {
        Cut::Vector { parts } if !serves.collective.has_block_per_rank() => {
            bounded("parts", u64::from(parts), 1, u64::from(crate::generator::MAX_PARTS))?;
            Ok(parts)
        }
        Cut::PerRank if serves.collective.has_block_per_rank() => Ok(serves.ranks),
        _ => Err(format!("{} is not cut into {cut:?}", serves.collective)),
    }
}

pub(super) fn stages_of(file: &PlanFile, blocks: u32) -> Result<Vec<Stage>, String> {
    if file.stages.len() > file.serves.ranks as usize {
        return Err("there is more shared memory than there are ranks".to_owned());
    }
    let mut size = 0;
    let stage = |shared: &SharedMemory| {
        let hosts = file.serves.hosts.as_ref().ok_or("ranks that share memory are on known hosts")?;
        let host = |rank: &u32| hosts.get(*rank as usize);
        if shared.members.len() < 2
            || shared
                .members
                .iter()
                .any(|rank| host(rank).is_none() || host(rank) != host(&shared.members[0]))
        {
            return Err(format!("ranks {:?} are not on one host and cannot share memory", shared.members));
        }
        size += shared.rounds.iter().map(Vec::len).sum::<usize>();
        let runs = || shared.rounds.iter().flatten().flat_map(|payload| payload.runs).flatten();
        if size > STEPS_MAX || runs().any(|run| run.count == 0 || !fits(run.first, run.count, blocks)) {
            return Err("ranks publish too much, or blocks outside their buffers".to_owned());
        }
        Ok(Stage {
            members: shared.members.clone().into(),
            like: shared.like,
            rounds: shared.rounds.iter().map(|round| round.clone().into_boxed_slice()).collect::<Arc<[_]>>(),
            windows: Windows::default(),
        })
    };
    file.stages.iter().map(stage).collect()
}

const fn fits(first: u32, count: u32, available: u32) -> bool {
    match first.checked_add(count) {
        Some(end) => end <= available,
        None => false,
    }
}

pub(super) fn plans_of(
    serves: &Serves,
    cut: Cut,
    blocks: u32,
    stages: &[Stage],
    placement: Placement,
    programs: Vec<Program>,
) -> Result<Vec<Plan>, String> {
    if programs.len() != serves.ranks as usize {
        return Err(format!("it has {} programs {placement} for {} ranks", programs.len(), serves.ranks));
    }
    let steps: usize = programs.iter().flat_map(|program| &program.lanes).map(Vec::len).sum();
    bounded("the number of steps", steps as u64, 0, STEPS_MAX as u64)?;
    let cells = |program: &Program| 2 * u64::from(blocks) + program.scratch.len() as u64;
    bounded("the number of blocks", programs.iter().map(cells).sum(), 0, CELLS_MAX)?;
    let touched = |program: &Program| -> u64 {
        program.lanes.iter().flatten().map(|step| touched(&step.action, serves.ranks)).sum()
    };
    bounded("the number of blocks that steps touch", programs.iter().map(touched).sum(), 0, TOUCHED_MAX)?;
    let plan = |(rank, program): (u32, Program)| {
        let place = |problem: &str| Err(format!("rank {rank}: {problem}"));
        let longest: usize = program.lanes.iter().map(Vec::len).sum();
        if program.lanes.len() > LANES_MAX || longest > STEPS_PER_RANK_MAX {
            return place("there are more than 64 lanes or 16384 steps");
        }
        let available = |space| match space {
            Space::Scratch => program.scratch.len() as u32,
            _ => blocks,
        };
        let mut channels = 0;
        for step in program.lanes.iter().flatten() {
            if !is_sound(&step.action, available) {
                return place("a step names blocks that do not exist, or reaches into others' buffers");
            }
            if let Some(channel) = step.action.sends_to().or(step.action.receives_from()) {
                if channel.index >= CHANNELS_MAX {
                    return place("there are more than 64 channels to a rank");
                }
                channels = channels.max(channel.index + 1);
            }
        }
        let stage = match program.stage {
            None => None,
            Some(number) => match stages.get(number as usize) {
                Some(stage) => Some(stage.clone()),
                None => return place("its shared memory is not in the list"),
            },
        };
        Ok(Plan {
            collective: serves.collective,
            algorithm: "plan file",
            rank,
            world_size: serves.ranks,
            root: serves.root,
            placement,
            cut,
            scratch: program.scratch.into(),
            stage,
            lanes: program.lanes.into_iter().map(Into::into).collect(),
            channels,
        })
    };
    (0..).zip(programs).map(plan).collect()
}

/// Returns the most blocks that a step touches.
fn touched(action: &Action, ranks: u32) -> u64 {
    let named = action.reads().into_iter().chain([action.writes()]).flatten();
    let blocks: u64 = named.map(|blocks| u64::from(blocks.count)).sum();
    match action {
        Action::Fold { count, .. } => blocks + u64::from(*count) * u64::from(ranks),
        _ => blocks + 1,
    }
}

/// Returns whether a step names only blocks that may exist, in memory that a set of plans may use. The checker
/// checks the rest.
fn is_sound(action: &Action, available: impl Fn(Space) -> u32) -> bool {
    let exists = |blocks: Blocks| {
        blocks.count > 0
            && !matches!(blocks.space, Space::Window(_))
            && fits(blocks.first, blocks.count, available(blocks.space))
    };
    let other = match *action {
        Action::Spread { .. } => false,
        Action::Fold { first, count, dst, .. } => {
            exists(Blocks::range(Space::Output, first, count)) && dst.count == count
        }
        Action::Publish { except, .. } => except.is_none_or(&exists),
        _ => true,
    };
    other && action.reads().into_iter().chain([action.writes()]).flatten().all(exists)
}
