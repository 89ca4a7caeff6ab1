//! Which congestion control a connection uses, and why.

use std::io;
use std::time::Duration;

use socket2::Socket;

use super::options::Congestion;
use super::socket::TcpInfo;
use super::window;

/// Pacing spaces packets out in time, for the good of queues in a network; on the loopback device there
/// is none, and the timers halve the throughput (loopback, 256 KiB calls: 3.5 GB/s with bbr, 7 with these).
const PACING: [&str; 3] = ["bbr", "bbr2", "bbr3"];

/// Alternatives: both keep loopback full; an ordinary process is always allowed reno.
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
            // If the system allows neither, it stays as it is; the caller records the name.
            let _ = UNPACED.iter().any(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
        }
        Congestion::Auto | Congestion::System => {}
    }
    Ok(current(socket))
}

/// From this round trip on a path is long: a window that was halved needs hundreds of milliseconds to grow back, and a call waits
/// for that. bbr goes by the rate it measures instead. On `kolo-netlab run --hosts 4 --rate 200M`, all_reduce of 4 MiB takes 0.6 to
/// 0.9 s with cubic and 0.35 to 0.45 s with bbr at a delay of 20 ms; with 10 ms and 0.1 % loss 0.83 to 0.89 and 0.33 to 0.7 s.
/// At 25 us bbr makes calls of 64 KiB slower.
const FAR: Duration = Duration::from_millis(5);

/// Looks at a connection that has just been made; returns the name of the congestion control that suits it better, and now counts.
pub(super) fn adapt(socket: &Socket, wanted: &Congestion) -> Option<String> {
    let is_free = *wanted == Congestion::Auto && !PACING.contains(&current(socket).as_str());
    (is_free && is_far(socket) && socket.set_tcp_congestion(PACING[0].as_bytes()).is_ok())
        .then(|| current(socket))
}

/// How many connections share a long message on the way of this one, if the user does not say. On a long way a lost packet costs
/// a connection much of its rate for many round trips, unless its congestion control goes by the rate; of several connections, one is hit
/// at a time. On `kolo-netlab run --hosts 2 --rate 200M --delay 20ms --loss 0.1%` with cubic, all_gather of 4 MiB takes 0.54 to 1.75 s
/// with one and 0.23 to 0.44 s with four. On a near way four are slower: see docs/tried.md. There are also as many as it takes
/// to fill a way of which the rate is known (bytes per second, or 0).
pub(super) fn streams(socket: &Socket, wanted: Option<u8>, rate: f64) -> usize {
    const STREAMS_WHERE_FAR: usize = 4;
    let is_far = || is_far(socket) && !PACING.contains(&current(socket).as_str());
    let needed = || window::streams(socket, rate).max(if is_far() { STREAMS_WHERE_FAR } else { 1 });
    wanted.map_or_else(needed, usize::from)
}

/// Bytes that a connection sends between two looks at what was lost.
const LOOK_BYTES: usize = 256 << 10;

/// So many of the last 64 looks found a loss: the network loses packets by itself, or its queues are short. A window that fills a long
/// queue now and then loses some at one look in hundreds.
const LOSSES_MOST: u32 = 4;

/// Watches a connection for lost packets, whose congestion control takes each for a full queue. On `kolo-netlab run --hosts 4 --rate 1G
/// --delay 100us --loss 0.1%`, all_gather of 16 MiB takes 320 to 450 ms with cubic and 140 to 160 ms with bbr.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Bytes sent since the last look.
    bytes: usize,
    /// Segments lost until then.
    lost: u32,
    /// A bit for each look: whether there were further ones.
    looks: u64,
}

impl Losses {
    /// Of a connection to another host, if its congestion control may be replaced and takes losses for full queues.
    pub(super) fn of(socket: &Socket, wanted: &Congestion) -> Option<Self> {
        (*wanted == Congestion::Auto && !PACING.contains(&current(socket).as_str())).then(Self::default)
    }

    /// Notes how many segments a connection has lost since it began. Whether it loses too many.
    fn look(&mut self, lost: u32) -> bool {
        self.looks = self.looks << 1 | u64::from(lost > self.lost);
        (self.bytes, self.lost) = (0, lost);
        self.looks.count_ones() >= LOSSES_MOST
    }
}

/// Notes that a connection has sent so many bytes. If it turns out to lose packets, gives it a congestion control that goes by the rate;
/// returns in words which it has now, and why.
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
    // Segments that arrived twice were not lost, but late.
    if !known.look(info.resent.saturating_sub(info.duplicates)) {
        return None;
    }
    *losses = None;
    Some(match socket.set_tcp_congestion(PACING[0].as_bytes()) {
        Ok(()) => format!("{}, since packets are lost", current(socket)),
        Err(error) => format!("{}, although packets are lost: no {}: {error}", current(socket), PACING[0]),
    })
}

fn is_far(socket: &Socket) -> bool {
    TcpInfo::of(socket).and_then(|info| info.least_round_trip).is_some_and(|time| time >= FAR)
}

fn current(socket: &Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_now_and_then_are_those_of_a_full_queue() {
        let mut losses = Losses::default();
        // A burst of them at one look in 40, for a GiB.
        assert!((1..4096).all(|look| !losses.look(look / 40 * 50)));
    }

    #[test]
    fn a_network_that_loses_packets_is_found_out() {
        let mut losses = Losses::default();
        let found = (1..).find(|look| losses.look(look / 6)).unwrap_or_default();
        assert_eq!(found, 24, "one in six looks: 0.1 % of the packets");
    }
}
