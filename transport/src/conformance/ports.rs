//! Ports for tests that must name a port before somebody listens at it.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The lowest port that is given.
const FIRST: u32 = 10_000;

/// The lowest port that Linux chooses, unless the system says otherwise.
const USUAL_END: u32 = 32_768;

/// Returns a TCP port of this host at which nobody listens. It lies below those that the system gives to whoever lets it
/// choose, so nobody gets it by chance until the caller uses it, and no later call in this process returns it.
///
/// # Panics
/// If all such ports are taken.
#[must_use]
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(USUAL_END);
    let count = end.clamp(FIRST + 1000, 60_000) - FIRST;
    // Other processes of the tests begin elsewhere.
    let start = std::process::id().wrapping_mul(61);
    (0..count)
        .filter_map(|_| {
            let number = start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed));
            u16::try_from(FIRST + number % count).ok()
        })
        .find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok())
        .expect("a port that nobody has")
}
