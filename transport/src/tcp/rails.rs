//! Rails: the paths to a peer that can be used at the same time.
//!
//! A *rail* is one of this rank's interfaces together with the address of the peer that it leads to. Rails share
//! neither an interface of this rank nor one of the peer's, so each has its own cable at both ends. The first
//! connection of a channel takes whichever address works. Long messages are divided over connections on the other
//! rails too: see `stripes`.

use std::net::{IpAddr, SocketAddr};

use super::address::{Address, Host, Network};
use super::interfaces::{Interface, same_network};
use super::options::Family;
use super::route::is_inward;

/// Beginnings of the names of interfaces without a cable of their own: their packets leave by another interface. They
/// are rails only if the user names them.
const TUNNELS: [&str; 8] = ["tun", "wg", "tailscale", "zt", "ppp", "ipsec", "gre", "vxlan"];

/// Returns whether an interface is a tunnel, by its name.
pub(super) fn is_tunnel(name: &str) -> bool {
    TUNNELS.iter().any(|tunnel| name.starts_with(tunnel))
}

/// Maximum number of rails of a pair.
const RAILS_MAX: usize = 8;

/// A path to a peer by one interface of each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rail {
    /// This rank's interface. `source` is its address there.
    pub(super) interface: String,
    pub(super) source: IpAddr,
    pub(super) to: SocketAddr,
    /// The peer's interface.
    pub(super) at: String,
}

/// Returns the rails to `peer`, in the order of this rank's interfaces; fewer than two if there is only one path.
/// `named` tells whether the user has chosen the interfaces.
pub(super) fn rails(
    peer: &Address,
    here: &Host,
    mine: &[Interface],
    family: Family,
    named: bool,
) -> Vec<Rail> {
    if here.same_stack(&peer.host) {
        return Vec::new();
    }
    let is_foreign = |network: &&Network| !mine.iter().any(|own| own.ip == network.ip);
    let theirs: Vec<&Network> = peer.networks.iter().filter(is_foreign).collect();
    let is_cable = |name: &str| (named || !is_tunnel(name)) && !is_inward(name);
    let mut found: Vec<Rail> = Vec::new();
    for own in mine.iter().filter(|own| !own.loopback && is_cable(&own.name)) {
        let is_new = |network: &&&Network| {
            found
                .iter()
                .all(|rail| !are_one(&rail.interface, &own.name) && !are_one(&rail.at, &network.interface))
        };
        let leads_there = |network: &&&Network| {
            let fits = match family {
                Family::Both => true,
                Family::V4 => network.ip.is_ipv4(),
                Family::V6 => network.ip.is_ipv6(),
            };
            fits && is_cable(&network.interface)
                && !is_local(network.ip)
                && same_network(own.ip, network.ip, own.prefix)
        };
        if let Some(network) = theirs.iter().filter(leads_there).find(is_new) {
            found.push(Rail {
                interface: own.name.clone(),
                source: own.ip,
                to: SocketAddr::new(network.ip, peer.port),
                at: network.interface.clone(),
            });
        }
        if found.len() == RAILS_MAX {
            break;
        }
    }
    found
}

/// Returns whether two interfaces share a cable: they are the same, or one is a VLAN of the other, or both are VLANs
/// of a third.
fn are_one(a: &str, b: &str) -> bool {
    let cable = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    cable(a) == cable(b)
}

/// Returns whether an address is valid on one link only.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(interface: &str, ip: &str) -> Network {
        Network { interface: interface.into(), ip: ip.parse().unwrap(), prefix: 24 }
    }

    fn interface(name: &str, ip: &str) -> Interface {
        let ip: IpAddr = ip.parse().unwrap();
        let prefix = if ip.is_ipv4() { 24 } else { 64 };
        Interface { name: name.into(), index: 1, ip, prefix, loopback: ip.is_loopback() }
    }

    /// Returns the rails as `interface>address`.
    fn found(mine: &[Interface], theirs: Vec<Network>, named: bool) -> Vec<String> {
        let peer =
            Address { port: 7, instance: 0, host: Host { boot: [1; 16], namespace: 1 }, networks: theirs };
        let here = Host { boot: [2; 16], namespace: 1 };
        let rails = rails(&peer, &here, mine, Family::Both, named);
        assert_eq!(super::rails(&peer, &peer.host, mine, Family::Both, named), [], "one host");
        rails.iter().map(|rail| format!("{}>{}", rail.interface, rail.to.ip())).collect()
    }

    #[test]
    fn each_cable_is_one_rail() {
        let mine = [
            interface("lo", "127.0.0.1"),
            interface("eth0", "192.0.2.1"),
            interface("eth0", "2001:db8::1"),
            interface("eth1", "198.51.100.1"),
            interface("eth1.5", "203.0.113.1"),
            interface("docker0", "172.17.0.1"),
            interface("wg0", "10.9.0.1"),
        ];
        let theirs = || {
            vec![
                network("lo", "127.0.0.1"),
                network("ens1", "198.51.100.2"),
                network("ens0", "2001:db8::2"),
                network("ens0", "192.0.2.2"),
                network("ens1.5", "203.0.113.2"),
                network("docker0", "172.17.0.2"),
                network("wg0", "10.9.0.2"),
            ]
        };
        assert_eq!(found(&mine, theirs(), false), ["eth0>192.0.2.2", "eth1>198.51.100.2"]);
        let named = found(&mine, theirs(), true);
        assert_eq!(named, ["eth0>192.0.2.2", "eth1>198.51.100.2", "wg0>10.9.0.2"]);
    }

    #[test]
    fn cards_without_a_common_network_are_no_rails() {
        let mine = [interface("eth0", "192.0.2.1"), interface("eth1", "198.51.100.1")];
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "203.0.113.2")];
        assert_eq!(found(&mine, theirs, false), ["eth0>192.0.2.2"]);
        // An address that both hosts have leads nowhere.
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "198.51.100.1")];
        assert_eq!(found(&mine, theirs, false), ["eth0>192.0.2.2"]);
    }

    #[test]
    fn two_cards_in_one_network_pair_up() {
        let mine = [interface("eth0", "192.0.2.1"), interface("eth1", "192.0.2.11")];
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "192.0.2.12")];
        assert_eq!(found(&mine, theirs, false), ["eth0>192.0.2.2", "eth1>192.0.2.12"]);
    }
}
