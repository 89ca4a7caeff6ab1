//! Rails: the paths to a peer that can be used at the same time.
//!
//! A *rail* is one of this rank's interfaces together with the address of the peer that it leads to. Rails share
//! neither an interface of this rank nor one of the peer's, so each has its own cable at both ends. The first
//! connection of a channel takes whichever address works. Long messages are divided over connections on the other
//! rails too: see `stripes`.

use std::net::{IpAddr, SocketAddr};

use super::address::{Address, Host, Network};
use super::interfaces::{Interface, are_vlans_of_one, is_named, same_network, share_cable};
use super::options::Family;
use super::route::is_inward;

/// Beginnings of the names of interfaces without a cable of their own: their packets leave by another interface, as a rule
/// slowly. They are rails, and preferred to a route, only if the user names them.
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
/// `list` is the user's, which may name tunnels.
pub(super) fn rails(
    peer: &Address,
    here: &Host,
    mine: &[Interface],
    family: Family,
    list: Option<&[String]>,
) -> Vec<Rail> {
    if here.same_stack(&peer.host) {
        return Vec::new();
    }
    let is_foreign = |network: &&Network| !mine.iter().any(|own| own.ip == network.ip);
    let theirs: Vec<&Network> = peer.networks.iter().filter(is_foreign).collect();
    let is_cable = |name: &str| (!is_tunnel(name) || is_named(name, list)) && !is_inward(name);
    let mut found: Vec<Rail> = Vec::new();
    let mut taken: Vec<&Interface> = Vec::new();
    for own in mine.iter().filter(|own| !own.loopback && is_cable(&own.name)) {
        if taken.iter().any(|other| share_cable(other, own)) {
            continue;
        }
        let is_new =
            |network: &&&Network| found.iter().all(|rail| !are_vlans_of_one(&rail.at, &network.interface));
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
            taken.push(own);
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

/// Returns whether an address is valid on one link only.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::super::TcpOptions;
    use super::*;

    fn network(interface: &str, ip: &str) -> Network {
        Network { interface: interface.into(), ip: ip.parse().unwrap(), prefix: 24 }
    }

    fn interface(name: &str, ip: &str) -> Interface {
        let ip: IpAddr = ip.parse().unwrap();
        let prefix = if ip.is_ipv4() { 24 } else { 64 };
        let cables = vec![name.into()];
        Interface { name: name.into(), index: 1, ip, prefix, loopback: ip.is_loopback(), cables }
    }

    /// Returns the rails as `interface>address`.
    fn found(mine: &[Interface], theirs: Vec<Network>, list: Option<&str>) -> Vec<String> {
        let peer =
            Address { port: 7, instance: 0, host: Host { boot: [1; 16], namespace: 1 }, networks: theirs };
        let here = Host { boot: [2; 16], namespace: 1 };
        let list = list.and_then(TcpOptions::interfaces_from);
        let rails = rails(&peer, &here, mine, Family::Both, list.as_deref());
        let near = super::rails(&peer, &peer.host, mine, Family::Both, list.as_deref());
        assert_eq!(near, [], "one host");
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
        for list in [None, Some("^docker"), Some("eth")] {
            assert_eq!(found(&mine, theirs(), list), ["eth0>192.0.2.2", "eth1>198.51.100.2"], "{list:?}");
        }
        let named = found(&mine, theirs(), Some("eth,wg"));
        assert_eq!(named, ["eth0>192.0.2.2", "eth1>198.51.100.2", "wg0>10.9.0.2"]);
    }

    #[test]
    fn an_interface_stacked_on_another_is_no_rail() {
        let on = |name: &str, ip: &str, below: &str| Interface {
            cables: vec![below.into()],
            ..interface(name, ip)
        };
        let mine = [
            interface("eth0", "192.0.2.1"),
            on("vlan100", "203.0.113.1", "eth0"),
            on("macvlan0", "198.51.100.1", "eth0"),
        ];
        let theirs = vec![
            network("eth0", "192.0.2.2"),
            network("vlan100", "203.0.113.2"),
            network("macvlan0", "198.51.100.2"),
        ];
        assert_eq!(found(&mine, theirs.clone(), None), ["eth0>192.0.2.2"]);
        // Two VLANs without the interface below.
        assert_eq!(found(&mine[1..], theirs, None), ["vlan100>203.0.113.2"]);
    }

    #[test]
    fn cards_without_a_common_network_are_no_rails() {
        let mine = [interface("eth0", "192.0.2.1"), interface("eth1", "198.51.100.1")];
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "203.0.113.2")];
        assert_eq!(found(&mine, theirs, None), ["eth0>192.0.2.2"]);
        // An address that both hosts have leads nowhere.
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "198.51.100.1")];
        assert_eq!(found(&mine, theirs, None), ["eth0>192.0.2.2"]);
    }

    #[test]
    fn two_cards_in_one_network_pair_up() {
        let mine = [interface("eth0", "192.0.2.1"), interface("eth1", "192.0.2.11")];
        let theirs = vec![network("eth0", "192.0.2.2"), network("eth1", "192.0.2.12")];
        assert_eq!(found(&mine, theirs, None), ["eth0>192.0.2.2", "eth1>192.0.2.12"]);
    }
}
