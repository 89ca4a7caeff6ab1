//! Collective algorithms as data: plans, generators, cost model, selection, checker and simulator.
//!
//! A collective is data, not code. An algorithm is a pure function from a [`Task`] and a rank to a
//! [`plan::Plan`], a small straight-line program. So it can be read, printed, checked, priced and simulated for
//! thousands of ranks before a byte moves. This crate does no I/O, spawns no thread, reads no clock and holds no
//! `unsafe`.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`], [`memory`], [`stage`], [`shards`], [`layout`] | plans, the memory that they work on, and its cut into blocks |
//! | [`task`], [`generator`], [`builder`] | the description of a call, the algorithms, and the writer of plans |
//! | [`check`] | proves a set of plans: each contribution counted exactly once, no hazard, no deadlock, one order |
//! | [`simulate`], [`model`], [`cost`] | the time that a plan takes, by simulated events and in closed form |
//! | [`select`], [`overrides`] | the choice of the algorithm, and how users override it |
//! | [`search`] | plans for networks whose hosts or links differ |
//! | [`plan_set`] | the plans of all ranks as one value, which a file may hold |
//! | [`display`], [`rounds_table`] | plans as text for people |
//!
//! ```
//! use kolo_collectives::check::{Options, check};
//! use kolo_collectives::layout::Shape;
//! use kolo_collectives::model::Model;
//! use kolo_collectives::plan::Collective;
//! use kolo_collectives::select::Request;
//! use kolo_collectives::Task;
//!
//! let task = Task::new(Collective::AllReduce, 6);
//! let choice = Request::new(&task, 4096, 4).select(&Model::TCP)?;
//! let task = task.with_params(choice.params);
//! let plans: Vec<_> = (0..6).map(|rank| choice.algorithm.plan(&task, rank)).collect();
//! println!("{} because: {}\n{}", choice.algorithm, choice.reason, plans[0]);
//!
//! let report = check(&plans, &vec![Shape::Vector { count: 1024 }; 6], &Options::default())?;
//! assert!(report.connections < 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod builder;
pub mod caches;
pub mod check;
mod contention;
pub mod cost;
pub mod display;
pub mod generator;
mod generators;
mod group;
mod hosts;
pub mod layout;
pub mod memory;
pub mod model;
pub mod overrides;
pub mod plan;
pub mod plan_set;
mod rounds;
pub mod rounds_table;
pub mod search;
pub mod select;
pub mod shards;
pub mod simulate;
pub mod stage;
pub mod task;
pub mod window;

pub use generator::Algorithm;
pub use task::{Params, Task};
