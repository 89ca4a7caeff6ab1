//! Common parts of the cross-crate tests: clusters in every arrangement of transports, a serial reference, processes that can be killed,
//! and deadlines that turn a hang into a failure.

pub mod arrangement;
pub mod futures;
pub mod gpu;
pub mod processes;
pub mod programs;
pub mod random;
pub mod reference;
pub mod system;
pub mod watchdog;
