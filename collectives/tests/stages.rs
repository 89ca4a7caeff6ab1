//! The checker's rules for stages: each reports its defect in plans that are otherwise correct.

mod common;

use common::{IN, OUT, TMP, plans, uniform, violation as of};
use kolo_collectives::check::{Credits, Options, Schedule, Violation, check};
use kolo_collectives::plan::{Action, Blocks, Channel, Collective, Cut, Placement, Plan, Space, Step};
use kolo_collectives::stage::{Members, Payload, Stage};
use kolo_collectives::window::Windows;
use kolo_collectives::{Algorithm, Task};

fn passes(plans: &[Plan]) {
    check(plans, &uniform(plans, 100), &Options::default()).expect("nothing is wrong");
}

const WHOLE: Payload = Payload::run(0, 1);
const ALL: Action = Action::Await { of: Members::All };
const PRESENCE: Action = Action::Publish { src: [None; 2], except: None };
const OWN: Action = Action::Publish { src: [Some(IN), None], except: None };

fn stage(member: u16) -> Blocks {
    Blocks::one(Space::Stage(member), 0)
}

fn sum(own: Option<Blocks>, dst: Blocks) -> Action {
    Action::Fold { of: Members::All, first: 0, count: 1, own, dst }
}

/// Makes plans of one all-reduce on one host. All ranks publish the whole vector in each of `rounds` rounds.
fn by_hand(placement: Placement, rounds: usize, programs: &[Vec<Vec<Action>>]) -> Vec<Plan> {
    let step = |action: &Action| Step { action: *action, after: None, fence: false };
    let lanes = |lanes: &Vec<Vec<Action>>| lanes.iter().map(|lane| lane.iter().map(step).collect()).collect();
    let stage = Stage {
        members: (0..programs.len() as u32).collect(),
        like: Space::Output,
        rounds: vec![vec![WHOLE; programs.len()].into(); rounds].into(),
        windows: Windows::default(),
    };
    common::by_hand(placement, 1, Some(stage), programs.iter().map(lanes).collect())
}

/// Makes plans with the same program on all ranks.
fn alike(placement: Placement, rounds: usize, ranks: usize, lane: &[Action]) -> Vec<Plan> {
    by_hand(placement, rounds, &vec![vec![lane.to_vec()]; ranks])
}

#[test]
fn the_undamaged_plans_pass() {
    passes(&alike(Placement::OutOfPlace, 1, 3, &[OWN, ALL, sum(Some(IN), OUT)]));
    passes(&alike(Placement::OutOfPlace, 1, 3, &[OWN, ALL, sum(None, OUT)]));
}

#[test]
fn nothing_is_read_that_was_not_awaited() {
    let missing = alike(Placement::OutOfPlace, 1, 2, &[OWN, sum(None, OUT)]);
    assert!(matches!(of(&missing), Violation::NotAwaited { member: 0, .. }));
    let one = Action::Await { of: Members::One(0) };
    let some = alike(Placement::OutOfPlace, 1, 2, &[OWN, one, sum(None, OUT)]);
    assert!(matches!(of(&some), Violation::NotAwaited { member: 1, .. }));
    let before = alike(Placement::OutOfPlace, 1, 2, &[ALL, OWN, sum(None, OUT)]);
    assert!(matches!(of(&before), Violation::Index { what: "member", .. }));
    // An `Await` is valid for one round.
    let round_before = alike(Placement::OutOfPlace, 2, 2, &[OWN, ALL, OWN, sum(None, OUT)]);
    assert!(matches!(of(&round_before), Violation::NotAwaited { .. }));
    let copied = alike(
        Placement::OutOfPlace,
        1,
        2,
        &[OWN, Action::Copy { src: stage(1), dst: TMP }, ALL, sum(None, OUT)],
    );
    assert!(matches!(of(&copied), Violation::NotAwaited { member: 1, .. }));
}

#[test]
fn nothing_is_read_that_is_not_published() {
    let mut plans = alike(Placement::OutOfPlace, 1, 2, &[OWN, ALL, sum(None, OUT)]);
    let hole = Some(stage(1));
    plans[1].lanes[0][0].action = Action::Publish { src: [Some(IN), None], except: hole };
    assert!(matches!(of(&plans), Violation::Unpublished { member: 1, .. }));
    // A rank that reads its own data from where it lies may leave it out of its payload, if no other rank
    // reads it.
    for plan in &mut plans {
        let me = plan.rank as u16;
        plan.lanes[0][0].action = Action::Publish { src: [Some(IN), None], except: Some(stage(me)) };
        plan.lanes[0][2].action = sum(Some(IN), OUT);
    }
    assert!(matches!(of(&plans), Violation::Unpublished { .. }));
    let mut plans = alike(Placement::OutOfPlace, 1, 2, &[OWN, ALL, sum(None, OUT)]);
    plans[0].lanes[0][2].action = Action::Copy { src: Blocks::one(Space::Stage(1), 1), dst: OUT };
    assert!(matches!(of(&plans), Violation::Unpublished { member: 1, .. }));
    plans[0].lanes[0][2].action = Action::Copy { src: stage(2), dst: OUT };
    assert!(matches!(of(&plans), Violation::Index { what: "member", .. }));
}

#[test]
fn members_agree_on_the_table() {
    let good = alike(Placement::OutOfPlace, 1, 3, &[OWN, ALL, sum(None, OUT)]);
    let bad = |change: fn(&mut Vec<Plan>)| {
        let mut plans = good.clone();
        change(&mut plans);
        match of(&plans) {
            Violation::Stage { what, .. } => what,
            other => panic!("{other}"),
        }
    };
    assert_eq!(bad(|plans| plans[1].stage = None), "agreement");
    assert_eq!(bad(|plans| plans[2].stage.as_mut().expect("a stage").like = Space::Input), "agreement");
    assert_eq!(
        bad(|plans| plans[0].stage.as_mut().expect("a stage").rounds = [Box::from([WHOLE; 2])].into()),
        "payloads"
    );
    let too_far = |plans: &mut Vec<Plan>| {
        plans[0].stage.as_mut().expect("a stage").rounds = [Box::from([Payload::run(1, 1); 3])].into();
    };
    assert_eq!(bad(too_far), "payloads");
    let twice = |plans: &mut Vec<Plan>| {
        plans[0].stage.as_mut().expect("a stage").rounds = [Box::from([WHOLE.and(0, 1); 3])].into();
    };
    assert_eq!(bad(twice), "payloads");
    assert_eq!(
        bad(|plans| plans[0].stage.as_mut().expect("a stage").members = Box::from([0, 2, 1])),
        "members"
    );
    assert_eq!(
        bad(|plans| plans[0].stage.as_mut().expect("a stage").members = Box::from([1, 2])),
        "membership"
    );
    assert_eq!(bad(|plans| plans[0].stage.as_mut().expect("a stage").like = Space::Scratch), "names");
    // A rank must have as many rounds as all others, too.
    assert_eq!(
        bad(|plans| plans[1].lanes[0] = plans[1].lanes[0].iter().skip(1).copied().collect()),
        "number of rounds"
    );
    let mut unknown = good.clone();
    unknown.iter_mut().for_each(|plan| plan.stage = None);
    assert!(matches!(of(&unknown), Violation::Index { what: "stage", .. }));
}

#[test]
fn what_is_published_is_as_said() {
    let mut plans = alike(Placement::OutOfPlace, 1, 2, &[OWN, ALL, sum(None, OUT)]);
    plans[0].lanes[0][0].action = PRESENCE;
    assert!(matches!(of(&plans), Violation::Index { what: "payload", .. }));
    plans[0].lanes[0][0].action = Action::Publish { src: [Some(IN), None], except: Some(stage(1)) };
    assert!(matches!(of(&plans), Violation::Index { what: "exception", .. }));
    // In two parts of 101 elements, the first is longer.
    let mut plans = plans_of_parts(2);
    plans[0].lanes[0][0].action =
        Action::Publish { src: [Some(Blocks::one(Space::Input, 1)), None], except: None };
    let shapes = uniform(&plans, 101);
    let found = check(&plans, &shapes, &Options::default()).expect_err("another length");
    assert!(matches!(found, Violation::Lengths { .. }), "{found}");
    plans[0].lanes[0][0].action =
        Action::Publish { src: [Some(Blocks::one(Space::Scratch, 0)), None], except: None };
    assert!(matches!(of(&plans), Violation::Undefined { .. }));
}

/// Makes plans in which each rank publishes part 0 of two.
fn plans_of_parts(ranks: usize) -> Vec<Plan> {
    let mut plans = alike(Placement::OutOfPlace, 1, ranks, &[OWN, ALL, sum(None, OUT)]);
    plans.iter_mut().for_each(|plan| plan.cut = Cut::Vector { parts: 2 });
    plans
}

#[test]
fn a_fold_may_write_over_its_own_only_where_it_has_been_read() {
    let own = Action::Publish { src: [Some(OUT), None], except: None };
    let programs = |own_of_last: Option<Blocks>| {
        let of = |rank: usize| if rank == 2 { own_of_last } else { Some(OUT) };
        (0..3).map(|rank| vec![vec![own, ALL, sum(of(rank), OUT)]]).collect::<Vec<_>>()
    };
    passes(&by_hand(Placement::InPlace, 1, &programs(None)));
    assert!(matches!(of(&by_hand(Placement::InPlace, 1, &programs(Some(OUT)))), Violation::Operands { .. }));
}

#[test]
fn the_steps_of_stages_are_in_one_lane() {
    let programs = vec![vec![vec![OWN, ALL], vec![sum(None, OUT)]]; 2];
    assert!(matches!(
        of(&by_hand(Placement::OutOfPlace, 1, &programs)),
        Violation::StageLane { other_lane: 0, .. }
    ));
}

/// Rank 1 sends rank 0's payload to rank 2, which is on another host.
fn relay(fence: bool) -> Vec<Plan> {
    let channel = |peer| Channel { peer, index: 0 };
    let local = |own: Action| vec![OWN, ALL, own];
    let first = local(Action::Recv { from: channel(2), dst: TMP });
    let second = local(Action::Send { to: channel(2), src: stage(0) });
    let mut plans = by_hand(
        Placement::OutOfPlace,
        1,
        &[vec![first], vec![second], vec![vec![Action::Recv { from: channel(1), dst: TMP }]]],
    );
    let members = |plan: &mut Plan, members: &[u32], rounds: usize| {
        let payloads = vec![WHOLE; members.len()];
        plan.stage = Some(Stage {
            members: members.into(),
            like: Space::Output,
            rounds: vec![payloads.into(); rounds].into(),
            windows: Windows::default(),
        });
    };
    for plan in &mut plans[..2] {
        members(plan, &[0, 1], 2);
        let mut lane = plan.lanes[0].to_vec();
        lane.push(Step { action: OWN, after: None, fence: fence && plan.rank == 1 });
        plan.lanes[0] = lane.into();
    }
    plans[2].stage = None;
    let mut lane = plans[2].lanes[0].to_vec();
    lane.push(Step { action: Action::Send { to: channel(0), src: IN }, after: None, fence: false });
    plans[2].lanes[0] = lane.into();
    plans
}

#[test]
fn a_send_from_a_stage_is_over_before_the_next_round() {
    let found = of(&relay(false));
    let text = found.to_string();
    assert!(matches!(found, Violation::Hazard { .. }), "{text}");
    assert!(text.contains("publish in[0]") && text.contains("send    stage0[0]"), "{text}");
    // With the fence, only the sum is wrong, since no rank computes one.
    assert!(matches!(of(&relay(true)), Violation::Wrong { .. }));
}

/// Rank 1 runs two rounds ahead before it sends the message that rank 0 waits for between its own rounds.
fn ahead() -> Vec<Plan> {
    let channel = |peer| Channel { peer, index: 0 };
    let slow = vec![OWN, Action::Recv { from: channel(1), dst: TMP }, OWN, OWN, ALL, sum(None, OUT)];
    let quick = vec![OWN, OWN, OWN, Action::Send { to: channel(0), src: IN }, ALL, sum(None, OUT)];
    by_hand(Placement::OutOfPlace, 3, &[vec![slow], vec![quick]])
}

#[test]
fn a_rank_waits_for_those_that_may_still_read_what_it_would_overwrite() {
    for (schedule, depth) in
        [Schedule::LowestRank, Schedule::HighestRank].into_iter().flat_map(|s| [(s, 2), (s, 3), (s, 8)])
    {
        let runs = vec![(Credits::Unlimited, schedule)];
        let options = Options { runs, stage_depth: depth, ..Options::default() };
        let found = check(&ahead(), &uniform(&ahead(), 100), &options);
        match depth {
            2 => assert!(matches!(found, Err(Violation::Deadlock { stuck: 2, .. })), "{found:?}"),
            _ => assert!(found.is_ok(), "{found:?}"),
        }
    }
}

#[test]
fn nobody_is_through_with_a_barrier_before_all_have_called() {
    let task = Task::new(Collective::Barrier, 3).with_stages();
    let mut plans = plans(Algorithm::Staged, &task);
    passes(&plans);
    plans[1].lanes[0][1].action = Action::Await { of: Members::Below(2) };
    assert_eq!(of(&plans), Violation::Early { rank: 1, missing: 2 });
}

#[test]
fn barriers_by_messages_are_looked_at_too() {
    // Signals at doubling distance, with one round too few.
    let mut plans = plans(Algorithm::Dissemination, &Task::new(Collective::Barrier, 4));
    passes(&plans);
    for plan in &mut plans {
        plan.lanes[0] = plan.lanes[0].iter().take(2).copied().collect();
    }
    assert_eq!(of(&plans), Violation::Early { rank: 0, missing: 1 });
}

#[test]
fn the_members_of_a_stage_share_one_table() {
    let hosts = (0..12).map(|rank| rank / 4).collect::<Vec<u32>>();
    let task = Task::new(Collective::AllReduce, 12).with_hosts(hosts).with_stages();
    let plans = plans(Algorithm::HierarchicalStaged, &task);
    let table = |rank: usize| &plans[rank].stage.as_ref().expect("a stage").rounds;
    for (rank, plan) in plans.iter().enumerate() {
        assert!(std::sync::Arc::ptr_eq(table(rank), table(rank / 4 * 4)), "rank {rank}");
        assert_eq!(*plan, Algorithm::HierarchicalStaged.plan(&task, rank as u32));
    }
}
