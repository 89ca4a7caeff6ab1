//! The longest time between two retransmissions of lost bytes.
//!
//! The kernel doubles this time with each retransmission, up to two minutes. After an outage, a connection therefore stays
//! silent for up to as long again. Since Linux 6.15, a program may limit the time (`TCP_RTO_MAX_MS`). But the kernel also
//! gives a connection up after a time that depends on this limit and on `net.ipv4.tcp_retries2`: with a limit of 1 s, after
//! 15 s of silence. Therefore the limit is the shortest one with which connections survive an outage of
//! [`dead_after`](super::options::TcpOptions).

use std::time::Duration;

use socket2::Socket;

use super::options::TcpOptions;
use super::socket::write_word;

/// Longest time before bytes are sent again (Linux 6.15), in milliseconds.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Least limit in seconds, which exceeds the round trips of all but broken paths. The kernel permits 1 s.
const LEAST_SECONDS: u64 = 2;

/// The kernel's own limit in seconds.
const MOST_SECONDS: u64 = 120;

/// Time before the first retransmission, from which the kernel computes when it gives up (`TCP_RTO_MIN`).
const FIRST: Duration = Duration::from_millis(200);

/// The limit for connections to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resends {
    longest: Duration,
}

impl Resends {
    /// Returns the limit for an endpoint with these options on this system.
    pub(super) fn of(options: &TcpOptions) -> Self {
        const USUAL: u32 = 15;
        let retries = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_retries2").ok();
        let retries = retries.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL);
        // Others must notice the end of an outage before the kernel gives up.
        Self::surviving(options.dead_after.saturating_mul(6) / 5, retries)
    }

    /// Returns the shortest limit with which the kernel keeps a connection during an outage.
    fn surviving(outage: Duration, retries: u32) -> Self {
        let survives = |longest: &Duration| gives_up_after(*longest, retries) >= outage;
        let most = Duration::from_secs(MOST_SECONDS);
        let longest = (LEAST_SECONDS..MOST_SECONDS).map(Duration::from_secs).find(survives).unwrap_or(most);
        Self { longest }
    }

    /// Limits a connection. Kernels before Linux 6.15 refuse, and the connection stays as it is.
    pub(super) fn limit(self, socket: &Socket) {
        let _ = write_word(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, self.longest.as_millis() as u32);
    }
}

/// Returns the time of silence after which the kernel gives a connection up (`tcp_model_timeout`): the time doubles until it
/// reaches the limit.
fn gives_up_after(longest: Duration, retries: u32) -> Duration {
    let doublings = (longest.as_millis() / FIRST.as_millis()).ilog2();
    let (doubled, whole) = (retries.min(doublings), retries.saturating_sub(doublings));
    FIRST * ((2 << doubled) - 1) + longest * whole
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::super::link::State;
    use super::super::socket::read_word;
    use super::super::tests::{deliver, world};
    use super::*;

    #[test]
    fn a_connection_to_another_host_has_the_limit() {
        let limit = |socket: &Socket| read_word(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS);
        if limit(&Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket")).is_none() {
            println!("skipped: this kernel has no TCP_RTO_MAX_MS");
            return;
        }
        let mut ends = world(2);
        // As if the peers were elsewhere.
        ends.iter_mut().for_each(|end| end.host.namespace += 1);
        deliver(&mut ends, 0, 1, 0, 10);
        for end in &ends {
            let State::Open(socket) = &end.links[0].state else { panic!("it is open") };
            assert_eq!(limit(socket), Some(end.resends.longest.as_millis() as u32));
        }
    }

    /// The kernel's times were measured on Linux 6.18, between two network namespaces.
    #[test]
    fn the_kernel_gives_up_when_it_is_said_to() {
        for (longest, kernel) in [(1, 14.9), (2, 27.5), (6, 74.4), (120, 924.6)] {
            let time = gives_up_after(Duration::from_secs(longest), 15).as_secs_f64();
            assert!((0.95..1.01).contains(&(time / kernel)), "{longest} s: {time}, not {kernel}");
        }
    }

    #[test]
    fn a_connection_survives_the_outage_that_its_peer_survives() {
        for (dead_after, retries, wanted) in [
            (1, 15, 2),
            (20, 15, 2),
            (60, 15, 6),
            (60, 8, 24),
            (60, 5, 120),
            (1 << 40, 15, 120),
            (60, 255, 2),
        ] {
            let outage = Duration::from_secs(dead_after) * 6 / 5;
            let found = Resends::surviving(outage, retries).longest;
            assert_eq!(found, Duration::from_secs(wanted), "{dead_after} s, {retries} retries");
        }
        let options = TcpOptions { dead_after: Duration::MAX, ..TcpOptions::default() };
        assert_eq!(Resends::of(&options).longest, Duration::from_secs(MOST_SECONDS));
    }
}
