//! How much a connection may have on its way.
//!
//! The kernel lets a send buffer grow to `net.ipv4.tcp_wmem`, 4 MiB as a rule, and no window is larger than the buffer behind it. A way of
//! 1 Gbit/s and 44 ms holds 5 MB, so one connection fills three quarters of it. Where the rate and the round trip say that a way holds
//! more, its connections get as much as `net.core.wmem_max` permits, and where one holds much less, there are several. Elsewhere buffers are
//! left to the kernel, whose choice is best or nearly so.

use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::options::TcpOptions;
use super::socket::TcpInfo;

/// The system's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// To what a send buffer grows by itself.
    tuned: usize,
    /// The longest that can be asked for.
    asked: usize,
    /// The longest window that a receiver like this one offers.
    offered: usize,
}

/// A buffer of so many times what the way holds: the kernel's control of congestion sends more than that for a moment.
const BUFFERS: f64 = 2.0;

/// Another connection pays off where those that there are hold less than such a part of the way. On 2 hosts with 1 Gbit/s and 20 ms,
/// where one holds 0.8 of it, two take 0.81 of the time for an all-gather of 64 MiB, and 1.2 of it for an all-reduce.
const ENOUGH: f64 = 0.67;

/// Most connections for the sake of windows.
const STREAMS_MAX: usize = 8;

/// Bytes that a connection sends between two looks at its rate.
const LOOK_BYTES: usize = 1 << 20;

impl Limits {
    fn here() -> Self {
        static HERE: OnceLock<Limits> = OnceLock::new();
        *HERE.get_or_init(|| {
            let last = |path: &str| {
                let text = std::fs::read_to_string(path).ok()?;
                text.split_whitespace().last()?.parse::<usize>().ok()
            };
            let asked = || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
                socket.set_send_buffer_size(i32::MAX as usize / 2).ok()?;
                socket.send_buffer_size().ok()
            };
            // Where the system does not tell: its usual numbers.
            Self {
                tuned: last("/proc/sys/net/ipv4/tcp_wmem").unwrap_or(4 << 20),
                asked: asked().unwrap_or(0),
                // The rest of the receiver's memory is for what the kernel keeps about packets.
                offered: last("/proc/sys/net/ipv4/tcp_rmem").unwrap_or(6 << 20) / 2,
            }
        })
    }

    /// The send buffer to ask for on a way that holds so many bytes; none if what the kernel does is enough, or is the most.
    fn buffer(self, way_bytes: f64) -> Option<usize> {
        let wanted = (BUFFERS * way_bytes) as usize;
        let most = self.asked.min(wanted);
        (wanted > self.tuned && most > self.tuned).then_some(most)
    }

    /// How many connections fill a way that holds so many bytes.
    fn streams(self, way_bytes: f64) -> usize {
        let one = self.buffer(way_bytes).unwrap_or(self.tuned).min(self.offered).max(1);
        ((ENOUGH * way_bytes / one as f64).ceil() as usize).clamp(1, STREAMS_MAX)
    }
}

/// Bytes that a connection's way holds at such a rate.
fn held(bytes_per_second: f64, round_trip: Option<Duration>) -> f64 {
    round_trip.map_or(0.0, |time| bytes_per_second * time.as_secs_f64())
}

/// The send buffer of a connection to another host, which the user leaves to the transport.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes sent since the last look.
    bytes: usize,
    /// The buffer that was asked for.
    asked: usize,
}

impl Window {
    /// Of a connection to another host that has just been made, with room for the rate that is known (or 0), unless the user has said how
    /// long its buffer is.
    pub(super) fn of(socket: &Socket, options: &TcpOptions, bytes_per_second: f64) -> Option<Self> {
        let mut window = options.send_buffer_bytes.is_none().then(Self::default)?;
        window.expect(socket, bytes_per_second);
        Some(window)
    }

    /// Makes room for what the way holds at the rate that is known of it.
    pub(super) fn expect(&mut self, socket: &Socket, bytes_per_second: f64) {
        let round_trip = TcpInfo::of(socket).and_then(|info| info.least_round_trip);
        self.ask(socket, held(bytes_per_second, round_trip));
    }

    /// Notes that so many bytes were sent; makes room if the rate at which they arrive says so.
    pub(super) fn note(&mut self, socket: &Socket, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= LOOK_BYTES {
            self.bytes = 0;
            if let Some(info) = TcpInfo::of(socket) {
                self.ask(socket, held(info.delivered_per_second as f64, info.least_round_trip));
            }
        }
    }

    fn ask(&mut self, socket: &Socket, way_bytes: f64) {
        // A little more is not worth a system call.
        let Some(wanted) = Limits::here().buffer(way_bytes).filter(|wanted| *wanted / 8 > self.asked / 7)
        else {
            return;
        };
        // The kernel doubles what it is asked for. Where it refuses, it goes on as before.
        let _ = socket.set_send_buffer_size(wanted / 2);
        self.asked = wanted;
    }
}

/// How many connections the windows ask for on a way of such a rate.
pub(super) fn streams(socket: &Socket, bytes_per_second: f64) -> usize {
    let round_trip = TcpInfo::of(socket).and_then(|info| info.least_round_trip);
    Limits::here().streams(held(bytes_per_second, round_trip))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;

    fn limits(asked: usize) -> Limits {
        Limits { tuned: 4 << 20, asked, offered: 16 << 20 }
    }

    #[test]
    fn near_and_slow_ways_are_left_to_the_kernel() {
        for way_bytes in [0.0, 12e3, 1.0 * MIB, 2.0 * MIB] {
            let limits = limits(8 << 20);
            assert_eq!((limits.buffer(way_bytes), limits.streams(way_bytes)), (None, 1), "{way_bytes}");
        }
    }

    #[test]
    fn a_long_way_gets_a_buffer_as_far_as_it_may_and_then_connections() {
        let permitted = limits(8 << 20);
        assert_eq!((permitted.buffer(3.0 * MIB), permitted.streams(3.0 * MIB)), (Some(6 << 20), 1));
        assert_eq!((permitted.buffer(5.0 * MIB), permitted.streams(5.0 * MIB)), (Some(8 << 20), 1));
        assert_eq!((permitted.buffer(12.0 * MIB), permitted.streams(12.0 * MIB)), (Some(8 << 20), 2));
        // As most kernels come: what can be asked for is less than what they do by themselves.
        let usual = limits(416 << 10);
        assert_eq!((usual.buffer(5.0 * MIB), usual.streams(5.0 * MIB)), (None, 1));
        assert_eq!(usual.streams(7.0 * MIB), 2);
        assert_eq!(usual.streams(1e12), STREAMS_MAX);
        // A receiver that offers less is what counts.
        assert_eq!(Limits { offered: 3 << 20, ..permitted }.streams(7.0 * MIB), 2);
    }

    #[test]
    fn a_connection_has_the_buffer_that_its_way_asks_for() {
        let limits = Limits::here();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let before = socket.send_buffer_size().expect("its buffer");
        let mut window = Window::default();
        window.ask(&socket, limits.tuned as f64 / 4.0);
        assert_eq!(socket.send_buffer_size().expect("its buffer"), before, "the kernel tunes it");
        window.ask(&socket, limits.asked.max(limits.tuned) as f64);
        let after = socket.send_buffer_size().expect("its buffer");
        // Not smaller than what the kernel would have made of it, on any system.
        assert_eq!(after, if limits.asked > limits.tuned { limits.asked } else { before });
    }
}
