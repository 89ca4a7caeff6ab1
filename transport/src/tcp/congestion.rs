//! Choice of a connection's congestion control, and the reasons for it.

use std::io;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::endpoint::Peer;
use super::options::Congestion;
use super::socket::TcpInfo;
use super::window;

/// Congestion controls that pace: they space packets out in time, for the good of queues in a network. The loopback
/// device has no such queue, and the timers halve the throughput (loopback, 256 KiB calls: 3.5 GB/s with bbr, 7 with
/// [`UNPACED`]).
const PACING: [&str; 3] = ["bbr", "bbr2", "bbr3"];

/// Alternatives that do not pace. Both keep the loopback device busy; an ordinary process may always use reno.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// Sets a connection's congestion control; returns its name.
pub(super) fn choose(socket: &Socket, wanted: &Congestion, loopback: bool) -> io::Result<String> {
    match wanted {
        Congestion::Named(name) => {
            socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                let why = format!(
                    "congestion control {name}: {error}; see net.ipv4.tcp_allowed_congestion_control"
                );
                io::Error::new(error.kind(), why)
            })?;
        }
        Congestion::Auto if loopback && PACING.contains(&current(socket).as_str()) => {
            // If the system permits neither, the choice stays as it is; the caller records the name.
            let _ = UNPACED.iter().any(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
        }
        Congestion::Auto | Congestion::System => {}
    }
    Ok(current(socket))
}

/// Checks that the system permits the wanted congestion control. The end that accepts a connection cannot refuse it for
/// that any more.
pub(super) fn check(wanted: &Congestion) -> io::Result<()> {
    if !matches!(wanted, Congestion::Named(_)) {
        return Ok(());
    }
    let open = |domain| Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
    // The congestion controls are those of both address families.
    let socket = open(Domain::IPV4).or_else(|_| open(Domain::IPV6))?;
    choose(&socket, wanted, false).map(drop)
}

/// Round trip from which a path counts as long. On such a path, a window that was halved needs hundreds of
/// milliseconds to grow back, and a call waits for that. bbr instead follows the rate that it measures. On
/// `kolo-netlab run --hosts 4 --rate 200M`, all_reduce of 4 MiB takes 0.6 to 0.9 s with cubic and 0.35 to 0.45 s with
/// bbr at a delay of 20 ms; with 10 ms and 0.1 % loss, 0.83 to 0.89 and 0.33 to 0.7 s. At 25 us, bbr makes calls of
/// 64 KiB slower.
const FAR: Duration = Duration::from_millis(5);

/// Gives a new connection a congestion control that suits its path better, if there is one; returns its name.
/// `is_far` says whether the path is long.
pub(super) fn adapt(socket: &Socket, wanted: &Congestion, is_far: bool) -> Option<String> {
    let is_free = *wanted == Congestion::Auto && !PACING.contains(&current(socket).as_str());
    (is_free && is_far && socket.set_tcp_congestion(PACING[0].as_bytes()).is_ok()).then(|| current(socket))
}

/// Returns how many connections share a long message on this one's path, unless the user has chosen. On a long path,
/// a lost packet costs a connection much of its rate for many round trips, unless its congestion control follows the
/// rate; of several connections, one is hit at a time. On `kolo-netlab run --hosts 2 --rate 200M --delay 20ms --loss
/// 0.1%` with cubic, all_gather of 4 MiB takes 0.54 to 1.75 s with one and 0.23 to 0.44 s with four. On a near path
/// four are slower: see docs/tried.md. A path of known rate (`rate`, in bytes per second, or 0) gets at least as many
/// connections as fill it.
pub(super) fn streams(socket: &Socket, wanted: Option<u8>, rate: f64, is_far: bool) -> usize {
    const STREAMS_WHERE_FAR: usize = 4;
    let suffers = || is_far && !PACING.contains(&current(socket).as_str());
    let needed = || window::streams(socket, rate).max(if suffers() { STREAMS_WHERE_FAR } else { 1 });
    wanted.map_or_else(needed, usize::from)
}

/// Bytes that a connection sends between two looks at its losses.
const LOOK_BYTES: usize = 256 << 10;

/// Number of looks with a loss, among the last 64, that shows that the network itself loses packets or has short
/// queues. A window that sometimes fills a long queue loses packets at one look in hundreds.
const LOSSES_MOST: u32 = 4;

/// Watches a connection for lost packets, where its congestion control takes each loss for a full queue. On
/// `kolo-netlab run --hosts 4 --rate 1G --delay 100us --loss 0.1%`, all_gather of 16 MiB takes 320 to 450 ms with
/// cubic and 140 to 160 ms with bbr.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Bytes sent since the last look.
    bytes: usize,
    /// Number of segments lost until then.
    lost: u32,
    /// A bit for each look: whether there were further losses.
    looks: u64,
}

impl Losses {
    /// Returns a watch on a connection to another host, if its congestion control may be replaced and takes losses
    /// for full queues.
    pub(super) fn of(socket: &Socket, wanted: &Congestion) -> Option<Self> {
        (*wanted == Congestion::Auto && !PACING.contains(&current(socket).as_str())).then(Self::default)
    }

    /// Notes how many segments a connection has lost since it began. Returns whether it loses too many.
    fn look(&mut self, lost: u32) -> bool {
        self.looks = self.looks << 1 | u64::from(lost > self.lost);
        (self.bytes, self.lost) = (0, lost);
        self.looks.count_ones() >= LOSSES_MOST
    }
}

/// Notes that a connection has sent `bytes` bytes. If it turns out to lose packets, gives it a congestion control
/// that follows the rate, and describes the new one and the reason.
pub(super) fn watch(losses: &mut Option<Losses>, socket: &Socket, bytes: usize) -> Option<String> {
    let known = losses.as_mut()?;
    known.bytes += bytes;
    if known.bytes < LOOK_BYTES {
        return None;
    }
    let Some(info) = TcpInfo::of(socket) else {
        *losses = None;
        return None;
    };
    // Segments that arrived twice were late, not lost.
    if !known.look(info.resent.saturating_sub(info.duplicates)) {
        return None;
    }
    *losses = None;
    Some(match socket.set_tcp_congestion(PACING[0].as_bytes()) {
        Ok(()) => format!("{}, since packets are lost", current(socket)),
        Err(error) => format!("{}, although packets are lost: no {}: {error}", current(socket), PACING[0]),
    })
}

/// Returns whether a path is known to be long.
pub(super) fn is_far(socket: &Socket) -> bool {
    least_round_trip(socket).is_some_and(|time| time >= FAR)
}

fn least_round_trip(socket: &Socket) -> Option<Duration> {
    TcpInfo::of(socket).and_then(|info| info.least_round_trip)
}

impl Peer {
    /// Returns whether the path to it is known to be long, after a look at one of its connections. A queue in the
    /// network makes round trips longer, so the shortest one on any of them counts: a connection that is made during an
    /// all-to-all may see only round trips through full queues.
    pub(super) fn is_far(&mut self, socket: &Socket) -> bool {
        self.is_far_by(least_round_trip(socket))
    }

    fn is_far_by(&mut self, round_trip: Option<Duration>) -> bool {
        self.least_round_trip = self.least_round_trip.into_iter().chain(round_trip).min();
        self.least_round_trip.is_some_and(|time| time >= FAR)
    }
}

fn current(socket: &Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{TcpEndpoint, TcpOptions};
    use super::*;

    #[test]
    fn a_congestion_control_that_the_system_refuses_makes_no_endpoint() {
        let open = |name: &str| {
            let congestion = Congestion::Named(name.to_owned());
            TcpEndpoint::new(0, 2, TcpOptions { congestion, ..TcpOptions::default() })
        };
        let error = open("nosuch").unwrap_err().to_string();
        assert!(error.contains("congestion control nosuch") && error.contains("allowed"), "{error}");
        // Any process may use reno.
        assert!(open("reno").is_ok());
    }

    #[test]
    fn losses_now_and_then_are_those_of_a_full_queue() {
        let mut losses = Losses::default();
        // A burst of losses at one look in 40, over a GiB.
        assert!((1..4096).all(|look| !losses.look(look / 40 * 50)));
    }

    #[test]
    fn a_connection_that_saw_only_full_queues_does_not_make_a_path_long() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let mut peer = Peer::default();
        assert!(!peer.is_far_by(None), "nothing is known");
        assert!(peer.is_far_by(ms(12)));
        assert!(!peer.is_far_by(ms(1)));
        assert!(
            !peer.is_far_by(ms(16)) && !peer.is_far_by(None),
            "another connection has seen the empty path"
        );
    }

    #[test]
    fn a_network_that_loses_packets_is_found_out() {
        let mut losses = Losses::default();
        let found = (1..).find(|look| losses.look(look / 6)).unwrap_or_default();
        assert_eq!(found, 24, "one in six looks: 0.1 % of the packets");
    }
}
