//! Reductions over shards: the same expression for every number of ranks.

mod common;

use common::{expect, plans, uniform};
use kolo_collectives::check::{Expression, Options, Violation, check};
use kolo_collectives::model::Model;
use kolo_collectives::plan::{Action, Collective, Placement, Space};
use kolo_collectives::select::Request;
use kolo_collectives::{Algorithm, Task, shards};

const FORMS: [Algorithm; 2] = [Algorithm::ShardsOneShot, Algorithm::ShardsTwoShot];

fn task(ranks: u32, shards: u32) -> Task {
    Task::new(Collective::AllReduce, ranks).with_shards(shards)
}

/// Checks the plans of all ranks, and returns the expression that they compute.
fn expression(algorithm: Algorithm, task: &Task, count: usize, options: &Options) -> Option<Expression> {
    let plans = plans(algorithm, task);
    expect(algorithm, task, &plans, &uniform(&plans, count), options).expression
}

#[test]
fn the_expression_depends_on_the_shards_alone() {
    for shards in [1, 2, 3, 7, 12, 60, 64, 100, 257] {
        for ranks in 1..=64 {
            for algorithm in FORMS {
                let options = Options::quick();
                let found = expression(algorithm, &task(ranks, shards), 1000, &options);
                assert_eq!(found, Some(Expression::canonical(shards)), "{algorithm}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn neither_segments_nor_lengths_nor_credits_change_it() {
    for (ranks, shards) in [(1, 5), (2, 64), (3, 64), (5, 24), (7, 48), (8, 12), (6, 4), (9, 1)] {
        for algorithm in FORMS {
            for (count, segment) in [(300, 1000), (300, 100), (7, 3), (1, 1)] {
                let options = Options::default().segmented(segment);
                let found = expression(algorithm, &task(ranks, shards), count, &options);
                assert_eq!(found, Some(Expression::canonical(shards)), "{algorithm}, {ranks} ranks");
            }
        }
    }
}

/// Without this property, a wrong tree would pass.
#[test]
fn another_number_of_shards_is_another_expression() {
    let mut seen: Vec<Expression> = (1..=64).map(Expression::canonical).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 64);
}

#[test]
fn aligned_runs_send_no_more_than_the_direct_exchange_of_vectors() {
    for ranks in [2, 3, 4, 6, 8, 12] {
        let sent = |task: &Task, algorithm| {
            let plans = plans(algorithm, task);
            expect(algorithm, task, &plans, &uniform(&plans, 5040), &Options::quick()).elements_per_rank
        };
        let direct = sent(&Task::new(Collective::AllReduce, ranks), Algorithm::Direct);
        for doublings in [0, 1, 4] {
            let shards = ranks << doublings;
            assert!(shards::are_aligned(shards, ranks));
            assert_eq!(sent(&task(ranks, shards), Algorithm::ShardsTwoShot), direct, "{ranks} {shards}");
        }
        // At worst, each rank has a few pieces.
        let most = 5 * direct;
        assert!(sent(&task(ranks, 64), Algorithm::ShardsTwoShot) <= most, "{ranks}");
    }
}

#[test]
fn a_run_that_is_cut_otherwise_is_found() {
    // Rank 1 reads its second shard in place of its first: a contribution is counted twice.
    let mut broken = plans(Algorithm::ShardsOneShot, &task(2, 4));
    let step = broken[1].lanes[0].iter_mut().find_map(|step| match &mut step.action {
        Action::Reduce { a, .. } if a.space == Space::Input => Some(a),
        _ => None,
    });
    step.expect("it reduces its shards").first = 1;
    let shapes = uniform(&broken, 10);
    assert!(matches!(check(&broken, &shapes, &Options::quick()), Err(Violation::Wrong { .. })));
    // Blocks of two shards are not adjacent.
    let mut broken = plans(Algorithm::ShardsOneShot, &task(1, 4));
    for step in &mut broken[0].lanes[0] {
        if let Action::Reduce { a, .. } = &mut step.action {
            a.count = 2;
        }
    }
    assert!(matches!(check(&broken, &uniform(&broken, 10), &Options::quick()), Err(Violation::Index { .. })));
}

#[test]
fn they_are_for_shards_only_and_nothing_else_is() {
    for algorithm in Algorithm::ALL {
        let of_vectors = Task::new(Collective::AllReduce, 4);
        assert!(!FORMS.contains(&algorithm) || algorithm.supports(&of_vectors).is_err());
        assert_eq!(algorithm.supports(&task(4, 8)).is_ok(), FORMS.contains(&algorithm), "{algorithm}");
    }
    for (impossible, reason) in [
        (task(4, 0), "1 to 16384 shards, not 0"),
        (task(4, shards::MAX_SHARDS + 1), "not 16385"),
        (task(shards::MAX_RANKS + 1, 8), "at most 1024 ranks"),
        (Task { placement: Placement::InPlace, ..task(4, 8) }, "out of place"),
        (Task { collective: Collective::Broadcast, ..task(4, 8) }, "do not support"),
    ] {
        let refusal = Algorithm::ShardsTwoShot.supports(&impossible).expect_err(reason);
        assert!(refusal.contains(reason), "{refusal}");
    }
}

#[test]
fn short_vectors_take_one_shot_and_long_ones_two() {
    for (bytes, wanted) in [(8, Algorithm::ShardsOneShot), (16 << 20, Algorithm::ShardsTwoShot)] {
        let choice = Request::new(&task(4, 64), bytes, 4).select(&Model::TCP).unwrap();
        assert_eq!(choice.algorithm, wanted, "{bytes}");
        assert!(choice.algorithm.is_canonical(&task(4, 64)));
    }
}

#[test]
fn the_most_of_everything_fits() {
    for (ranks, shards) in [(1, shards::MAX_SHARDS), (shards::MAX_RANKS, shards::MAX_SHARDS), (1023, 16_381)]
    {
        for algorithm in FORMS {
            let plan = algorithm.plan(&task(ranks, shards), ranks / 2);
            assert!(plan.lanes[0].len() <= 1 << 16);
        }
    }
}
