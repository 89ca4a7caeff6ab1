//! A firewall that drops packets silently: the other end gets through if the firewall permits that; otherwise the
//! loss of the peer names the addresses that were tried, and the remedy.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kolo_transport::tcp::Family;
use kolo_transport::{
    Channel, Endpoint, Event, OnMisfit, Piece, Posted, Sink, TcpEndpoint, TcpOptions, Token,
};

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(20);

fn end(rank: u32) -> TcpEndpoint {
    let options = TcpOptions {
        family: Family::V4,
        dial_patience: SHORT / 4,
        dial_timeout: SHORT,
        reach_within: 4 * SHORT,
        ..TcpOptions::default()
    };
    TcpEndpoint::new(rank, 2, options).expect("endpoint")
}

/// Occupies a port so that connection requests get no answer: the queue is full, and the kernel drops further ones. It stays
/// so as long as the second return value lives.
fn silent_port() -> (u16, impl Sized) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    rustix::net::listen(&listener, 0).expect("a shorter queue");
    let port = listener.local_addr().expect("bound").port();
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, SHORT) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue does not fill");
    }
    (port, (listener, queued))
}

/// Returns the address of an endpoint with the number of another port, which stands behind magic and version (4 bytes).
fn at_port(end: &TcpEndpoint, port: u16) -> Vec<u8> {
    let mut address = end.address().to_vec();
    address[4..6].copy_from_slice(&port.to_le_bytes());
    address
}

#[test]
fn silent_addresses_are_named_with_the_remedy() {
    let mut dialling = end(0);
    let (port, _silent) = silent_port();
    dialling.introduce(1, &at_port(&end(1), port)).expect("a good address");
    let mut byte = 0_u8;
    let pieces = [Piece { ptr: &raw mut byte, len: 1 }];
    let on = Channel { peer: 1, index: 0 };
    // SAFETY: the byte outlives the token, which fails below.
    let posted = unsafe { dialling.post_recv(on, 0, Sink::Place(&pieces), OnMisfit::Fail, Token(1)) };
    assert_eq!(posted.expect("posted"), Posted::Pending);
    let until = Instant::now() + LONG;
    let mut events = Vec::new();
    let text = loop {
        dialling.poll(&mut events);
        let failed = events.drain(..).find_map(|event| match event {
            Event::Failed(Token(1), error) => Some(error.to_string()),
            _ => None,
        });
        if let Some(text) = failed {
            break text;
        }
        assert!(Instant::now() < until, "nobody gives up");
        std::thread::yield_now();
    };
    for part in [&format!(":{port} ("), "no answer; a firewall?", "KOLO_SOCKET_IFNAME"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_higher_rank_dials_where_the_lower_gets_no_answer() {
    let mut ends = [end(0), end(1)];
    let (port, _silent) = silent_port();
    let address = at_port(&ends[1], port);
    ends[0].introduce(1, &address).expect("a good address");
    let address = ends[0].address().to_vec();
    ends[1].introduce(0, &address).expect("a good address");
    let (mut source, mut target) = ([7_u8], [0_u8]);
    let from = [Piece { ptr: source.as_mut_ptr(), len: 1 }];
    let to = [Piece { ptr: target.as_mut_ptr(), len: 1 }];
    let mut events = Vec::new();
    for index in [0, 1] {
        let began = Instant::now();
        let mut open = 2;
        // SAFETY: bytes and pieces outlive the tokens, which complete below.
        let posted = unsafe {
            let sent = ends[0].post_send(Channel { peer: 1, index }, 0, &from, Token(1));
            [
                sent,
                ends[1].post_recv(Channel { peer: 0, index }, 0, Sink::Place(&to), OnMisfit::Fail, Token(2)),
            ]
        };
        assert_eq!(posted.map(|posted| posted.expect("posted")), [Posted::Pending; 2]);
        while open > 0 {
            for end in ends.iter_mut() {
                end.poll(&mut events);
            }
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{event:?}");
                open -= 1;
            }
            assert!(began.elapsed() < LONG, "the higher rank does not dial");
            std::thread::yield_now();
        }
        assert_eq!(std::mem::take(&mut target), source);
    }
}
