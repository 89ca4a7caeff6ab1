//! Send buffers, which bound how much a connection may have in flight.
//!
//! The kernel lets a send buffer grow to `net.ipv4.tcp_wmem`, 4 MiB as a rule, and no window is larger than the
//! buffer behind it. A path of 1 Gbit/s and 44 ms holds 5 MB, so one connection fills three quarters of it. Where
//! rate and round trip show that a path holds more, its connections get buffers of up to `net.core.wmem_max`; where
//! one connection holds much less than the path, there are several. Elsewhere buffers are left to the kernel, whose
//! choice is best or nearly so.

use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::options::TcpOptions;
use super::socket::TcpInfo;

/// The system's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Size to which a send buffer grows by itself.
    tuned: usize,
    /// Largest size that a process can ask for.
    asked: usize,
    /// Largest window that a receiver like this one offers.
    offered: usize,
}

/// Ratio of a buffer to the bytes that the path holds. The kernel's congestion control sends more than the path holds
/// for a moment.
const BUFFERS: f64 = 2.0;

/// Fraction of the path's capacity that existing connections must hold; below it, another connection pays off. On 2
/// hosts with 1 Gbit/s and 20 ms, where one connection holds 0.8 of the path, two take 0.81 of the time for an
/// all-gather of 64 MiB, and 1.2 of it for an all-reduce.
const ENOUGH: f64 = 0.67;

/// Maximum number of connections for the sake of windows.
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
            // The kernel's usual values replace those that cannot be read.
            Self {
                tuned: last("/proc/sys/net/ipv4/tcp_wmem").unwrap_or(4 << 20),
                asked: asked().unwrap_or(0),
                // The rest of the receiver's memory holds the kernel's data about packets.
                offered: last("/proc/sys/net/ipv4/tcp_rmem").unwrap_or(6 << 20) / 2,
            }
        })
    }

    /// Returns the send buffer to ask for on a path that holds this many bytes; `None` if the kernel's own choice
    /// suffices or is the maximum.
    fn buffer(self, way_bytes: f64) -> Option<usize> {
        let wanted = (BUFFERS * way_bytes) as usize;
        let most = self.asked.min(wanted);
        (wanted > self.tuned && most > self.tuned).then_some(most)
    }

    /// Returns how many connections fill a path that holds this many bytes.
    fn streams(self, way_bytes: f64) -> usize {
        let one = self.buffer(way_bytes).unwrap_or(self.tuned).min(self.offered).max(1);
        ((ENOUGH * way_bytes / one as f64).ceil() as usize).clamp(1, STREAMS_MAX)
    }
}

/// Returns how many bytes a connection's path holds at this rate.
fn held(bytes_per_second: f64, round_trip: Option<Duration>) -> f64 {
    round_trip.map_or(0.0, |time| bytes_per_second * time.as_secs_f64())
}

/// Manages the send buffer of a connection to another host, if the user has not set its size.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes sent since the last look.
    bytes: usize,
    /// Size of the buffer that was asked for.
    asked: usize,
}

impl Window {
    /// Returns the window of a new connection to another host, with a buffer for the known rate of its path (or 0).
    /// `None` if the user has set the size of send buffers.
    pub(super) fn of(socket: &Socket, options: &TcpOptions, bytes_per_second: f64) -> Option<Self> {
        let mut window = options.send_buffer_bytes.is_none().then(Self::default)?;
        window.expect(socket, bytes_per_second);
        Some(window)
    }

    /// Enlarges the buffer for the bytes that the path holds at its known rate.
    pub(super) fn expect(&mut self, socket: &Socket, bytes_per_second: f64) {
        let round_trip = TcpInfo::of(socket).and_then(|info| info.least_round_trip);
        self.ask(socket, held(bytes_per_second, round_trip));
    }

    /// Notes that `bytes` bytes were sent. Enlarges the buffer if the rate at which they arrive requires it.
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
        // A slightly larger buffer is not worth a system call.
        let Some(wanted) = Limits::here().buffer(way_bytes).filter(|wanted| *wanted / 8 > self.asked / 7)
        else {
            return;
        };
        // The kernel doubles the requested size. If it refuses, the connection goes on as before.
        let _ = socket.set_send_buffer_size(wanted / 2);
        self.asked = wanted;
    }
}

/// Returns how many connections a path of this rate needs for the sake of their windows.
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
        // On most kernels, the largest size that can be asked for is less than the one to which a buffer grows by
        // itself.
        let usual = limits(416 << 10);
        assert_eq!((usual.buffer(5.0 * MIB), usual.streams(5.0 * MIB)), (None, 1));
        assert_eq!(usual.streams(7.0 * MIB), 2);
        assert_eq!(usual.streams(1e12), STREAMS_MAX);
        // A receiver that offers less is the limit.
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
        // The buffer must not be smaller than the kernel's own choice, on any system.
        assert_eq!(after, if limits.asked > limits.tuned { limits.asked } else { before });
    }
}
