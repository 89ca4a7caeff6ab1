//! Several segments in flight, on one stream per pair of ranks.
//!
//! The runtime runs `window` instances of a plan at once, each on sub-channels of its own. Here, a single plan
//! has as many copies of its lanes, each on a part of the vector, so that the checker proves the combination.

mod common;

use common::{COLLECTIVES, PLACEMENTS, expect, plans, uniform};
use kolo_collectives::check::{Credits, Options, Schedule};
use kolo_collectives::plan::{Action, Blocks, Channel, Cut, Lane, Like, Plan, Space, Step, StepRef};
use kolo_collectives::{Algorithm, Task};

fn widen(plan: &Plan, window: u32) -> Option<Plan> {
    let Cut::Vector { parts } = plan.cut else { return None };
    if plan.stage.is_some() {
        // Each segment in flight has stages of its own, but a plan cannot have several.
        return None;
    }
    let scratch = plan.scratch.len() as u32;
    let copies = (0..window).flat_map(|copy| {
        let blocks = move |blocks: Blocks| Blocks {
            first: blocks.first + copy * if blocks.space == Space::Scratch { scratch } else { parts },
            ..blocks
        };
        let channel =
            move |channel: Channel| Channel { index: channel.index + copy as u16 * plan.channels, ..channel };
        plan.lanes.iter().map(move |lane| -> Lane {
            let step = |step: &Step| Step {
                action: match step.action {
                    Action::Send { to, src } => Action::Send { to: channel(to), src: blocks(src) },
                    Action::Recv { from, dst } => Action::Recv { from: channel(from), dst: blocks(dst) },
                    Action::RecvReduce { from, with, dst } => {
                        Action::RecvReduce { from: channel(from), with: blocks(with), dst: blocks(dst) }
                    }
                    Action::Copy { src, dst } => Action::Copy { src: blocks(src), dst: blocks(dst) },
                    Action::Reduce { a, b, dst } => {
                        Action::Reduce { a: blocks(a), b: blocks(b), dst: blocks(dst) }
                    }
                    Action::Signal { to } => Action::Signal { to: channel(to) },
                    Action::WaitSignal { from } => Action::WaitSignal { from: channel(from) },
                    Action::Publish { .. }
                    | Action::Await { .. }
                    | Action::Fold { .. }
                    | Action::Spread { .. } => {
                        unreachable!("plans with stages are left out")
                    }
                },
                after: step.after.map(|after| StepRef {
                    lane: after.lane + copy as u16 * plan.lanes.len() as u16,
                    ..after
                }),
                fence: step.fence,
            };
            lane.iter().map(step).collect()
        })
    });
    let like = |copy: u32| {
        plan.scratch.iter().map(move |like| match *like {
            Like::Input(block) => Like::Input(block + copy * parts),
            Like::Output(block) => Like::Output(block + copy * parts),
        })
    };
    Some(Plan {
        cut: Cut::Vector { parts: parts * window },
        scratch: (0..window).flat_map(like).collect(),
        lanes: copies.collect(),
        channels: plan.channels * window as u16,
        ..plan.clone()
    })
}

#[test]
fn segments_in_flight_do_not_block_each_other() {
    let mut checked = 0;
    for p in [2, 3, 5, 8, 13] {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                let hosts = (0..p).map(|rank| rank / 2).collect::<Vec<u32>>();
                let task = Task { placement, ..Task::new(collective, p).with_root(p - 1) }.with_hosts(hosts);
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(&task).is_err() {
                        continue;
                    }
                    for window in [2, 4] {
                        let wide: Option<Vec<Plan>> =
                            plans(algorithm, &task).iter().map(|plan| widen(plan, window)).collect();
                        let Some(wide) = wide else { continue };
                        let runs = vec![
                            (Credits::PerChannel(0), Schedule::HighestRank),
                            (Credits::SharedStream, Schedule::LowestRank),
                            (Credits::SharedStream, Schedule::HighestRank),
                            (Credits::SharedStream, Schedule::RoundRobin),
                            (Credits::SharedStream, Schedule::Random(1)),
                            (Credits::SharedStream, Schedule::Random(2)),
                            (Credits::SharedStream, Schedule::Random(3)),
                        ];
                        let options = Options { runs, ..Options::default() };
                        expect(algorithm, &task, &wide, &uniform(&wide, 400), &options);
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 200, "only {checked}");
}
