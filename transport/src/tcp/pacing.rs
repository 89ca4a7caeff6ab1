//! Pacing of long messages that this end sends to several hosts at the same time.
//!
//! If every rank sends to all others at once, as many senders meet at each receiver's link, and the bursts in which the
//! kernel sends overflow the queue before it. Each sender then has as many receivers as each receiver has senders.
//! Therefore a sender that gives each of its connections an equal part of the link's rate keeps the queues short. See
//! docs/measurements.md, *All-to-alls between hosts*.
//!
//! The rate is the one that was learned ([`expect`](crate::Endpoint::expect)), or a higher one that the connections have
//! shown ([`climb`](super::climb)); if none was learned, nothing is paced. The kernel takes a message long before it has
//! sent the message, so the bytes that are left are counted in the sockets.
//!
//! To near hosts, the kernel sends trains of up to 64 KiB, whatever the pace. The last bytes of a message then wait for a
//! long time, and the first trains of all senders together overflow a queue by themselves. A paced connection is therefore
//! given its bytes in shorter trains. Long messages begin with the poll after they were posted, when all connections that
//! have some are known.

use std::time::{Duration, Instant};

use socket2::Socket;

use super::address::Host;
use super::climb::{Carried, Climb};
use super::endpoint::{Peer, TcpEndpoint};
use super::link::{Link, State};
use super::outbound::Train;
use super::socket::{self, TcpInfo};
use crate::endpoint::Paced;

/// Length from which messages are paced. The kernel sends up to 64 KiB to each host in turn, and each host begins with
/// another one. So these bursts do not meet, unless hosts have several ranks.
const LONG_BYTES: usize = 96 << 10;
const LONG_AMONG_SEVERAL_BYTES: usize = 64 << 10;

/// Bytes that the queue before a host's link holds at least. Fewer bytes need no pace, even if they all come at once.
const QUEUE_BYTES: usize = 256 << 10;

/// Time of a train of packets at the connection's pace, as the kernel has it for paths with longer round trips.
const TRAIN_SECONDS: f64 = 1e-3;

/// Limits on the length of a train. Shorter trains take so much processor time that the next one is late, and the kernel
/// makes no longer ones.
const TRAIN_LEAST_BYTES: usize = 32 << 10;
const TRAIN_MOST_BYTES: usize = 64 << 10;

/// Bytes left of a message below which its connection no longer counts.
const LEFT_BYTES: usize = 32 << 10;

/// Least number of hosts. Two senders that take turns at a link do not overflow its queue.
const HOSTS_LEAST: usize = 3;

/// Rate in bytes per second up to which connections are paced. Faster paths are mostly those inside a machine, where the
/// timers cost more than the losses.
const RATE_MOST: f64 = 1.3e9;

/// Rate in bytes per second up to which a message's time on the link matters more than the calls that send it alone.
const SLOW_RATE: f64 = 1.5e8;

/// Time between two looks at the bytes that are left.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// The kernel's value for a connection without a limit.
const UNPACED: u32 = u32::MAX;

/// The connections to near hosts that have long messages to send.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    links: Vec<u32>,
    /// Host and rank of each receiver of long messages; scratch memory for a look.
    receivers: Vec<(Host, u32)>,
    /// Time of the last look.
    looked_at: Option<Instant>,
    /// Whether a connection has joined since the last look.
    is_due: bool,
    /// Whether the last look found that a queue may overflow.
    is_pacing: bool,
    climb: Climb,
    paced: Paced,
}

/// The pace of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The peer's host; `None` if the connection is never paced.
    host: Option<Host>,
    /// Length from which messages are paced.
    long_bytes: usize,
    /// Whether each message leaves as a train of its own, so that the receiver can pass it on before the next one.
    is_slow: bool,
    /// Whether the path is known to be near.
    is_near: bool,
    /// The limit that the kernel has been told.
    bytes_per_second: u32,
    /// Whether it has long messages to send, which begin with the next poll.
    pub(super) is_listed: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            host: None,
            long_bytes: LONG_BYTES,
            is_slow: false,
            is_near: false,
            bytes_per_second: UNPACED,
            is_listed: false,
        }
    }
}

/// The long messages that an end sends at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    connections: usize,
    /// Number of hosts to which they lead.
    hosts: usize,
    /// Number of this host's ranks that send at the same time. In a symmetric exchange, it is the number of ranks of
    /// another host that this end sends to.
    senders: u32,
    /// Bytes that this end has yet to send.
    left_bytes: usize,
}

impl Load {
    /// Whether the queue before a host may overflow if nothing is paced: as much comes to each host as its ranks send.
    fn may_overflow(self) -> bool {
        self.hosts >= HOSTS_LEAST && self.left_bytes.saturating_mul(self.senders as usize) > QUEUE_BYTES
    }

    /// Returns the pace of each connection on a path of this rate (0 if it is unknown), in bytes per second.
    fn pace(self, bytes_per_second: f64) -> u32 {
        let parts = self.connections as f64 * f64::from(self.senders);
        let pace = (bytes_per_second / parts) as u32;
        if pace == 0 || bytes_per_second > RATE_MOST { UNPACED } else { pace }
    }
}

impl Pace {
    /// Looks at the round trip, unless the path is known to be near. A busy processor or a full queue may have made
    /// those so far seem long. Returns whether the path is near.
    fn see(&mut self, socket: &Socket, peer: &mut Peer) -> bool {
        if self.host.is_some() && !self.is_near && !peer.is_far(socket) {
            self.is_near = true;
            socket::hasten(socket);
        }
        self.is_near
    }

    /// Takes note of the rate of the path, in bytes per second (0 if it is unknown).
    pub(super) fn expect(&mut self, bytes_per_second: f64) {
        self.is_slow = bytes_per_second > 0.0 && bytes_per_second <= SLOW_RATE;
    }

    /// Returns how the connection's bytes are divided into trains of packets; `None` if the kernel decides.
    pub(super) fn train(&self) -> Option<Train> {
        if self.bytes_per_second == UNPACED {
            return (self.host.is_some() && self.is_slow).then_some(Train::Message);
        }
        let bytes = (TRAIN_SECONDS * f64::from(self.bytes_per_second)) as usize;
        Some(Train::UpTo(bytes.clamp(TRAIN_LEAST_BYTES, TRAIN_MOST_BYTES)))
    }
}

impl Link {
    /// Returns the bytes of messages that are posted and have not left this host.
    fn left_bytes(&self) -> usize {
        let State::Open(socket) = &self.state else { return 0 };
        socket::unsent_bytes(socket) + self.outbound.left_bytes()
    }

    /// Returns whether a message of this length may change paces.
    pub(super) fn wants_pace(&self, len: usize) -> bool {
        self.pace.host.is_some() && len >= self.pace.long_bytes && !self.pace.is_listed
    }
}

impl TcpEndpoint {
    /// Prepares a new connection to another host for pacing.
    pub(super) fn prepare_pace(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        let is_direct = link.route.as_ref().is_some_and(|route| !route.is_relayed);
        let State::Open(socket) = &link.state else { return };
        let to = link.channel.peer as usize;
        let host_of = |peer: &Peer| peer.address.as_ref().map(|address| address.host);
        let host = host_of(&self.peers[to]);
        if host.is_none() || !self.options.pacing || !is_direct {
            return;
        }
        let ranks = self.peers.iter().filter(|peer| host_of(peer) == host).take(2).count();
        link.pace.long_bytes = if ranks > 1 { LONG_AMONG_SEVERAL_BYTES } else { LONG_BYTES };
        link.pace.host = host;
        link.pace.expect(self.peers[to].expected);
        link.pace.see(socket, &mut self.peers[to]);
        // Messages may have waited for the connection.
        let left = link.outbound.left_bytes();
        self.pace(number, left);
    }

    /// Lists a link for messages of `len` bytes that are about to be sent, if they may be paced. The next poll sets the
    /// pace, when all connections that have such messages are known.
    pub(super) fn pace(&mut self, number: u32, len: usize) {
        let Self { pacing, links, peers, .. } = self;
        let link = &mut links[number as usize];
        let peer = &mut peers[link.channel.peer as usize];
        let State::Open(socket) = &link.state else { return };
        let has_pace = peer.expected > 0.0 && peer.expected <= RATE_MOST;
        // If a channel has several connections, these share the path by what each carries.
        if !has_pace || !link.wants_pace(len) || link.bundle.is_some() {
            return;
        }
        if link.pace.see(socket, peer) {
            link.pace.is_listed = true;
            pacing.links.push(number);
            pacing.climb.begin_again();
            pacing.is_due = true;
        }
    }

    /// Brings the paces up to date, if there are any and some time has passed or a connection has joined.
    pub(super) fn repace(&mut self) {
        if self.pacing.links.is_empty() {
            return;
        }
        let now = Instant::now();
        let is_early = |at| now.saturating_duration_since(at) < LOOK_EVERY;
        if self.pacing.is_due || !self.pacing.looked_at.is_some_and(is_early) {
            self.look_at_paces(now);
        }
    }

    fn look_at_paces(&mut self, now: Instant) {
        let Self { pacing, links, peers, .. } = self;
        (pacing.looked_at, pacing.is_due) = (Some(now), false);
        let mut listed = std::mem::take(&mut pacing.links);
        let before = listed.len();
        let mut left_bytes = 0;
        listed.retain(|&number| {
            let link = &mut links[number as usize];
            let left = link.left_bytes();
            link.pace.is_listed = link.bundle.is_none() && left >= LEFT_BYTES;
            left_bytes += if link.pace.is_listed { left } else { 0 };
            if !link.pace.is_listed {
                pacing.apply(link, UNPACED);
            }
            link.pace.is_listed
        });
        if listed.len() < before {
            pacing.climb.begin_again();
        }
        pacing.links = listed;
        let load = pacing.load(links, left_bytes);
        pacing.is_pacing = load.may_overflow() || pacing.is_pacing && load.hosts >= HOSTS_LEAST;
        let (mut sum, mut highest) = (0.0, 0.0_f64);
        for at in 0..pacing.links.len() {
            let link = &mut links[pacing.links[at] as usize];
            let rate = pacing.climb.rate(peers[link.channel.peer as usize].expected, RATE_MOST);
            let pace = if pacing.is_pacing { load.pace(rate) } else { UNPACED };
            pacing.apply(link, pace);
            (sum, highest) = (sum + f64::from(pace), highest.max(rate));
        }
        if pacing.is_pacing && highest <= RATE_MOST && pacing.climb.is_due(now, sum, load.connections) {
            let carried = pacing.carried(links);
            pacing.climb.look(now, carried, sum, highest >= RATE_MOST);
        }
    }
}

impl Pacing {
    /// See [`Endpoint::paced`](crate::Endpoint::paced).
    pub(super) fn paced(&self) -> Option<&Paced> {
        Some(&self.paced).filter(|paced| paced.times > 0)
    }

    fn load(&mut self, links: &[Link], left_bytes: usize) -> Load {
        let listed = self.links.iter().map(|&number| &links[number as usize]);
        self.receivers.clear();
        self.receivers.extend(listed.filter_map(|link| Some((link.pace.host?, link.channel.peer))));
        // A peer may receive on several channels.
        self.receivers.sort_unstable();
        self.receivers.dedup();
        let hosts = || self.receivers.chunk_by(|a, b| a.0 == b.0);
        Load {
            connections: self.links.len(),
            hosts: hosts().count(),
            senders: hosts().map(|ranks| ranks.len() as u32).max().unwrap_or(0),
            left_bytes,
        }
    }

    /// Counts what the paced connections have carried.
    fn carried(&self, links: &[Link]) -> Carried {
        let mut carried = Carried::default();
        for &number in &self.links {
            let State::Open(socket) = &links[number as usize].state else { continue };
            let info = TcpInfo::of(socket).unwrap_or_default();
            carried.bytes += info.acknowledged_bytes;
            carried.resent += u64::from(info.resent);
        }
        carried
    }

    /// Tells the kernel a connection's pace, unless the kernel knows it.
    fn apply(&mut self, link: &mut Link, pace: u32) {
        let State::Open(socket) = &link.state else { return };
        let before = std::mem::replace(&mut link.pace.bytes_per_second, pace);
        if before == pace {
            return;
        }
        if let Err(error) = socket::pace(socket, pace) {
            self.paced.problem = Some(error.to_string());
        }
        if pace != UNPACED {
            self.paced.times += u64::from(before == UNPACED);
            self.paced.bytes_per_second = pace.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TcpOptions;
    use super::super::tests::{introduce, until};
    use super::*;
    use crate::endpoint::{Channel, Endpoint, Event, OnMisfit, Piece, Sink, Token};

    /// Returns the load of an end that sends as many bytes to each of a host's ranks, of `hosts` hosts.
    fn load(hosts: usize, senders: u32, bytes: usize) -> Load {
        let connections = hosts * senders as usize;
        Load { connections, hosts, senders, left_bytes: connections * bytes }
    }

    #[test]
    fn connections_share_the_link() {
        let pace = |hosts, senders, rate| load(hosts, senders, LEN).pace(rate);
        assert_eq!([pace(3, 1, 1e8), pace(7, 1, 1e8)], [33_333_333, 14_285_714]);
        assert_eq!(pace(3, 2, 1e8), 8_333_333, "two ranks of each host send");
        assert_eq!(pace(3, 1, 1e10), UNPACED, "the path is fast");
        assert_eq!(pace(3, 1, 0.0), UNPACED, "no rate is known");
    }

    #[test]
    fn what_fits_a_queue_needs_no_pace() {
        let may_overflow = |hosts, senders, kib: usize| load(hosts, senders, kib << 10).may_overflow();
        assert!(
            !may_overflow(2, 1, 1 << 20) && !may_overflow(2, 4, 1 << 20) && !load(0, 0, 0).may_overflow()
        );
        assert!(!may_overflow(3, 1, 80) && may_overflow(3, 1, 96));
        assert!(!may_overflow(3, 2, 20) && may_overflow(3, 2, 64));
    }

    #[test]
    fn a_pace_gives_the_length_of_trains() {
        let pace = |bytes_per_second| Pace { bytes_per_second, ..Pace::default() };
        let trains = [1_000_000, 50_000_000, 400_000_000].map(|pace_of| pace(pace_of).train());
        assert_eq!(trains, [32_768, 50_000, 65_536].map(|longest| Some(Train::UpTo(longest))));
        assert_eq!(pace(UNPACED).train(), None);
    }

    const LEN: usize = 16 << 20;

    const THREE: [(u32, u16); 3] = [(1, 0), (2, 0), (3, 0)];

    /// Makes an end, three peers that seem to be on hosts of their own, and paths of known rate to them.
    fn star(pacing: bool) -> Vec<TcpEndpoint> {
        star_with(TcpOptions { pacing, ..TcpOptions::default() })
    }

    fn star_with(options: TcpOptions) -> Vec<TcpEndpoint> {
        let options = || TcpOptions { dial_patience: Duration::ZERO, ..options.clone() };
        let mut ends: Vec<_> = (0..4).map(|rank| TcpEndpoint::new(rank, 4, options()).unwrap()).collect();
        introduce(&mut ends);
        for (peer, other) in (0..).zip(&mut ends[0].peers).skip(1) {
            other.address.as_mut().expect("introduced").host.namespace += peer;
        }
        (1..4).for_each(|peer| ends[0].expect(peer, 1e9));
        ends
    }

    /// Returns the pace of each connection of the first end, as the kernel has it.
    fn paces(end: &TcpEndpoint) -> Vec<u32> {
        let open = end.links.iter().filter_map(|link| match &link.state {
            State::Open(socket) => Some(socket::pace_of(socket).expect("an option of every socket")),
            _ => None,
        });
        open.collect()
    }

    /// Sends a long message on some channels, of which each is a peer and an index. Returns the paces before the peers
    /// receive it and after they have.
    fn send(ends: &mut [TcpEndpoint], on: &[(u32, u16)]) -> [Vec<u32>; 2] {
        send_of(ends, on, LEN)
    }

    fn send_of(ends: &mut [TcpEndpoint], on: &[(u32, u16)], len: usize) -> [Vec<u32>; 2] {
        let mut source = vec![7_u8; len];
        let mut targets = vec![vec![0_u8; len]; on.len()];
        let from = [Piece { ptr: source.as_mut_ptr(), len }];
        let into: Vec<_> = targets.iter_mut().map(|to| [Piece { ptr: to.as_mut_ptr(), len }]).collect();
        let mut events = Vec::new();
        for &(peer, index) in on {
            // SAFETY: bytes and pieces outlive the tokens, which complete below.
            let _ = unsafe { ends[0].post_send(Channel { peer, index }, 1, &from, Token(0)) }.unwrap();
        }
        until("connections", || {
            ends.iter_mut().for_each(|end| {
                end.poll(&mut events);
                end.connect(&mut events);
            });
            (paces(&ends[0]).len() == on.len()).then_some(())
        });
        ends[0].poll(&mut events);
        let during = paces(&ends[0]);
        for (&(peer, index), to) in on.iter().zip(&into) {
            // SAFETY: as above.
            let posted = unsafe {
                let on = Channel { peer: 0, index };
                ends[peer as usize].post_recv(on, 1, Sink::Place(to), OnMisfit::Fail, Token(1))
            };
            let _ = posted.unwrap();
        }
        let mut open = 2 * on.len();
        until("the messages", || {
            ends.iter_mut().for_each(|end| {
                end.poll(&mut events);
            });
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{event:?}");
                open -= 1;
            }
            (open == 0).then_some(())
        });
        assert!(targets.iter().all(|target| *target == source));
        // The last acknowledgements may be on their way.
        until("the end of pacing", || {
            ends[0].poll(&mut events);
            ends[0].pacing.links.is_empty().then_some(())
        });
        [during, paces(&ends[0])]
    }

    #[test]
    fn the_kernel_paces_long_messages_to_three_hosts_until_they_have_arrived() {
        let mut ends = star(true);
        assert_eq!(send(&mut ends, &THREE), [vec![333_333_333; 3], vec![UNPACED; 3]]);
        let paced = ends[0].paced().expect("it has paced");
        assert_eq!((paced.times, paced.problem.clone()), (3, None));
    }

    #[test]
    fn the_channels_of_a_peer_share_its_part() {
        let both = [0, 1].map(|index| THREE.map(|(peer, _)| (peer, index)));
        let mut ends = star(true);
        assert_eq!(send(&mut ends, both.as_flattened()), [vec![166_666_666; 6], vec![UNPACED; 6]]);
        // Two of the ranks are on one host.
        ends = star(true);
        let host = ends[0].peers[1].address.as_ref().expect("introduced").host;
        ends[0].peers[2].address.as_mut().expect("introduced").host = host;
        assert_eq!(send(&mut ends, both.as_flattened()), [vec![UNPACED; 6], vec![UNPACED; 6]]);
    }

    #[test]
    fn shorter_messages_are_paced_only_among_hosts_of_several_ranks() {
        // Peers that do not receive take less than a message, so that it is seen.
        let mut ends = star_with(TcpOptions { recv_buffer_bytes: Some(8 << 10), ..TcpOptions::default() });
        let three = vec![UNPACED; 3];
        assert_eq!(send_of(&mut ends, &THREE, 90_000), [three.clone(), three.clone()]);
        assert_eq!(send_of(&mut ends, &THREE, 100_000), [vec![333_333_333; 3], three.clone()]);
        ends[0].links.iter_mut().for_each(|link| link.pace.long_bytes = LONG_AMONG_SEVERAL_BYTES);
        assert_eq!(send_of(&mut ends, &THREE, 90_000), [vec![333_333_333; 3], three]);
    }

    #[test]
    fn messages_leave_one_by_one_once_a_path_is_known_to_be_slow() {
        let mut ends = star(true);
        send_of(&mut ends, &THREE, 1000);
        let trains =
            |end: &TcpEndpoint| -> Vec<_> { end.links.iter().map(|link| link.pace.train()).collect() };
        assert_eq!(trains(&ends[0]), [None; 3], "a fast path");
        (1..4).for_each(|peer| ends[0].expect(peer, 1e8));
        assert_eq!(trains(&ends[0]), [Some(Train::Message); 3], "its connections were made before");
        let mut ends = star(false);
        (1..4).for_each(|peer| ends[0].expect(peer, 1e8));
        send_of(&mut ends, &THREE, 1000);
        assert_eq!(trains(&ends[0]), [None; 3], "it is turned off");
    }

    #[test]
    fn nothing_is_paced_for_two_hosts_nor_if_it_is_turned_off() {
        let two = vec![UNPACED; 2];
        assert_eq!(send(&mut star(true), &THREE[..2]), [two.clone(), two]);
        let mut ends = star(false);
        let three = vec![UNPACED; 3];
        assert_eq!(send(&mut ends, &THREE), [three.clone(), three]);
        assert_eq!(ends[0].paced(), None);
    }

    #[test]
    fn a_rate_that_was_learned_too_low_does_not_hold_connections_back() {
        let mut ends = star(true);
        (1..4).for_each(|peer| ends[0].expect(peer, 1e7));
        let [during, after] = send(&mut ends, &THREE);
        assert_eq!((during, after), (vec![3_333_333; 3], vec![UNPACED; 3]));
        // A trial fails, for ten seconds, where the processors are taken away in it.
        let long = Instant::now() + Duration::from_secs(60);
        while ends[0].pacing.climb.rate(1e7, RATE_MOST) <= 2e7 && Instant::now() < long {
            send(&mut ends, &THREE);
        }
        let rate = ends[0].pacing.climb.rate(1e7, RATE_MOST);
        assert!(rate > 2e7, "{rate} bytes per second, of a loopback device's billions");
    }

    #[test]
    fn nothing_is_paced_on_one_host_nor_at_an_unknown_rate() {
        let mut ends = star(true);
        (1..4).for_each(|peer| ends[0].expect(peer, 0.0));
        let three = vec![UNPACED; 3];
        assert_eq!(send(&mut ends, &THREE), [three.clone(), three.clone()]);
        let mut ends = star(true);
        let here = ends[0].host;
        ends[0]
            .peers
            .iter_mut()
            .filter_map(|peer| peer.address.as_mut())
            .for_each(|address| address.host = here);
        assert_eq!(send(&mut ends, &THREE), [three.clone(), three]);
    }
}
