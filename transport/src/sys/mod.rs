//! Thin helpers over the operating system, shared by the transports.

pub(crate) mod atomic;
pub(crate) mod credentials;
pub(crate) mod descriptors;
pub(crate) mod fences;
#[cfg(not(kolo_model))]
pub(crate) mod futex;
pub(crate) mod lines;
pub(crate) mod map;
pub(crate) mod memfd;
#[cfg(kolo_model)]
pub(crate) mod modelled;
#[cfg(kolo_model)]
pub(crate) use modelled as futex;
pub(crate) mod process;
pub(crate) mod unix;
pub(crate) mod unshared;
