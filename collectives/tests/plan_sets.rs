//! Plan sets: plans of generators are accepted, wrong or oversized ones are refused, and nothing panics.

mod common;

use common::COLLECTIVES;
use kolo_collectives::model::Model;
use kolo_collectives::plan::{Action, Blocks, Channel, Collective, Cut, Like, Placement, Space, Step};
use kolo_collectives::plan_set::{PlanFile, PlanSet, Program, Serves, SharedMemory, VERSION};
use kolo_collectives::select::Request;
use kolo_collectives::stage::{Members, Payload, Run};
use kolo_collectives::{Algorithm, Task};

fn file(task: &Task, algorithm: Algorithm) -> PlanFile {
    let choice = Request::new(task, 1 << 20, 4).forced(algorithm).select(&Model::TCP).expect("it can");
    PlanSet::of_choice(task, &choice, 0, u64::MAX).expect("right").to_file()
}

/// The plans of every algorithm can be written and read again, except those on symmetric buffers.
#[test]
fn what_generators_make_is_a_set() {
    let mut count = 0;
    for collective in COLLECTIVES {
        for (hosts, root) in [(vec![0, 1, 2, 3, 4], 2), (vec![0, 0, 0, 1, 1, 1], 4), (vec![0; 4], 0)] {
            let root = if common::rooted(collective) { root } else { 0 };
            let task =
                Task::new(collective, hosts.len() as u32).with_root(root).with_hosts(hosts).with_stages();
            for algorithm in Algorithm::ALL.into_iter().filter(|a| a.supports(&task).is_ok()) {
                let written = file(&task, algorithm);
                let set =
                    PlanSet::new(written.clone()).unwrap_or_else(|e| panic!("{algorithm} {task:?}: {e}"));
                assert_eq!(set.to_file(), written, "{algorithm}");
                assert_eq!(set.serves().fits(&written.serves.hosts.expect("known"), None), Ok(()));
                count += 1;
            }
        }
    }
    assert!(count > 120, "{count} sets");
}

fn ring() -> PlanFile {
    file(&Task::new(Collective::AllReduce, 4).with_hosts(vec![0, 0, 1, 1]), Algorithm::Ring)
}

#[test]
fn what_is_wrong_or_too_much_is_refused() {
    type Change = fn(&mut PlanFile);
    let cases: [(Change, &str); 25] = [
        (|f| f.version = 2, "version 2"),
        (|f| f.name = "x".repeat(201), "its name"),
        (|f| f.serves.ranks = 0, "ranks is 0"),
        (|f| f.serves.ranks = u32::MAX, "ranks is 4294967295"),
        (|f| f.serves.ranks = 5, "hosts of 4 ranks"),
        (|f| f.serves.root = 1, "root is 1"),
        (|f| f.serves.hosts = Some(vec![0, 1, 3, 3]), "host 3 appears before"),
        (|f| (f.serves.from_bytes, f.serves.to_bytes) = (2, 1), "which is an empty range"),
        (|f| f.segment_bytes = 0, "segment_bytes is 0"),
        (|f| f.segment_bytes = u64::MAX, "segment_bytes is"),
        (|f| f.window = 0, "window is 0"),
        (|f| f.window = 65, "window is 65"),
        (|f| f.cut = Cut::Vector { parts: 0 }, "parts is 0"),
        (|f| f.cut = Cut::Vector { parts: u32::MAX }, "parts is 4294967295"),
        (|f| f.cut = Cut::PerRank, "is not cut into"),
        (|f| drop(f.in_place.pop()), "3 programs in place for 4"),
        (|f| f.in_place[1].lanes[0].truncate(3), "wrong in place"),
        (|f| f.out_of_place[0].lanes[0].swap(1, 2), "wrong out of place"),
        (|f| f.out_of_place[0].stage = Some(7), "not in the list"),
        (|f| f.out_of_place[3].lanes.resize(65, Vec::new()), "more than 64 lanes"),
        (|f| f.out_of_place[3].scratch.resize(1 << 22, Like::Output(0)), "number of blocks"),
        (|f| f.out_of_place[3].scratch.resize(1 << 18, Like::Output(0)), "staging"),
        (
            |f| {
                // Blocks of a few bytes, each of which takes a cache line of every segment in flight.
                (f.segment_bytes, f.window) = (1, 64);
                f.out_of_place[3].scratch.resize(1 << 17, Like::Output(0));
            },
            "staging",
        ),
        (
            |f| {
                let dst = Blocks::range(Space::Output, u32::MAX, 2);
                f.in_place[0].lanes[0].push(Step {
                    action: Action::Copy { src: dst, dst },
                    after: None,
                    fence: false,
                });
            },
            "blocks that do not exist",
        ),
        (
            |f| {
                let of = Members::One(u16::MAX);
                f.in_place[0].lanes[0].push(Step { action: Action::Await { of }, after: None, fence: false });
            },
            "wrong in place",
        ),
    ];
    for (change, text) in cases {
        let mut odd = ring();
        change(&mut odd);
        let problem = PlanSet::new(odd).map(drop).expect_err(text);
        assert!(problem.contains(text) && !problem.contains('\n'), "{text}: {problem}");
    }
}

/// Plans that serve each placement alone, but not ranks with different placements, are refused.
#[test]
fn ranks_with_other_placements_fit_together() {
    let mut odd = ring();
    let direct = file(&Task::new(Collective::AllReduce, 4).with_hosts(vec![0, 0, 1, 1]), Algorithm::Direct);
    let Cut::Vector { parts } = odd.cut else { panic!("a vector") };
    let Cut::Vector { parts: other } = direct.cut else { panic!("a vector") };
    if parts == other {
        odd.in_place = direct.in_place;
        let problem = PlanSet::new(odd).expect_err("they do not fit");
        assert!(problem.contains("with some ranks in place"), "{problem}");
    }
}

/// A value that is added to itself repeatedly does not overflow the count of contributions.
#[test]
fn doubling_for_ever_is_wrong_and_no_panic() {
    let mut odd = ring();
    let block = Blocks::one(Space::Output, 0);
    let double =
        Step { action: Action::Reduce { a: block, b: block, dst: block }, after: None, fence: false };
    for Program { lanes, .. } in &mut odd.in_place {
        lanes[0].extend([double; 40]);
    }
    assert!(PlanSet::new(odd).expect_err("wrong").contains("wrong in place"));
}

#[test]
fn what_does_not_fit_is_told() {
    let set = PlanSet::new(ring()).expect("right").for_bytes(100, 200);
    let serves = set.serves();
    use Collective::{AllGather, AllReduce};
    assert_eq!(serves.serves(AllReduce, 0, 100), Ok(()));
    for (problem, text) in [
        (serves.serves(AllGather, 0, 100), "it is for all_reduce"),
        (serves.serves(AllReduce, 0, 201), "it is for 100 to 200 bytes, but this is 201"),
        (serves.fits(&[0, 0, 1], None), "it is for 4 ranks, but there are 3"),
        (serves.fits(&[0, 1, 1, 0], None), "on hosts [0, 0, 1, 1], but these are on [0, 1, 1, 0]"),
    ] {
        assert!(problem.clone().expect_err(text).contains(text), "{problem:?}");
    }
    assert_eq!(set.plans(Placement::InPlace).len(), 4);
    let named = set.clone().on_hosts(&["a", "b"]).expect("two");
    assert_eq!(named.serves().fits(&[0, 0, 1, 1], Some(&["a", "b"])), Ok(()));
    let problem = named.serves().fits(&[0, 0, 1, 1], Some(&["b", "a"])).expect_err("others");
    assert_eq!(problem, "it was made for hosts a, b, in this order, but these are b, a");
    assert!(set.on_hosts(&["a"]).map(drop).expect_err("one").contains("names 1 hosts"));
}

/// A broadcast from rank 0 in this many parts, with these programs out of place and in place.
fn broadcast(parts: u32, programs: [Vec<Program>; 2]) -> PlanFile {
    let [out_of_place, in_place] = programs;
    let serves = Serves {
        collective: Collective::Broadcast,
        ranks: out_of_place.len() as u32,
        root: 0,
        hosts: Some(vec![0; out_of_place.len()]),
        host_names: Vec::new(),
        from_bytes: 0,
        to_bytes: u64::MAX,
    };
    PlanFile {
        version: VERSION,
        name: "by hand".to_owned(),
        serves,
        segment_bytes: 65_536,
        window: 1,
        cut: Cut::Vector { parts },
        stages: Vec::new(),
        out_of_place,
        in_place,
    }
}

fn program(actions: Vec<Action>, scratch: &[u32]) -> Program {
    let step = |action| Step { action, after: None, fence: false };
    Program {
        scratch: scratch.iter().map(|block| Like::Output(*block)).collect(),
        stage: None,
        lanes: vec![actions.into_iter().map(step).collect()],
    }
}

fn output(block: u32) -> Blocks {
    Blocks::one(Space::Output, block)
}

fn copy(src: Blocks, dst: Blocks) -> Action {
    Action::Copy { src, dst }
}

fn receive(dst: Blocks) -> Action {
    Action::Recv { from: Channel { peer: 0, index: 0 }, dst }
}

/// The root's program: `actions` on its data, for either placement, and a copy of the data to the output.
fn root(parts: u32, placement: Placement, actions: impl Fn(Space) -> Vec<Action>) -> Program {
    let space = if placement == Placement::InPlace { Space::Output } else { Space::Input };
    let mut all = actions(space);
    if space == Space::Input {
        all.extend((0..parts).map(|block| copy(Blocks::one(space, block), output(block))));
    }
    program(all, &[])
}

const PLACEMENTS: [Placement; 2] = [Placement::OutOfPlace, Placement::InPlace];

/// Blocks 1 and 2 of three are equally long for 7 elements, and not for 8: plans that confuse them are refused.
#[test]
fn blocks_that_are_equally_long_only_at_times_are_not_taken_for_each_other() {
    let scratch = |block| Blocks::one(Space::Scratch, block);
    let sends = |to, blocks: [u32; 3]| {
        move |space| blocks.map(|block| Action::Send { to, src: Blocks::one(space, block) }).to_vec()
    };
    let receivers = [
        (
            "a message",
            program(
                vec![
                    receive(output(0)),
                    receive(output(1)),
                    receive(scratch(0)),
                    copy(scratch(0), output(2)),
                ],
                &[1],
            ),
        ),
        (
            "copies",
            program(
                vec![
                    receive(output(0)),
                    receive(output(1)),
                    receive(output(2)),
                    copy(output(1), scratch(1)),
                    copy(output(2), scratch(0)),
                    copy(scratch(0), output(2)),
                    copy(scratch(1), output(1)),
                ],
                &[1, 2],
            ),
        ),
    ];
    let to = Channel { peer: 1, index: 0 };
    for (what, receiver) in receivers {
        let programs = PLACEMENTS.map(|at| vec![root(3, at, sends(to, [0, 1, 2])), receiver.clone()]);
        let problem = PlanSet::new(broadcast(3, programs)).expect_err(what);
        assert!(problem.contains("lengths differ"), "{what}: {problem}");
    }
    let right = program((0..3).map(|block| receive(output(block))).collect(), &[]);
    let programs = PLACEMENTS.map(|at| vec![root(3, at, sends(to, [0, 1, 2])), right.clone()]);
    PlanSet::new(broadcast(3, programs)).expect("each block is received where it belongs");
}

/// As before, for a block that is published under the number of another.
#[test]
fn blocks_are_published_under_numbers_of_their_lengths() {
    let staged = |numbers: [u32; 3]| {
        let programs = PLACEMENTS.map(|at| {
            let publish = |block| Action::Publish { src: [block, None], except: None };
            let publisher =
                root(3, at, |space| (0..3).map(|block| publish(Some(Blocks::one(space, block)))).collect());
            let read = |(block, number)| {
                let of = Members::One(0);
                let src = Blocks::one(Space::Stage(0), number);
                [publish(None), Action::Await { of }, copy(src, output(block))]
            };
            let reader = program((0..3).zip(numbers).flat_map(read).collect(), &[]);
            [publisher, reader].map(|program| Program { stage: Some(0), ..program }).to_vec()
        });
        let run = |first| Payload { runs: [Some(Run { first, count: 1 }), None] };
        let rounds = numbers.map(|number| vec![run(number), Payload::default()]).to_vec();
        let stages = vec![SharedMemory { members: vec![0, 1], like: Space::Output, rounds }];
        PlanSet::new(PlanFile { stages, ..broadcast(3, programs) })
    };
    staged([0, 1, 2]).expect("right");
    let problem = staged([0, 2, 2]).expect_err("block 1 is published as block 2");
    assert!(problem.contains("lengths differ"), "{problem}");
}

/// Any two ranks may differ in placement: here the root's order of sending does, and that of rank 2 with it.
#[test]
fn ranks_of_the_same_parity_with_other_placements_fit_together() {
    let programs = |orders: [[u32; 2]; 2]| {
        let each = |(at, order): (Placement, [u32; 2])| {
            let sender = root(2, at, |space| {
                let send = |peer, block| Action::Send {
                    to: Channel { peer, index: 0 },
                    src: Blocks::one(space, block),
                };
                let to_2 = order.map(|block| send(2, block));
                [send(1, 0), send(1, 1), to_2[0], to_2[1]].to_vec()
            });
            let receiver = |order: [u32; 2]| program(order.map(|block| receive(output(block))).to_vec(), &[]);
            vec![sender, receiver([0, 1]), receiver(order)]
        };
        [each((PLACEMENTS[0], orders[0])), each((PLACEMENTS[1], orders[1]))]
    };
    PlanSet::new(broadcast(2, programs([[1, 0]; 2]))).expect("one order");
    let problem = PlanSet::new(broadcast(2, programs([[0, 1], [1, 0]]))).expect_err("two orders");
    assert!(problem.contains("with some ranks in place"), "{problem}");
}
