//! Choice and order of a peer's addresses.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::address::{Address, Network, Stack};
use super::interfaces::{Interface, is_named, same_network};
use super::options::Family;
use super::rails::is_tunnel;

/// An address to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) to: SocketAddr,
    /// The peer's interface, for people.
    pub(super) interface: String,
    pub(super) distance: u8,
    /// This rank's interface and address from which to dial, if that matters.
    pub(super) from: Option<(String, IpAddr)>,
}

/// The addresses of this host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    /// The interfaces that it uses.
    pub(super) interfaces: &'a [Interface],
    /// The addresses of all its interfaces.
    pub(super) own: &'a [IpAddr],
    /// Whether the system has listed them. If not, any network may be among its own.
    pub(super) is_listed: bool,
}

/// Maximum number of addresses tried for one peer.
const CANDIDATES_MAX: usize = 32;

/// Beginnings of the names of interfaces whose networks usually end at the host (bridges of containers and virtual
/// machines). Every host may have the same addresses there, so they come last but one.
const INWARD: [&str; 6] = ["docker", "virbr", "br-", "cni", "flannel", "lxc"];

/// Returns whether an interface's network ends at its host, by its name.
pub(super) fn is_inward(name: &str) -> bool {
    INWARD.iter().any(|inward| name.starts_with(inward))
}

// Distances; the least is tried first. IPv6 adds 1 to each. A route between private addresses stays within a site, and is
// faster than a tunnel. One between public addresses may lead through the Internet, where a tunnel protects the data.
const SAME_STACK: u8 = 0;
const SAME_NETWORK: u8 = 2;
const ROUTED_PRIVATE: u8 = 4;
const TUNNEL: u8 = 6;
const ROUTED: u8 = 8;
const INWARD_NETWORK: u8 = 10;
const LINK_LOCAL: u8 = 12;

/// Returns the addresses of `peer`, the most promising first. Empty if there is no path.
pub(super) fn candidates(
    peer: &Address,
    stack: Stack,
    here: Here<'_>,
    family: Family,
    list: Option<&[String]>,
) -> Vec<Candidate> {
    let is_wanted = |network: &&Network| match family {
        Family::Both => true,
        Family::V4 => network.ip.is_ipv4(),
        Family::V6 => network.ip.is_ipv6(),
    };
    let all = peer.networks.iter().filter(is_wanted);
    if stack == Stack::Same {
        return in_order(all, peer.port, true, here, list);
    }
    // An address of another host that this host has too leads back to this host.
    let (back, away): (Vec<_>, Vec<_>) =
        all.partition(|network| network.ip.is_loopback() || here.own.contains(&network.ip));
    let found = in_order(away, peer.port, false, here, list);
    match found.is_empty() && stack == Stack::Unknown {
        // The two may be on one host after all. If not, another process or none answers, since the hello names its endpoint.
        true => in_order(back, peer.port, true, here, list),
        false => found,
    }
}

/// Returns the addresses to which the networks of a peer lead, in the order of their distances.
pub(super) fn in_order<'a>(
    networks: impl IntoIterator<Item = &'a Network>,
    port: u16,
    same_stack: bool,
    here: Here<'_>,
    list: Option<&[String]>,
) -> Vec<Candidate> {
    let mine = here.interfaces;
    let is_slow = |name: &str| is_tunnel(name) && !is_named(name, list);
    let mut found = Vec::new();
    for network in networks {
        let mut add = |to: SocketAddr, distance: u8| {
            let distance = distance + u8::from(to.is_ipv6());
            found.push(Candidate { to, interface: network.interface.clone(), distance, from: None });
        };
        let to = SocketAddr::new(network.ip, port);
        if network.ip.is_loopback() {
            add(to, SAME_STACK);
        } else if let IpAddr::V6(ip) = network.ip
            && ip.is_unicast_link_local()
        {
            // Such an address is valid on one link only, and it is unknown which of this host's links that is.
            for link in mine.iter().filter(|i| !i.loopback && is_link_local(i.ip)) {
                add(SocketAddrV6::new(ip, port, 0, link.index).into(), LINK_LOCAL);
            }
        } else if is_inward(&network.interface) {
            add(to, INWARD_NETWORK);
        } else if same_stack {
            add(to, SAME_NETWORK);
        } else if let Some(own) = mine.iter().find(|i| same_network(i.ip, network.ip, i.prefix)) {
            let is_slow = is_slow(&own.name) || is_slow(&network.interface);
            add(to, if is_slow { TUNNEL } else { SAME_NETWORK });
        } else if !here.is_listed
            || mine.iter().any(|i| i.ip.is_ipv4() == network.ip.is_ipv4() && !i.loopback)
        {
            let is_near = is_private(network.ip) && !is_slow(&network.interface);
            add(to, if is_near { ROUTED_PRIVATE } else { ROUTED });
        }
    }
    found.sort_by_key(|candidate| candidate.distance);
    found.truncate(CANDIDATES_MAX);
    found
}

/// Whether an address is of a range that each site uses for itself.
const fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

/// Whether an address is an IPv6 one that is valid on one link only.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::super::address::Host;
    use super::*;

    fn network(interface: &str, ip: &str, prefix: u8) -> Network {
        Network { interface: interface.into(), ip: ip.parse().unwrap(), prefix }
    }

    fn interface(name: &str, index: u32, ip: &str, prefix: u8) -> Interface {
        let ip: IpAddr = ip.parse().unwrap();
        let cables = vec![name.into()];
        Interface { name: name.into(), index, ip, prefix, loopback: ip.is_loopback(), cables }
    }

    fn order(peer: &Address, here: &Host, mine: &[Interface], family: Family) -> Vec<String> {
        let own: Vec<IpAddr> = mine.iter().map(|interface| interface.ip).collect();
        order_with(peer, (here, mine, &own), family)
    }

    fn order_with(
        peer: &Address,
        (host, interfaces, own): (&Host, &[Interface], &[IpAddr]),
        family: Family,
    ) -> Vec<String> {
        let here = Here { interfaces, own, is_listed: true };
        let found = candidates(peer, host.stack(&peer.host), here, family, None);
        found.iter().map(|c| c.to.to_string()).collect()
    }

    #[test]
    fn a_tunnel_carries_data_if_it_is_named_or_nothing_better_is_there() {
        let host = |boot| Host { boot: [boot; 16], namespace: 1 };
        let mine = |eth: &str| [interface("eth0", 2, eth, 24), interface("wg0", 3, "10.9.0.1", 24)];
        let order = |eth: [&str; 2], list: Option<&[String]>| -> Vec<String> {
            let networks = vec![network("wg0", "10.9.0.2", 24), network("eth0", eth[1], 24)];
            let peer = Address { port: 7, instance: 0, host: host(1), networks };
            let mine = mine(eth[0]);
            let here = Here { interfaces: &mine, own: &[], is_listed: true };
            let found = candidates(&peer, Stack::Other, here, Family::Both, list);
            found.into_iter().map(|candidate| candidate.interface).collect()
        };
        let (routed, direct) = (["10.1.0.1", "10.2.0.2"], ["10.1.0.1", "10.1.0.2"]);
        let public = ["192.0.2.1", "198.51.100.2"];
        let named = ["eth".to_owned(), "wg".to_owned()];
        for (eth, list, wanted) in [
            (direct, None, ["eth0", "wg0"]),
            (routed, None, ["eth0", "wg0"]),
            (routed, Some(&["^docker".to_owned()][..]), ["eth0", "wg0"]),
            (routed, Some(&named), ["wg0", "eth0"]),
            (public, None, ["wg0", "eth0"]),
        ] {
            assert_eq!(order(eth, list), wanted, "{eth:?}, {list:?}");
        }
    }

    #[test]
    fn near_addresses_come_first() {
        let boot = [1; 16];
        let peer = Address {
            port: 7,
            instance: 0,
            host: Host { boot, namespace: 1 },
            networks: vec![
                network("docker0", "172.17.0.1", 16),
                network("eth0", "fe80::2", 64),
                network("eth1", "198.51.100.2", 24),
                network("eth0", "2001:db8::2", 64),
                network("eth0", "192.0.2.2", 24),
                network("lo", "::1", 128),
                network("lo", "127.0.0.1", 8),
            ],
        };
        let mine = [
            interface("lo", 1, "127.0.0.1", 8),
            interface("eth0", 2, "192.0.2.1", 24),
            interface("eth0", 2, "2001:db8::1", 64),
            interface("eth0", 2, "fe80::1", 64),
        ];
        let elsewhere = Host { boot: [2; 16], namespace: 1 };
        let far = order(&peer, &elsewhere, &mine, Family::Both);
        let want = ["192.0.2.2:7", "[2001:db8::2]:7", "198.51.100.2:7", "172.17.0.1:7", "[fe80::2%2]:7"];
        assert_eq!(far, want);
        assert_eq!(order(&peer, &peer.host, &mine, Family::Both)[..2], ["127.0.0.1:7", "[::1]:7"]);
        assert_eq!(order(&peer, &elsewhere, &mine, Family::V6), ["[2001:db8::2]:7", "[fe80::2%2]:7"]);
        // A bridge of the other host that this host has too.
        let docker = interface("docker0", 3, "172.17.0.1", 16);
        let with = [&mine[..], &[docker]].concat();
        assert!(!order(&peer, &elsewhere, &with, Family::Both).contains(&"172.17.0.1:7".into()));
        // The same, where no container runs, so that the bridge is down.
        let own = ["192.0.2.1", "172.17.0.1"].map(|ip| ip.parse().unwrap());
        let found = order_with(&peer, (&elsewhere, &mine, &own), Family::Both);
        assert!(!found.contains(&"172.17.0.1:7".into()), "{found:?}");
    }
}
