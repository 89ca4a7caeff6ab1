//! Faults at the acceptor and on the wire, caused by processes that are not peers or that break the protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::dial::{Dial, Dialed};
use super::route::Candidate;
use super::wire::{
    ANSWER_BYTES, Answer, HEADER_BYTES, HELLO_BYTES, Header, Hello, PROTOCOL, Verdict, key_of,
};
use super::{TcpEndpoint, TcpOptions};
use crate::endpoint::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::proof::Key;

mod lacks;

const COOKIE: [u8; 16] = [7; 16];

fn options() -> TcpOptions {
    TcpOptions { cookie: COOKIE, dial_patience: Duration::from_millis(30), ..Default::default() }
}

pub(super) fn world(size: u32) -> Vec<TcpEndpoint> {
    let mut ends: Vec<_> = (0..size).map(|rank| TcpEndpoint::new(rank, size, options()).unwrap()).collect();
    introduce(&mut ends);
    ends
}

pub(super) fn introduce(ends: &mut [TcpEndpoint]) {
    let addresses: Vec<Vec<u8>> = ends.iter().map(|end| end.address().to_vec()).collect();
    for end in ends {
        let me = end.me.rank;
        for (peer, address) in (0..).zip(&addresses).filter(|&(peer, _)| peer != me) {
            end.introduce(peer, address).unwrap();
        }
    }
}

/// Calls `f` until it returns something.
pub(super) fn until<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = f() {
            return found;
        }
        assert!(Instant::now() < deadline, "stuck: {what}");
    }
}

/// Sends a message from one end to another, and checks it. All ends may be polled along the way.
pub(super) fn deliver(ends: &mut [TcpEndpoint], from: usize, to: usize, index: u16, len: usize) {
    let mut source: Vec<u8> = (0..len).map(|i| (i * 7 + from) as u8).collect();
    let mut target = vec![0u8; len];
    let (src, dst) = ([Piece { ptr: source.as_mut_ptr(), len }], [Piece { ptr: target.as_mut_ptr(), len }]);
    let mut open = 1;
    // SAFETY: buffers and pieces live until both tokens have completed, below.
    unsafe {
        let on = Channel { peer: to as u32, index };
        open += u32::from(ends[from].post_send(on, 1, &src, Token(1)).unwrap() == Posted::Pending);
        let on = Channel { peer: from as u32, index };
        let _ = ends[to].post_recv(on, 1, Sink::Place(&dst), OnMisfit::Fail, Token(2)).unwrap();
    }
    let mut events = Vec::new();
    until("a message", || {
        for end in ends.iter_mut() {
            end.poll(&mut events);
        }
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
        (open == 0).then_some(())
    });
    assert_eq!(source, target);
}

/// Posts a receive of one byte, and waits for its error.
pub(super) fn error_of_recv(end: &mut TcpEndpoint, others: &mut [TcpEndpoint], on: Channel) -> Error {
    let mut byte = 0u8;
    let pieces = [Piece { ptr: &raw mut byte, len: 1 }];
    // SAFETY: the byte lives until the token has failed.
    let posted = unsafe { end.post_recv(on, 0, Sink::Place(&pieces), OnMisfit::Fail, Token(9)) };
    if let Err(error) = posted {
        return error;
    }
    let mut events = Vec::new();
    until("an error", || {
        for other in others.iter_mut() {
            other.poll(&mut Vec::new());
        }
        end.poll(&mut events);
        events.drain(..).find_map(|event| match event {
            Event::Failed(Token(9), error) => Some(error),
            _ => None,
        })
    })
}

fn dial(end: &TcpEndpoint) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, end.port())).unwrap()
}

fn hello_to(end: &TcpEndpoint, from: u32, channel: u16) -> Hello {
    let (world_size, target) = (end.me.world_size, end.me.instance);
    let (to, nonce) = (end.me.rank, [3; 16]);
    Hello { from, to, world_size, channel, strand: 0, is_padded: false, instance: 1234, target, nonce }
}

fn key() -> Key {
    key_of(&COOKIE)
}

fn answer(end: &mut TcpEndpoint, stream: &mut TcpStream) -> Answer {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; ANSWER_BYTES];
    let mut got = 0;
    until("an answer", || {
        end.poll(&mut Vec::new());
        end.connect(&mut Vec::new());
        match stream.read(&mut bytes[got..]) {
            Ok(0) => panic!("closed without an answer; {:?}", end.rejected_connections()),
            Ok(n) => got += n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        (got == ANSWER_BYTES).then_some(())
    });
    stream.set_nonblocking(false).unwrap();
    Answer::decode(&bytes).unwrap()
}

#[test]
fn strangers_do_not_disturb() {
    let mut ends = world(2);
    let mut crowd = Vec::new();
    for round in 0..120 {
        let mut stream = dial(&ends[1]);
        let hello = hello_to(&ends[1], 0, 0).encode(&key());
        // Garbage; half a hello; silence; a hello that stops before its last byte; a connection that closes at once.
        match round % 5 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            1 => stream.write_all(&hello[..20]).unwrap(),
            3 => stream.write_all(&hello[..HELLO_BYTES - 1]).unwrap(),
            _ => {}
        }
        if round % 5 != 4 {
            crowd.push(stream);
        }
        if round % 10 == 0 {
            deliver(&mut ends, 0, 1, round / 10, 5000);
        }
    }
    for index in 0..12 {
        deliver(&mut ends, 1, 0, index, 100_000);
    }
    ends[1].connect(&mut Vec::new());
    assert!(ends[1].rejected_connections().count >= 24, "{:?}", ends[1].rejected_connections());
}

#[test]
fn a_full_waiting_room_lets_peers_in() {
    let mut ends = world(2);
    let crowd: Vec<_> = (0..400).map(|_| dial(&ends[1])).collect();
    deliver(&mut ends, 0, 1, 0, 1000);
    assert!(ends[1].rejected_connections().count >= 100, "{:?}", ends[1].rejected_connections());
    drop(crowd);
}

#[test]
fn the_silent_are_sent_away_in_time() {
    let options = TcpOptions { hello_timeout: Duration::from_millis(20), ..options() };
    let mut end = TcpEndpoint::new(1, 2, options).unwrap();
    let mut stream = dial(&end);
    until("the silent to be sent away", || {
        end.connect(&mut Vec::new());
        (end.rejected_connections().count == 1).then_some(())
    });
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    assert!(end.rejected_connections().last.as_ref().unwrap().contains("in time"));
}

#[test]
fn a_hello_may_come_byte_by_byte() {
    let mut end = TcpEndpoint::new(1, 2, options()).unwrap();
    let mut stream = dial(&end);
    stream.set_nodelay(true).unwrap();
    for byte in hello_to(&end, 0, 3).encode(&key()) {
        stream.write_all(&[byte]).unwrap();
        end.connect(&mut Vec::new());
    }
    assert_eq!(answer(&mut end, &mut stream).verdict, Verdict::Welcome);
}

#[test]
fn wrong_hellos_are_told_why() {
    let mut end = TcpEndpoint::new(1, 3, options()).unwrap();
    let good = hello_to(&end, 0, 0);
    let wrong = [
        (Hello { to: 0, ..good }, Verdict::Rank),
        (Hello { target: 5, ..good }, Verdict::Instance),
        (Hello { from: 3, ..good }, Verdict::Rank),
        (Hello { from: 1, ..good }, Verdict::Rank),
        (Hello { from: u32::MAX, ..good }, Verdict::Rank),
        (Hello { world_size: 2, ..good }, Verdict::Rank),
        (Hello { channel: u16::MAX, ..good }, Verdict::Rank),
    ];
    for (hello, verdict) in wrong {
        let mut stream = dial(&end);
        stream.write_all(&hello.encode(&key())).unwrap();
        assert_eq!(answer(&mut end, &mut stream).verdict, verdict, "{hello:?}");
    }
    let mut stream = dial(&end);
    stream.write_all(&good.encode(&key_of(&[8; 16]))).unwrap();
    assert_eq!(answer(&mut end, &mut stream).verdict, Verdict::Cookie);
    let mut stream = dial(&end);
    let mut bytes = good.encode(&key());
    bytes[8..10].copy_from_slice(&(PROTOCOL + 1).to_le_bytes());
    stream.write_all(&bytes).unwrap();
    let told = answer(&mut end, &mut stream);
    assert_eq!((told.verdict, told.protocol), (Verdict::Version, PROTOCOL));
    assert!(Answer { protocol: 9, ..told }.explain().contains("protocol 9, but this rank speaks 4"));
    assert_eq!(end.rejected_connections().count, 9);
}

#[test]
fn a_channel_is_claimed_once() {
    let mut ends = world(2);
    deliver(&mut ends, 0, 1, 0, 100);
    let instance = ends[0].me.instance;
    let hello = Hello { instance, ..hello_to(&ends[1], 0, 0) };
    let mut stream = dial(&ends[1]);
    stream.write_all(&hello.encode(&key())).unwrap();
    assert_eq!(answer(&mut ends[1], &mut stream).verdict, Verdict::Duplicate);
    // Another process claims to be the rank, and knows the cookie.
    let mut stream = dial(&ends[1]);
    stream.write_all(&hello_to(&ends[1], 0, 1).encode(&key())).unwrap();
    assert_eq!(answer(&mut ends[1], &mut stream).verdict, Verdict::Instance);
    deliver(&mut ends, 0, 1, 0, 100);
    deliver(&mut ends, 1, 0, 0, 100);
}

#[test]
fn a_recorded_hello_of_a_further_connection_is_refused() {
    let mut ends = world(2);
    deliver(&mut ends, 0, 1, 0, 100);
    let instance = ends[0].me.instance;
    let mut connections = Vec::new();
    for (strand, verdict) in
        [(1, Verdict::Welcome), (1, Verdict::Duplicate), (2, Verdict::Welcome), (16, Verdict::Duplicate)]
    {
        let hello = Hello { instance, strand, ..hello_to(&ends[1], 0, 0) };
        let mut stream = dial(&ends[1]);
        stream.write_all(&hello.encode(&key())).unwrap();
        assert_eq!(answer(&mut ends[1], &mut stream).verdict, verdict, "connection {strand}");
        connections.push(stream);
    }
}

/// A false acceptor at a peer's address answers as its endpoint would, except for the proof: it is not believed.
#[test]
fn a_false_acceptor_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let end = TcpEndpoint::new(1, 2, options()).unwrap();
    let candidate =
        Candidate { to: listener.local_addr().unwrap(), interface: "lo".into(), distance: 0, from: None };
    let hello = hello_to(&end, 0, 0).encode(&key());
    let welcome = Answer { verdict: Verdict::Welcome, protocol: PROTOCOL, instance: end.me.instance };
    // An answer to another hello of the same dialer, as an eavesdropper would have recorded it.
    let recorded = Hello { nonce: [4; 16], ..hello_to(&end, 0, 0) }.encode(&key());
    for bytes in [welcome.encode(None), welcome.encode(Some((&recorded, &key())))] {
        let now = Instant::now();
        let mut dial =
            Dial::new((hello, key()), end.me.instance, true, std::slice::from_ref(&candidate), now);
        let mut taken = None;
        listener.set_nonblocking(true).unwrap();
        let why = until("the verdict", || {
            if taken.is_none()
                && let Ok((mut stream, _)) = listener.accept()
            {
                stream.write_all(&bytes).unwrap();
                taken = Some(stream);
            }
            match dial.step(Instant::now(), &options(), |_| {}) {
                Dialed::Waiting => None,
                Dialed::Failed { tried, .. } => Some(tried),
                other => panic!("{other:?}"),
            }
        });
        assert!(why.contains("does not know the job's cookie"), "{why}");
    }
}

#[test]
fn jobs_do_not_mix() {
    let mut ends = [
        TcpEndpoint::new(0, 2, options()).unwrap(),
        TcpEndpoint::new(1, 2, TcpOptions { cookie: [9; 16], ..options() }).unwrap(),
    ];
    introduce(&mut ends);
    let [dialer, acceptor] = &mut ends;
    // The acceptor waits for a connection too; otherwise it would look for connections only now and then.
    let mut byte = 0u8;
    let pieces = [Piece { ptr: &raw mut byte, len: 1 }];
    // SAFETY: the byte outlives the endpoint's polls.
    let _ = unsafe {
        acceptor.post_recv(Channel { peer: 0, index: 0 }, 0, Sink::Place(&pieces), OnMisfit::Fail, Token(1))
    };
    let error = error_of_recv(dialer, std::slice::from_mut(acceptor), Channel { peer: 1, index: 0 });
    assert_eq!(error.kind, ErrorKind::PeerLost);
    assert!(error.detail.contains("another job"), "{error}");
}

#[test]
fn a_dead_peer_is_told_with_all_addresses_tried() {
    let mut ends = world(2);
    drop(ends.pop());
    let error = error_of_recv(&mut ends[0], &mut [], Channel { peer: 1, index: 0 });
    assert_eq!(error.kind, ErrorKind::PeerLost);
    assert!(error.detail.contains("127.0.0.1") && error.detail.contains("KOLO_SOCKET_IFNAME"), "{error}");
}

#[test]
fn a_peer_that_should_dial_but_has_left_is_missed() {
    let mut ends = world(2);
    deliver(&mut ends, 0, 1, 0, 100);
    let mut higher = ends.pop().unwrap();
    drop(ends);
    let error = error_of_recv(&mut higher, &mut [], Channel { peer: 0, index: 5 });
    assert_eq!(error.kind, ErrorKind::PeerLost);
}

/// The relay ends when rank 0 leaves, and the peer may be alive.
#[test]
fn the_end_of_a_relayed_connection_is_not_blamed_on_the_peer_alone() {
    for is_relayed in [false, true] {
        let mut ends = world(2);
        deliver(&mut ends, 0, 1, 0, 100);
        let mut end = ends.pop().unwrap();
        end.links[0].route.as_mut().expect("it is connected").is_relayed = is_relayed;
        drop(ends);
        let error = error_of_recv(&mut end, &mut [], Channel { peer: 0, index: 0 });
        assert_eq!(error.detail.contains("the rank that relayed it"), is_relayed, "{error}");
    }
}

#[test]
fn dialing_passes_over_the_refusing_and_the_silent() {
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::conformance::free_port()));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = TcpEndpoint::new(1, 2, options()).unwrap();
    let right = SocketAddr::from((Ipv4Addr::LOCALHOST, end.port()));
    let candidates = [closed, silent.local_addr().unwrap(), right].map(|to| Candidate {
        to,
        interface: "lo".into(),
        distance: 0,
        from: None,
    });
    let hello = (hello_to(&end, 0, 0).encode(&key()), key());
    let mut dial = Dial::new(hello, end.me.instance, true, &candidates, Instant::now());
    let made = until("a connection", || {
        end.connect(&mut Vec::new());
        match dial.step(Instant::now(), &options(), |_| {}) {
            Dialed::Waiting => None,
            Dialed::Connected(made) => Some(made),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(made.to, right);
}

#[test]
fn nonsense_from_a_peer_ends_it_and_nobody_else() {
    let header = Header { tag: 0, len: 1, sequence: 0, striped: false };
    let mut flipped = header.encode();
    flipped[9] ^= 4;
    let out_of_turn = Header { sequence: 1, ..header }.encode();
    for nonsense in [[0xff; HEADER_BYTES], flipped, out_of_turn] {
        let mut ends = world(3);
        deliver(&mut ends, 1, 2, 0, 100);
        let mut end = ends.pop().unwrap();
        let instance = ends[0].me.instance;
        let mut stream = dial(&end);
        stream.write_all(&Hello { instance, ..hello_to(&end, 0, 0) }.encode(&key())).unwrap();
        assert_eq!(answer(&mut end, &mut stream).verdict, Verdict::Welcome);
        stream.write_all(&nonsense).unwrap();
        stream.write_all(&[1; 5000]).unwrap();
        let error = error_of_recv(&mut end, &mut ends, Channel { peer: 0, index: 0 });
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        let later = error_of_recv(&mut end, &mut ends, Channel { peer: 0, index: 0 });
        assert_eq!(later.kind, ErrorKind::PeerLost, "{later}");
        ends.push(end);
        deliver(&mut ends, 1, 2, 0, 100);
    }
}

#[test]
fn what_was_sent_is_read_after_the_sender_left() {
    for sender in 0..2 {
        let mut ends = world(2);
        deliver(&mut ends, 0, 1, 0, 10);
        let mut receiver = ends.remove(1 - sender);
        let mut sender = ends.remove(0);
        let peers = (receiver.me.rank, sender.me.rank);
        let mut source = [5u8; 3000];
        let src = [Piece { ptr: source.as_mut_ptr(), len: source.len() }];
        for i in 0..20 {
            // SAFETY: `source` lives until the endpoint is flushed.
            let _ =
                unsafe { sender.post_send(Channel { peer: peers.0, index: 0 }, i, &src, Token(i)).unwrap() };
        }
        until("the flush", || {
            sender.poll(&mut Vec::new());
            sender.is_flushed().then_some(())
        });
        // A message the other way, which nobody will read.
        // SAFETY: the send completes at once.
        let posted = unsafe { receiver.post_send(Channel { peer: peers.1, index: 0 }, 0, &src, Token(0)) };
        assert_eq!(posted.unwrap(), Posted::Done);
        drop(sender);
        let mut target = vec![[0u8; 3000]; 20];
        let dst: Vec<_> = target.iter_mut().map(|t| [Piece { ptr: t.as_mut_ptr(), len: t.len() }]).collect();
        for (i, piece) in dst.iter().enumerate() {
            let on = Channel { peer: peers.1, index: 0 };
            // SAFETY: targets and pieces live until all have completed.
            let _ = unsafe {
                receiver.post_recv(on, i as u64, Sink::Place(piece), OnMisfit::Fail, Token(i as u64)).unwrap()
            };
        }
        let mut events = Vec::new();
        until("what was sent", || {
            receiver.poll(&mut events);
            (events.len() == 20).then_some(())
        });
        assert!(events.iter().all(|event| matches!(event, Event::Done(_))), "{events:?}");
        assert!(target.iter().flatten().all(|&byte| byte == 5));
    }
}

#[test]
fn leaving_with_unread_input_loses_nothing() {
    let mut ends = world(2);
    deliver(&mut ends, 0, 1, 0, 10);
    let mut reader = ends.remove(0);
    let mut leaver = ends.remove(0);
    const LEN: usize = 3 << 20;
    let mut source = vec![3u8; LEN];
    let src = [Piece { ptr: source.as_mut_ptr(), len: LEN }];
    // The leaver will never read this, and would reset the connection if it just closed.
    // SAFETY: `source` outlives both endpoints' use of it.
    let _ = unsafe { reader.post_send(Channel { peer: 1, index: 0 }, 0, &src, Token(0)).unwrap() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = vec![3u8; LEN];
            let src = [Piece { ptr: out.as_mut_ptr(), len: LEN }];
            // SAFETY: `out` lives until the send is done, below.
            let mut posted =
                unsafe { leaver.post_send(Channel { peer: 0, index: 0 }, 0, &src, Token(1)).unwrap() };
            let mut events = Vec::new();
            until("a send", || {
                leaver.poll(&mut events);
                if !events.is_empty() {
                    posted = Posted::Done;
                }
                (posted == Posted::Done).then_some(())
            });
            drop(leaver);
        });
        let mut target = vec![0u8; LEN];
        let dst = [Piece { ptr: target.as_mut_ptr(), len: LEN }];
        // SAFETY: `target` lives until the receive is done, below.
        let _ = unsafe {
            reader
                .post_recv(Channel { peer: 1, index: 0 }, 0, Sink::Place(&dst), OnMisfit::Fail, Token(2))
                .unwrap()
        };
        let mut events = Vec::new();
        until("the message", || {
            reader.poll(&mut events);
            assert!(!events.iter().any(|event| matches!(event, Event::Failed(Token(2), _))), "{events:?}");
            events.iter().any(|event| matches!(event, Event::Done(Token(2)))).then_some(())
        });
        assert!(target.iter().all(|&byte| byte == 3));
    });
}

/// As `leaving_with_unread_input_loses_nothing`, but the input comes after the announcement.
#[test]
fn input_that_comes_while_a_rank_leaves_loses_nothing() {
    let mut ends = world(2);
    deliver(&mut ends, 0, 1, 0, 10);
    let mut reader = ends.remove(0);
    let mut leaver = ends.remove(0);
    // The kernels take it all, but the receiver's window is too small for it.
    const LEN: usize = 1 << 20;
    let mut out = vec![3u8; LEN];
    let src = [Piece { ptr: out.as_mut_ptr(), len: LEN }];
    let mut events = Vec::new();
    // SAFETY: `out` outlives both endpoints' use of it.
    let mut is_sent = unsafe {
        leaver.post_send(Channel { peer: 0, index: 0 }, 0, &src, Token(1)).unwrap() == Posted::Done
    };
    until("a send", || {
        leaver.poll(&mut events);
        is_sent |= !events.is_empty();
        is_sent.then_some(())
    });
    leaver.leave();
    // SAFETY: as above.
    let posted = unsafe { reader.post_send(Channel { peer: 1, index: 0 }, 0, &src[..], Token(0)).unwrap() };
    assert_eq!(posted, Posted::Pending);
    for _ in 0..10 {
        reader.poll(&mut events);
    }
    leaver.abort(&Error::new(ErrorKind::Aborted, "tests", None, "it leaves"), &mut events);
    events.clear();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(leaver));
        let mut target = vec![0u8; LEN];
        let dst = [Piece { ptr: target.as_mut_ptr(), len: LEN }];
        // SAFETY: `target` lives until the receive is done, below.
        let _ = unsafe {
            reader
                .post_recv(Channel { peer: 1, index: 0 }, 0, Sink::Place(&dst), OnMisfit::Fail, Token(2))
                .unwrap()
        };
        until("the message", || {
            reader.poll(&mut events);
            assert!(!events.iter().any(|event| matches!(event, Event::Failed(Token(2), _))), "{events:?}");
            events.iter().any(|event| matches!(event, Event::Done(Token(2)))).then_some(())
        });
        assert!(target.iter().all(|&byte| byte == 3));
    });
}

#[test]
fn interfaces_are_chosen() {
    let only = |list: &str| TcpOptions { interfaces: TcpOptions::interfaces_from(list), ..options() };
    let mut ends = [TcpEndpoint::new(0, 2, only("lo")).unwrap(), TcpEndpoint::new(1, 2, only("lo")).unwrap()];
    introduce(&mut ends);
    deliver(&mut ends, 1, 0, 0, 1000);
    let (to, congestion) = ends[0].route(Channel { peer: 1, index: 0 }).unwrap();
    assert!(to.unwrap().ip().is_loopback());
    assert!(!congestion.starts_with("bbr"), "{congestion}");
    let error = TcpEndpoint::new(0, 2, only("no-such-interface")).unwrap_err();
    assert!(error.detail.contains("KOLO_SOCKET_IFNAME"), "{error}");
}
