//! The door: whoever connects is let in once it has said who it is.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use socket2::Socket;

use super::options::TcpOptions;
use super::socket::{self, Stop};
use super::wire::{Answer, HELLO_BYTES, Hello, NotHello, PROTOCOL, Verdict, same_secret};

/// Most connections that have not said who they are yet. When more come the oldest goes: a peer says its hello at
/// once, so the oldest is the likeliest stranger; a peer that is hit dials again.
const WAITING_ROOM: usize = 256;

/// Most connections taken per step, so that a flood does not hold up the traffic.
const ACCEPTS_PER_STEP: usize = 64;

/// Who this endpoint is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) instance: u64,
    pub(super) cookie: [u8; 16],
}

/// Connections that were turned away.
#[derive(Clone, Debug, Default)]
pub struct Strangers {
    /// How many.
    pub turned_away: u64,
    /// The last one: from where, and why.
    pub last: Option<String>,
}

#[derive(Debug)]
struct Visitor {
    socket: Socket,
    from: Option<SocketAddr>,
    since: Instant,
    hello: [u8; HELLO_BYTES],
    received: usize,
}

/// A peer at the door, as it says.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) socket: Socket,
    pub(super) from: Option<SocketAddr>,
    pub(super) hello: Hello,
}

/// The listener, and who waits there.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) listener: Socket,
    visitors: Vec<Visitor>,
    pub(super) strangers: Strangers,
}

impl Door {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { listener: socket::listen()?, visitors: Vec::new(), strangers: Strangers::default() })
    }

    /// When [`Door::step`] has something to do even if nothing arrives.
    pub(super) fn due(&self, options: &TcpOptions) -> Option<Instant> {
        self.visitors.iter().map(|visitor| visitor.since + options.hello_timeout).min()
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.visitors.iter().map(|visitor| &visitor.socket)
    }

    /// Whether nobody stands at the door. Only after a step that returned `false`.
    pub(super) fn is_quiet(&self) -> bool {
        self.visitors.is_empty()
    }

    /// Takes connections and reads hellos; those with a right cookie become `arrivals`. `opened` is called with
    /// every new connection. Returns whether anything happened.
    pub(super) fn step(
        &mut self,
        me: &Identity,
        now: Instant,
        options: &TcpOptions,
        mut opened: impl FnMut(&Socket),
        arrivals: &mut Vec<Arrival>,
    ) -> bool {
        let mut moved = false;
        for _ in 0..ACCEPTS_PER_STEP {
            match self.listener.accept() {
                Ok((socket, from)) => {
                    moved = true;
                    // The listener of both families shows IPv4 as mapped into IPv6.
                    let from = from.as_socket().map(|a| SocketAddr::new(a.ip().to_canonical(), a.port()));
                    self.admit(socket, from, now, options, &mut opened);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Connections that broke in the queue, or no descriptors left: the latter shows as a stall, so it
                // is noted where strangers are.
                Err(error) => {
                    if error.kind() != io::ErrorKind::Interrupted
                        && error.kind() != io::ErrorKind::ConnectionAborted
                    {
                        self.strangers.last = Some(format!("accepting failed: {error}"));
                        break;
                    }
                }
            }
        }
        let mut at = 0;
        while at < self.visitors.len() {
            match self.visitors[at].listen(me) {
                Heard::Nothing if now >= self.visitors[at].since + options.hello_timeout => {
                    self.turn_away(at, "said nothing in time", None);
                }
                Heard::Nothing => {
                    at += 1;
                    continue;
                }
                Heard::Peer(hello) => {
                    let Visitor { socket, from, .. } = self.visitors.swap_remove(at);
                    arrivals.push(Arrival { socket, from, hello });
                }
                Heard::Stranger(why, verdict) => {
                    let answer = verdict.map(|verdict| answer_of(me, verdict));
                    self.turn_away(at, &why, answer);
                }
            }
            moved = true;
        }
        moved
    }

    fn admit(
        &mut self,
        socket: Socket,
        from: Option<SocketAddr>,
        now: Instant,
        options: &TcpOptions,
        opened: &mut impl FnMut(&Socket),
    ) {
        if let Err(error) = socket::configure(&socket, options) {
            self.strangers.last = Some(format!("{from:?}: {error}"));
            return;
        }
        if self.visitors.len() >= WAITING_ROOM
            && let Some(oldest) = (0..self.visitors.len()).min_by_key(|&at| self.visitors[at].since)
        {
            self.turn_away(oldest, "too many at the door", None);
        }
        opened(&socket);
        self.visitors.push(Visitor { socket, from, since: now, hello: [0; HELLO_BYTES], received: 0 });
    }

    fn turn_away(&mut self, at: usize, why: &str, answer: Option<Answer>) {
        let visitor = self.visitors.swap_remove(at);
        if let Some(answer) = answer {
            // Whether it hears the answer is its own affair.
            let _ = socket::send_bytes(&visitor.socket, &answer.encode());
        }
        self.note(visitor.from, why);
    }

    pub(super) fn note(&mut self, from: Option<SocketAddr>, why: &str) {
        let from = from.map_or_else(|| "somewhere".into(), |from| from.to_string());
        self.strangers.turned_away += 1;
        self.strangers.last = Some(format!("{from}: {why}"));
    }
}

/// This endpoint's answer.
pub(super) fn answer_of(me: &Identity, verdict: Verdict) -> Answer {
    Answer { verdict, protocol: PROTOCOL, instance: me.instance }
}

enum Heard {
    Nothing,
    Peer(Hello),
    Stranger(String, Option<Verdict>),
}

impl Visitor {
    fn listen(&mut self, me: &Identity) -> Heard {
        while self.received < HELLO_BYTES {
            match socket::recv_bytes(&self.socket, &mut self.hello[self.received..]) {
                Ok(bytes) => self.received += bytes,
                Err(Stop::Blocked) => break,
                Err(Stop::Closed(_)) => return Heard::Stranger("left without a hello".into(), None),
            }
        }
        match Hello::decode(&self.hello[..self.received]) {
            Ok(None) => Heard::Nothing,
            Err(NotHello::Garbage) => Heard::Stranger("not Kolo".into(), None),
            Err(NotHello::Version(version)) => Heard::Stranger(
                format!("speaks protocol {version}, this is {PROTOCOL}"),
                Some(Verdict::Version),
            ),
            Ok(Some(hello)) => {
                if !same_secret(&hello.cookie, &me.cookie) {
                    return Heard::Stranger("wrong cookie".into(), Some(Verdict::Cookie));
                }
                if hello.target != me.instance {
                    return Heard::Stranger("wanted another endpoint".into(), Some(Verdict::Instance));
                }
                // The lower rank dials.
                if hello.world_size != me.world_size || hello.from >= me.rank {
                    return Heard::Stranger("rank or world size out of place".into(), Some(Verdict::Rank));
                }
                Heard::Peer(hello)
            }
        }
    }
}
