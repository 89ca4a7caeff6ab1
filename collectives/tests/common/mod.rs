//! Common parts of the tests: tasks, shapes, and checks with readable failures.
#![allow(dead_code, unreachable_pub)]

use kolo_collectives::check::{Options, Report, Violation, check};
use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Blocks, Collective, Cut, Lane, Like, Placement, Plan, Space, Step};
use kolo_collectives::stage::Stage;
use kolo_collectives::{Algorithm, Task};

pub const COLLECTIVES: [Collective; 11] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Scan,
    Collective::ExScan,
    Collective::Barrier,
];

pub const PLACEMENTS: [Placement; 2] = [Placement::OutOfPlace, Placement::InPlace];

pub fn rooted(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
    )
}

pub fn plans(algorithm: Algorithm, task: &Task) -> Vec<Plan> {
    algorithm.plans(task)
}

/// Shapes with the same number of elements everywhere: of the vector, or of each block.
pub fn uniform(plans: &[Plan], count: usize) -> Vec<Shape> {
    plans
        .iter()
        .map(|plan| match plan.cut {
            Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
            Cut::PerRank => Shape::Blocks { count },
        })
        .collect()
}

/// Shapes of unequal blocks: `len(from, to)` elements travel from one rank to another. In a collective with
/// one block per rank, the rank that the block belongs to decides the length.
pub fn irregular(task: &Task, len: impl Fn(u32, u32) -> usize) -> Vec<Shape> {
    let p = task.world_size;
    let all = |f: &dyn Fn(u32) -> usize| (0..p).map(f).collect::<Box<[usize]>>();
    (0..p)
        .map(|rank| {
            let at_root = |blocks| if rank == task.root { blocks } else { Box::default() };
            let one = |owner: u32| Box::from([len(owner, owner)]);
            let each = || all(&|owner| len(owner, owner));
            let (input, output) = match task.collective {
                Collective::AllGather => (one(rank), each()),
                Collective::ReduceScatter => (each(), one(rank)),
                Collective::Gather => (one(rank), at_root(each())),
                Collective::Scatter => (at_root(each()), one(rank)),
                // In place, the block that a rank receives is as long as the one it sends.
                Collective::AllToAll if task.placement == Placement::InPlace => {
                    let mutual = all(&|peer| len(rank.min(peer), rank.max(peer)));
                    (mutual.clone(), mutual)
                }
                Collective::AllToAll => (all(&|to| len(rank, to)), all(&|from| len(from, rank))),
                other => panic!("{other:?} has no blocks per rank"),
            };
            Shape::Irregular { input, output }
        })
        .collect()
}

pub fn expect(
    algorithm: Algorithm,
    task: &Task,
    plans: &[Plan],
    shapes: &[Shape],
    options: &Options,
) -> Report {
    check(plans, shapes, options).unwrap_or_else(|violation| {
        let mut programs = String::new();
        if plans.len() <= 8 {
            for plan in plans {
                programs += &plan.to_string();
            }
        }
        panic!("{algorithm} {task:?}: {violation}\n{shapes:?}\n{programs}")
    })
}

pub const IN: Blocks = Blocks::one(Space::Input, 0);
pub const OUT: Blocks = Blocks::one(Space::Output, 0);
pub const TMP: Blocks = Blocks::one(Space::Scratch, 0);

/// Makes hand-written plans of one all-reduce; `programs` holds the lanes of each rank.
pub fn by_hand(
    placement: Placement,
    scratch: usize,
    stage: Option<Stage>,
    programs: Vec<Vec<Vec<Step>>>,
) -> Vec<Plan> {
    let world_size = programs.len() as u32;
    let plan = |(rank, lanes): (usize, Vec<Vec<Step>>)| Plan {
        collective: Collective::AllReduce,
        algorithm: "by hand",
        rank: rank as u32,
        world_size,
        root: 0,
        placement,
        cut: Cut::Vector { parts: 1 },
        scratch: vec![Like::Output(0); scratch].into(),
        stage: stage.clone(),
        lanes: lanes.into_iter().map(Lane::from).collect(),
        channels: 2,
    };
    programs.into_iter().enumerate().map(plan).collect()
}

/// Returns the defect that the checker finds.
pub fn violation(plans: &[Plan]) -> Violation {
    check(plans, &uniform(plans, 100), &Options::default()).expect_err("the defect must be found")
}

/// Pseudo-random numbers, the same in every run (xorshift).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
