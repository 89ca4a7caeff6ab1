//! The order in which the generators reduce.

mod common;

use common::{COLLECTIVES, PLACEMENTS, expect, plans, uniform};
use kolo_collectives::check::{Expression, Options};
use kolo_collectives::plan::Collective;
use kolo_collectives::select::Order;
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Params, Task};

/// Returns the expression of a generator with `count` elements in segments of `segment`.
fn expression(algorithm: Algorithm, task: &Task, count: usize, segment: usize) -> Option<Expression> {
    let plans = plans(algorithm, task);
    let options = Options { order: Order::Canonical, ..Options::quick().segmented(segment) };
    expect(algorithm, task, &plans, &uniform(&plans, count), &options).expression
}

#[test]
fn canonical_generators_share_one_expression_for_every_size() {
    let mut seen = Vec::new();
    for p in (1..=40).chain([63, 64, 65, 100, 127, 128]) {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                for (channels, parts) in [(1, 8), (3, 2)] {
                    let params = Params { channels, parts, ..Params::default() };
                    let task = Task { placement, params, ..Task::new(collective, p) }.with_stages();
                    let task = task.with_symmetric(Symmetric::All);
                    for algorithm in Algorithm::ALL {
                        let reduces = matches!(
                            collective,
                            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
                        );
                        if !reduces || algorithm.supports(&task).is_err() || !algorithm.is_canonical(&task) {
                            continue;
                        }
                        for (count, segment) in [(300, 1000), (300, 100), (7, 3), (1, 1)] {
                            let found = expression(algorithm, &task, count, segment);
                            assert_eq!(found, Some(Expression::canonical(p)), "{algorithm} {task:?}");
                        }
                        seen.push((algorithm, collective));
                    }
                }
            }
        }
    }
    for wanted in [
        (Algorithm::OneShot, Collective::AllReduce),
        (Algorithm::OneShot, Collective::Reduce),
        (Algorithm::OneShot, Collective::ReduceScatter),
        (Algorithm::RecursiveDoubling, Collective::AllReduce),
        (Algorithm::Halving, Collective::AllReduce),
        (Algorithm::Binomial, Collective::Reduce),
        (Algorithm::StagedOneShot, Collective::AllReduce),
        (Algorithm::StagedOneShot, Collective::Reduce),
        (Algorithm::StagedOneShot, Collective::ReduceScatter),
        (Algorithm::StagedTwoShot, Collective::AllReduce),
        (Algorithm::StagedTwoShot, Collective::Reduce),
        (Algorithm::Window, Collective::AllReduce),
        (Algorithm::Window, Collective::Reduce),
        (Algorithm::Window, Collective::ReduceScatter),
    ] {
        assert!(seen.contains(&wanted), "{wanted:?} was not looked at");
    }
}

#[test]
fn what_is_not_called_canonical_is_not() {
    // Otherwise the promise would be weaker than necessary.
    for algorithm in [Algorithm::Ring, Algorithm::Circulant, Algorithm::Direct, Algorithm::Tree] {
        let task = Task::new(Collective::AllReduce, 8);
        assert!(!algorithm.is_canonical(&task));
        assert_ne!(expression(algorithm, &task, 300, 1000), Some(Expression::canonical(8)), "{algorithm}");
    }
}

#[test]
fn every_world_has_a_canonical_form_of_every_reduction() {
    for p in 1..=64 {
        for collective in Collective::ALL.into_iter().filter(|collective| collective.reduces()) {
            for root in [0, p - 1] {
                let task = Task::new(collective, p).with_root(root);
                assert!(
                    Algorithm::ALL.iter().any(|a| a.supports(&task).is_ok() && a.is_canonical(&task)),
                    "{task:?}"
                );
            }
        }
    }
}

/// The result of a scan on one rank is that of a canonical reduction among the ranks whose contributions it holds, whether
/// they share memory or exchange messages.
#[test]
fn scans_add_along_the_tree_over_the_ranks_before() {
    for p in 1..=33 {
        for collective in [Collective::Scan, Collective::ExScan] {
            for placement in PLACEMENTS {
                let task = Task { placement, ..Task::new(collective, p) }.with_stages();
                for algorithm in [Algorithm::OneShot, Algorithm::StagedOneShot] {
                    assert!(algorithm.is_canonical(&task));
                    let plans = plans(algorithm, &task);
                    let options = Options { order: Order::Canonical, ..Options::quick() };
                    let report = expect(algorithm, &task, &plans, &uniform(&plans, 10), &options);
                    assert!(report.scans_are_canonical, "{algorithm} {task:?}");
                }
            }
        }
    }
}

#[test]
fn leaders_of_hosts_of_two_to_the_k_keep_the_canonical_order() {
    for (hosts, local) in [(2, 2), (4, 4), (2, 8), (8, 2)] {
        let task = Task::new(Collective::AllReduce, hosts * local)
            .with_hosts((0..hosts * local).map(|rank| rank / local).collect::<Vec<u32>>());
        assert_eq!(expression(Algorithm::Leader, &task, 10, 10), Some(Expression::canonical(hosts * local)));
    }
}

#[test]
fn scans_by_doubling_are_not_canonical() {
    let task = Task::new(Collective::Scan, 8);
    let plans = plans(Algorithm::RecursiveDoubling, &task);
    let report = expect(Algorithm::RecursiveDoubling, &task, &plans, &uniform(&plans, 10), &Options::quick());
    assert!(!report.scans_are_canonical && !Algorithm::RecursiveDoubling.is_canonical(&task));
}
