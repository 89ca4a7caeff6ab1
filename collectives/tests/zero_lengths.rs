//! A step that is skipped because it has no bytes still fences.

mod common;

use common::expect;
use kolo_collectives::check::{Options, Violation, check};
use kolo_collectives::layout::Shape;
use kolo_collectives::plan::Collective;
use kolo_collectives::{Algorithm, Task};

#[test]
fn fences_on_empty_messages_hold() {
    // Vectors are shorter than their number of parts, so many messages are empty, fenced ones among them.
    let mut empty_fences = 0;
    for algorithm in [Algorithm::Ring, Algorithm::Circulant, Algorithm::Halving, Algorithm::Direct] {
        for p in [3, 5, 8] {
            let task = Task::new(Collective::AllReduce, p).in_place();
            let plans: Vec<_> = (0..p).map(|rank| algorithm.plan(&task, rank)).collect();
            for count in 1..p as usize {
                let shapes = vec![Shape::Vector { count }; p as usize];
                expect(algorithm, &task, &plans, &shapes, &Options::default());
                let layout = kolo_collectives::layout::Layout::new(&plans[0], shapes[0].clone(), 100);
                empty_fences += plans
                    .iter()
                    .flat_map(|plan| plan.lanes.iter().flatten())
                    .filter(|step| step.fence)
                    .flat_map(|step| step.action.reads())
                    .flatten()
                    .filter(|blocks| layout.len(*blocks, 0) == 0)
                    .count();
            }
            // Without its fences the plan would not pass, however short the vector is.
            let mut mutant = plans.clone();
            for plan in &mut mutant {
                for lane in &mut plan.lanes {
                    lane.iter_mut().for_each(|step| step.fence = false);
                }
            }
            let shapes = vec![Shape::Vector { count: 1 }; p as usize];
            assert!(matches!(check(&mutant, &shapes, &Options::quick()), Err(Violation::Hazard { .. })));
        }
    }
    assert!(empty_fences > 0, "no fence was on an empty message");
}
