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

/// Returns the addresses at which others may reach this host, the most promising first and loopback last.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let found = kolo_transport::tcp::addresses_in_use().unwrap_or_else(|error| {
        tracing::warn!(%error, "this host's addresses are not known, so other ranks are told of loopback only");
        Vec::new()
    });
    reachable(found)
}

/// Returns the addresses among those of a host's interfaces at which others may reach it, in that order. IPv4 link-local
/// ones come late: they may be the only ones on a cable between two hosts, and every host may have the same. IPv6
/// link-local ones are left out, since they mean nothing without an interface.
fn reachable(mut found: Vec<IpAddr>) -> Vec<IpAddr> {
    if !found.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)) {
        found.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    found.retain(|address| match address {
        IpAddr::V4(v4) => !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_unspecified(),
    });
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V4(v4) if v4.is_link_local());
    found.sort_by_key(|ip| (ip.is_loopback(), is_link_local(ip)));
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
    fn a_cable_with_link_local_addresses_alone_is_a_way() {
        let of = |all: &[&str]| reachable(all.iter().map(|ip| ip.parse().unwrap()).collect());
        let told = |all: &[&str]| of(all).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told(&["127.0.0.1", "169.254.1.2", "fe80::1"]), ["169.254.1.2", "127.0.0.1"]);
        let all = ["169.254.20.10", "192.0.2.1", "2001:db8::1", "127.0.0.1", "192.0.2.1"];
        assert_eq!(told(&all), ["192.0.2.1", "2001:db8::1", "169.254.20.10", "127.0.0.1"]);
    }

    #[test]
    fn a_process_has_a_start_time() {
        assert!(process_start(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(process_start(u32::MAX), None);
        assert_eq!(host_key(), host_key());
    }
}
