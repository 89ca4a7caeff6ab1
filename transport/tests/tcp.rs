//! TCP on its own: what no other transport has.

use std::time::{Duration, Instant};

use kolo_transport::{Channel, Endpoint, Event, Piece, Posted, Sink, TcpEndpoint, TcpOptions, Token};

fn pair() -> [TcpEndpoint; 2] {
    let mut ends = [0, 1]
        .map(|rank| TcpEndpoint::new(rank, 2, TcpOptions { cookie: [7; 16], ..Default::default() }).unwrap());
    let addresses = [0, 1].map(|rank: usize| ends[rank].address().to_vec());
    for (rank, end) in ends.iter_mut().enumerate() {
        let peer = 1 - rank;
        println!("{:?}", end.introduce(peer as u32, &addresses[peer]).unwrap());
    }
    ends
}

fn poll_until_done(ends: &mut [TcpEndpoint], mut want: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut events = Vec::new();
    while want > 0 {
        assert!(Instant::now() < deadline, "stuck");
        for end in ends.iter_mut() {
            end.poll(&mut events);
        }
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            want -= 1;
        }
    }
}

#[test]
fn bytes_arrive() {
    let mut ends = pair();
    for len in [0usize, 1, 31, 4096, 5_000_000] {
        let mut source: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let mut target = vec![0u8; len];
        let src = [Piece { ptr: source.as_mut_ptr(), len }];
        let dst = [Piece { ptr: target.as_mut_ptr(), len }];
        let mut want = 2;
        // SAFETY: both outlive the wait below.
        unsafe {
            if ends[1].post_send(Channel { peer: 0, index: 3 }, 5, &src, Token(1)).unwrap() == Posted::Done {
                want -= 1;
            }
            let _ = ends[0].post_recv(Channel { peer: 1, index: 3 }, 5, Sink::Place(&dst), Token(2)).unwrap();
        }
        poll_until_done(&mut ends, want);
        assert_eq!(source, target);
    }
    println!("{:?}", ends[0].route(Channel { peer: 1, index: 3 }));
}
