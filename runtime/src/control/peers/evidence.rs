//! Addresses at which a refused connection proves that a member has ended.
//!
//! One address may mean different hosts in different places: behind a NAT, or on the bridge of a host's containers. One
//! host key may belong to several hosts, which are clones of a virtual machine. A refusal therefore proves something
//! only where the address is known to lead from this host to the member's. The connections to the coordinator show it:
//! if the rank and the coordinator see the same two ends, ports included, neither a NAT nor a proxy is between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::listener::{ListenerAddress, Locality};
use crate::control::member::Shared;
use crate::control::stream::BoxedStream;
use crate::join::address_towards;

/// The two ends of a rank's connection to the coordinator, as both of them see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) struct Seen {
    pub(in crate::control) rank: IpAddr,
    pub(in crate::control) coordinator: IpAddr,
}

impl Seen {
    /// Returns the ends of a connection that the coordinator has accepted, if the rank sees the same: itself and the
    /// coordinator are at `told`. `None` within a process.
    pub(in crate::control) fn on(accepted: &BoxedStream, told: Option<[SocketAddr; 2]>) -> Option<Self> {
        let [coordinator, rank] = accepted.ends()?;
        (told == Some([rank, coordinator])).then(|| Self { rank: rank.ip(), coordinator: coordinator.ip() })
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

    /// Whether the rank shares the coordinator's network: it has reached the coordinator at an address of its own.
    fn is_beside(&self) -> bool {
        let is_own = |seen: Seen| {
            seen.rank == seen.coordinator || seen.rank.is_loopback() && seen.coordinator.is_loopback()
        };
        self.number == 0 || self.seen.is_some_and(is_own)
    }

    /// Returns the address from which the rank has reached the coordinator on another host.
    fn place(&self) -> Option<IpAddr> {
        let place = self.seen.map(|seen| seen.rank).filter(|ip| !ip.is_loopback());
        place.filter(|ip| self.has(*ip))
    }

    /// Whether two ranks have one loopback interface.
    fn shares_host(&self, other: &Self) -> bool {
        let knows = |a: &Self, b: &Self| a.place().is_some_and(|place| b.has(place));
        let are_together = self.host_key == other.host_key && knows(self, other) && knows(other, self);
        are_together || self.is_beside() && other.is_beside()
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
    let own = rank(shared.rank as usize);
    (0..shared.peers.len()).map(|number| locality(own, rank(number), address_towards)).collect()
}

/// Returns where another rank is. `towards` returns the source address of this host's packets to an address.
fn locality(own: Rank<'_>, other: Rank<'_>, towards: impl Fn(IpAddr) -> Option<IpAddr>) -> Locality {
    if own.shares_host(&other) {
        return Locality::Proven(Ipv4Addr::LOCALHOST.into());
    }
    // From another interface, an address may lead elsewhere: the bridges of all hosts' containers are alike.
    let is_by_the_same_way = |ip: &IpAddr| own.place().is_some() && towards(*ip) == own.place();
    let proven = match (own.is_beside(), other.is_beside()) {
        (_, true) => own.seen.map(|seen| seen.coordinator).filter(|ip| other.number == 0 || other.has(*ip)),
        (true, false) => other.place(),
        (false, false) => other.place().filter(is_by_the_same_way),
    };
    proven.map_or_else(|| Locality::of_hosts(own.host_key, other.host_key), Locality::Proven)
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::control::stream;

    /// Returns a listener with these addresses.
    fn listener(ips: &[&str]) -> ListenerAddress {
        let mut listener = ListenerAddress::sample(0);
        listener.addresses = ips.iter().map(|at| SocketAddr::new(ip(at), 7)).collect();
        listener
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn proven(at: &str) -> Locality {
        Locality::Proven(ip(at))
    }

    fn rank<'a>(number: u32, host_key: u64, listener: &'a ListenerAddress, seen: [&str; 2]) -> Rank<'a> {
        let [rank, coordinator] = seen.map(|ip| ip.parse().ok());
        let seen = rank.zip(coordinator).map(|(rank, coordinator)| Seen { rank, coordinator });
        Rank { number, host_key, listener, seen }
    }

    /// Returns where the other rank is, for a rank whose packets to other hosts all leave from its place.
    fn by_one_way(own: Rank<'_>, other: Rank<'_>) -> Locality {
        locality(own, other, |_| own.place())
    }

    /// The coordinator's address in a cluster.
    const CENTER: &str = "10.0.0.1";
    const HERE: Locality = Locality::Proven(IpAddr::V4(Ipv4Addr::LOCALHOST));

    #[tokio::test(flavor = "current_thread")]
    async fn the_ends_of_a_connection_count_only_if_both_sides_see_them() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(at), listener.accept());
        let [near, far] = [near.unwrap(), far.unwrap().0]
            .map(|end| stream::boxed(kolo_transport::Unshared::new(end), None));
        let [own, center] = near.ends().unwrap();
        let local = Ipv4Addr::LOCALHOST.into();
        assert_eq!(Seen::on(&far, Some([own, center])), Some(Seen { rank: local, coordinator: local }));
        // A forwarded port, a bridge's address, and a rank that says nothing.
        let other_port = |at: SocketAddr| SocketAddr::new(at.ip(), at.port() ^ 1);
        let elsewhere = SocketAddr::new(ip("10.0.0.2"), own.port());
        for told in [[own, other_port(center)], [other_port(own), center], [elsewhere, center]] {
            assert_eq!(Seen::on(&far, Some(told)), None);
        }
        assert_eq!(Seen::on(&far, None), None);
    }

    #[test]
    fn in_one_network_each_rank_knows_the_address_of_each_other() {
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| listener(&[ip, "172.17.0.1", "127.0.0.1"]));
        let [zero, one, two] = [
            rank(0, 1, &all[0], ["", ""]),
            rank(1, 2, &all[1], ["10.0.0.2", CENTER]),
            rank(2, 3, &all[2], ["10.0.0.3", CENTER]),
        ];
        for (own, other, at) in
            [(zero, one, "10.0.0.2"), (one, zero, CENTER), (one, two, "10.0.0.3"), (two, one, "10.0.0.2")]
        {
            assert_eq!(by_one_way(own, other), proven(at));
        }
        // The coordinator has two addresses, one of which it has not told.
        let other_way = rank(2, 3, &all[2], ["10.0.0.3", "192.0.2.1"]);
        assert_eq!(by_one_way(one, other_way), proven("10.0.0.3"));
        assert_eq!(by_one_way(other_way, zero), proven("192.0.2.1"));
    }

    #[test]
    fn an_address_that_another_interface_leads_to_proves_nothing() {
        let (node, container) = (listener(&["10.0.0.2", "172.17.0.1"]), listener(&["172.17.0.2"]));
        // The container is on the coordinator's host. The node has containers of its own.
        let (one, two) =
            (rank(1, 2, &node, ["10.0.0.2", CENTER]), rank(2, 3, &container, ["172.17.0.2", CENTER]));
        assert_eq!(locality(one, two, |_| Some(ip("172.17.0.1"))), Locality::OtherHost);
        assert_eq!(by_one_way(two, one), proven("10.0.0.2"));
        let zero = rank(0, 1, &node, ["", ""]);
        assert_eq!(locality(zero, two, |_| Some(ip("172.17.0.1"))), proven("172.17.0.2"));
    }

    #[test]
    fn ranks_of_one_host_are_found_by_loopback() {
        let (center, node) = (listener(&[CENTER, "127.0.0.1"]), listener(&["10.0.0.2", "10.1.0.2"]));
        let (zero, local) = (rank(0, 1, &center, ["", ""]), rank(1, 1, &center, ["127.0.0.1", "127.0.0.1"]));
        assert_eq!([by_one_way(zero, local), by_one_way(local, zero)], [HERE; 2]);
        let [one, two] = ["10.0.0.2", "10.1.0.2"].map(|from| rank(2, 2, &node, [from, CENTER]));
        assert_eq!([by_one_way(one, one), by_one_way(one, two)], [HERE; 2]);
        assert_eq!(by_one_way(one, local), proven(CENTER));
        assert_eq!(by_one_way(local, one), proven("10.0.0.2"));
        // Containers that share a network, but not their processes.
        let contained = rank(3, 4, &node, ["10.0.0.2", CENTER]);
        assert_eq!(by_one_way(one, contained), proven("10.0.0.2"));
        let contained = rank(3, 4, &center, ["127.0.0.1", "127.0.0.1"]);
        assert_eq!([by_one_way(local, contained), by_one_way(contained, zero)], [HERE; 2]);
    }

    #[test]
    fn a_hosts_name_may_mean_another_loopback_address() {
        let all = listener(&[CENTER, "127.0.0.1"]);
        let zero = rank(0, 1, &all, ["", ""]);
        let [one, two] = [1, 2].map(|number| rank(number, 1, &all, ["127.0.0.1", "127.0.1.1"]));
        assert_eq!([by_one_way(zero, one), by_one_way(one, zero), by_one_way(one, two)], [HERE; 3]);
    }

    #[test]
    fn behind_a_nat_no_address_proves_anything() {
        let [center, home] = [&["203.0.113.1"], &["192.168.1.7"]].map(|ips| listener(ips));
        let [one, two] = [1, 2].map(|number| rank(number, 1, &home, ["", ""]));
        assert_eq!(by_one_way(one, two), Locality::SameHost, "clones");
        let (other, zero) = (rank(2, 2, &home, ["", ""]), rank(0, 3, &center, ["", ""]));
        for (own, other) in [(one, other), (zero, one), (one, zero)] {
            assert_eq!(by_one_way(own, other), Locality::OtherHost);
        }
        // Clones in one network.
        let nodes = ["10.0.0.2", "10.0.0.3"].map(|ip| listener(&[ip]));
        let [one, two] = [0, 1].map(|at| rank(1, 1, &nodes[at], [["10.0.0.2", "10.0.0.3"][at], CENTER]));
        assert_eq!(by_one_way(one, two), proven("10.0.0.3"));
    }
}
