//! Choices of this transport between two hosts, for tools that examine a network without an endpoint.

use std::io;
use std::net::IpAddr;

use super::address::{Network, by_use};
use super::interfaces::{Interface, chosen, enumerate};
use super::options::Family;
use super::route::{self, Here};

/// Returns the addresses that ranks of this host tell others, of the interfaces that the list admits (see
/// [`TcpOptions::interfaces`](super::TcpOptions::interfaces)). Those that are valid on this host or on one link only are
/// left out.
///
/// # Errors
/// If the system does not list its interfaces.
pub fn networks(list: Option<&[String]>) -> io::Result<Vec<Network>> {
    let network = |i: Interface| Network { interface: i.name, ip: i.ip, prefix: i.prefix };
    let leads = |i: &Interface| !i.loopback && !route::is_link_local(i.ip);
    Ok(admitted(enumerate()?.up, list).into_iter().filter(leads).map(network).collect())
}

/// Returns the addresses of another host that ranks of this one would dial, in the order in which they would. The number
/// beside each is the less the more promising its network is; of addresses with the least, long messages use several.
///
/// # Errors
/// As [`networks`].
pub fn dialled(theirs: &[Network], list: Option<&[String]>) -> io::Result<Vec<(Network, u8)>> {
    let local = enumerate()?;
    let mine = admitted(local.up, list);
    let theirs: Vec<Network> = theirs.iter().filter(|it| !route::is_link_local(it.ip)).cloned().collect();
    let here = Here { interfaces: &mine, own: &local.own, is_listed: local.is_listed };
    // The address of another host that this host has too leads back to this host.
    let away = theirs.iter().filter(|network| !network.ip.is_loopback() && !local.own.contains(&network.ip));
    let found = route::in_order(away, 0, false, here, list);
    let of = |to: std::net::SocketAddr| theirs.iter().find(|network| network.ip == to.ip()).cloned();
    Ok(found.into_iter().filter_map(|candidate| Some((of(candidate.to)?, candidate.distance))).collect())
}

/// Returns the addresses of this host's interfaces that are up, the most useful to other hosts first: those of bridges of
/// containers, which every host may have, come late.
///
/// # Errors
/// As [`networks`].
pub fn addresses_in_use() -> io::Result<Vec<IpAddr>> {
    let up = enumerate()?.up;
    Ok(by_use(&up).into_iter().map(|at| up[at].ip).collect())
}

/// Returns the addresses of all interfaces of this host, also of those that are down: packets to them do not leave it.
///
/// # Errors
/// As [`networks`].
pub fn all_addresses() -> io::Result<Vec<IpAddr>> {
    Ok(enumerate()?.own)
}

/// Returns the interfaces that the list admits; none is a finding and no error.
fn admitted(all: Vec<Interface>, list: Option<&[String]>) -> Vec<Interface> {
    chosen(all, list, Family::Both).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_lead_to_no_other() {
        let own = networks(None).unwrap();
        assert!(own.iter().all(|network| !network.ip.is_loopback()));
        assert_eq!(dialled(&own, None).unwrap(), []);
    }
}
