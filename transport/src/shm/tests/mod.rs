//! Tests of the whole endpoint. Endpoints never block, so most tests drive all ends of a conversation from one
//! thread, step by step; every loop has a deadline.

mod establishing;
mod exchange;
mod exposed;
mod failure;
mod hostile;
mod messages;
mod single;
mod sleep;

use std::time::{Duration, Instant};

use super::{ShmEndpoint, ShmOptions};
use crate::endpoint::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Reach, Sink, Token};
use crate::error::{Error, ErrorKind};

/// Longest time that any wait in these tests may take; they share the machine with other processes.
const PATIENCE: Duration = Duration::from_secs(60);

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Yields until `condition` holds, and panics with `what` after too long.
#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = deadline();
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// Makes endpoints of a world of `n` ranks, introduced but not established.
fn introduced(n: u32, options: &ShmOptions) -> Vec<ShmEndpoint> {
    let mut world: Vec<_> =
        (0..n).map(|rank| ShmEndpoint::new(rank, n, options.clone()).expect("endpoint")).collect();
    let addresses: Vec<_> = world.iter().map(|e| e.address().to_vec()).collect();
    for (rank, endpoint) in world.iter_mut().enumerate() {
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            let reach = endpoint.introduce(peer as u32, address).expect("introduce");
            assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
        }
    }
    world
}

/// Makes established endpoints of a world of `n` ranks.
fn world_with(n: u32, options: &ShmOptions) -> Vec<ShmEndpoint> {
    let mut world = introduced(n, options);
    std::thread::scope(|scope| {
        for endpoint in &mut world {
            scope.spawn(|| endpoint.establish(&|| false, deadline()).expect("establish"));
        }
    });
    world
}

fn world(n: u32) -> Vec<ShmEndpoint> {
    world_with(n, &ShmOptions::default())
}

fn pair() -> (ShmEndpoint, ShmEndpoint) {
    let mut world = world(2);
    let second = world.pop().expect("two");
    (world.pop().expect("two"), second)
}

fn channel(peer: u32, index: u16) -> Channel {
    Channel { peer, index }
}

/// Returns memory that the kernel reads for nobody, for the rest of the process; `None`, with a printed reason, if there
/// is none.
fn secret(len: usize) -> Option<&'static mut [u8]> {
    // SAFETY: a new mapping of a new file, of whole pages, which nothing else knows and nothing unmaps.
    unsafe {
        let fd = libc::syscall(libc::SYS_memfd_secret, 0) as i32;
        let size = len.next_multiple_of(4096);
        if fd >= 0 && libc::ftruncate(fd, size as i64) == 0 {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, fd, 0);
            if at != libc::MAP_FAILED {
                return Some(std::slice::from_raw_parts_mut(at.cast(), len));
            }
        }
    }
    println!("skipped: no secret memory: {}", std::io::Error::last_os_error());
    None
}

/// Returns bytes that differ by position and by `seed`.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(131)) as u8).collect()
}

/// Returns one piece over a buffer. The test keeps both while a message is pending.
fn piece(buffer: &[u8]) -> [Piece; 1] {
    [Piece { ptr: buffer.as_ptr().cast_mut(), len: buffer.len() }]
}

/// Posts a send. The test keeps its pieces and memory alive until it is complete.
fn send(
    endpoint: &mut ShmEndpoint,
    on: Channel,
    tag: u64,
    src: &[Piece],
    token: u64,
) -> Result<Posted, Error> {
    // SAFETY: tests keep `src` and its memory until the token completes or the endpoint is dropped.
    unsafe { endpoint.post_send(on, tag, src, Token(token)) }
}

/// Posts a receive. The test keeps its pieces and memory alive until it is complete.
fn receive(
    endpoint: &mut ShmEndpoint,
    on: Channel,
    tag: u64,
    dst: &[Piece],
    token: u64,
) -> Result<Posted, Error> {
    // SAFETY: as for `send`.
    unsafe { endpoint.post_recv(on, tag, Sink::Place(dst), OnMisfit::Fail, Token(token)) }
}

/// Polls all endpoints in turn until `condition` holds for the events that they reported.
#[track_caller]
fn pump(
    world: &mut [&mut ShmEndpoint],
    events: &mut [Vec<Event>],
    condition: impl Fn(&[Vec<Event>]) -> bool,
) {
    until("events", || {
        for (endpoint, events) in world.iter_mut().zip(events.iter_mut()) {
            endpoint.poll(events);
        }
        condition(events)
    });
}

/// Returns whether the events report a token as done.
fn is_done(events: &[Event], token: u64) -> bool {
    events.iter().any(|e| matches!(e, Event::Done(Token(t)) if *t == token))
}

/// Returns the error with which a token failed, if it did.
fn failure(events: &[Event], token: u64) -> Option<ErrorKind> {
    events.iter().find_map(|e| match e {
        Event::Failed(Token(t), error) if *t == token => Some(error.kind),
        _ => None,
    })
}

/// Returns the peers reported down.
fn downs(events: &[Event]) -> Vec<u32> {
    events.iter().filter_map(|e| if let Event::Down { peer, .. } = e { Some(*peer) } else { None }).collect()
}
