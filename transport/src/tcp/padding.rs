//! Padding, which shows that a further path carries full segments both ways before a message depends on that.
//!
//! A path may carry short packets and lose long ones: a card's MTU may be larger than that of a switch on the way. A
//! short hello gets through there. On a path that has carried nothing else yet, the dialer's hello is therefore followed
//! by padding. The acceptor answers when it has the padding, and sends as much behind its answer. A last byte from the
//! dialer says that it has that. An end that finds its padding lost gives the connection up, and messages do without
//! the path.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::accept::{Arrival, answer_of};
use super::endpoint::TcpEndpoint;
use super::socket::{self, Stop, TcpInfo};
use super::wire::{ANSWER_BYTES, Verdict};
use crate::endpoint::Channel;
use crate::sys::unshared::Unshared;

/// Length of the padding: two segments of the longest Ethernet frames that are common.
const PADDING_BYTES: usize = 20 << 10;

/// Time after which an end looks whether its padding is acknowledged, since no event reports that it is not.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Time that the acceptor's padding may take after its answer. The kernel has sent the padding again three times by then.
const INWARD_LIMIT: Duration = Duration::from_secs(2);

/// The dialer's last byte.
const CONFIRMED: u8 = 0x06;

/// Number of bytes sent or received at a time.
const PIECE: usize = 4 << 10;

/// Progress of the padding on one connection.
#[derive(Debug, Default)]
pub(super) struct Padding {
    sent: usize,
    received: usize,
    /// Time at which the answer was there.
    answered_at: Option<Instant>,
    /// Time at which this end looks again.
    look_at: Option<Instant>,
}

impl Padding {
    /// Sends what is left of it; returns whether the kernel has it all.
    pub(super) fn send(&mut self, socket: &Socket) -> Result<bool, Stop> {
        const NOTHING: [u8; PIECE] = [0; PIECE];
        while self.sent < PADDING_BYTES {
            match socket::send_bytes(socket, &NOTHING[..PIECE.min(PADDING_BYTES - self.sent)]) {
                Ok(bytes) => self.sent += bytes,
                Err(Stop::Blocked) => return Ok(false),
                Err(closed) => return Err(closed),
            }
        }
        Ok(true)
    }

    /// Receives what is left of the other end's; returns whether it is there.
    pub(super) fn receive(&mut self, socket: &Socket) -> Result<bool, Stop> {
        let mut piece = [0; PIECE];
        while self.received < PADDING_BYTES {
            match socket::recv_bytes(socket, &mut piece[..PIECE.min(PADDING_BYTES - self.received)]) {
                Ok(bytes) => self.received += bytes,
                Err(Stop::Blocked) => return Ok(false),
                Err(closed) => return Err(closed),
            }
        }
        Ok(true)
    }

    /// Receives the acceptor's padding, behind the answer, and tells it so. Returns whether that is done.
    pub(super) fn confirm(&mut self, socket: &Socket, now: Instant) -> Result<bool, Stop> {
        self.answered_at.get_or_insert(now);
        if !self.receive(socket)? {
            return Ok(false);
        }
        match socket::send_bytes(socket, &[CONFIRMED]) {
            Ok(_) => Ok(true),
            Err(Stop::Blocked) => Ok(false),
            Err(closed) => Err(closed),
        }
    }

    /// Returns whether padding is lost, as far as the dialer can tell.
    pub(super) fn is_lost(&mut self, socket: &Socket, now: Instant) -> bool {
        self.look_at = Some(now + LOOK_AFTER);
        match self.answered_at {
            Some(at) => now >= at + INWARD_LIMIT,
            None => self.sent > 0 && TcpInfo::of(socket).is_some_and(|info| info.resends_in_vain()),
        }
    }

    /// Returns the time at which an end looks again even if nothing arrives.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_at
    }
}

/// A further connection that the peer makes, while it is not known whether its path carries full segments.
#[derive(Debug)]
pub(super) struct Proving {
    on: Channel,
    strand: u16,
    socket: Unshared<Socket>,
    from: Option<SocketAddr>,
    /// The answer, which is sent once the peer's padding is there.
    answer: [u8; ANSWER_BYTES],
    answered: usize,
    padding: Padding,
    /// Time at which the connection is given up, unless the answer has gone.
    until: Instant,
}

impl Proving {
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn peer(&self) -> u32 {
        self.on.peer
    }

    /// Returns the time at which it is given up. Once the answer has gone, only the dialer gives up: it may take the
    /// answer late, and then uses the connection at once.
    pub(super) fn until(&self) -> Option<Instant> {
        (self.answered < ANSWER_BYTES).then_some(self.until)
    }

    /// Makes progress; returns whether both directions carry full segments.
    fn step(&mut self) -> Result<bool, Stop> {
        if !self.padding.receive(&self.socket)? {
            return Ok(false);
        }
        while self.answered < ANSWER_BYTES {
            match socket::send_bytes(&self.socket, &self.answer[self.answered..]) {
                Ok(bytes) => self.answered += bytes,
                Err(Stop::Blocked) => return Ok(false),
                Err(closed) => return Err(closed),
            }
        }
        if !self.padding.send(&self.socket)? {
            return Ok(false);
        }
        let mut last = [0];
        match socket::recv_bytes(&self.socket, &mut last) {
            Ok(_) if last == [CONFIRMED] => Ok(true),
            Ok(_) => Err(Stop::Closed(None)),
            Err(Stop::Blocked) => Ok(false),
            Err(closed) => Err(closed),
        }
    }
}

impl TcpEndpoint {
    /// Takes a further connection of a peer that sends padding.
    pub(super) fn prove(&mut self, arrival: Arrival, now: Instant) {
        let Arrival { socket, from, hello, bytes, .. } = arrival;
        self.proving.push(Proving {
            on: Channel { peer: hello.from, index: hello.channel },
            strand: hello.strand,
            socket,
            from,
            answer: answer_of(&self.me, Verdict::Welcome).encode(Some((&bytes, &self.me.key))),
            answered: 0,
            padding: Padding::default(),
            until: now + self.options.dial_timeout,
        });
    }

    /// Adds the connections whose padding has arrived. Returns whether one has, or has ended.
    pub(super) fn step_proving(&mut self, now: Instant) -> bool {
        let mut moved = false;
        let mut at = 0;
        while at < self.proving.len() {
            let proving = &mut self.proving[at];
            match proving.step() {
                Ok(false) if proving.until().is_none_or(|until| now < until) => at += 1,
                Ok(is_done) => {
                    let Proving { on, strand, socket, from, .. } = self.proving.swap_remove(at);
                    moved = true;
                    let number = self.link(on).ok().filter(|_| is_done);
                    if number.is_some_and(|number| self.judge_strand(number, strand) == Verdict::Welcome) {
                        self.join_strand(on, strand, socket, from);
                    }
                }
                Err(_) => {
                    self.proving.swap_remove(at);
                    moved = true;
                }
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use socket2::{Domain, Protocol, SockAddr, Type};

    use super::super::tests::until;
    use super::*;

    fn pair() -> [Socket; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.connect(&SockAddr::from(listener.local_addr().unwrap())).unwrap();
        let ends = [socket, listener.accept().unwrap().0.into()];
        ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        ends
    }

    #[test]
    fn padding_goes_both_ways_and_is_confirmed() {
        let [near, far] = pair();
        let now = Instant::now();
        let mut proving = Proving {
            on: Channel { peer: 0, index: 0 },
            strand: 1,
            socket: Unshared::new(far),
            from: None,
            answer: [7; ANSWER_BYTES],
            answered: 0,
            padding: Padding::default(),
            until: now,
        };
        let mut padding = Padding::default();
        assert!(matches!(proving.step(), Ok(false)) && proving.answered == 0, "no answer before the padding");
        assert_eq!(proving.until(), Some(now));
        until("the padding", || padding.send(&near).unwrap().then_some(()));
        assert!(!padding.is_lost(&near, now) && padding.due() == Some(now + LOOK_AFTER));
        let mut answer = [0; ANSWER_BYTES];
        let mut got = 0;
        until("the answer", || {
            assert!(matches!(proving.step(), Ok(false)));
            got += socket::recv_bytes(&near, &mut answer[got..]).unwrap_or(0);
            (got == ANSWER_BYTES).then_some(())
        });
        assert_eq!(proving.until(), None, "the dialer may take its time");
        until("its padding", || {
            let _ = proving.step().unwrap();
            padding.confirm(&near, now).unwrap().then_some(())
        });
        until("the last byte", || proving.step().unwrap().then_some(()));
    }

    #[test]
    fn a_dialer_waits_for_the_padding_behind_the_answer_for_a_while() {
        let [near, _far] = pair();
        let (mut padding, now) = (Padding::default(), Instant::now());
        assert!(!padding.is_lost(&near, now + INWARD_LIMIT), "the peer may be busy");
        assert!(matches!(padding.confirm(&near, now), Ok(false)));
        assert!(!padding.is_lost(&near, now + INWARD_LIMIT - Duration::from_millis(1)));
        assert!(padding.is_lost(&near, now + INWARD_LIMIT));
    }
}
