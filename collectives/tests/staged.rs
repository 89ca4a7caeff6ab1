//! The generators that use stages: correct on any number of ranks, with stages of any depth, in the promised
//! order.

mod common;

use common::{expect, plans, uniform};
use kolo_collectives::check::{Expression, Options};
use kolo_collectives::plan::Collective;
use kolo_collectives::select::Order;
use kolo_collectives::{Algorithm, Params, Task};

#[test]
fn depths_and_orders() {
    for p in (2..=17).chain([24, 32]) {
        for collective in Collective::ALL {
            for parts in [1, 3] {
                let params = Params { parts, ..Params::default() };
                let task = Task::new(collective, p).with_root(p - 1).with_params(params).with_stages();
                let hosts: Vec<u32> = (0..p).map(|rank| rank * 5 / (2 * p)).collect();
                for task in [task.clone(), task.clone().in_place(), task.clone().with_hosts(hosts)] {
                    for algorithm in Algorithm::ALL.into_iter().filter(|a| a.name().contains("staged")) {
                        if algorithm.supports(&task).is_err() {
                            continue;
                        }
                        let plans = plans(algorithm, &task);
                        for (stage_depth, order) in [(2, Order::Canonical), (3, Order::Any), (8, Order::Any)]
                        {
                            let options = Options { stage_depth, order, ..Options::default() };
                            let shapes = uniform(&plans, 100);
                            let report = expect(algorithm, &task, &plans, &shapes, &options);
                            if order == Order::Canonical
                                && collective.reduces()
                                && algorithm.is_canonical(&task)
                            {
                                let scan = matches!(collective, Collective::Scan | Collective::ExScan);
                                let wanted = (!scan).then(|| Expression::canonical(p));
                                assert_eq!(report.expression, wanted, "{algorithm} {task:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Folds reduce in the order of the ranks in every form, as the exchange does for the same call.
#[test]
fn folds_are_in_rank_order() {
    for p in 2..=9 {
        let in_order = (1..p).fold(Expression::leaf(0), |sum, rank| sum.plus(Expression::leaf(rank)));
        for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
            for algorithm in [Algorithm::StagedOneShot, Algorithm::StagedTwoShot] {
                for task in [Task::new(collective, p), Task::new(collective, p).in_place()] {
                    let task = task.with_root(p / 2).with_stages();
                    if algorithm.supports(&task).is_err() {
                        continue;
                    }
                    let plans = plans(algorithm, &task);
                    let found = expect(algorithm, &task, &plans, &uniform(&plans, 100), &Options::quick());
                    assert_eq!(found.expression, Some(in_order), "{algorithm} {task:?}");
                }
            }
        }
    }
}

#[test]
fn a_staged_program_reads_well() {
    let params = Params { parts: 1, ..Params::default() };
    let task = Task::new(Collective::AllReduce, 3).with_params(params).with_stages();
    assert_eq!(
        Algorithm::StagedTwoShot.plan(&task, 1).to_string(),
        "\
all_reduce by staged_two_shot, rank 1 of 3, root 0, out of place
  vector in 3 parts
  stages: 3 members in 2 rounds
  lane 0
       0  publish in[0..3] but stage1[1]
       1  await   all
       2  fold    out[1] = stages[1] of all, own from in[1]
       3  publish out[1]
       4  await   all
       5  copy    out[0] = stage0[0]
       6  copy    out[2] = stage2[2]
"
    );
}

#[test]
fn no_stage_says_why() {
    let task = Task::new(Collective::AllReduce, 4);
    let refusal = |algorithm: Algorithm, task: &Task| algorithm.supports(task).expect_err("it cannot");
    assert!(refusal(Algorithm::StagedOneShot, &task).contains("share no memory"));
    let several = task.clone().with_hosts([0, 0, 1, 1]);
    assert!(refusal(Algorithm::HierarchicalStaged, &several).contains("share no memory"));
    assert!(refusal(Algorithm::StagedTwoShot, &several.with_stages()).contains("several hosts"));
    let dealt = Task::new(Collective::AllToAll, 4).with_hosts([0, 1, 0, 1]).with_stages();
    assert!(refusal(Algorithm::HierarchicalStaged, &dealt).contains("not consecutive"));
}

/// Every byte is copied in once, however many ranks need it, and no rank sends a message inside a host.
#[test]
fn every_byte_is_copied_in_once() {
    for (collective, algorithm, of_vector) in [
        (Collective::Broadcast, Algorithm::Staged, 1),
        (Collective::AllGather, Algorithm::Staged, 5),
        (Collective::AllToAll, Algorithm::Staged, 5 * 4),
        (Collective::ReduceScatter, Algorithm::StagedOneShot, 5 * 4),
        (Collective::AllReduce, Algorithm::StagedOneShot, 5),
        // Less the slice that each rank reduces itself, plus the sums.
        (Collective::AllReduce, Algorithm::StagedTwoShot, 5 - 1 + 1),
    ] {
        let task = Task::new(collective, 5).with_stages();
        let plans = plans(algorithm, &task);
        let report = expect(algorithm, &task, &plans, &uniform(&plans, 1000), &Options::quick());
        assert_eq!((report.published, report.messages), (of_vector * 1000, 0), "{algorithm} {collective}");
    }
}
