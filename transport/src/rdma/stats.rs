//! Counters of an endpoint, by which zero-copy can be verified.

use super::registrations::CacheCounters;

/// Counters of an endpoint, since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages so short that they are sent without a grant; they are copied into a slot and out of it.
    pub short_messages: u64,
    /// Long messages sent.
    pub long_messages: u64,
    /// Bytes of long messages sent straight from the caller's memory.
    pub sent_in_place_bytes: u64,
    /// Bytes of long messages copied into a staging buffer to be sent.
    pub sent_staged_bytes: u64,
    /// Bytes of long messages received straight into the caller's memory.
    pub received_in_place_bytes: u64,
    /// Bytes of long messages received into staging and consumed there, without a copy.
    pub received_eaten_bytes: u64,
    /// Bytes of long messages received into staging and copied from there.
    pub received_staged_bytes: u64,
    /// Messages of which the receiver got a notice, because they waited for it.
    pub notices: u64,
    /// Counters of the registration caches of all adapters, added up.
    pub cache: CacheCounters,
}
