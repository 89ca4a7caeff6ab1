//! Counters of an endpoint: so that zero-copy is a number and not a claim.

use super::registrations::CacheCounters;

/// Counters of an endpoint, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages short enough to be sent without being asked for; they are copied into a slot and out of it.
    pub short_messages: u64,
    /// Long messages sent.
    pub long_messages: u64,
    /// Bytes of long messages sent straight from the caller's memory.
    pub sent_in_place_bytes: u64,
    /// Bytes of long messages copied into a staging buffer to be sent.
    pub sent_staged_bytes: u64,
    /// Bytes of long messages received straight into the caller's memory.
    pub received_in_place_bytes: u64,
    /// Bytes of long messages received into staging, and eaten by a consumer there: not copied.
    pub received_eaten_bytes: u64,
    /// Bytes of long messages received into staging and copied from there.
    pub received_staged_bytes: u64,
    /// Messages of which the receiver had to be told, because they waited for it.
    pub notices: u64,
    /// The registration caches of all adapters.
    pub cache: CacheCounters,
}
