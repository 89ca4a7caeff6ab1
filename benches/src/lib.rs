//! What the measuring programs share: a table of limits, and what the machine does without Kolo.

pub mod bare_flag;
pub mod limit;
pub mod pair;
pub mod processors;
pub mod shared;
pub mod staged;
pub mod status;
