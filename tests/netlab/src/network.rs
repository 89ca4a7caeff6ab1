//! Description of a network: hosts, cards, subnets, and the properties of their cables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::fabric::{Port, Rule};
use crate::link::{Burst, Shape};

/// Most hosts. Each has a number in one byte of its addresses.
pub const HOSTS_MAX: usize = 200;
/// Most cards per host, and most groups of hosts.
const PARTS_MAX: usize = 8;
/// Number of the router in each subnet's addresses.
const ROUTER: u8 = 254;

/// Address families of the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// Description of a network. Unless set otherwise, its cables have no limits.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) hosts: usize,
    pub(crate) nics: usize,
    groups: usize,
    router: Option<Shape>,
    cable: Shape,
    changes: Vec<Change>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) family: Family,
    pub(crate) mtu: u32,
    pub(crate) congestion: Option<String>,
    offload: Option<bool>,
    seed: u64,
}

/// A difference of some cables from the others.
#[derive(Clone, Debug)]
struct Change {
    host: Option<usize>,
    nic: Option<usize>,
    what: Difference,
}

#[derive(Clone, Copy, Debug)]
enum Difference {
    Up(u64),
    Down(u64),
    Delay(Duration),
    Loss(f64),
}

/// One network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The host's number. The router's number is the number of hosts.
    pub(crate) host: usize,
    pub(crate) nic: usize,
    pub(crate) subnet: usize,
}

impl Network {
    /// Describes `hosts` hosts on one switch.
    #[must_use]
    pub fn hosts(hosts: usize) -> Self {
        Self {
            hosts,
            nics: 1,
            groups: 1,
            router: None,
            cable: Shape { queue_bytes: 256 << 10, ..Shape::default() },
            changes: Vec::new(),
            rules: Vec::new(),
            family: Family::Both,
            mtu: 1500,
            congestion: None,
            offload: None,
            seed: 1,
        }
    }

    /// Sets the bits per second of every cable, in each direction.
    #[must_use]
    pub fn rate(mut self, bits: u64) -> Self {
        self.cable.rate = Some(bits);
        self
    }

    /// Sets the delay from host to host, one way.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.cable.delay = delay;
        self
    }

    /// Sets the largest addition to the delay.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.cable.jitter = jitter;
        self
    }

    /// Sets the share of the packets that are lost.
    #[must_use]
    pub fn loss(mut self, share: f64) -> Self {
        self.cable.loss = share;
        self
    }

    /// Sets losses in bursts: their share of all packets, and the packets of a burst.
    #[must_use]
    pub fn burst(mut self, share: f64, packets: f64) -> Self {
        self.cable.burst = Some(Burst { share, packets });
        self
    }

    /// Sets the share of the packets that arrive twice.
    #[must_use]
    pub fn duplicate(mut self, share: f64) -> Self {
        self.cable.duplicate = share;
        self
    }

    /// Sets the share of the packets that come late, and their additional delay.
    #[must_use]
    pub fn reorder(mut self, share: f64, by: Duration) -> Self {
        self.cable.reorder = Some((share, by));
        self
    }

    /// Sets the bytes that may wait in the switch for each host; 256 KiB by default.
    #[must_use]
    pub fn queue(mut self, bytes: u64) -> Self {
        self.cable.queue_bytes = bytes;
        self
    }

    /// Sets the cards per host, each with its own subnet.
    #[must_use]
    pub fn nics(mut self, nics: usize) -> Self {
        self.nics = nics;
        self
    }

    /// Splits the hosts into groups with their own subnets, connected by a router.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        if groups > 1 && self.router.is_none() {
            self.router = Some(Shape::default());
        }
        self
    }

    /// Sets the router's rate into each subnet, and the delay that it adds. With several groups there is always a
    /// router.
    #[must_use]
    pub fn router(mut self, rate: Option<u64>, delay: Duration) -> Self {
        self.router = Some(Shape { rate, delay, ..Shape::default() });
        self
    }

    /// Sets another rate for one host, in both directions.
    #[must_use]
    pub fn host_rate(self, host: usize, bits: u64) -> Self {
        self.host_up(host, bits).host_down(host, bits)
    }

    /// Sets another rate from one host.
    #[must_use]
    pub fn host_up(self, host: usize, bits: u64) -> Self {
        self.change(Some(host), None, Difference::Up(bits))
    }

    /// Sets another rate to one host.
    #[must_use]
    pub fn host_down(self, host: usize, bits: u64) -> Self {
        self.change(Some(host), None, Difference::Down(bits))
    }

    /// Adds delay to one host's cables, in each direction.
    #[must_use]
    pub fn host_delay(self, host: usize, delay: Duration) -> Self {
        self.change(Some(host), None, Difference::Delay(delay))
    }

    /// Adds loss to one host's cables, in each direction.
    #[must_use]
    pub fn host_loss(self, host: usize, share: f64) -> Self {
        self.change(Some(host), None, Difference::Loss(share))
    }

    /// Sets another rate for the card of this number on all hosts, in both directions.
    #[must_use]
    pub fn nic_rate(self, nic: usize, bits: u64) -> Self {
        self.change(None, Some(nic), Difference::Up(bits)).change(None, Some(nic), Difference::Down(bits))
    }

    /// Adds a rule that drops frames from the beginning.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the address families; both by default.
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Sets the longest packet of the cards in bytes; 1500 by default.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }

    /// Sets the hosts' congestion control; the kernel's by default.
    #[must_use]
    pub fn congestion(mut self, name: impl Into<String>) -> Self {
        self.congestion = Some(name.into());
        self
    }

    /// Sets whether hosts pass on bundles of packets, which costs less but gives all packets of a bundle one fate. By
    /// default, they do unless packets are lost, reordered or doubled by chance.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = Some(offload);
        self
    }

    /// Sets the seed of all random choices.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn change(mut self, host: Option<usize>, nic: Option<usize>, what: Difference) -> Self {
        self.changes.push(Change { host, nic, what });
        self
    }

    /// Checks the description for contradictions.
    ///
    /// # Errors
    /// The contradiction, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) { Ok(()) } else { Err(format!("{value} {what}: use 1 to {most}")) }
        };
        within("hosts", self.hosts, HOSTS_MAX)?;
        within("cards per host", self.nics, PARTS_MAX)?;
        within("groups of hosts", self.groups, PARTS_MAX.min(self.hosts))?;
        let named = self.changes.iter().filter_map(|change| change.host);
        let named = named.chain(self.rules.iter().flat_map(|rule| [rule.from, rule.to]).flatten());
        for host in named {
            self.check_host(host)?;
        }
        match self.changes.iter().filter_map(|change| change.nic).find(|nic| *nic >= self.nics) {
            Some(nic) => Err(format!("there is no card {nic}; cards count from 0 to {}", self.nics - 1)),
            None => Ok(()),
        }
    }

    pub(crate) fn check_host(&self, host: usize) -> Result<(), String> {
        if host < self.hosts {
            return Ok(());
        }
        Err(format!("there is no host {host}; hosts count from 0 to {}", self.hosts - 1))
    }

    /// Whether devices pass on bundles of packets.
    pub(crate) fn has_offload(&self) -> bool {
        let single = |(_, port): (Card, Port)| {
            port.up.shape().needs_single_packets() || port.down.shape().needs_single_packets()
        };
        self.offload.unwrap_or_else(|| !self.ports().into_iter().any(single))
    }

    pub(crate) fn has_router(&self) -> bool {
        self.router.is_some()
    }

    fn subnets(&self) -> usize {
        self.groups * self.nics
    }

    /// Returns the cards of a host or of the router, in order.
    pub(crate) fn cards(&self, host: usize) -> Vec<Card> {
        if host == self.hosts {
            return (0..self.subnets()).map(|subnet| Card { host, nic: subnet, subnet }).collect();
        }
        let group = host * self.groups / self.hosts;
        (0..self.nics).map(|nic| Card { host, nic, subnet: nic * self.groups + group }).collect()
    }

    /// Returns all cards with their cables, hosts first.
    pub(crate) fn ports(&self) -> Vec<(Card, Port)> {
        let all = self.hosts + usize::from(self.has_router());
        let cards = (0..all).flat_map(|host| self.cards(host));
        let mut ports = Vec::new();
        for (card, number) in cards.zip(1..) {
            let (up, down) = self.shapes(card);
            let seed = self.seed.wrapping_mul(1000).wrapping_add(number);
            ports.push((card, Port::new(card.host, card.nic, card.subnet, up, down, seed)));
        }
        ports
    }

    /// Returns the shapes of a card's cable, upward and downward. The downward one has the delay from host to host. The
    /// upward one has no queue, since a card holds its host back.
    fn shapes(&self, card: Card) -> (Shape, Shape) {
        if card.host == self.hosts {
            let router = self.router.clone().unwrap_or_default();
            return (Shape { queue_bytes: self.cable.queue_bytes, ..router }, Shape::default());
        }
        let mut down = self.cable.clone();
        let mut up = Shape { rate: down.rate, ..Shape::default() };
        let concerns = |change: &&Change| {
            change.host.is_none_or(|host| host == card.host) && change.nic.is_none_or(|nic| nic == card.nic)
        };
        for change in self.changes.iter().filter(concerns) {
            match change.what {
                Difference::Up(bits) => up.rate = Some(bits),
                Difference::Down(bits) => down.rate = Some(bits),
                Difference::Delay(delay) => {
                    up.delay += delay;
                    down.delay += delay;
                }
                Difference::Loss(share) => {
                    up.loss += share;
                    down.loss += share;
                }
            }
        }
        (up, down)
    }

    /// Returns the commands for `ip -batch` on a host or on the router.
    pub(crate) fn setup(&self, host: usize) -> String {
        let mut text = String::from("link set lo up\n");
        let (has_v4, has_v6) = (self.family != Family::V6, self.family != Family::V4);
        for card in self.cards(host) {
            let name = card.name();
            text +=
                &format!("link set {name} address {} mtu {} txqueuelen 2000\n", card.mac_text(), self.mtu);
            if !has_v6 {
                text += &format!("link set {name} addrgenmode none\n");
            }
            text += &format!("link set {name} up\n");
            if has_v4 {
                text += &format!("address add {}/24 dev {name}\n", card.v4(self.hosts));
            }
            if has_v6 {
                text += &format!("address add {}/64 dev {name} nodad\n", card.v6(self.hosts));
            }
        }
        if self.has_router() && host < self.hosts {
            let subnet = self.cards(host)[0].subnet;
            let router = Card { host: self.hosts, nic: subnet, subnet };
            if has_v4 {
                text += &format!("route add default via {}\n", router.v4(self.hosts));
            }
            if has_v6 {
                text += &format!("route add ::/0 via {}\n", router.v6(self.hosts));
            }
        }
        text
    }

    /// Returns the addresses of a host's card.
    pub(crate) fn addresses(&self, host: usize, nic: usize) -> Vec<IpAddr> {
        let card = self.cards(host)[nic];
        let mut all = Vec::new();
        if self.family != Family::V6 {
            all.push(card.v4(self.hosts).into());
        }
        if self.family != Family::V4 {
            all.push(card.v6(self.hosts).into());
        }
        all
    }
}

impl Card {
    pub(crate) fn name(self) -> String {
        format!("eth{}", self.nic)
    }

    pub(crate) fn mac(self) -> [u8; 6] {
        // The first byte marks the address as locally administered.
        [0x02, 0x98, 0, self.subnet as u8, self.host as u8, self.nic as u8]
    }

    fn mac_text(self) -> String {
        self.mac().map(|byte| format!("{byte:02x}")).join(":")
    }

    fn number(self, hosts: usize) -> u8 {
        if self.host == hosts { ROUTER } else { self.host as u8 + 1 }
    }

    fn v4(self, hosts: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 98, self.subnet as u8, self.number(hosts))
    }

    fn v6(self, hosts: usize) -> Ipv6Addr {
        let subnet = self.subnet as u16;
        Ipv6Addr::new(0xfd98, 0, 0, subnet, 0, 0, 0, u16::from(self.number(hosts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::What;

    #[test]
    fn cards_lie_in_subnets_of_their_group() {
        let network = Network::hosts(4).nics(2).groups(2);
        let subnets = |host| network.cards(host).iter().map(|card| card.subnet).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3].map(subnets), [vec![0, 2], vec![0, 2], vec![1, 3], vec![1, 3]]);
        assert_eq!(subnets(4), [0, 1, 2, 3]);
        assert_eq!(network.addresses(3, 1)[0].to_string(), "10.98.3.4");
        assert!(network.setup(3).contains("route add default via 10.98.1.254"));
        let mut macs: Vec<_> = network.ports().iter().map(|(card, _)| card.mac()).collect();
        macs.sort_unstable();
        macs.dedup();
        assert_eq!(macs.len(), 12);
    }

    #[test]
    fn differences_concern_their_cables_only() {
        let network = Network::hosts(3).nics(2).rate(1_000_000).host_up(1, 5000).nic_rate(1, 7000);
        let rates = |host: usize, nic: usize| {
            let (up, down) = network.shapes(network.cards(host)[nic]);
            (up.rate.unwrap(), down.rate.unwrap())
        };
        assert_eq!((rates(0, 0), rates(0, 1)), ((1_000_000, 1_000_000), (7000, 7000)));
        assert_eq!((rates(1, 0), rates(1, 1)), ((5000, 1_000_000), (7000, 7000)));
        assert!(network.has_offload() && !network.clone().host_loss(2, 0.1).has_offload());
    }

    #[test]
    fn networks_that_cannot_be_are_refused() {
        let rule = Rule { from: Some(9), to: None, what: What::Everything, count: None };
        for (network, says) in [
            (Network::hosts(0), "0 hosts"),
            (Network::hosts(201), "201 hosts"),
            (Network::hosts(2).nics(9), "9 cards"),
            (Network::hosts(2).groups(3), "3 groups"),
            (Network::hosts(2).host_rate(2, 1000), "no host 2"),
            (Network::hosts(2).nic_rate(1, 1000), "no card 1"),
            (Network::hosts(2).rule(rule), "no host 9"),
        ] {
            let error = network.check().expect_err(says);
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(Network::hosts(200).nics(8).groups(8).check(), Ok(()));
    }
}
