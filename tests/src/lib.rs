//! What the cross-crate tests share: clusters in every arrangement of transports, and a serial reference.

pub mod arrangement;
pub mod reference;
