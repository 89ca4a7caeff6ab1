//! Mutation tests: small defects in any step of any plan are found.

mod common;

use common::{COLLECTIVES, PLACEMENTS, plans, uniform};
use kolo_collectives::check::{Options, Violation, check};
use kolo_collectives::plan::{Action, Blocks, Collective, Plan, Space};
use kolo_collectives::stage::Members;
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Params, Task};

fn all_plans(mut each: impl FnMut(Algorithm, &Task, Vec<Plan>)) {
    for p in [2, 3, 4, 5, 7, 8] {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                let params = Params { channels: 2, parts: 3, width: 2 };
                let hosts = (0..p).map(|rank| rank / 2).collect::<Vec<u32>>();
                let task = Task { placement, params, ..Task::new(collective, p).with_root(p / 2) }
                    .with_stages()
                    .with_symmetric(Symmetric::All);
                let on_hosts = task.clone().with_hosts(hosts);
                for algorithm in Algorithm::ALL {
                    // Where the algorithm serves tasks with and without hosts, the plans are the same.
                    let task = if algorithm.supports(&on_hosts).is_ok() { &on_hosts } else { &task };
                    if algorithm.supports(task).is_ok() {
                        each(algorithm, task, plans(algorithm, task));
                    }
                }
                let task = task.with_symmetric(Symmetric::Inputs);
                if Algorithm::Window.supports(&task).is_ok() {
                    each(Algorithm::Window, &task, plans(Algorithm::Window, &task));
                }
            }
        }
    }
}

fn verdict(plans: &[Plan]) -> Result<(), Violation> {
    check(plans, &uniform(plans, 60), &Options::quick()).map(|_| ())
}

#[test]
fn every_fence_is_needed() {
    let mut removed = 0;
    all_plans(|algorithm, task, plans| {
        for rank in 0..plans.len() {
            for lane in 0..plans[rank].lanes.len() {
                for step in 0..plans[rank].lanes[lane].len() {
                    if plans[rank].lanes[lane][step].fence {
                        let mut mutant = plans.clone();
                        mutant[rank].lanes[lane][step].fence = false;
                        assert!(
                            matches!(verdict(&mutant), Err(Violation::Hazard { .. })),
                            "{algorithm} {task:?} rank {rank} lane {lane} step {step}"
                        );
                        removed += 1;
                    }
                }
            }
        }
    });
    assert!(removed > 100, "only {removed} fences");
}

#[test]
fn a_message_of_another_block_is_found() {
    let mut tried = 0;
    all_plans(|algorithm, task, plans| {
        for rank in 0..plans.len() {
            for lane in 0..plans[rank].lanes.len() {
                for step in 0..plans[rank].lanes[lane].len() {
                    let Action::Send { to, src } = plans[rank].lanes[lane][step].action else { continue };
                    for first in [src.first.wrapping_sub(1), src.first + 1] {
                        let mut mutant = plans.clone();
                        let src = Blocks { first, ..src };
                        if src.space == Space::Scratch || first == u32::MAX {
                            // Two scratch blocks may hold the same value.
                            continue;
                        }
                        mutant[rank].lanes[lane][step].action = Action::Send { to, src };
                        assert!(
                            verdict(&mutant).is_err(),
                            "{algorithm} {task:?} rank {rank} lane {lane} step {step}: {src}"
                        );
                        tried += 1;
                    }
                }
            }
        }
    });
    assert!(tried > 1000, "only {tried}");
}

#[test]
fn a_missing_step_is_found() {
    let mut tried = 0;
    all_plans(|algorithm, task, plans| {
        for rank in 0..plans.len() {
            for lane in 0..plans[rank].lanes.len() {
                let steps = &plans[rank].lanes[lane];
                // Steps that other steps refer to by number must keep their positions.
                if plans[rank].lanes.iter().flatten().any(|step| step.after.is_some()) {
                    continue;
                }
                for step in 0..steps.len() {
                    let mut mutant = plans.clone();
                    let mut lane_steps = steps.to_vec();
                    let removed = lane_steps.remove(step);
                    mutant[rank].lanes[lane] = lane_steps.into();
                    assert!(
                        verdict(&mutant).is_err(),
                        "{algorithm} {task:?} rank {rank} lane {lane} step {step}: {removed}"
                    );
                    tried += 1;
                }
            }
        }
    });
    assert!(tried > 1000, "only {tried}");
}

/// Tries all changes that `change` makes to single steps, each in plans that are otherwise right.
fn every(change: impl Fn(&Plan, &Action) -> Vec<Action>, least: usize) {
    let mut tried = 0;
    all_plans(|algorithm, task, plans| {
        for rank in 0..plans.len() {
            for lane in 0..plans[rank].lanes.len() {
                for step in 0..plans[rank].lanes[lane].len() {
                    for changed in change(&plans[rank], &plans[rank].lanes[lane][step].action) {
                        let mut mutant = plans.clone();
                        mutant[rank].lanes[lane][step].action = changed;
                        let step = &mutant[rank].lanes[lane][step];
                        assert!(verdict(&mutant).is_err(), "{algorithm} {task:?} rank {rank}: {step}");
                        tried += 1;
                    }
                }
            }
        }
    });
    assert!(tried > least, "only {tried}");
}

#[test]
fn every_member_that_is_awaited_is_needed() {
    let fewer = |plan: &Plan, action: &Action| {
        let (Action::Await { of }, Some(stage)) = (action, &plan.stage) else { return Vec::new() };
        let me = stage.member(plan.rank).expect("a member");
        let all = of.range(stage.members.len());
        // No rank needs to wait for itself.
        let needed: Vec<usize> = all.clone().filter(|member| *member != me).collect();
        let only = needed.iter().map(|member| Members::One(*member as u16));
        let below = all.clone().skip(1).map(|end| Members::Below(end as u16));
        let covers = |of: &Members| needed.iter().all(|m| of.range(stage.members.len()).contains(m));
        only.chain(below).filter(|of| !covers(of)).map(|of| Action::Await { of }).collect()
    };
    every(fewer, 500);
}

#[test]
fn another_block_of_a_stage_is_found() {
    let other = |plan: &Plan, action: &Action| {
        let shifted = |first: u32| [first.wrapping_sub(1), first + 1].into_iter().filter(|f| *f != u32::MAX);
        let Some(stage) = &plan.stage else { return Vec::new() };
        match *action {
            Action::Fold { of, first, count, own, dst } => {
                let fold = |first| Action::Fold { of, first, count, own, dst };
                shifted(first).map(fold).collect()
            }
            Action::Copy { src: Blocks { space: Space::Stage(member), first, count }, dst } => {
                let copy = |member, first| Action::Copy {
                    src: Blocks::range(Space::Stage(member), first, count),
                    dst,
                };
                let blocks = shifted(first).map(|first| copy(member, first));
                let members = (0..stage.members.len() as u16).filter(|other| *other != member);
                // A member may have published the same as another: both have the whole sum.
                blocks.chain(members.map(|member| copy(member, first))).collect()
            }
            _ => Vec::new(),
        }
    };
    every(other, 1000);
}

#[test]
fn publishing_another_block_is_found() {
    let other = |_: &Plan, action: &Action| {
        let Action::Publish { src, except } = *action else { return Vec::new() };
        let mut found = Vec::new();
        for index in 0..2 {
            // Two scratch blocks may hold the same value.
            let Some(blocks) = src[index].filter(|blocks| blocks.space != Space::Scratch) else { continue };
            for first in [blocks.first.wrapping_sub(1), blocks.first + 1] {
                if first != u32::MAX {
                    let mut src = src;
                    src[index] = Some(Blocks { first, ..blocks });
                    found.push(Action::Publish { src, except });
                }
            }
        }
        found
    };
    every(other, 500);
}

#[test]
fn a_fold_without_a_member_or_its_own_is_found() {
    let fewer = |plan: &Plan, action: &Action| {
        let (Action::Fold { of, first, count, own, dst }, Some(stage)) = (*action, &plan.stage) else {
            return Vec::new();
        };
        let ends = of.range(stage.members.len()).skip(1).map(|end| Members::Below(end as u16));
        ends.map(|of| Action::Fold { of, first, count, own, dst }).collect()
    };
    every(fewer, 500);
}

/// No rank reads the part of a payload that its owner leaves out, and some rank reads every other part. The
/// exception is reduce-scatter on several hosts: there, a rank moves blocks in several places and leaves out
/// only those in one.
#[test]
fn a_hole_elsewhere_is_found() {
    let moved = |plan: &Plan, action: &Action| {
        let (Action::Publish { src, except: Some(hole) }, Some(stage)) = (*action, &plan.stage) else {
            return Vec::new();
        };
        if stage.members.len() < plan.world_size as usize && plan.collective == Collective::ReduceScatter {
            return Vec::new();
        }
        let me = stage.member(plan.rank).expect("a member");
        let holes = [
            Blocks { first: hole.first + 1, ..hole },
            Blocks { first: hole.first.wrapping_sub(1), ..hole },
            Blocks { count: hole.count + 1, ..hole },
        ];
        let published = |hole: &Blocks| {
            hole.first != u32::MAX
                && stage.rounds.iter().any(|round| round[me].run_of(hole.first, hole.count).is_some())
        };
        holes.into_iter().filter(published).map(|hole| Action::Publish { src, except: Some(hole) }).collect()
    };
    every(moved, 100);
}
