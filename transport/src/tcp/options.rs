//! Options of the TCP transport.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::port::Port;

/// Address families to use.
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

/// Congestion control of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// The system's choice, with two exceptions. On long paths it is bbr, where the system offers it. Between
    /// processes of one host, a pacing one (bbr) is replaced by one that does not pace, if the system permits it:
    /// pacing halves the throughput where no network needs it.
    #[default]
    Auto,
    /// Always the system's choice.
    System,
    /// The named one, for all peers. An endpoint cannot be made if the system refuses it.
    Named(String),
}

impl Congestion {
    /// Returns the choice that `KOLO_SOCKET_CONGESTION` makes: `system`, or a name; without the variable,
    /// [`Auto`](Self::Auto).
    #[must_use]
    pub fn from_setting(setting: Option<&str>) -> Self {
        match setting {
            None => Self::Auto,
            Some("system") => Self::System,
            Some(name) => Self::Named(name.to_owned()),
        }
    }
}

/// Options of a [`TcpEndpoint`](super::TcpEndpoint). All but the cookie have useful defaults.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Network interfaces to use, as in `KOLO_SOCKET_IFNAME`: names or beginnings of names; `=name` is exact; if the
    /// first entry starts with `^`, the list names those not to use. `None` uses all.
    pub interfaces: Option<Vec<String>>,
    /// Address families to use.
    pub family: Family,
    /// Ports to listen at. Each endpoint takes the first one that is free; `None` lets the system choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// A port at which this process listens already, for all its endpoints. Without one, or if it is not reached
    /// through the admitted interfaces, the endpoint makes its own listener.
    pub port: Option<Arc<Port>>,
    /// Congestion control.
    pub congestion: Congestion,
    /// Number of connections that share a long message on each path to a peer of another host. `None` means one, or
    /// several on a long path where a lost packet costs the congestion control much of its rate.
    pub streams: Option<u8>,
    /// Whether long messages to several near hosts at the same time are paced, messages on slow paths leave one by one, and
    /// connections to near hosts resend lost packets sooner than the kernel does by itself.
    pub pacing: bool,
    /// Address of the relay, where two peers meet if neither can dial the other; see [`RelayCall`](super::RelayCall).
    pub relay: Option<SocketAddr>,
    /// Other relays for some peers.
    pub relays: Vec<(u32, SocketAddr)>,
    /// Peers that were met at the relay before: for these the relay is asked at once, beside their addresses.
    pub relayed_before: Vec<u32>,
    /// A secret that only the ranks of a job share. Connections without it are rejected.
    pub cookie: [u8; 16],
    /// Size of the kernel's send buffer in bytes; `None` lets the kernel tune it, which is best or nearly so
    /// everywhere.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the kernel's receive buffer in bytes; `None` lets the kernel tune it.
    pub recv_buffer_bytes: Option<usize>,
    /// Time that one address has to answer before the next is tried beside it.
    pub dial_patience: Duration,
    /// Time that an address has to answer at all.
    pub dial_timeout: Duration,
    /// Time that the packets of both ends have to get through to the other, from the first attempt. Addresses are tried
    /// again meanwhile, because a cable or a switch may be down for some seconds.
    pub reach_within: Duration,
    /// Whether the owner learns by itself that a peer's process has ended, and then abandons the peer. If not, a host that
    /// refuses connections, as it does for a process that has ended, has less time.
    pub is_told_of_deaths: bool,
    /// Time that a new connection has to identify itself.
    pub hello_timeout: Duration,
    /// Time for which a peer's host may leave a silent connection's keep-alive probes unanswered before the peer is
    /// lost.
    pub dead_after: Duration,
    /// `TCP_USER_TIMEOUT`: time for which data may go unacknowledged. Off by default, because the kernel also counts
    /// the time for which a peer has no room although it is alive, because it is late to post its receives (measured
    /// on Linux 6.18). A setting promises that no rank lags behind by more.
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
            pacing: true,
            relay: None,
            relays: Vec::new(),
            relayed_before: Vec::new(),
            cookie: [0; 16],
            send_buffer_bytes: None,
            recv_buffer_bytes: None,
            // A SYN, or its answer, that is lost once is repeated after 1 s.
            dial_patience: Duration::from_millis(1500),
            // In 15 s, four repetitions of a SYN (after 1, 2, 4 and 8 s) go unanswered.
            dial_timeout: Duration::from_secs(16),
            // As `dead_after`: an outage matters neither more nor less while a connection is made.
            reach_within: Duration::from_secs(60),
            is_told_of_deaths: false,
            hello_timeout: Duration::from_secs(10),
            // Longer than a switch takes to fail over, shorter than an operator's patience.
            dead_after: Duration::from_secs(60),
            user_timeout: None,
        }
    }
}

impl TcpOptions {
    /// Parses a list of interfaces from text as in `KOLO_SOCKET_IFNAME`: `"eth,ib"`, `"^docker,lo"`, `"=eth0"`.
    #[must_use]
    pub fn interfaces_from(text: &str) -> Option<Vec<String>> {
        let list: Vec<String> =
            text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
        if list.is_empty() { None } else { Some(list) }
    }
}
