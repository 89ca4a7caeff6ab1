//! Options of the RDMA transport.

use std::ffi::OsString;
use std::time::Duration;

use crate::tcp::TcpOptions;

/// Which registrations of the caller's memory outlive the message for which they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those whose invalidation would be noticed: the kernel reports (`userfaultfd`) when memory is unmapped or given
    /// back. If it does not, none.
    #[default]
    Watched,
    /// Only those made by [`Endpoint::register`](crate::Endpoint::register).
    Never,
    /// All, within the bounds. The caller promises that no buffer is unmapped while the endpoint lives. If an
    /// allocator gave memory back and got new memory at the same address, the adapter would still access the old
    /// pages.
    Always,
}

/// Options of an [`RdmaEndpoint`](super::RdmaEndpoint). All but the side connection's cookie have useful defaults.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The file of libibverbs; `None` lets the dynamic loader find it.
    pub library: Option<OsString>,
    /// Adapters to use, as in `KOLO_IB_HCA`: names or beginnings of names, each optionally followed by `:PORT`. `=`
    /// in front of the list makes names exact; `^` makes it a list of adapters not to use.
    pub adapters: Option<String>,
    /// Index into each port's table of addresses; `None` chooses one, RoCE v2 over IPv4 first.
    pub gid_index: Option<u8>,
    /// Traffic class for switches: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level, which maps to a virtual lane or a priority.
    pub service_level: u8,
    /// Number of queue pairs for long messages per pair of adapters.
    pub queue_pairs: u8,
    /// Number of bytes that a queue pair may have in flight. It should exceed the product of rate and round trip (400
    /// Gbit/s * 20 us = 1 MB), and stay below the amount at which a switch, or soft-RoCE's queue between two guests,
    /// drops packets.
    pub in_flight_bytes: usize,
    /// Time that a path may take to carry its first packet each way.
    pub probe_timeout: Duration,
    /// Which registrations are kept.
    pub keep: Keep,
    /// Maximum number of kept registrations per adapter.
    pub cache_regions: usize,
    /// Maximum number of bytes kept registered per adapter, beside memory in use.
    pub cache_bytes: usize,
    /// Number of bytes that may be locked; `None` asks the system (`RLIMIT_MEMLOCK`).
    pub lockable_bytes: Option<u64>,
    /// Options of the side connection, over which queue pairs are introduced and the end of a peer is noticed.
    pub side: TcpOptions,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            library: None,
            adapters: None,
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            queue_pairs: 1,
            in_flight_bytes: 1 << 20,
            probe_timeout: Duration::from_secs(10),
            keep: Keep::default(),
            cache_regions: 256,
            cache_bytes: 8 << 30,
            lockable_bytes: None,
            side: TcpOptions::default(),
        }
    }
}
