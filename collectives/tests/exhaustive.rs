//! Every generator, every collective, both placements, every small world.

mod common;

use common::{COLLECTIVES, PLACEMENTS, expect, irregular, plans, rooted, uniform};
use kolo_collectives::check::Options;
use kolo_collectives::plan::{Collective, Placement};
use kolo_collectives::window::Symmetric;
use kolo_collectives::{Algorithm, Params, Task};

/// Returns the roots to try: all of them in small worlds, otherwise a few of each kind.
fn roots(collective: Collective, p: u32) -> Vec<u32> {
    if !rooted(collective) {
        vec![0]
    } else if p <= 17 {
        (0..p).collect()
    } else {
        vec![0, 1, p / 2, p - 1]
    }
}

fn task(collective: Collective, p: u32, root: u32, placement: Placement) -> Task {
    Task { placement, ..Task::new(collective, p).with_root(root) }
        .with_stages()
        .with_symmetric(Symmetric::All)
}

fn for_all(worlds: impl Iterator<Item = u32>, mut each: impl FnMut(Algorithm, &Task)) {
    for p in worlds {
        for collective in COLLECTIVES {
            for root in roots(collective, p) {
                for placement in PLACEMENTS {
                    let task = task(collective, p, root, placement);
                    for algorithm in Algorithm::ALL {
                        if algorithm.supports(&task).is_ok() {
                            each(algorithm, &task);
                        }
                    }
                    let task = task.with_symmetric(Symmetric::Inputs);
                    if Algorithm::Window.supports(&task).is_ok() {
                        each(Algorithm::Window, &task);
                    }
                }
            }
        }
    }
}

#[test]
fn every_world_up_to_64() {
    let mut checked = 0;
    for_all(1..=64, |algorithm, task| {
        let plans = plans(algorithm, task);
        // More elements than parts, and a length that no part count divides.
        let shapes = uniform(&plans, 257);
        expect(algorithm, task, &plans, &shapes, &Options::quick());
        checked += 1;
    });
    assert!(checked > 5000, "only {checked} plans were checked");
}

#[test]
fn every_order_and_credit_in_small_worlds() {
    for_all(1..=17, |algorithm, task| {
        let plans = plans(algorithm, task);
        let shapes = uniform(&plans, 100);
        expect(algorithm, task, &plans, &shapes, &Options::default());
    });
}

/// Ranks need not agree on whether their buffers are in place.
#[test]
fn some_ranks_in_place_and_others_not() {
    for_all(2..=17, |algorithm, task| {
        let other = match task.placement {
            Placement::InPlace => Placement::OutOfPlace,
            Placement::OutOfPlace => Placement::InPlace,
        };
        let other = Task { placement: other, ..task.clone() };
        if algorithm.supports(&other).is_err() {
            return;
        }
        let mut mixed = plans(algorithm, task);
        for (plan, other) in mixed.iter_mut().zip(plans(algorithm, &other)).skip(1).step_by(2) {
            *plan = other;
        }
        let shapes = uniform(&mixed, 100);
        expect(algorithm, task, &mixed, &shapes, &Options::default());
    });
}

#[test]
fn awkward_counts() {
    for_all((1..=9).chain([16, 17, 33]), |algorithm, task| {
        if task.root > 1 {
            return;
        }
        let plans = plans(algorithm, task);
        let p = task.world_size as usize;
        for count in [0, 1, p - 1, p, p + 1, 2 * p - 1] {
            expect(algorithm, task, &plans, &uniform(&plans, count), &Options::quick());
        }
    });
}

#[test]
fn segments() {
    for_all((1..=9).chain([16, 31]), |algorithm, task| {
        if task.root > 1 {
            return;
        }
        let plans = plans(algorithm, task);
        let shapes = uniform(&plans, 100);
        for segment in [50, 34, 7] {
            expect(algorithm, task, &plans, &shapes, &Options::quick().segmented(segment));
        }
    });
}

#[test]
fn blocks_of_unequal_length() {
    for_all((1..=10).chain([16, 17, 33]), |algorithm, task| {
        let per_rank = matches!(
            task.collective,
            Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll
        );
        if !per_rank || !algorithm.serves_irregular(task.collective) || task.root > 2 {
            return;
        }
        let plans = plans(algorithm, task);
        let p = task.world_size;
        // All lengths different; every third block empty; one huge block and the rest empty; one block empty.
        let patterns: [&dyn Fn(u32, u32) -> usize; 4] = [
            &|from, to| (3 * from + 5 * to) as usize % 23 + 1,
            &|from, to| if (from + to) % 3 == 0 { 0 } else { (from + 2 * to + 1) as usize },
            &|from, to| if from == p / 2 && to == p / 2 { 100_000 } else { 0 },
            &|from, to| usize::from(from != 0 || to != 0) * 4,
        ];
        for pattern in patterns {
            let shapes = irregular(task, pattern);
            expect(algorithm, task, &plans, &shapes, &Options::quick());
            expect(algorithm, task, &plans, &shapes, &Options::quick().segmented(5));
        }
    });
}

#[test]
fn parameters() {
    for (channels, parts, width) in [(1, 1, 1), (2, 2, 2), (3, 5, 100), (4, 33, 3)] {
        for_all((1..=8).chain([13, 32]), |algorithm, task| {
            if task.root > 1 {
                return;
            }
            let task = task.clone().with_params(Params { channels, parts, width });
            let plans = plans(algorithm, &task);
            expect(algorithm, &task, &plans, &uniform(&plans, 1000), &Options::quick());
        });
    }
}

#[test]
fn every_collective_has_a_generator_for_every_world() {
    for p in (1..=64).chain([127, 128, 129, 4096]) {
        for collective in COLLECTIVES {
            for placement in PLACEMENTS {
                let task = task(collective, p, p - 1, placement);
                let mut serving = Algorithm::ALL.iter().filter(|algorithm| algorithm.supports(&task).is_ok());
                assert!(serving.any(|algorithm| algorithm.serves_irregular(collective)), "{task:?}");
            }
        }
    }
}
