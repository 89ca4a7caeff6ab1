//! Plan sets: plans of generators are accepted, wrong or oversized ones are refused, and nothing panics.

mod common;

use common::COLLECTIVES;
use kolo_collectives::model::Model;
use kolo_collectives::plan::{Action, Blocks, Cut, Placement, Space, Step};
use kolo_collectives::plan_set::{PlanFile, PlanSet, Program};
use kolo_collectives::select::{Order, select};
use kolo_collectives::{Algorithm, Task};

fn file(task: &Task, algorithm: Algorithm) -> PlanFile {
    let choice = select(task, 1 << 20, 4, false, Order::Any, &Model::TCP, Some(algorithm)).expect("it can");
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
    file(
        &Task::new(kolo_collectives::plan::Collective::AllReduce, 4).with_hosts(vec![0, 0, 1, 1]),
        Algorithm::Ring,
    )
}

#[test]
fn what_is_wrong_or_too_much_is_refused() {
    type Change = fn(&mut PlanFile);
    let cases: [(Change, &str); 24] = [
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
        (
            |f| f.out_of_place[3].scratch.resize(1 << 22, kolo_collectives::plan::Like::Output(0)),
            "number of blocks",
        ),
        (|f| f.out_of_place[3].scratch.resize(1 << 18, kolo_collectives::plan::Like::Output(0)), "staging"),
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
                let of = kolo_collectives::stage::Members::One(u16::MAX);
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
    let direct = file(
        &Task::new(kolo_collectives::plan::Collective::AllReduce, 4).with_hosts(vec![0, 0, 1, 1]),
        Algorithm::Direct,
    );
    let Cut::Vector { parts } = odd.cut else { panic!("a vector") };
    let Cut::Vector { parts: other } = direct.cut else { panic!("a vector") };
    if parts == other {
        odd.in_place = direct.in_place;
        let problem = PlanSet::new(odd).expect_err("they do not fit");
        assert!(problem.contains("ranks in place"), "{problem}");
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
    use kolo_collectives::plan::Collective::{AllGather, AllReduce};
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
