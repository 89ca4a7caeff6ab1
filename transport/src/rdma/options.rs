//! The options of the RDMA transport.

use std::ffi::OsString;
use std::time::Duration;

use crate::tcp::TcpOptions;

/// Which registrations of the caller's memory outlive the message that they were made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those whose end would be noticed: the kernel tells (`userfaultfd`) when memory is unmapped or given back. Where
    /// it does not, none.
    #[default]
    Watched,
    /// None but those made by [`Endpoint::register`](crate::Endpoint::register).
    Never,
    /// All, within the bounds. The caller promises that no buffer is unmapped while the endpoint lives: memory that
    /// the allocator gave back and got anew at the same address would be read and written where it was before.
    Always,
}

/// Options of an [`RdmaEndpoint`](super::RdmaEndpoint). All have defaults but the cookie of the side connection.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The file of libibverbs; `None` is as the dynamic loader finds it.
    pub library: Option<OsString>,
    /// Adapters to use, as in `KOLO_IB_HCA`: names or beginnings of names, each with `:PORT` behind it or not; `=`
    /// in front of the list makes names exact, `^` makes it a list of those not to use.
    pub adapters: Option<String>,
    /// Entry of each port's table of addresses; `None` chooses: RoCE v2 over IPv4 first.
    pub gid_index: Option<u8>,
    /// Class of the traffic for switches: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level, which maps to a virtual lane or a priority.
    pub service_level: u8,
    /// Queue pairs for long messages per pair of adapters.
    pub queue_pairs: u8,
    /// Bytes a queue pair may have under way: above the product of rate and round trip (400 Gbit/s * 20 us = 1 MB),
    /// and below what a switch, or soft-RoCE's queue between two guests, drops.
    pub in_flight_bytes: usize,
    /// How long a path may take to carry its first packet each way.
    pub probe_timeout: Duration,
    /// Which registrations are kept.
    pub keep: Keep,
    /// Registrations kept at most, per adapter.
    pub cache_regions: usize,
    /// Bytes kept registered at most, per adapter, beyond what is in use.
    pub cache_bytes: usize,
    /// Bytes that may be locked; `None` asks the system (`RLIMIT_MEMLOCK`).
    pub lockable_bytes: Option<u64>,
    /// The connection beside it, over which queue pairs are made known and the end of a peer is noticed.
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
