//! The options of the TCP transport.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::port::Port;

/// Which address families are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Both; IPv4 is tried first where both are equally near.
    #[default]
    Both,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// Which congestion control connections use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The system's, but bbr on long paths where the system offers it, and between processes of one host a pacing one (bbr) is replaced by one that does not pace,
    /// if the system allows: pacing halves the throughput where there is no network to be polite to.
    #[default]
    Auto,
    /// The system's, always.
    System,
    /// The named one, for all peers; an error if the system refuses.
    Named(String),
}

impl Congestion {
    /// The choice that `KOLO_SOCKET_CONGESTION` holds: `system`, or a name; without one, [`Auto`](Self::Auto).
    #[must_use]
    pub fn from_setting(setting: Option<&str>) -> Self {
        match setting {
            None => Self::Auto,
            Some("system") => Self::System,
            Some(name) => Self::Named(name.to_owned()),
        }
    }
}

/// Options of a [`TcpEndpoint`](super::TcpEndpoint). All have defaults but the cookie.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Network interfaces to use, as in `KOLO_SOCKET_IFNAME`: names or beginnings of names; `=name` is exact; a
    /// first entry that starts with `^` makes it a list of those not to use. `None` uses all.
    pub interfaces: Option<Vec<String>>,
    /// Address families.
    pub family: Family,
    /// Ports to listen at, of which each endpoint takes the first that is free; `None` lets the system choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// A port that this process listens at already, for all its endpoints; without one, or if the admitted interfaces do not reach it,
    /// the endpoint listens by itself.
    pub port: Option<Arc<Port>>,
    /// Congestion control.
    pub congestion: Congestion,
    /// Connections that share a long message on each way to a peer of another host; `None` is one, or several on a long way where
    /// the congestion control loses much by a lost packet.
    pub streams: Option<u8>,
    /// Where peers meet of which neither can dial the other; see [`RelayCall`](super::RelayCall).
    pub relay: Option<SocketAddr>,
    /// Peers that were met there before: for these it is asked at once, beside their addresses.
    pub relayed_before: Vec<u32>,
    /// A secret that all ranks of a job share, and nobody else. A caller without it is turned away.
    pub cookie: [u8; 16],
    /// Send buffer of the kernel in bytes; `None` lets it tune itself, which is best or nearly so everywhere.
    pub send_buffer_bytes: Option<usize>,
    /// Receive buffer of the kernel in bytes; `None` lets it tune itself.
    pub recv_buffer_bytes: Option<usize>,
    /// How long one address may take to answer before the next is tried beside it.
    pub dial_patience: Duration,
    /// How long an address may take to answer at all.
    pub dial_timeout: Duration,
    /// How long whoever connects may take to say who it is.
    pub hello_timeout: Duration,
    /// How long a peer's host may leave a silent connection's keep-alive probes unanswered before it is lost.
    pub dead_after: Duration,
    /// `TCP_USER_TIMEOUT`: how long data may go unacknowledged. Off by default, because the kernel also counts the
    /// time for which a peer that is alive, but late to post its receives, has no room (measured on Linux 6.18).
    /// A setting here promises that no rank lags behind by more.
    pub user_timeout: Option<Duration>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            interfaces: None,
            family: Family::Both,
            ports: None,
            port: None,
            congestion: Congestion::Auto,
            streams: None,
            relay: None,
            relayed_before: Vec::new(),
            cookie: [0; 16],
            send_buffer_bytes: None,
            recv_buffer_bytes: None,
            // A SYN or its answer lost once is repeated after 1 s.
            dial_patience: Duration::from_millis(1500),
            // Four repeats of a SYN (1, 2, 4, 8 s) go unanswered in 15 s.
            dial_timeout: Duration::from_secs(16),
            hello_timeout: Duration::from_secs(10),
            // Longer than a switch takes to fail over, shorter than an operator's patience.
            dead_after: Duration::from_secs(60),
            user_timeout: None,
        }
    }
}

impl TcpOptions {
    /// The list of interfaces from text as in `KOLO_SOCKET_IFNAME`: `"eth,ib"`, `"^docker,lo"`, `"=eth0"`.
    #[must_use]
    pub fn interfaces_from(text: &str) -> Option<Vec<String>> {
        let list: Vec<String> =
            text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
        if list.is_empty() { None } else { Some(list) }
    }
}
