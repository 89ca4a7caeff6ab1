//! Addresses at which a refused connection proves that a member has ended.
//!
//! One address may mean different hosts in different places: behind a NAT, or on the bridge of a host's containers. One
//! host key may belong to several hosts, which are clones of a virtual machine. A refusal therefore proves something
//! only where the address is known to lead from this host to the member's. The connections to the coordinator show it:
//! a rank whose connection comes from an address that the rank itself has is behind no NAT, as seen from there.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::listener::{ListenerAddress, Locality};
use crate::control::member::Shared;
use crate::control::stream::BoxedStream;

/// The two ends of a rank's connection to the coordinator, as the coordinator sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) struct Seen {
    pub(in crate::control) rank: IpAddr,
    pub(in crate::control) coordinator: IpAddr,
}

impl Seen {
    /// Returns the ends of a connection that the coordinator has accepted. `None` within a process.
    pub(in crate::control) fn on(accepted: &BoxedStream) -> Option<Self> {
        accepted.ends().map(|[coordinator, rank]| Self { rank, coordinator })
    }
}

/// A rank, with the facts by which its host is found.
#[derive(Clone, Copy)]
struct Rank<'a> {
    number: u32,
    host_key: u64,
    listener: &'a ListenerAddress,
    seen: Option<Seen>,
}

impl Rank<'_> {
    fn has(&self, ip: IpAddr) -> bool {
        self.listener.addresses.iter().any(|address| address.ip() == ip)
    }

    /// Whether the rank is on the coordinator's host, as far as the coordinator sees.
    fn is_beside(&self) -> bool {
        self.number == 0 || self.seen.is_some_and(|seen| seen.rank == seen.coordinator)
    }

    /// Returns the address from which the coordinator sees the rank come, if no NAT has changed it.
    fn place(&self) -> Option<IpAddr> {
        let place = self.seen.map(|seen| seen.rank).filter(|ip| !ip.is_loopback());
        place.filter(|ip| self.has(*ip))
    }

    /// Whether two ranks are on one host.
    fn shares_host(&self, other: &Self) -> bool {
        let knows = |a: &Self, b: &Self| a.place().is_some_and(|place| b.has(place));
        let are_beside = self.is_beside() && other.is_beside();
        self.host_key == other.host_key && (are_beside || knows(self, other) && knows(other, self))
    }
}

/// Returns where the other ranks are, by rank, as seen from this one. `seen` has the ends of their connections to the
/// coordinator.
pub(super) fn localities(
    shared: &Shared,
    listeners: &[ListenerAddress],
    seen: &[Option<Seen>],
) -> Vec<Locality> {
    let none = ListenerAddress::default();
    let rank = |number: usize| Rank {
        number: number as u32,
        host_key: shared.peers[number].host_key,
        listener: listeners.get(number).unwrap_or(&none),
        seen: seen.get(number).copied().flatten(),
    };
    let (own, reached) = (rank(shared.rank as usize), shared.coordinator_at.map(|at| at.ip().to_canonical()));
    (0..shared.peers.len()).map(|number| locality(own, rank(number), reached)).collect()
}

/// Returns where another rank is. This rank has reached the coordinator at address `reached`.
fn locality(own: Rank<'_>, other: Rank<'_>, reached: Option<IpAddr>) -> Locality {
    if own.shares_host(&other) {
        return Locality::Proven(Ipv4Addr::LOCALHOST.into());
    }
    let of_coordinator = || {
        let to = own.seen.map(|seen| seen.coordinator).filter(|ip| Some(*ip) == reached);
        to.filter(|ip| !ip.is_loopback() && other.has(*ip))
    };
    let is_in_one_network = || {
        let came_to = |rank: &Rank<'_>| rank.seen.map(|seen| seen.coordinator);
        own.is_beside() || own.place().is_some() && came_to(&own) == came_to(&other)
    };
    let proven = match other.is_beside() {
        true => of_coordinator(),
        false => other.place().filter(|_| is_in_one_network()),
    };
    proven.map_or_else(|| Locality::of_hosts(own.host_key, other.host_key), Locality::Proven)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Returns a listener with these addresses.
    fn listener(ips: &[&str]) -> ListenerAddress {
        let mut listener = ListenerAddress::sample(0);
        listener.addresses = ips.iter().map(|at| SocketAddr::new(ip(at), 7)).collect();
        listener
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rank<'a>(number: u32, host_key: u64, listener: &'a ListenerAddress, seen: [&str; 2]) -> Rank<'a> {
        let [rank, coordinator] = seen.map(|ip| ip.parse().ok());
        let seen = rank.zip(coordinator).map(|(rank, coordinator)| Seen { rank, coordinator });
        Rank { number, host_key, listener, seen }
    }

    /// The coordinator's address in a cluster.
    const CENTER: &str = "10.0.0.1";

    #[test]
    fn in_one_network_each_rank_knows_the_address_of_each_other() {
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| listener(&[ip, "172.17.0.1", "127.0.0.1"]));
        let [zero, one, two] = [
            rank(0, 1, &all[0], ["", ""]),
            rank(1, 2, &all[1], ["10.0.0.2", CENTER]),
            rank(2, 3, &all[2], ["10.0.0.3", CENTER]),
        ];
        let proven = |at: &str| Locality::Proven(ip(at));
        for (own, other, at) in
            [(zero, one, "10.0.0.2"), (one, zero, CENTER), (one, two, "10.0.0.3"), (two, one, "10.0.0.2")]
        {
            assert_eq!(locality(own, other, Some(ip(CENTER))), proven(at));
        }
        // Rank 0 has redirected this rank's connection, or it has two networks.
        assert_eq!(locality(one, zero, Some(ip("203.0.113.1"))), Locality::OtherHost);
        let elsewhere = rank(2, 3, &all[2], ["10.0.0.3", "192.0.2.1"]);
        assert_eq!(locality(one, elsewhere, Some(ip(CENTER))), Locality::OtherHost);
    }

    #[test]
    fn ranks_of_one_host_are_found_by_loopback() {
        let (center, node) = (listener(&[CENTER, "127.0.0.1"]), listener(&["10.0.0.2", "10.1.0.2"]));
        let here = Locality::Proven(Ipv4Addr::LOCALHOST.into());
        let (zero, local) = (rank(0, 1, &center, ["", ""]), rank(1, 1, &center, ["127.0.0.1", "127.0.0.1"]));
        assert_eq!([locality(zero, local, None), locality(local, zero, None)], [here; 2]);
        let [one, two] = ["10.0.0.2", "10.1.0.2"].map(|from| rank(2, 2, &node, [from, CENTER]));
        assert_eq!([locality(one, one, None), locality(one, two, None)], [here; 2]);
        assert_eq!(locality(one, local, Some(ip(CENTER))), Locality::Proven(ip(CENTER)));
        assert_eq!(locality(local, one, None), Locality::Proven(ip("10.0.0.2")));
        // Containers that share a network, but not their processes.
        let contained = rank(3, 4, &node, ["10.0.0.2", CENTER]);
        assert_eq!(locality(one, contained, None), Locality::Proven(ip("10.0.0.2")));
    }

    #[test]
    fn behind_a_nat_no_address_proves_anything() {
        let [center, home] = [&["203.0.113.1"], &["192.168.1.7"]].map(|ips| listener(ips));
        let [one, two] = [1, 2].map(|number| rank(number, 1, &home, ["198.51.100.9", "203.0.113.1"]));
        assert_eq!(locality(one, two, Some(ip("203.0.113.1"))), Locality::SameHost, "clones");
        let other = rank(2, 2, &home, ["198.51.100.10", "203.0.113.1"]);
        assert_eq!(locality(one, other, Some(ip("203.0.113.1"))), Locality::OtherHost);
        let zero = rank(0, 3, &center, ["", ""]);
        assert_eq!(locality(zero, one, None), Locality::OtherHost);
        assert_eq!(locality(one, zero, Some(ip("203.0.113.1"))), Locality::Proven(ip("203.0.113.1")));
        // Clones in one network.
        let nodes = ["10.0.0.2", "10.0.0.3"].map(|ip| listener(&[ip]));
        let [one, two] = [0, 1].map(|at| rank(1, 1, &nodes[at], [["10.0.0.2", "10.0.0.3"][at], CENTER]));
        assert_eq!(locality(one, two, None), Locality::Proven(ip("10.0.0.3")));
    }
}
