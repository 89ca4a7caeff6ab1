//! Every step of every plan matters: small defects put anywhere are found.

mod common;

use common::{COLLECTIVES, PLACEMENTS, plans, uniform};
use kolo_collectives::check::{Options, Violation, check};
use kolo_collectives::plan::{Action, Blocks, Plan, Space};
use kolo_collectives::{Algorithm, Params, Task};

fn all_plans(mut each: impl FnMut(Algorithm, &Task, Vec<Plan>)) {
    for p in [2, 3, 4, 5, 7, 8] {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                let params = Params { channels: 2, parts: 3, width: 2 };
                let hosts = (0..p).map(|rank| rank / 2).collect::<Vec<u32>>();
                let task =
                    Task { placement, params, ..Task::new(collective, p).with_root(p / 2) }.with_stages();
                let on_hosts = task.clone().with_hosts(hosts);
                for algorithm in Algorithm::ALL {
                    // Where it serves both, the plans are the same.
                    let task = if algorithm.supports(&on_hosts).is_ok() { &on_hosts } else { &task };
                    if algorithm.supports(task).is_ok() {
                        each(algorithm, task, plans(algorithm, task));
                    }
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
                // Steps that others refer to by number stay where they are.
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
