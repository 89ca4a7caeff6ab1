//! Common parts of the measuring programs: a table of limits, and the machine's performance without Kolo.

pub mod bare_flag;
pub mod limit;
pub mod pair;
pub mod processors;
pub mod shared;
pub mod staged;
pub mod status;
