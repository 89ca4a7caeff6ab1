//! Which congestion control a connection uses, and why.

use std::io;
use std::time::Duration;

use socket2::Socket;

use super::options::Congestion;
use super::socket::TcpInfo;

/// Pacing spaces packets out in time, for the good of queues in a network; on the loopback device there
/// is none, and the timers halve the throughput (loopback, 256 KiB calls: 3.5 GB/s with bbr, 7 with these).
const PACING: [&str; 3] = ["bbr", "bbr2", "bbr3"];

/// What to take instead: both keep loopback full; an ordinary process is always allowed reno.
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
/// with one and 0.23 to 0.44 s with four. On a near way four are slower: see docs/tried.md.
pub(super) fn streams(socket: &Socket, wanted: Option<u8>) -> usize {
    const STREAMS_WHERE_FAR: usize = 4;
    let is_far = || is_far(socket) && !PACING.contains(&current(socket).as_str());
    wanted.map_or_else(|| if is_far() { STREAMS_WHERE_FAR } else { 1 }, usize::from)
}

fn is_far(socket: &Socket) -> bool {
    TcpInfo::of(socket).and_then(|info| info.least_round_trip).is_some_and(|time| time >= FAR)
}

fn current(socket: &Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}
