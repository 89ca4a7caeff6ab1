//! Measurements of the network between hosts, made with the first communicator. The selection on several hosts is based
//! on them.
//!
//! One rank of each host, its *leader*, exchanges messages with leaders at doubling distances ([`probe`]), so the probe
//! takes as many rounds as the number of hosts has binary digits. All ranks learn the measurements, and so have the same
//! [`Table`].

mod knowledge;
mod paced;
mod probe;
mod rails;
mod table;

pub(crate) use knowledge::Knowledge;
pub(crate) use paced::in_words as paced_in_words;
pub(crate) use probe::probe;
pub use probe::{Buffers, Effort, RoundTrip, Way, Wire, end, push, rate, round_trip, serve};
pub(crate) use rails::in_words as rails_in_words;
pub(crate) use table::{Between, Sample, Table};
