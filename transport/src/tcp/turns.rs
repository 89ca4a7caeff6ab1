//! Which end dials, and which connection counts if both have.
//!
//! The lower rank dials first. An end that waits for the other to dial dials itself after a while, because a firewall
//! or a NAT may let connections through in one direction only. A connection counts once the accepting end has
//! welcomed it, and two rules leave only one welcome:
//!
//! 1. The higher rank welcomes the lower's hello even while it dials itself, and gives its own dial up.
//! 2. The lower rank welcomes the higher's hello unless its own hello is on its way, which the higher rank may have
//!    welcomed. In that case the arrival stays pending until the lower rank's dial has succeeded or failed, or for
//!    [`dial_timeout`](super::options::TcpOptions). By then, a higher rank that polls would have answered the lower's
//!    hello, so something on the way has taken it. A higher rank that does not poll finds the welcome first when it
//!    polls again, and rejects the hello behind it as a duplicate.
//!
//! The end whose dial won dials the next channels to that peer at once, and the other end waits for it.

use std::time::Instant;

use super::NAME;
use super::accept::{Arrival, answer_of};
use super::congestion;
use super::dial::Failure;
use super::endpoint::TcpEndpoint;
use super::link::{Awaiting, Route, State};
use super::socket;
use super::wire::{ANSWER_BYTES, Hello, Verdict};
use crate::endpoint::{Channel, Event};
use crate::error::{Error, ErrorKind};

/// Decision on an arrival.
enum Judgement {
    /// The arrival is answered now.
    Answer(Verdict),
    /// The arrival must wait, because this rank's own hello is on its way.
    Wait,
}

impl TcpEndpoint {
    /// Returns whether this end is the first to dial a peer.
    pub(super) fn dials_first(&self, peer: u32) -> bool {
        self.peers[peer as usize].dials_first.unwrap_or(self.me.rank < peer)
    }

    /// Starts to wait for the peer to dial.
    pub(super) fn await_peer(&mut self, number: u32, awaiting: Awaiting) {
        self.links[number as usize].state = State::Awaited(Box::new(awaiting));
        self.awaited.push(number);
    }

    /// Decides on new and deferred arrivals. Returns whether anything happened.
    pub(super) fn receive_all(&mut self, mut arrivals: Vec<Arrival>, now: Instant) -> bool {
        let waited = std::mem::take(&mut self.deferred);
        let mut moved = !arrivals.is_empty();
        for arrival in waited.into_iter().chain(arrivals.drain(..)) {
            moved |= self.receive(arrival, now);
        }
        self.arrivals = arrivals;
        moved
    }

    /// Decides on an arrival; returns whether it is settled.
    fn receive(&mut self, arrival: Arrival, now: Instant) -> bool {
        let verdict = match self.judge(&arrival.hello) {
            Judgement::Answer(verdict) => verdict,
            Judgement::Wait if socket::is_at_end(&arrival.socket) => return false,
            Judgement::Wait if now < self.deferred_until(&arrival) => {
                self.deferred.push(arrival);
                return false;
            }
            Judgement::Wait => Verdict::Welcome,
        };
        if verdict == Verdict::Welcome && arrival.hello.strand > 0 && arrival.hello.is_padded {
            self.prove(arrival, now);
            return true;
        }
        let Arrival { socket, from, is_relayed, hello, bytes, .. } = arrival;
        let on = Channel { peer: hello.from, index: hello.channel };
        let answer = answer_of(&self.me, verdict).encode(Some((&bytes, &self.me.key)));
        // The socket's buffer is empty: the answer is sent whole, or the peer has gone.
        let sent = socket::send_bytes(&socket, &answer);
        if verdict != Verdict::Welcome {
            self.acceptor.note(from, &format!("rank {}, channel {}: {verdict:?}", hello.from, hello.channel));
            return true;
        }
        if !matches!(sent, Ok(ANSWER_BYTES)) {
            return true;
        }
        let known = self.peers[hello.from as usize].address.as_ref();
        let loopback = known.is_some_and(|address| self.host.same_stack(&address.host));
        let congestion = congestion::choose(&socket, &self.options.congestion, loopback);
        let congestion = congestion.unwrap_or_else(|error| error.to_string());
        if hello.strand > 0 {
            self.join_strand(on, hello.strand, socket, from);
        } else if let Ok(number) = self.link(on) {
            let own_dial_lost = match &self.links[number as usize].state {
                State::Dialing(_) => true,
                State::Awaited(awaiting) => awaiting.tried.is_some(),
                State::Idle | State::Open(_) | State::Gone => false,
            };
            if own_dial_lost && self.me.rank < hello.from {
                self.peers[hello.from as usize].dials_first = Some(false);
            }
            self.open(number, socket, Route { remote: from, congestion, is_dialed: false, is_relayed });
        }
        true
    }

    /// Returns the time until which an arrival waits for the outcome of this end's own dial.
    pub(super) fn deferred_until(&self, arrival: &Arrival) -> Instant {
        arrival.since + self.options.dial_timeout
    }

    fn judge(&mut self, hello: &Hello) -> Judgement {
        use Judgement::Answer;
        let peer = &self.peers[hello.from as usize];
        if peer.down.is_some() {
            return Answer(Verdict::Gone);
        }
        if peer.address.as_ref().is_some_and(|address| address.instance != hello.instance) {
            return Answer(Verdict::Instance);
        }
        match self.link(Channel { peer: hello.from, index: hello.channel }) {
            Err(_) => Answer(Verdict::Rank),
            Ok(number) if hello.strand > 0 => Answer(self.judge_strand(number, hello.strand)),
            Ok(number) => match &self.links[number as usize].state {
                State::Idle | State::Awaited(_) => Answer(Verdict::Welcome),
                State::Dialing(_) if self.me.rank > hello.from => Answer(Verdict::Welcome),
                State::Dialing(dial) if dial.has_begun_hello() => Judgement::Wait,
                State::Dialing(_) => Answer(Verdict::Welcome),
                State::Open(_) | State::Gone => Answer(Verdict::Duplicate),
            },
        }
    }

    /// Dials where the peer has not dialed in time, and gives up where neither end gets through.
    pub(super) fn look_after_awaited(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        for number in self.awaited.clone() {
            let link = &mut self.links[number as usize];
            let State::Awaited(awaiting) = &mut link.state else { continue };
            if link.lose_at.is_some_and(|at| now >= at) {
                let (tried, peer) = (awaiting.tried.clone().unwrap_or_default(), link.channel.peer);
                let detail = format!(
                    "no connection ({tried}), and rank {peer} has made none to rank {} either; check that no \
                     firewall is in the way, and KOLO_SOCKET_IFNAME",
                    self.me.rank
                );
                self.lose(peer, Error::new(ErrorKind::PeerLost, NAME, Some(peer), detail), events);
                return true;
            }
            if awaiting.dial_at.is_some_and(|at| now >= at) {
                awaiting.dial_at = Some(now + self.options.dial_patience);
                self.dial(number);
                moved = true;
            }
        }
        let links = &self.links;
        self.awaited.retain(|&number| matches!(links[number as usize].state, State::Awaited(_)));
        moved
    }

    /// Leaves the connection to the peer after this end's dial has failed. The peer may get through; the lower rank
    /// reports an error if it does not in time. Unless something has taken the hello, this end tries again after a while,
    /// and each time waits somewhat longer.
    pub(super) fn leave_it_to_the_peer(&mut self, number: u32, tried: String, by: Failure, now: Instant) {
        const LONGEST_PAUSE: u32 = 2; // as a power of 2
        let link = &mut self.links[number as usize];
        let is_lower = self.me.rank < link.channel.peer;
        // If the peer has posted, it began to dial long ago. After a refusal, which comes at once, it is about to; mostly
        // the peer has ended, unless that would be known.
        let (dial_at, lose_at) = match by {
            Failure::Refusal if !self.options.is_told_of_deaths => {
                (None, Some(now + self.options.dial_patience * 2))
            }
            Failure::Silence | Failure::Refusal => {
                let pause = self.options.dial_patience * (1 << link.silences.min(LONGEST_PAUSE));
                let reach = link.asked_at.unwrap_or(now).checked_add(self.options.reach_within);
                let reach = reach.map(|at| at.max(now + self.options.dial_timeout / 2));
                link.silences += 1;
                (Some(now + pause), link.lose_at.or(reach))
            }
            Failure::Answer => (None, Some(now + self.options.dial_timeout / 2)),
        };
        // A higher rank dials for as long as it wants a connection.
        link.lose_at = lose_at.filter(|_| is_lower);
        self.await_peer(number, Awaiting { dial_at, tried: Some(tried) });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::time::Duration;

    use super::super::{TcpEndpoint, TcpOptions};
    use super::*;
    use crate::endpoint::{Endpoint, OnMisfit, Piece, Posted, Sink, Token};

    const CHANNELS: u16 = 100;

    fn world() -> [TcpEndpoint; 2] {
        let options = || TcpOptions { dial_patience: Duration::ZERO, ..TcpOptions::default() };
        let mut ends = [0, 1].map(|rank| TcpEndpoint::new(rank, 2, options()).unwrap());
        let addresses = [0, 1].map(|rank: usize| ends[rank].address().to_vec());
        ends[0].introduce(1, &addresses[1]).unwrap();
        ends[1].introduce(0, &addresses[0]).unwrap();
        ends
    }

    /// Sends one byte on each channel from one end to the other. An `early` end is driven before the other posts.
    fn exchange(ends: &mut [TcpEndpoint; 2], from: usize, early: Option<usize>) {
        let mut source: Vec<u8> = (0..CHANNELS).map(|index| index as u8).collect();
        let mut target = vec![255_u8; CHANNELS.into()];
        let pieces = |bytes: &mut [u8]| -> Vec<[Piece; 1]> {
            bytes.iter_mut().map(|byte| [Piece { ptr: &raw mut *byte, len: 1 }]).collect()
        };
        let (sources, targets) = (pieces(&mut source), pieces(&mut target));
        let mut open = 0;
        let mut post = |ends: &mut [TcpEndpoint; 2], at: usize| {
            for index in 0..CHANNELS {
                let on = Channel { peer: 1 - at as u32, index };
                // SAFETY: bytes and pieces live until all tokens have completed, below.
                let posted = unsafe {
                    if at == from {
                        ends[at].post_send(on, 1, &sources[usize::from(index)], Token(1))
                    } else {
                        ends[at].post_recv(
                            on,
                            1,
                            Sink::Place(&targets[usize::from(index)]),
                            OnMisfit::Fail,
                            Token(2),
                        )
                    }
                };
                open += u32::from(posted.unwrap() == Posted::Pending);
            }
        };
        let mut events = Vec::new();
        if let Some(early) = early {
            post(ends, early);
            (0..200).for_each(|_| {
                ends[early].poll(&mut events);
            });
            post(ends, 1 - early);
        } else {
            post(ends, 0);
            post(ends, 1);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while open > 0 {
            for end in ends.iter_mut() {
                end.poll(&mut events);
            }
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{event:?}");
                open -= 1;
            }
            assert!(Instant::now() < until, "{open} are left");
        }
        assert_eq!(source, target);
    }

    #[test]
    fn two_ends_that_dial_make_one_connection() {
        for from in [0, 1] {
            for early in [None, Some(0), Some(1)] {
                let mut ends = world();
                exchange(&mut ends, from, early);
                // Uses the same connections in the other direction.
                exchange(&mut ends, 1 - from, None);
            }
        }
    }

    #[test]
    fn the_higher_rank_gets_through_a_firewall_that_refuses_the_lower_ones_connections() {
        let mut ends = world();
        // Nobody listens there any more.
        let refused = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::conformance::free_port()));
        ends[0].options.dial_patience = Duration::from_secs(10);
        ends[0].peers[1].candidates.truncate(1);
        ends[0].peers[1].candidates[0].to = refused;
        exchange(&mut ends, 1, Some(0));
        assert_eq!(ends[0].peers[1].dials_first, Some(false));
    }

    #[test]
    fn the_higher_ranks_connection_counts_if_something_else_takes_the_lower_ranks_hello() {
        let mut ends = world();
        let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        ends[0].options.dial_timeout = Duration::from_millis(100);
        ends[0].peers[1].candidates.truncate(1);
        ends[0].peers[1].candidates[0].to = mute.local_addr().unwrap();
        exchange(&mut ends, 1, Some(0));
        assert!(ends[0].deferred.is_empty());
        assert_eq!(ends[0].peers[1].dials_first, Some(false));
    }

    #[test]
    fn an_end_that_met_silence_dials_again_and_gives_up_in_time() {
        let mut ends = world();
        let options = &mut ends[0].options;
        (options.dial_patience, options.reach_within) = (Duration::from_secs(1), Duration::from_secs(20));
        let number = ends[0].link(Channel { peer: 1, index: 0 }).unwrap();
        let (began, mut events) = (Instant::now(), Vec::new());
        ends[0].links[number as usize].asked_at = Some(began);
        for (at, pause) in [(3, 1), (6, 2), (9, 4), (15, 4)] {
            let now = began + Duration::from_secs(at);
            ends[0].leave_it_to_the_peer(number, "no answer".into(), Failure::Silence, now);
            let due = now + Duration::from_secs(pause);
            assert!(!ends[0].look_after_awaited(due - Duration::from_millis(1), &mut events), "{at} s");
            assert!(ends[0].look_after_awaited(due, &mut events), "{at} s");
            assert!(matches!(ends[0].links[number as usize].state, State::Dialing(_)), "{at} s");
            assert!(ends[0].is_unheard(1), "{at} s");
        }
        let late = began + Duration::from_secs(20);
        ends[0].leave_it_to_the_peer(number, "no answer".into(), Failure::Silence, late);
        assert!(ends[0].look_after_awaited(late, &mut events));
        assert!(matches!(&events[..], [Event::Down { peer: 1, .. }]), "{events:?}");
    }

    #[test]
    fn a_refusal_is_no_death_to_an_end_that_would_know() {
        for (is_told_of_deaths, is_lost) in [(false, true), (true, false)] {
            let mut ends = world();
            let options = &mut ends[0].options;
            (options.dial_patience, options.is_told_of_deaths) = (Duration::from_secs(1), is_told_of_deaths);
            let refused = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::conformance::free_port()));
            ends[0].peers[1].candidates.truncate(1);
            ends[0].peers[1].candidates[0].to = refused;
            let number = ends[0].link(Channel { peer: 1, index: 0 }).unwrap();
            let (now, mut events) = (Instant::now(), Vec::new());
            ends[0].links[number as usize].asked_at = Some(now);
            ends[0].leave_it_to_the_peer(number, "refused".into(), Failure::Refusal, now);
            assert!(ends[0].look_after_awaited(now + 4 * ends[0].options.dial_patience, &mut events));
            assert_eq!(events.len(), usize::from(is_lost), "{events:?}");
            if !is_lost {
                exchange(&mut ends, 1, Some(0));
                assert_eq!(ends[0].peers[1].dials_first, Some(false));
            }
        }
    }

    #[test]
    fn the_higher_rank_goes_on_dialing() {
        let mut ends = world();
        let number = ends[1].link(Channel { peer: 0, index: 0 }).unwrap();
        let (began, mut events) = (Instant::now(), Vec::new());
        let reach_within = ends[1].options.reach_within;
        for now in [began, began + 2 * reach_within] {
            ends[1].leave_it_to_the_peer(number, "no answer".into(), Failure::Silence, now);
            assert!(ends[1].look_after_awaited(now + reach_within, &mut events));
            let link = &ends[1].links[number as usize];
            assert!(matches!(link.state, State::Dialing(_)) && link.lose_at.is_none(), "{events:?}");
        }
    }

    #[test]
    fn a_peer_that_was_met_at_the_relay_is_dialed_too() {
        let mut ends = world();
        // Nobody comes to this relay.
        let relay = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for (end, peer) in ends.iter_mut().zip([1, 0]) {
            end.options.relay = Some(relay.local_addr().unwrap());
            end.peers[peer].is_relayed = true;
        }
        exchange(&mut ends, 0, None);
        assert!(ends.iter().all(|end| end.relayed().is_empty()), "both dial again");
    }

    #[test]
    fn the_higher_rank_dials_a_lower_one_that_is_late() {
        let mut ends = world();
        exchange(&mut ends, 0, Some(1));
        assert_eq!(ends[1].peers[0].dials_first, Some(true));
        assert!(ends[1].dials_first(0) && ends[0].dials_first(1), "the lower rank has not tried");
    }
}
