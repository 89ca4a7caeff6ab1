//! Connections, which are made on first use and closed when a peer is lost.

use std::io;
use std::time::Instant;

use super::NAME;
use super::congestion;
use super::dial::{Dial, Dialed, Failure};
use super::endpoint::TcpEndpoint;
use super::link::{Awaiting, Route, State, Strands};
use super::park::Whose;
use super::socket;
use crate::endpoint::Event;
use crate::error::{Error, ErrorKind};
use crate::sys::descriptors;
use crate::sys::unshared::Unshared;

/// Number of polls between two checks for awaited peers that are gone, which shows on their other connections.
const GONE_TICKS: u32 = 64;

impl TcpEndpoint {
    /// Starts to connect an idle link: dials, or waits for the peer to dial.
    pub(super) fn ensure_connection(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        link.asked_at = Some(Instant::now());
        let peer = link.channel.peer;
        if self.dials_first(peer) {
            self.dial(number);
        } else {
            let dial_at = Some(Instant::now() + self.options.dial_patience);
            self.await_peer(number, Awaiting { dial_at, tried: None });
        }
    }

    /// Dials if the peer has been introduced; otherwise the introduction will.
    pub(super) fn dial(&mut self, number: u32) {
        let now = Instant::now();
        let relay = self.detour(number, now);
        let link = &mut self.links[number as usize];
        let known = &self.peers[link.channel.peer as usize];
        let Some(address) = &known.address else { return };
        let loopback = self.host.same_stack(&address.host);
        let hello = self.me.hello(link.channel, 0, address.instance);
        let dial = Dial::new(hello, address.instance, loopback, &known.candidates, now).or_by(relay);
        link.state = State::Dialing(Box::new(dial.silent_until(link.lose_at)));
        self.dialing.push(number);
    }

    /// Steps the acceptor and all dials.
    pub(super) fn connect(&mut self, events: &mut Vec<Event>) -> bool {
        let now = Instant::now();
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let relayed = self.step_relays(now);
        let (park, watching, deaf) = (&self.park, self.watching, &mut self.deaf);
        let mut opened = |socket: &socket2::Socket| {
            if watching {
                *deaf |= park.watch(socket, Whose::Connecting).is_err();
            }
        };
        let step = self.acceptor.step(&self.me, now, &self.options, &mut opened, &mut arrivals);
        let mut moved = match step {
            Ok(moved) => moved,
            Err(error) => self.starve(&error, events),
        };
        moved |= relayed;
        let mut at = 0;
        while at < self.dialing.len() {
            if self.step_dial(self.dialing[at], now, events) {
                at += 1;
            } else {
                self.dialing.swap_remove(at);
                moved = true;
            }
        }
        moved |= self.step_strands(now);
        moved |= self.step_proving(now);
        // This comes after the dials, which may have been welcomed meanwhile.
        moved |= self.receive_all(arrivals, now);
        moved |= self.look_after_awaited(now, events);
        if !moved && self.acceptor.is_quiet() {
            moved |= self.miss_the_gone(events);
        }
        moved
    }

    /// Gives up the awaited peers because there are no descriptors for their connections; the error names this rank
    /// as the cause.
    fn starve(&mut self, error: &io::Error, events: &mut Vec<Event>) -> bool {
        let waited_for = self.awaited.iter().map(|&number| &self.links[number as usize]);
        let peers: Vec<u32> =
            waited_for.filter(|link| link.has_tokens()).map(|link| link.channel.peer).collect();
        for &peer in &peers {
            let down = &self.peers[peer as usize].down;
            if down.is_none() {
                let cause = self.out_of_descriptors(peer, "accept connections", error);
                self.lose(peer, cause, events);
            }
        }
        !peers.is_empty()
    }

    fn out_of_descriptors(&self, peer: u32, to_do: &str, error: &io::Error) -> Error {
        descriptors::shortage(NAME, (self.me.rank, Some(peer)), to_do, error)
    }

    /// Steps one dial; returns whether it goes on.
    fn step_dial(&mut self, number: u32, now: Instant, events: &mut Vec<Event>) -> bool {
        let link = &mut self.links[number as usize];
        let peer = link.channel.peer;
        let State::Dialing(dial) = &mut link.state else {
            return false;
        };
        let (park, watching, deaf) = (&self.park, self.watching, &mut self.deaf);
        let dialed = dial.step(now, &self.options, |socket| {
            if watching {
                *deaf |= park.watch(socket, Whose::Connecting).is_err();
            }
        });
        match dialed {
            Dialed::Waiting => true,
            Dialed::Connected(made) => {
                self.peers[peer as usize].dials_first = Some(true);
                let route = Route {
                    remote: Some(made.to),
                    congestion: made.congestion,
                    is_dialed: true,
                    is_relayed: made.is_relayed,
                };
                self.open(number, made.socket, route);
                // The next channels to that peer first try the address that works.
                let candidates = &mut self.peers[peer as usize].candidates;
                if let Some(worked) = candidates.iter().position(|c| c.to == made.to) {
                    candidates[..=worked].rotate_right(1);
                }
                false
            }
            Dialed::Starved(error) => {
                let cause = self.out_of_descriptors(peer, "connect", &error);
                self.lose(peer, cause, events);
                false
            }
            Dialed::Failed { tried, by } if by != Failure::Answer || self.me.rank > peer => {
                self.leave_it_to_the_peer(number, tried, by, now);
                false
            }
            Dialed::Failed { tried, .. } => {
                let detail = format!(
                    "no connection ({tried}); check that the rank is alive, that no firewall is in the way, \
                     and KOLO_SOCKET_IFNAME"
                );
                self.lose(peer, Error::new(ErrorKind::PeerLost, NAME, Some(peer), detail), events);
                false
            }
        }
    }

    pub(super) fn open(&mut self, number: u32, socket: Unshared<socket2::Socket>, mut route: Route) {
        let peer = &mut self.peers[self.links[number as usize].channel.peer as usize];
        // The relay is not on the way to the peer.
        let is_far = if route.is_relayed { congestion::is_far(&socket) } else { peer.is_far(&socket) };
        if let Some(congestion) = congestion::adapt(&socket, &self.options.congestion, is_far) {
            route.congestion = congestion;
        }
        if self.watching {
            self.deaf |= self.park.watch(&socket, Whose::Link(number)).is_err();
        }
        let link = &mut self.links[number as usize];
        // Ends that do not get through to each other now may do so later.
        self.peers[link.channel.peer as usize].is_relayed = route.is_relayed;
        (link.state, link.silences, link.lose_at) = (State::Open(socket), 0, None);
        link.route = Some(route);
        link.readable = true;
        link.writable = true;
        self.prepare(number);
    }

    /// Registers all existing sockets.
    pub(super) fn watch_all(&mut self) {
        self.watching = true;
        self.deaf |= self.park.watch(self.acceptor.bell(), Whose::Connecting).is_err();
        let mut watch =
            |socket: &socket2::Socket, whose| self.deaf |= self.park.watch(socket, whose).is_err();
        self.acceptor.sockets().for_each(|socket| watch(socket, Whose::Connecting));
        self.at_relay.iter().for_each(|at| watch(at.socket(), Whose::Connecting));
        self.proving.iter().for_each(|proving| watch(proving.socket(), Whose::Connecting));
        for (number, link) in self.links.iter().enumerate() {
            if let Strands::Dialing(dials) = &link.strands {
                dials.iter().flat_map(|(_, dial)| dial.sockets()).for_each(|s| watch(s, Whose::Connecting));
            }
            for strand in link.bundle.iter().flat_map(|bundle| &bundle.strands) {
                strand.socket.iter().for_each(|socket| watch(socket, Whose::Link(number as u32)));
            }
            match &link.state {
                State::Open(socket) => watch(socket, Whose::Link(number as u32)),
                State::Dialing(dial) => dial.sockets().for_each(|socket| watch(socket, Whose::Connecting)),
                State::Idle | State::Awaited(_) | State::Gone => {}
            }
        }
    }

    /// Loses the peers that should dial, but have closed their other connections (by rule 2 of the module, they will
    /// not dial any more). Called only when no connection is pending at the acceptor.
    fn miss_the_gone(&mut self, events: &mut Vec<Event>) -> bool {
        let thorough = self.tick.is_multiple_of(GONE_TICKS) || self.armed;
        let gone = self
            .awaited
            .iter()
            .map(|&number| &self.links[number as usize])
            .filter(|link| link.has_tokens())
            .map(|link| link.channel.peer)
            .find(|&peer| {
                self.peers[peer as usize].links.iter().filter_map(|&n| self.links.get(n as usize)).any(
                    |link| {
                        let State::Open(socket) = &link.state else { return false };
                        link.hung_up || thorough && socket::is_at_end(socket)
                    },
                )
            });
        let Some(peer) = gone else { return false };
        let detail = "the peer has closed its connections and will not make the one that this rank waits for";
        self.lose(peer, Error::new(ErrorKind::PeerLost, NAME, Some(peer), detail), events);
        true
    }

    /// Handles the end of a peer: delivers the messages that it had sent whole, and fails everything else.
    pub(super) fn lose(&mut self, peer: u32, cause: Error, events: &mut Vec<Event>) {
        for &number in &self.peers[peer as usize].links {
            let Some(link) = self.links.get_mut(number as usize) else { continue };
            let _ = link.receive(&mut self.work, usize::MAX, true, events);
        }
        self.close_peer(peer, &cause, events);
        let known = &mut self.peers[peer as usize];
        if cause.kind != ErrorKind::PeerLost {
            // The operation that met the cause reports it; later operations report that the peer is lost.
            known.down = Some(Error { kind: ErrorKind::PeerLost, ..cause.clone() });
        }
        events.push(Event::Down { peer, cause });
    }

    /// Fails all tokens of a peer, and closes its connections.
    pub(super) fn close_peer(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        let Some(known) = self.peers.get_mut(peer as usize) else { return };
        let cause = Error { peer: Some(peer), ..cause.clone() };
        for &number in &known.links {
            let Some(link) = self.links.get_mut(number as usize) else { continue };
            link.state = State::Gone;
            (link.bundle, link.strands) = (None, Strands::None);
            link.inbound.probed = false;
            let sends = link.outbound.queue.drain(..).map(|send| send.token);
            let recvs = link.inbound.queue.drain(..).map(|recv| recv.token);
            events.extend(sends.chain(recvs).map(|token| Event::Failed(token, cause.clone())));
        }
        known.candidates = Vec::new();
        known.down.get_or_insert(cause);
        self.proving.retain(|proving| proving.peer() != peer);
    }
}
