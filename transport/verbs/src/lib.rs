//! libibverbs, found at run time.
pub mod sys;
