//! Collective algorithms as data: plans, generators, cost model, selection, checker and simulator.
//!
//! A collective is data, not code. An algorithm is a pure function from parameters and a rank to a
//! [`plan::Plan`]. This crate does no I/O, spawns no thread, reads no clock and holds no `unsafe`.
#![forbid(unsafe_code)]

pub mod builder;
pub mod check;
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
mod rounds;
pub mod select;
pub mod simulate;
pub mod task;

pub use generator::Algorithm;
pub use task::{Params, Task};
