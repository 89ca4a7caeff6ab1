//! The acceptor, which admits a connection once it has identified itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::options::TcpOptions;
use super::port::{Lodging, Mail};
use super::socket::{self, Stop};
use super::wire::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, NONCE_BYTES, NotHello, PROTOCOL, Verdict, is_proven,
};
use crate::endpoint::Channel;
use crate::proof::Key;
use crate::sys::descriptors::{self, STARVED_FOR};
use crate::sys::unshared::Unshared;

/// Maximum number of connections whose hello is awaited. If more come, the oldest is closed: a peer
/// sends its hello at once, so the oldest is most likely a stranger. A peer that is hit dials again.
const PENDING_MAX: usize = 256;

/// Maximum number of connections accepted per step, so that a flood does not delay the traffic.
const ACCEPTS_PER_STEP: usize = 64;

/// Time after which a pending connection may be closed to free its descriptor; a peer sends its hello at once.
const HESITATION: Duration = Duration::from_millis(100);

/// This endpoint's identity.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) instance: u64,
    /// Key derived from the job's cookie.
    pub(super) key: Key,
}

/// Count of rejected connections.
#[derive(Clone, Debug, Default)]
pub struct RejectedConnections {
    /// Number of rejected connections.
    pub count: u64,
    /// Origin of the last one, and the reason.
    pub last: Option<String>,
}

#[derive(Debug)]
struct Pending {
    socket: Unshared<Socket>,
    from: Option<SocketAddr>,
    is_relayed: bool,
    since: Instant,
    hello: [u8; HELLO_BYTES],
    received: usize,
}

/// A connection whose hello proves that it comes from a peer.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) socket: Unshared<Socket>,
    /// Time at which its hello was judged.
    pub(super) since: Instant,
    pub(super) from: Option<SocketAddr>,
    pub(super) is_relayed: bool,
    pub(super) hello: Hello,
    /// The bytes of the hello, which the answer's proof covers.
    pub(super) bytes: [u8; HELLO_BYTES],
}

/// Source of an acceptor's connections.
#[derive(Debug)]
enum Entrance {
    /// A listener of this endpoint's own.
    Own(Unshared<Socket>),
    /// The port that all endpoints of the process share.
    Shared(Lodging),
}

/// The acceptor: its source of connections, and those that have not identified themselves.
#[derive(Debug)]
pub(super) struct Acceptor {
    entrance: Entrance,
    pending: Vec<Pending>,
    pub(super) rejected: RejectedConnections,
    /// Time at which it is reported that connections wait and no descriptor is free for them.
    starved_at: Option<Instant>,
}

impl Acceptor {
    /// Opens the acceptor of endpoint number `instance`, at the shared port if there is one that `fits`.
    pub(super) fn open(
        options: &TcpOptions,
        instance: u64,
        fits: impl FnOnce(SocketAddr) -> bool,
    ) -> io::Result<Self> {
        let entrance = match options.port.as_ref().filter(|port| fits(port.at())) {
            Some(port) => Entrance::Shared(port.lodge(instance, &options.cookie)?),
            None => Entrance::Own(Unshared::new(socket::listen(options.ports.clone())?)),
        };
        let (pending, rejected) = (Vec::new(), RejectedConnections::default());
        Ok(Self { entrance, pending, rejected, starved_at: None })
    }

    /// Returns the address at which it listens.
    pub(super) fn at(&self) -> io::Result<SocketAddr> {
        match &self.entrance {
            Entrance::Own(listener) => {
                listener.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
            }
            Entrance::Shared(lodging) => Ok(lodging.at()),
        }
    }

    /// Returns a descriptor that is readable when a connection has come.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        match &self.entrance {
            Entrance::Own(listener) => listener.as_fd(),
            Entrance::Shared(lodging) => lodging.bell(),
        }
    }

    /// Returns whether a connection has come, as far as that is known without asking the kernel.
    pub(super) fn has_news(&self) -> bool {
        matches!(&self.entrance, Entrance::Shared(lodging) if lodging.has_news())
    }

    /// Returns the time at which [`Acceptor::step`] has something to do even if nothing arrives.
    pub(super) fn due(&self, options: &TcpOptions) -> Option<Instant> {
        let silent = self.pending.iter().map(|pending| pending.since + options.hello_timeout);
        silent.chain(self.starved_at).min()
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.pending.iter().map(|pending| &*pending.socket)
    }

    /// Returns whether no connection is pending. Valid only after a step that returned `false`.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes connections and reads hellos; those that prove the job's cookie become `arrivals`. Calls `opened` with
    /// every new connection. Returns whether anything happened.
    ///
    /// # Errors
    /// If a connection has waited for [`STARVED_FOR`] and the system has no free descriptor. The error is repeated as long
    /// as that lasts, after as much time again.
    pub(super) fn step(
        &mut self,
        me: &Identity,
        now: Instant,
        options: &TcpOptions,
        mut opened: impl FnMut(&Socket),
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<bool> {
        let mut moved = match &self.entrance {
            Entrance::Own(_) => self.accept(now, options, &mut opened)?,
            Entrance::Shared(_) => self.collect(now, options, &mut opened)?,
        };
        let mut at = 0;
        while at < self.pending.len() {
            match self.pending[at].listen(me) {
                Heard::Nothing if now >= self.pending[at].since + options.hello_timeout => {
                    self.turn_away(at, "sent nothing in time", None);
                }
                Heard::Nothing => {
                    at += 1;
                    continue;
                }
                Heard::Peer(hello) => {
                    let Pending { socket, from, is_relayed, hello: bytes, .. } = self.pending.swap_remove(at);
                    arrivals.push(Arrival { socket, since: now, from, is_relayed, hello, bytes });
                }
                Heard::Rejected(why, verdict) => {
                    let answer = verdict.map(|verdict| {
                        let hello = &self.pending[at].hello;
                        let proven = !matches!(verdict, Verdict::Version | Verdict::Cookie);
                        answer_of(me, verdict).encode(proven.then_some((hello, &me.key)))
                    });
                    self.turn_away(at, &why, answer);
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Accepts connections at the endpoint's own listener.
    fn accept(
        &mut self,
        now: Instant,
        options: &TcpOptions,
        opened: &mut impl FnMut(&Socket),
    ) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..ACCEPTS_PER_STEP {
            let Entrance::Own(listener) = &self.entrance else { break };
            match listener.accept() {
                Ok((socket, from)) => {
                    moved = true;
                    self.starved_at = None;
                    // A listener of both families reports IPv4 addresses as mapped into IPv6.
                    let from = from.as_socket().map(|a| SocketAddr::new(a.ip().to_canonical(), a.port()));
                    self.admit(Unshared::new(socket), (from, None), now, options, opened);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.starved_at = None;
                    break;
                }
                Err(error) if descriptors::are_out(&error) => {
                    let starved_at = *self.starved_at.get_or_insert(now + STARVED_FOR);
                    let oldest = (0..self.pending.len()).min_by_key(|&at| self.pending[at].since);
                    if let Some(oldest) = oldest.filter(|&at| now >= self.pending[at].since + HESITATION) {
                        self.turn_away(oldest, "no file descriptor left for others", None);
                    } else if now >= starved_at {
                        self.starved_at = Some(now + STARVED_FOR);
                        return Err(error);
                    }
                    break;
                }
                // The connection broke in the queue.
                Err(error) => {
                    if error.kind() != io::ErrorKind::Interrupted
                        && error.kind() != io::ErrorKind::ConnectionAborted
                    {
                        self.rejected.last = Some(format!("accepting failed: {error}"));
                        break;
                    }
                }
            }
        }
        Ok(moved)
    }

    /// Takes the connections that the shared port has for this endpoint.
    fn collect(
        &mut self,
        now: Instant,
        options: &TcpOptions,
        opened: &mut impl FnMut(&Socket),
    ) -> io::Result<bool> {
        let Entrance::Shared(lodging) = &self.entrance else { return Ok(false) };
        if !lodging.has_news() && self.starved_at.is_none() {
            return Ok(false);
        }
        let mail = lodging.take();
        let starved = lodging.hungry();
        let moved = !mail.is_empty();
        for Mail { socket, from, hello } in mail {
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            self.admit(socket, (Some(from), Some(hello)), now, options, opened);
        }
        let Some((since, error)) = starved else {
            self.starved_at = None;
            return Ok(moved);
        };
        let starved_at = self.starved_at.map_or(since + STARVED_FOR, |at| at.max(since + STARVED_FOR));
        let is_starved = now >= starved_at;
        self.starved_at = Some(if is_starved { now + STARVED_FOR } else { starved_at });
        if is_starved { Err(error) } else { Ok(moved) }
    }

    /// Adds a pending connection, with its hello if that has been read.
    fn admit(
        &mut self,
        socket: Unshared<Socket>,
        (from, hello): (Option<SocketAddr>, Option<[u8; HELLO_BYTES]>),
        now: Instant,
        options: &TcpOptions,
        opened: &mut impl FnMut(&Socket),
    ) {
        if let Err(error) = socket::configure(&socket, options) {
            self.rejected.last = Some(format!("{from:?}: {error}"));
            return;
        }
        // A connection that has its hello is judged in this step.
        if hello.is_none()
            && self.pending.len() >= PENDING_MAX
            && let Some(oldest) = (0..self.pending.len()).min_by_key(|&at| self.pending[at].since)
        {
            self.turn_away(oldest, "too many at the acceptor", None);
        }
        opened(&socket);
        let received = if hello.is_some() { HELLO_BYTES } else { 0 };
        let hello = hello.unwrap_or([0; HELLO_BYTES]);
        self.pending.push(Pending { socket, from, is_relayed: false, since: now, hello, received });
    }

    /// Adds a pending connection that goes through a relay, where the other end has arrived.
    pub(super) fn take_relayed(&mut self, socket: Unshared<Socket>, relay: Option<SocketAddr>, now: Instant) {
        let hello = [0; HELLO_BYTES];
        self.pending.push(Pending { socket, from: relay, is_relayed: true, since: now, hello, received: 0 });
    }

    fn turn_away(&mut self, at: usize, why: &str, answer: Option<[u8; ANSWER_BYTES]>) {
        let pending = self.pending.swap_remove(at);
        if let Some(answer) = answer {
            // The connection is closed whether or not the answer gets through.
            let _ = socket::send_bytes(&pending.socket, &answer);
        }
        self.note(pending.from, why);
    }

    pub(super) fn note(&mut self, from: Option<SocketAddr>, why: &str) {
        let from = from.map_or_else(|| "somewhere".into(), |from| from.to_string());
        self.rejected.count += 1;
        self.rejected.last = Some(format!("{from}: {why}"));
    }
}

impl Identity {
    /// Returns this endpoint's first bytes on a connection of a channel, and the key that proves the answer.
    pub(super) fn hello(&self, on: Channel, strand: u16, target: u64) -> ([u8; HELLO_BYTES], Key) {
        self.hello_of(on, strand, false, target)
    }

    /// As [`Identity::hello`], for a further connection that begins with padding.
    pub(super) fn padded_hello(&self, on: Channel, strand: u16, target: u64) -> ([u8; HELLO_BYTES], Key) {
        self.hello_of(on, strand, true, target)
    }

    fn hello_of(&self, on: Channel, strand: u16, is_padded: bool, target: u64) -> ([u8; HELLO_BYTES], Key) {
        let mut nonce = [0; NONCE_BYTES];
        // The system had random numbers when the endpoint was made. If it has none now, the answer's proof still
        // covers this channel of these two endpoints.
        let _ = getrandom::fill(&mut nonce);
        let hello = Hello {
            from: self.rank,
            to: on.peer,
            world_size: self.world_size,
            channel: on.index,
            strand,
            is_padded,
            instance: self.instance,
            target,
            nonce,
        };
        (hello.encode(&self.key), self.key.clone())
    }
}

/// Returns this endpoint's answer with a verdict.
pub(super) fn answer_of(me: &Identity, verdict: Verdict) -> Answer {
    Answer { verdict, protocol: PROTOCOL, instance: me.instance }
}

enum Heard {
    Nothing,
    Peer(Hello),
    Rejected(String, Option<Verdict>),
}

impl Pending {
    fn listen(&mut self, me: &Identity) -> Heard {
        while self.received < HELLO_BYTES {
            match socket::recv_bytes(&self.socket, &mut self.hello[self.received..]) {
                Ok(bytes) => self.received += bytes,
                Err(Stop::Blocked) => break,
                Err(Stop::Closed(_)) => return Heard::Rejected("left without a hello".into(), None),
            }
        }
        match Hello::decode(&self.hello[..self.received]) {
            Ok(None) => Heard::Nothing,
            Err(NotHello::Garbage) => Heard::Rejected("not Kolo".into(), None),
            Err(NotHello::Version(version)) => Heard::Rejected(
                format!("speaks protocol {version}, but this rank speaks {PROTOCOL}"),
                Some(Verdict::Version),
            ),
            Ok(Some(hello)) => {
                if !is_proven(&self.hello, &me.key) {
                    return Heard::Rejected("does not know the job's cookie".into(), Some(Verdict::Cookie));
                }
                if hello.target != me.instance {
                    return Heard::Rejected("asked for another endpoint".into(), Some(Verdict::Instance));
                }
                let is_rank = hello.from < me.world_size && hello.from != me.rank;
                if hello.world_size != me.world_size || hello.to != me.rank || !is_rank {
                    return Heard::Rejected("rank or world size does not fit".into(), Some(Verdict::Rank));
                }
                Heard::Peer(hello)
            }
        }
    }
}
