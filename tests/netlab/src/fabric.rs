//! All cables and the switch between them, in the caller's time.
//!
//! A frame leaves its card by the upward link, is at the switch once its first packet has arrived there, and then
//! enters the downward link of every port that it goes to. Each link therefore sees frames in the order of time,
//! whichever card they come from. `P` is the payload of a frame.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::link::{Bundle, Fate, Link, Nanos, Passage, Shape};

/// Bytes that a card takes from its host before they are sent. Further bytes stay with the host.
const CARD_BYTES: u64 = 64 << 10;

/// A port of the switch, with its cable.
#[derive(Debug)]
pub struct Port {
    /// The host that the port leads to.
    pub host: usize,
    /// The card of that host.
    pub nic: usize,
    /// The port's subnet. Frames only reach ports of the same subnet.
    pub subnet: usize,
    /// Link from the host.
    pub up: Link,
    /// Link to the host.
    pub down: Link,
    /// Whether the cable is cut.
    pub is_cut: bool,
}

impl Port {
    /// Makes a port with its cable.
    #[must_use]
    pub fn new(host: usize, nic: usize, subnet: usize, up: Shape, down: Shape, seed: u64) -> Self {
        let (up, down) = (Link::new(up, seed * 2), Link::new(down, seed * 2 + 1));
        Self { host, nic, subnet, up, down, is_cut: false }
    }
}

/// A rule about frames that the switch drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Sending host; any if `None`.
    pub from: Option<usize>,
    /// Receiving host; any if `None`.
    pub to: Option<usize>,
    /// Kind of frames.
    pub what: What,
    /// Number of frames to drop; all if `None`.
    pub count: Option<u64>,
}

/// Kind of frames that a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All frames.
    Everything,
    /// Frames that open a TCP connection.
    Syn,
    /// Frames that open a TCP connection to a port outside of this range.
    SynOutside(u16, u16),
    /// Frames with packets longer than this, including the Ethernet header.
    LongerThan(u64),
    /// The same, on one card of each host.
    LongerThanOn(usize, u64),
}

/// Facts about a frame that the switch uses.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Length and number of its packets.
    pub bundle: Bundle,
    /// The port to which it opens a TCP connection, if it does.
    pub syn_to: Option<u16>,
    /// Bytes of its longest packet, including the Ethernet header.
    pub longest_packet: u64,
}

/// Numbers of frames by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Delivered.
    pub passed: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped at a full queue.
    pub overflowed: u64,
    /// Dropped by a rule, or at a cut cable.
    pub blocked: u64,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Switch,
    Host,
}

#[derive(Clone, Debug)]
struct Flight<P> {
    time: Nanos,
    order: u64,
    at: At,
    to: usize,
    last: Nanos,
    bundle: Bundle,
    payload: P,
}

impl<P> PartialEq for Flight<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Flight<P> {}

impl<P> PartialOrd for Flight<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Flight<P> {
    /// Orders flights so that the earliest is the greatest, as the heap requires.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.order).cmp(&(self.time, self.order))
    }
}

/// The switch with its ports and all frames in flight.
#[derive(Debug)]
pub struct Fabric<P> {
    ports: Vec<Port>,
    rules: Vec<Rule>,
    flights: BinaryHeap<Flight<P>>,
    sent: u64,
    counts: Counts,
}

impl<P: Clone> Fabric<P> {
    /// Makes a switch with these ports.
    #[must_use]
    pub fn new(ports: Vec<Port>) -> Self {
        Self { ports, rules: Vec::new(), flights: BinaryHeap::new(), sent: 0, counts: Counts::default() }
    }

    /// Returns the ports.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the ports, for changes.
    pub fn ports_mut(&mut self) -> &mut [Port] {
        &mut self.ports
    }

    /// Returns the rules, for changes.
    pub fn rules_mut(&mut self) -> &mut Vec<Rule> {
        &mut self.rules
    }

    /// Returns the numbers of frames so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends a frame that leaves the host at port `from` now, to port `to` or to all others of the subnet.
    pub fn send(&mut self, now: Nanos, from: usize, to: Option<usize>, facts: Facts, payload: P) {
        if self.ports[from].is_cut {
            self.counts.blocked += 1;
            return;
        }
        let out = match self.ports[from].up.take(Passage { first: now, last: now }, facts.bundle) {
            Fate::Passes(out) => out,
            Fate::Lost => return self.counts.lost += 1,
            Fate::Overflows => return self.counts.overflowed += 1,
        };
        let subnet = self.ports[from].subnet;
        let targets = match to {
            Some(to) => to..to + 1,
            None => 0..self.ports.len(),
        };
        for to in targets.filter(|to| *to != from) {
            if self.ports[to].subnet != subnet {
                continue;
            }
            if self.is_blocked(from, to, facts) {
                self.counts.blocked += 1;
                continue;
            }
            let Passage { first: time, last } = out;
            self.push(Flight {
                time,
                order: 0,
                at: At::Switch,
                to,
                last,
                bundle: facts.bundle,
                payload: payload.clone(),
            });
        }
    }

    /// Moves all frames up to the given moment. Appends frames that arrive to `arrived`, with their ports.
    pub fn advance(&mut self, now: Nanos, arrived: &mut Vec<(usize, P)>) {
        while self.flights.peek().is_some_and(|flight| flight.time <= now) {
            let Some(mut flight) = self.flights.pop() else { break };
            let port = &mut self.ports[flight.to];
            match flight.at {
                _ if port.is_cut => self.counts.blocked += 1,
                At::Host => {
                    self.counts.passed += 1;
                    arrived.push((flight.to, flight.payload));
                }
                At::Switch => {
                    let into = Passage { first: flight.time, last: flight.last };
                    match port.down.take(into, flight.bundle) {
                        Fate::Passes(out) => {
                            flight.at = At::Host;
                            flight.time = out.last;
                            if port.down.doubles() {
                                self.push(flight.clone());
                            }
                            self.push(flight);
                        }
                        Fate::Lost => self.counts.lost += 1,
                        Fate::Overflows => self.counts.overflowed += 1,
                    }
                }
            }
        }
    }

    /// Returns the time at which [`Self::advance`] has something to do.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        self.flights.peek().map(|flight| flight.time)
    }

    /// Returns until when the card at this port takes nothing more from its host, if it does not take anything now.
    #[must_use]
    pub fn holds_until(&self, port: usize, now: Nanos) -> Option<Nanos> {
        let up = &self.ports[port].up;
        (up.waiting_bytes(now) > CARD_BYTES).then(|| up.below(CARD_BYTES))
    }

    fn push(&mut self, flight: Flight<P>) {
        self.sent += 1;
        self.flights.push(Flight { order: self.sent, ..flight });
    }

    fn is_blocked(&mut self, from: usize, to: usize, facts: Facts) -> bool {
        let nic = self.ports[from].nic;
        let (from, to) = (self.ports[from].host, self.ports[to].host);
        let concerns = |rule: &Rule| {
            let what = match rule.what {
                What::Everything => true,
                What::Syn => facts.syn_to.is_some(),
                What::SynOutside(first, last) => {
                    facts.syn_to.is_some_and(|port| !(first..=last).contains(&port))
                }
                What::LongerThan(bytes) => facts.longest_packet > bytes,
                What::LongerThanOn(card, bytes) => nic == card && facts.longest_packet > bytes,
            };
            what && rule.from.is_none_or(|host| host == from) && rule.to.is_none_or(|host| host == to)
        };
        let Some(at) = self.rules.iter().position(concerns) else { return false };
        if let Some(left) = &mut self.rules[at].count {
            *left -= 1;
            if *left == 0 {
                self.rules.remove(at);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Facts =
        Facts { bundle: Bundle { wire_bytes: 1538, packets: 1 }, syn_to: None, longest_packet: 1514 };
    const SYN: Facts = Facts { syn_to: Some(80), ..FULL };

    fn fabric(ports: usize, rate: u64, queue_bytes: u64) -> Fabric<usize> {
        let shape = Shape { rate: Some(rate), queue_bytes, ..Shape::default() };
        let up = Shape { queue_bytes: u64::MAX, ..shape.clone() };
        Fabric::new((0..ports).map(|at| Port::new(at, 0, 0, up.clone(), shape.clone(), at as u64)).collect())
    }

    fn arrivals(fabric: &mut Fabric<usize>, until: Nanos) -> Vec<(usize, usize)> {
        let mut arrived = Vec::new();
        fabric.advance(until, &mut arrived);
        arrived
    }

    #[test]
    fn two_senders_share_one_receiver_and_the_rest_overflows() {
        let mut fabric = fabric(3, 1_000_000_000, 100 * 1538);
        // Both ports send packets for 10 ms.
        for number in 0..813 {
            fabric.send(0, 0, Some(2), FULL, number);
            fabric.send(0, 1, Some(2), FULL, number);
        }
        let arrived = arrivals(&mut fabric, 20_000_000);
        // The receiver gets half of the packets, and those that the queue holds.
        assert!((813 + 99..=813 + 103).contains(&arrived.len()), "{}", arrived.len());
        assert_eq!(fabric.counts().overflowed as usize, 2 * 813 - arrived.len());
    }

    #[test]
    fn a_busy_card_does_not_hold_up_what_others_send() {
        let mut fabric = fabric(4, 1_000_000_000, u64::MAX);
        for _ in 0..100 {
            fabric.send(0, 0, Some(3), FULL, 0);
        }
        fabric.send(0, 0, Some(2), FULL, 1);
        fabric.send(10, 1, Some(2), FULL, 2);
        // The frame of port 1 arrives before that of port 0, which is behind a hundred others.
        let arrived = arrivals(&mut fabric, 10_000_000);
        let order: Vec<usize> = arrived.iter().filter(|(to, _)| *to == 2).map(|(_, what)| *what).collect();
        assert_eq!(order, [2, 1]);
        assert_eq!(fabric.holds_until(0, 0), Some(fabric.ports[0].up.below(CARD_BYTES)));
        assert_eq!(fabric.holds_until(1, 0), None);
    }

    #[test]
    fn broadcasts_stay_in_their_subnet() {
        let mut fabric = fabric(4, 1_000_000_000, u64::MAX);
        fabric.ports_mut()[3].subnet = 1;
        fabric.send(0, 0, None, FULL, 0);
        fabric.send(0, 0, Some(3), FULL, 0);
        let to: Vec<usize> = arrivals(&mut fabric, 1_000_000).iter().map(|(to, _)| *to).collect();
        assert_eq!(to, [1, 2]);
    }

    #[test]
    fn a_cut_cable_loses_what_is_on_it() {
        let mut fabric = fabric(2, 1_000_000_000, u64::MAX);
        fabric.send(0, 0, Some(1), FULL, 0);
        fabric.ports_mut()[1].is_cut = true;
        assert_eq!(arrivals(&mut fabric, 1_000_000), []);
        fabric.send(2_000_000, 1, Some(0), FULL, 1);
        fabric.ports_mut()[1].is_cut = false;
        fabric.send(2_000_000, 1, Some(0), FULL, 2);
        assert_eq!(arrivals(&mut fabric, 3_000_000), [(0, 2)]);
        assert_eq!(fabric.counts(), Counts { passed: 1, lost: 0, overflowed: 0, blocked: 2 });
    }

    #[test]
    fn some_packets_arrive_twice() {
        let mut fabric = fabric(2, 1_000_000_000, u64::MAX);
        fabric.ports_mut()[1].down.reshape(Shape { duplicate: 0.5, ..Shape::default() });
        (0..1000).for_each(|number| fabric.send(0, 0, Some(1), FULL, number));
        let arrived = arrivals(&mut fabric, 100_000_000);
        assert!((1400..1600).contains(&arrived.len()), "{}", arrived.len());
    }

    #[test]
    fn rules_drop_as_often_as_they_say() {
        let mut fabric = fabric(2, 1_000_000_000, u64::MAX);
        let rule = Rule { from: Some(0), to: Some(1), what: What::Syn, count: Some(2) };
        fabric.rules_mut().push(rule);
        fabric.rules_mut().push(Rule { from: Some(1), to: None, what: What::LongerThan(1400), count: None });
        for number in 0..4 {
            fabric.send(0, 0, Some(1), SYN, number);
        }
        fabric.send(0, 1, Some(0), FULL, 4);
        fabric.send(0, 1, Some(0), Facts { longest_packet: 1400, ..FULL }, 5);
        let mut arrived = arrivals(&mut fabric, 1_000_000);
        arrived.sort_unstable();
        assert_eq!(arrived, [(0, 5), (1, 2), (1, 3)]);
    }
}
