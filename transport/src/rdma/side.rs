//! The side connection: TCP beside RDMA. It carries one hello each way per peer, and its end reports the end of the
//! peer, which the adapters do not notice.

use std::time::Instant;

use super::NAME;
use super::hello::{HELLO_BYTES, Hello};
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::tcp::{TcpEndpoint, TcpOptions};

/// Tag of hellos, by which a side connection cannot be taken for anything else.
const TAG: u64 = 0x4b4f_4c4f_5244_4d41;

/// Memory of the hellos to and from one peer. It does not move while the connection uses it.
#[derive(Debug)]
struct Mail {
    out: Box<[u8; HELLO_BYTES]>,
    back: Box<[u8; HELLO_BYTES]>,
    out_piece: Box<[Piece; 1]>,
    back_piece: Box<[Piece; 1]>,
    greeted: bool,
}

// SAFETY: the pieces point into the boxes beside them, which move together with them and keep their addresses.
unsafe impl Send for Mail {}

/// News from the side connection.
#[derive(Debug)]
pub(super) enum News {
    /// A peer's hello has arrived.
    Hello(u32, Result<Hello, &'static str>),
    /// A peer is gone.
    Gone(u32, Error),
}

/// The side connections to all peers.
#[derive(Debug)]
pub(super) struct Side {
    // The endpoint is dropped before the mail.
    tcp: TcpEndpoint,
    mail: Vec<Option<Mail>>,
    events: Vec<Event>,
}

impl Side {
    pub(super) fn new(rank: u32, world_size: u32, options: TcpOptions) -> Result<Self, Error> {
        let tcp = TcpEndpoint::new(rank, world_size, options)?;
        Ok(Self { tcp, mail: (0..world_size).map(|_| None).collect(), events: Vec::new() })
    }

    pub(super) fn address(&self) -> &[u8] {
        self.tcp.address()
    }

    pub(super) fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<crate::endpoint::Reach, Error> {
        self.tcp.introduce(peer, address)
    }

    pub(super) fn establish(
        &mut self,
        is_aborted: &dyn Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.tcp.establish(is_aborted, deadline)
    }

    /// Posts the receive of a peer's hello.
    pub(super) fn listen(&mut self, peer: u32) -> Result<(), Error> {
        let mail = self.mail(peer);
        let sink: *const [Piece; 1] = &raw const *mail.back_piece;
        let token = Token(u64::from(peer) << 1 | 1);
        // SAFETY: piece and memory are boxes of `mail`, which is kept until after the endpoint is dropped; nobody
        // else accesses them before the token completes.
        let posted =
            unsafe { self.tcp.post_recv(on(peer), TAG, Sink::Place(&*sink), OnMisfit::Fail, token)? };
        if posted == Posted::Done {
            self.events.push(Event::Done(token));
        }
        Ok(())
    }

    /// Sends this side's hello, once per peer.
    ///
    /// # Errors
    /// If the connection is lost, or if this side has sent its hello already: the peer has then sent two.
    pub(super) fn greet(&mut self, peer: u32, hello: &Hello) -> Result<(), Error> {
        let mail = self.mail(peer);
        if mail.greeted {
            return Err(two_hellos(peer));
        }
        mail.greeted = true;
        hello.encode(&mut mail.out);
        let source: *const [Piece; 1] = &raw const *mail.out_piece;
        // SAFETY: as in `listen`; the memory is not written again.
        let _ = unsafe { self.tcp.post_send(on(peer), TAG, &*source, Token(u64::from(peer) << 1))? };
        Ok(())
    }

    /// Makes progress, and passes the news to `each`.
    pub(super) fn poll(&mut self, mut each: impl FnMut(News)) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let moved = self.tcp.poll(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Done(Token(token)) if token & 1 == 1 => {
                    let peer = (token >> 1) as u32;
                    let Some(mail) = &self.mail[peer as usize] else { continue };
                    each(News::Hello(peer, Hello::decode(&mail.back)));
                }
                // No conditional receive or probe is posted here, and TCP gives no warnings.
                Event::Done(_) | Event::Returned(_) | Event::Waiting(_) | Event::Warning(_) => {}
                Event::Failed(Token(token), error) => each(News::Gone((token >> 1) as u32, lost(error))),
                Event::Down { peer, cause } => each(News::Gone(peer, lost(cause))),
            }
        }
        self.events = events;
        moved
    }

    pub(super) fn arm(&mut self) -> Armed<'_> {
        self.tcp.arm(ParkBy::Fd)
    }

    pub(super) fn disarm(&mut self) {
        self.tcp.disarm();
    }

    /// Closes the connection to a peer, by which the peer learns that it was given up.
    pub(super) fn abandon(&mut self, peer: u32, cause: &Error) {
        let mut events = Vec::new();
        self.tcp.abandon(peer, cause, &mut events);
    }

    fn mail(&mut self, peer: u32) -> &mut Mail {
        self.mail[peer as usize].get_or_insert_with(|| {
            let (mut out, mut back) = (Box::new([0; HELLO_BYTES]), Box::new([0; HELLO_BYTES]));
            let piece = |bytes: &mut [u8; HELLO_BYTES]| {
                Box::new([Piece { ptr: bytes.as_mut_ptr(), len: HELLO_BYTES }])
            };
            let (out_piece, back_piece) = (piece(&mut out), piece(&mut back));
            Mail { out, back, out_piece, back_piece, greeted: false }
        })
    }
}

/// Returns the error of a peer that sends a second hello.
pub(super) fn two_hellos(peer: u32) -> Error {
    Error::new(ErrorKind::Corrupt, NAME, Some(peer), "the peer sent two hellos")
}

fn on(peer: u32) -> Channel {
    Channel { peer, index: 0 }
}

fn lost(error: Error) -> Error {
    Error {
        kind: ErrorKind::PeerLost,
        transport: NAME,
        detail: format!("the TCP connection beside it ended: {}", error.detail),
        ..error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_greeting_is_an_error() {
        let mut sides = [0, 1].map(|rank| Side::new(rank, 2, TcpOptions::default()).expect("an endpoint"));
        let address = sides[0].address().to_vec();
        sides[1].introduce(0, &address).expect("introduced");
        sides[1].greet(0, &Hello::Refusal("no".into())).expect("the first");
        let error = sides[1].greet(0, &Hello::Refusal("no".into())).expect_err("the second");
        assert_eq!((error.kind, error.peer), (ErrorKind::Corrupt, Some(0)), "{error}");
    }
}
