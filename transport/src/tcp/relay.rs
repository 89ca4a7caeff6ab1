//! Relays, for pairs of ranks of which neither can dial the other: both dial a third process, which forwards their
//! bytes.
//!
//! That process is the coordinator, which all ranks have reached before ([`TcpOptions::relay`](super::TcpOptions)).
//! An end tells it which channel between which two endpoints it wants ([`RelayCall`]). Once the other end has asked
//! for the same, both get one byte. From then on the relay forwards all bytes from each to the other: hello, answer
//! and messages, as on a direct connection. The lower rank is the dialer, as in `turns`. The relay learns nothing
//! that would let it pose as a rank.
//!
//! An end asks the relay after no address has let it connect for a while, or after an address has taken its hello but
//! not answered for much longer. For peers that it met at a relay before, it asks at once, beside their addresses; and for
//! peers without an address that leads to them. Every byte passes the network of the relay's host twice.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::endpoint::TcpEndpoint;
use super::link::State;
use super::options::TcpOptions;
use super::park::Whose;
use super::socket::{self, Stop};
use crate::proof::{Key, PROOF_BYTES};
use crate::sys::unshared::Unshared;

const MAGIC: [u8; RELAY_MAGIC_BYTES] = *b"KOLOrly\n";
const HEAD_BYTES: usize = 32;

/// Number of bytes from which a relay recognises a call.
pub const RELAY_MAGIC_BYTES: usize = 8;

/// Length of a call.
pub const RELAY_CALL_BYTES: usize = HEAD_BYTES + PROOF_BYTES;

/// Byte that a relay sends to both ends when both have arrived.
pub const RELAY_READY: u8 = 0x06;

/// Time after which a relay is asked, beside the addresses, if none has let this end connect. A lost connection
/// request is repeated after 1 s.
const RELAY_AFTER: Duration = Duration::from_millis(2500);

/// Time between two calls for one channel.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// A call from one end of a pair to a relay, which names the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayCall {
    /// Number of the endpoint that sends the hello.
    pub dialer: u64,
    /// Number of the endpoint that waits for it.
    pub acceptor: u64,
    /// The channel between them.
    pub channel: u16,
    /// Whether the caller is the dialer.
    pub is_dialer: bool,
}

impl RelayCall {
    /// Returns whether a connection that begins with these bytes is a call.
    #[must_use]
    pub fn is_begun_by(magic: &[u8; RELAY_MAGIC_BYTES]) -> bool {
        *magic == MAGIC
    }

    /// Encodes the call, with a proof that the caller knows the job's cookie.
    #[must_use]
    pub fn encode(&self, cookie: &[u8; 16]) -> [u8; RELAY_CALL_BYTES] {
        let mut out = [0; RELAY_CALL_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&self.dialer.to_le_bytes());
        out[16..24].copy_from_slice(&self.acceptor.to_le_bytes());
        out[24..26].copy_from_slice(&self.channel.to_le_bytes());
        out[26] = self.is_dialer.into();
        let proof = key_of(cookie).prove(&[&out[..HEAD_BYTES]]);
        out[HEAD_BYTES..].copy_from_slice(&proof);
        out
    }

    /// Decodes a call; `None` if the bytes are not a call from an end that knows the cookie.
    #[must_use]
    pub fn decode(bytes: &[u8; RELAY_CALL_BYTES], cookie: &[u8; 16]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let call = Self {
            dialer: word(8)?,
            acceptor: word(16)?,
            channel: u16::from_le_bytes([bytes[24], bytes[25]]),
            is_dialer: bytes[26] == 1,
        };
        let (head, proof) = bytes.split_at(HEAD_BYTES);
        let is_plain = head == &call.encode(cookie)[..HEAD_BYTES];
        (is_plain && key_of(cookie).verify(&[head], proof)).then_some(call)
    }
}

fn key_of(cookie: &[u8; 16]) -> Key {
    Key::derive(&[cookie], b"kolo tcp relays")
}

/// A relay that a dialer may ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detour {
    pub(super) to: SocketAddr,
    pub(super) call: RelayCall,
    /// Time of the call. Until the first one, only addresses are tried, as long as there are any.
    pub(super) at: Instant,
    /// Time until which the call is repeated if the relay has no room for it; `None` before the first call.
    pub(super) until: Option<Instant>,
}

impl Detour {
    /// Returns the next call, unless the time for it is over.
    pub(super) fn again(self, now: Instant) -> Option<Self> {
        self.until.is_some_and(|until| now < until).then(|| Self { at: now + CALL_AGAIN, ..self })
    }
}

/// First phase of a connection to a relay, before the other end has arrived.
#[derive(Debug)]
pub(super) struct Calling {
    call: [u8; RELAY_CALL_BYTES],
    sent: usize,
}

impl Calling {
    pub(super) fn new(call: &RelayCall, options: &TcpOptions) -> Self {
        Self { call: call.encode(&options.cookie), sent: 0 }
    }

    /// Returns whether the call has been sent to the relay.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == RELAY_CALL_BYTES
    }

    /// Makes progress; returns whether the other end has arrived.
    pub(super) fn step(&mut self, socket: &Socket) -> Result<bool, Stop> {
        while !self.is_sent() {
            match socket::send_bytes(socket, &self.call[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(Stop::Blocked) => return Ok(false),
                Err(closed) => return Err(closed),
            }
        }
        let mut ready = [0];
        match socket::recv_bytes(socket, &mut ready) {
            Ok(_) if ready == [RELAY_READY] => Ok(true),
            Ok(_) => Err(Stop::Closed(None)),
            Err(Stop::Blocked) => Ok(false),
            Err(closed) => Err(closed),
        }
    }
}

/// A connection at which this end, the acceptor, waits at a relay.
#[derive(Debug)]
pub(super) struct AtRelay {
    /// Number of the link.
    number: u32,
    socket: Unshared<Socket>,
    calling: Calling,
}

impl AtRelay {
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Starts a connection to a relay.
pub(super) fn connect(to: SocketAddr, options: &TcpOptions) -> std::io::Result<Unshared<Socket>> {
    let socket = Unshared::new(Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?);
    socket::configure(&socket, options)?;
    match socket.connect(&SockAddr::from(to)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

impl TcpEndpoint {
    /// Returns the detour by the relay for a link that this end dials. The higher rank waits there for the lower
    /// rank's hello: see [`TcpEndpoint::step_relays`].
    pub(super) fn detour(&self, number: u32, now: Instant) -> Option<Detour> {
        let (to, call) = self.call_for(number).filter(|(_, call)| call.is_dialer)?;
        let at = now + self.relay_patience(self.links[number as usize].channel.peer);
        Some(Detour { to, call, at, until: None })
    }

    /// Returns the relay at which this end meets a peer.
    pub(super) fn relay_to(&self, peer: u32) -> Option<SocketAddr> {
        let own = self.options.relays.iter().find(|(of, _)| *of == peer).map(|(_, relay)| *relay);
        own.or(self.options.relay)
    }

    /// Returns how long this end waits for the addresses of a peer before it also asks the relay.
    fn relay_patience(&self, peer: u32) -> Duration {
        let known = &self.peers[peer as usize];
        let is_needed = known.is_relayed || known.candidates.is_empty();
        match is_needed || self.options.relayed_before.contains(&peer) {
            true => Duration::ZERO,
            false => RELAY_AFTER.min(self.options.dial_timeout / 4),
        }
    }

    /// Returns the relay, and this end's call to it for a link.
    fn call_for(&self, number: u32) -> Option<(SocketAddr, RelayCall)> {
        let channel = self.links[number as usize].channel;
        let relay = self.relay_to(channel.peer)?;
        let theirs = self.peers[channel.peer as usize].address.as_ref()?.instance;
        let is_dialer = self.me.rank < channel.peer;
        let (dialer, acceptor) =
            if is_dialer { (self.me.instance, theirs) } else { (theirs, self.me.instance) };
        Some((relay, RelayCall { dialer, acceptor, channel: channel.index, is_dialer }))
    }

    /// Returns the time of this end's next call to the relay for a link, if it is the acceptor.
    fn calls_at(&self, number: u32) -> Option<Instant> {
        let link = &self.links[number as usize];
        let peer = link.channel.peer;
        let is_waiting = matches!(link.state, State::Awaited(_) | State::Dialing(_));
        if self.relay_to(peer).is_none() || self.me.rank < peer || !is_waiting {
            return None;
        }
        if self.at_relay.iter().any(|at| at.number == number) {
            return None;
        }
        let first = link.asked_at? + self.relay_patience(peer);
        Some(link.called_at.map_or(first, |last| first.max(last + CALL_AGAIN)))
    }

    /// Returns the time at which [`TcpEndpoint::step_relays`] has something to do even if nothing arrives.
    pub(super) fn relays_due(&self) -> Option<Instant> {
        self.awaited.iter().chain(&self.dialing).filter_map(|&number| self.calls_at(number)).min()
    }

    /// Makes the calls that are due, and passes connections with both ends present to the acceptor. Returns whether
    /// anything has happened.
    pub(super) fn step_relays(&mut self, now: Instant) -> bool {
        let has_none = self.options.relay.is_none() && self.options.relays.is_empty();
        if has_none || self.awaited.is_empty() && self.dialing.is_empty() {
            self.at_relay.clear();
            return false;
        }
        let mut moved = false;
        let due = |number: &u32| self.calls_at(*number).is_some_and(|at| now >= at);
        let due: Vec<u32> = self.awaited.iter().chain(&self.dialing).copied().filter(due).collect();
        for number in due {
            let Some((to, call)) = self.call_for(number) else { continue };
            self.links[number as usize].called_at = Some(now);
            // If there is no descriptor, the call is repeated, as after any other failure.
            let Ok(socket) = connect(to, &self.options) else { continue };
            if self.watching {
                self.deaf |= self.park.watch(&socket, Whose::Connecting).is_err();
            }
            self.at_relay.push(AtRelay { number, socket, calling: Calling::new(&call, &self.options) });
            moved = true;
        }
        let mut at = 0;
        while at < self.at_relay.len() {
            let AtRelay { number, socket, calling } = &mut self.at_relay[at];
            let is_wanted =
                matches!(self.links[*number as usize].state, State::Awaited(_) | State::Dialing(_));
            match calling.step(socket) {
                Ok(false) if is_wanted => at += 1,
                Ok(true) if is_wanted => {
                    let AtRelay { number, socket, .. } = self.at_relay.swap_remove(at);
                    let relay = self.relay_to(self.links[number as usize].channel.peer);
                    self.acceptor.take_relayed(socket, relay, now);
                    moved = true;
                }
                _ => {
                    self.at_relay.swap_remove(at);
                    moved = true;
                }
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_proven() {
        let call = RelayCall { dialer: 7, acceptor: 9, channel: 258, is_dialer: true };
        let bytes = call.encode(&[3; 16]);
        assert!(bytes.first_chunk().is_some_and(RelayCall::is_begun_by));
        assert_eq!(RelayCall::decode(&bytes, &[3; 16]), Some(call));
        assert_eq!(RelayCall::decode(&bytes, &[4; 16]), None, "of another job");
        for bit in 0..8 * RELAY_CALL_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RelayCall::decode(&changed, &[3; 16]), None, "bit {bit}");
        }
    }
}
