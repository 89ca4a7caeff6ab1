//! Thin helpers over the operating system, shared by the transports.

pub(crate) mod credentials;
pub(crate) mod descriptors;
pub(crate) mod fences;
pub(crate) mod futex;
pub(crate) mod map;
pub(crate) mod memfd;
pub(crate) mod process;
pub(crate) mod unix;
