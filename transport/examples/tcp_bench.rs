//! Measures the cost of TCP through Kolo's transport, against bare sockets in the same run.
//!
//! `cargo run --release -p kolo-transport --example tcp_bench` runs two threads that poll without sleeping. Every
//! figure is the best of several rounds, since disturbances only ever add time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kolo_transport::{
    Channel, Consumer, Endpoint, Event, OnMisfit, Piece, Posted, Sink, TcpEndpoint, TcpOptions, Token,
};

const ROUNDS: usize = 5;

fn main() {
    let turns = 5_000;
    println!("half a round trip of 8 bytes, us (best of {ROUNDS} rounds of {turns})");
    println!("  std sockets                                  {:.2}", bare_ping_pong(turns, 8));
    println!("  the same, 40 bytes (8 and a header)          {:.2}", bare_ping_pong(turns, 40));
    println!("  kolo                                         {:.2}", ping_pong(turns, 8));
    println!("GB/s, both directions added");
    for (len, times) in [(16 << 10, 2048), (1 << 20, 128), (64 << 20, 3)] {
        let bare = bare_both_ways(len + 32, times);
        let placed = both_ways(len, times, false);
        let eaten = both_ways(len, times, true);
        println!(
            "  {:>8} KiB: std sockets {bare:5.2}, kolo placed {placed:5.2}, consumed {eaten:5.2}",
            len >> 10
        );
    }
    println!("million messages of 64 bytes a second, one way: {:.2}", small_messages(200_000));
}

fn ends() -> (TcpEndpoint, TcpEndpoint) {
    let open = |rank| TcpEndpoint::new(rank, 2, TcpOptions::default()).expect("endpoint");
    let (mut a, mut b) = (open(0), open(1));
    let (to_a, to_b) = (a.address().to_vec(), b.address().to_vec());
    let _ = (a.introduce(1, &to_b).expect("introduce"), b.introduce(0, &to_a).expect("introduce"));
    (a, b)
}

/// Runs `f` for both ends at once; returns the time of the first.
fn both<T: Send>(ends: (T, T), f: impl Fn(T, u32) -> Duration + Sync) -> Duration {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| f(ends.1, 1));
        let time = f(ends.0, 0);
        other.join().expect("the other end");
        time
    })
}

fn wait(end: &mut TcpEndpoint, mut open: u32) {
    let mut events = Vec::with_capacity(64);
    while open > 0 {
        end.poll(&mut events);
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
    }
}

fn ping_pong(turns: usize, len: usize) -> f64 {
    let time = both(ends(), |mut end, rank| {
        let (mut out, mut back) = (vec![0u8; len], vec![0u8; len]);
        let src = [Piece { ptr: out.as_mut_ptr(), len }];
        let dst = [Piece { ptr: back.as_mut_ptr(), len }];
        let on = Channel { peer: 1 - rank, index: 0 };
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for turn in 0..turns as u64 {
                // SAFETY: both buffers live until the waits have seen the tokens complete.
                let send = |end: &mut TcpEndpoint| unsafe {
                    let posted = end.post_send(on, turn, &src, Token(0)).expect("send");
                    u32::from(posted == Posted::Pending)
                };
                let sent = if rank == 0 { send(&mut end) } else { 0 };
                // SAFETY: as for the send.
                let _ = unsafe {
                    end.post_recv(on, turn, Sink::Place(&dst), OnMisfit::Fail, Token(1)).expect("recv")
                };
                wait(&mut end, 1 + sent);
                if rank == 1 {
                    let sent = send(&mut end);
                    wait(&mut end, sent);
                }
            }
            best = best.min(start.elapsed());
        }
        best
    });
    time.as_secs_f64() * 1e6 / turns as f64 / 2.0
}

unsafe fn add_up(context: *mut (), _offset: usize, data: *const u8, len: usize) {
    // SAFETY: the context is the sum of `both_ways`; the data is readable by contract.
    let (sum, bytes) = unsafe { (&mut *context.cast::<u64>(), std::slice::from_raw_parts(data, len)) };
    *sum += bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).sum::<u64>();
}

fn both_ways(len: usize, times: usize, eaten: bool) -> f64 {
    let time = both(ends(), |mut end, rank| {
        let (mut out, mut back) = (vec![1u8; len], vec![0u8; len]);
        let src = [Piece { ptr: out.as_mut_ptr(), len }];
        let dst = [Piece { ptr: back.as_mut_ptr(), len }];
        let on = Channel { peer: 1 - rank, index: 0 };
        let mut sum = 0u64;
        let consumer = Consumer { call: add_up, context: (&raw mut sum).cast() };
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for turn in 0..times as u64 {
                let sink = if eaten { Sink::Consume { len, consumer } } else { Sink::Place(&dst) };
                // SAFETY: buffers and sum live until the wait has seen the tokens complete.
                let sent = unsafe {
                    let _ = end.post_recv(on, turn, sink, OnMisfit::Fail, Token(1)).expect("recv");
                    end.post_send(on, turn, &src, Token(0)).expect("send")
                };
                wait(&mut end, 1 + u32::from(sent == Posted::Pending));
            }
            best = best.min(start.elapsed());
        }
        best
    });
    (2 * len * times) as f64 / time.as_secs_f64() / 1e9
}

fn small_messages(times: usize) -> f64 {
    const LEN: usize = 64;
    const WINDOW: usize = 64;
    let time = both(ends(), |mut end, rank| {
        let mut buffer = [0u8; LEN];
        let piece = [Piece { ptr: buffer.as_mut_ptr(), len: LEN }];
        let on = Channel { peer: 1 - rank, index: 0 };
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..times / WINDOW {
                let mut open = 0;
                for _ in 0..WINDOW {
                    // SAFETY: the buffer lives until the wait; its contents do not matter.
                    let posted = unsafe {
                        if rank == 0 {
                            end.post_send(on, 0, &piece, Token(0))
                        } else {
                            end.post_recv(on, 0, Sink::Place(&piece), OnMisfit::Fail, Token(0))
                        }
                    };
                    open += u32::from(posted.expect("post") == Posted::Pending);
                }
                wait(&mut end, open);
            }
            best = best.min(start.elapsed());
        }
        best
    });
    times as f64 / time.as_secs_f64() / 1e6
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    for stream in [&a, &b] {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(true).expect("non-blocking");
        // Kolo does the same between processes of one host. An unprivileged process may be allowed reno only.
        let socket = socket2::SockRef::from(stream);
        let _ = socket.set_tcp_congestion(b"cubic").or_else(|_| socket.set_tcp_congestion(b"reno"));
    }
    (a, b)
}

/// Moves bytes in both directions until all of them have been moved.
fn pump(stream: &mut TcpStream, mut out: &[u8], mut back: &mut [u8]) {
    const CALL: usize = 1 << 20;
    while !out.is_empty() || !back.is_empty() {
        if !out.is_empty() {
            match stream.write(&out[..out.len().min(CALL)]) {
                Ok(n) => out = &out[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if !back.is_empty() {
            let room = back.len().min(CALL);
            match stream.read(&mut back[..room]) {
                Ok(n) => back = &mut std::mem::take(&mut back)[n..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

fn bare_ping_pong(turns: usize, len: usize) -> f64 {
    let time = both(sockets(), |mut stream, rank| {
        let (out, mut back) = (vec![0u8; len], vec![0u8; len]);
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..turns {
                if rank == 0 {
                    pump(&mut stream, &out, &mut []);
                }
                pump(&mut stream, &[], &mut back);
                if rank == 1 {
                    pump(&mut stream, &out, &mut []);
                }
            }
            best = best.min(start.elapsed());
        }
        best
    });
    time.as_secs_f64() * 1e6 / turns as f64 / 2.0
}

fn bare_both_ways(len: usize, times: usize) -> f64 {
    let time = both(sockets(), |mut stream, _| {
        let (out, mut back) = (vec![1u8; len], vec![0u8; len]);
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..times {
                pump(&mut stream, &out, &mut back);
            }
            best = best.min(start.elapsed());
        }
        best
    });
    (2 * len * times) as f64 / time.as_secs_f64() / 1e9
}
