//! Further connections (strands) of a channel. The end that dialed the first connection dials these too, when the
//! first long message is sent; so there is no tie to break. If a connection cannot be made, the channel does without
//! it. That is recorded as a problem of its path unless the path carries another connection. The next channels try the path
//! again after a while, or at once if this rank had no descriptor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::congestion::{self, Losses};
use super::dial::{Dial, Dialed};
use super::endpoint::{Peer, TcpEndpoint};
use super::link::{State, Strands};
use super::park::Whose;
use super::route::Candidate;
use super::socket;
use super::stripes::{Bundle, Path, Strand, UNSENT_BYTES};
use super::window::Window;
use super::wire::Verdict;
use crate::endpoint::Channel;
use crate::sys::unshared::Unshared;

/// Maximum number of connections of a channel. A link has a bit for each.
const STRANDS_MAX: usize = u16::BITS as usize;

/// Time for which a path that has failed is not tried. A peer without descriptors fails after one second.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

impl Peer {
    /// Returns the number of the path to that address of the peer, which is added if it is new.
    fn path(&mut self, remote: SocketAddr) -> usize {
        let remote = remote.ip();
        if let Some(known) = self.paths.iter().position(|path| path.remote == remote) {
            return known;
        }
        let interface = self.rails.iter().find(|rail| rail.to.ip() == remote);
        let interface = interface.map_or_else(String::new, |rail| rail.interface.clone());
        self.paths.push(Path::new(remote, interface));
        self.paths.len() - 1
    }
}

impl Path {
    fn fail(&mut self, problem: String, now: Instant) {
        (self.problem, self.failed_at, self.is_proven) = (Some(problem), Some(now), false);
    }

    fn recover(&mut self) {
        (self.problem, self.failed_at) = (None, None);
    }

    fn may_be_tried(&self, now: Instant) -> bool {
        self.failed_at.is_none_or(|at| now >= at + AGAIN_AFTER)
    }
}

impl TcpEndpoint {
    /// Prepares a newly connected link for long messages.
    pub(super) fn prepare(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        let State::Open(socket) = &link.state else { return };
        let peer = &self.peers[link.channel.peer as usize];
        if !peer.address.as_ref().is_some_and(|address| self.host.same_stack(&address.host)) {
            self.resends.limit(socket);
            link.window = Window::of(socket, &self.options, peer.expected);
            link.losses = Losses::of(socket, &self.options.congestion);
            self.prepare_pace(number);
        }
        self.bundle(number);
    }

    /// Prepares a link for further connections, if there is a path for them and it is not prepared yet.
    fn bundle(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        let peer = &mut self.peers[link.channel.peer as usize];
        let loopback = peer.address.as_ref().is_some_and(|address| self.host.same_stack(&address.host));
        let State::Open(socket) = &link.state else { return };
        let is_relayed = link.route.as_ref().is_some_and(|route| route.is_relayed);
        let streams = if loopback || is_relayed {
            1
        } else {
            let is_far = peer.is_far(socket);
            congestion::streams(socket, self.options.streams, peer.expected, is_far)
        };
        // The relay's address is not one of the peer's, and does not permit further connections.
        let remote = link.route.as_ref().filter(|route| !route.is_relayed).and_then(|route| route.remote);
        if let Some(remote) = remote
            && link.bundle.is_none()
            && (peer.rails.len() > 1 || streams > 1)
        {
            link.bundle = Some(Box::new(Bundle::new(peer.path(remote))));
            (link.outbound.stripes, link.inbound.expects_parts) = (true, true);
        }
    }

    /// Records the rate of the path to a peer, and prepares its connections for that.
    pub(super) fn expect_rate(&mut self, peer: u32, bytes_per_second: f64) {
        let Some(known) = self.peers.get_mut(peer as usize) else { return };
        known.expected = bytes_per_second;
        for number in known.links.clone() {
            let Some(link) = self.links.get_mut(number as usize) else { continue };
            link.pace.expect(bytes_per_second);
            let State::Open(first) = &link.state else { continue };
            if let Some(window) = &mut link.window {
                window.expect(first, bytes_per_second);
            }
            for strand in link.bundle.iter_mut().flat_map(|bundle| &mut bundle.strands) {
                if let (Some(socket), Some(window)) = (&strand.socket, &mut strand.window) {
                    window.expect(socket, bytes_per_second);
                }
            }
            self.bundle(number);
        }
    }

    /// Dials the further connections of a channel, if this end has dialed the first.
    pub(super) fn dial_strands(&mut self, number: u32) {
        let now = Instant::now();
        let link = &mut self.links[number as usize];
        link.strands = Strands::None;
        let on = link.channel;
        let Some(route) = link.route.as_ref().filter(|route| route.is_dialed) else { return };
        let known = &mut self.peers[on.peer as usize];
        let Some(instance) = known.address.as_ref().map(|address| address.instance) else { return };
        let (Some(first), State::Open(socket)) = (route.remote, &link.state) else { return };
        let is_far = known.is_far(socket);
        let streams = congestion::streams(socket, self.options.streams, known.expected, is_far);
        // The first connection is one of the streams on its path.
        let again = (1..streams).map(|_| (first, String::new(), None));
        let others = known.rails.iter().filter(|rail| rail.to.ip() != first.ip()).flat_map(|rail| {
            let from = Some((rail.interface.clone(), rail.source));
            (0..streams).map(move |_| (rail.to, rail.at.clone(), from.clone()))
        });
        let ways: Vec<_> = again.chain(others).take(STRANDS_MAX - 1).collect();
        let mut dials = Vec::new();
        for (to, at, from) in ways {
            let path = known.path(to);
            if !known.paths[path].may_be_tried(now) {
                continue;
            }
            // The first connection's path carries the messages in any case.
            let is_padded = to.ip() != first.ip() && !known.paths[path].is_proven;
            let strand = dials.len() as u16 + 1;
            let hello = match is_padded {
                true => self.me.padded_hello(on, strand, instance),
                false => self.me.hello(on, strand, instance),
            };
            let candidate = Candidate { to, interface: at, distance: 0, from };
            let dial = Dial::new(hello, instance, false, &[candidate], now);
            dials.push((path, if is_padded { dial.padded() } else { dial }));
        }
        if !dials.is_empty() {
            link.strands = Strands::Dialing(dials);
            self.stranding.push(number);
        }
    }

    /// Steps the dials of further connections; returns whether one has succeeded or failed.
    pub(super) fn step_strands(&mut self, now: Instant) -> bool {
        let mut moved = false;
        let mut at = 0;
        while at < self.stranding.len() {
            let number = self.stranding[at];
            let strands = std::mem::replace(&mut self.links[number as usize].strands, Strands::None);
            let Strands::Dialing(mut dials) = strands else {
                self.stranding.swap_remove(at);
                continue;
            };
            let mut left = Vec::with_capacity(dials.len());
            for (path, mut dial) in dials.drain(..) {
                let (park, watching, deaf) = (&self.park, self.watching, &mut self.deaf);
                let dialed = dial.step(now, &self.options, |socket| {
                    if watching {
                        *deaf |= park.watch(socket, Whose::Connecting).is_err();
                    }
                });
                match dialed {
                    Dialed::Waiting => {
                        left.push((path, dial));
                        continue;
                    }
                    Dialed::Connected(made) => {
                        let peer = self.links[number as usize].channel.peer;
                        self.peers[peer as usize].paths[path].is_proven = true;
                        self.add_strand(number, made.socket, path);
                    }
                    // The next channel tries again at once: nothing is known about the path.
                    Dialed::Starved(error) => {
                        let peer = self.links[number as usize].channel.peer;
                        self.peers[peer as usize].paths[path].problem = Some(error.to_string());
                    }
                    Dialed::Failed { tried, .. } => self.note_failure(number, path, tried, now),
                }
                moved = true;
            }
            let link = &mut self.links[number as usize];
            if left.is_empty() {
                self.stranding.swap_remove(at);
                if link.bundle.as_ref().is_some_and(|bundle| bundle.strands.len() == 1) {
                    // It has turned out that there is no other path.
                    link.outbound.stripes = false;
                }
            } else {
                link.strands = Strands::Dialing(left);
                at += 1;
            }
        }
        moved
    }

    /// Records that a further connection on a path could not be made, unless the path carries one.
    fn note_failure(&mut self, number: u32, path: usize, problem: String, now: Instant) {
        let peer = &mut self.peers[self.links[number as usize].channel.peer as usize];
        let links = peer.links.iter().filter_map(|number| self.links.get(*number as usize));
        let open = links.filter(|link| matches!(link.state, State::Open(_)));
        let mut strands = open.flat_map(|link| &link.bundle).flat_map(|bundle| &bundle.strands);
        if !strands.any(|strand| strand.path == path) {
            peer.paths[path].fail(problem, now);
        }
    }

    /// Returns the verdict on a peer's attempt to add this connection to a channel. Each is welcome once: another hello
    /// with its number is a recorded one.
    pub(super) fn judge_strand(&self, number: u32, strand: u16) -> Verdict {
        let link = &self.links[number as usize];
        let is_new = usize::from(strand) < STRANDS_MAX && link.joined & (1 << strand) == 0;
        match (&link.state, &link.route) {
            (State::Open(_), Some(route)) if !route.is_dialed && is_new => Verdict::Welcome,
            _ => Verdict::Duplicate,
        }
    }

    /// Adds a further connection that the peer has made.
    pub(super) fn join_strand(
        &mut self,
        on: Channel,
        strand: u16,
        socket: Unshared<Socket>,
        from: Option<SocketAddr>,
    ) {
        let (Ok(number), Some(from)) = (self.link(on), from) else { return };
        self.links[number as usize].joined |= 1 << strand;
        let path = self.peers[on.peer as usize].path(from);
        self.add_strand(number, socket, path);
    }

    fn add_strand(&mut self, number: u32, socket: Unshared<Socket>, path: usize) {
        // The name of its congestion control is not recorded; the route shows that of the first connection.
        // Its path may have another round trip than that of the first connection.
        let is_far = congestion::is_far(&socket);
        let _ = congestion::adapt(&socket, &self.options.congestion, is_far);
        if self.watching {
            self.deaf |= self.park.watch(&socket, Whose::Link(number)).is_err();
        }
        self.resends.limit(&socket);
        if self.options.pacing && !is_far {
            socket::hasten(&socket);
        }
        let link = &mut self.links[number as usize];
        let State::Open(first) = &link.state else { return };
        let remote = link.route.as_ref().and_then(|route| route.remote);
        if link.bundle.is_none() {
            let first = remote.map_or(path, |remote| self.peers[link.channel.peer as usize].path(remote));
            link.bundle = Some(Box::new(Bundle::new(first)));
            (link.outbound.stripes, link.inbound.expects_parts) = (true, true);
        }
        let Some(bundle) = &mut link.bundle else { return };
        // No other strand can carry the bytes that one has accepted. Without this option, a strand accepts more than
        // it should.
        for strand in [first, &socket] {
            let _ = socket::keep_unsent(strand, UNSENT_BYTES);
        }
        let losses = Losses::of(&socket, &self.options.congestion);
        let window = Window::of(&socket, &self.options, self.peers[link.channel.peer as usize].expected);
        self.peers[link.channel.peer as usize].paths[path].recover();
        let mut strand = Strand::new(Some(socket), path);
        (strand.losses, strand.window) = (losses, window);
        bundle.strands.push(strand);
        (link.readable, link.writable) = (true, true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{deliver, world};
    use super::*;

    #[test]
    fn a_path_that_failed_is_tried_again_and_one_in_use_is_not_blamed() {
        let mut ends = world(2);
        deliver(&mut ends, 0, 1, 0, 10);
        let number = ends[0].peers[1].links[0];
        let (used, unused) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([192, 0, 2, 1], 1)));
        let [used, unused] = [used, unused].map(|remote| ends[0].peers[1].path(remote));
        ends[0].links[number as usize].bundle = Some(Box::new(Bundle::new(used)));
        let now = Instant::now();
        for path in [used, unused] {
            ends[0].note_failure(number, path, "no answer".into(), now);
        }
        let paths = &mut ends[0].peers[1].paths;
        assert_eq!((&paths[used].problem, &paths[unused].problem), (&None, &Some("no answer".into())));
        assert!(paths[used].may_be_tried(now) && !paths[unused].may_be_tried(now));
        assert!(paths[unused].may_be_tried(now + AGAIN_AFTER));
        paths[unused].recover();
        assert!(paths[unused].problem.is_none() && paths[unused].may_be_tried(now));
    }
}
