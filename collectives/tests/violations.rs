//! Each kind of violation is reported when its defect is put into plans that are otherwise correct.

mod common;

use common::{IN, OUT, TMP, plans, uniform, violation as of};
use kolo_collectives::check::{Credits, Options, Schedule, Violation, check};
use kolo_collectives::plan::{
    Action, Blocks, Channel, Collective, Like, Placement, Plan, Space, Step, StepRef,
};
use kolo_collectives::{Algorithm, Task};

fn ring(p: u32) -> Vec<Plan> {
    plans(Algorithm::Ring, &Task::new(Collective::AllReduce, p))
}

/// Changes one step of one plan.
fn edit(plans: &mut [Plan], rank: usize, step: usize, change: impl FnOnce(&mut Step)) {
    change(&mut plans[rank].lanes[0][step]);
}

fn step(action: Action) -> Step {
    Step { action, after: None, fence: false }
}

fn to(peer: u32) -> Channel {
    Channel { peer, index: 0 }
}

/// Hand-written plans that share no memory.
fn by_hand(placement: Placement, scratch: usize, programs: Vec<Vec<Vec<Step>>>) -> Vec<Plan> {
    common::by_hand(placement, scratch, None, programs)
}

#[test]
fn the_undamaged_plans_pass() {
    let plans = ring(4);
    check(&plans, &uniform(&plans, 100), &Options::default()).expect("nothing is wrong");
}

#[test]
fn mismatched() {
    let mut plans = ring(4);
    plans.swap(1, 2);
    assert_eq!(of(&plans), Violation::Mismatched { rank: 1 });
}

#[test]
fn index() {
    for (what, change) in [
        (
            "block",
            (|step| step.action = Action::Send { to: to(1), src: Blocks::one(Space::Input, 4) })
                as fn(&mut Step),
        ),
        ("peer", |step| step.action = Action::Send { to: to(4), src: IN }),
        ("channel", |step| step.action = Action::Send { to: Channel { peer: 1, index: 1 }, src: IN }),
        ("dependency", |step| step.after = Some(StepRef { lane: 1, step: 0 })),
    ] {
        let mut plans = ring(4);
        edit(&mut plans, 0, 0, change);
        assert!(matches!(of(&plans), Violation::Index { what: found, .. } if found == what), "{what}");
    }
    let mut plans = ring(4);
    plans[2].scratch = Box::from([Like::Input(4)]);
    assert!(matches!(of(&plans), Violation::Index { what: "scratch", .. }));
}

#[test]
fn writes_input() {
    let mut plans = ring(4);
    edit(&mut plans, 1, 1, |step| step.action = Action::Recv { from: to(0), dst: IN });
    assert!(matches!(of(&plans), Violation::WritesInput { .. }));
}

#[test]
fn operands() {
    let mut plans = ring(4);
    let (with, dst) = (Blocks::range(Space::Output, 0, 2), Blocks::range(Space::Output, 1, 2));
    edit(&mut plans, 1, 1, |step| step.action = Action::RecvReduce { from: to(0), with, dst });
    assert!(matches!(of(&plans), Violation::Operands { .. }));
}

#[test]
fn shared_channel() {
    let mut plans = ring(4);
    let mut lanes = plans[0].lanes.to_vec();
    lanes.push(Box::from([step(Action::Send { to: to(1), src: IN })]));
    plans[0].lanes = lanes.into();
    assert!(matches!(of(&plans), Violation::SharedChannel { other_lane: 0, .. }));
}

#[test]
fn unmatched() {
    let mut plans = ring(4);
    let mut lane = plans[0].lanes[0].to_vec();
    lane.push(step(Action::Send { to: to(1), src: OUT }));
    plans[0].lanes[0] = lane.into();
    assert_eq!(of(&plans), Violation::Unmatched { from: 0, to: 1, index: 0, sent: 7, received: 6 });
}

#[test]
fn lengths() {
    // 100 elements in 3 parts: part 0 is longer.
    let mut plans = ring(3);
    edit(&mut plans, 2, 0, |step| {
        let Action::Send { to, src } = step.action else { panic!("a ring begins with a send") };
        assert_eq!(src.first, 1);
        step.action = Action::Send { to, src: IN };
    });
    assert!(matches!(of(&plans), Violation::Lengths { .. }));
}

#[test]
fn signal_meets_message() {
    let programs = vec![
        vec![vec![step(Action::Signal { to: to(1) })]],
        vec![vec![step(Action::Recv { from: to(0), dst: OUT })]],
    ];
    assert!(matches!(of(&by_hand(Placement::OutOfPlace, 0, programs)), Violation::Lengths { .. }));
}

#[test]
fn hazard_without_a_fence() {
    let mut plans = plans(Algorithm::Ring, &Task::new(Collective::AllReduce, 4).in_place());
    let fenced =
        plans[0].lanes[0].iter().position(|step| step.fence).expect("in place, the ring needs fences");
    edit(&mut plans, 0, fenced, |step| step.fence = false);
    assert!(matches!(of(&plans), Violation::Hazard { .. }));
}

/// Two lanes on two ranks: lane 0 leaves a sum in scratch, and lane 1 copies it out.
fn two_lanes(after: Option<StepRef>) -> Vec<Plan> {
    let programs = (0..2)
        .map(|rank| {
            vec![
                vec![
                    step(Action::Send { to: to(1 - rank), src: IN }),
                    step(Action::RecvReduce { from: to(1 - rank), with: IN, dst: TMP }),
                ],
                vec![Step { action: Action::Copy { src: TMP, dst: OUT }, after, fence: false }],
            ]
        })
        .collect();
    by_hand(Placement::OutOfPlace, 1, programs)
}

#[test]
fn hazard_between_lanes() {
    let ordered = two_lanes(Some(StepRef { lane: 0, step: 1 }));
    check(&ordered, &uniform(&ordered, 100), &Options::default()).expect("ordered by the dependency");
    assert!(matches!(of(&two_lanes(None)), Violation::Hazard { .. }));
    assert!(matches!(of(&two_lanes(Some(StepRef { lane: 0, step: 0 }))), Violation::Hazard { .. }));
}

#[test]
fn hazard_through_an_alias() {
    // In place, output block 0 of a reduce-scatter is input block `rank`.
    let mut plans = plans(Algorithm::Direct, &Task::new(Collective::ReduceScatter, 3).in_place());
    let own = Blocks::one(Space::Input, 1);
    let Action::Send { to, .. } = plans[1].lanes[0][0].action else { panic!("begins with a send") };
    plans[1].lanes[0][0].action = Action::Send { to, src: own };
    assert!(matches!(of(&plans), Violation::Hazard { .. }));
}

#[test]
fn undefined() {
    let mut plans = ring(4);
    edit(&mut plans, 0, 0, |step| {
        let Action::Send { to, src } = step.action else { panic!("a ring begins with a send") };
        step.action = Action::Send { to, src: Blocks { space: Space::Output, ..src } };
    });
    assert!(matches!(of(&plans), Violation::Undefined { .. } | Violation::Hazard { .. }));
    let programs = vec![vec![vec![step(Action::Copy { src: TMP, dst: OUT })]]];
    assert!(matches!(of(&by_hand(Placement::OutOfPlace, 1, programs)), Violation::Undefined { .. }));
}

#[test]
fn counted_twice() {
    let programs = vec![vec![vec![step(Action::Reduce { a: IN, b: IN, dst: OUT })]]];
    assert_eq!(
        of(&by_hand(Placement::OutOfPlace, 0, programs)),
        Violation::Wrong { rank: 0, block: 0, contributions: 2, expected: 1 }
    );
}

#[test]
fn right_count_of_the_wrong_contributions() {
    // Each rank doubles its own contribution instead of adding the other's.
    let programs = (0..2)
        .map(|rank| {
            vec![vec![
                step(Action::Send { to: to(1 - rank), src: IN }),
                step(Action::Recv { from: to(1 - rank), dst: TMP }),
                step(Action::Reduce { a: IN, b: IN, dst: OUT }),
            ]]
        })
        .collect();
    assert_eq!(
        of(&by_hand(Placement::OutOfPlace, 1, programs)),
        Violation::Wrong { rank: 0, block: 0, contributions: 2, expected: 2 }
    );
}

#[test]
fn missing_output() {
    assert_eq!(
        of(&by_hand(Placement::OutOfPlace, 0, vec![vec![]])),
        Violation::Wrong { rank: 0, block: 0, contributions: 0, expected: 1 }
    );
}

#[test]
fn touched() {
    let mut plans = plans(Algorithm::Chain, &Task::new(Collective::ExScan, 3));
    let mut lane = plans[0].lanes[0].to_vec();
    lane.push(step(Action::Copy { src: IN, dst: OUT }));
    plans[0].lanes[0] = lane.into();
    assert_eq!(of(&plans), Violation::Touched { rank: 0, block: 0 });
}

#[test]
fn order_differs_between_ranks() {
    // Three ranks send to each other; each adds in the order of its own neighbours.
    let programs = (0..3_u32)
        .map(|rank| {
            let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
            vec![vec![
                step(Action::Send { to: to(next), src: IN }),
                step(Action::Send { to: to(previous), src: IN }),
                step(Action::RecvReduce { from: to(next), with: IN, dst: OUT }),
                step(Action::RecvReduce { from: to(previous), with: OUT, dst: OUT }),
            ]]
        })
        .collect();
    assert!(matches!(
        of(&by_hand(Placement::OutOfPlace, 0, programs)),
        Violation::Order { rank: 1, block: 0 }
    ));
}

fn deadlock(plans: &[Plan], credits: Credits) -> bool {
    let options = Options { runs: vec![(credits, Schedule::RoundRobin)], ..Options::default() };
    match check(plans, &uniform(plans, 100), &options) {
        Ok(_) => false,
        Err(Violation::Deadlock { credits: found, .. }) => {
            assert_eq!(found, credits);
            true
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn deadlock_with_any_credits() {
    let programs = (0..2)
        .map(|rank| {
            vec![vec![
                step(Action::RecvReduce { from: to(1 - rank), with: IN, dst: OUT }),
                step(Action::Send { to: to(1 - rank), src: IN }),
            ]]
        })
        .collect();
    let plans = by_hand(Placement::OutOfPlace, 0, programs);
    for credits in [Credits::PerChannel(0), Credits::PerChannel(1), Credits::Unlimited, Credits::SharedStream]
    {
        assert!(deadlock(&plans, credits));
    }
}

#[test]
fn deadlock_without_credits_only() {
    // In place, a step overwrites data that is being sent: the fence waits for a receive that the peer posts
    // behind its own fence.
    let programs = (0..2)
        .map(|rank| {
            vec![vec![
                step(Action::Send { to: to(1 - rank), src: OUT }),
                Step {
                    action: Action::RecvReduce { from: to(1 - rank), with: OUT, dst: OUT },
                    after: None,
                    fence: true,
                },
            ]]
        })
        .collect();
    let plans = by_hand(Placement::InPlace, 0, programs);
    assert!(deadlock(&plans, Credits::PerChannel(0)));
    assert!(!deadlock(&plans, Credits::PerChannel(1)));
}

#[test]
fn deadlock_on_a_shared_stream_only() {
    // Rank 0 sends two messages on channel 0, then one on channel 1; rank 1 wants the last one first. That works
    // with a stream per channel; on a shared stream, the second message has no credit and holds up the third.
    let other = Channel { peer: 1, index: 1 };
    let programs = vec![
        vec![vec![
            step(Action::Send { to: to(1), src: IN }),
            step(Action::Send { to: to(1), src: IN }),
            step(Action::Send { to: other, src: IN }),
            step(Action::RecvReduce { from: to(1), with: IN, dst: OUT }),
        ]],
        vec![vec![
            step(Action::RecvReduce { from: Channel { peer: 0, index: 1 }, with: IN, dst: OUT }),
            step(Action::Recv { from: to(0), dst: TMP }),
            step(Action::Recv { from: to(0), dst: TMP }),
            step(Action::Send { to: to(0), src: IN }),
        ]],
    ];
    let plans = by_hand(Placement::OutOfPlace, 1, programs);
    assert!(!deadlock(&plans, Credits::PerChannel(0)));
    assert!(!deadlock(&plans, Credits::PerChannel(1)));
    assert!(deadlock(&plans, Credits::SharedStream));
}

#[test]
fn a_violation_says_where() {
    let text = of(&two_lanes(None)).to_string();
    assert!(text.contains("rank 0 lane 0 step 1") && text.contains("tmp[0]"), "{text}");
}
