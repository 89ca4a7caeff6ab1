//! This host's own addresses, and the identity that distinguishes hosts.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use sha2::{Digest, Sha256};

/// Name of this host, for messages.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns a number that is equal for processes on one running kernel in the same network and PID namespaces.
/// Containers of one host may differ in these namespaces, and then cannot reach each other's abstract sockets or
/// process descriptors.
pub(crate) fn host_key() -> u64 {
    let mut hash = Sha256::new();
    for path in ["/proc/sys/kernel/random/boot_id", "/etc/machine-id"] {
        hash.update(fs::read(path).unwrap_or_default());
    }
    for namespace in ["/proc/self/ns/net", "/proc/self/ns/pid"] {
        if let Ok(name) = fs::read_link(namespace) {
            hash.update(name.as_os_str().as_encoded_bytes());
        }
    }
    hash.update(hostname());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |key, &byte| key << 8 | u64::from(byte))
}

/// Returns the start time of a process in clock ticks since boot. Together with the PID, it identifies a process
/// uniquely.
pub(crate) fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, including blanks and parentheses. The start time is the 20th field
    // after it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns the addresses at which others may reach this host, the most promising first and loopback last. Link-local
/// addresses are left out, since they mean nothing without an interface.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let mut found = kolo_transport::tcp::addresses_in_use().unwrap_or_else(|error| {
        tracing::warn!(%error, "this host's addresses are not known, so other ranks are told of loopback only");
        Vec::new()
    });
    if !found.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)) {
        found.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    found.retain(|address| match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified(),
    });
    found.sort_by_key(IpAddr::is_loopback);
    // Several tunnels may have one address.
    let mut seen = HashSet::new();
    found.retain(|address| seen.insert(*address));
    found
}

/// Returns the source address of packets to `far`. "Connecting" a datagram socket consults the routing table and sends
/// nothing.
pub(crate) fn address_towards(far: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match far {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_comes_last() {
        let own = own_addresses();
        assert!(own.contains(&Ipv4Addr::LOCALHOST.into()) && own.is_sorted_by_key(IpAddr::is_loopback));
    }

    #[test]
    fn a_process_has_a_start_time() {
        assert!(process_start(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(process_start(u32::MAX), None);
        assert_eq!(host_key(), host_key());
    }
}
