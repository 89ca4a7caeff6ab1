//! The checker's rules for windows: each reports its defect in plans that are otherwise correct.

mod common;

use common::{IN, OUT, expect, plans, uniform, violation as of};
use kolo_collectives::check::{Expression, Options, Violation};
use kolo_collectives::plan::{Action, Blocks, Collective, Plan, Space, Step};
use kolo_collectives::select::Order;
use kolo_collectives::stage::Members;
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Task};

fn task(collective: Collective, ranks: u32) -> Task {
    Task::new(collective, ranks).with_root(ranks / 2).with_stages().with_symmetric(Symmetric::All)
}

/// The plans of a collective on three ranks.
fn three(collective: Collective) -> Vec<Plan> {
    plans(Algorithm::Window, &task(collective, 3))
}

fn change(plan: &mut Plan, at: usize, action: Action) {
    plan.lanes[0][at].action = action;
}

fn insert(plan: &mut Plan, at: usize, action: Action) {
    let mut lane = plan.lanes[0].to_vec();
    lane.insert(at, Step { action, after: None, fence: false });
    plan.lanes[0] = lane.into();
}

fn remove(plan: &mut Plan, at: usize) {
    let mut lane = plan.lanes[0].to_vec();
    lane.remove(at);
    plan.lanes[0] = lane.into();
}

fn window(member: u16, block: u32) -> Blocks {
    Blocks::one(Space::Window(member), block)
}

const SPREAD: usize = 2;
const ALL: Action = Action::Await { of: Members::All };

#[test]
fn nobody_is_through_while_others_use_its_buffers() {
    let last = |plan: &Plan| plan.lanes[0].len() - 1;
    for collective in [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::AllToAll,
    ] {
        let mut plans = three(collective);
        let at = last(&plans[1]);
        remove(&mut plans[1], at);
        assert!(matches!(of(&plans), Violation::Outlived { owner: 1, .. }), "{collective}");
        // Waiting for some of them is not enough.
        insert(&mut plans[1], at, Action::Await { of: Members::Below(2) });
        let found = of(&plans);
        assert!(
            matches!(&found, Violation::Outlived { at, owner: 1 } if at.rank == 2),
            "{collective}: {found}"
        );
        assert!(found.to_string().contains("may still use a buffer of rank 1"), "{found}");
    }
    // The other ranks have nothing to wait for.
    let plans = plans(Algorithm::Window, &task(Collective::Scatter, 3));
    let ends = plans.iter().map(|plan| plan.lanes[0][last(plan)].action == ALL).collect::<Vec<_>>();
    assert_eq!(ends, [false, true, false]);
}

#[test]
fn nothing_is_touched_before_its_owner_has_called() {
    let mut early = three(Collective::AllReduce);
    early[0].lanes[0].swap(1, SPREAD);
    assert!(matches!(of(&early), Violation::NotAwaited { member: 1, .. }));
    early[0].lanes[0].swap(0, 1);
    assert!(matches!(of(&early), Violation::NotAwaited { member: 1, .. }));
    let mut late = three(Collective::AllReduce);
    late[0].lanes[0].swap(SPREAD, SPREAD + 1);
    assert!(matches!(of(&late), Violation::NotAwaited { member: 1, .. }), "it said that it is done");
    let mut some = three(Collective::AllGather);
    change(&mut some[0], 1, Action::Await { of: Members::Below(2) });
    assert!(matches!(of(&some), Violation::NotAwaited { member: 2, .. }));
}

/// Only a rank that has heard of all members knows that the plan runs, whichever memory it touches itself.
#[test]
fn all_hear_of_all_windows() {
    let mut plans = three(Collective::Scatter);
    assert_eq!(plans[1].lanes[0][1].action, ALL);
    change(&mut plans[1], 1, Action::Await { of: Members::Below(2) });
    let found = of(&plans);
    assert!(matches!(&found, Violation::NotAwaited { member: 2, .. }), "{found}");
    assert!(found.to_string().contains("member 2 has not been awaited"), "{found}");
}

#[test]
fn a_block_has_one_writer_and_no_reader_beside() {
    let spread = |of, first, to, at| Action::Spread { of, first, count: 1, to, at };
    // Two ranks write block 0.
    let mut plans = three(Collective::AllReduce);
    change(&mut plans[2], SPREAD, spread(Members::All, 0, Members::All, 0));
    assert!(matches!(of(&plans), Violation::Hazard { .. }));
    // Writing the same value does not help, even if the owner itself writes it.
    let mut plans = three(Collective::AllReduce);
    insert(&mut plans[1], SPREAD, Action::Copy { src: IN, dst: OUT });
    let found = of(&plans);
    assert!(matches!(&found, Violation::Hazard { .. }), "{found}");
    assert!(found.to_string().contains("out[0] of rank 1"), "{found}");
    // In place, rank 1 reads the block that rank 0 writes.
    let mut plans = common::plans(Algorithm::Window, &task(Collective::AllReduce, 3).in_place());
    change(&mut plans[1], SPREAD, Action::Copy { src: window(2, 0), dst: Blocks::one(Space::Output, 1) });
    assert!(matches!(of(&plans), Violation::Hazard { .. }));
    // With a round between the two steps the plan is sound, if useless.
    let mut plans = three(Collective::AllReduce);
    for plan in &mut plans {
        let presence = plan.lanes[0][0].action;
        insert(plan, SPREAD + 1, presence);
        insert(plan, SPREAD + 2, ALL);
        let stage = plan.stage.as_mut().expect("a stage");
        stage.rounds = stage.rounds.iter().chain(&stage.rounds[..1]).cloned().collect();
    }
    insert(&mut plans[1], SPREAD + 3, spread(Members::All, 0, Members::All, 0));
    expect(
        Algorithm::Window,
        &task(Collective::AllReduce, 3),
        &plans,
        &uniform(&plans, 100),
        &Options::quick(),
    );
    // The round must have been awaited.
    remove(&mut plans[1], SPREAD + 2);
    assert!(matches!(of(&plans), Violation::NotAwaited { .. }));
}

#[test]
fn only_windows_are_touched() {
    let mut plans = three(Collective::Broadcast);
    change(&mut plans[0], SPREAD, Action::Copy { src: window(2, 0), dst: OUT });
    assert!(matches!(of(&plans), Violation::NotAWindow { member: 2, .. }));
    let mut plans = three(Collective::Reduce);
    let elsewhere = Action::Spread { of: Members::All, first: 0, count: 1, to: Members::One(2), at: 0 };
    change(&mut plans[0], SPREAD, elsewhere);
    assert!(matches!(of(&plans), Violation::NotAWindow { member: 2, .. }));
    // Plans without windows must not have such steps.
    let staged = Task::new(Collective::AllReduce, 3).with_stages();
    let mut plans = common::plans(Algorithm::StagedOneShot, &staged);
    insert(&mut plans[0], 2, Action::Copy { src: window(1, 0), dst: OUT });
    assert!(matches!(of(&plans), Violation::NotAWindow { member: 1, .. }));
    insert(&mut plans[0], 2, elsewhere);
    assert!(matches!(of(&plans), Violation::NotAWindow { .. }));
}

#[test]
fn members_blocks_and_operands_exist() {
    let spread = |of, first, to, at| Action::Spread { of, first, count: 1, to, at };
    let with = |action| {
        let mut plans = three(Collective::AllReduce);
        change(&mut plans[0], SPREAD, action);
        of(&plans)
    };
    let one = |member| Members::One(member);
    for (action, wanted) in [
        (spread(one(3), 0, Members::All, 0), "member"),
        (spread(Members::All, 0, one(3), 0), "member"),
        (spread(Members::All, 3, Members::All, 0), "block"),
        (spread(Members::All, 0, Members::All, 3), "block"),
        (Action::Copy { src: window(3, 0), dst: OUT }, "member"),
        (Action::Copy { src: window(1, 3), dst: OUT }, "block"),
        (Action::Reduce { a: IN, b: window(1, 0), dst: OUT }, "window"),
    ] {
        let found = with(action);
        assert!(matches!(&found, Violation::Index { what, .. } if *what == wanted), "{action}: {found}");
    }
    let mut in_place = plans(Algorithm::Window, &task(Collective::AllReduce, 3).in_place());
    let two = |at| Action::Spread { of: Members::All, first: 0, count: 2, to: Members::All, at };
    change(&mut in_place[0], SPREAD, two(1));
    assert!(matches!(of(&in_place), Violation::Operands { .. }));
    let mut in_place = plans(Algorithm::Window, &task(Collective::AllGather, 3).in_place());
    change(&mut in_place[0], SPREAD, Action::Copy { src: window(0, 0), dst: OUT });
    assert!(matches!(of(&in_place), Violation::Operands { .. }));
}

#[test]
fn one_lane_and_no_messages() {
    let mut plans = three(Collective::AllReduce);
    let copy = Step { action: Action::Copy { src: IN, dst: OUT }, after: None, fence: false };
    plans[1].lanes = [plans[1].lanes[0].clone(), [copy].into()].into();
    assert!(matches!(of(&plans), Violation::StageLane { other_lane: 0, .. }));
    let channel = |peer| kolo_collectives::plan::Channel { peer, index: 0 };
    let mut plans = three(Collective::AllReduce);
    plans.iter_mut().for_each(|plan| plan.channels = 1);
    insert(&mut plans[0], 0, Action::Signal { to: channel(1) });
    insert(&mut plans[1], 0, Action::WaitSignal { from: channel(0) });
    assert!(matches!(of(&plans), Violation::Index { what: "channel beside windows", .. }));
}

#[test]
fn another_slice_is_found() {
    for collective in [Collective::AllReduce, Collective::Reduce, Collective::Broadcast] {
        let mut plans = three(collective);
        let Action::Spread { of: members, count, to, at, .. } = plans[1].lanes[0][SPREAD].action else {
            panic!("{}", plans[1]);
        };
        change(&mut plans[1], SPREAD, Action::Spread { of: members, first: 2, count, to, at });
        let found = of(&plans);
        // Another slice is as long for some vectors only.
        assert!(
            matches!(found, Violation::Lengths { .. } | Violation::Hazard { .. }),
            "{collective}: {found}"
        );
    }
    let mut plans = three(Collective::AllReduce);
    change(
        &mut plans[1],
        SPREAD,
        Action::Spread { of: Members::Below(2), first: 1, count: 1, to: Members::All, at: 1 },
    );
    assert!(matches!(of(&plans), Violation::Wrong { contributions: 2, expected: 3, .. }));
}

/// Sums are in the order of the ranks, as in all forms on one host, or along the canonical tree.
#[test]
fn sums_are_in_order() {
    for p in 2..=9 {
        let in_order = (1..p).fold(Expression::leaf(0), |sum, rank| sum.plus(Expression::leaf(rank)));
        for (order, wanted) in [(Order::Any, in_order), (Order::Canonical, Expression::canonical(p))] {
            for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
                let plans = plans(Algorithm::Window, &task(collective, p));
                let options = Options { order, ..Options::quick() };
                let shapes = uniform(&plans, 100);
                let found = expect(Algorithm::Window, &task(collective, p), &plans, &shapes, &options);
                assert_eq!(found.expression, Some(wanted), "{collective} of {p}");
                assert_eq!((found.published, found.messages), (0, 0), "nothing is copied in between");
            }
        }
    }
}

#[test]
fn a_program_on_windows_reads_well() {
    assert_eq!(
        Algorithm::Window.plan(&task(Collective::AllReduce, 3), 1).to_string(),
        "\
all_reduce by window, rank 1 of 3, root 1, out of place
  vector in 3 parts
  stages: 3 members in 2 rounds
  windows: inputs of all
  windows: outputs of all
  lane 0
       0  publish presence
       1  await   all
       2  spread  out[1] of all = in[1] of all
       3  publish presence
       4  await   all
"
    );
    let text = Algorithm::Window.plan(&task(Collective::Scatter, 3), 2).to_string();
    assert!(text.contains("copy    out[0] = window1[2]\n") && text.contains("inputs of member 1"), "{text}");
}

#[test]
fn what_is_missing_is_said() {
    let refusal = |task: &Task| Algorithm::Window.supports(task).expect_err("it cannot");
    let plain = Task::new(Collective::AllReduce, 4).with_stages();
    assert!(refusal(&plain).contains("symmetric buffers"));
    assert!(refusal(&plain.clone().with_symmetric(Symmetric::Inputs)).contains("symmetric buffers"));
    assert!(refusal(&task(Collective::AllReduce, 4).with_hosts([0, 0, 1, 1])).contains("several hosts"));
    assert!(refusal(&task(Collective::AllToAll, 4).in_place()).contains("in place"));
    assert!(refusal(&task(Collective::Scan, 4)).contains("symmetric buffers do not support scan"));
}
