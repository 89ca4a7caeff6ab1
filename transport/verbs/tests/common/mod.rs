//! Common parts of the tests.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod ends;
pub mod fake;
pub mod knob;
