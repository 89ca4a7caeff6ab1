//! A communicator: its members, the routes to them, and the state that its calls change.

mod agreement;
mod assignment;
mod attendance;
mod awaited;
mod card;
mod connect;
mod core;
mod endpoints;
mod forked;
mod growth;
mod guard;
mod lineage;
mod model;
pub(crate) mod on_gpus;
mod recorder;
mod renumbering;
mod routes;
mod shared;
mod shared_memory;
mod time_limit;

pub(crate) use assignment::Places;
pub(crate) use attendance::Attended;
pub(crate) use awaited::Deadline;
#[cfg(any(test, fuzzing))]
pub(crate) use connect::fuzz_card;
pub(crate) use connect::{Making, WORLD, child_id, patience};
pub(crate) use core::Core;
pub(crate) use endpoints::tcp_options;
pub(crate) use forked::leak_in_child;
pub(crate) use growth::{Left, grow, join_admitted, regroup, settings};
pub(crate) use guard::CoreGuard;
pub use model::model_inside;
pub use recorder::Record;
pub(crate) use renumbering::renumbered;
pub(crate) use shared::{Shared, World};
pub(crate) use time_limit::Limit;
